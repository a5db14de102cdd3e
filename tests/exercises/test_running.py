"""A learner's loop and function, run by a check: results, verdicts, and the limit of seconds."""

import contextlib
import signal
import tempfile
import time
from pathlib import Path

import pytest
import ray.train
from ray.train import report

from labkit.exercises.answers import NotAttempted, Wrong
from labkit.exercises.running import limited, run_loop


def test_a_loop_in_this_process():
    def loop(config):
        for epoch in range(config["epochs"]):
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "epoch").write_text(str(epoch))
                report({"epoch": epoch}, checkpoint=ray.train.Checkpoint.from_directory(folder))
        return "done"

    result, reports = run_loop(loop, {"epochs": 2})
    assert result.return_value == "done" and result.metrics == {"epoch": 1}
    assert [metrics for metrics, _ in reports] == [{"epoch": 0}, {"epoch": 1}]
    for path, epoch in ((result.checkpoint.path, "1"), (reports[0][1].path, "0")):
        assert Path(path, "epoch").read_text() == epoch
    assert run_loop(lambda config: None)[1] == []
    assert report is ray.train.report


def test_what_a_loop_raises_is_a_verdict():
    def fails(config):
        raise ValueError("bad\nnews")

    def blank(config):
        optimizer = ...
        optimizer.step()

    before = ray.train.report
    with pytest.raises(Wrong, match="^my_loop raised ValueError: bad news$"):
        run_loop(fails, name="my_loop")
    with pytest.raises(NotAttempted):
        run_loop(blank)
    with pytest.raises(Wrong, match="a function is expected"):
        run_loop(3)
    assert ray.train.report is before


def test_code_that_does_not_end_is_stopped():
    def deaf(config):
        while True:
            with contextlib.suppress(Exception):
                time.sleep(60)

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)]
    with (
        pytest.raises(Wrong, match=r"after 0.3 s.*Likely: no end"),
        limited(0.3, "no end"),
    ):
        run_loop(deaf)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)] == handlers


def test_a_limit_changes_nothing_else():
    with limited(60):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 59
    with pytest.raises(KeyError), limited(60):
        raise KeyError
    with pytest.raises(KeyboardInterrupt), limited(60):  # the reader's own
        signal.raise_signal(signal.SIGINT)
