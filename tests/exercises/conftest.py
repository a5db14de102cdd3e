"""Exercises that are solved here are recorded in a folder of the test, and a wrong answer does not raise."""

import pytest

import labs
from labkit import cluster


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.delenv("LABKIT_CHECK", raising=False)
    return tmp_path


@pytest.fixture(scope="package")
def lab():
    """One cluster for the checks of all lessons."""
    with labs.home(), cluster.start(nodes=1, cpus_per_node=4) as started:
        yield started
