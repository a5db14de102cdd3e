"""The object store is killed in the middle of things: told by its name, nothing lost, and the work goes on.

One kill of each kind, at the same moment each time; `python -m benchmarks faults` does it at random ones.
"""

import os
import random
import sys

import pytest
from ray import cloudpickle

import labs
from benchmarks import faults
from labkit import cluster, storage
from labkit.settings import Settings

pytestmark = pytest.mark.fault

cloudpickle.register_pickle_by_value(sys.modules["benchmarks.faults"])  # workers cannot import it


@pytest.fixture(scope="module")
def settings():
    with labs.home():
        os.environ["LABKIT_PANEL"] = "none"
        with cluster.start(), storage.start():
            yield Settings.from_env()


def test_in_an_upload(settings):
    assert "a second upload sent all" in faults.kill_in_an_upload(random.Random(1), settings)


def test_while_a_training_saves_checkpoints(settings):
    assert "went on from there" in faults.kill_in_a_checkpoint(random.Random(1), settings)
