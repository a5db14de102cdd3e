"""For tests of panels: runs told event by event, as workers would tell them."""

from labkit.panel import training_view
from labkit.panel.drawing import Snapshot, snapshot
from labkit.panel.shown import Shown
from labkit.panel.training import TrainingRun
from labkit.worker.events import KINDS, Event

T0 = 1_000_000.0  # Unix seconds at which the runs of these tests begin
LEFT_OUT = {  # by kind: what an event has where a test doesn't care
    "step": {
        "epoch": 0, "step": 1, "made": 1, "total": None, "rows": 0, "seconds": 0.0, "waiting": 0.0,
        "first_wait": 0.0, "between": 0.0, "ago": 0.0, "metrics": {}, "done": False, "parts": {},
    },
    "end": {"parts": {}},
    "checkpoint": {"status": "committed", "metrics": {}},
}  # fmt: skip


def event(kind: str, **data) -> Event:
    return KINDS[kind](**LEFT_OUT.get(kind, {}) | data)


class Run:
    """A state that takes in events; `at` is in seconds since the start of the run."""

    def __init__(self, name="run", *, phase="preparing", **options):
        self.state = TrainingRun(name, **options)
        self.state.start(phase, T0)

    def __call__(self, kind, at=1.0, **data):
        self.state.apply(event(kind, at=T0 + at, **{"pid": 100, "node": "head", **data}))
        return self

    def shown(self, at) -> Shown:
        return training_view.shown(self.state, T0 + at)

    def drawn(self, at, files=()) -> Snapshot:
        return snapshot(self.state, self.shown(at), T0 + at, files)

    def step(self, at, *, epoch=0, step=0, seconds=0.0, waiting=0.0, **data):
        """As hooks tell it: it counts the epochs of its process. `epochs` is how many the run has."""
        self.state.epochs = data.pop("epochs", self.state.epochs)
        counts = {"epoch": epoch, "step": step, "rows": step * 10, "seconds": seconds, "waiting": waiting}
        return self("step", at, **{**counts, "made": epoch * 10 + step, **data})

    def epoch(self, epoch, begin, *, steps=10, seconds=5.0, **data):
        """One epoch of `steps` steps, told in full."""
        for k in range(steps + 1):
            done = seconds * k / steps
            self.step(begin + done, epoch=epoch, step=k, seconds=done, done=k == steps, **data)
        return self

    def saved(self, epoch, at, status="committed", **late):
        """A checkpoint of `epoch` has `status`."""
        metrics = {"epoch": epoch, "loss": 1.0 - epoch / 10, **late}
        return self("checkpoint", at, path=f"/c/{epoch}", bytes=1000, status=status, metrics=metrics)

    def decided(self, epoch, at, status="validated", **late):
        return self.saved(epoch, at, status, **late)

    def validation(self, epoch, begin, end=None, text=""):
        self("validation", begin, path=f"/c/{epoch}")
        if end is not None:
            self("validation", end, path=f"/c/{epoch}", seconds=end - begin, text=text)
        return self

    def row(self, name, now=100):
        """(label, begin, end, status) of the bars in one row of the time axis."""
        spans = [span for span in self.state.timeline(T0 + now) if span.row == name]
        return [(span.label, span.begin - T0, span.end - T0, span.status) for span in spans]
