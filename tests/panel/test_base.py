"""What every engine's panel gets from the machine that all panels share."""

import contextlib
import copy
import pickle
import threading

import pytest

from labkit.display import cards
from labkit.errors import RunError, RunFailed, RunStopped
from labkit.panel.base import LivePanel
from labkit.panel.reporters import NullReporter, TextReporter
from labkit.panel.state.base import State
from labkit.panel.view.base import View
from labkit.runs import record as records
from labkit.settings import Settings
from runs_told import until


class Count(State):
    """An engine that counts."""

    engine = "counting"

    def __init__(self, name):
        super().__init__(name)
        self.counted = 0

    def to_record(self):
        return {"metrics": {"counted": self.counted}, "workers": 3}


class CountView(View):
    def body(self, state, now):
        return cards.text(f"counted <{state.counted}>")

    def result(self, state):
        return f"{state.counted} counted"

    def news(self, state):
        for number in range(state.counted):
            yield ("count", number), f"counted {number + 1}"


class CountPanel(LivePanel):
    view = CountView()
    exclusive = True

    def __init__(self, name="count", **options):
        super().__init__(name, **options)
        self.around = []

    def new_state(self):
        return Count(self._name)

    @contextlib.contextmanager
    def surroundings(self):
        self.around.append(("in", self.state.status))
        try:
            yield
        finally:
            self.around.append(("out", self.state.status))

    def count(self):
        with self.update() as state:
            state.counted += 1


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path, panel="none")


@pytest.fixture
def panel(settings):
    return CountPanel(settings=settings)


def summary(panel):
    return panel._snapshot().summary


def test_a_run_and_its_record(panel, settings):
    with panel as same:
        assert same is panel and CountPanel.current() is panel
        (record,) = records.find(settings.home)
        assert (record.state, record.engine, record.metrics) == ("running", "counting", {"counted": 0})
        panel.count()
    assert panel.around == [("in", "running"), ("out", "running")] and CountPanel.current() is None
    (record,) = records.find(settings.home)
    assert (record.name, record.state, record.metrics, record.workers) == (
        "count", "finished", {"counted": 1}, 3,
    )  # fmt: skip
    shown = summary(panel)
    assert (
        "1 counted" in shown and "counted &lt;1&gt;" in shown and f"{panel.run_id}/run_record.json" in shown
    )


def test_lines_are_said_once_and_in_order(settings, capsys):
    panel = CountPanel(settings=settings, reporter=TextReporter())
    with panel:
        panel.count()
        panel.count()
        with panel.update() as state:
            state.print("by hand")
    said = [line.split(" ", 2)[2] for line in capsys.readouterr().out.splitlines()]
    assert sorted(said[:-1]) == ["by hand", "counted 1", "counted 2", "counting"]
    assert said.index("counted 1") < said.index("counted 2") and said[-1].startswith("finished after")


def test_what_was_changed_is_drawn(settings):
    class Drawn(NullReporter):
        counted = None

        def draw(self, snapshot):
            self.counted = snapshot.body

    reporter = Drawn()
    panel = CountPanel(settings=settings, reporter=reporter)
    with panel:
        panel.count()
        until(lambda: "counted &lt;1&gt;" in str(reporter.counted))


def test_a_second_panel_of_an_exclusive_kind_is_refused(panel, settings):
    class Other(LivePanel):
        """A kind of its own."""

    with panel:
        with pytest.raises(RunError, match="'count' is open"), CountPanel("second", settings=settings):
            pass
        with Other("other", settings=settings) as other:
            assert CountPanel.current() is panel and LivePanel.current() is other
    with CountPanel("second", settings=settings):
        pass


def test_surroundings_that_fail_leave_nothing_open(settings):
    class Broken(CountPanel):
        def surroundings(self):
            raise OSError("no such hook")

    panel = Broken(settings=settings)
    with pytest.raises(OSError, match="no such hook"), panel:
        pytest.fail("the block must not begin")
    assert panel.state.status == "failed" and CountPanel.current() is None
    assert "no such hook" in panel.state.failures[0].message


@pytest.mark.parametrize("hook", ["surroundings", "ended_by", "keep_failure"])
def test_a_hook_that_fails_at_the_end_leaves_nothing_open(settings, hook):
    @contextlib.contextmanager
    def surroundings():
        yield
        raise OSError("no way out")

    def fails(error):
        raise OSError("no way out")

    panel = CountPanel(settings=settings)
    setattr(panel, hook, surroundings if hook == "surroundings" else fails)
    with pytest.raises(OSError, match="no way out"), panel:
        if hook == "keep_failure":
            raise ValueError
    assert panel.state.status == "failed" and CountPanel.current() is None
    assert "labkit-panel" not in [thread.name for thread in threading.enumerate()]


def test_what_an_engine_hides_is_told(settings):
    class Hidden(CountPanel):
        hidden = None

        def ended_by(self, error):
            return error or self.hidden

    panel = Hidden(settings=settings)
    panel.hidden = KeyboardInterrupt()
    with pytest.raises(RunStopped, match="stopped by you"), panel:
        pass
    assert panel.state.status == "stopped"
    panel.hidden = RunFailed("count", "it lost count", "count again")
    with pytest.raises(RunFailed, match="it lost count"), panel:
        pass
    assert panel.state.status == "failed"


def test_an_error_of_the_engine_is_translated(settings):
    class Translating(CountPanel):
        def failure_text(self, error):
            return f"short: {error}"

        def translate(self, error):
            return RunFailed("count", str(error), "count again") if isinstance(error, LookupError) else None

    panel = Translating(settings=settings)
    with pytest.raises(RunFailed, match="no such number") as caught, panel:
        raise LookupError("no such number")
    assert isinstance(caught.value.__cause__, LookupError)
    assert panel.state.failures[0].text == "short: no such number"
    with pytest.raises(ValueError, match="mine"), panel:
        raise ValueError("mine")
    assert "short: mine" in summary(panel)


def test_a_panel_may_be_copied_and_sent(panel):
    """A function that mentions it goes to another process, a configuration that holds it is copied."""
    with panel:
        assert copy.copy(panel) is panel and copy.deepcopy([panel])[0] is panel
        there = pickle.loads(pickle.dumps(panel))
    assert there == "CountPanel('count', running)"


def test_a_longer_traceback_of_a_worker_stays(panel):
    with pytest.raises(LookupError), panel:
        with panel.update() as state:
            state.fail("loop, line 3\n    x[7]\nLookupError: 7", rank=2)
        raise LookupError
    (failure,) = panel.state.failures
    assert failure.rank == 2 and failure.message == "LookupError: 7"
