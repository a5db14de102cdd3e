"""The state of one checkpoint of a training run, and of its validation."""

from dataclasses import dataclass, field
from typing import Any

from labkit.panel.epochs import epochs_in_words, whole_as_int
from labkit.panel.run import Span
from labkit.worker import events
from labkit.worker.events import number_of

DECIDED = ("validated", "failed", "timed out")  # a validation ends in one of these


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
    validator: int | None = None  # the pid of that process
    deleted: bool = False  # `num_to_keep` checkpoints ranked above it

    @property
    def label(self) -> str:
        """``epoch 3``, or ``step 300`` of a loop that reports steps instead."""
        if "step" in self.metrics and "epoch" not in self.metrics:
            return f"step {self.metrics['step']}"
        if not self.epoch:
            return "before epoch 1"
        return f"epoch {epochs_in_words(self.epoch)}"

    @property
    def validating(self) -> bool:
        """Whether its validation is running; a pending validation may still wait for its turn."""
        return self.status not in DECIDED and self.begun_at is not None and self.seconds is None

    def span(self, now: float) -> Span | None:
        """Return the time of its validation as a bar; None if no validation has begun."""
        if self.begun_at is None:
            return None
        status = "failed" if self.reason else ""
        if self.status in DECIDED:
            status = self.status
        end = self.decided_at or now
        if self.seconds is not None:
            end = self.begun_at + self.seconds
        end = max(end, self.begun_at)
        return Span("validation", epochs_in_words(self.epoch), self.begun_at, end, status)

    def count_from(self, first: int) -> None:
        """Set its epoch from its metrics, in which the first epoch has the number `first`."""
        reported = number_of(self.metrics.get("epoch"))
        if reported is not None:
            self.epoch = whole_as_int(max(reported + 1 - first, 0))

    def update(self, event: events.Checkpoint, *, first_epoch: int) -> None:
        """Apply its new status; `first_epoch` is the number of the first epoch in the metrics."""
        metrics = event.metrics
        # The checkpoints of an earlier run of that name are of epochs of their own.
        if "epoch" in metrics:
            self.metrics["epoch"] = metrics["epoch"]
            self.count_from(first_epoch)
        if event.status == "deleted":
            self.deleted = True
            return
        # Two processes report about a checkpoint, and what came first may arrive last.
        if self.status in DECIDED and event.status not in DECIDED:
            return
        if event.status == "validated" and self.status != "validated":
            # `self` stands for a metric that is missing: no value equals it.
            self.late = {
                name: value for name, value in metrics.items() if self.metrics.get(name, self) != value
            }
        self.status = event.status
        self.bytes = event.bytes or self.bytes
        self.metrics.update(metrics)
        if self.status in DECIDED and self.decided_at is None:
            self.decided_at = event.at
