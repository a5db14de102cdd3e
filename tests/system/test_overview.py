"""What the lab runs and where it listens, read off real processes."""

import sys

import psutil
import pytest

from labkit.errors import LabError
from labkit.system import overview
from labkit.system.process_registry import ProcessRegistry
from labs import until

SERVER = """
import socket, sys, time
sockets = []
for address in sys.argv[1:]:
    sockets.append(socket.create_server((address, 0)))
    print(sockets[-1].getsockname()[1], flush=True)
time.sleep(60)
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a recorded Python process, and stops all of them at the end."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    registry = ProcessRegistry(tmp_path)

    def run(role, program, *arguments):
        command = [sys.executable, "-c", program, *arguments]
        return registry.start(command, role=role, group_id="lab-1", log=tmp_path / f"{role}.log")

    yield run
    registry.stop_all()


def test_counts_processes_and_memory_of_each_program(tmp_path, start):
    parent = start("head: dashboard", PARENT)
    start("node-2: raylet", PARENT)
    start("watchdog", "import time; time.sleep(60)")
    until(lambda: len(overview.processes().rows) == 4)
    until(lambda: psutil.Process(parent.pid).children())
    table = overview.processes()
    assert [row[:3] for row in table.rows] == [
        ("head", "dashboard", 2),
        ("node-2", "raylet", 1),
        ("node-2", "worker", 1),
        ("–", "watchdog", 1),
    ]
    assert all(megabytes > 0 and purpose for *_, megabytes, purpose in table.rows)
    assert table.line == f"5 processes, {sum(row[3] for row in table.rows)} MB"


def test_says_from_where_a_port_is_reached(tmp_path, start):
    start("head: dashboard", SERVER, "127.0.0.1")
    start("head: raylet", SERVER, "0.0.0.0", "0.0.0.0")
    logs = [tmp_path / "head: dashboard.log", tmp_path / "head: raylet.log"]
    until(lambda: sum(len(log.read_text().split()) for log in logs) == 3)
    raylet, dashboard = overview.ports().rows
    assert dashboard == ("head", "dashboard", "this machine", logs[0].read_text().strip())
    assert raylet[:3] == ("head", "raylet", "the network")
    assert set(raylet[3].split(", ")) == set(logs[1].read_text().split())


def test_a_lab_that_runs_nothing_is_said_so(tmp_path, start):
    with pytest.raises(LabError, match="cluster.start"):
        overview.processes()
    process = start("watchdog", "pass")
    process.wait()
    with pytest.raises(LabError):
        overview.ports()
