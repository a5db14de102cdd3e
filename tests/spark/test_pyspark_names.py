"""The undocumented names of pyspark that labkit uses, and what happens without them."""

from importlib import import_module
from importlib.metadata import version

import pytest

from labkit.spark import driver

NAMES = [
    "pyspark.java_gateway:launch_gateway",
    "pyspark:SparkContext._active_spark_context",
    "pyspark:SparkContext._ensure_initialized",
    "pyspark:SparkContext._gateway",
    "pyspark:SparkContext._jvm",
    "pyspark.sql:SparkSession._activeSession",
    "pyspark.sql:SparkSession._instantiatedSession",
    "pyspark.ml.torch.distributor:TorchDistributor._create_torchrun_command",
]


@pytest.mark.parametrize("name", NAMES)
def test_pyspark_has(name):
    module, _, path = name.partition(":")
    found = import_module(module)
    for part in path.split("."):
        assert hasattr(found, part), f"pyspark {version('pyspark')} has no {name}: see labkit/spark/driver.py"
        found = getattr(found, part)


def test_a_launch_without_the_name_for_torchruns_command(monkeypatch):
    from pyspark.ml.torch.distributor import TorchDistributor

    monkeypatch.delattr(TorchDistributor, "_create_torchrun_command")
    with driver.launch_variables({"LABKIT_TEST": "1"}):
        assert not hasattr(TorchDistributor, "_create_torchrun_command")


def test_only_a_launch_in_the_block_gets_the_variables():
    from pyspark.ml.torch.distributor import TorchDistributor

    about = {"local_mode": True, "num_processes": 2}
    with driver.launch_variables({"LABKIT_TEST": "1"}):
        inside = TorchDistributor._create_torchrun_command(about, "train.py")
    outside = TorchDistributor._create_torchrun_command(about, "train.py")
    assert inside == ["/usr/bin/env", "LABKIT_TEST=1", *outside]
