"""Four times the object store's size goes through a preprocessing, and the memory stays bounded."""

import os
import sys

import pytest
from ray import cloudpickle

import labs
from benchmarks import memory as benchmark
from labkit import cluster, storage

pytestmark = pytest.mark.fault

cloudpickle.register_pickle_by_value(sys.modules["benchmarks.memory"])  # workers cannot import it


def test_four_times_the_object_store_goes_through(capsys):
    with labs.home():
        os.environ["LABKIT_PANEL"] = "text"
        with cluster.start(object_store_bytes=100_000_000), storage.start() as store:
            streamed = benchmark.stream(store, times=4)
    assert streamed.passed >= 4 * streamed.capacity > 300e6
    assert 0 < streamed.stored_peak < 0.9 * streamed.capacity
    # Two readers and a few more processes may start meanwhile; what passes through must not stay in them.
    assert streamed.processes_peak - streamed.processes_before < 0.9e9
    with capsys.disabled():
        print(f"\n{streamed}")
