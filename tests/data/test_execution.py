"""The state of an execution of Ray Data, and how it is drawn."""

import math
import time

import pytest

from labkit.data import view as drawing
from labkit.data.state import ExecutionState, OperatorState


@pytest.fixture
def state():
    state = ExecutionState("02-<demo>")
    state.executions.append([OperatorState("ReadImage", rows=1), OperatorState("Map(f)", rows=1)])
    read = OperatorState("ReadImage", rows=1200, blocks=6, bytes=900_000, finished=6, seconds=2.0)
    read.cpu_seconds, read.memory_peak, read.backpressure_seconds = 0.5, 700_000, 1.25
    read.running = 1
    state.executions.append([read, OperatorState("MapBatches(<lambda>)", rows=1000, bytes=100_000)])
    return state


def test_rows_are_those_of_the_last_operator_of_the_last_execution(state):
    assert state.rows == 1000
    assert len(state.operators) == 4
    assert state.bytes == 1_000_000
    assert ExecutionState("nothing").rows == 0


def test_rate_of_an_operator_is_that_of_its_tasks(state):
    assert state.operators[2].rows_per_second == 600
    assert math.isnan(state.operators[3].rows_per_second)


def test_peaks_and_ever_rarer_samples(state):
    assert (state.memory_peak, state.process_peak) == (0, 0)
    for number in range(10_000):
        state.operators[0].memory = number
        state.sample(2 * number)
    assert len(state.samples) <= 2000
    assert state.samples[0][1] == 0 and state.memory_peak == 9999 and state.process_peak == 19998


def test_seconds_stand_still_when_it_is_over(state):
    state.start()
    state.end("failed")
    assert state.seconds == state.seconds and state.status == "failed"


def test_the_panel_shows_what_runs_and_afterwards_what_was(state):
    view = drawing.ExecutionView()
    state.start()
    live = view.body(state, time.time())
    for figure in ("1,200", "6 + 1", "2.00", "0.50", "1.2 s", "600", "0.7", "waiting"):
        assert f">{figure}<" in live
    assert "&lt;lambda&gt;" in live and "<lambda>" not in live
    state.fail("cell 3, line 2\nValueError: <no>")
    state.end("failed")
    over = view.summary(state, [])
    assert "02-&lt;demo&gt;" in over and "ValueError: &lt;no&gt;" in over and "task seconds" in over
    empty = _ended(ExecutionState("empty"))
    assert "nothing was executed" in view.summary(empty, [])


def test_a_log_has_one_line(state):
    view = drawing.ExecutionView()
    state.start()
    assert list(view.lines(state)) == []
    state.end("finished")
    ((_, line),) = view.lines(state)
    assert (
        line.startswith("finished after ") and "1,000 rows" in line and "MapBatches(<lambda>) 1.0 k" in line
    )


def test_the_record_has_the_operators(state):
    record = state.to_record()
    assert record["rows"] == 1000
    assert [operator["name"] for operator in record["extra"]["operators"]][2] == "ReadImage"


def test_figures_have_a_bar_for_each_operator(state):
    figure = drawing.plot(state)
    assert [len(axes.patches) for axes in figure.axes] == [4, 4, 4]
    state.operators[0].memory = 500_000
    state.sample(0)
    (axes,) = drawing.plot_memory(state).axes
    assert list(axes.lines[0].get_ydata()) == [0.5]


def _ended(state):
    state.end("finished")
    return state
