"""The exercises of lesson 01: what is said of a mistake. They run on a cluster."""

import sys
from types import SimpleNamespace

import pytest
import ray
from ray import cloudpickle

from verdicts import checks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("lab"),
    pytest.mark.covers("course/exercises/", "lessons/checks/"),
]
# Workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def one_by_one(task, inputs):
    return [ray.get(task.remote(value)) for value in inputs]


class Blank: ...


def nodes(*cpus):
    return [SimpleNamespace(cpus=float(count)) for count in cpus]


RESTARTED = "@ray.remote(max_restarts=1, max_task_retries=-1)\n"
ANSWERS = {
    "01-1": [
        ([one_by_one], "you waited before you submitted"),
        ([lambda task, inputs: [task.remote(value) for value in inputs]], "returns references"),
        ([lambda task, inputs: ray.get([task.remote(value) for value in inputs])], "the order of the inputs"),
        ([lambda task, inputs: [1, 2]], "not what the task returned"),
        ([lambda task, inputs: 7], "a list of two results"),
        ({"task.remote": "task.options(num_cpus=1).remote"}, "solved"),
    ],
    "01-2": [
        ([Blank], "not attempted"),
        ([ray.remote(Blank)], "no method `add`"),
        ([7], "a class with `@ray.remote`"),
        ({"@ray.remote\n": ""}, "a plain class"),
        ({"self.count += number": "raise ValueError('no room')"}, "no room"),
        ({"+= number": "= number"}, "total()"),
    ],
    "01-3": [
        ([{1: 7, 2: 3, 3: 2}, nodes(3, 2, 2)], "use two nodes"),
        ([{1: 7, 2: 3, 3: 3}, nodes(3, 2, 2)], "not every node"),
    ],
    "01-4": [
        ([Blank], "not attempted"),
        ({"int(self.path.read_text()) if self.path.exists() else 0": "0"}, "in the memory of the process"),
        ({RESTARTED: "@ray.remote\n"}, "the next call failed"),
        ({RESTARTED: ""}, "a plain class"),
    ],
}


test_what_a_check_says = checks(ANSWERS)
