"""What this machine is and has: cores, memory, shared memory, GPUs, a browser,
an S3 server, free ports.

Facts only, each looked up in milliseconds; `labkit.environment` judges them. A container's limits
count, not the size of the machine around it.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil

__all__ = ["chromium", "cores", "gpus", "memory", "object_server", "port_is_free", "shared_memory"]

_CGROUP = Path("/sys/fs/cgroup")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def cores() -> float:
    """Cores that this process may use: the fewer of its affinity and its container's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")  # "150000 100000", or "max 100000"
    if quota.isdigit() and period.strip().isdigit():
        return min(float(allowed), int(quota) / int(period))
    return float(allowed)


def memory() -> tuple[int, int]:
    """(total, available) bytes, as the container allows."""
    host = psutil.virtual_memory()
    limit, used = _read(_CGROUP / "memory.max"), _read(_CGROUP / "memory.current")
    if limit.isdigit() and used.isdigit() and int(limit) < host.total:
        return int(limit), min(host.available, int(limit) - int(used))
    return host.total, host.available


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
    listed = _output([command, "--query-gpu=name", "--format=csv,noheader"]) if command else ""
    return [line.strip() for line in listed.splitlines() if line.strip()]


def chromium() -> str | None:
    """Path of a Chromium or Chrome on the PATH."""
    return next((path for name in _BROWSERS if (path := shutil.which(name))), None)


def object_server() -> tuple[str, str] | None:
    """(name, path) of a program that serves S3: ``minio`` on the PATH, else ``rclone``; None without both.

    pip puts rclone beside python, which need not be on the PATH.
    """
    beside = str(Path(sys.executable).parent)
    for name, where in (("minio", None), ("rclone", beside), ("rclone", None)):
        if path := shutil.which(name, path=where):
            return name, path
    return None


def port_is_free(port: int) -> bool:
    """Whether a server could listen on `port` of loopback now (0: on any port)."""
    with socket.socket() as server:
        # As servers do: a port whose last connection has just ended counts as free.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""


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
