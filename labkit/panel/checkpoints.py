"""The checkpoints of a run: saved, then perhaps validated, with metrics that arrive later."""

from dataclasses import dataclass, field
from typing import Any

from labkit.panel.run import Span, whole

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
