"""What lesson 03c says of its streams, at length: rows, orders, kills and memory. They take minutes."""

import itertools
import os
import random
import signal
import sys

import numpy as np
import pytest
import ray
import ray.data
import ray.train
import torch
from ray import cloudpickle
from ray.data import FileShuffleConfig, RandomSeedConfig
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import lesson
from benchmarks._digits import upload
from course import datasets
from labkit.local import storage
from verdicts import _cells, solution

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/train/"), pytest.mark.fault]
cloudpickle.register_pickle_by_value(sys.modules[__name__])
OBJECT_STORE = 80_000_000
LAB = {"nodes": 1, "cpus_per_node": 6, "object_store_bytes": OBJECT_STORE}
ROWS = 513


@pytest.fixture(scope="module")
def taught(lab):
    """The names of the lesson's cells: those that define functions, with an own store."""
    store = storage.start()
    data = datasets.load("digits", "train", n=ROWS)
    upload(data, store, "lab-03c/images")
    space = {"__name__": "taught", "store": store, "digits": data, "batches": solution("03c-2")[0]}
    wanted = (
        "from pyarrow.fs",
        "import io",
        "import pyarrow.parquet",
        "import ray.data",
        "import my_loop",
        "def train_loop",
        "import time",
    )
    wanted += (
        "from ray.data import FileShuffleConfig",
        "ray.data.DataContext",
        "def far_fetch",
        "def train_rows",
    )
    space |= {"ScalingConfig": ScalingConfig, "TorchTrainer": TorchTrainer, "storage": storage}
    for cell in _cells("03c"):
        if cell.kind == "code" and not cell.is_claim and cell.source.startswith(wanted):
            exec(compile(lesson.parse(cell.source), "<lesson 03c>", "exec"), space)
    space["rows_left"] = solution("03c-4", np=np)[0]
    yield space
    store.stop()


def fit(loop, config, workers, **options):
    """The result of a run of these workers, whose checkpoints are in a folder."""
    scaling = ScalingConfig(num_workers=workers)
    return TorchTrainer(loop, train_loop_config=config, scaling_config=scaling, **options).fit()


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_row_comes_once_an_epoch_in_a_plan_that_is_split(taught, workers, tmp_path):
    loop = ids_of_a_shard
    config = {"epochs": 3, "batch_size": 16}
    ran = fit(
        loop,
        config,
        workers,
        datasets={"train": taught["plan"]},
        run_config=RunConfig(storage_path=str(tmp_path)),
    )
    for parts in ran.return_value:
        assert {len(part) for part in parts} == {ROWS // workers}
        every = [row for part in parts for row in part]
        assert len(set(every)) == len(every) == ROWS // workers * workers


def ids_of_a_shard(config):
    shard, epochs = ray.train.get_dataset_shard("train"), []
    for epoch in range(config["epochs"]):
        options = {"local_shuffle_buffer_size": 64, "local_shuffle_seed": epoch}
        batches = shard.iter_torch_batches(batch_size=config["batch_size"], **options)
        epochs.append(of_all_ranks([row for batch in batches for row in batch["id"].tolist()]))
    return epochs


def of_all_ranks(value):
    values = [value] * ray.train.get_context().get_world_size()
    if len(values) > 1:
        torch.distributed.all_gather_object(values, value)
    return values


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_name_is_read_once_an_epoch_and_in_another_order(taught, workers, tmp_path):
    """512 rows with 1, 2 and 4 workers, 510 with 3; the order is read from what arrives."""
    size = 64 // workers
    config = {
        "left": taught["rows_left"],
        "names": taught["names"][:512],
        "fetch": taught["fetch"],
        "size": size,
    }
    runs = [fit(ids_of_names, config, workers).return_value for _ in range(2)]
    assert runs[0] == runs[1]
    steps = 512 // (size * workers)
    for parts in runs[0]:
        every = [row for part in parts for row in part]
        assert len(set(every)) == len(every) == steps * size * workers
    assert runs[0][0] != runs[0][1]


def ids_of_names(config):
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    context, epochs = ray.train.get_context(), []
    rank, workers = context.get_world_rank(), context.get_world_size()
    for epoch in range(2):
        left = config["left"](config["names"], 7, epoch, 0, rank, workers, config["size"])
        rows = ray.data.from_items(left, override_num_blocks=4).map(config["fetch"], num_cpus=0.25)
        batches = rows.iter_torch_batches(batch_size=config["size"])
        epochs.append(of_all_ranks([row for batch in batches for row in batch["id"].tolist()]))
    return epochs


def test_counted_seeds_begin_again_in_a_run_that_resumes(taught, tmp_path):
    """Epochs 0 and 1 differ; after a crash, epoch 1 has the order of epoch 0."""
    taught["ray"].data.DataContext.get_current().use_datasource_v2 = False
    for plan in (
        taught["parquet"](shuffle=FileShuffleConfig(seed=7)).select_columns(["label"]),
        ray.data.range(64, override_num_blocks=8).random_shuffle(seed=RandomSeedConfig(seed=7)),
    ):
        folder = tmp_path / plan.columns()[0]
        place = RunConfig(storage_path=str(folder), failure_config=FailureConfig(max_failures=1))
        fit(crash_in_epoch_1, {"folder": str(folder)}, 1, datasets={"train": plan}, run_config=place)
        orders = {file.name: file.read_text() for file in folder.glob("*-*.txt")}
        assert orders["first-0.txt"] != orders["first-1.txt"]
        assert orders["second-0.txt"] == orders["first-0.txt"]


def crash_in_epoch_1(config):
    shard = ray.train.get_dataset_shard("train")
    resumed = os.path.exists(f"{config['folder']}/first-1.txt")
    for epoch in range(1 if resumed else 2):
        rows = [
            value
            for batch in shard.iter_batches(batch_size=8)
            for value in next(iter(batch.values())).tolist()
        ]
        with open(f"{config['folder']}/{'second' if resumed else 'first'}-{epoch}.txt", "w") as file:
            file.write(str(rows))
    if not resumed:
        raise OSError("the disk is full")


@pytest.mark.timeout(3600)
def test_forty_kills_at_random_steps_change_no_weight(taught, tmp_path):
    """Each of the runs loses rank 0 or 1 ten times, and ends with the weights of one process."""
    alone = fit(taught["train_rows"], {"epochs": 2, "batch_size": 64}, 0).return_value
    numbers = random.Random(0)
    for run in range(4):
        kills = [(numbers.randrange(2), numbers.randrange(1, 5)) for _ in range(10)]
        folder = tmp_path / f"run-{run}"
        config = {
            "epochs": 2,
            "batch_size": 32,
            "loop": taught["train_rows"],
            "kills": kills,
            "folder": str(folder),
        }
        place = RunConfig(storage_path=str(folder), failure_config=FailureConfig(max_failures=len(kills)))
        killed = fit(killed_at_steps, config, 2, run_config=place).return_value
        assert len(list(folder.glob("kill-*"))) == len(kills)
        assert max(abs(alone[name] - killed[name]).max() for name in alone) < 1e-5


def killed_at_steps(config):
    """The lesson's loop, in which a rank kills itself after some steps of each attempt but the last."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    attempt = sum(name.startswith("kill-") for name in os.listdir(config["folder"]))
    left = itertools.count(1)

    def count(*_):
        if attempt < len(config["kills"]):
            rank, step = config["kills"][attempt]
            if ray.train.get_context().get_world_rank() == rank and next(left) == step:
                open(f"{config['folder']}/kill-{attempt}", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_post_hook(count)
    return config["loop"](config)
