"""What the rows of trackers share: a run of two epochs with `live=`, and what the tracker has of it."""

from collections.abc import Callable

from benchmarks._works_with.measure import close
from labkit.panel import Panel
from labkit.panel.reporters import NullReporter

LOSSES = [0.5, 0.25]


def measured(name: str, send: Callable, read: Callable) -> dict[str, bool]:
    """Report two epochs; `read` returns the (epoch, loss) pairs that the tracker has."""
    with Panel(name, live=[send], config={"lr": 0.1}, reporter=NullReporter()) as panel:
        for epoch, loss in enumerate(LOSSES):
            panel.report({"loss": loss, "epoch": epoch})
    pairs = list(read())
    return {
        "epochs": [epoch for epoch, _ in pairs] == [0, 1],
        "loss": close([loss for _, loss in pairs], LOSSES),
    }
