"""Facts about a machine, on machines made of a few files."""

import socket
import subprocess
from pathlib import Path

import pytest

from labkit import machine
from labkit.settings import Settings
from labs import program

HAS_GPUS = bool(list(Path("/proc/driver/nvidia/gpus").glob("*/information")))


@pytest.fixture
def cgroup(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    return tmp_path


def test_cores_and_memory_of_a_container(cgroup):
    free, (total, available) = machine.cores(), machine.memory()
    assert free >= 1 and 0 < available <= total
    (cgroup / "cpu.max").write_text("max 100000\n")
    assert machine.cores() == free
    (cgroup / "cpu.max").write_text("50000 100000\n")
    assert machine.cores() == 0.5
    (cgroup / "memory.current").write_text("100000000\n")
    for no_limit in ("max", "9223372036854771712"):
        (cgroup / "memory.max").write_text(no_limit)
        assert machine.memory()[0] == total
    (cgroup / "memory.max").write_text("300000000\n")
    assert machine.memory() == (300_000_000, min(available, 200_000_000))
    # Cached files count as used, and the kernel drops them where memory is needed.
    (cgroup / "memory.stat").write_text("anon 1\ninactive_file 50000000\n")
    assert machine.memory() == (300_000_000, min(available, 250_000_000))


def test_limits_of_the_group_itself_and_of_those_above_it(cgroup, monkeypatch):
    """A job of Slurm, or a service of systemd, has limits below the root."""
    job, read = cgroup / "jobs" / "7", machine.text_of
    monkeypatch.setattr(
        machine, "text_of", lambda path: "0::/jobs/7" if path.name == "cgroup" else read(path)
    )
    job.mkdir(parents=True)
    for file, text in (
        ("../cpu.max", "50000 100000"),
        ("cpu.max", "max 100000"),
        ("memory.max", "300000000"),
    ):
        (job / file).write_text(text)
    (job / "memory.current").write_text("100000000")
    assert machine.cores() == 0.5 and machine.memory()[0] == 300_000_000


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Puts a driver's program on the PATH, as below Windows (WSL), where the driver has no /proc entry."""
    if HAS_GPUS:
        pytest.skip("this machine has GPUs of its own")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    run = subprocess.run  # on a busy machine also this program takes its time
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: run(*args, **{**options, "timeout": 60}))

    def write(script):
        machine.gpus.cache_clear()
        program(tmp_path / "nvidia-smi", script)

    yield write
    machine.gpus.cache_clear()


def test_gpus_are_what_the_drivers_program_lists(nvidia_smi):
    nvidia_smi("echo 'no driver'; exit 9")
    assert machine.gpus() == ()
    nvidia_smi("echo 'Some GPU'; echo 'Some GPU'")
    assert machine.gpus() == ("Some GPU", "Some GPU")
    settings = Settings.from_env({})
    assert (settings.use_gpu, settings.num_workers) == (True, 2)


@pytest.mark.parametrize(
    ("visible", "count"),
    [("", 0), ("-1", 0), ("0", 1), ("0,1", 2), ("1, -1, 0", 1), ("0,1,2,3", 2), ("GPU-8f2a", 1)],
)
def test_hidden_gpus_are_not_counted(nvidia_smi, monkeypatch, visible, count):
    nvidia_smi("echo 'Some GPU'; echo 'Some GPU'")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.visible_gpus() == count
    assert Settings.from_env({}).use_gpu == (count > 0)


def test_a_port_is_free_until_a_server_listens():
    # Not one that the system would give to any other process, as soon as it is free.
    with socket.create_server(("127.0.0.1", machine.free_port())) as server:
        port = server.getsockname()[1]
        assert machine.free_port(port) not in (0, port)
    assert machine.free_port(port) == port
