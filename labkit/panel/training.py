"""A training run: takes in the events of its workers, and says what is shown of them.

`labkit.worker` lists the events.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from labkit.display import formatting
from labkit.display.formatting import UNKNOWN, count, number, plural, seconds, short, short_metrics, size
from labkit.panel.run import Curve, Mark, Plot, Run, Span, Table, Thinned, joined, whole
from labkit.panel.workers import Workers, WorkerState
from labkit.runs.verdict import Verdict, verdict
from labkit.worker.hooks import number_of
from labkit.worker.parts import NO_BACKWARD

DECIDED = ("validated", "failed", "timed out")  # a validation ends in one of these

_POINTS_KEPT = 240  # about one per pixel of the curve
_SPANS_KEPT, _CHECKPOINTS_SHOWN, _WORKERS_SHOWN, _REPORTS_SHOWN = 900, 6, 8, 240
_COUNTS = {"epoch", "epochs", "step", "steps", "global_step", "rank", "workers", "world", "world_size"}
_JUDGED_EVERY = 1.0  # seconds between two verdicts on a run that goes on; one of 64 ranks takes 6 ms
_STEPS_UNSEEN = 20  # after which a panel says that the parts of steps aren't measured
_DAY = 86_400.0
_PHASES = {"starting": "starting workers", "loading": "loading data"}
_STATUSES = {
    "committed": ("ok", "✓ saved"),
    "pending": ("wait", "○ waits for validation"),
    "validated": ("ok", "✓ validated"),
    "failed": ("bad", "✕ validation failed"),
    "timed out": ("bad", "✕ timed out"),
}
_SAID = {"validated": "validated", "failed": "validation failed", "timed out": "timed out"}


@dataclass
class CheckpointState:
    """One checkpoint."""

    path: str
    epoch: float  # how many were done: counted from 1, maybe with a fraction; 0 before the first
    committed_at: float  # Unix seconds: when it was seen first
    bytes: int | None = None
    status: str = "committed"  # saved; "pending": a validation was asked for; then one of `DECIDED`
    metrics: dict[str, Any] = field(default_factory=dict)  # reported with it, and those of its validation
    late: dict[str, Any] = field(default_factory=dict)  # the latter
    reason: str = ""  # why the validation failed, in one line
    begun_at: float | None = None  # when the validation began; the last time, if it was started again
    decided_at: float | None = None  # when `late` was there
    seconds: float | None = None  # that the validation took in its own process
    deleted: bool = False  # `num_to_keep` checkpoints ranked above it

    @property
    def label(self) -> str:
        """``epoch 3``, or ``step 300`` of a loop that reports steps instead."""
        if "step" in self.metrics and "epoch" not in self.metrics:
            return f"step {self.metrics['step']}"
        return f"epoch {_done(self.epoch)}" if self.epoch else "before epoch 1"

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
        return Span("validation", _done(self.epoch), self.begun_at, max(end, self.begun_at), status)

    def count_from(self, first: int) -> None:
        """Set its epoch from its metrics, in which the first epoch has the number `first`."""
        reported = number_of(self.metrics.get("epoch"))
        if reported is not None:
            self.epoch = _plain(max(reported + 1 - first, 0))

    def update(self, event: dict[str, Any], *, counted_from: int) -> None:
        """Take in a ``checkpoint`` event; `counted_from` is the number of the first epoch in its metrics."""
        status, metrics = event.get("status"), event.get("metrics", {})
        # The checkpoints of an earlier run of that name are of epochs of their own.
        if number_of(metrics.get("epoch")) is not None:
            self.metrics["epoch"] = metrics["epoch"]
            self.count_from(counted_from)
        if status == "deleted":
            self.deleted = True
        # What two processes say of one checkpoint may come in another order than it happened.
        elif self.status not in DECIDED or status in DECIDED:
            if status == "validated" != self.status:
                self.late = {n: v for n, v in metrics.items() if self.metrics.get(n, self) != v}
            self.status, self.bytes = status or self.status, event.get("bytes", self.bytes)
            self.metrics.update(metrics)
            if status in DECIDED and self.decided_at is None:
                self.decided_at = event["at"]


@dataclass
class Report:
    """Where the loop was when it reported."""

    number: int  # of the report, from 0
    epoch: float | None  # as reported
    passes: int | None  # over its loaders, of the whole run; None where that is unknown
    step: int = 0  # since the latest of them was over

    @property
    def position(self) -> int:
        """The pass that it belongs to, from 0."""
        assert self.passes is not None
        return max(self.passes - (self.step == 0), 0)


class TrainingRun(Run):
    """All that is known of one training run. `given` is what its record has besides (see `RunRecord`)."""

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
        verdict: bool = True,
        **given: Any,
    ) -> None:
        super().__init__(name, engine)
        if dataset is not None and not isinstance(dataset, str):  # the data set itself, not its name
            given["data_fingerprint"] = getattr(dataset, "fingerprint", None)
            dataset = str(getattr(dataset, "name", type(dataset).__name__))
        self.world_size, self.dataset, self.given = world_size, dataset, given
        self.epochs, self.rows = whole(epochs) or None, whole(rows) or None
        self.steps_of_run = None if self.epochs else whole(steps) or None  # of one that has no epochs
        self.workers = Workers()
        self.checkpoints: list[CheckpointState] = []  # in the order in which they were seen
        self.history: list[dict[str, Any]] = []  # one dict per report: "epoch" (from 0), rank 0's metrics
        self.note = ""  # a sentence that the panel of an engine adds
        self.earlier = 0  # epochs that an earlier run of this name had done, where this one goes on
        self.made = 0  # steps up to now, with those of the attempts before that a checkpoint has
        self.repeated = 0  # steps that came after the last checkpoint, and were made again
        self.empty: set[int] = set()  # ranks whose loader had no batch
        self.fed = True  # whether there is a loader, and so rows and waiting
        self.sizes: list[tuple[float, int]] = []  # (Unix seconds, number of workers from then on)
        self.trained: deque[Span] = deque(maxlen=_SPANS_KEPT)  # one for each epoch
        self.first_step_at = 0.0
        self._base = (0, 0)  # epochs and steps behind the present process of rank 0 when it began
        self._saved: list[tuple[int, int, int]] = []  # epochs, steps and report of each checkpoint …
        self._arrived = 0  # … of which so many are in the store
        self._begun_at = 0.0  # the fraction that was done before the first step: a resumed run has some
        self._failed_at: float | None = None  # when workers failed that were not replaced yet
        self._parts = {"data": 0.0, "training": 0.0, "between epochs": 0.0, "restart": 0.0}
        self._epoch_seconds: dict[int, float] = {}
        self._lengths: dict[int, int] = {}  # epoch -> its steps, or the most seen so far
        self._points = Thinned(_POINTS_KEPT)  # (epoch, step, metrics)
        self._latest: dict[str, Any] = {}
        self._reports: list[Report] = []  # one for each entry of `history`
        self._first: int | None = None  # the number of the first epoch in them, 0 or 1, once that is known
        self._counts_fractions = False  # whether an epoch in them is how many are done, as 2.5
        self._evidence: list[tuple[int, float]] = []  # of `counted_from`
        self._trained_from: int | None = None  # the first report that tells how far the loop is
        self._loop_notes: list[str] = []
        self.names_cause = verdict  # whether a panel has the sentence that says why
        self._verdict: Verdict | None = None  # the latest …
        self._judged_at = 0.0  # … and when it was computed

    # -- what can be read off it --------------------------------------------------------------------

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
    def kept(self) -> int:
        """How many checkpoints are still there."""
        return sum(not one.deleted for one in self.checkpoints)

    @property
    def pending(self) -> int:
        """How many checkpoints have a validation that is not decided yet."""
        return sum(one.status == "pending" for one in self.checkpoints)

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
    def exceeds(self) -> bool:
        """Whether it has more passes over its loaders than epochs: then these are something else."""
        leader = self.workers.leader
        return leader is not None and max(leader.epoch, self._reported - 1) >= (self.epochs or math.inf)

    @property
    def _reported(self) -> int:
        """Epochs that were reported, of a loop whose steps are not seen, such as Keras's.

        One report may be of the untrained model.
        """
        return int(self.history[-1]["epoch"]) + 1 if len(self.history) > 1 and not self.first_step_at else 0

    def fraction(self) -> float | None:
        """Share of all steps that are done, 0 to 1; None if epochs or steps per epoch are unknown."""
        if not self.workers or self.exceeds:
            return None
        if self.epochs:
            leader = self.workers.leader
            done = self._reported or (leader.epochs_done if leader is not None else 0)
            return min(done / self.epochs, 1.0)
        return min(self.made / self.steps_of_run, 1.0) if self.steps_of_run else None

    def eta(self, now: float) -> float | None:
        """Seconds left, from the pace since the first step, or since the workers began."""
        done, begun, since = self.fraction(), self._begun_at, self.first_step_at
        if done and not since and self.epochs:
            begun, since = self.earlier / self.epochs, self.sizes[0][0] if self.sizes else self.started_at
        if self.over or not since or done is None or done <= begun:
            return None
        return max(now - since, 0.0) * (1 - done) / (done - begun)

    @property
    def _knows_rows(self) -> bool:
        return self.fed and all(worker.counted for worker in self.workers.values())

    def rows_per_second(self) -> float:
        """Rows per second of all workers together; 0 where the number of rows is unknown."""
        return sum(worker.rows_per_second for worker in self.workers.values()) if self._knows_rows else 0.0

    def waiting_share(self) -> float | None:
        """Share of the epochs' time in which rank 0 waited for data. The first batch counts as start."""
        total = self._parts["data"] + self._parts["training"]
        return self._parts["data"] / total if total > 0 and self.fed else None

    def time_breakdown(self, now: float | None = None) -> dict[str, float]:
        """Seconds of start, data, training, between epochs, restart and rest, by rank 0's clock.

        *between epochs* is what a loop does outside its steps, after the last epoch, too: evaluate, save,
        report, wait for the others.
        *restart* lasts from a failure to the first step of the replacements; without a failure it is missing.
        Where no steps are seen, *training* begins with the workers, as soon as there is a report.
        """
        total = self.elapsed(now)
        if not self.first_step_at:
            spent = self.phase_seconds(now)
            parts = {"training": spent.get("training"), "rest": spent.get("waiting for validations")}
            known = {part: value for part, value in parts.items() if value}
            return {"start": max(total - sum(known.values()), 0.0), **known}
        spent = {part: value for part, value in self._parts.items() if value or part != "restart"}
        known = {"start": max(self.first_step_at - self.started_at, 0.0), **spent}
        return {**known, "rest": max(total - sum(known.values()), 0.0)}

    def parts_of_steps(self) -> dict[str, Any]:
        """The samples of all ranks, as `labkit.runs.verdict` takes them."""
        unseen = next((worker.unseen for worker in self.workers.values() if worker.unseen), "")
        ranks = {str(rank): self.workers[rank].samples for rank in sorted(self.workers)}
        return {"unseen": unseen, "ranks": {rank: samples for rank, samples in ranks.items() if samples}}

    def find_verdict(self, now: float | None = None) -> Verdict:
        """Why the run is slow, as far as that is known; computed at most once a second while it runs."""
        now = now or self.now()
        if self._verdict is None or self.over or now - self._judged_at >= _JUDGED_EVERY:
            start = self.first_step_at - self.started_at if self.first_step_at else None
            self._verdict = verdict(self.parts_of_steps(), start=start, total=self.elapsed(now))
            self._judged_at = now
        return self._verdict

    def metrics(self) -> dict[str, Any]:
        """The latest metrics, of a report or of a step; when the run is over, those of the last report."""
        latest = self.history[-1] if self.over and self.history else self._latest
        return {name: value for name, value in latest.items() if name != "epoch"}

    def timeline(self, now: float) -> list[Span]:
        """Training and validations of a run that validates; other runs need no such figure."""
        validations = [span for checkpoint in self.checkpoints if (span := checkpoint.span(now))]
        return [*self.trained, *validations][-_SPANS_KEPT:] if validations else []

    def to_record(self) -> dict[str, Any]:
        spent = self.time_breakdown()
        validates = any(one.begun_at is not None for one in self.checkpoints)
        return {
            "workers": self.world_size,
            "dataset": self.dataset,
            "rows": self.rows,
            **self.given,
            "seconds_to_start": spent["start"] if len(spent) > 1 else None,
            "seconds_per_epoch": self.epoch_seconds,
            "seconds": spent,
            "rows_per_second": self.rows_per_second() or None,
            "waiting_share": self.waiting_share(),
            "parts": self.parts_of_steps(),
            "verdict": self.find_verdict().to_json(),
            "metrics": self.metrics(),
            "history": list(self.history),
            "checkpoints": self.kept,
            "checkpoint": next((one.path for one in reversed(self.checkpoints) if not one.deleted), None),
            "extra": {"checkpoints": list(self._validations())} if validates else {},
        }

    def _validations(self) -> Iterator[dict[str, Any]]:
        """The checkpoints of a run that validates, one by one."""
        trained = {span.label: span.end for span in self.trained}
        for one in self.checkpoints:
            end, known = trained.get(str(one.epoch)), one.decided_at or one.committed_at
            row = {"checkpoint": one.label, "status": one.status, "metrics": one.metrics}
            yield row | {"seconds_to_metric": None if end is None else max(known - end, 0.0)}

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
        if self.workers.of(event) is not None and event.get("workers") is not None:
            self.world_size = event["workers"]
            if not self.sizes or self.sizes[-1][1] != self.world_size:
                self.sizes.append((event["at"], self.world_size))
            self.workers.keep(self.world_size)

    def on_phase(self, event: dict[str, Any]) -> None:
        if event["rank"] == 0 and self.workers.of(event) is not None:
            self.enter(event["name"], event["at"])

    def on_saved(self, event: dict[str, Any]) -> None:
        if event["rank"] == 0 and self.workers.of(event) is not None:
            epochs, steps = self._base
            self._saved.append((epochs + event["epoch"], steps + event["step"], len(self._reports)))

    def on_end(self, event: dict[str, Any]) -> None:
        worker = self.workers.of(event)
        if worker is not None:
            worker.note_parts(event.get("parts", {}))
        if event["rank"] == 0 and worker is not None:
            self._parts["between epochs"] += event["seconds"]

    def on_empty(self, event: dict[str, Any]) -> None:
        self.empty.add(event["rank"])

    def on_step(self, event: dict[str, Any]) -> None:
        worker = self.workers.of(event)
        if worker is None:
            return
        if self.workers.began_again:
            self.workers.began_again = False
            self._go_back()
        epochs, steps = self._base
        event = {**event, "epoch": event["epoch"] + self.earlier + epochs}  # of the whole run
        is_new, begins = not worker.begun, worker.begins_epoch(event)
        spent, waiting = worker.update(event)
        # All ranks make the same steps: one may tell more than rank 0.
        self.made = max(self.made, steps + worker.made)
        worker.note_parts(event.get("parts", {}))
        if worker.rank != 0:
            return
        at, self.fed = event["at"], event.get("fed", True)
        self.enter("training", at)
        if is_new:
            self._begins(worker, at)
        if begins:
            self._parts["between epochs"] += event.get("between", 0.0)
            began = at - event.get("ago", 0.0) - event["seconds"]
            self.trained.append(Span("training", str(worker.epoch + 1), began, at))
        self.trained[-1].end = at
        self._parts["data"] += waiting
        self._parts["training"] += spent - waiting
        self._advance(worker, event)

    def _go_back(self) -> None:
        """The workers have begun again, at the last checkpoint that had arrived before their first step."""
        del self._saved[self._arrived :]
        self._base = self._saved[-1][:2] if self._saved else (0, 0)
        self.repeated += max(self.made - self._base[1], 0)
        self.made = self._base[1]

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
        if event["rank"] != 0 or self.workers.are_gone(event):
            return  # a loop in which each rank reports has one history: rank 0's, as Ray keeps it
        metrics, epoch = dict(event.get("metrics") or {}), event.get("epoch")
        passes = event.get("passes")
        if passes is not None:
            if self.workers.began_again:
                self.workers.began_again = False
                self._go_back()
            passes += self.earlier + self._base[0]
            if self._trained_from is None:
                self._trained_from = len(self._reports)
        epoch = number_of(metrics.get("epoch") if epoch is None else epoch)
        report = Report(len(self._reports), epoch, passes, event.get("step", 0))
        self._reports.append(report)
        if self.sizes and not self.first_step_at and self.phase != "training":
            # A loop without steps trains since its workers began, and since its next report after a wait.
            self.enter("training", event["at"] if "training" in self.phases else self.sizes[0][0])
        self._latest |= metrics
        self.history.append(metrics)
        first = self._first_number(report)
        if first != self._first:
            self._count_from(first)
        self.history[-1] = {**metrics, "epoch": self._epoch_of(report)}

    def _first_number(self, report: Report) -> int | None:
        """The number of the first epoch in the reports, 0 or 1, as far as they tell; see `counted_from`.

        With a fraction, an epoch is how many are done, and so counted from 1.
        """
        if report.epoch is None or self._counts_fractions:
            return self._first
        if report.epoch % 1:
            self._counts_fractions = True
            return 1
        if report.passes is None:
            goes_on = self.earlier or self.workers.restarts or (self.first_step_at and self._begun_at)
            is_first = report.number == 0 and not goes_on
            return int(is_first and report.epoch == 1) if self._first is None else self._first
        is_told = self.earlier and self._first is not None  # by the checkpoints of the earlier run
        is_untrained = not report.passes and not report.step
        if is_told or is_untrained or len(self._evidence) == 2:
            return self._first
        if not self._evidence or report.epoch > self._evidence[0][1]:
            self._evidence.append((report.position + 1, report.epoch))
        return counted_from(self._evidence)

    def _count_from(self, first: int | None) -> None:
        """Number all reports and checkpoints again: it has become known how the loop counts."""
        self._first = first
        for report, entry in zip(self._reports, self.history, strict=True):
            entry["epoch"] = self._epoch_of(report)
        for checkpoint in self.checkpoints:
            checkpoint.count_from(first or 0)

    def _epoch_of(self, report: Report) -> float:
        """The epoch of a report, from 0; of a fraction, the place on the axis less one."""
        if report.epoch is not None:
            return _plain(max(report.epoch - (self._first or 0), 0))
        if report.passes is None or self.counts_steps:
            return report.number + self.earlier
        return report.position

    def _place_of(self, report: Report, epoch: float) -> float:
        """Where a report is on the axis of epochs that are done."""
        if report.epoch is not None and self._counts_fractions:
            return report.epoch
        is_untrained = report.number < (self._trained_from or 0) or not (report.passes or report.step)
        if is_untrained and self._trained_from is not None:
            return 0.0
        if report.passes is None or (report.epoch is None and self.counts_steps):
            return epoch + 1.0
        if not report.step or epoch != report.position:
            return epoch + 1.0
        # While the length of the first epoch is unknown, it ends at the latest step.
        return epoch + report.step / max(self._lengths.get(report.position, 0), report.step)

    def goes_on_after(self, checkpoints: Iterable[tuple[int, dict[str, Any]]]) -> None:
        """An earlier run of that name has reported these: (number of the report, from 0; its metrics)."""
        reported = [(n, number_of(metrics.get("epoch"))) for n, metrics in checkpoints]
        counted = [(n + 1, epoch) for n, epoch in reported if epoch is not None]
        if not counted:
            self.earlier = max((n + 1 for n, _ in reported), default=0)  # Ray goes on from there
            return
        fractions = any(epoch % 1 for _, epoch in counted)
        self._first = 1 if fractions else counted_from(counted[:2])
        self.earlier = int(max(epoch for _, epoch in counted)) + 1 - self._first

    def on_note(self, event: dict[str, Any]) -> None:
        text = str(event["text"])
        if text not in self._loop_notes:
            self._loop_notes.append(text)

    def on_checkpoint(self, event: dict[str, Any]) -> None:
        known = len(self.checkpoints)
        self._checkpoint(event).update(event, counted_from=self._first or 0)
        self._arrived += event.get("status") == "committed" and len(self.checkpoints) > known
        if self.phase == "training" and self.fraction() == 1.0 and self.pending:
            self.enter("waiting for validations", event["at"])

    def on_validation(self, event: dict[str, Any]) -> None:
        """One that runs in parallel to the training has begun, or is over."""
        known = self._checkpoint(event)
        known.begun_at, known.seconds = event["at"], None
        if event.get("done"):
            known.seconds = event["seconds"]
            known.begun_at -= known.seconds
            known.reason = " ".join(event["text"].split())

    def on_print(self, event: dict[str, Any]) -> None:
        self.print(f"[rank {event['rank']}] {event['text']}" if self.world_size > 1 else event["text"])

    def on_failure(self, event: dict[str, Any]) -> None:
        self.fail(event["text"], event["rank"])
        self._failed_at = event["at"] if self._failed_at is None else self._failed_at

    def fail(self, text: str, rank: int | None = 0) -> None:
        super().fail(text, rank)  # rank 0 speaks for all

    def _checkpoint(self, event: dict[str, Any]) -> CheckpointState:
        """The checkpoint of an event; a new one is of the epoch of its report, counted from 1."""
        known = next((one for one in reversed(self.checkpoints) if one.path == event["path"]), None)
        if known is None:
            # Others may have been reported since.
            saved = self._saved[self._arrived][2] if self._arrived < len(self._saved) else len(self.history)
            report = self.history[min(saved, len(self.history) - 1)] if self.history else {"epoch": -1}
            epoch = _plain(report["epoch"] + 1)
            known = CheckpointState(event["path"], epoch, event["at"])
            self.checkpoints.append(known)
        return known

    # -- what is shown ------------------------------------------------------------------------------

    def fill(self, now: float) -> None:
        workers = plural(self.world_size, "worker") if self.engine != "one process" else ""
        rows = f"{self.rows:,} rows" if self.rows else ""
        self.subtitle = joined(self.engine, workers, self.dataset, rows)
        self.steps = list(self._shown_phases(now))
        self.progress = self.fraction(), self._headline(now)
        self.tiles = list(self._shown_tiles())
        self.tables = [*self._shown_workers(), *self._shown_checkpoints(now)]
        self.plot, self.spans = self._shown_curves(), self.timeline(now)
        self._fill_verdict(now)
        waits = "" if self.over else self.waits
        notes = (self._changes(), self.note, waits, self._no_batch(), *self._loop_notes)
        self.notes = [note for note in notes if note]
        epochs = len(self.epoch_seconds) or (self._reported if self._reported <= (self.epochs or 0) else 0)
        self.what = plural(epochs, "epoch") if epochs else ""
        self.result = self._result()
        self.news = list(self._log())
        if self.over and not self.spans and len(self.curve) + len(self.history) < 3:  # nothing to see
            self.plot, self.tiles = None, []
        elif self.over and not self.plot.curves:  # it reported counts alone
            self.plot = None

    def _fill_verdict(self, now: float) -> None:
        verdict = self.find_verdict(now)
        shares = list((verdict.shares or {}).items())[:_WORKERS_SHOWN]
        self.strip = [(f"rank {rank}", of_rank) for rank, of_rank in shares]
        unseen = {worker.unseen for worker in self.workers.values() if worker.made > _STEPS_UNSEEN}
        says_why = self.names_cause and (verdict.shares or unseen - {"", NO_BACKWARD})
        self.verdict = verdict.sentence if says_why else ""

    def _headline(self, now: float) -> str:
        """Where the run is: ``epoch 7 of 10 · step 14 of 22 · about 19 s left``."""
        worker = self.workers.leader
        if worker is None or not (self.first_step_at or self._reported):
            return _PHASES.get(self.phase, self.phase)
        if self.pending and self.fraction() == 1.0:
            return f"all epochs are trained · {plural(self.pending, 'validation')} left"
        left, last = self.eta(now), self.epochs if self.epochs and not self.exceeds else math.inf
        step = f"step {worker.step}" + (f" of {worker.total}" if worker.total else "") if worker.begun else ""
        epoch = min((self._reported or worker.epoch) + 1, last)
        # A run that is between two epochs is drawn at the end of the first.
        return joined(
            "" if self.counts_steps else f"epoch {epoch}" + (f" of {last}" if last < math.inf else ""),
            f"step {self.made} of {self.steps_of_run}" if self.steps_of_run else step,
            "" if left is None else f"about {seconds(left)} left" if left >= 1 else "nearly done",
        )

    def _shown_phases(self, now: float) -> Iterator[Mark]:
        """The phases passed; loading and training alternate, so each name appears once."""
        for name, spent in self.phase_seconds(now).items():
            words = f"{_PHASES.get(name, name)} {seconds(spent)}"
            yield ("now", f"● {words}") if name == self.phase else ("ok", f"✓ {words}")

    def _shown_tiles(self) -> Iterator[tuple[str, str]]:
        """The two most telling metrics of those that are reported, rows per second, waiting for data."""
        reported = {name for report in self.history for name in report}
        metrics = dict(self._measured(self.metrics()))
        metrics = {name: value for name, value in metrics.items() if name in reported} or metrics
        validated = dict(self._measured(self._validated()))
        for name in _ranked(metrics | validated)[:2]:
            which = ", validated" if name in validated else ", reported" if self._validates else ""
            yield number(validated.get(name, metrics.get(name))), short(name, 24 - len(which)) + which
        waiting = self.waiting_share()
        if not self.first_step_at:
            yield UNKNOWN, "rows/s"
        elif self._knows_rows:
            yield count(self.rows_per_second()), "rows/s"
        yield UNKNOWN if waiting is None else f"{waiting:.0%}", "waiting for data"

    def _shown_workers(self) -> Iterator[Table]:
        workers, slowest = [self.workers[rank] for rank in sorted(self.workers)], self.workers.slowest
        rows = [_row(one, slowest=one is slowest) for one in workers[:_WORKERS_SHOWN]]
        if rows:
            head = ("rank", "node", "pid", "step", "rows/s", "waiting", "memory")
            yield Table(head, rows, more=len(workers) - len(rows), stays=False)

    def _shown_checkpoints(self, now: float) -> Iterator[Table]:
        rows = []
        for one in reversed(self.checkpoints[-_CHECKPOINTS_SHOWN:]):
            given = {name: value for name, value in one.metrics.items() if name not in one.late}
            rows.append((one.label, size(one.bytes), self._words(given, 2), self._status(one, now)))
        if rows:
            head = ("checkpoint", "size", "metrics", "status")
            yield Table(head, rows, more=len(self.checkpoints) - len(rows))

    def _status(self, one: CheckpointState, now: float) -> Mark:
        kind, words = _STATUSES.get(one.status, ("dim", one.status))
        if self.over and one.status == "pending":
            words = "○ not validated yet"
        elif one.validating and one.begun_at is not None and not self.over:
            kind, words = "wait", f"● validating {seconds(now - one.begun_at)}"
        elif late := self._words(one.late, 2):
            words = f"✓ {late}"
        elif one.status == "timed out" and one.begun_at and one.decided_at:
            words += f" after {seconds(one.decided_at - one.begun_at)}"
        elif one.status == "failed" and one.reason:
            words += f": {short(one.reason, 60)}"
        if one.deleted:
            kind, words = "dim", "deleted" if one.status == "committed" else f"{words} · deleted"
        return kind, words

    def _shown_curves(self) -> Plot:
        """Two metrics over the epochs: the first with its scale at the left, the second at the right.

        Those that are reported are drawn, and pale behind them their values in single steps.
        """
        history = list(zip(self._reports, self.history, strict=True))
        history = history[:: -(len(history) // _REPORTS_SHOWN + 1)]
        reports = [(self._place_of(report, entry["epoch"]), entry) for report, entry in reversed(history)]
        # What a validation brings comes when its epoch is long over.
        reports += [(float(one.epoch), one.late) for one in self.checkpoints if one.epoch]
        steps, reported, latest = self._series(self.curve), self._series(reports), self.metrics()
        behind, curves = [], []
        for name, look in zip(_ranked(steps | reported)[:2], ("main", "second"), strict=False):
            points = reported.get(name) or steps[name]
            if name in reported and name in steps:
                behind.append(Curve(name, steps[name], "pale" if look == "main" else "pale second"))
            words = f"{short(name, 16)} {number(latest.get(name, points[-1][1]))}"
            curves.append(Curve(words, points, look))
        last = max((curve.points[-1][0] for curve in behind + curves), default=0.0)
        end = max(self.epochs or 0, math.ceil(last), 1)
        return Plot("report" if self.counts_steps else "epoch", behind + curves, end)

    def _series(self, rows: Iterable[tuple[float, dict[str, Any]]]) -> dict[str, list[tuple[float, float]]]:
        """The points of each metric; one for each place, in order: an epoch may have been repeated."""
        found: dict[str, dict[float, float]] = {}
        for x, metrics in rows:
            for name, value in self._measured(metrics):
                if abs(value) < 1e12:
                    found.setdefault(name, {})[x] = value
        return {name: sorted(points.items()) for name, points in found.items()}

    def _measured(self, metrics: dict[str, Any]) -> Iterator[tuple[str, float]]:
        """The metrics that measure something: numbers, but no counts and no moments of this run."""
        for name, value in metrics.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and name not in _COUNTS and not self._is_moment(value):
                yield name, value

    def _is_moment(self, value: Any) -> bool:
        """Whether a metric is a Unix time, such as when a validation began; the record has it."""
        return isinstance(value, float) and abs(value - self.started_at) < _DAY < self.started_at

    def _words(self, metrics: dict[str, Any], most: int = 4) -> str:
        return short_metrics({n: v for n, v in metrics.items() if not self._is_moment(v)}, most)

    def _changes(self) -> str:
        """Restarts, what they cost, and the numbers of workers over time: ``2 → 1 (00:41) workers``."""
        again = f"workers started again {self.workers.restarts} ×" if self.workers.restarts else ""
        again += f", {plural(self.repeated, 'step')} trained twice" if self.repeated else ""
        sizes = " → ".join(f"{n} ({formatting.clock(at - self.started_at)})" for at, n in self.sizes[1:])
        return joined(again, f"{self.sizes[0][1]} → {sizes} workers" if sizes else "")

    def _no_batch(self) -> str:
        """Which ranks had no batch: a shard without rows."""
        ranks = " and ".join(f"rank {rank}" for rank in sorted(self.empty)[:3])
        return f"{ranks} got no batch: its shard is empty (fewer rows than workers?)" if ranks else ""

    def _result(self) -> str:
        """``loss 0.141 · accuracy 0.967 · 18.1 k rows/s · 10 checkpoints · 3 kept``."""
        waiting, words = self.waiting_share() or 0.0, {**_SAID, "pending": "not validated yet"}
        found = [one.status for one in self.checkpoints]
        validated = self._validated()
        metrics = {name: value for name, value in self.metrics().items() if name not in validated}
        reported, decided = self._words(metrics), self._words(validated)
        return joined(
            f"reported {reported}" if self._validates and reported else reported,
            f"validated {decided}" if decided else "",
            self._rate(),
            f"{waiting:.0%} of each epoch waiting for data" if waiting >= 0.005 and not self.strip else "",
            plural(len(found), "checkpoint") if found else "",
            f"{self.kept} kept" if self.kept < len(found) else "",
            *(f"{found.count(status)} {said}" for status, said in words.items() if status in found),
        )

    def _log(self) -> Iterator[tuple[tuple, str]]:
        """Lines of a log: each phase until the first report, each report, each decided checkpoint."""
        # Loading and training alternate in every epoch; once each is news, after that the epochs are.
        for name in self.phases if not self.history else ():
            yield ("phase", name), _PHASES.get(name, name)
        for index, report in list(enumerate(self.history))[-20:]:
            of = f"/{self.epochs}" if report["epoch"] < (self.epochs or 0) else ""
            place = self._reports[index]
            done = place.epoch if place.epoch is not None and place.epoch % 1 else report["epoch"] + 1
            # A loop that counts steps has its step among the metrics.
            epoch = "" if self.counts_steps else f"epoch {_done(done)}{of}"
            yield ("report", index), joined(epoch, self._words(report), self._rate())
        for one in self.checkpoints:
            if one.status in _SAID:
                words = self._words(one.late) or one.reason
                yield ("decided", one.path), f"{one.label}: {_SAID[one.status]} {words}".rstrip()

    @property
    def _validates(self) -> bool:
        """Whether its checkpoints are validated: then what the loop reports is not the last word."""
        return any(one.status in ("pending", *DECIDED) for one in self.checkpoints)

    def _validated(self) -> dict[str, Any]:
        """What the latest validations have measured."""
        late = (one.late for one in self.checkpoints if one.status == "validated")
        return {name: value for metrics in late for name, value in metrics.items()}

    def _rate(self) -> str:
        return f"{count(self.rows_per_second())} rows/s" if self.rows_per_second() >= 1 else ""


def _row(one: WorkerState, *, slowest: bool) -> tuple[str | Mark, ...]:
    """A row of the table of workers; the one that holds up the others is marked."""
    rate, waits = UNKNOWN, UNKNOWN
    if one.seconds > 0:
        rate = count(one.rows_per_second) if one.counted else UNKNOWN
        waits = f"{one.waiting_share:.0%}"
    memory = size(one.memory) + (f", GPU {size(one.gpu_memory)}" if one.gpu_memory is not None else "")
    rank = ("wait", f"{one.rank} slow") if slowest else str(one.rank)
    return rank, one.node, str(one.pid), str(one.step) if one.begun else UNKNOWN, rate, waits, memory


def _ranked(names: Iterable[str]) -> list[str]:
    """The most telling first: the loss, then an accuracy."""
    return sorted(names, key=lambda name: (name != "loss", "accuracy" not in name, name))


def counted_from(reports: list[tuple[int, float]]) -> int:
    """Return the number, 0 or 1, of the first epoch of a loop, from its first one or two reports.

    Each is (passes or reports up to there, epoch as reported). The epochs grow in proportion to the passes;
    where the loop counts from 1, the line through both reports begins at 0.
    """
    (passes, epoch), *others = reports
    for later_passes, later_epoch in others:
        if later_epoch > epoch and later_passes > passes:
            return int(later_epoch * (later_passes - passes) == later_passes * (later_epoch - epoch))
    return int(epoch == passes)


def _plain(number: float) -> float:
    """A whole number as an int."""
    return int(number) if number == int(number) else number


def _done(epochs: float) -> str:
    """``3`` epochs, or ``2.5``."""
    return str(int(epochs)) if epochs == int(epochs) else f"{round(epochs, 2):g}"
