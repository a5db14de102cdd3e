"""A store in Ray: tasks, Ray Data and Ray Train reach it from processes that got no key."""

import json
import os
import random
import sys

import pytest
from ray import cloudpickle

import labs
import object_servers
from benchmarks import faults
from labkit.errors import LabError
from labkit.local import cluster, storage
from labkit.train import TrainPanel

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/storage/", "course/datasets/"), pytest.mark.fault]

# The workers cannot import these files: what is in them travels by value, as from a notebook.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(faults)


@pytest.fixture(scope="module")
def lab():
    """Two nodes; nothing of S3 is in their environment."""
    with labs.home():
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]  # labs.home puts them back
        os.environ["http_proxy"] = "http://127.0.0.1:9"  # a company's: no server listens there
        yield cluster.start(nodes=2, cpus_per_node=2)


@pytest.fixture(scope="module", params=object_servers.KINDS)
def store(lab, request, tmp_path_factory):
    # A home of its own: what is started in it is stopped with it.
    with object_servers.start(request.param, tmp_path_factory.mktemp("store")) as store:
        yield store


def test_a_task_on_every_node_reads_without_an_environment(lab, store):
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    store.files.pipe_file(store.storage_path("hello"), b"from the store")
    fs, path = store.filesystem, store.storage_path("hello")

    @ray.remote(num_cpus=1)
    def read():
        named = [name for name in os.environ if name.startswith(("AWS_", "LABKIT_S3"))]
        return named, fs.open_input_stream(path).read()

    nodes = [NodeAffinitySchedulingStrategy(node.id, soft=False) for node in lab.nodes]
    answers = ray.get([read.options(scheduling_strategy=node).remote() for node in nodes])
    assert answers == [([], b"from the store")] * 2


def loop(config):
    import tempfile

    import ray.train

    for epoch in range(3):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/epoch.json", "w") as file:
                json.dump(epoch, file)
            ray.train.report({"epoch": epoch}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def test_ray_train_keeps_checkpoints_there_and_finds_the_run_again(store):
    from ray.train import CheckpointConfig, Result, RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    name = "a[b] 50%? #1*"
    place = {"storage_path": store.storage_path("runs"), "storage_filesystem": store.filesystem}
    config = RunConfig(name=name, checkpoint_config=CheckpointConfig(num_to_keep=2), **place)
    DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=1), run_config=config).fit()
    path = store.storage_path("runs", name)
    again = Result.from_path(path, storage_filesystem=store.filesystem)
    with again.checkpoint.as_directory() as folder, open(f"{folder}/epoch.json") as file:
        assert json.load(file) == 2
    assert sum("epoch.json" in file for file in store.files.find(path)) == 2
    neighbour = store.storage_path("runs", "a[b] 50%x #1y", "f")
    store.files.pipe_file(neighbour, b"kept")
    store.filesystem.delete_dir(path)
    assert store.files.find(store.storage_path("runs")) == [neighbour]


def test_a_name_that_ray_cannot_carry_is_refused_before_the_start(lab):
    from ray.train import RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    trainer = DataParallelTrainer(
        loop, scaling_config=ScalingConfig(num_workers=1), run_config=RunConfig(name="größe")
    )
    with pytest.raises(LabError, match="ASCII"):
        TrainPanel("named").watch(trainer)


# -- the server is killed, always at the same moment; `python -m benchmarks faults` does it at random ones --


@pytest.fixture
def served(lab, monkeypatch):
    monkeypatch.setenv("LABKIT_PANEL", "none")
    with storage.start():
        yield


def test_in_an_upload(served):
    assert "a second upload sent all" in faults.kill_in_an_upload(random.Random(1))


def test_while_a_training_saves_checkpoints(served):
    assert "went on from there" in faults.kill_in_a_checkpoint(random.Random(1))
