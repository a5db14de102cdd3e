"""Cells of lessons that make a fault: one that is refused or missed shows why, and raises nothing."""

from unittest.mock import MagicMock

import pytest

import build
import lesson
from course import faults
from labkit.errors import LabError
from labkit.panel import Panel
from runs_told import Run

CELLS = [
    cell.source
    for path in build.sources()
    for cell in lesson.read(path)
    if cell.kind == "code" and not cell.is_claim and "fault.wait()" in cell.source
]


def refused():
    def act(panel):
        raise LabError("drain node-2", "the lab has started no such node", "lab.add_node(cpus=2)")
        yield

    return faults.Fault("drain node-2", act).now()


def missed():
    """A fault for step 17 of a run that ended before."""
    run, panel = Run("late"), Panel("late")
    panel.state = run.state
    fault = faults.Fault("kill rank 1", MagicMock()).at(panel, step=17)
    run.state.end("finished")
    return fault.wait(90)


@pytest.mark.parametrize(
    "make, reason", [(refused, "the lab has started no such node"), (missed, "ended before")]
)
@pytest.mark.parametrize("source", CELLS)
def test_a_fault_that_was_not_made_shows_why(source, make, reason, monkeypatch):
    for name in ("RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"):
        monkeypatch.setenv(name, "")  # the cells set these, and they are put back after the test
    fault, reveal, trainer = make(), MagicMock(), MagicMock()
    trainer.fit.return_value.return_value = {"first": 0}
    makers = ("kill_rank", "freeze_rank", "drain_node")
    of_the_lesson = ("TrainPanel", "every_10_steps", "no_checkpoints", "on_notice")
    space = dict.fromkeys(of_the_lesson, MagicMock()) | {
        "faults": MagicMock(**{f"{name}.return_value.at.return_value": fault for name in makers}),
        "make_trainer": lambda *args, **options: trainer,
        "difference": lambda result: 0.0,
        "reveal": reveal,
    }
    source = source.replace("replace(panel.settings, hang_after=1)", "None")
    exec(compile(source, "cell", "exec"), space)
    reveal.assert_not_called()
    assert reason in repr(fault) and source.rstrip().endswith("\nfault")
