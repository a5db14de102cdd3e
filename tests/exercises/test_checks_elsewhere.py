"""Checks that run code on workers, where neither the kernel nor a worker can import a file of the lessons."""

import pytest

import labs

pytestmark = [pytest.mark.slow, pytest.mark.covers("course/exercises/", "lessons/checks/")]


START = """
import shutil
from course.exercises import check, registry

lessons = registry.lessons()
registry.lessons = lambda: lessons
shutil.rmtree("../lessons")  # no process that starts from here on can read it
"""
RAY = """
from labkit.local import cluster

def train_together(config):
    import ray.train, torch
    from ray.train.torch import prepare_model

    model = prepare_model(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [one.detach().clone() for one in model.parameters()]
    for epoch in range(10):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        if any((a != b).any() for a, b in zip(before, model.parameters())):
            return epoch + 1
    return 10

def resume(model, optimizer, scheduler):
    import ray.train, torch

    if (checkpoint := ray.train.get_checkpoint()) is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(f"{folder}/state.pt", weights_only=True)
    getattr(model, "module", model).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    return state["epoch"] + 1

with cluster.start(nodes=2, cpus_per_node=2):
    print(check("03-2", train_together), check("03-3", resume))
"""
SPARK = """
def fixed_total():
    import os, torch, torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor(float(os.environ["RANK"]) + 1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item()

from labkit.local import spark

spark.prepare()
from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[2]").getOrCreate()
print(check("07-2", fixed_total))
session.stop()
"""


@pytest.mark.parametrize("code, solved", [(RAY, ["03-2", "03-3"]), (SPARK, ["07-2"])], ids=["ray", "spark"])
def test_on_workers_that_have_no_lessons(site, folder, monkeypatch, code, solved):
    with labs.home():
        monkeypatch.chdir(folder / "notebooks")
        done = labs.python(START + code, timeout=800, PYTHONPATH=str(site))
        assert [f"{id} solved" in done.stdout for id in solved] == [True] * len(solved), done.stdout
