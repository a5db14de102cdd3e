"""The exercises of lesson 11: what is said of a likely mistake."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from labkit.exercises import check, registry
from verdicts import verdicts

lesson_11 = registry.load("11")


def fewest_gpus(parameters, gpu_gb, activations_gb):
    return math.ceil(16 * parameters / 1e9 / (gpu_gb - activations_gb))


@pytest.fixture
def alone(monkeypatch):
    """The engine is replaced: a loop runs in this process, which is the only rank of a process group."""

    monkeypatch.setattr(lesson_11, "returned", lambda loop, config, **_: loop(config))
    monkeypatch.setattr("ray.train.get_context", lambda: SimpleNamespace(get_world_size=lambda: 1))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "blocks, root, early, said",
    [
        (True, True, False, "solved"),
        (False, True, False, "gathers the whole model at once"),
        (True, False, False, "whole on each rank"),
        (True, True, True, "no longer uses"),
        (False, True, True, "gathers the whole model at once"),  # as in the lesson
    ],
)
def test_a_sharded_model_learns(blocks, root, early, said, alone):
    def train_sharded(config):
        model = config["model"]()
        optimizer = torch.optim.Adam(model.parameters()) if early else None
        for module in [*(model.blocks if blocks else ()), *([model] if root else ())]:
            fully_shard(module, mesh=alone)
        optimizer = optimizer or torch.optim.Adam(model.parameters())
        for _ in range(config["steps"]):
            model(torch.rand(8, 4)).square().mean().backward()
            optimizer.step()
        return config["inspect"](model)

    assert said in repr(check("11-2", train_sharded))


def test_what_the_loop_returns(alone):
    assert "has to return config" in repr(check("11-2", lambda config: 1))


def load_body(model, folder, *, copied=False, head=False):
    weights = get_model_state_dict(model)
    body = {name: value for name, value in weights.items() if head or not name.startswith("head.")}
    body = {name: value.clone() for name, value in body.items()} if copied else body
    dcp.load({"model": body}, checkpoint_id=folder)


def new_head(model, folder):
    load_body(model, folder)
    torch.nn.init.zeros_(model.head.weight)


def loaded(model, folder):
    load_body(model, folder)
    model.load_state_dict({name: value for name, value in model.state_dict().items() if "head" not in name})


def accumulate(share=4, clear=1, sync=None, steps=1):
    def accumulate(model, optimizer, loss_of, parts):
        optimizer.zero_grad() if clear else None
        for number, (x, y) in enumerate(parts):
            last = number == len(parts) - 1
            model.set_requires_gradient_sync(requires_gradient_sync=last if sync is None else sync)
            (loss_of(model, x, y) / share).backward()
            optimizer.step() if steps == 4 else None
            optimizer.zero_grad() if steps == 4 else None
        optimizer.step() if steps == 1 else None

    return accumulate


def at_once(model, optimizer, loss_of, parts):
    optimizer.zero_grad()
    (sum(loss_of(model, x, y) for x, y in parts) / len(parts)).backward()
    optimizer.step()


torch.optim.SGD([torch.zeros(1)])  # imports much, which must not count as the check's time


SAID = {
    "11-3": [
        (load_body, "solved"),
        (lambda *given: load_body(*given, copied=True), "the body differs"),
        (new_head, "the new head has changed"),
        (loaded, "a dict without its head"),
        (lambda *given: load_body(*given, head=True), "dcp.load refused: ValueError: Size mismatch"),
        (lambda model, folder: dcp.load(get_model_state_dict(model), checkpoint_id=folder), "Missing key"),
    ],
    "11-4": [
        (accumulate(), "solved"),
        (accumulate(share=1), "4 times too large"),
        (accumulate(steps=0), "call optimizer.step()"),
        (accumulate(steps=4), "not that of the whole batch"),
        (accumulate(clear=0), "clear them first"),
        (at_once, "one backward for all parts"),
        (accumulate(sync=True), "only the last backward"),
        (accumulate(sync=False), "only the last backward"),
    ],
    "11-1": [
        (fewest_gpus, "solved"),
        (lambda n, gpu, kept: math.ceil(16e-9 * n / (gpu - kept)), "solved"),
        (lambda n, gpu, kept: math.ceil(n * 16 * 1e-9 / (gpu - kept)), "solved"),
        (lambda n, gpu, kept: math.ceil((16 * n / 1e9 + kept) / gpu), "activations of its own"),
        (lambda n, gpu, kept: math.ceil(16 * n / 1e9 / gpu), "need room, too"),
        (lambda n, gpu, kept: fewest_gpus(n / 4, gpu, kept), "for the parameters alone"),
        (lambda n, gpu, kept: int(16 * n / 1e9 // (gpu - kept)), "too few: round up"),
        (lambda n, gpu, kept: 16 * n / 1e9 / (gpu - kept), "can't be divided"),
        (lambda n, gpu, kept: int(16 * n / 1e9 // (gpu - kept)) + 1, "one fewer is enough"),
    ],
}


@verdicts(SAID)
def test_what_a_check_says(id, answers, said, alone):
    assert said in repr(check(id, *answers))
