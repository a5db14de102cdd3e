"""The state of an execution of Ray Data, and how it is drawn."""

import time

import pytest

from labkit.data import DataPanel, ExecutionRun, OperatorState
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


def test_rows_peaks_and_ever_rarer_samples(state, tmp_path):
    assert (state.rows, len(state.operators), state.bytes) == (1000, 4, 1_000_000)
    for number in range(10_000):
        state.operators[0].memory = number
        state.sample()
    assert len(state.samples) <= 2000
    assert state.samples[0][1] == 0 and state.memory_peak == 9999
    panel = DataPanel("figure", settings=Settings(home=tmp_path))
    assert panel.plot_memory().axes  # of nothing, too
    panel.state = state
    (axes,) = panel.plot_memory().axes
    assert len(axes.lines[0].get_ydata()) == len(state.samples)


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
