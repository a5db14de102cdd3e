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


@pytest.mark.parametrize(("version", "major"), [("17.0.9", 17), ("1.8.0_392", 8), ("25", 25), ("21-ea", 21)])
def test_java_is_read_from_its_release_file(tmp_path, monkeypatch, version, major):
    java = command(tmp_path / "bin" / "java", "exit 1")  # would fail if it were started
    (tmp_path / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert machine.java() == (java, major)


def test_java_without_a_release_file_is_asked(tmp_path, monkeypatch):
    java = command(tmp_path / "bin" / "java", """echo 'openjdk version "11.0.2" 2019-01-15' >&2""")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{java.parent}:/usr/bin:/bin")
    assert machine.java() == (java, 11)


def test_a_java_that_does_not_run_is_none(tmp_path, monkeypatch):
    command(tmp_path / "bin" / "java", "echo 'version \"17\"'; exit 1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert machine.java() is None
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert machine.java() is None


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
