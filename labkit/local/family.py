"""The processes that the lab runs for one home folder, on this machine or container.

Each process that the lab starts has the mark ``LABKIT_GROUP=GROUP@LAB`` in its environment. GROUP is what it
belongs to, such as "cluster" or "store". LAB identifies the home folder and the host, because several
machines and containers may share a home. Children inherit the mark. Where a program overwrites its
environment (Ray's workers do) or gives its child another one, the parent or the POSIX session shows whose it
is. So nothing is recorded, and no process is ever looked up by its name.
"""

import contextlib
import functools
import hashlib
import os
import shutil
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import psutil

from labkit import machine, process_info
from labkit.errors import BadInput
from labkit.settings import NODE_NAME

MARK = "LABKIT_GROUP"
CLUSTER = "cluster"  # the group of the nodes with their fork servers
STORE = "store"  # the group of the object server
SUPERVISOR = "supervisor"  # the group of the supervisor, and of what it inherits and nothing else explains
SOCKET_LIMIT = 107 if sys.platform == "linux" else 103  # bytes of a Unix socket's path
_SOCKET_TAIL = len("/abcdef/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store.1")


@dataclass(frozen=True)
class Member:
    """A running process of the lab."""

    process: psutil.Process
    group: str  # what it belongs to: "cluster", "store", "spark-…"
    node: str  # the cluster's node that it runs on, or ""
    session: int  # its POSIX session; a node's daemons have one in common
    origin: psutil.Process  # the process that it descends from within its group; for a daemon, itself
    # Its variables, with secrets; empty if it has overwritten them.
    environment: dict[str, str] = field(repr=False, compare=False)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_origin(self) -> bool:
        """True for a daemon, and False for the child of one."""
        return self.process == self.origin

    @property
    def program(self) -> str:
        """The program of the daemon that it is or descends from, such as "raylet"."""
        return process_info.program_name(self.origin)

    @property
    def role(self) -> str:
        """Its node and program, such as "head: raylet"."""
        return f"{self.node or self.group.partition('-')[0]}: {self.program}"


def mark(home: Path, group: str) -> dict[str, str]:
    """Return the environment variable of a process that belongs to `group`. A missing home is created."""
    with contextlib.suppress(OSError):  # the supervisor's start reports it
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    return {MARK: f"{group}@{lab_id(home)}"}


def lab_id(home: Path) -> str:
    """Return what identifies a home folder on this host; "" if there is no such folder."""
    with contextlib.suppress(OSError):
        status = os.stat(home)  # one folder may be mounted at several paths
        text = f"{machine.host_id()} {status.st_dev} {status.st_ino}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]
    return ""


def running(home: Path, group: str | None = None, node: str | None = None, *, lab: str = "") -> list[Member]:
    """List all running processes of a home on this host, or those of a group or node, oldest first.

    `lab` is `lab_id` of the home, if that was removed.
    """
    lab = lab or lab_id(home)
    processes = _processes() if lab else {}
    mark_of_session = {}
    for each in processes.values():
        mark = _Mark.of(each.environment)
        if mark is not None and mark.lab == lab:
            mark_of_session[each.session] = mark

    @functools.cache
    def member(pid: int) -> Member | None:
        if pid not in processes:
            return None
        each = processes[pid]
        if each.environment or not each.session:  # the kernel's own threads have neither
            mark = _Mark.of(each.environment)
        else:  # it has overwritten its environment
            mark = mark_of_session.get(each.session)
        parent = member(each.parent)
        if mark is None and parent is not None:
            mark = _Mark(parent.group, lab, parent.node)
        if mark is None or mark.lab != lab:
            return None
        origin = each.process
        if parent is not None and parent.group == mark.group != SUPERVISOR:
            origin = parent.origin
        return Member(each.process, mark.group, mark.node, each.session, origin, each.environment)

    chosen = []
    for pid in processes:
        candidate = member(pid)
        if candidate and group in (None, candidate.group) and node in (None, candidate.node):
            chosen.append(candidate)
    # Start times are in hundredths of a second; of two in the same one, the larger pid is the later.
    return sorted(chosen, key=lambda member: (member.process.create_time(), member.pid))


class _Process(NamedTuple):
    """A running process of this user."""

    process: psutil.Process
    parent: int
    session: int
    environment: dict[str, str]


def _processes() -> dict[int, _Process]:
    """Return this user's running processes by pid."""
    processes = {}
    for process in psutil.process_iter():
        # One that has just ended, or is another user's, is none of ours.
        with contextlib.suppress(psutil.Error, OSError), process.oneshot():
            if not process_info.has_ended(process):
                session = os.getsid(process.pid)
                processes[process.pid] = _Process(process, process.ppid(), session, process.environ())
    return processes


class _Mark(NamedTuple):
    """The mark of a process, which its environment holds."""

    group: str
    lab: str
    node: str

    @classmethod
    def of(cls, environment: dict[str, str]) -> Self | None:
        """Read the mark; None without one."""
        text = environment.get(MARK)
        if not text:
            return None
        group, _, lab = text.rpartition("@")
        return cls(group, lab, environment.get(NODE_NAME, ""))


def groups(home: Path) -> set[str]:
    """Return the groups of a home that have running processes, without the supervisor's."""
    return {member.group for member in running(home)} - {SUPERVISOR}


def other_homes(home: Path) -> list[Path]:
    """Return the homes of this user's other labs that run on this host: each has a supervisor."""
    homes = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            mark = _Mark.of(process.environ())
            if mark is not None and mark.group == SUPERVISOR and mark.lab != lab_id(home):
                *_, its_home, _folder = process.cmdline()
                homes.add(Path(its_home))
    return sorted(homes)


def end(
    home: Path, group: str | None = None, node: str | None = None, *, lab: str = "", grace: float = 3.0
) -> list[str]:
    """Stop processes of a home, all but this one. Return role and pid of the daemons among them.

    First the process that started last in each session gets SIGTERM, because it depends on the others: a
    raylet signs off at its GCS, and waits long for one that has ended. Then the rest get SIGTERM, and
    what still runs after `grace` seconds gets SIGKILL. `lab` is as for `running`.
    """
    members = running(home, group, node, lab=lab)
    if not members:
        return []
    daemons = [member for member in members if member.is_origin and member.pid != os.getpid()]
    names = [f"{daemon.role} (process {daemon.pid})" for daemon in daemons]
    last_of_session = {daemon.session: daemon.process for daemon in daemons}
    processes = {member.process for member in members}
    folders = process_info.listening_folders(processes)
    process_info.terminate(list(last_of_session.values()), grace=grace)
    for patience in (grace / 3, 0):
        # With what was started meanwhile. What is no longer listed, since its parent has ended, stays in.
        processes |= {member.process for member in running(home, group, node, lab=lab)}
        folders |= process_info.listening_folders(processes)
        process_info.terminate(list(processes), grace=patience)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return names


def folder_of(home: Path) -> Path:
    """Return the folder for a home's sockets and notes on this host: in it, if that path is short ASCII."""
    folder = home / "ray"
    if not str(folder).isascii() or len(str(folder)) + _SOCKET_TAIL > SOCKET_LIMIT:
        digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:8]
        folder = Path(f"/tmp/labkit-{os.getuid()}-{digest}")
    # Ray opens its own folder to every user (mode 0777); the one around it protects it.
    return folder / machine.host_id()


def make_folder(home: Path) -> Path:
    """Create a home and `folder_of` it. Raise an OSError, or `BadInput` if other users may enter it."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    own = folder_of(home)
    folder = own.parent
    with contextlib.suppress(FileExistsError):  # of a link to nowhere
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # In /tmp, a link may be a neighbour's.
    status = folder.lstat() if folder.parent == Path("/tmp") else folder.stat()
    is_open = stat.S_IMODE(status.st_mode) & 0o077
    if status.st_uid != os.getuid() or is_open or not stat.S_ISDIR(status.st_mode):
        fix = f"chmod 700 {folder}, or set LABKIT_HOME to a folder of yours"
        raise BadInput(f"use {folder} for sockets", "other users may enter it", fix)
    own.mkdir(exist_ok=True)
    return own
