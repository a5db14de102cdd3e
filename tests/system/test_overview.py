"""What the lab runs and where it listens, read off real processes."""

import os
import sys

import pytest

from labkit.errors import LabError
from labkit.system import overview, supervision
from labs import until

SERVER = """
import socket, sys, time
sockets = []
for address in sys.argv[1:]:
    sockets.append(socket.create_server((address, 0)))
    print(sockets[-1].getsockname()[1], flush=True)
time.sleep(600)
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a Python process of a node, whose program has this name, and stops all of them at the end."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))

    def run(node, name, program, *arguments):
        (tmp_path / f"{name}.py").write_text(program)
        command = [sys.executable, str(tmp_path / f"{name}.py"), *arguments]
        environment = {**os.environ, "LABKIT_NODE": node}
        log = tmp_path / f"{name}.log"
        return supervision.start(tmp_path, command, group="one", log=log, env=environment)

    yield run
    supervision.stop(tmp_path)


def test_counts_processes_and_memory_of_each_program(start):
    start("head", "dashboard", PARENT)
    start("node-2", "raylet", PARENT)
    counted = [
        ("head", "dashboard", 2),
        ("node-2", "raylet", 1),
        ("node-2", "worker", 1),
        ("–", "supervisor", 1),
    ]
    until(lambda: [row[:3] for row in overview.processes().rows] == counted)
    table = overview.processes()
    assert all(megabytes > 0 and purpose for *_, megabytes, purpose in table.rows)
    assert table.line == f"5 processes, {sum(row[3] for row in table.rows)} MB"


def test_says_from_where_a_port_is_reached(tmp_path, start):
    start("head", "dashboard", SERVER, "127.0.0.1")
    start("head", "raylet", SERVER, "0.0.0.0", "0.0.0.0")
    logs = [tmp_path / "dashboard.log", tmp_path / "raylet.log"]
    until(lambda: sum(len(log.read_text().split()) for log in logs if log.exists()) == 3)
    raylet, dashboard = overview.ports().rows
    assert dashboard == ("head", "dashboard", "this machine", logs[0].read_text().strip())
    assert raylet[:3] == ("head", "raylet", "the network")
    assert set(raylet[3].split(", ")) == set(logs[1].read_text().split())


def test_a_lab_that_runs_nothing_says_what_to_do(start, monkeypatch):
    with pytest.raises(LabError, match="cluster.start"):
        overview.processes()
    process = start("head", "raylet", "pass")
    until(lambda: process.status() is not None)
    with pytest.raises(LabError):
        overview.ports()
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.7:6379")  # a start would only connect to that cluster
    with pytest.raises(LabError, match="not started by it") as raised:
        overview.processes()
    assert "cluster.start" not in raised.value.fix and "ray.nodes()" in raised.value.fix
