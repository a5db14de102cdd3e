"""Facts about a machine, on machines made of a few files."""

import os
import socket
from pathlib import Path

import pytest

from labkit import machine


@pytest.fixture
def cgroup(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    return tmp_path


def command(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_cores_without_a_quota(cgroup):
    free = machine.cores()
    assert free >= 1
    (cgroup / "cpu.max").write_text("max 100000\n")
    assert machine.cores() == free


def test_cores_of_a_container(cgroup):
    (cgroup / "cpu.max").write_text("50000 100000\n")
    assert machine.cores() == 0.5


def test_memory_of_a_container(cgroup):
    total, available = machine.memory()
    assert 0 < available <= total
    (cgroup / "memory.max").write_text("300000000\n")
    (cgroup / "memory.current").write_text("100000000\n")
    assert machine.memory() == (300_000_000, min(available, 200_000_000))


@pytest.mark.parametrize("limit", ["max", "9223372036854771712"])
def test_a_limit_above_the_machine_is_none(cgroup, limit):
    total, _ = machine.memory()
    (cgroup / "memory.max").write_text(limit)
    (cgroup / "memory.current").write_text("1")
    assert machine.memory()[0] == total


def test_gpus_are_what_the_driver_lists(tmp_path, monkeypatch):
    if list(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        assert all(machine.gpus())
        return
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert machine.gpus() == []
    command(tmp_path / "nvidia-smi", "echo 'Some GPU'; echo 'Some GPU'")
    assert machine.gpus() == ["Some GPU", "Some GPU"]
    command(tmp_path / "nvidia-smi", "echo 'no driver'; exit 9")
    assert machine.gpus() == []


def test_chromium_goes_by_several_names(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.chromium() is None
    browser = command(tmp_path / "google-chrome", "exit 0")
    assert machine.chromium() == str(browser)


def test_a_port_is_free_until_somebody_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not machine.port_is_free(port)
    assert machine.port_is_free(port)


def test_shared_memory_is_counted_where_there_is_some():
    free = machine.shared_memory()
    assert (free is not None and free > 0) == os.path.isdir("/dev/shm")
