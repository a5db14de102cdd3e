"""What this machine has: cores, memory, GPUs, an S3 server, free ports, installed packages.

Only facts, each found in milliseconds; `labkit.system.diagnosis` judges them. Inside a container its limits
count, not the size of the machine.
"""

import contextlib
import itertools
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from labkit.errors import SetupError

_CGROUP = Path("/sys/fs/cgroup")
_ENGINES = ("labkit", "ray", "torch", "tensorflow", "tf-keras", "pyspark")


def cores() -> float:
    """Cores that this process may use: the fewer of its affinity and its container's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, period = _cpu_quota()
    return min(float(allowed), quota / period) if quota > 0 and period > 0 else float(allowed)


def memory() -> tuple[int, int]:
    """(total, available) bytes, as the container allows."""
    host = psutil.virtual_memory()
    for limit, used, cache_key in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),  # cgroup v1
    ):
        total, current = _number(_CGROUP / limit), _number(_CGROUP / used)
        if 0 < total < host.total and current >= 0:
            # The kernel counts cached files as used, and drops them when memory is needed.
            stat = _read((_CGROUP / limit).with_name("memory.stat"))
            cached = int(_match(rf"(?m)^{cache_key} (\d+)$", stat) or 0)
            return total, max(0, min(host.available, total - current + cached))
    return host.total, host.available


def _cpu_quota() -> tuple[int, int]:
    """(quota, period) of the container's CPU time in microseconds; (-1, -1) where there is no limit."""
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")  # "150000 100000", or "max 100000"
    if quota.isdigit() and period.strip().isdigit():
        return int(quota), int(period)
    return _number(_CGROUP / "cpu" / "cpu.cfs_quota_us"), _number(_CGROUP / "cpu" / "cpu.cfs_period_us")


def shared_memory() -> int | None:
    """Free bytes of ``/dev/shm``, where Ray keeps its object store; None where there is none (macOS)."""
    with contextlib.suppress(OSError):
        return shutil.disk_usage("/dev/shm").free
    return None


def gpus() -> list[str]:
    """Names of the NVIDIA GPUs; empty without a driver."""
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    if files:
        return [_match(r"Model:\s*(.+)", _read(file)) or "NVIDIA GPU" for file in files]
    command = shutil.which("nvidia-smi")  # a GPU below Windows (WSL) has no /proc entry
    return list(_listed_by(command)) if command else []


def visible_gpus() -> int:
    """How many NVIDIA GPUs this process may use: those that CUDA_VISIBLE_DEVICES leaves of `gpus`."""
    count = len(gpus())
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return count
    # CUDA ends the list at the first entry that names no GPU, such as -1.
    ids = itertools.takewhile(re.compile(r"\s*(\d+\s*$|GPU-|MIG-)").match, chosen.split(","))
    return min(count, len(list(ids)))


@cache
def _listed_by(nvidia_smi: str) -> tuple[str, ...]:
    """The GPUs' names as the driver's program gives them. It may take a second, so it is asked once."""
    listed = _output([nvidia_smi, "--query-gpu=name", "--format=csv,noheader"])
    return tuple(line.strip() for line in listed.splitlines() if line.strip())


def object_server() -> tuple[str, str] | None:
    """(name, path) of a program that serves S3: ``minio`` on the PATH, else ``rclone``; None without both.

    pip installs rclone next to python, which may not be on the PATH.
    """
    beside = str(Path(sys.executable).parent)
    for name, where in (("minio", None), ("rclone", beside), ("rclone", None)):
        if path := shutil.which(name, path=where):
            return name, path
    return None


def port_is_free(port: int) -> bool:
    """Whether a server could listen on `port` of loopback now (0: on any port)."""
    try:
        return _bound(port) > 0
    except OSError:
        return False


def free_port(wanted: int = 0) -> int:
    """A port of loopback that is free: `wanted` if possible, else one that the system chooses.

    The system gives out a port again only after a long time, so labs that start at the same moment get
    different ones.

    Raises:
        SetupError: there is none.
    """
    try:
        return _bound(wanted if port_is_free(wanted) else 0)
    except OSError as error:
        fix = "stop some servers on this machine"
        raise SetupError("find a free port", error.strerror or str(error), fix) from None


def _bound(port: int) -> int:
    with socket.socket() as server:
        # As servers do: a port whose last connection has just ended counts as free.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        return server.getsockname()[1]


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the engines that are installed; nothing is imported."""
    versions = {"python": platform.python_version()}
    for package in _ENGINES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def this_host() -> dict[str, Any]:
    """What a time depends on, without the machine's name: cpus, cpu, memory_gib, platform, gpus."""
    cpus = cores()
    return {
        "cpus": int(cpus) if cpus.is_integer() else cpus,
        "cpu": _match(r"(?m)^model name\s*:\s*(.+)$", _read(Path("/proc/cpuinfo"))) or platform.processor(),
        "memory_gib": round(memory()[0] / 2**30, 1),
        "platform": f"{platform.system()} {platform.machine()}",
        "gpus": gpus(),
    }


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _number(path: Path) -> int:
    """The whole number in a file; -1 where there is no file, or no number in it."""
    text = _read(path)
    return int(text) if text.isdigit() else -1


def _match(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text)
    return found[1].strip() if found else None


def _output(command: list[str], seconds: float = 2.0) -> str:
    """What a command prints, to stdout and stderr; nothing if it fails or takes too long."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, check=True
        ).stdout
    return ""
