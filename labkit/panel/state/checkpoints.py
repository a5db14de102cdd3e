"""The checkpoints of a run: saved, then perhaps validated, with metrics that arrive later."""

from dataclasses import dataclass, field
from typing import Any

DECIDED = ("validated", "failed", "timed out")  # a validation ends in one of these


@dataclass
class CheckpointState:
    """One checkpoint.

    Attributes:
        label: "epoch 3".
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
    label: str
    bytes: int | None = None
    status: str = "committed"
    metrics: dict[str, Any] = field(default_factory=dict)
    late: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    committed_at: float | None = None
    begun_at: float | None = None
    decided_at: float | None = None
    seconds: float | None = None
    deleted: bool = False

    @property
    def epoch(self) -> int | None:
        """The number of its epoch, counted from 1, if it is known."""
        number = self.label.removeprefix("epoch ")
        return int(number) if number.isdecimal() else None

    @property
    def validating(self) -> bool:
        """Whether a validation of it is running; a pending one may still wait for its turn."""
        return self.status in ("committed", "pending") and self.begun_at is not None and self.seconds is None

    @property
    def waited(self) -> float | None:
        """Seconds from its commit to the begin of its validation."""
        if self.begun_at is None or self.committed_at is None:
            return None
        return max(self.begun_at - self.committed_at, 0.0)

    def decide(self, event: dict[str, Any]) -> None:
        """Take over the status and the metrics of `event`."""
        if event.get("status") == "deleted":
            self.deleted = True
            return
        metrics = event.get("metrics", {})
        if event.get("status") == "validated" and self.status != "validated":
            self.late = {n: v for n, v in metrics.items() if n not in self.metrics or self.metrics[n] != v}
        self.status = event.get("status", self.status)
        self.bytes = event.get("bytes", self.bytes)
        self.metrics.update(metrics)
        if self.status in DECIDED and self.decided_at is None:
            self.decided_at = event["at"]


class Checkpoints(list[CheckpointState]):
    """The checkpoints in the order in which they were seen."""

    @property
    def kept(self) -> int:
        """How many of them still exist."""
        return sum(not checkpoint.deleted for checkpoint in self)

    @property
    def pending(self) -> int:
        """How many have a validation that is not decided yet."""
        return sum(checkpoint.status == "pending" for checkpoint in self)

    def update(self, event: dict[str, Any], label: str) -> CheckpointState:
        """Take in a ``checkpoint`` event.

        Args:
            label: for one that is new and whose metrics do not tell an epoch.
        """
        known = self._find(event, label)
        known.label = event.get("label") or _epoch_of(event) or known.label
        # What two processes say of one checkpoint may come in another order than it happened.
        if not (known.status in DECIDED and event.get("status") in ("committed", "pending")):
            known.decide(event)
        return known

    def validation(self, event: dict[str, Any], label: str) -> CheckpointState:
        """Take in a ``validation`` event: one has begun, or is over."""
        known = self._find(event, label)
        if event.get("done"):
            known.seconds = event.get("seconds", 0.0)
            known.begun_at = event["at"] - known.seconds
            known.reason = " ".join(event.get("text", "").split())
        else:
            known.begun_at, known.seconds = event["at"], None
        return known

    def _find(self, event: dict[str, Any], label: str) -> CheckpointState:
        for known in self:
            if known.path == event["path"]:
                return known
        known = CheckpointState(path=event["path"], label=label, committed_at=event["at"])
        self.append(known)
        return known


def _epoch_of(event: dict[str, Any]) -> str:
    """What the metrics say: the checkpoints of an earlier run of that name are of epochs of their own."""
    epoch = event.get("metrics", {}).get("epoch")
    if isinstance(epoch, (int, float)) and 0 <= epoch < 1e9 and epoch == int(epoch):
        return f"epoch {int(epoch) + 1}"
    return ""
