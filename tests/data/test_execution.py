"""The state of an execution of Ray Data, and how it is drawn."""

import time

import pytest

from labkit.data.panel import DataPanel, ExecutionRun, OperatorState
from labkit.panel.drawing import snapshot
from labkit.settings import Settings


@pytest.fixture
def state():
    state = ExecutionRun("02-<demo>")
    state.executions.append([OperatorState("ReadImage", rows=1), OperatorState("Map(f)", rows=1)])
    read = OperatorState("ReadImage", rows=1200, blocks=6, bytes=900_000, finished=6, running=1, seconds=2.0)
    read.cpu_seconds, read.memory_peak, read.backpressure_seconds = 0.5, 700_000, 1.25
    state.executions.append([read, OperatorState("MapBatches(<lambda>)", rows=1000, bytes=100_000)])
    return state


def test_rows_are_those_of_the_last_operator_of_the_last_execution(state):
    assert (state.rows, len(state.operators), state.bytes) == (1000, 4, 1_000_000)
    assert state.to_record()["extra"]["operators"][2]["name"] == "ReadImage"
    assert ExecutionRun("nothing").rows == 0


def test_peaks_and_ever_rarer_samples(state):
    assert state.memory_peak == 0
    for number in range(10_000):
        state.operators[0].memory = number
        state.sample()
    assert len(state.samples) <= 2000
    assert state.samples[0][1] == 0 and state.memory_peak == 9999


def test_the_panel_shows_what_runs_and_afterwards_what_was(state):
    state.start()
    live = snapshot(state, time.time())
    for figure in ("1,200", "6 + 1", "2.00", "0.50", "1.2 s", "600", "0.7", "waiting"):
        assert f">{figure}<" in live.body
    assert "&lt;lambda&gt;" in live.body and "<lambda>" not in live.body
    assert live.lines == ()
    state.fail("cell 3, line 2\nValueError: <no>")
    state.end("failed")
    over = snapshot(state, time.time())
    for text in ("02-&lt;demo&gt;", "ValueError: &lt;no&gt;", "task seconds"):
        assert text in over.summary
    line = over.lines[-1][1]
    assert line.startswith("failed after ") and "1,000 rows" in line and "MapBatches(<lambda>) 1.0 k" in line
    assert "cell 3, line 2\nValueError: <no>" in dict(over.lines).values()


def test_figures_have_a_bar_for_each_operator(state, tmp_path):
    panel = DataPanel("figures", settings=Settings(home=tmp_path))
    assert len(panel.plot().axes) == 3 and panel.plot_memory().axes  # of nothing, too
    panel.state = state
    assert [len(axes.patches) for axes in panel.plot().axes] == [4, 4, 4]
    state.operators[0].memory = 500_000
    state.sample()
    (axes,) = panel.plot_memory().axes
    assert list(axes.lines[0].get_ydata()) == [0.5]
