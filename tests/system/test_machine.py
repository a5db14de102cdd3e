"""Facts about a machine, on machines made of a few files."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import machine
from labkit.settings import Settings


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


def test_cores_of_a_container_with_the_first_version_of_cgroups(cgroup):
    free = machine.cores()
    (cgroup / "cpu").mkdir()
    (cgroup / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (cgroup / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert machine.cores() == free
    (cgroup / "cpu" / "cpu.cfs_quota_us").write_text("50000\n")
    assert machine.cores() == 0.5


@pytest.mark.parametrize(
    ("limit", "used", "cached"),
    [
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_memory_of_a_container(cgroup, limit, used, cached):
    total, available = machine.memory()
    assert 0 < available <= total
    (cgroup / limit).parent.mkdir(exist_ok=True)
    (cgroup / limit).write_text("300000000\n")
    (cgroup / used).write_text("100000000\n")
    assert machine.memory() == (300_000_000, min(available, 200_000_000))
    # Cached files count as used, and the kernel drops them where memory is needed.
    (cgroup / limit).with_name("memory.stat").write_text(f"anon 1\n{cached} 50000000\n")
    assert machine.memory() == (300_000_000, min(available, 250_000_000))


def test_a_run_record_describes_the_container_and_not_the_machine_around_it(cgroup):
    (cgroup / "cpu.max").write_text("50000 100000\n")
    (cgroup / "memory.max").write_text(str(2**30))
    (cgroup / "memory.current").write_text("1")
    host = machine.this_host()
    assert (host["cpus"], host["memory_gib"]) == (0.5, 1.0)
    assert isinstance(host["gpus"], list)
    assert socket.gethostname() not in json.dumps(host)


def test_versions_are_known_without_an_import():
    code = (
        "import sys; from labkit import machine; v = machine.installed_versions(); "
        "assert {'python', 'labkit', 'ray', 'torch'} <= set(v), v; "
        "print(sorted({'ray', 'torch', 'tensorflow', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("limit", ["max", "9223372036854771712"])
def test_a_limit_above_the_machine_is_none(cgroup, limit):
    total, _ = machine.memory()
    (cgroup / "memory.max").write_text(limit)
    (cgroup / "memory.current").write_text("1")
    assert machine.memory()[0] == total


@pytest.fixture
def two_gpus_below_windows(tmp_path, monkeypatch):
    """In WSL there is no /proc entry of the driver; its program lists the GPUs."""
    if list(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        pytest.skip("this machine has GPUs of its own")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    command(tmp_path / "nvidia-smi", "echo 'Some GPU'; echo 'Some GPU'")


def test_gpus_are_what_the_driver_lists(tmp_path, monkeypatch):
    if list(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        assert all(machine.gpus())
        return
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert machine.gpus() == []
    command(tmp_path / "nvidia-smi", "echo 'no driver'; exit 9")
    assert machine.gpus() == []


def test_gpus_below_windows(two_gpus_below_windows, monkeypatch):
    assert machine.gpus() == ["Some GPU", "Some GPU"]
    settings = Settings.from_env({})
    assert (settings.use_gpu, settings.num_workers) == (True, 2)


@pytest.mark.parametrize(
    ("visible", "count"),
    [("", 0), ("-1", 0), ("0", 1), ("0,1", 2), ("1, -1, 0", 1), ("0,1,2,3", 2), ("GPU-8f2a", 1)],
)
def test_hidden_gpus_are_not_counted(two_gpus_below_windows, monkeypatch, visible, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.visible_gpus() == count
    assert Settings.from_env({}).use_gpu == (count > 0)


def test_a_port_is_free_until_somebody_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not machine.port_is_free(port)
        assert machine.free_port(port) != port
    assert machine.port_is_free(port)
    assert machine.free_port(port) == port


def test_shared_memory_is_counted_where_there_is_some():
    free = machine.shared_memory()
    assert (free is not None and free > 0) == os.path.isdir("/dev/shm")
