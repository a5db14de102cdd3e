"""The processes of a lab, which is one home folder on this machine or container (`labkit.local.lab`).

Each process that a lab starts has the mark ``LABKIT_GROUP=GROUP@LAB`` in its environment. GROUP is what it
belongs to, such as "cluster" or "store". LAB identifies the home folder and the host, because several
machines and containers may share a home. Children inherit the mark. Where a program overwrites its
environment (Ray's workers do) or gives its child another one, the parent or the POSIX session shows whose it
is. So nothing is recorded, and no process is ever looked up by its name.
"""

import contextlib
import functools
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import psutil

from labkit import process_info
from labkit.settings import NODE_NAME

MARK = "LABKIT_GROUP"
CLUSTER = "cluster"  # the group of the nodes with their fork servers
STORE = "store"  # the group of the object server
_GRACE = 3.0  # seconds between SIGTERM and SIGKILL
SUPERVISOR = "supervisor"  # the group of the supervisor, and of what it inherits and nothing else explains


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


def running(lab: str, group: str | None = None, node: str | None = None) -> list[Member]:
    """List all running processes of a lab on this host, or those of a group or node, oldest first.

    `lab` is its `Lab.id`; "", of a home that doesn't exist, has none.
    """
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
    def of(cls, environment: Mapping[str, str]) -> Self | None:
        """Read the mark; None without one."""
        text = environment.get(MARK)
        if not text:
            return None
        group, _, lab = text.rpartition("@")
        return cls(group, lab, environment.get(NODE_NAME, ""))


def groups(lab: str) -> set[str]:
    """Return the groups of a lab that have running processes, without the supervisor's."""
    return {member.group for member in running(lab)} - {SUPERVISOR}


def lab_of(environment: Mapping[str, str]) -> str:
    """Return the id of the lab that a process with these variables belongs to; "" for none."""
    mark = _Mark.of(environment)
    return mark.lab if mark is not None else ""


def other_homes(lab: str) -> list[Path]:
    """Return the homes of this user's other labs that run on this host: each has a supervisor."""
    homes = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            mark = _Mark.of(process.environ())
            if mark is not None and mark.group == SUPERVISOR and mark.lab != lab:
                *_, its_home, _folder = process.cmdline()
                homes.add(Path(its_home))
    return sorted(homes)


def end(lab: str, group: str | None = None, node: str | None = None) -> list[str]:
    """Stop processes of a lab, all but this one. Return role and pid of the daemons among them.

    First the process that started last in each session gets SIGTERM, because it depends on the others: a
    raylet signs off at its GCS, and waits long for one that has ended. Then the rest get SIGTERM, and
    what still runs after some seconds gets SIGKILL.
    """
    members = running(lab, group, node)
    if not members:
        return []
    daemons = [member for member in members if member.is_origin and member.pid != os.getpid()]
    names = [f"{daemon.role} (process {daemon.pid})" for daemon in daemons]
    last_of_session = {daemon.session: daemon.process for daemon in daemons}
    processes = {member.process for member in members}
    folders = process_info.listening_folders(processes)
    process_info.terminate(last_of_session.values(), grace=_GRACE)
    for patience in (_GRACE / 3, 0):
        # With what was started meanwhile. What is no longer listed, since its parent has ended, stays in.
        processes |= {member.process for member in running(lab, group, node)}
        folders |= process_info.listening_folders(processes)
        process_info.terminate(processes, grace=patience)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return names
