"""Processes of this machine: their identity, ports and name, and how to terminate them."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from labkit import machine


def identity(pid: int) -> dict[str, Any]:
    """Identify the process that has `pid` now, because pids are reused: by `pid`, `created` and `boot`.

    `created` is in seconds since the boot, because the wall clock may be adjusted at any time. Empty if no
    process with that pid runs.
    """
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if not has_ended(process):
            created = process.create_time() - psutil.boot_time()  # psutil adds the time of the boot
            return {"pid": pid, "created": created, "boot": machine.boot_id()}
    return {}


def listening(pid: int) -> set[int]:
    """Return the TCP ports on which a process listens."""
    with contextlib.suppress(psutil.Error):
        connections = psutil.Process(pid).net_connections("tcp")
        return {socket.laddr.port for socket in connections if socket.status == psutil.CONN_LISTEN}
    return set()


def program_name(process: psutil.Process) -> str:
    """Return the program of a process; of a Python process, the script or module; "gone" if it has ended."""
    with contextlib.suppress(psutil.Error):
        command = process.cmdline()[1:]
        if not process.name().startswith("python") or "-c" in command:
            return process.name()
        if "-m" in command[:-1]:
            module = command[command.index("-m") + 1].removesuffix(".server")
            if module.startswith("labkit."):
                module = module.rpartition(".")[2]
            return module
        scripts = [argument for argument in command if not argument.startswith("-")]
        if scripts and scripts[0].endswith("/labkit/local/forkserver/client.py"):
            scripts = scripts[2:]  # it stands for another program, whose fork it asks for at a socket
        return Path(scripts[0]).stem if scripts else process.name()
    return "gone"


def listening_folders(processes: Iterable[psutil.Process]) -> set[Path]:
    """Return the temporary folders of Python's `multiprocessing` in which processes listen.

    Ray's dashboard has some. Python removes a folder when its process exits, and not when it is terminated.
    """
    folders: set[Path] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            for socket in process.net_connections("unix"):
                folder = Path(socket.laddr or ".").parent
                if folder.name.startswith("pymp-"):
                    folders.add(folder)
    return folders


def terminate(processes: Iterable[psutil.Process], *, grace: float) -> None:
    """Send SIGTERM, and after `grace` seconds SIGKILL (0: SIGKILL at once). This process is left out."""
    others = [process for process in processes if process.pid != os.getpid() and process.is_running()]
    for number in [signal.SIGTERM, signal.SIGKILL] if grace else [signal.SIGKILL]:
        for process in others:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        deadline = time.monotonic() + (grace or 3.0)
        while others and time.monotonic() < deadline:
            # `psutil.wait_procs` would take a child's status away from its Popen, which then reports 0, and
            # pyspark waits forever for a JVM that ended so. A zombie has ended, also if no process reaps it.
            time.sleep(0.02)
            others = [process for process in others if not has_ended(process)]


def is_alive(process: psutil.Process) -> bool:
    """Return whether this process still runs, and its pid isn't another's by now. A zombie does not run."""
    return process.is_running() and not has_ended(process)


def has_ended(process: psutil.Process) -> bool:
    """Return whether the process is gone, or a zombie."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True
