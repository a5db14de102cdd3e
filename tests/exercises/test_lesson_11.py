"""The exercises of lesson 11: what is said of a likely mistake."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from course.exercises import check, registry
from verdicts import cases, solution

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


def test_what_the_loop_returns(alone):
    assert "has to return config" in repr(check("11-2", lambda config: 1))


def loaded(model, folder):
    (load_body,) = solution("11-3")
    load_body(model, folder)
    model.load_state_dict({name: value for name, value in model.state_dict().items() if "head" not in name})


def at_once(model, optimizer, loss_of, parts):
    optimizer.zero_grad()
    (sum(loss_of(model, x, y) for x, y in parts) / len(parts)).backward()
    optimizer.step()


torch.optim.SGD([torch.zeros(1)])  # imports much, which must not count as the check's time


ANSWERS = {
    "11-3": [
        ([loaded], "a dict without its head"),
    ],
    "11-4": [
        ([at_once], "one backward for all parts"),
    ],
    "11-1": [
        ([fewest_gpus], "solved"),
        ([lambda n, gpu, kept: math.ceil(16e-9 * n / (gpu - kept))], "solved"),
        ([lambda n, gpu, kept: math.ceil(n * 16 * 1e-9 / (gpu - kept))], "solved"),
        ([lambda n, gpu, kept: math.ceil((16 * n / 1e9 + kept) / gpu)], "activations of its own"),
        ([lambda n, gpu, kept: math.ceil(16 * n / 1e9 / gpu)], "need room, too"),
        ([lambda n, gpu, kept: fewest_gpus(n / 4, gpu, kept)], "for the parameters alone"),
        ([lambda n, gpu, kept: int(16 * n / 1e9 // (gpu - kept))], "too few: round up"),
        ([lambda n, gpu, kept: 16 * n / 1e9 / (gpu - kept)], "can't be divided"),
        ([lambda n, gpu, kept: int(16 * n / 1e9 // (gpu - kept)) + 1], "one fewer is enough"),
    ],
}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("exercise", "answers", "verdict"), cases(ANSWERS))
def test_what_a_check_says(exercise, answers, verdict):
    assert verdict in repr(check(exercise, *answers))


BLOCKS = """    for block in model.blocks:
        fully_shard(block)  # so that only one of them is whole at a time
"""
ADAM = "    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)"
LATE = f"{ADAM}  # of the new parameters\n"
LAST, STEP = "number == len(parts) - 1", "\n    optimizer.step()"


CHANGED = {
    "11-2": [
        ({}, "solved"),
        ({BLOCKS: ""}, "gathers the whole model at once"),
        ({"    fully_shard(model)\n": ""}, "whole on each rank"),
        ({LATE: "", BLOCKS: f"{ADAM}\n{BLOCKS}"}, "no longer uses"),
        # as in the lesson
        ({LATE: "", BLOCKS: f"{ADAM}\n"}, "gathers the whole model at once"),
    ],
    "11-3": [
        ({}, "solved"),
        ({"{name: value for": "{name: value.clone() for"}, "the body differs"),
        ({"# into": "\n    torch.nn.init.zeros_(model.head.weight)\n    # into"}, "the new head has changed"),
        ({' if not name.startswith("head.")': ""}, "dcp.load refused: ValueError: Size mismatch"),
        ({'{"model": body}': "weights"}, "Missing key"),
    ],
    "11-4": [
        ({}, "solved"),
        ({" / len(parts)": ""}, "4 times too large"),
        ({STEP: ""}, "call optimizer.step()"),
        ({STEP: "", "backward()": f"backward(); {STEP.strip()}"}, "not that of the whole batch"),
        ({"    optimizer.zero_grad()\n": ""}, "clear them first"),
        ({LAST: "True"}, "only the last backward"),
        ({LAST: "False"}, "only the last backward"),
    ],
}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("exercise", "change", "verdict"), cases(CHANGED))
def test_what_a_check_says_of_a_mistake(exercise, change, verdict):
    assert verdict in repr(check(exercise, *solution(exercise, change)))
