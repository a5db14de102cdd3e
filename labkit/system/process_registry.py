"""Processes that the lab started: recorded in files, found again after a crash, stopped by that record.

Each start writes a file ``HOME/processes/HOST/GROUP/PID.json``. HOST is `labkit.machine.host_id`: what
another machine or container has recorded in the same home is not seen here, and so never removed or stopped.
The process gets a session of its own and ``LABKIT_GROUP=GROUP`` in its environment, so that its descendants
are found too (a raylet starts workers), including orphans and those in another session. No process is ever
looked up by name.

A watchdog process, ``python -m labkit.system.process_registry HOME GROUP SECONDS``, stops a group when all
processes that own it have ended. So a restarted kernel finds its cluster again, and a ``kill -9`` leaves
nothing behind.
"""

import contextlib
import json
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import psutil

from labkit import machine
from labkit.errors import LabError
from labkit.files import atomic_write, json_object
from labkit.system import process_info
from labkit.system.process_info import ProcessIdentity

GROUP_VARIABLE = "LABKIT_GROUP"  # marks the processes of a group
_HOST = "host.json"  # says which machine or container the folder around it belongs to
_GONE_SECONDS = 3.0  # records that were not there for so long are gone


@dataclass(frozen=True, kw_only=True)
class ProcessRecord(ProcessIdentity):
    """One process that the lab started.

    Attributes:
        role: its node and program, such as "head: raylet" or "watchdog".
        group_id: the id that all processes of one start share.
        session: its POSIX session, in which its descendants are, too.
    """

    role: str
    group_id: str
    session: int


class ProcessRegistry:
    """The processes of this machine or container that are recorded below one home folder.

    Args:
        home: ``LABKIT_HOME``. Nothing is created before the first `start`.
    """

    def __init__(self, home: Path | str) -> None:
        self._home = Path(home)
        self._folder = self._home / "processes" / machine.host_id()

    def start(
        self,
        command: list[str],
        *,
        role: str,
        group_id: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen:
        """Start `command` in a session of its own, append its output to `log`, and record it.

        Raises:
            LabError: there is no such program, or the log or the record cannot be written. Then nothing is
                left running.
        """
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as output:
                process = subprocess.Popen(
                    command,
                    stdin=stdin,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**(os.environ if env is None else env), GROUP_VARIABLE: group_id},
                )
        except OSError as error:
            raise _unwritable(f"start {role}", error) from error
        with contextlib.suppress(OSError, AttributeError):  # it ended at once, or this is no Linux
            # Its memory has keys in it, so it leaves no core dump, nor do its children.
            resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
        try:
            self.record(process.pid, role=role, group_id=group_id)
        except BaseException:
            # Without a record, nothing would ever stop it.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        return process

    def record(self, pid: int, *, role: str, group_id: str) -> ProcessRecord:
        """Write the record of a running process.

        Raises:
            LabError: the record cannot be written.
        """
        try:
            session = os.getsid(pid)
        except ProcessLookupError:
            session = pid  # it has ended, but its descendants may still run
        identity = asdict(ProcessIdentity.of(pid))
        record = ProcessRecord(**identity, role=role, group_id=group_id, session=session)
        self._write(group_id, f"{pid}.json", record)
        return record

    def record_session(self, leader: subprocess.Popen, *, role: str, group_id: str) -> list[ProcessRecord]:
        """Replace the record of `leader`, once it has exited, by records of the daemons left in its session.

        `ray start` exits and leaves such daemons.
        """
        left = {p.pid: p for p, session in process_info.iter_processes() if session == leader.pid != p.pid}
        records = []
        for pid, process in left.items():
            with contextlib.suppress(psutil.Error):
                if process.ppid() not in left:  # children of these are found through the session
                    name = f"{role}: {process_info.program_name(process)}"
                    records.append(self.record(pid, role=name, group_id=group_id))
        if leader.poll() is not None:
            self.remove(leader.pid, group_id=group_id)
        return records

    def records(self, group_id: str | None = None) -> list[ProcessRecord]:
        """All records, of processes that run or have ended, oldest first."""
        found = []
        for group in self.groups() if group_id is None else [group_id]:
            # Another process may be removing the folder.
            with contextlib.suppress(OSError):
                paths = list(self._path(group).glob("[0-9]*.json"))
                found += [record for path in paths if (record := _read(ProcessRecord, path)) is not None]
        # Start times are in hundredths of a second; of two in the same one, the larger pid is the later.
        return sorted(found, key=lambda record: (record.created, record.pid))

    def members(self, group_id: str, *, session: int | None = None) -> list[psutil.Process]:
        """All running processes of a group: the recorded ones and their descendants.

        Args:
            session: only those of this session.
        """
        recorded = {record.pid for record in self.records(group_id) if record.alive}
        running = [(p, number) for p, number in process_info.iter_processes() if session in (None, number)]
        found = [(p, number, process_info.get_env(p, GROUP_VARIABLE)) for p, number in running]
        ours = {p.pid: number for p, number, mark in found if p.pid in recorded or mark == group_id}
        # A Ray worker overwrites its environment with its title. The session tells whose it is: its number is
        # not reused as long as one of its processes runs.
        sessions = set(ours.values()) - {0}
        return [p for p, number, mark in found if p.pid in ours or (mark == "" and number in sessions)]

    def groups(self) -> list[str]:
        """Ids of all groups that have a record."""
        with contextlib.suppress(OSError):
            return sorted(p.name for p in self._folder.iterdir() if p.is_dir() and is_group(p.name))
        return []

    def remove(self, pid: int, *, group_id: str) -> None:
        """Remove the record of a process that has ended."""
        (self._path(group_id) / f"{pid}.json").unlink(missing_ok=True)

    def acquire(self, group_id: str) -> None:
        """Make this process an owner of a group: the watchdog lets it run. Several processes may own one."""
        self._write(group_id, f"owner-{os.getpid()}.json", ProcessIdentity.of(os.getpid()))

    def release(self, group_id: str) -> None:
        """End this process's ownership of a group."""
        (self._path(group_id) / f"owner-{os.getpid()}.json").unlink(missing_ok=True)

    def has_owner(self, group_id: str) -> bool:
        """Whether a process that owns the group is running."""
        with contextlib.suppress(FileNotFoundError):  # the group is being removed
            owners = [_read(ProcessIdentity, path) for path in self._path(group_id).glob("owner-*.json")]
            return any(owner is not None and owner.alive for owner in owners)
        return False

    def start_watchdog(self, group_id: str, *, seconds: float) -> None:
        """Own the group, and start the watchdog that stops it `seconds` after its last owner has ended."""
        self.acquire(group_id)
        command = [sys.executable, "-P", "-m", "labkit.system.process_registry"]
        command += [str(self._home), group_id, str(seconds)]
        self.start(command, role="watchdog", group_id=group_id, log=self._path(group_id) / "watchdog.log")

    def watch(self, group_id: str, *, seconds: float) -> None:
        """Wait until a group has had no owner for `seconds`, then stop it.

        It stops it as well when the records are gone (their folder was removed), because then nothing else
        could. A folder on a network can fail to answer once, so it looks several times.
        """
        last_owned = last_seen = now = time.monotonic()
        while now - last_seen <= _GONE_SECONDS and now - last_owned <= seconds:
            time.sleep(1.0)
            now = time.monotonic()
            if self.records(group_id):
                last_seen = now
            with contextlib.suppress(OSError):
                if self.has_owner(group_id):
                    last_owned = now
        self.stop(group_id)

    def stop(self, group_id: str, *, session: int | None = None, grace: float = 3.0) -> list[ProcessRecord]:
        """Stop the processes of a group and remove their records.

        First the process that started last in each session gets SIGTERM, because it depends on the others: a
        raylet signs off at its GCS, and waits long for one that has ended. Then the rest get SIGTERM, and
        what still runs after `grace` seconds gets SIGKILL.

        Args:
            session: stop only this session, for example one node.

        Returns:
            The records of the processes that were running.
        """
        records = [record for record in self.records(group_id) if session in (None, record.session)]
        running = [record for record in records if record.alive]
        last = {record.session: record.pid for record in running}.values()
        members: dict[int, psutil.Process] = {}
        folders: set[Path] = set()
        for stage, patience in enumerate((grace, grace / 3, 0)):
            # With what was started meanwhile. What is no longer found, since its parent has ended, stays in.
            members |= {process.pid: process for process in self.members(group_id, session=session)}
            folders |= process_info.listening_folders([*members.values()])
            chosen = [one for pid, one in members.items() if stage or pid in last]
            process_info.terminate(chosen, grace=patience)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        ended = [record for record in records if not record.alive or record.pid == os.getpid()]
        for record in ended:
            self.remove(record.pid, group_id=group_id)
        # A process that could not be stopped (another user's, or blocked in the kernel) stays on record.
        if session is None and len(ended) == len(records):
            shutil.rmtree(self._path(group_id), ignore_errors=True)
        return running

    def stop_all(self) -> list[ProcessRecord]:
        """Stop every group of this home."""
        return [record for group_id in self.groups() for record in self.stop(group_id)]

    def elsewhere(self) -> list[str]:
        """Names of other machines and containers that have records in this home.

        An earlier boot of this machine is left out. Whether their processes run can't be seen from here.
        """
        here, found = {"name": platform.node(), "boot": ProcessIdentity.of(0).boot}, set()
        for path in self._folder.parent.glob(f"*/{_HOST}"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                host = json_object(path.read_bytes(), {"name": str, "boot": str})
                earlier = host["name"] == here["name"] and host["boot"] != here["boot"]
                if path.parent != self._folder and not earlier and [*path.parent.glob("*/[0-9]*.json")]:
                    found.add(host["name"])
        return sorted(found)

    def _path(self, group_id: str) -> Path:
        if not is_group(group_id):
            # `stop` removes this folder: it must not be another one.
            raise ValueError(f"{group_id!r} is not the id of a process group")
        return self._folder / group_id

    def _write(self, group_id: str, name: str, record: ProcessIdentity) -> None:
        folder = self._path(group_id)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not (host := self._folder / _HOST).exists():
                atomic_write(host, json.dumps({"name": platform.node(), "boot": record.boot}))
            atomic_write(folder / name, json.dumps(asdict(record)))
        except OSError as error:
            raise _unwritable(f"record a process in {folder}", error) from error


def is_group(group_id: str) -> bool:
    """Whether a text can be the id of a group: a name without a way out of the folder of all groups."""
    return re.fullmatch(r"[\w-][\w.-]{0,99}", group_id) is not None


def _read(kind: type[ProcessIdentity], path: Path) -> Any:
    """The record in a file, which is a `kind`; None if it is damaged or gone."""
    try:
        return kind(**json_object(path.read_bytes(), {f.name: f.type for f in fields(kind)}))
    except (OSError, ValueError, TypeError):
        return None


def _unwritable(attempt: str, error: OSError) -> LabError:
    fix = "make that folder writable, or set LABKIT_HOME to one that is and has space"
    return LabError(attempt, str(error), fix)


if __name__ == "__main__":  # the watchdog
    ProcessRegistry(sys.argv[1]).watch(sys.argv[2], seconds=float(sys.argv[3]))
