"""The exercises of lesson 11: what is said of a likely mistake."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from course.exercises import registry
from verdicts import checks, solution

lesson_11 = registry.load("11")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """The engine is replaced: a loop runs in this process, which is the only rank of a process group."""

    monkeypatch.setattr(lesson_11, "returned", lambda loop, config, **_: loop(config))
    monkeypatch.setattr("ray.train.get_context", lambda: SimpleNamespace(get_world_size=lambda: 1))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    init_device_mesh("cpu", (1,))
    yield
    dist.destroy_process_group()


def loaded(model, folder):
    (load_body,) = solution("11-3")
    load_body(model, folder)
    model.load_state_dict({name: value for name, value in model.state_dict().items() if "head" not in name})


def at_once(model, optimizer, loss_of, parts):
    optimizer.zero_grad()
    (sum(loss_of(model, x, y) for x, y in parts) / len(parts)).backward()
    optimizer.step()


torch.optim.SGD([torch.zeros(1)])  # imports much, which must not count as the check's time


BLOCKS = """    for block in model.blocks:
        fully_shard(block)  # so that only one of them is whole at a time
"""
ADAM = "    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)"
LATE = f"{ADAM}  # of the new parameters\n"
LAST, STEP = "number == len(parts) - 1", "\n    optimizer.step()"


ANSWERS = {
    "11-1": [
        ({"16 * parameters / 1e9": "16e-9 * parameters"}, "solved"),
        ({"16 * parameters / 1e9": "parameters * 16 * 1e-9"}, "solved"),
        ({"(gpu_gb - activations_gb)": "gpu_gb + activations_gb / gpu_gb"}, "activations of its own"),
        ({" - activations_gb": ""}, "need room, too"),
        ({"16 * ": "4 * "}, "for the parameters alone"),
        ({"math.ceil": "int"}, "too few: round up"),
        ({"math.ceil": ""}, "can't be divided"),
        ({"math.ceil": "1 + int"}, "one fewer is enough"),
    ],
    "11-2": [
        ([lambda config: 1], "has to return config"),
        ({BLOCKS: ""}, "gathers the whole model at once"),
        ({"    fully_shard(model)\n": ""}, "whole on each rank"),
        ({LATE: "", BLOCKS: f"{ADAM}\n{BLOCKS}"}, "no longer uses"),
        # as in the lesson
        ({LATE: "", BLOCKS: f"{ADAM}\n"}, "gathers the whole model at once"),
    ],
    "11-3": [
        ({"{name: value for": "{name: value.clone() for"}, "the body differs"),
        ({"# into": "\n    torch.nn.init.zeros_(model.head.weight)\n    # into"}, "the new head has changed"),
        ([loaded], "a dict without its head"),
        ({' if not name.startswith("head.")': ""}, "dcp.load refused: ValueError: Size mismatch"),
        ({'{"model": body}': "weights"}, "Missing key"),
    ],
    "11-4": [
        ({" / len(parts)": ""}, "4 times too large"),
        ({STEP: ""}, "call optimizer.step()"),
        ({STEP: "", "backward()": f"backward(); {STEP.strip()}"}, "not that of the whole batch"),
        ({"    optimizer.zero_grad()\n": ""}, "clear them first"),
        ({LAST: "True"}, "only the last backward"),
        ({LAST: "False"}, "only the last backward"),
        ([at_once], "one backward for all parts"),
    ],
}


test_what_a_check_says = checks(ANSWERS)
