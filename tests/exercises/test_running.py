"""A learner's loop and function, run by a check: results, verdicts, and the limit of seconds."""

import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
import ray.train
from ray.train import report

from course.exercises import running
from course.exercises.answers import Wrong
from course.exercises.running import limited, run_loop


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


def test_a_report_that_a_cell_of_the_notebook_has_imported_is_heard(monkeypatch):
    import ray.train

    monkeypatch.setattr(sys.modules["__main__"], "report", ray.train.report, raising=False)
    learners = eval("lambda: report({'loss': 1})", vars(sys.modules["__main__"]))
    assert run_loop(lambda config: learners())[1] == [({"loss": 1}, None)]


def test_what_a_loop_raises_is_a_verdict():
    def fails(config):
        raise ValueError("bad\nnews")

    with pytest.raises(Wrong, match="^my_loop raised ValueError: bad news$"):
        run_loop(fails, name="my_loop")
    assert ray.train.report is report


def test_code_that_does_not_end_is_stopped(monkeypatch):
    monkeypatch.setattr(running, "_AGAIN", 1.0)
    run_loop(lambda config: None)  # what is imported now takes no time later
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
    with pytest.raises(Wrong, match=r"after 2 s.*Likely: no end"), limited(2, "no end"):
        run_loop(deaf)
    assert len(caught) == 2  # once more than it wanted to hear
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.getitimer(signal.ITIMER_REAL)[1] == 0  # no further interrupt


def test_a_limit_changes_nothing_else():
    with pytest.raises(KeyError), limited(60):
        raise KeyError
    with pytest.raises(KeyboardInterrupt), limited(60):  # the reader's own
        signal.raise_signal(signal.SIGINT)
