"""Faults without a cluster: what they do to a process, and what they cost where events arrive late."""

import subprocess
import threading
import time

import psutil
import pytest

from course.faults import Fault, freeze
from labkit.panel import Panel
from labs import until
from runs_told import Run


def test_steps_from_before_a_kill_may_arrive_after_it(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    run, panel = Run("late").step(1, step=1), Panel("late")
    panel.state = run.state
    fault = Fault("kill rank 1", lambda panel: kill(), kills=True).at(panel, step=1)
    until(lambda: fault.outcome == "made")
    for step in range(2, 10):
        time.sleep(0.05)
        run.step(1, step=step)
    run("failure", text="it is gone")
    time.sleep(0.05)
    run.step(2, step=1, pid=101)
    fault.wait(90)
    assert 0.4 < fault.noticed <= fault.standstill and fault.repeated == 9


def kill():
    yield "SIGKILL to process 7"


@pytest.fixture
def process():
    with subprocess.Popen(["sleep", "60"]) as started:
        yield psutil.Process(started.pid)
        started.kill()


def test_a_frozen_process_runs_again(process):
    fault = freeze("freeze it", lambda panel: [process], 3.0)
    threading.Thread(target=fault.now).start()
    until(lambda: process.status() == psutil.STATUS_STOPPED)
    assert fault.wait(90).outcome == "made" and "SIGSTOP" in fault.did
    assert process.status() != psutil.STATUS_STOPPED


def test_a_run_that_ends_meanwhile_ends_the_fault(process, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    run, panel = Run("short").step(1, step=1), Panel("short")
    panel.state = run.state
    fault = freeze("freeze it", lambda panel: [process], 3600, 0.5).at(panel, step=1)
    until(lambda: fault.outcome == "made")
    run.state.end("finished")
    assert fault.wait(90).outcome == "made" and process.status() != psutil.STATUS_STOPPED
