"""The exercises of lesson 01: what is right, and what is said of a mistake. They run on a cluster."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray import cloudpickle

from labkit.exercises import check
from labs import _home, lab  # noqa: F401  in the place of the folder of conftest

pytestmark = pytest.mark.usefixtures("lab")
# Workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
LAB = {"nodes": 1, "cpus_per_node": 4}


def one_by_one(task, inputs):
    return [ray.get(task.remote(one)) for one in inputs]


def stub(task, inputs): ...


@pytest.mark.parametrize(
    "function, said",
    [
        (lambda task, inputs: ray.get([task.remote(one) for one in inputs]), "solved"),
        (one_by_one, "you waited before you submitted"),
        (lambda task, inputs: [task.remote(one) for one in inputs], "returns references"),
        (lambda task, inputs: ray.get([task.remote(one) for one in inputs])[::-1], "not in the order"),
        (lambda task, inputs: ray.get(task.remote(inputs[0])), "a list of two results"),
        (lambda task, inputs: print(), "returns nothing"),
        (lambda task: print(), "raised TypeError"),
        (stub, "not attempted"),
    ],
)
def test_all_at_once(function, said):
    assert said in repr(check("01-1", function))


class Plain:
    def __init__(self):
        self.count = 0

    def add(self, number):
        self.count += number

    def total(self):
        return self.count


class Replaces(Plain):
    def add(self, number):
        self.count = number


class Fails(Plain):
    def add(self, number):
        raise ValueError("no room")


class Blank: ...


@pytest.mark.parametrize(
    "cls, said",
    [
        (ray.remote(Plain), "solved"),
        (Plain, "a plain class"),
        (ray.remote(Fails), "no room"),
        (ray.remote(Replaces), "total()"),
        (ray.remote(Blank), "no method `add`"),
        (Blank, "not attempted"),
        (7, "a class with `@ray.remote`"),
    ],
)
def test_count_together(cls, said):
    assert said in repr(check("01-2", cls))


def nodes(*cpus):
    return [SimpleNamespace(cpus=float(count)) for count in cpus]


@pytest.mark.parametrize(
    "answer, cpus, said",
    [
        ({1: 7, 2: 3, 3: 1}, (3, 2, 2), "solved"),
        ({1: 7, 2: 3, 3: 2}, (3, 2, 2), "use two nodes"),
        ({1: 7, 2: 3, 3: 3}, (3, 2, 2), "not every node"),
        ({1: 7, 2: 5, 3: 1}, (3, 2, 2), "not it"),
        ({1: 16, 2: 8, 3: 5}, (16,), "solved"),
        ({1: ..., 2: 3, 3: 1}, (3, 2, 2), "not attempted"),
        (7, (3, 2, 2), "a dict"),
    ],
)
def test_what_would_change(answer, cpus, said):
    assert said in repr(check("01-3", answer, nodes(*cpus)))


class Forgets:
    def __init__(self, path):
        self.count = 0

    def add(self):
        self.count += 1
        return self.count


class Saves(Forgets):
    def __init__(self, path):
        self.path = Path(path)
        self.count = int(self.path.read_text()) if self.path.exists() else 0

    def add(self):
        self.path.write_text(str(self.count + 1))
        return super().add()


RESTARTED = {"max_restarts": 1, "max_task_retries": -1}


@pytest.mark.parametrize(
    "cls, said",
    [
        (ray.remote(**RESTARTED)(Saves), "solved"),
        (ray.remote(**RESTARTED)(Forgets), "in the memory of the process"),
        (ray.remote(Saves), "the next call failed"),
        (Saves, "a plain class"),
        (Blank, "not attempted"),
    ],
)
def test_an_actor_that_survives(cls, said):
    assert said in repr(check("01-4", cls))
