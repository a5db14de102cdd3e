"""For tests that start real clusters: a home of their own, and no trace of it afterwards."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from labkit import cluster, spark
from labkit.system.process_registry import ProcessRegistry


@contextlib.contextmanager
def home() -> Iterator[Path]:
    """A home folder with a short path (Ray's sockets are in it); what was started there is stopped."""
    folder = Path(tempfile.mkdtemp(prefix="lk"))
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(("LABKIT_", "RAY_"))]:
        del os.environ[name]
    os.environ.update(LABKIT_HOME=str(folder), LABKIT_SMALL="1")
    try:
        yield folder
    finally:
        if (lab := cluster.current()) is not None:
            lab.stop()
        if (session := spark.current()) is not None:
            session.stop()
        ProcessRegistry(folder).stop_all()
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(name="home", scope="module")
def _home() -> Iterator[Path]:
    """`home` for all tests of a module."""
    with home() as folder:
        yield folder


@pytest.fixture(scope="module")
def lab(home: Path, request: pytest.FixtureRequest) -> Iterator["cluster.Cluster"]:
    """A cluster for all tests of a module: two nodes of 2 CPUs, or what its LAB asks of `cluster.start`."""
    with cluster.start(**getattr(request.module, "LAB", {"nodes": 2, "cpus_per_node": 2})) as started:
        yield started


def python(code: str, *args: object, timeout: float = 90, **variables: str) -> subprocess.CompletedProcess:
    """Run some lines in a process of their own, with further environment variables."""
    command = [sys.executable, "-c", code, *map(str, args)]
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
    )


def solved_exercises(home: Path) -> set[str]:
    """The ids of the exercises that are recorded as solved in `home`."""
    path = home / "exercises.json"
    return set(json.loads(path.read_text())["solved"]) if path.exists() else set()


def idle(lab: "cluster.Cluster", seconds: float = 30) -> bool:
    """Whether all CPUs of a cluster come free again."""
    deadline = time.monotonic() + seconds
    while ray.available_resources().get("CPU", 0) < lab.cpus:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
