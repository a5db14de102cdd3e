"""The hang doctor on six staged hangs: the rank that the others wait for, its call, and the line of each."""

import inspect
import os
import signal
import socket
import sys
import threading
import time

import pytest
import ray.train
from ray import cloudpickle
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from labkit import faults, storage
from labkit.errors import RunStopped
from labkit.panel.tracking.hooks import current
from labkit.panel.workers import WorkerState
from labkit.settings import Settings
from labkit.train import TrainPanel, hang

pytestmark = pytest.mark.fault
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def rank():
    return ray.train.get_context().get_world_rank()


def a_few_steps(config):
    import torch

    for _ in range(5):
        current().step()
        torch.distributed.all_reduce(torch.ones(1))


def only_rank_0_reports(config):
    a_few_steps(config)
    if rank() == 0:
        ray.train.report({"loss": 1.0})


def rank_1_has_fewer_batches(config):
    import torch

    model = ray.train.torch.prepare_model(torch.nn.Linear(2, 1))
    for _ in range(20 if rank() == 0 else 5):
        current().step()
        model(torch.ones(1, 2)).sum().backward()
    ray.train.report({"loss": 1.0})


def a_data_loader_that_is_stuck(config):
    import torch

    class Stuck(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, row):
            time.sleep(600 if row else 0)
            return torch.ones(1)

    a_few_steps(config)
    if rank() == 1:
        for _ in torch.utils.data.DataLoader(Stuck(), num_workers=1):
            pass
    torch.distributed.barrier()


def a_breakpoint_left_in(config):
    a_few_steps(config)
    if rank() == 1:
        breakpoint()
    ray.train.report({"loss": 1.0})


def a_store_that_does_not_answer(config):
    a_few_steps(config)
    if rank() == 1:
        while True:
            config["files"].invalidate_cache()
            config["files"].ls(config["bucket"])
    ray.train.report({"loss": 1.0})


def all_is_well(config):
    import torch

    for _ in range(4000):
        current().step()
        time.sleep(0.02)
        torch.distributed.all_reduce(torch.ones(1))


def test_a_pid_of_another_machine_is_not_looked_up_on_this_one():
    """In containers pids are small, so this machine has a process of that number, too."""
    workers = [WorkerState(0, "gpu-node-17", os.getpid()), WorkerState(1, socket.gethostname(), os.getpid())]
    first, second = hang.explain(workers)
    assert first == f"rank 0: its process {os.getpid()} is on another machine (gpu-node-17)"
    assert second.startswith("rank 1: ") and "another machine" not in second


@pytest.fixture
def lines_of(lab, home, tmp_path):
    """Run a loop until the panel says what its ranks wait for, then press Stop."""

    def lines_of(loop, before=lambda panel: None, **config):
        panel = TrainPanel("hang", settings=Settings(home=home, panel="none", hang_after=2))
        said = []

        def stop():
            deadline = time.monotonic() + 60
            while not panel.state.first_step_at and time.monotonic() < deadline:
                time.sleep(0.05)
            before(panel)
            while not panel.state.hang and time.monotonic() < deadline:
                time.sleep(0.05)
            said.extend(panel.state.hang)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=stop, daemon=True).start()
        trainer = TorchTrainer(
            loop,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(name="hang", storage_path=str(tmp_path), callbacks=[panel.callback()]),
        )
        with pytest.raises(RunStopped), panel.watch(trainer):
            trainer.fit()
        return said

    return lines_of


def at(loop, text):
    """How the doctor names the line of a loop in which `text` is."""
    lines, first = inspect.getsourcelines(loop)
    (place,) = [first + k for k, line in enumerate(lines) if text in line]
    return f"(test_hang.py, line {place})"


def test_one_rank_never_reports(lines_of):
    first, second, verdict = lines_of(only_rank_0_reports)
    assert "rank 0: waits in ray.train.report" in first and at(only_rank_0_reports, ".report(") in first
    assert second == "rank 1: has left the training function"
    assert verdict == "The others wait for rank 1."


def test_one_rank_has_fewer_batches(lines_of):
    first, second, verdict = lines_of(rank_1_has_fewer_batches)
    assert "rank 0: waits in loss.backward()" in first and "rank 1: waits in ray.train.report" in second
    assert at(rank_1_has_fewer_batches, "backward()") in first
    assert at(rank_1_has_fewer_batches, ".report(") in second
    assert verdict.endswith("rank 1 made fewer steps, or rank 0 reported less often.")


def test_a_data_loader_is_stuck(lines_of):
    first, second, verdict = lines_of(a_data_loader_that_is_stuck)
    assert "rank 0: waits in barrier" in first and at(a_data_loader_that_is_stuck, "barrier") in first
    assert "rank 1: waits for a DataLoader" in second
    assert at(a_data_loader_that_is_stuck, "DataLoader(") in second
    assert verdict == "The others wait for rank 1."


def test_a_debugger_was_left_in(lines_of):
    first, second, verdict = lines_of(a_breakpoint_left_in)
    assert at(a_breakpoint_left_in, ".report(") in first
    assert "rank 1: waits for a debugger" in second and at(a_breakpoint_left_in, "breakpoint()") in second
    assert verdict == "The others wait for rank 1."


def test_the_store_does_not_answer(lines_of):
    with storage.start() as store:
        bucket = store.bucket("hang")
        stuck = faults.freeze_store(store, seconds=20)
        _, second, verdict = lines_of(
            a_store_that_does_not_answer,
            before=lambda panel: threading.Thread(target=stuck.now).start(),
            files=store.files,
            bucket=bucket,
        )
        assert "rank 1: waits for an answer of the object store" in second
        assert at(a_store_that_does_not_answer, ".ls(") in second
        assert verdict == "The others wait for rank 1."
        stuck.wait()


def test_a_frozen_process(lines_of):
    def freeze(panel):
        faults.freeze_rank(1, seconds=8).at(panel)

    first, second, verdict = lines_of(all_is_well, before=freeze)
    assert "rank 0: waits in all_reduce" in first and at(all_is_well, "all_reduce") in first
    assert "rank 1: its process" in second and "frozen" in second
    assert any(at(all_is_well, text) in second for text in ("for _ in", "sleep", "all_reduce"))
    assert verdict == "The others wait for rank 1."
