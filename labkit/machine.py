"""What this machine has: cores, memory, GPUs, rclone, free ports, installed packages.

Only facts, each found in milliseconds; `labkit.local.doctor` judges them. Inside a container its limits
count, not the size of the machine.
"""

import base64
import contextlib
import hashlib
import itertools
import os
import platform
import random
import re
import shutil
import socket
import subprocess
import sys
import uuid
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from labkit.files import text_of

# A server takes its port seconds later. Linux gives those from 32768 on to outgoing connections meanwhile.
_PORTS = range(20_000, 32_000)
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"  # the network interface, for gloo
_CGROUP = Path("/sys/fs/cgroup")
_ENGINES = ("labkit", "ray", "torch", "tensorflow", "tf-keras", "pyspark")


def cores() -> float:
    """Return the cores that this process may use: the fewer of its affinity and its container's quota."""
    cores = float(os.cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):
        cores = float(len(os.sched_getaffinity(0)))
    for folder in _cgroups():
        limit = re.match(r"(\d+) (\d+)", text_of(folder / "cpu.max"))  # microseconds in each period
        if limit:
            cores = min(cores, int(limit[1]) / int(limit[2]))
    return cores


def memory() -> tuple[int, int]:
    """Return the total and the available bytes of memory, as the container allows."""
    import psutil  # takes longer than all else here, and a worker asks for its cores alone

    host = psutil.virtual_memory()
    total = host.total
    available = host.available
    for folder in _cgroups():
        limit = text_of(folder / "memory.max")
        used = text_of(folder / "memory.current")
        if limit.isdigit() and used.isdigit() and int(limit) < total:
            # The kernel counts cached files as used, and drops them when memory is needed.
            cached = int(_match(r"(?m)^inactive_file (\d+)$", text_of(folder / "memory.stat")) or 0)
            total = int(limit)
            available = max(0, min(available, total - int(used) + cached))
    return total, available


def _cgroups() -> list[Path]:
    """Return the cgroup of this process and those above it, whose limits count as well (cgroup v2)."""
    own = _match(r"(?m)^0::(/.*)$", text_of(Path("/proc/self/cgroup"))) or "/"
    folder = _CGROUP / own.strip("/")
    return [path for path in (folder, *folder.parents) if path.is_relative_to(_CGROUP)]


def shared_memory() -> int | None:
    """Return the free bytes of ``/dev/shm``, where Ray keeps its object store; None on macOS, without one."""
    with contextlib.suppress(OSError):
        return shutil.disk_usage("/dev/shm").free
    return None


@cache
def gpus() -> tuple[str, ...]:
    """Return the names of the NVIDIA GPUs; empty without a driver."""
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    names = [_match(r"Model:\s*(.+)", text_of(file)) or "NVIDIA GPU" for file in files]
    if names:
        return tuple(names)
    # A GPU below Windows (WSL) has no /proc entry. The driver's program may take a second.
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        output = subprocess.check_output(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=2,
        )
        names = [line.strip() for line in output.splitlines()]
    return tuple(filter(None, names))


def visible_gpus() -> int:
    """Count the NVIDIA GPUs that this process may use: those that CUDA_VISIBLE_DEVICES leaves of `gpus`."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return len(gpus())
    is_gpu = re.compile(r"\s*(\d+\s*$|GPU-|MIG-)").match
    # CUDA ends the list at the first entry that names no GPU, such as -1.
    ids = list(itertools.takewhile(is_gpu, chosen.split(",")))
    return min(len(gpus()), len(ids))


def rclone() -> str | None:
    """Return the path of ``rclone``, which serves S3; pip installs it next to python, maybe off the PATH."""
    next_to_python = str(Path(sys.executable).parent)
    return shutil.which("rclone", path=next_to_python) or shutil.which("rclone")


def free_port(wanted: int = 0) -> int:
    """Return a port of loopback that is free: `wanted` if possible, else one at random."""
    # Not by the generator that a notebook has seeded: each of its starts would try the same ports.
    ports = random.SystemRandom().sample(_PORTS, 20)
    if wanted:
        ports.insert(0, wanted)
    for port in ports:
        with contextlib.suppress(OSError, OverflowError):  # it is taken, or no port at all
            return _bound(port)
    return _bound(0)  # or the error of the system


def _bound(port: int) -> int:
    with socket.socket() as server:
        # As servers do: a port whose last connection has just ended counts as free.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        return server.getsockname()[1]


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the engines that are installed; nothing is imported."""
    versions = {"python": platform.python_version()}
    for package in _ENGINES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def this_host() -> dict[str, Any]:
    """Describe what times depend on, without the machine's name: cpus, cpu, memory_gib, platform, gpus."""
    cpus = cores()
    cpu = _match(r"(?m)^model name\s*:\s*(.+)$", text_of(Path("/proc/cpuinfo")))
    total, _ = memory()
    return {
        "cpus": int(cpus) if cpus.is_integer() else cpus,
        "cpu": cpu or platform.processor(),
        "memory_gib": round(total / 2**30, 1),
        "platform": f"{platform.system()} {platform.machine()}",
        "gpus": list(gpus()),
    }


def host_id() -> str:
    """Identify the machine or container that this process is on: six characters, others after each boot.

    Several of them may share a home. A process can be signalled and reached on loopback only from the same
    boot, pid namespace and network namespace.
    """
    spaces = []
    with contextlib.suppress(OSError):
        spaces = [os.stat(f"/proc/self/ns/{name}").st_ino for name in ("pid", "net")]
    boot = boot_id() or uuid.getnode()
    digest = hashlib.sha256(f"{boot} {spaces}".encode()).digest()
    return base64.b32encode(digest)[:6].decode().lower()


def boot_id() -> str:
    """Identify this boot of the machine; "" on macOS, which has no such id."""
    return text_of(Path("/proc/sys/kernel/random/boot_id"))


def _match(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return match[1].strip() if match else None
