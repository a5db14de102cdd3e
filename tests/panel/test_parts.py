"""The parts of a step by the clocks of the thread of the loop, in this process and in ranks of a group."""

import contextlib
import itertools
import os
import time

import pytest
import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.utils.data import DataLoader, TensorDataset

from labkit.panel.training import TrainingRun
from labkit.runs.verdict import COLUMNS
from labkit.worker import Tracker
from labkit.worker import parts as worker_parts
from labkit.worker.events import End, Step
from labkit.worker.hooks import current, following
from labkit.worker.parts import StepClocks
from runs_told import event

pytestmark = pytest.mark.slow
ROWS = torch.rand(64, 8, generator=torch.Generator().manual_seed(0))


def compute(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Slow(TensorDataset):
    def __getitem__(self, row):
        time.sleep(0.002)
        return super().__getitem__(row)


def net():
    torch.manual_seed(0)
    return torch.nn.Linear(8, 1)


def all_parts(events):
    return [event.parts for event in events if isinstance(event, Step | End)]


def parts_of(events):
    """The sums over all steps but the first."""
    first, *_, last = [parts for parts in all_parts(events) if parts.get("steps")]
    assert first["steps"] == 1
    return {name: last[name] - first[name] for name in last}


def inside(parts):
    return sum(parts[name] for name in ("data", "forward", "backward", "exchange", "optimizer"))


def test_each_part_is_where_the_time_was_spent():
    class SlowToStep(torch.optim.SGD):
        def step(self, closure=None):
            time.sleep(0.01)
            return super().step(closure)

    events, model = [], net()
    optimizer = SlowToStep(model.parameters(), lr=0.1)
    model.weight.register_hook(lambda gradient: compute(0.02))
    with following(Tracker("run", events.append)):
        for _ in range(2):
            for (x,) in DataLoader(Slow(ROWS), batch_size=8):
                time.sleep(0.005)
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            model.eval()
            time.sleep(0.1)
            for _ in DataLoader(TensorDataset(ROWS), batch_size=8):
                time.sleep(0.005)
    parts = parts_of(events)
    assert parts["steps"] == 15 and parts["rows"] == 120
    # A sleep takes at least its time; how much more depends on the machine.
    assert parts["data"] >= 15 * 0.016 and parts["computed"] < parts["data"]
    assert parts["forward"] >= 15 * 0.005
    assert parts["backward"] >= 15 * 0.02 and parts["exchange"] == 0
    assert parts["optimizer"] >= 15 * 0.01
    assert parts["evaluating"] >= 2 * 0.14
    assert inside(parts) + parts["evaluating"] <= parts["wall"]


def without_a_loader(model, optimizer):
    for x in ROWS.split(8):
        model(x).sum().backward()
        optimizer.step()


def test_a_loop_without_backward_has_no_parts():
    events, model = [], net()
    with following(Tracker("run", events.append)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in DataLoader(TensorDataset(ROWS), batch_size=8):
            model.weight.grad = torch.autograd.grad(model(x).sum(), model.weight)[0]
            optimizer.step()
    assert {parts["unseen"] for parts in all_parts(events)} == {"where no backward() is seen"}


def files_of_the_run_queue():
    """Return how many files of run queues this process has open (other threads open files of their own)."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(link.endswith("schedstat") for link in links)


def test_the_file_of_the_run_queue_is_closed_and_may_be_closed_by_the_loop():
    model, before = net(), files_of_the_run_queue()
    with following(Tracker("run", lambda event: None)):
        assert files_of_the_run_queue() == before + 1
        os.close(current()._clocks._file)
        without_a_loader(model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert current()._clocks.queued() == 0.0
    with following(Tracker("run", lambda event: None)):
        pass
    assert files_of_the_run_queue() == before


# -- several ranks ------------------------------------------------------------------------------------------


def by_ddp(rank, late):
    model = torch.nn.parallel.DistributedDataParallel(net())
    return train(model, late, lambda: None)


def by_hand(rank, late):
    model = net()

    def average():
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)

    return train(model, late, average)


def alone(rank, late):
    return train(net(), late, lambda: None)


def sharded(rank, late):
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model)
    return train(model, late, lambda: None)


def train(model, late, average):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        for (x,) in DataLoader(TensorDataset(ROWS), batch_size=8):
            optimizer.zero_grad()
            loss = model(x).sum()
            time.sleep(late)
            loss.backward()
            average()
            optimizer.step()
    return [
        getattr(parameter, "full_tensor", lambda p=parameter: p)().tolist()
        for parameter in model.parameters()
    ]


class OfWorker(Tracker):
    in_worker = True


LOOPS = {"by_ddp": by_ddp, "by_hand": by_hand, "alone": alone, "sharded": sharded}
PLAIN = ("by_ddp", "by_hand")  # run once more without being followed


def one_rank():
    """Return {loop: (weights, events)}, and {loop: weights} of the plain ones."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank, followed = torch.distributed.get_rank(), {}
    for name, loop in LOOPS.items():
        events = []
        with following(OfWorker("run", events.append), loop):
            followed[name] = loop(rank, 0.03 * rank), events
        torch.distributed.barrier()
    plain = {name: LOOPS[name](rank, 0.0) for name in PLAIN}
    torch.distributed.destroy_process_group()
    return followed, plain


@pytest.fixture(scope="module")
def ranks():
    """What both ranks return. Rank 1 computes 30 ms longer for each step that is followed."""
    here = {"rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0", "run_id": "parts"}
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, start_method="spawn", **here)
    results = elastic_launch(config, one_rank)()
    return [results[rank] for rank in range(2)]


@pytest.mark.parametrize("loop", PLAIN)
def test_who_waits_for_the_other_is_seen_and_the_weights_stay_the_same(ranks, loop):
    first, second = (parts_of(followed[loop][1]) for followed, _ in ranks)
    assert second["forward"] >= 15 * 0.03
    assert first["exchange"] > 10 * 0.03 and first["exchange"] > 2 * second["exchange"]
    for followed, plain in ranks:
        assert followed[loop][0] == plain[loop]


def test_a_rank_that_is_stopped_in_backward_does_not_wait_for_others(monkeypatch):
    monkeypatch.setattr("labkit.worker.parts.collectives", lambda: 0)
    clocks = StepClocks(alone=False)
    clocks.begin_backward(10.0, torch.tensor(0.0))
    clocks._exchanges_in = "gap"  # as it has found out by a step before
    clocks.end_backward(10.5)  # without CPU time, as under SIGSTOP
    clocks.before_step(10.7, None)
    clocks.close()
    assert clocks.backward == pytest.approx(0.5, abs=0.05)
    assert clocks.exchange == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize(("seconds", "measured"), [(0.0005, 145), (0.05, 1000)])
def test_some_of_many_short_backwards_are_measured_and_stand_for_the_others(monkeypatch, seconds, measured):
    """Of each ten, one waits as long as it computes, as the last one of an accumulation does."""
    clocks = StepClocks(alone=False)
    now, busy, reads = 0.0, 0.0, 0

    def read_busy():
        nonlocal reads
        reads += 1
        return busy

    monkeypatch.setattr("labkit.worker.parts.collectives", lambda: 0)
    monkeypatch.setattr(clocks, "busy", read_busy)
    clocks._exchanges_in = "backward"
    exchanged = 0.0
    for backward in range(1000):
        waits = seconds if backward % 10 == 9 else 0.0
        clocks.begin_backward(now, None)
        now += seconds + waits
        busy += seconds
        exchanged += waits
        clocks.end_backward(now)
        now += seconds  # forward and the optimizer's step
        busy += seconds
    clocks.close()
    assert clocks.exchange == pytest.approx(exchanged, rel=0.3)
    assert clocks.backward + clocks.exchange == pytest.approx(1000 * seconds + exchanged)
    assert reads / 2 == pytest.approx(measured, rel=0.1)


def test_an_exchange_after_many_backwards_is_seen(monkeypatch):
    """With `no_sync`, all backwards of an accumulation but the last exchange nothing."""
    count = 0
    monkeypatch.setattr(worker_parts, "collectives", lambda: count)
    clocks = worker_parts.StepClocks(alone=False)
    optimizer = torch.optim.SGD(net().parameters(), lr=0.1)
    for backward in range(60):
        clocks.begin_backward(backward, None)
        count += backward == 59
        clocks.end_backward(backward + 0.5)
    clocks.before_step(60.0, optimizer)
    clocks.close()
    assert clocks.unseen == ""


@pytest.mark.parametrize(("loop", "why"), [("alone", "no exchange"), ("sharded", "sharded")])
def test_where_waiting_cannot_be_told_there_are_no_parts(ranks, loop, why):
    for followed, _ in ranks:
        (unseen,) = {parts["unseen"] for parts in all_parts(followed[loop][1])}
        assert why in unseen


# -- in the state of a run --------------------------------------------------------------------------------


def test_how_many_ranks_share_a_core_is_counted_for_each_node():
    state = TrainingRun("run", world_size=3)
    state.start("", 1.0)
    for rank, node in enumerate(("a", "a", "b")):
        where = {"rank": rank, "node": node, "pid": 100 + rank}
        state.apply(event("worker", at=1.0, workers=3, cores=1 if node == "a" else 8, **where))
    assert state.parts_of_steps()["crowds"] == {"0": 2.0, "1": 2.0, "2": 1.0}


def test_the_samples_are_thinned_and_the_last_one_is_kept():
    state = TrainingRun("run", world_size=2)
    state.start("", 1.0)
    sums = dict.fromkeys(COLUMNS, 0.0)
    for step in range(1, 500):
        parts = {**sums, "steps": step, "wall": step / 10}
        for rank in range(2):
            counts = {"step": step, "made": step, "rows": step, "seconds": 1.0 * step, "parts": parts}
            state.apply(event("step", at=1.0 + step, rank=rank, pid=rank, memory=1000, **counts))
    for samples in state.to_record()["parts"]["ranks"].values():
        steps = [sample[0] for sample in samples]
        assert len(steps) <= 48 and steps[0] == 1 and steps[-1] == 499 and steps == sorted(steps)
        # Of any stretch of the run some are kept: else what happened there looks even.
        assert max(after - before for before, after in itertools.pairwise(steps)) < 40
        assert samples[-1][COLUMNS.index("memory")] == 1000
