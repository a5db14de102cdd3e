"""A training run: takes in the events that trackers make, and knows what they come to.

`labkit.panel.tracking.tracker` lists the events; `labkit.panel.shown` says what is shown of the run.
"""

import math
from collections import deque
from typing import Any

from labkit.panel.checkpoints import Checkpoints
from labkit.panel.run import Run, Span, Thinned, whole
from labkit.panel.workers import Positions, Workers, WorkerState

_VALIDATING = ("validating", "evaluating")  # phases of a loop that validates in itself
_POINTS_KEPT = 240  # about one per pixel of the curve
_SPANS_KEPT = 900


class TrainingRun(Run):
    """All that is known of one training run.

    Attributes:
        workers: by rank.
        history: one dict per report: ``epoch`` (from 0) and rank 0's metrics.
        note: a sentence that the panel of an engine adds, or "".
        silence: why nothing was heard from workers that run, or "".
        trained: spans of training, and of validations in the loop.
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
        self.note = self.silence = ""
        self.first_step_at = 0.0
        self.repeated, self.earlier, self.empty, self.fed = 0, 0, set[int](), True
        self.sizes: list[tuple[float, int]] = []
        self.workers, self.checkpoints, self.positions = Workers(), Checkpoints(), Positions()
        self.history: list[dict[str, Any]] = []
        self.trained: deque[Span] = deque(maxlen=_SPANS_KEPT)
        self.epochs_from = self.reports_from = 0  # the number of the first epoch in steps and reports, 0 or 1
        self._reports = 0
        self._parts = {"data": 0.0, "training": 0.0, "between epochs": 0.0, "restart": 0.0}
        self._epoch_seconds: dict[int, float] = {}
        self._open_epoch: int | None = None  # rank 0 has not said that it is done
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
        done = self.status == "finished"
        return [spent for epoch, spent in self._epoch_seconds.items() if done or epoch != self._open_epoch]

    @property
    def counts_steps(self) -> bool:
        """Whether its loop reports steps, and has no epochs."""
        return self.epochs is None and (self.steps_of_run is not None or "step" in self._latest)

    @property
    def made(self) -> int:
        """Steps that rank 0 has behind it, with those of the attempts before that a checkpoint has."""
        leader = self.workers.leader
        if leader is None:
            return 0
        return self.positions.reached if leader.counted else self._steps_before(leader)

    @property
    def exceeds(self) -> bool:
        """Whether it has more passes over its loaders than epochs: then these are something else."""
        leader = self.workers.leader
        return leader is not None and leader.counted and leader.epoch >= (self.epochs or math.inf)

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
        if self.phase in _VALIDATING and not self.over:
            spans.append(self._in_loop(now))
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
            self.heard_at, self.hang, self.silence = self.now(), [], ""

    def on_worker(self, event: dict[str, Any]) -> None:
        if self._worker(event) is not None and event.get("workers") is not None:
            self.world_size = event["workers"]
            if not self.sizes or self.sizes[-1][1] != self.world_size:
                self.sizes.append((event["at"], self.world_size))
            self.workers.keep(self.world_size)

    def on_phase(self, event: dict[str, Any]) -> None:
        # A process that is not heard of as a worker first is this kernel, which has no rank.
        of_kernel = self.engine != "one process" and not self.workers.has_had(event)
        worker = None if of_kernel else self._worker(event)
        if of_kernel or (worker is not None and worker.rank == 0):
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
        self.positions.settle()
        event = {**event, "epoch": self._epoch_of(worker, event)}
        is_new, begins = not worker.begun, worker.begins_loop(event)
        seconds, waiting = worker.update(event)
        if worker.counted:
            self.positions.seen(worker.made)
        if worker.rank != 0:
            return
        at, self.fed = event["at"], event.get("fed", True)
        self.enter("training", at)
        if worker.counted:
            self.repeated += self.positions.repeated()
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
        if self.workers.replaced is not None and not worker.counted:
            again = self._steps_before(self.workers.replaced) - self._steps_before(worker)
            self.repeated += max(again, 0)
        # What came after the checkpoint from which it goes on is void.
        self._points[:] = [point for point in self._points if point[:2] < (worker.epoch, worker.step)]
        if self._failed_at is not None:
            self._parts["restart"] += max(at - self._failed_at, 0.0)
            self._failed_at = None

    def _advance(self, worker: WorkerState, event: dict[str, Any]) -> None:
        """Rank 0 is further than before."""
        self.epochs = event.get("epochs") or self.epochs
        self._open_epoch = None if event.get("done") else worker.epoch
        metrics = event.get("metrics") or {}
        if worker.step:
            self._latest |= metrics
            self._epoch_seconds[worker.epoch] = worker.epoch_seconds
        longest = max(self._lengths.get(worker.epoch, 0), worker.step)
        self._lengths[worker.epoch] = worker.total or longest
        if not self.first_step_at:
            # One that is seen from outside is heard of when its first step is over.
            self.first_step_at = event["at"] - max(event["seconds"] - event.get("first_wait", 0.0), 0.0)
            self._begun_at = 0.0 if worker.counted and not worker.epoch else self.fraction() or 0.0
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
        if self._open_epoch is not None and self._open_epoch <= epoch:
            self._open_epoch = None  # a loop that was left by `break` did not say that it is done

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

    def enter(self, phase: str, now: float | None = None) -> None:
        now = now or self.now()
        if self.phase in _VALIDATING:
            self.trained.append(self._in_loop(now))
        super().enter(phase, now)

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

    def _epoch_of(self, worker: WorkerState, event: dict[str, Any]) -> int:
        """The epoch of a step in the whole run, from 0."""
        epoch = event["epoch"]
        if event.get("counted"):
            return epoch + self.earlier + self.positions.base[0]
        if not self.first_step_at and worker.rank == 0:
            self.epochs_from = int(epoch == 1 and not self._goes_on())
        return max(epoch - self.epochs_from, 0)

    def _steps_before(self, worker: WorkerState) -> int:
        return worker.step + sum(n for epoch, n in self._lengths.items() if epoch < worker.epoch)

    def _in_loop(self, now: float) -> Span:
        """The validation that the loop itself is doing."""
        epoch = self.workers.leader.epoch + 1 if self.workers else ""
        return Span("validation", str(epoch), self._phase_began, max(now, self._phase_began), "in the loop")

    def _epoch(self) -> int:
        """Of a checkpoint that does not say which epoch it is of, from 1; 0 before the first report."""
        return self.history[-1]["epoch"] + 1 if self.history else 0


def _undefined(metrics: dict[str, Any]) -> list[str]:
    return [name for name, value in metrics.items() if isinstance(value, float) and math.isnan(value)]
