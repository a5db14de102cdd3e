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

import psutil

from labkit import machine, process_info
from labkit.errors import LabError
from labkit.settings import NODE_NAME

MARK = "LABKIT_GROUP"
CLUSTER, STORE = "cluster", "store"  # groups: the nodes with their fork servers, and the object server
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
        """Whether it is a daemon, and not the child of one."""
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
    """The environment variable of a process that belongs to `group`. A missing home is created."""
    with contextlib.suppress(OSError):  # the supervisor's start reports it
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    return {MARK: f"{group}@{lab_id(home)}"}


def lab_id(home: Path) -> str:
    """Identifies a home folder on this host; "" if there is no such folder."""
    with contextlib.suppress(OSError):
        found = os.stat(home)  # the same one may be mounted at several paths
        text = f"{machine.host_id()} {found.st_dev} {found.st_ino}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]
    return ""


def running(home: Path, group: str | None = None, node: str | None = None, *, lab: str = "") -> list[Member]:
    """All running processes of a home on this host, or those of a group or node, oldest first.

    `lab` is `lab_id` of the home, if that was removed.
    """
    lab = lab or lab_id(home)
    seen: dict[int, tuple] = {}  # (process, parent, session, environment) by pid
    for process in psutil.process_iter() if lab else ():
        # Those that have ended, or are another user's, are none of ours.
        with contextlib.suppress(psutil.Error, OSError), process.oneshot():
            if not process_info.has_ended(process):
                about = process.ppid(), os.getsid(process.pid), process.environ()
                seen[process.pid] = (process, *about)
    of_session = {session: m for _, _, session, env in seen.values() if (m := _mark(env)) and m[1] == lab}

    @functools.cache
    def member(pid: int) -> Member | None:
        if pid not in seen:
            return None
        process, parent_pid, session, environment = seen[pid]
        # Without an environment, it has overwritten it; the kernel's own threads have no session, either.
        found = _mark(environment) if environment or not session else of_session.get(session)
        parent = member(parent_pid)
        if found is None and parent is not None:
            found = parent.group, lab, parent.node
        if found is None or found[1] != lab:
            return None
        origin = process
        if parent is not None and parent.group == found[0] != SUPERVISOR:
            origin = parent.origin
        return Member(process, found[0], found[2], session, origin, environment)

    members = [one for pid in seen if (one := member(pid)) is not None]
    chosen = [one for one in members if group in (None, one.group) and node in (None, one.node)]
    # Start times are in hundredths of a second; of two in the same one, the larger pid is the later.
    return sorted(chosen, key=lambda one: (one.process.create_time(), one.pid))


def _mark(environment: dict[str, str]) -> tuple[str, str, str] | None:
    """(group, lab, node) of a process that has this environment; None without a mark."""
    if not (text := environment.get(MARK)):
        return None
    group, _, lab = text.rpartition("@")
    return group, lab, environment.get(NODE_NAME, "")


def groups(home: Path) -> set[str]:
    """The groups of a home that have running processes, the supervisor's left out."""
    return {one.group for one in running(home)} - {SUPERVISOR}


def other_homes(home: Path) -> list[Path]:
    """Return the homes of this user's other labs that run on this host: each has a supervisor."""
    homes = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            mark_of = _mark(process.environ())
            if mark_of is not None and mark_of[0] == SUPERVISOR and mark_of[1] != lab_id(home):
                *_, its_home, _folder = process.cmdline()
                homes.add(Path(its_home))
    return sorted(homes)


def end(
    home: Path, group: str | None = None, node: str | None = None, *, lab: str = "", grace: float = 3.0
) -> list[str]:
    """Stop processes of a home, all but this one. Returns role and pid of the daemons among them.

    First the process that started last in each session gets SIGTERM, because it depends on the others: a
    raylet signs off at its GCS, and waits long for one that has ended. Then the rest get SIGTERM, and
    what still runs after `grace` seconds gets SIGKILL. `lab` is as for `running`.
    """
    if not (found := running(home, group, node, lab=lab)):
        return []
    daemons = [one for one in found if one.is_origin and one.pid != os.getpid()]
    names = [f"{one.role} (process {one.pid})" for one in daemons]
    last, members = {one.session: one.process for one in daemons}, {one.process for one in found}
    folders = process_info.listening_folders(members)
    process_info.terminate([*last.values()], grace=grace)
    for patience in (grace / 3, 0):
        # With what was started meanwhile. What is no longer found, since its parent has ended, stays in.
        members |= {one.process for one in running(home, group, node, lab=lab)}
        folders |= process_info.listening_folders(members)
        process_info.terminate([*members], grace=patience)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return names


def folder_of(home: Path) -> Path:
    """Where sockets and notes of a home are on this host: in it, if that path is short and ASCII."""
    folder = home / "ray"
    if not str(folder).isascii() or len(str(folder)) + _SOCKET_TAIL > SOCKET_LIMIT:
        digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:8]
        folder = Path(f"/tmp/labkit-{os.getuid()}-{digest}")
    # Ray opens its own folder to every user (mode 0777); the one around it protects it.
    return folder / machine.host_id()


def make_folder(home: Path) -> Path:
    """Create a home and `folder_of` it. Raises an OSError, or a `LabError` if other users may enter that."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    own = folder_of(home)
    folder = own.parent
    with contextlib.suppress(FileExistsError):  # of a link to nowhere
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # In /tmp, a link may be a neighbour's.
    found = folder.lstat() if folder.parent == Path("/tmp") else folder.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077 or not stat.S_ISDIR(found.st_mode):
        fix = f"chmod 700 {folder}, or set LABKIT_HOME to a folder of yours"
        raise LabError(f"use {folder} for sockets", "other users may enter it", fix)
    own.mkdir(exist_ok=True)
    return own
