"""How a training loop counts its epochs: from 0, from 1, or in fractions of an epoch."""

from dataclasses import dataclass


@dataclass
class Report:
    """The place of the loop when it reported."""

    number: int  # of the report, from 0
    epoch: float | None  # as reported
    passes: int | None  # over its loaders, of the whole run; None where that is unknown
    step: int = 0  # since the latest of them was over

    @property
    def position(self) -> int:
        """The pass that it belongs to, from 0."""
        assert self.passes is not None
        latest = self.passes if self.step else self.passes - 1
        return max(latest, 0)

    @property
    def is_untrained(self) -> bool:
        """Whether the loop had made no step, as far as that is known."""
        return not self.passes and not self.step


def counted_from(reports: list[tuple[int, float]]) -> int:
    """Return the number, 0 or 1, of the first epoch of a loop, from its first one or two reports.

    Each is (passes or reports up to there, epoch as reported). The epochs grow in proportion to the passes;
    where the loop counts from 1, the line through both reports begins at 0.
    """
    passes, epoch = reports[0]
    for later_passes, later_epoch in reports[1:]:
        if later_epoch > epoch and later_passes > passes:
            return int(later_epoch * (later_passes - passes) == later_passes * (later_epoch - epoch))
    return int(epoch == passes)


def whole_as_int(number: float) -> float:
    """Return an int where the number is whole: records and texts have ``3`` and not ``3.0``."""
    return int(number) if number == int(number) else number


def epochs_in_words(epochs: float) -> str:
    """Write a number of epochs: ``3`` or ``2.5``."""
    return str(whole_as_int(round(epochs, 2)))
