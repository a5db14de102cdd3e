"""A learner's loop and function, run by a check: results, verdicts, and the limit of seconds."""

import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest
import ray.train
from ray.train import report

from labkit.exercises import running
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
    with pytest.raises(Wrong, match="^a likely mistake$"):
        run_loop(fails, remarks={"bad news": "a likely mistake"})
    with pytest.raises(NotAttempted):
        run_loop(blank)
    with pytest.raises(Wrong, match="a function is expected"):
        run_loop(3)
    assert ray.train.report is before


def test_code_that_does_not_end_is_stopped(monkeypatch):
    monkeypatch.setattr(running, "_AGAIN", 2.0)
    caught = []

    def deaf(config):
        while True:
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                caught.append(True)
                if len(caught) > 1:
                    raise

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Wrong, match=r"after 0.3 s.*Likely: no end"), limited(0.3, "no end"):
        run_loop(deaf)
    assert len(caught) == 2  # once more than it wanted to hear
    assert signal.getsignal(signal.SIGINT) is before
    assert "labkit-limit" not in [thread.name for thread in threading.enumerate()]


def test_a_limit_changes_nothing_else():
    with pytest.raises(KeyError), limited(60):
        raise KeyError
    with pytest.raises(KeyboardInterrupt), limited(60):  # the reader's own
        signal.raise_signal(signal.SIGINT)
