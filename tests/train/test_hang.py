"""The hang doctor on staged hangs: the rank that the others wait for, its call, and the line of each."""

import contextlib
import inspect
import os
import socket
import sys
import time

import pytest
import ray.train
import torch
from loops import rank, trainer_of

from course import faults
from labkit.errors import RunStopped
from labkit.panel.workers import WorkerState
from labkit.settings import Settings
from labkit.train import TrainPanel, hang
from labs import interrupt_when, until

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/train/"), pytest.mark.fault]


def steps(number, seconds=0.0):
    """Steps that the panel sees, and in which ranks wait for one another."""
    model = ray.train.torch.prepare_model(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(number):
        time.sleep(seconds)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def only_rank_0_reports(config):
    steps(5)
    if rank() == 0:
        ray.train.report({"loss": 1.0})


def rank_1_has_fewer_batches(config):
    steps(20 if rank() == 0 else 5)
    ray.train.report({"loss": 1.0})


class Stuck(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, row):
        time.sleep(900 if row else 0)
        return torch.ones(1)


def a_data_loader_that_is_stuck(config):
    steps(5)
    if rank() == 1:
        for _ in torch.utils.data.DataLoader(Stuck(), num_workers=1):
            pass
    torch.distributed.barrier()


def all_is_well(config):
    steps(40_000, seconds=0.02)


def test_a_pid_of_another_machine_is_not_looked_up_on_this_one():
    """In containers pids are small, so this machine has a process of that number, too."""
    workers = [WorkerState(0, "gpu-node-17", os.getpid()), WorkerState(1, socket.gethostname(), os.getpid())]
    first, second = hang.explain(workers)
    assert first == f"rank 0: its process {os.getpid()} is on another machine (gpu-node-17)"
    assert second.startswith("rank 1: ") and "another machine" not in second


def frame(name, filename):
    return {"name": name, "filename": filename, "line": 1}


def test_a_function_of_that_name_in_another_package_is_no_wait_for_other_ranks():
    stuck = [frame("send", "/lib/site-packages/requests/adapters.py"), frame("train_loop", __file__)]
    waits = [frame("broadcast", "/lib/site-packages/torch/distributed/c10d.py"), frame("loop", __file__)]
    ranks = {0: hang._doing(stuck), 1: hang._doing(waits)}
    assert (ranks[0].activity, ranks[1].call) == ("is in send", "broadcast")
    assert hang._verdict(ranks) == ["The others wait for rank 0."]


@pytest.fixture
def lines_of(lab, home):
    """Run a loop until the panel says what its ranks wait for, then press Stop; returns what it said.

    On a busy machine a rank may also take long for a step. So it is waited until `awaited` holds for what the
    panel says, and if it never does, that is returned all the same.
    """

    def lines_of(loop, awaited, before=lambda panel: None):
        panel, lines = TrainPanel("hang", settings=Settings(home=home, panel="none", hang_after=2)), []

        def explained():
            if panel.state.first_step_at and not lines:
                before(panel)
                with contextlib.suppress(AssertionError):
                    until(lambda: awaited(list(panel.state.hang)))
                lines.extend(panel.state.hang or ["nothing"])
            return lines

        interrupt_when(explained)
        with pytest.raises(RunStopped):
            panel.fit(trainer_of(loop))
        return lines

    return lines_of


def at(loop, text):
    """How the doctor names the line of a loop in which `text` is."""
    lines, first = inspect.getsourcelines(loop)
    (place,) = [first + k for k, line in enumerate(lines) if text in line]
    return f"(test_hang.py, line {place})"


@pytest.mark.parametrize(
    "loop, rank_0, rank_1, verdict",
    [
        (
            only_rank_0_reports,
            ("waits in ray.train.report", only_rank_0_reports, ".report("),
            ("has left the training function", None, ""),
            "The others wait for rank 1.",
        ),
        (
            rank_1_has_fewer_batches,
            ("waits in loss.backward()", steps, "backward()"),
            ("waits in ray.train.report", rank_1_has_fewer_batches, ".report("),
            "rank 1 made fewer steps, or rank 0 reported less often.",
        ),
        (
            a_data_loader_that_is_stuck,
            ("waits in barrier", a_data_loader_that_is_stuck, "barrier"),
            ("waits for a DataLoader", a_data_loader_that_is_stuck, "DataLoader("),
            "The others wait for rank 1.",
        ),
    ],
)
def test_who_waits_for_whom(lines_of, loop, rank_0, rank_1, verdict):
    def awaited(lines):
        if len(lines) != 3 or not lines[2].endswith(verdict):
            return False
        for number, (state, function, text) in enumerate((rank_0, rank_1)):
            if not lines[number].startswith(f"rank {number}: {state}"):
                return False
            if function and at(function, text) not in lines[number]:
                return False
        return True

    lines = lines_of(loop, awaited)
    assert awaited(lines), lines


def test_a_frozen_process(lines_of):
    def awaited(lines):
        return (
            len(lines) == 3
            and "rank 0: waits in loss.backward()" in lines[0]
            and "rank 1: its process" in lines[1]
            and "frozen" in lines[1]
            and lines[2] == "The others wait for rank 1."
        )

    # The end of the run ends it, too.
    lines = lines_of(all_is_well, awaited, lambda panel: faults.freeze_rank(1, seconds=600).at(panel))
    assert awaited(lines), lines


def test_py_spy_is_found_on_the_path_too(tmp_path, monkeypatch):
    """Ray may be installed for the user, and Python for the system."""
    program = tmp_path / "bin" / "py-spy"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho '[]'\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert hang._frames(os.getpid(), frozen=False) == []
