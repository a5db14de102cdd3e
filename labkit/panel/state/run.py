"""The state of a training: it takes in events, as `labkit.panel.tracking.events` describes them."""

import operator
import time
from typing import Any

from labkit.panel.state import record
from labkit.panel.state.base import State
from labkit.panel.state.checkpoints import DECIDED, Checkpoints
from labkit.panel.state.curve import Curve
from labkit.panel.state.spans import Spans
from labkit.panel.state.workers import Workers, WorkerState

_VALIDATING = ("validating", "evaluating")  # phases of a loop that validates in itself


class RunState(State):
    """All that is known of one training.

    Attributes:
        phase: what is being done now.
        workers: by rank.
        history: one dict per report: ``epoch`` (from 0) and rank 0's metrics.
        note: a sentence that the summary adds, or "".
        config, scaling, storage_path: what the run was given, if known: for its record (see `RunRecord`).
    """

    def __init__(
        self,
        name: str,
        *,
        engine: str = "one process",
        world_size: int = 1,
        epochs: int | None = None,
        dataset: str | None = None,
        rows: int | None = None,
        config: dict[str, Any] | None = None,
        scaling: dict[str, Any] | None = None,
        storage_path: str | None = None,
    ) -> None:
        self.config, self.scaling, self.storage_path = config or {}, scaling or {}, storage_path
        super().__init__(name)
        self.engine, self.world_size = engine, world_size
        self.epochs, self.dataset, self.rows = epochs, dataset, _count(rows)
        self.note = ""
        self.first_step_at = 0.0
        self.phase = ""
        self.workers = Workers()
        self.history: list[dict[str, Any]] = []
        self.checkpoints = Checkpoints()
        self.spans = Spans()
        self._phases: dict[str, float] = {}  # seconds in each that is over, in the order of their first begin
        self._phase_began = 0.0
        self._curve = Curve()
        self._epoch_seconds: dict[int, float] = {}
        self._begun_at = 0.0  # epochs that were done before the first step: a resumed run has some
        self._live = False  # whether the newest metrics came from a step
        self._failed_at: float | None = None  # when workers failed that were not replaced yet
        self._restarts_before, self._restarting = 0, 0.0

    # -- what happens -------------------------------------------------------------------------------

    def start(self, phase: str = "preparing", now: float | None = None) -> None:
        """The run begins with `phase`."""
        super().start(phase, now)
        self._enter(phase, self.started_at)

    def end(self, status: str, now: float | None = None) -> None:
        """The run is over."""
        super().end(status, now)
        if self.phase:
            self._enter(self.phase, self.ended_at)
        self.spans.end(self.ended_at)
        if status == "finished":
            self._count_epoch()

    # -- what can be read off it --------------------------------------------------------------------

    @property
    def epochs(self) -> int | None:
        """Epochs of the whole run, if known. They may come from a configuration that says anything."""
        return self._epochs

    @epochs.setter
    def epochs(self, value: Any) -> None:
        self._epochs = _count(value)

    @property
    def leader(self) -> WorkerState | None:
        """The worker with the lowest rank: its epoch and step are shown for all."""
        return self.workers.leader

    @property
    def restarts(self) -> int:
        """How often the engine started the workers again."""
        return self.workers.restarts

    @property
    def curve(self) -> list[tuple[float, dict[str, Any]]]:
        """(epochs done, metrics) of rank 0's steps, thinned to a few hundred points."""
        return self._curve.points

    @property
    def epoch_seconds(self) -> list[float]:
        """Duration of each epoch of rank 0 that ended, in seconds."""
        return list(self._epoch_seconds.values())

    def phase_seconds(self, now: float | None = None) -> dict[str, float]:
        """Seconds in each phase, in the order in which they first came."""
        spent = dict(self._phases)
        if self.phase and not self.over:
            spent[self.phase] += max((now or time.time()) - self._phase_began, 0.0)
        return spent

    def fraction(self) -> float | None:
        """Share of all steps that are done, 0 to 1; None if epochs or steps per epoch are unknown."""
        if self.leader is None or not self.epochs:
            return None
        return min(self.leader.epochs_done / self.epochs, 1.0)

    def eta(self, now: float | None = None) -> float | None:
        """Seconds left, from the pace since the first step."""
        if self.status != "running" or self.leader is None or not self.epochs or not self.first_step_at:
            return None
        done = self.leader.epochs_done
        if done <= self._begun_at:
            return None
        pace = max((now or time.time()) - self.first_step_at, 0.0) / (done - self._begun_at)
        return max(self.epochs - done, 0.0) * pace

    def rows_per_second(self) -> float:
        """Rows per second of all workers: at the moment while running, over the whole run afterwards."""
        if self.status == "running":
            return sum(worker.rate for worker in self.workers.values())
        return sum(worker.rows_per_second for worker in self.workers.values())

    def waiting_share(self) -> float | None:
        """Share of the epochs' time in which rank 0 waited for data. The first batch counts as start."""
        worker = self.leader
        if worker is None or not worker.all_seconds:
            return None
        return worker.all_waiting / worker.all_seconds

    def time_breakdown(self, now: float | None = None) -> dict[str, float]:
        """Seconds of start, data, training, between epochs, restart and rest, by rank 0's clock.

        *between epochs* is what a loop does outside its steps: evaluate, save, report, wait for the others.
        *restart* lasts from a failure to the first step of the replacements; without a failure it is missing.
        """
        worker, total = self.leader, self.elapsed(now)
        if worker is None or not self.first_step_at:
            return {"start": total}
        lost = self.workers.lost
        parts = {
            "start": max(self.first_step_at - self.started_at, 0.0),
            "data": worker.all_waiting + lost["waiting"],
            "training": worker.all_seconds - worker.all_waiting + lost["training"],
            "between epochs": worker.totals["between"] + lost["between"],
        }
        if self._restarting:
            parts["restart"] = self._restarting
        return {**parts, "rest": max(total - sum(parts.values()), 0.0)}

    def metrics(self) -> dict[str, Any]:
        """The latest metrics: those of the last report, updated by newer ones of the running epoch."""
        latest = dict(self.history[-1]) if self.history else {}
        if not self.history or (self._live and self.status == "running"):
            latest.update(self._curve.latest)
        return {name: value for name, value in latest.items() if name != "epoch"}

    def fail(self, text: str, rank: int | None = 0, epoch: int | None = None) -> None:
        """A worker raised."""
        worker = None if rank is None else self.workers.get(rank)
        super().fail(text, rank, worker.epoch if epoch is None and worker is not None else epoch)

    def to_record(self) -> dict[str, Any]:
        """What the run record says of a training."""
        return record.fields_of(self)

    # -- one method for each kind of event ----------------------------------------------------------

    def on_worker(self, event: dict[str, Any]) -> None:
        self.workers.of(event)

    def on_phase(self, event: dict[str, Any]) -> None:
        worker = self.workers.of(event)
        if worker is not None and worker.rank == 0:
            self._enter(event["name"], event["at"])
            self.spans.close("validation", event["at"], key="loop")
            if event["name"] in _VALIDATING:
                self.spans.open(
                    "validation", str(worker.epoch + 1), event["at"], key="loop", status="in the loop"
                )

    def on_step(self, event: dict[str, Any]) -> None:
        worker = self.workers.of(event)
        if worker is None:
            return
        if worker.rank == 0 and worker.starts_loop(event):
            self._count_epoch()
        worker.update(event)
        if worker.rank == 0:
            self._on_step_of_leader(worker, event)

    def _on_step_of_leader(self, worker: WorkerState, event: dict[str, Any]) -> None:
        if not self.first_step_at:
            self.first_step_at = event["at"]
            self._begun_at = worker.epochs_done
        if self._failed_at is not None and self.restarts > self._restarts_before:
            self._restarting += max(event["at"] - self._failed_at, 0.0)
            self._failed_at = None
        self._enter("training", event["at"])
        self.spans.close("validation", event["at"], key="loop")
        self.spans.step(worker.epoch, event["at"], event["seconds"], done=bool(event.get("done")))
        self.epochs = event.get("epochs") or self.epochs
        self._live = self._live or worker.step > 0
        self._curve.add(
            worker.epoch,
            worker.step,
            length=worker.total,
            metrics=event.get("metrics", {}),
            restarts=self.restarts,
        )
        if event.get("done"):
            self._count_epoch()

    def on_report(self, event: dict[str, Any]) -> None:
        metrics = dict(event.get("metrics", {}))
        epoch = event.get("epoch", metrics.get("epoch"))
        if not isinstance(epoch, (int, float)) or not 0 <= epoch < 1e9 or epoch != int(epoch):
            epoch = len(self.history)
        self.history.append({**metrics, "epoch": int(epoch)})
        self.spans.close("validation", event["at"], key="loop")
        self.spans.close("training", event["at"], key=str(int(epoch)))  # one that was left by `break`
        self._live = False
        if self.leader is not None and self.leader.epoch <= epoch:
            self._count_epoch()  # a loop that was left by `break` did not say that it is done

    def on_checkpoint(self, event: dict[str, Any]) -> None:
        checkpoint = self.checkpoints.update(event, self._label())
        decided = checkpoint.status if checkpoint.status in DECIDED else ""
        if decided:  # one that was cancelled did not say that it is over
            self.spans.close("validation", event["at"], key=checkpoint.path)
        number = checkpoint.label.removeprefix("epoch ")
        self.spans.name("validation", checkpoint.path, number, decided)
        if self.checkpoints.pending and self.phase == "training" and self.fraction() == 1.0:
            self._enter("validating", event["at"])  # all is trained, and the run waits for its validations

    def on_validation(self, event: dict[str, Any]) -> None:
        checkpoint = self.checkpoints.validation(event, self._label())
        path, number = checkpoint.path, checkpoint.label.removeprefix("epoch ")
        if not event.get("done"):
            self.spans.close("validation", event["at"], key=path)
            self.spans.open("validation", number, event["at"], key=path)
        else:
            failed = {"status": "failed"} if checkpoint.reason else {}
            self.spans.close("validation", event["at"], key=path, **failed)

    def on_upload(self, event: dict[str, Any]) -> None:
        key = f"{event['rank']}-{event['pid']}"
        if event.get("done"):
            self.spans.close("upload", event["at"], key=key)
        else:
            self.spans.open("upload", "", event["at"], key=key)

    def on_print(self, event: dict[str, Any]) -> None:
        who = f"[rank {event['rank']}] " if self.world_size > 1 else ""
        self.print(f"{who}{event['text']}")

    def on_failure(self, event: dict[str, Any]) -> None:
        self.fail(event["text"], event["rank"])
        if self._failed_at is None:
            self._failed_at, self._restarts_before = event["at"], self.restarts

    # -- inside -------------------------------------------------------------------------------------

    def _enter(self, name: str, now: float) -> None:
        if self.phase:
            self._phases[self.phase] += max(now - self._phase_began, 0.0)
        self.phase, self._phase_began = name, now
        self._phases.setdefault(name, 0.0)

    def _label(self) -> str:
        """Of a checkpoint that does not say which epoch it is of."""
        return f"epoch {self.history[-1]['epoch'] + 1}" if self.history else "before epoch 1"

    def _count_epoch(self) -> None:
        """Note how long rank 0's current epoch took, if it took any steps."""
        worker = self.workers.get(0)
        if worker is not None and worker.step:
            self._epoch_seconds[worker.epoch] = worker.epoch_seconds


def _count(value: Any) -> int | None:
    """A whole number from 1 on, whatever library it is of; None for anything else."""
    try:
        return max(operator.index(value), 0) or None
    except TypeError:
        return None
