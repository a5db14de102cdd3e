"""The panel of Ray Data on a real cluster: what it counts, how it fails, and that Ray Data is quiet."""

import os
import sys

import pytest

import labs
from labkit.cluster import lifecycle as cluster
from labkit.data.panel import DataPanel
from labkit.errors import RunError, RunFailed


@pytest.fixture(scope="module", autouse=True)
def lab():
    with labs.home(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_PANEL", "text")
        started = cluster.start()
        from ray import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests
        yield started


def double(batch):
    return {"id": 2 * batch["id"]}


def fails(row):
    if row["id"] == 7:
        raise ValueError("row 7 is bad")
    return row


def fails_with_cause(row):
    try:
        return fails(row)
    except ValueError as error:
        raise KeyError("found it") from error


def test_counts_rows_blocks_and_tasks_of_each_operator(capfd):
    import ray.data

    with DataPanel("count") as panel:
        ray.data.range(100, override_num_blocks=4).map_batches(double).materialize()
    last = panel.state.operators[-1]
    assert "double" in last.name
    assert (panel.rows, last.rows, last.blocks, last.finished, last.over) == (100, 100, 4, 4, True)
    assert last.bytes == 800 and last.seconds > 0 and last.cpu_seconds > 0
    assert panel.state.process_peak > 50e6
    assert len(panel.table().rows) == len(panel.state.operators)
    said = capfd.readouterr()
    assert said.out.startswith("count: finished after ") and said.out.count("\n") == 1
    assert "streaming_executor" not in said.err


def test_ray_data_says_nothing_also_where_it_was_imported_before_the_start(capfd):
    import ray.data
    from ray.util.debug import reset_log_once

    ray.data.DataContext.get_current().enable_progress_bars = True  # as it is after its import
    cluster._prepare_environment(None)
    assert not ray.data.DataContext.get_current().enable_progress_bars
    reset_log_once("ray_data_progress_manager_disabled")
    assert ray.data.range(10).materialize().count() == 10
    said = capfd.readouterr()
    assert said.out + said.err == ""


def test_each_execution_of_the_block_is_counted_and_none_outside():
    import ray.data

    data = ray.data.range(10, override_num_blocks=1).map_batches(double)
    with DataPanel("two") as panel:
        data.materialize()
        assert sum(len(batch["id"]) for batch in data.iter_batches()) == 10
    data.materialize()
    assert len(panel.state.executions) == 2
    assert "RAY_DATA_EXECUTION_CALLBACKS" not in os.environ


@pytest.mark.parametrize(
    "function, line, message",
    [
        (fails, "fails, ", "ValueError: row 7 is bad"),
        (fails_with_cause, "with_cause, ", "KeyError: 'found it'"),
    ],
)
def test_a_failure_shows_the_readers_line_and_error(capfd, function, line, message):
    import ray.data

    panel = DataPanel("bug")
    with pytest.raises(RunFailed, match="could not finish 'bug'") as caught, panel:
        ray.data.range(10, override_num_blocks=1).map(function).materialize()
    assert caught.value.fact == message
    assert panel.state.status == "failed"
    shown = capfd.readouterr()
    assert line in shown.out and message in shown.out
    assert "UserCodeException" not in shown.out and "streaming_executor" not in shown.err


def test_an_error_of_the_block_itself_passes_through():
    panel = DataPanel("own")
    with pytest.raises(ZeroDivisionError), panel:
        1 / 0  # noqa: B018
    assert panel.state.status == "failed"


def test_one_at_a_time_and_again():
    panel = DataPanel("again")
    with panel, pytest.raises(RunError, match="'again' is open"), DataPanel("second"):
        pass
    with panel:
        pass
    assert panel.state.status == "finished" and panel.rows == 0
