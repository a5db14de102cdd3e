"""Processes of this machine: which one a pid means, what they were given, how they are ended."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One process for ever; a pid alone is used again.

    Attributes:
        pid: its number.
        created: when it began, in seconds since the boot. The time of day may be set right at any
            moment, and with it what the system says of all times before.
        boot: id of this boot of the machine, where it has one.
    """

    pid: int
    created: float
    boot: str

    @classmethod
    def of(cls, pid: int) -> "Identity":
        """The process that has `pid` now; one that reads as dead if there is none."""
        return cls(pid=pid, created=_created(pid), boot=_boot_id())

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        with contextlib.suppress(psutil.Error):
            same = self.boot == _boot_id() and abs(_created(self.pid) - self.created) < 0.1
            return same and not _is_zombie(psutil.Process(self.pid))
        return False


def living() -> Iterator[tuple[psutil.Process, int]]:
    """All living processes of the machine, each with the number of its session."""
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            session = os.getsid(process.pid)
            if not _is_zombie(process):
                yield process, session


def variable(process: psutil.Process, name: str) -> str | None:
    """A variable in a process's environment; None if it has none, "" if all of it was overwritten."""
    with contextlib.suppress(psutil.Error):
        environment = process.environ()
        return environment.get(name) if environment else ""
    return None


def parent_of(process: psutil.Process) -> int:
    """The pid of its parent, 0 if it is gone."""
    with contextlib.suppress(psutil.Error):
        return process.ppid()
    return 0


def memory(process: psutil.Process) -> int:
    """Bytes of memory of a process, and its part of what it shares; 0 if it is gone.

    Forks share what was imported before them. So the sum over all processes is what they take together.
    Where the system does not tell how many share a page (all but Linux), what is shared is left out. Takes
    some milliseconds: the system counts pages.
    """
    with contextlib.suppress(psutil.Error):
        info = process.memory_full_info()
        return getattr(info, "pss", info.uss)
    return 0


def program(process: psutil.Process) -> str:
    """What a process runs, in one word: of a Python process the script or module."""
    with contextlib.suppress(psutil.Error):
        command = [part for part in process.cmdline()[1:] if part != "-m" and not part.startswith("-")]
        if process.name().startswith("python") and command:
            return Path(command[0]).stem
        return process.name()
    return "gone"


def end(processes: list[psutil.Process], *, grace: float) -> None:
    """Ask them to end, and after `grace` seconds make them (0: at once). This process is left out."""
    others = [process for process in processes if process.pid != os.getpid() and process.is_running()]
    for number in (signal.SIGTERM, signal.SIGKILL) if grace else (signal.SIGKILL,):
        for process in others:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        others = _left(others, seconds=grace or 3.0)


def _left(processes: list[psutil.Process], *, seconds: float) -> list[psutil.Process]:
    """Those that still live after `seconds`."""
    deadline = time.monotonic() + seconds
    while processes and time.monotonic() < deadline:
        # psutil would wait for a zombie too; in a container there may be nobody to reap an orphan.
        _, processes = psutil.wait_procs(processes, timeout=0.05)
        processes = [process for process in processes if not _is_zombie(process)]
    return processes


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True  # it went while we looked


def _created(pid: int) -> float:
    try:
        # The system counts from the boot; psutil adds the time of the boot, which moves with the clock.
        return psutil.Process(pid).create_time() - psutil.boot_time()
    except psutil.Error:
        return 0.0


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
