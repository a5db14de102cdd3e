"""A training run: takes in the events of its workers, and knows what they come to.

`labkit.panel.tracking` lists the events; `labkit.panel.shown` says what is shown of the run.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from labkit.panel.run import Run, Span, Thinned, whole
from labkit.panel.workers import Positions, Workers, WorkerState

_POINTS_KEPT = 240  # about one per pixel of the curve
_SPANS_KEPT = 900
DECIDED = ("validated", "failed", "timed out")  # a validation ends in one of these


@dataclass
class CheckpointState:
    """One checkpoint.

    Attributes:
        epoch: counted from 1; 0 before the first.
        bytes: size of its files.
        status: "committed" (saved), "pending" (a validation was asked for), or one of `DECIDED`.
        metrics: those reported with it, updated by those of its validation.
        late: the part of them that the validation brought.
        reason: why the validation failed, in one line.
        committed_at: when it was seen first, in Unix seconds.
        begun_at: when its validation began; the last time, if it was started again.
        decided_at: when its status was decided, and `late` was there.
        seconds: that the validation took in its own process.
        deleted: its files are gone: `num_to_keep` checkpoints ranked above it.
    """

    path: str
    epoch: int
    committed_at: float
    bytes: int | None = None
    status: str = "committed"
    metrics: dict[str, Any] = field(default_factory=dict)
    late: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    begun_at: float | None = None
    decided_at: float | None = None
    seconds: float | None = None
    deleted: bool = False

    @property
    def label(self) -> str:
        """``epoch 3``, or ``step 300`` of a loop that reports steps instead."""
        if "step" in self.metrics and "epoch" not in self.metrics:
            return f"step {self.metrics['step']}"
        return f"epoch {self.epoch}" if self.epoch else "before epoch 1"

    @property
    def validating(self) -> bool:
        """Whether a validation of it is running; a pending one may still wait for its turn."""
        return self.status not in DECIDED and self.begun_at is not None and self.seconds is None

    def span(self, now: float) -> Span | None:
        """When its validation took place; None if it has none, or waits for it."""
        if self.begun_at is None:
            return None
        status = self.status if self.status in DECIDED else "failed" if self.reason else ""
        end = (self.decided_at or now) if self.seconds is None else self.begun_at + self.seconds
        return Span("validation", str(self.epoch), self.begun_at, max(end, self.begun_at), status)


class Checkpoints(list[CheckpointState]):
    """The checkpoints in the order in which they were seen."""

    @property
    def kept(self) -> int:
        return sum(not checkpoint.deleted for checkpoint in self)

    @property
    def pending(self) -> int:
        """How many have a validation that is not decided yet."""
        return sum(checkpoint.status == "pending" for checkpoint in self)

    def update(self, event: dict[str, Any], epoch: int, *, counted_from: int = 0) -> None:
        """Take in a ``checkpoint`` event.

        Args:
            epoch: for one that is new and whose metrics do not tell its epoch.
            counted_from: the number of the first epoch in the metrics, 0 or 1.
        """
        known, status, metrics = self._find(event, epoch), event.get("status"), event.get("metrics", {})
        told = whole(metrics.get("epoch"))
        # The checkpoints of an earlier run of that name are of epochs of their own.
        known.epoch = known.epoch if told is None else told + 1 - counted_from
        if status == "deleted":
            known.deleted = True
        # What two processes say of one checkpoint may come in another order than it happened.
        elif known.status not in DECIDED or status in DECIDED:
            if status == "validated" != known.status:
                known.late = {n: v for n, v in metrics.items() if known.metrics.get(n, known) != v}
            known.status, known.bytes = status or known.status, event.get("bytes", known.bytes)
            known.metrics.update(metrics)
            if status in DECIDED and known.decided_at is None:
                known.decided_at = event["at"]

    def validation(self, event: dict[str, Any], epoch: int) -> None:
        """Take in a ``validation`` event: one has begun, or is over."""
        known = self._find(event, epoch)
        known.begun_at, known.seconds = event["at"], None
        if event.get("done"):
            known.seconds = event["seconds"]
            known.begun_at -= known.seconds
            known.reason = " ".join(event["text"].split())

    def _find(self, event: dict[str, Any], epoch: int) -> CheckpointState:
        known = next((one for one in reversed(self) if one.path == event["path"]), None)
        if known is None:
            known = CheckpointState(event["path"], epoch, event["at"])
            self.append(known)
        return known


class TrainingRun(Run):
    """All that is known of one training run.

    Attributes:
        workers: by rank.
        history: one dict per report: ``epoch`` (from 0) and rank 0's metrics.
        note: a sentence that the panel of an engine adds, or "".
        trained: spans of training, one for each epoch.
        repeated: steps that rank 0 made a second time, because no checkpoint had them when it was restarted.
        steps_of_run: of the whole run, for one that is not told in epochs.
        earlier: epochs that an earlier run of this name had done, where this one goes on.
        empty: ranks whose loader had no batch.
        fed: whether there is a loader, and so rows and waiting.
        sizes: (Unix seconds, number of workers) from then on: an elastic run has several.
        given: what its record says besides (see `RunRecord`): config, seed, scaling, storage_path.
    """

    def __init__(
        self,
        name: str,
        *,
        engine: str = "one process",
        world_size: int = 1,
        epochs: int | None = None,
        steps: int | None = None,
        dataset: Any = None,
        rows: int | None = None,
        **given: Any,
    ) -> None:
        super().__init__(name, engine)
        if dataset is not None and not isinstance(dataset, str):  # the data set itself, not its name
            given["data_fingerprint"] = getattr(dataset, "fingerprint", None)
            dataset = str(getattr(dataset, "name", type(dataset).__name__))
        self.world_size, self.dataset, self.given = world_size, dataset, given
        self.epochs, self.rows = whole(epochs) or None, whole(rows) or None
        self.steps_of_run = None if self.epochs else whole(steps) or None
        self.note = ""
        self.first_step_at = 0.0
        self.repeated, self.earlier, self.empty, self.fed = 0, 0, set[int](), True
        self.sizes: list[tuple[float, int]] = []
        self.workers, self.checkpoints, self.positions = Workers(), Checkpoints(), Positions()
        self.history: list[dict[str, Any]] = []
        self.trained: deque[Span] = deque(maxlen=_SPANS_KEPT)
        self.reports_from = 0  # the number of the first epoch in reports, 0 or 1
        self._reports = 0
        self._parts = {"data": 0.0, "training": 0.0, "between epochs": 0.0, "restart": 0.0}
        self._epoch_seconds: dict[int, float] = {}
        self._begun_at = 0.0  # the fraction that was done before the first step: a resumed run has some
        self._failed_at: float | None = None  # when workers failed that were not replaced yet
        self._points = Thinned(_POINTS_KEPT)  # (epoch, step, metrics)
        self._lengths: dict[int, int] = {}  # epoch -> its steps, or the most seen so far
        self._latest: dict[str, Any] = {}
        self._nan_since: int | None = None  # the epoch from which on each report had a NaN

    # -- what can be read off it --------------------------------------------------------------------

    def fill(self, now: float) -> None:
        from labkit.panel import shown

        shown.fill(self, now)

    def outcome(self) -> str:
        """``failed in epoch 3, rank 1``, as far as that is known."""
        rank = self.failures[-1].rank if self.status == "failed" and self.failures else None
        if rank is None:
            return super().outcome()
        epoch = f" in epoch {self.workers[rank].epoch + 1}" if rank in self.workers else ""
        return f"failed{epoch}" + (f", rank {rank}" if self.world_size > 1 else "")

    @property
    def recovered(self) -> bool:
        return self._failed_at is None

    @property
    def curve(self) -> list[tuple[float, dict[str, Any]]]:
        """(epochs done, metrics) of rank 0's steps, thinned to a few hundred points."""
        # While the length of the first epoch is unknown, it ends at the latest step.
        return [(e + min(step / max(self._lengths[e], 1), 1.0), m) for e, step, m in self._points]

    @property
    def epoch_seconds(self) -> list[float]:
        """Duration of each epoch of rank 0 that ended, in seconds."""
        return list(self._epoch_seconds.values())

    @property
    def counts_steps(self) -> bool:
        """Whether its loop reports steps, and has no epochs."""
        return self.epochs is None and (self.steps_of_run is not None or "step" in self._latest)

    @property
    def made(self) -> int:
        """Steps that rank 0 has behind it, with those of the attempts before that a checkpoint has."""
        return self.positions.reached

    @property
    def exceeds(self) -> bool:
        """Whether it has more passes over its loaders than epochs: then these are something else."""
        leader = self.workers.leader
        return leader is not None and leader.epoch >= (self.epochs or math.inf)

    def fraction(self) -> float | None:
        """Share of all steps that are done, 0 to 1; None if epochs or steps per epoch are unknown."""
        if not self.workers or not (self.epochs or self.steps_of_run) or self.exceeds:
            return None
        done = self.workers.leader.epochs_done / self.epochs if self.epochs else self.made / self.steps_of_run
        return min(done, 1.0)

    def eta(self, now: float) -> float | None:
        """Seconds left, from the pace since the first step."""
        done = self.fraction()
        if self.over or done is None or done <= self._begun_at:
            return None
        return max(now - self.first_step_at, 0.0) * (1 - done) / (done - self._begun_at)

    def rows_per_second(self) -> float:
        return sum(worker.rows_per_second for worker in self.workers.values())

    def waiting_share(self) -> float | None:
        """Share of the epochs' time in which rank 0 waited for data. The first batch counts as start."""
        total = self._parts["data"] + self._parts["training"]
        return self._parts["data"] / total if total > 0 and self.fed else None

    def time_breakdown(self, now: float | None = None) -> dict[str, float]:
        """Seconds of start, data, training, between epochs, restart and rest, by rank 0's clock.

        *between epochs* is what a loop does outside its steps: evaluate, save, report, wait for the others.
        *restart* lasts from a failure to the first step of the replacements; without a failure it is missing.
        """
        total = self.elapsed(now)
        if not self.first_step_at:
            return {"start": total}
        spent = {part: value for part, value in self._parts.items() if value or part != "restart"}
        parts = {"start": max(self.first_step_at - self.started_at, 0.0), **spent}
        return {**parts, "rest": max(total - sum(parts.values()), 0.0)}

    def metrics(self) -> dict[str, Any]:
        """The latest metrics, of a report or of a step; when the run is over, those of the last report."""
        latest = self.history[-1] if self.over and self.history else self._latest
        return {name: value for name, value in latest.items() if name != "epoch"}

    @property
    def undefined(self) -> str:
        """Which metrics of the last report are NaN, and since when; "" if none is."""
        if self._nan_since is None:
            return ""
        return f"{', '.join(_undefined(self.history[-1]))}: not a number since epoch {self._nan_since + 1}"

    def timeline(self, now: float) -> list[Span]:
        """Training and validations of a run that validates; other runs need no such figure."""
        spans = list(self.trained)
        spans += [span for checkpoint in self.checkpoints if (span := checkpoint.span(now))]
        return spans[-_SPANS_KEPT:] if any(span.row == "validation" for span in spans) else []

    def to_record(self) -> dict[str, Any]:
        spent, spans = self.time_breakdown(), self.timeline(self.ended_at or self.now())
        return {
            "workers": self.world_size,
            "dataset": self.dataset,
            "rows": self.rows,
            **self.given,
            "seconds_to_start": spent["start"] if self.first_step_at else None,
            "seconds_per_epoch": self.epoch_seconds,
            "seconds": spent,
            "rows_per_second": self.rows_per_second() or None,
            "waiting_share": self.waiting_share(),
            "metrics": self.metrics(),
            "history": list(self.history),
            "checkpoints": self.checkpoints.kept,
            "checkpoint": next((one.path for one in reversed(self.checkpoints) if not one.deleted), None),
            "extra": {"checkpoints": self._validations(spans)} if spans else {},
        }

    def _validations(self, spans: list[Span]) -> list[dict[str, Any]]:
        """The checkpoints of a run that validates, one by one."""
        trained, rows = {span.label: span.end for span in spans if span.row == "training"}, []
        for one in self.checkpoints:
            end, known = trained.get(str(one.epoch)), one.decided_at or one.committed_at
            row = {"checkpoint": one.label, "status": one.status, "metrics": one.metrics}
            rows.append(row | {"seconds_to_metric": None if end is None else max(known - end, 0.0)})
        return rows

    # -- what happens -------------------------------------------------------------------------------

    def apply(self, event: dict[str, Any]) -> None:
        """Take in an event, unless it comes too late. A run that is heard again does not hang."""
        handler = getattr(self, f"on_{event['kind']}", None)
        if handler is None or self.over:
            return
        handler(event)
        self.version += 1
        if event["kind"] != "print":
            self.heard_at, self.hang = self.now(), []

    def on_worker(self, event: dict[str, Any]) -> None:
        if self._worker(event) is not None and event.get("workers") is not None:
            self.world_size = event["workers"]
            if not self.sizes or self.sizes[-1][1] != self.world_size:
                self.sizes.append((event["at"], self.world_size))
            self.workers.keep(self.world_size)

    def on_phase(self, event: dict[str, Any]) -> None:
        worker = self._worker(event)
        if worker is not None and worker.rank == 0:
            self.enter(event["name"], event["at"])

    def on_saved(self, event: dict[str, Any]) -> None:
        if event["rank"] == 0 and self._worker(event) is not None:
            self.positions.saved(event["epoch"], event["step"])

    def on_empty(self, event: dict[str, Any]) -> None:
        self.empty.add(event["rank"])

    def on_step(self, event: dict[str, Any]) -> None:
        worker = self._worker(event)
        if worker is None:
            return
        self.repeated += self.positions.settle()
        event = {**event, "epoch": event["epoch"] + self.earlier + self.positions.base[0]}  # of the whole run
        is_new, begins = not worker.begun, worker.begins_epoch(event)
        seconds, waiting = worker.update(event)
        self.positions.seen(worker.made)
        if worker.rank != 0:
            return
        at, self.fed = event["at"], event.get("fed", True)
        self.enter("training", at)
        if is_new:
            self._begins(worker, at)
        if begins:
            self._parts["between epochs"] += event.get("between", 0.0)
            self._training = Span("training", str(worker.epoch + 1), at - event["seconds"], at)
            self.trained.append(self._training)
        self._training.end = at
        self._parts["data"] += waiting
        self._parts["training"] += seconds - waiting
        self._advance(worker, event)

    def _begins(self, worker: WorkerState, at: float) -> None:
        """The first step of a process of rank 0, perhaps in place of one that failed."""
        # What came after the checkpoint from which it goes on is void.
        self._points[:] = [point for point in self._points if point[:2] < (worker.epoch, worker.step)]
        if self._failed_at is not None:
            self._parts["restart"] += max(at - self._failed_at, 0.0)
            self._failed_at = None

    def _advance(self, worker: WorkerState, event: dict[str, Any]) -> None:
        """Rank 0 is further than before."""
        metrics = event.get("metrics") or {}
        self._latest |= metrics
        if event.get("done"):
            self._epoch_seconds[worker.epoch] = event["seconds"]
        self._lengths[worker.epoch] = worker.total or max(self._lengths.get(worker.epoch, 0), worker.step)
        if not self.first_step_at:
            # A step is heard of when it is over.
            self.first_step_at = event["at"] - max(event["seconds"] - event.get("first_wait", 0.0), 0.0)
            self._begun_at = self.fraction() or 0.0 if worker.epoch else 0.0
        if metrics:
            self._points.add((worker.epoch, worker.step, metrics))

    def on_report(self, event: dict[str, Any]) -> None:
        if event["rank"] != 0:
            return  # a loop in which each rank reports has one history: rank 0's, as Ray keeps it
        metrics, told = dict(event.get("metrics") or {}), event.get("epoch")
        epoch = whole(metrics.get("epoch") if told is None else told)
        if epoch == 1 and not self._reports and not self._goes_on():
            leader = self.workers.leader
            self.reports_from = 1 if leader is None or leader.epoch == 0 else 0
        epoch = self._reports + self.earlier if epoch is None else max(epoch - self.reports_from, 0)
        self._reports += 1
        self.history.append({**metrics, "epoch": epoch})
        if not _undefined(metrics):
            self._nan_since = None
        elif self._nan_since is None:
            self._nan_since = epoch
        self._latest |= metrics

    def on_checkpoint(self, event: dict[str, Any]) -> None:
        known = len(self.checkpoints)
        self.checkpoints.update(event, self._epoch(), counted_from=self.reports_from)
        self.positions.committed += event.get("status") == "committed" and len(self.checkpoints) > known
        if self.phase == "training" and self.fraction() == 1.0 and self.checkpoints.pending:
            self.enter("waiting for validations", event["at"])

    def on_validation(self, event: dict[str, Any]) -> None:
        self.checkpoints.validation(event, self._epoch())

    def on_print(self, event: dict[str, Any]) -> None:
        self.print(f"[rank {event['rank']}] {event['text']}" if self.world_size > 1 else event["text"])

    def on_failure(self, event: dict[str, Any]) -> None:
        self.fail(event["text"], event["rank"])
        self._failed_at = event["at"] if self._failed_at is None else self._failed_at

    def fail(self, text: str, rank: int | None = 0) -> None:
        super().fail(text, rank)  # rank 0 speaks for all

    def _goes_on(self) -> bool:
        """Whether an earlier run, or an attempt of this one, has done its first epochs."""
        return bool(self.earlier or self.workers.restarts or self.first_step_at and self._begun_at)

    def _worker(self, event: dict[str, Any]) -> WorkerState | None:
        """The worker of an event, with a look at whether its group has begun again."""
        before = self.workers.restarts
        worker = self.workers.of(event)
        if self.workers.restarts > before:
            self.positions.go_back()
        return worker

    def _epoch(self) -> int:
        """Of a checkpoint that does not say which epoch it is of, from 1; 0 before the first report."""
        return self.history[-1]["epoch"] + 1 if self.history else 0


def _undefined(metrics: dict[str, Any]) -> list[str]:
    return [name for name, value in metrics.items() if isinstance(value, float) and math.isnan(value)]
