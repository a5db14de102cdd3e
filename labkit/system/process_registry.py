"""What the lab started: recorded by pid, found again after a crash, stopped by exactly that record.

Every start writes a file ``HOME/processes/LAB/PID.json``; the processes get ``LABKIT_LAB=LAB`` in their
environment and a session of their own, so that what they start in turn (a raylet starts its workers)
is found as well, orphans and those in yet another session included. Nothing is ever looked up by name.

A *keeper* (`watchdog`) stands beside each lab and stops it when the kernel which owns it is gone.
So a restarted kernel finds its cluster again, and a ``kill -9`` leaves nothing behind.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TypeVar

import psutil

from labkit.errors import EnvironmentProblem
from labkit.system import process_info as pids

MARK = "LABKIT_LAB"  # the environment variable by which a process of a lab is known
_PIDS = 1 << 31  # what no pid reaches

_Record = TypeVar("_Record", bound=pids.Identity)


@dataclass(frozen=True, kw_only=True)
class Entry(pids.Identity):
    """One process that the lab started.

    Attributes:
        role: what it is ("head: raylet", "node-2: raylet", "keeper", "s3 server").
        lab: the id that all processes of one start share.
        session: the POSIX session it was started in: what it starts in turn is in it too.
    """

    role: str
    lab: str
    session: int


class Registry:
    """The processes of all labs below one home folder.

    Args:
        home: ``LABKIT_HOME``. Nothing is created before the first `start`.
    """

    def __init__(self, home: Path | str) -> None:
        self._folder = Path(home) / "processes"

    def __repr__(self) -> str:
        return f"Registry({str(self._folder)!r})"

    def start(
        self,
        command: list[str],
        *,
        role: str,
        lab: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen:
        """Start `command` in a session of its own, its output in `log`, and record it.

        Raises:
            EnvironmentProblem: the log or the record cannot be written; nothing is left running then.
        """
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            output = log.open("ab")
        except OSError as error:
            raise _unwritable(f"start {role}", error) from error
        with output:
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**(os.environ if env is None else env), MARK: lab},
            )
        try:
            self.record(process.pid, role=role, lab=lab)
        except BaseException:
            # Nobody would ever find it again.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        return process

    def record(self, pid: int, *, role: str, lab: str) -> Entry:
        """Write down a process that belongs to `lab`.

        Raises:
            EnvironmentProblem: the record cannot be written.
        """
        try:
            session = os.getsid(pid)
        except ProcessLookupError:
            session = pid  # it is gone, but what it started in a session of its own may live
        entry = Entry(**asdict(pids.Identity.of(pid)), role=role, lab=lab, session=session)
        _write(self._lab(lab) / f"{pid}.json", asdict(entry))
        return entry

    def record_session(self, leader: subprocess.Popen, *, role: str, lab: str) -> list[Entry]:
        """Write down what `leader` left running when it ended, in its stead (`ray start` does that)."""
        left = {
            process.pid: process for process, session in pids.living() if session == leader.pid != process.pid
        }
        # Children of these are found through the session; only who has no parent among them is recorded.
        heads = [process for process in left.values() if pids.parent_of(process) not in left]
        entries = [self.record(head.pid, role=f"{role}: {pids.program(head)}", lab=lab) for head in heads]
        if leader.poll() is not None:
            (self._lab(lab) / f"{leader.pid}.json").unlink(missing_ok=True)
        return entries

    def entries(self, lab: str | None = None) -> list[Entry]:
        """What was recorded, dead or alive, oldest first."""
        found = []
        for folder in self.labs() if lab is None else [lab]:
            # Another process may be clearing the folder away while this one looks into it.
            with contextlib.suppress(OSError):
                paths = list(self._lab(folder).glob("[0-9]*.json"))
                found += [entry for path in paths if (entry := _read(Entry, path)) is not None]
        # The system counts in hundredths of a second: what began in the same one has its number.
        return sorted(found, key=lambda entry: (entry.created, entry.pid))

    def members(self, lab: str, *, session: int | None = None) -> list[psutil.Process]:
        """All living processes of a lab: those recorded and what they started.

        Args:
            session: only those of this session.
        """
        recorded = {entry.pid for entry in self.entries(lab) if entry.alive}
        living = [(p, number) for p, number in pids.living() if session in (None, number)]
        found = [(p, number, pids.variable(p, MARK)) for p, number in living]
        ours = {p.pid: number for p, number, mark in found if p.pid in recorded or mark == lab}
        # A Ray worker writes its title over its environment. A session's number is not used again while
        # one of its processes lives, so such a one in a session of ours is ours.
        sessions = set(ours.values()) - {0}
        return [p for p, number, mark in found if p.pid in ours or (mark == "" and number in sessions)]

    def labs(self) -> list[str]:
        """Ids of all labs that have a record."""
        with contextlib.suppress(OSError):
            return sorted(path.name for path in self._folder.iterdir() if path.is_dir())
        return []

    def forget(self, pid: int, *, lab: str) -> None:
        """Remove the record of a process that has ended."""
        (self._lab(lab) / f"{pid}.json").unlink(missing_ok=True)

    def own(self, lab: str) -> None:
        """As long as this process lives, the keeper lets `lab` live. Two notebooks may share a lab."""
        _write(self._lab(lab) / f"owner-{os.getpid()}.json", asdict(pids.Identity.of(os.getpid())))

    def disown(self, lab: str) -> None:
        """This process needs `lab` no longer. Whoever else owns it keeps it alive."""
        (self._lab(lab) / f"owner-{os.getpid()}.json").unlink(missing_ok=True)

    def owned(self, lab: str) -> bool:
        """Whether a process that owns `lab` is alive."""
        owners = [_read(pids.Identity, path) for path in self._lab(lab).glob("owner-*.json")]
        return any(owner is not None and owner.alive for owner in owners)

    def keep(self, lab: str, *, seconds: float) -> None:
        """Own `lab`, and start the keeper that stops it `seconds` after its owners are gone."""
        self.own(lab)
        command = [
            sys.executable,
            "-m",
            "labkit.system.watchdog",
            str(self._folder.parent),
            lab,
            str(seconds),
        ]
        self.start(command, role="keeper", lab=lab, log=self._lab(lab) / "keeper.log")

    def stop(self, lab: str, *, session: int | None = None, grace: float = 3.0) -> list[Entry]:
        """Stop the processes of `lab`, and forget their records.

        First SIGTERM to the last one started of each session, since it depends on the others (a raylet
        signs off at its GCS, and waits for long if that is gone), then to the rest; what still lives
        after `grace` seconds gets SIGKILL.

        Args:
            session: only what is in this session (one node of several).

        Returns:
            The recorded processes that were alive.
        """
        entries = [e for e in self.entries(lab) if session in (None, e.session)]
        living = [entry for entry in entries if entry.alive]
        last = {entry.session: entry.pid for entry in living}.values()
        members = self.members(lab, session=session)
        pids.end([process for process in members if process.pid in last], grace=grace)
        pids.end(members, grace=grace / 3)
        # Whoever was started while the others were ending.
        pids.end(self.members(lab, session=session), grace=0)
        gone = [entry for entry in entries if not entry.alive or entry.pid == os.getpid()]
        for entry in gone:
            (self._lab(lab) / f"{entry.pid}.json").unlink(missing_ok=True)
        # What could not be stopped (another user's, or stuck in its disk) stays on record.
        if session is None and len(gone) == len(entries):
            shutil.rmtree(self._lab(lab), ignore_errors=True)
        return living

    def stop_all(self) -> list[Entry]:
        """Stop every lab of this home."""
        return [entry for lab in self.labs() for entry in self.stop(lab)]

    def _lab(self, lab: str) -> Path:
        if not re.fullmatch(r"[\w-][\w.-]*", lab):
            # What is stopped is removed with its folder: that must not be another one.
            raise ValueError(f"{lab!r} is no id of a lab")
        return self._folder / lab


def _read(kind: type[_Record], path: Path) -> _Record | None:
    """The record in a file; None if it is damaged or gone."""
    try:
        record = kind(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    sound = all(isinstance(getattr(record, f.name), f.type) for f in fields(kind))
    return record if sound and 0 < record.pid < _PIDS else None


def _write(path: Path, content: dict) -> None:
    partial = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial.write_text(json.dumps(content))
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise _unwritable(f"record a process in {path.parent}", error) from error


def _unwritable(attempt: str, error: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(
        attempt, str(error), "make that folder writable, or point LABKIT_HOME at one that is and has space"
    )
