"""What a fault cost, where the events of the run arrive late and all at once."""

import time

from labkit.faults import Fault
from labkit.panel import Panel
from labs import until
from runs_told import Run


def test_steps_from_before_a_kill_may_arrive_after_it(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    told, panel = Run("late").step(1, step=1), Panel("late")
    panel.state = told.state
    fault = Fault("kill rank 1", lambda panel: kill(), kills=True).at(panel, step=1)
    until(lambda: fault.outcome == "made")
    for step in range(2, 10):
        time.sleep(0.05)
        told.step(1, step=step)
    told("failure", text="it is gone")
    time.sleep(0.05)
    told.step(2, step=1, pid=101)
    fault.wait(10)
    assert 0.4 < fault.noticed <= fault.standstill and fault.repeated == 9


def kill():
    yield "SIGKILL to process 7"
