"""The exercises of lesson 01: what is said of a mistake. They run on a cluster."""

import sys
from types import SimpleNamespace

import pytest
import ray
from ray import cloudpickle

from verdicts import verdicts

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("lab")]
# Workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def one_by_one(task, inputs):
    return [ray.get(task.remote(one)) for one in inputs]


def as_they_finish(task, inputs):
    waiting, results = [task.remote(one) for one in inputs], []
    while waiting:
        ready, waiting = ray.wait(waiting)
        results += ray.get(ready)
    return results


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


def nodes(*cpus):
    return [SimpleNamespace(cpus=float(count)) for count in cpus]


class Forgets:
    def __init__(self, path):
        self.count = 0

    def add(self):
        self.count += 1
        return self.count


RESTARTED = {"max_restarts": 1, "max_task_retries": -1}


SAID = """
01-3
  {1: 7, 2: 3, 3: 1}, nodes(3, 2, 2) => solved
  {1: 7, 2: 3, 3: 2}, nodes(3, 2, 2) => use two nodes
  {1: 7, 2: 3, 3: 3}, nodes(3, 2, 2) => not every node
01-1
  as_they_finish => solved
  lambda task, inputs: as_they_finish(task.options(num_cpus=1), inputs) => solved
  one_by_one => you waited before you submitted
  lambda task, inputs: [task.remote(one) for one in inputs] => returns references
  lambda task, inputs: ray.get([task.remote(one) for one in inputs]) => the order of the inputs
  lambda task, inputs: [1, 2] => not what the task returned
  lambda task, inputs: 7 => a list of two results
01-2
  Plain => a plain class
  ray.remote(Fails) => no room
  ray.remote(Replaces) => total()
  ray.remote(Blank) => no method `add`
  Blank => not attempted
  7 => a class with `@ray.remote`
01-4
  ray.remote(**RESTARTED)(Forgets) => in the memory of the process
  ray.remote(Forgets) => the next call failed
  Forgets => a plain class
  Blank => not attempted
"""

test_what_a_check_says = verdicts(SAID, globals())
