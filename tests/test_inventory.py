"""What the lab runs and where it listens, read off real processes."""

import subprocess
import sys
import time

import psutil
import pytest

from labkit import inventory
from labkit.errors import ClusterError
from labkit.processes import Registry

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
def start(tmp_path):
    """Starts a recorded Python process, and stops all of them at the end."""
    registry = Registry(tmp_path)

    def run(role, program, *arguments):
        command = [sys.executable, "-c", program, *arguments]
        return registry.start(command, role=role, lab="lab-1", log=tmp_path / f"{role}.log")

    yield run
    registry.stop_all()


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_counts_processes_and_memory_of_each_program(tmp_path, start):
    parent = start("head: dashboard", PARENT)
    start("node-2: raylet", PARENT)
    start("keeper", "import time; time.sleep(60)")
    wait_for(lambda: len(inventory.processes(tmp_path)) == 4)
    wait_for(lambda: psutil.Process(parent.pid).children())
    table = inventory.processes(tmp_path)
    assert list(table.index) == [
        ("head", "dashboard"),
        ("node-2", "raylet"),
        ("node-2", "worker"),
        ("–", "keeper"),
    ]
    assert table["processes"].to_list() == [2, 1, 1, 1]
    assert (table["MB"] > 0).all()
    assert table["what it is for"].str.len().between(1, 50).all()


def test_says_from_where_a_port_is_reached(tmp_path, start):
    start("head: dashboard", SERVER, "127.0.0.1")
    start("head: raylet", SERVER, "0.0.0.0", "0.0.0.0")
    logs = [tmp_path / "head: dashboard.log", tmp_path / "head: raylet.log"]
    wait_for(lambda: sum(len(log.read_text().split()) for log in logs) == 3)
    table = inventory.ports(tmp_path)
    assert table["reached from"].to_dict() == {
        ("head", "raylet"): "the network",
        ("head", "dashboard"): "this machine",
    }
    assert table.loc[("head", "dashboard"), "ports"] == logs[0].read_text().strip()
    assert set(table.loc[("head", "raylet"), "ports"].split(", ")) == set(logs[1].read_text().split())


def test_a_lab_that_runs_nothing_is_said_so(tmp_path, start):
    with pytest.raises(ClusterError, match="cluster.start"):
        inventory.processes(tmp_path)
    process = start("keeper", "pass")
    process.wait()
    with pytest.raises(ClusterError):
        inventory.ports(tmp_path)


def test_importing_it_is_light():
    code = "import sys, labkit.inventory; print('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
