"""The facts of a training run: it takes in the events of its workers, and counts.

`labkit.worker.events` lists the events; `labkit.panel.training_view` says what is shown.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from typing import Any

from labkit.panel.run import Run, Span, Thinned, whole
from labkit.panel.weights import compare
from labkit.panel.workers import Workers, WorkerState
from labkit.runs.verdict import Verdict, verdict
from labkit.worker import events
from labkit.worker.hooks import number_of

DECIDED = ("validated", "failed", "timed out")  # a validation ends in one of these

_POINTS_KEPT = 240  # about one per pixel of the curve
_SPANS_KEPT = 900
_JUDGED_EVERY = 1.0  # seconds between two verdicts on a run that goes on; one of 64 ranks takes 6 ms


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
        return f"epoch {epochs_in_words(self.epoch)}" if self.epoch else "before epoch 1"

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
        return Span("validation", epochs_in_words(self.epoch), self.begun_at, max(end, self.begun_at), status)

    def count_from(self, first: int) -> None:
        """Set its epoch from its metrics, in which the first epoch has the number `first`."""
        reported = number_of(self.metrics.get("epoch"))
        if reported is not None:
            self.epoch = _plain(max(reported + 1 - first, 0))

    def update(self, event: events.Checkpoint, *, counted_from: int) -> None:
        """Take in its new status; `counted_from` is the number of the first epoch in the metrics."""
        status, metrics = event.status, event.metrics
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
            self.status, self.bytes = status, event.bytes or self.bytes
            self.metrics.update(metrics)
            if status in DECIDED and self.decided_at is None:
                self.decided_at = event.at


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
        self.reports: list[Report] = []  # one for each entry of `history`
        self._first: int | None = None  # the number of the first epoch in them, 0 or 1, once that is known
        self._counts_fractions = False  # whether an epoch in them is how many are done, as 2.5
        self._evidence: list[tuple[int, float]] = []  # of `counted_from`
        self._trained_from: int | None = None  # the first report that tells how far the loop is
        self.loop_notes: list[str] = []
        self.weights_differ = ""  # a sentence, while the ranks hold different weights
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
        return leader is not None and max(leader.epoch, self.epochs_reported - 1) >= (self.epochs or math.inf)

    @property
    def epochs_reported(self) -> int:
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
            done = self.epochs_reported or (leader.epochs_done if leader is not None else 0)
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
    def knows_rows(self) -> bool:
        return self.fed and all(worker.counted for worker in self.workers.values())

    def rows_per_second(self) -> float:
        """Rows per second of all workers together; 0 where the number of rows is unknown."""
        return sum(worker.rows_per_second for worker in self.workers.values()) if self.knows_rows else 0.0

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

    @property
    def validates(self) -> bool:
        """Whether its checkpoints are validated: then what the loop reports is not the last word."""
        return any(one.status in ("pending", *DECIDED) for one in self.checkpoints)

    def validated(self) -> dict[str, Any]:
        """What the latest validations have measured."""
        late = (one.late for one in self.checkpoints if one.status == "validated")
        return {name: value for metrics in late for name, value in metrics.items()}

    def placed_reports(self, most: int) -> list[tuple[float, dict[str, Any]]]:
        """(place on the axis of epochs that are done, metrics) of at most `most` reports, and of the last."""
        reports = list(zip(self.reports, self.history, strict=True))
        reports = reports[:: -(len(reports) // most + 1)]
        return [(self._place_of(report, entry["epoch"]), entry) for report, entry in reversed(reports)]

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

    def apply(self, event: events.Event) -> None:
        """Take in an event, unless it comes too late. A run that is heard again does not hang."""
        if self.over:
            return
        self.on_event(event)
        self.version += 1
        if not isinstance(event, events.Print):
            self.heard_at, self.hang = self.now(), []

    @singledispatchmethod
    def on_event(self, event: events.Event) -> None:
        """Take in an event of any kind. One without a method below changes nothing here."""

    @on_event.register
    def on_worker(self, event: events.Worker) -> None:
        if self.workers.of(event) is not None and event.workers is not None:
            self.world_size = event.workers
            if not self.sizes or self.sizes[-1][1] != self.world_size:
                self.sizes.append((event.at, self.world_size))
            self.workers.keep(self.world_size)

    @on_event.register
    def on_phase(self, event: events.Phase) -> None:
        if event.rank == 0 and self.workers.of(event) is not None:
            self.enter(event.name, event.at)

    @on_event.register
    def on_saved(self, event: events.Saved) -> None:
        if event.rank == 0 and self.workers.of(event) is not None:
            epochs, steps = self._base
            self._saved.append((epochs + event.epoch, steps + event.step, len(self.reports)))

    @on_event.register
    def on_end(self, event: events.End) -> None:
        worker = self.workers.of(event)
        if worker is not None:
            worker.note_parts(event.parts)
        if event.rank == 0 and worker is not None:
            self._parts["between epochs"] += event.seconds

    @on_event.register
    def on_empty(self, event: events.Empty) -> None:
        self.empty.add(event.rank)

    @on_event.register
    def on_weights(self, event: events.Weights) -> None:
        worker = self.workers.of(event)
        if worker is None:
            return
        worker.note_look(event)
        looks = {rank: worker.looks for rank, worker in self.workers.items()}
        if len(looks) == self.world_size:
            self.weights_differ = compare(looks, engine=self.engine)

    @on_event.register
    def on_step(self, event: events.Step) -> None:
        worker = self.workers.of(event)
        if worker is None:
            return
        if self.workers.began_again:
            self.workers.began_again = False
            self._go_back()
        epochs, steps = self._base
        event = replace(event, epoch=event.epoch + self.earlier + epochs)  # of the whole run
        is_new, begins = not worker.begun, worker.begins_epoch(event)
        spent, waiting = worker.update(event)
        # All ranks make the same steps: one may tell more than rank 0.
        self.made = max(self.made, steps + worker.made)
        worker.note_parts(event.parts)
        if worker.rank != 0:
            return
        at, self.fed = event.at, event.fed
        self.enter("training", at)
        if is_new:
            self._begins(worker, at)
        if begins:
            self._parts["between epochs"] += event.between
            began = at - event.ago - event.seconds
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

    def _advance(self, worker: WorkerState, event: events.Step) -> None:
        """Rank 0 is further than before."""
        self._latest |= event.metrics
        if event.done:
            self._epoch_seconds[worker.epoch] = event.seconds
        self._lengths[worker.epoch] = worker.total or max(self._lengths.get(worker.epoch, 0), worker.step)
        if not self.first_step_at:
            # A step is heard of when it is over.
            self.first_step_at = event.at - max(event.seconds - event.first_wait, 0.0)
            self._begun_at = self.fraction() or 0.0 if worker.epoch else 0.0
        if event.metrics:
            self._points.add((worker.epoch, worker.step, event.metrics))

    @on_event.register
    def on_report(self, event: events.Report) -> None:
        if event.rank != 0 or self.workers.are_gone(event):
            return  # a loop in which each rank reports has one history: rank 0's, as Ray keeps it
        metrics, passes = dict(event.metrics), event.passes
        if passes is not None:
            if self.workers.began_again:
                self.workers.began_again = False
                self._go_back()
            passes += self.earlier + self._base[0]
            if self._trained_from is None:
                self._trained_from = len(self.reports)
        epoch = number_of(metrics.get("epoch") if event.epoch is None else event.epoch)
        report = Report(len(self.reports), epoch, passes, event.step)
        self.reports.append(report)
        if self.sizes and not self.first_step_at and self.phase != "training":
            # A loop without steps trains since its workers began, and since its next report after a wait.
            self.enter("training", event.at if "training" in self.phases else self.sizes[0][0])
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
        for report, entry in zip(self.reports, self.history, strict=True):
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

    @on_event.register
    def on_note(self, event: events.Note) -> None:
        if event.text not in self.loop_notes:
            self.loop_notes.append(event.text)

    @on_event.register
    def on_checkpoint(self, event: events.Checkpoint) -> None:
        known = len(self.checkpoints)
        self._checkpoint(event).update(event, counted_from=self._first or 0)
        self._arrived += event.status == "committed" and len(self.checkpoints) > known
        if self.phase == "training" and self.fraction() == 1.0 and self.pending:
            self.enter("waiting for validations", event.at)

    @on_event.register
    def on_validation(self, event: events.Validation) -> None:
        known = self._checkpoint(event)
        known.begun_at, known.seconds = event.at, event.seconds
        if event.seconds is not None:
            known.begun_at -= event.seconds
            known.reason = " ".join(event.text.split())

    @on_event.register
    def on_print(self, event: events.Print) -> None:
        self.print(f"[rank {event.rank}] {event.text}" if self.world_size > 1 else event.text)

    @on_event.register
    def on_failure(self, event: events.Failure) -> None:
        self.fail(event.text, event.rank)
        self._failed_at = event.at if self._failed_at is None else self._failed_at

    def fail(self, text: str, rank: int | None = 0) -> None:
        super().fail(text, rank)  # rank 0 speaks for all

    def _checkpoint(self, event: events.Checkpoint | events.Validation) -> CheckpointState:
        """The checkpoint of an event; a new one is of the epoch of its report, counted from 1."""
        known = next((one for one in reversed(self.checkpoints) if one.path == event.path), None)
        if known is None:
            # Others may have been reported since.
            saved = self._saved[self._arrived][2] if self._arrived < len(self._saved) else len(self.history)
            report = self.history[min(saved, len(self.history) - 1)] if self.history else {"epoch": -1}
            epoch = _plain(report["epoch"] + 1)
            known = CheckpointState(event.path, epoch, event.at)
            self.checkpoints.append(known)
        return known


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


def epochs_in_words(epochs: float) -> str:
    """``3`` epochs, or ``2.5``."""
    return str(int(epochs)) if epochs == int(epochs) else f"{round(epochs, 2):g}"
