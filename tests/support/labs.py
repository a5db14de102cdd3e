"""For tests that start real clusters: a home of their own, and no trace of it afterwards."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import ray

from labkit.local import cluster
from labkit.local.lab import Lab
from labkit.machine import free_port
from labkit.panel.base import LivePanel
from labkit.panel.shown import Shown

ROOT = Path(__file__).resolve().parents[2]  # of the checkout


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
        end_spark()
        Lab(folder).stop()
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


def end_spark() -> None:
    """Stop this process's Spark with its JVM, so that the next session starts another one."""
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext

    if (context := SparkContext._active_spark_context) is not None:
        context.stop()
    if (gateway := SparkContext._gateway) is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # its JVM ends with that
        gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(name="home", scope="module")
def _home() -> Iterator[Path]:
    """`home` for all tests of a module."""
    with home() as folder:
        yield folder


@pytest.fixture(scope="module")
def lab(home: Path, request: pytest.FixtureRequest) -> Iterator["cluster.Cluster"]:
    """A cluster for all tests of a module: two nodes of 2 CPUs, or what its LAB asks of `cluster.start`.

    Its workers can't import the module, so what is in it goes to them by value, as from a notebook.
    """
    ray.cloudpickle.register_pickle_by_value(request.module)
    with cluster.start(**getattr(request.module, "LAB", {"nodes": 2, "cpus_per_node": 2})) as started:
        yield started


@contextlib.contextmanager
def plain_head(
    folder: Path, cpus: int, program: str | Path = sys.executable, **variables: str
) -> Iterator[str]:
    """A head of Ray's own `ray start`, as on a cluster of others; yields its address."""
    command = f"""-m ray.scripts.scripts start --head --port={free_port()} --num-cpus={cpus}
        --temp-dir={folder}/r --ray-client-server-port={free_port()} --include-dashboard=false
        --dashboard-agent-listen-port={free_port()} --min-worker-port=0 --max-worker-port=0
        --object-store-memory=80000000""".split()
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **variables}
    lab, log = Lab(folder), folder / "log"
    lab.use("plain")  # on a busy machine it takes longer than it would be kept
    try:
        head = lab.start([str(program), *command], group="plain", log=log, env=environment)
        until(lambda: head.status() is not None)
        assert head.status() == 0, log.read_text()
        yield re.findall(r"--address='([^']+)'", log.read_text())[-1]
    finally:
        lab.stop()


def python(code: str, *args: object, timeout: float = 300, **variables: str) -> subprocess.CompletedProcess:
    """Run some lines in a process of their own, with further environment variables."""
    command = [sys.executable, "-c", code, *map(str, args)]
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
    )


def program(path: Path, script: str) -> None:
    """Write a shell script that can be run."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def begin(code: str, *args: object, stderr: int = subprocess.DEVNULL) -> subprocess.Popen:
    """Start some lines in a process of their own, whose output can be read while it runs."""
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)


def until(condition: Callable[[], object], seconds: float = 300) -> None:
    """Wait until a condition holds; the test fails if it does not within `seconds`.

    They are for what never comes. A machine that is slow or busy takes many times as long as a quiet one.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def interrupt_when(condition: Callable[[], object]) -> None:
    """Interrupt the main thread of this process as soon as that holds."""

    def interrupt() -> None:
        until(condition)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


@contextlib.contextmanager
def held_cpus(number: int, says: Callable[[], str]) -> Iterator[list[str]]:
    """CPUs of Ray's cluster that another one holds until `says` returns a text; yields that in a list."""
    group, shown = ray.util.placement_group([{"CPU": 1}] * number), []
    assert group.wait(60)

    def look() -> None:
        try:
            until(says, seconds=120)
            shown.append(says())
        finally:
            ray.util.remove_placement_group(group)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    yield shown
    looking.join()


def shown(panel: LivePanel) -> Shown:
    """What the panel of a run that is over shows."""
    return panel.view(panel.state, panel.state.ended_at)


def runs(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # also one that ends between the two looks
        return False


def processes_of(home: Path) -> list[psutil.Process]:
    """All living processes that were given this home, or have a file in it open."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            files = [file.path for file in process.open_files()]
            # Ray's agents overwrite their environment with their title; their logs give them away.
            if process.environ().get("LABKIT_HOME") == str(home) or any(str(home) in f for f in files):
                processes.append(process)
    return processes


def wait_until_nothing_lives(home: Path, seconds: float = 45) -> None:
    """Nothing that was given this home is left, after the moment that a kernel and a supervisor take to end.

    It is less than a minute, after which the supervisor ends what has no user.
    """
    with contextlib.suppress(AssertionError):
        until(lambda: not processes_of(home), seconds)
    assert processes_of(home) == []


def solved_exercises(home: Path) -> set[str]:
    """The ids of the exercises that are recorded as solved in `home`."""
    path = home / "exercises.json"
    return set(json.loads(path.read_text()).get("solved", ())) if path.exists() else set()


def idle(lab: "cluster.Cluster", seconds: float = 120) -> bool:
    """Wait until all CPUs of a cluster come free again."""
    until(lambda: ray.available_resources().get("CPU", 0) >= lab.cpus, seconds)
    return True
