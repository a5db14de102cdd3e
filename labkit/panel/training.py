"""The state of one training run: it applies the events of its workers, and counts.

`labkit.worker.events` lists the events; `labkit.panel.training_view` decides what is shown.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import singledispatchmethod
from typing import Any

from labkit.panel.checkpoints import DECIDED, CheckpointState
from labkit.panel.epochs import Report, counted_from, whole_as_int
from labkit.panel.run import Run, Span, Thinned, whole
from labkit.panel.weights import compare
from labkit.panel.workers import Workers, WorkerState
from labkit.runs.verdict import Verdict, verdict
from labkit.worker import events
from labkit.worker.events import number_of

Metrics = dict[str, Any]  # by name

_POINTS_KEPT = 240  # about one per pixel of the curve
_SPANS_KEPT = 900
_JUDGED_EVERY = 1.0  # seconds between two verdicts on a run that goes on; one of 64 ranks takes 6 ms


@dataclass
class Progress:
    """The progress of rank 0 when it gave a checkpoint to the engine."""

    epochs: int = 0
    steps: int = 0
    reports: int = 0


class TrainingRun(Run):
    """All facts about one training run. `recorded` is what its record has besides (see `RunRecord`)."""

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
        **recorded: Any,
    ) -> None:
        super().__init__(name, engine)
        if dataset is not None and not isinstance(dataset, str):  # the data set itself, not its name
            recorded["data_fingerprint"] = getattr(dataset, "fingerprint", None)
            dataset = str(getattr(dataset, "name", type(dataset).__name__))
        self.world_size = world_size
        self.dataset = dataset
        self.recorded = recorded
        self.epochs = whole(epochs) or None
        self.rows = whole(rows) or None
        self.steps_of_run = None if self.epochs else whole(steps) or None  # of one that has no epochs
        self.workers = Workers()
        self.checkpoints: list[CheckpointState] = []  # in the order in which they were seen
        self.history: list[Metrics] = []  # one dict per report: "epoch" (from 0), rank 0's metrics
        self.reports: list[Report] = []  # one for each entry of `history`
        self.note = ""  # a sentence that the panel of an engine adds
        self.loop_notes: list[str] = []
        self.weights_differ = ""  # a sentence, while the ranks hold different weights
        self.names_cause = verdict  # whether a panel has the sentence that says why
        self.earlier = 0  # epochs that an earlier run of this name had done, where this one goes on
        self.made = 0  # steps up to now, with those of the attempts before that a checkpoint has
        self.repeated = 0  # steps that came after the last checkpoint, and were made again
        self.empty: set[int] = set()  # ranks whose loader had no batch
        self.earlier_checkpoints: set[str] = set()  # paths, of the run with which this one goes on
        self.fed = True  # whether there is a loader, and so rows and waiting
        self.sizes: list[tuple[float, int]] = []  # (Unix seconds, number of workers from then on)
        self.trained: deque[Span] = deque(maxlen=_SPANS_KEPT)  # one for each epoch
        self.first_step_at = 0.0
        self._base = Progress()  # behind the present process of rank 0 when it began
        self._saved: list[Progress] = []  # at each checkpoint …
        self._arrived = 0  # … of which so many are in the store
        self._unplaced: dict[int, CheckpointState] = {}  # of those, which came before their report, by number
        self._done_before = 0.0  # the fraction that was done before the first step, of a resumed run
        self._failed_at: float | None = None  # when workers failed that were not replaced yet
        self._parts = {
            "data": 0.0,
            "training": 0.0,
            "between epochs": 0.0,
            "restart": 0.0,
        }
        self._epoch_seconds: dict[int, float] = {}
        self._lengths: dict[int, int] = {}  # epoch -> its steps, or the most seen so far
        self._points = Thinned(_POINTS_KEPT)  # (epoch, step, metrics)
        self._latest: Metrics = {}
        self._first_epoch: int | None = None  # its number in the reports, 0 or 1, if it is certain
        self._counts_fractions = False  # whether an epoch in them is how many are done, as 2.5
        self._evidence: list[tuple[int, float]] = []  # of `counted_from`
        self._trained_from: int | None = None  # the first report that tells how far the loop is
        self._verdict: Verdict | None = None  # the latest …
        self._judged_at = 0.0  # … and when it was computed

    # -- what can be read off it --------------------------------------------------------------------

    def outcome(self) -> str:
        """Return ``failed in epoch 3, rank 1``, as far as that is certain."""
        if self.status != "failed" or not self.failures:
            return super().outcome()
        rank = self.failures[-1].rank
        if rank is None:
            return super().outcome()
        text = "failed"
        if rank in self.workers:
            text += f" in epoch {self.workers[rank].epoch + 1}"
        if self.world_size > 1:
            text += f", rank {rank}"
        return text

    @property
    def recovered(self) -> bool:
        return self._failed_at is None

    @property
    def kept(self) -> int:
        """The number of checkpoints that are still there."""
        return sum(not checkpoint.deleted for checkpoint in self.checkpoints)

    @property
    def pending(self) -> int:
        """The number of checkpoints whose validation is not decided yet."""
        return sum(checkpoint.status == "pending" for checkpoint in self.checkpoints)

    @property
    def curve(self) -> list[tuple[float, Metrics]]:
        """(epochs done, metrics) of rank 0's steps, thinned to a few hundred points."""
        curve = []
        for epoch, step, metrics in self._points:
            # While the length of the first epoch is unknown, it ends at the latest step.
            length = max(self._lengths[epoch], 1)
            share = min(step / length, 1.0)
            curve.append((epoch + share, metrics))
        return curve

    @property
    def epoch_seconds(self) -> list[float]:
        """Duration of each epoch of rank 0 that ended, in seconds."""
        return list(self._epoch_seconds.values())

    @property
    def counts_steps(self) -> bool:
        """Whether its loop reports steps, and has no epochs."""
        if self.epochs is not None:
            return False
        return self.steps_of_run is not None or "step" in self._latest

    @property
    def exceeds(self) -> bool:
        """Whether it has more passes over its loaders than epochs: then these are something else."""
        leader = self.workers.leader
        if leader is None or not self.epochs:
            return False
        return max(leader.epoch, self.epochs_reported - 1) >= self.epochs

    @property
    def epochs_reported(self) -> int:
        """Epochs that were reported, of a loop whose steps are not seen, such as Keras's.

        One report may be of the untrained model.
        """
        if len(self.history) < 2 or self.first_step_at:
            return 0
        return int(self.history[-1]["epoch"]) + 1

    def fraction(self) -> float | None:
        """Return the share of all steps that are done, 0 to 1; None if the length of the run is unknown."""
        leader = self.workers.leader
        if leader is None or self.exceeds:
            return None
        if self.epochs:
            done = self.epochs_reported or leader.epochs_done
            return min(done / self.epochs, 1.0)
        if self.steps_of_run:
            return min(self.made / self.steps_of_run, 1.0)
        return None

    def eta(self, now: float) -> float | None:
        """Return the seconds left, from the pace since the first step, or since the workers began."""
        done = self.fraction()
        if self.over or not done:
            return None
        since = self.first_step_at
        done_before = self._done_before
        if not since and self.epochs:
            since = self.sizes[0][0] if self.sizes else self.started_at
            done_before = self.earlier / self.epochs
        if not since or done <= done_before:
            return None
        seconds = max(now - since, 0.0)
        return seconds * (1 - done) / (done - done_before)

    @property
    def knows_rows(self) -> bool:
        if not self.fed:
            return False
        return all(worker.counted for worker in self.workers.values())

    def rows_per_second(self) -> float:
        """Return the rows per second of all workers together; 0 where the number of rows is unknown."""
        if not self.knows_rows:
            return 0.0
        return sum(worker.rows_per_second for worker in self.workers.values())

    def waiting_share(self) -> float | None:
        """Return the share of the epochs' time in which rank 0 waited for data.

        The first batch counts as start.
        """
        data = self._parts["data"]
        total = data + self._parts["training"]
        if total <= 0 or not self.fed:
            return None
        return data / total

    def time_breakdown(self, now: float | None = None) -> dict[str, float]:
        """Return the seconds of start, data, training, between epochs, restart and rest, by rank 0's clock.

        *between epochs* is what a loop does outside its steps, after the last epoch, too: evaluate, save,
        report, wait for the others.
        *restart* lasts from a failure to the first step of the replacements; without a failure it is missing.
        Where no steps are seen, *training* begins with the workers, as soon as there is a report.
        """
        if not self.first_step_at:
            return self._breakdown_without_steps(now)
        start = max(self.first_step_at - self.started_at, 0.0)
        parts = {"start": start, **self._parts}
        if not parts["restart"]:
            del parts["restart"]
        rest = self.elapsed(now) - sum(parts.values())
        return {**parts, "rest": max(rest, 0.0)}

    def _breakdown_without_steps(self, now: float | None) -> dict[str, float]:
        phases = self.phase_seconds(now)
        parts = {}
        part_of = {"training": "training", "waiting for validations": "rest"}
        for phase, part in part_of.items():
            if phases.get(phase):
                parts[part] = phases[phase]
        start = self.elapsed(now) - sum(parts.values())
        return {"start": max(start, 0.0), **parts}

    def parts_of_steps(self) -> dict[str, Any]:
        """Return the samples of all ranks, as `labkit.runs.verdict` takes them."""
        reasons = [worker.unseen for worker in self.workers.values()]
        on_node = Counter(worker.node for worker in self.workers.values())
        ranks = {}
        crowds = {}
        for rank, worker in sorted(self.workers.items()):
            if worker.samples:
                ranks[str(rank)] = worker.samples
            if worker.cores:
                crowds[str(rank)] = max(on_node[worker.node] / worker.cores, 1.0)
        return {"unseen": next(filter(None, reasons), ""), "ranks": ranks, "crowds": crowds}

    def find_verdict(self, now: float | None = None) -> Verdict:
        """Return why the run is slow; computed at most once a second while it runs."""
        now = now or self.now()
        is_recent = now - self._judged_at < _JUDGED_EVERY
        if self._verdict is not None and is_recent and not self.over:
            return self._verdict
        start = None
        if self.first_step_at:
            start = self.first_step_at - self.started_at
        parts = self.parts_of_steps()
        self._verdict = verdict(parts, start=start, total=self.elapsed(now))
        self._judged_at = now
        return self._verdict

    def metrics(self) -> Metrics:
        """Return the latest metrics, of a report or of a step; of a run that is over, of its last report."""
        latest = self._latest
        if self.over and self.history:
            latest = self.history[-1]
        return {name: value for name, value in latest.items() if name != "epoch"}

    @property
    def validates(self) -> bool:
        """Whether its checkpoints are validated: then what the loop reports is not the last word."""
        statuses = {checkpoint.status for checkpoint in self.checkpoints}
        return not statuses.isdisjoint(("pending", *DECIDED))

    def validated(self) -> Metrics:
        """Return the metrics of all validations; of each metric, the latest value."""
        metrics: Metrics = {}
        for checkpoint in self.checkpoints:
            if checkpoint.status == "validated":
                metrics |= checkpoint.late
        return metrics

    def placed_reports(self) -> list[tuple[float, Metrics]]:
        """Return (place on the axis of epochs, metrics) of the reports, thinned, with the last one."""
        reports = list(zip(self.reports, self.history, strict=True))
        stride = len(reports) // _POINTS_KEPT + 1
        latest_first = reports[::-stride]
        placed = []
        for report, entry in reversed(latest_first):
            place = self._place_of(report, entry["epoch"])
            placed.append((place, entry))
        return placed

    def timeline(self, now: float) -> list[Span]:
        """Return training and validations of a run that validates; other runs need no such figure."""
        validations = list(filter(None, (checkpoint.span(now) for checkpoint in self.checkpoints)))
        if not validations:
            return []
        return [*self.trained, *validations][-_SPANS_KEPT:]

    def to_record(self) -> dict[str, Any]:
        spent = self.time_breakdown()
        kept = [checkpoint.path for checkpoint in self.checkpoints if not checkpoint.deleted]
        validates = any(checkpoint.begun_at is not None for checkpoint in self.checkpoints)
        return {
            "workers": self.world_size,
            "dataset": self.dataset,
            "rows": self.rows,
            **self.recorded,
            "seconds_to_start": spent["start"] if len(spent) > 1 else None,
            "seconds_per_epoch": self.epoch_seconds,
            "seconds": spent,
            "rows_per_second": self.rows_per_second() or None,
            "waiting_share": self.waiting_share(),
            "parts": self.parts_of_steps(),
            "verdict": self.find_verdict().to_json(),
            "metrics": self.metrics(),
            "history": list(self.history),
            "checkpoints": len(kept),
            "checkpoint": kept[-1] if kept else None,
            "extra": {"checkpoints": list(self._validations())} if validates else {},
        }

    def _validations(self) -> Iterator[dict[str, Any]]:
        """Yield the checkpoints of a run that validates, with the seconds until the metrics were there."""
        trained = {span.label: span.end for span in self.trained}
        for checkpoint in self.checkpoints:
            end = trained.get(str(checkpoint.epoch))
            decided_at = checkpoint.decided_at or checkpoint.committed_at
            yield {
                "checkpoint": checkpoint.label,
                "status": checkpoint.status,
                "metrics": checkpoint.metrics,
                "seconds_to_metric": None if end is None else max(decided_at - end, 0.0),
            }

    # -- what happens: workers ----------------------------------------------------------------------

    def apply(self, event: events.Event) -> None:
        """Apply an event, unless it comes too late. A run that is heard again does not hang."""
        if self.over:
            return
        self.on_event(event)
        self.version += 1
        if not isinstance(event, events.Print):
            self.heard_at = self.now()
            self.hang = []

    @singledispatchmethod
    def on_event(self, event: events.Event) -> None:
        """Apply an event of any kind. One without a method below changes nothing here."""

    @on_event.register
    def on_worker(self, event: events.Worker) -> None:
        worker = self.workers.of(event)
        if worker is None:
            return
        worker.cores = event.cores
        if event.workers is None:
            return
        self.world_size = event.workers
        latest_size = self.sizes[-1][1] if self.sizes else None
        if self.world_size != latest_size:
            self.sizes.append((event.at, self.world_size))
        self.workers.keep(self.world_size)

    @on_event.register
    def on_phase(self, event: events.Phase) -> None:
        if event.rank == 0 and self.workers.of(event) is not None:
            self.enter(event.name, event.at)

    @on_event.register
    def on_end(self, event: events.End) -> None:
        worker = self.workers.of(event)
        if worker is None:
            return
        worker.note_parts(event.parts)
        if worker.rank == 0:
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
    def on_note(self, event: events.Note) -> None:
        if event.text not in self.loop_notes:
            self.loop_notes.append(event.text)

    @on_event.register
    def on_print(self, event: events.Print) -> None:
        self.print(f"[rank {event.rank}] {event.text}" if self.world_size > 1 else event.text)

    @on_event.register
    def on_failure(self, event: events.Failure) -> None:
        self.fail(event.text, event.rank)
        if self._failed_at is None:
            self._failed_at = event.at

    def fail(self, text: str, rank: int | None = 0) -> None:
        super().fail(text, rank)  # rank 0 speaks for all

    # -- what happens: steps ------------------------------------------------------------------------

    @on_event.register
    def on_step(self, event: events.Step) -> None:
        worker = self.workers.of(event)
        if worker is None:
            return
        self.empty.discard(event.rank)
        self._go_back_after_restart()
        epoch_of_run = self.earlier + self._base.epochs + event.epoch
        event = replace(event, epoch=epoch_of_run)
        is_first = not worker.begun
        begins_epoch = worker.begins_epoch(event)
        seconds, waiting = worker.update(event)
        # All ranks make the same steps: another rank may be heard of before rank 0.
        made = self._base.steps + worker.made
        self.made = max(self.made, made)
        worker.note_parts(event.parts)
        if worker.rank != 0:
            return
        self.fed = event.rows != 0
        self.enter("training", event.at)
        if is_first:
            self._begin(worker, event)
        if begins_epoch:
            self._parts["between epochs"] += event.between
            begin = event.at - event.ago - event.seconds
            epoch = str(worker.epoch + 1)
            self.trained.append(Span("training", epoch, begin, event.at))
        self.trained[-1].end = event.at
        self._parts["data"] += waiting
        self._parts["training"] += seconds - waiting
        self._advance(worker, event)

    def _go_back_after_restart(self) -> None:
        """Go back to the last checkpoint that had arrived, if the engine has started the workers again."""
        if not self.workers.began_again:
            return
        self.workers.began_again = False
        del self._saved[self._arrived :]
        self._unplaced.clear()
        self._base = self._saved[-1] if self._saved else Progress()
        self.repeated += max(self.made - self._base.steps, 0)
        self.made = self._base.steps

    def _begin(self, worker: WorkerState, event: events.Step) -> None:
        """Note the first step of a process of rank 0, which may replace a process that failed."""
        # What came after the checkpoint from which it goes on is void.
        begin = (worker.epoch, worker.step)
        self._points[:] = [point for point in self._points if point[:2] < begin]
        # A step is heard of when it is over.
        began = event.at - max(event.seconds - event.first_wait, 0.0)
        if not self.first_step_at:
            self.first_step_at = began
            if worker.epoch:
                self._done_before = self.fraction() or 0.0
        elif self._failed_at is not None:  # before the first step, a failure is a part of the start
            self._parts["restart"] += max(began - self._failed_at, 0.0)
        self._failed_at = None

    def _advance(self, worker: WorkerState, event: events.Step) -> None:
        """Note that rank 0 is further than before."""
        self._latest |= event.metrics
        if event.done:
            self._epoch_seconds[worker.epoch] = event.seconds
        length = self._lengths.get(worker.epoch, 0)
        self._lengths[worker.epoch] = worker.total or max(length, worker.step)
        if event.metrics:
            point = (worker.epoch, worker.step, event.metrics)
            self._points.add(point)

    # -- what happens: reports ----------------------------------------------------------------------

    @on_event.register
    def on_report(self, event: events.Report) -> None:
        if event.rank != 0 or self.workers.are_gone(event):
            return  # a loop in which each rank reports has one history: rank 0's, as Ray keeps it
        metrics = dict(event.metrics)
        passes = event.passes
        if passes is not None:
            self._go_back_after_restart()
            passes += self.earlier + self._base.epochs
            if self._trained_from is None:
                self._trained_from = len(self.reports)
        report = Report(
            number=len(self.reports),
            epoch=number_of(metrics.get("epoch")),
            passes=passes,
            step=event.step,
        )
        self.reports.append(report)
        if not self.first_step_at:
            self._train_without_steps(event.at)
        self._latest |= metrics
        self.history.append(metrics)
        first = self._number_of_first_epoch(report)
        if first != self._first_epoch:
            self._count_from(first)
        metrics["epoch"] = self._epoch_of(report)
        self._place_checkpoints()

    def _train_without_steps(self, at: float) -> None:
        """Enter the phase of training: since the workers began, and since the next report after a wait."""
        if not self.sizes or self.phase == "training":
            return
        began, _ = self.sizes[0]
        self.enter("training", at if "training" in self.phases else began)

    def _number_of_first_epoch(self, report: Report) -> int | None:
        """Return the number of the first epoch in the reports, 0 or 1; see `counted_from`.

        With a fraction, an epoch is how many are done, and so counted from 1.
        """
        if report.epoch is None or self._counts_fractions:
            return self._first_epoch
        if report.epoch % 1:
            self._counts_fractions = True
            return 1
        if report.passes is None:
            if self._first_epoch is not None:
                return self._first_epoch
            is_resumed = self.first_step_at and self._done_before
            goes_on = self.earlier or self.workers.restarts or is_resumed
            is_first = report.number == 0 and not goes_on
            return int(is_first and report.epoch == 1)
        is_continued = (
            self.earlier and self._first_epoch is not None
        )  # the earlier run's checkpoints have decided
        if is_continued or report.is_untrained or len(self._evidence) == 2:
            return self._first_epoch
        if not self._evidence or report.epoch > self._evidence[0][1]:
            passes = report.position + 1
            self._evidence.append((passes, report.epoch))
        return counted_from(self._evidence)

    def _count_from(self, first: int | None) -> None:
        """Number all reports and checkpoints again: how the loop counts has become certain."""
        self._first_epoch = first
        for report, entry in zip(self.reports, self.history, strict=True):
            entry["epoch"] = self._epoch_of(report)
        for checkpoint in self.checkpoints:
            checkpoint.count_from(first or 0)

    def _epoch_of(self, report: Report) -> float:
        """Return the epoch of a report, from 0; of a fraction, the place on the axis less one."""
        if report.epoch is not None:
            epoch = report.epoch - (self._first_epoch or 0)
            return whole_as_int(max(epoch, 0))
        if report.passes is None or self.counts_steps:
            return report.number + self.earlier
        return report.position

    def _place_of(self, report: Report, epoch: float) -> float:
        """Return the place of a report on the axis of epochs that are done."""
        if report.epoch is not None and self._counts_fractions:
            return report.epoch
        trained_from = self._trained_from
        if trained_from is not None and (report.is_untrained or report.number < trained_from):
            return 0.0
        if report.passes is None or not report.step:
            return epoch + 1.0
        is_by_steps = report.epoch is None and self.counts_steps
        if is_by_steps or epoch != report.position:
            return epoch + 1.0
        # While the length of the first epoch is unknown, it ends at the latest step.
        length = self._lengths.get(report.position, 0)
        return epoch + report.step / max(length, report.step)

    def goes_on_after(self, checkpoints: Iterable[tuple[int, Metrics]]) -> None:
        """Continue an earlier run of that name, whose reports these are: (number from 0, metrics)."""
        reports = 0
        counted = []
        for number, metrics in checkpoints:
            reports = max(reports, number + 1)
            epoch = number_of(metrics.get("epoch"))
            if epoch is not None:
                counted.append((number + 1, epoch))
        if not counted:
            self.earlier = reports  # Ray goes on from there
            return
        epochs = [epoch for _, epoch in counted]
        has_fractions = any(epoch % 1 for epoch in epochs)
        self._first_epoch = 1 if has_fractions else counted_from(counted[:2])
        self.earlier = int(max(epochs)) + 1 - self._first_epoch

    # -- what happens: checkpoints ------------------------------------------------------------------

    @on_event.register
    def on_saved(self, event: events.Saved) -> None:
        if event.rank == 0 and self.workers.of(event) is not None:
            saved = Progress(
                epochs=self._base.epochs + event.epoch,
                steps=self._base.steps + event.step,
                reports=len(self.reports),
            )
            self._saved.append(saved)

    @on_event.register
    def on_checkpoint(self, event: events.Checkpoint) -> None:
        self._checkpoint(event).update(event, first_epoch=self._first_epoch or 0)
        is_trained = self.phase == "training" and self.fraction() == 1.0
        if is_trained and self.pending:
            self.enter("waiting for validations", event.at)

    @on_event.register
    def on_validation(self, event: events.Validation) -> None:
        checkpoint = self._checkpoint(event)
        checkpoint.begun_at = event.at
        checkpoint.seconds = event.seconds
        checkpoint.validator = event.process
        if event.seconds is not None:
            checkpoint.begun_at -= event.seconds
            checkpoint.reason = " ".join(event.text.split())

    def _checkpoint(self, event: events.Checkpoint | events.Validation) -> CheckpointState:
        """Return the checkpoint of an event; a new one is of the epoch of its report, counted from 1."""
        for checkpoint in reversed(self.checkpoints):
            if checkpoint.path == event.path:
                return checkpoint
        epoch: float = 0
        number = len(self.history)
        if self._arrived < len(self._saved):  # others may have been reported since
            number = self._saved[self._arrived].reports
        if self.history:
            epoch = self._epochs_done_at(min(number, len(self.history) - 1))
        checkpoint = CheckpointState(event.path, epoch, event.at)
        self.checkpoints.append(checkpoint)
        if number >= len(self.history):
            self._unplaced[self._arrived] = checkpoint
        if event.path not in self.earlier_checkpoints:
            self._arrived += 1
        return checkpoint

    def _place_checkpoints(self) -> None:
        """Give their epoch to checkpoints of which the engine has told before their report came."""
        for number, checkpoint in list(self._unplaced.items()):
            if number < len(self._saved) and self._saved[number].reports < len(self.history):
                del self._unplaced[number]
                if "epoch" not in checkpoint.metrics:
                    checkpoint.epoch = self._epochs_done_at(self._saved[number].reports)

    def _epochs_done_at(self, report: int) -> float:
        return whole_as_int(self.history[report]["epoch"] + 1)
