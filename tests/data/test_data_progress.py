"""The panel of Ray Data on a real cluster: what it counts, how it fails, and that Ray Data is quiet."""

import os
import subprocess
import sys

import pytest
import ray.data

from labkit import runs
from labkit.cluster import connection
from labkit.data import DataPanel
from labkit.errors import RunFailed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("lab")]
LAB = {}  # one node


@pytest.fixture(autouse=True)
def text(monkeypatch):
    monkeypatch.setenv("LABKIT_PANEL", "text")


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


def test_each_operator_of_each_execution_in_the_block_is_counted(capfd):
    data = ray.data.range(100, override_num_blocks=4).map_batches(double)
    with DataPanel("count") as panel:
        data.materialize()
        assert sum(len(batch["id"]) for batch in data.iter_batches()) == 100
    data.materialize()
    *_, first, last = panel.state.operators
    assert first.name == last.name and "double" in last.name
    assert (panel.state.rows, last.rows, last.blocks, last.tasks) == (100, 100, 4, 4)
    assert last.bytes == 800 and last.seconds > 0 and last.cpu_seconds > 0
    assert panel.state.death is None
    output = capfd.readouterr()
    assert "count: finished after " in output.out and output.out.count("\n") == 1
    assert "streaming_executor" not in output.err
    record = runs.latest("count")
    assert (record.engine, record.state, record.rows) == ("Ray Data", "finished", 100)
    assert record.rows_per_second == pytest.approx(200 / record.seconds_total, rel=0.1)  # of both
    assert "double" in record.extra["operators"][-1]["name"]
    assert "RAY_DATA_EXECUTION_CALLBACKS" not in os.environ


def test_ray_data_says_nothing_also_where_it_was_imported_before_the_start(capfd):
    from ray.util.debug import reset_log_once

    ray.data.DataContext.get_current().enable_progress_bars = True  # as after its import
    connection.set_environment(None, authenticate=None)
    assert not ray.data.DataContext.get_current().enable_progress_bars
    reset_log_once("ray_data_progress_manager_disabled")
    assert ray.data.range(10).materialize().count() == 10
    output = capfd.readouterr()
    assert output.out + output.err == ""


@pytest.mark.parametrize(
    "function, line, message",
    [
        (fails, "fails, ", "ValueError: row 7 is bad"),
        (fails_with_cause, "with_cause, ", "KeyError: 'found it'"),
    ],
)
def test_a_failure_shows_the_readers_line_and_error(capfd, function, line, message):
    panel = DataPanel("bug")
    with pytest.raises(RunFailed, match="could not finish 'bug'") as caught, panel:
        ray.data.range(10, override_num_blocks=1).map(function).materialize()
    assert caught.value.fact == message
    assert panel.state.status == "failed"
    shown = capfd.readouterr()
    assert line in shown.out and message in shown.out
    assert "UserCodeException" not in shown.out and "streaming_executor" not in shown.err
    assert "fix the line in the panel above" in caught.value.fix


def test_bad_files_are_the_fact_and_rays_advice_is_not(tmp_path, capfd):
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(RunFailed) as caught, DataPanel("images"):
        ray.data.read_images(str(tmp_path)).materialize()
    assert caught.value.fact.startswith("ValueError: PIL couldn't load image file")
    assert "retry" not in caught.value.fact + caught.value.fix
    (tmp_path / "broken.png").rename(tmp_path / "notes.doc")
    with pytest.raises(RunFailed, match="No input files found"), DataPanel("images"):
        ray.data.read_images(str(tmp_path))  # before any worker starts
    assert "test_data_progress.py, line" in capfd.readouterr().out


def test_ray_data_is_quiet_without_a_panel_and_before_it_is_imported():
    code = (
        "import logging, sys; from labkit.cluster import ray_data; ray_data.set_log_level(logging.WARNING);"
        "assert 'ray' not in sys.modules; import ray.data;"
        "logger = logging.getLogger('ray.data._internal.execution.streaming_executor');"
        "logger.info('an INFO line'); logger.warning('a WARNING line');"
        "assert ray_data.set_log_level(logging.CRITICAL) == logging.WARNING; logger.error('an ERROR line');"
        "logger.error('an ERROR line, as Ray logs it', extra={'hide': True})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    output = done.stdout + done.stderr
    assert "a WARNING line" in output and "INFO line" not in output and "ERROR line" not in output
