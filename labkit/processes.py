"""What the lab started: recorded by pid, found again after a crash, stopped by exactly that record.

Every start writes a file ``HOME/processes/LAB/PID.json``; the processes get ``LABKIT_LAB=LAB`` in their
environment and a session of their own, so that what they start in turn (a raylet starts its workers)
is found as well, orphans included. Nothing is ever looked up by name.

A *keeper* (``python -m labkit.processes keep``) stands beside each lab: a process of a few MB that
waits until the kernel which owns the lab is gone, however it went, and stops the lab if no other kernel
takes it over within some seconds. So a restarted kernel finds its cluster again, and a closed
laptop lid or a ``kill -9`` leaves nothing behind.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

__all__ = ["MARK", "Entry", "Registry"]

MARK = "LABKIT_LAB"  # the environment variable by which a process of a lab is known
_OWNER = "owner.json"
_LOOK_EVERY = 1.0  # seconds between two looks of a keeper at its owner


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One process that the lab started.

    Attributes:
        pid, created: together they name one process for ever; a pid alone is used again.
        role: what it is ("head: raylet", "node-2: raylet", "keeper", "s3 server").
        lab: the id that all processes of one start share.
        session: the POSIX session it was started in: what it starts in turn is in it too.
    """

    pid: int
    created: float
    role: str
    lab: str
    session: int

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return _same(self.pid, self.created)


class Registry:
    """The processes of all labs below one home folder.

    Args:
        home: ``LABKIT_HOME``. Nothing is created before the first `start`.
    """

    def __init__(self, home: Path | str) -> None:
        self._folder = Path(home) / "processes"

    def __repr__(self) -> str:
        return f"Registry({str(self._folder)!r}, {len(self.entries())} recorded)"

    def start(
        self,
        command: list[str],
        *,
        role: str,
        lab: str,
        log: Path,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen:
        """Start `command` in a session of its own, its output in `log`, and record it."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**(os.environ if env is None else env), MARK: lab},
            )
        self.record(process.pid, role=role, lab=lab)
        return process

    def record(self, pid: int, *, role: str, lab: str) -> Entry:
        """Write down a process that belongs to `lab`."""
        entry = Entry(pid=pid, created=_created(pid), role=role, lab=lab, session=_session(pid))
        _write(self._folder / lab / f"{pid}.json", asdict(entry))
        return entry

    def record_session(self, leader: subprocess.Popen, *, role: str, lab: str) -> list[Entry]:
        """Write down what `leader` left running when it ended, in its stead (`ray start` does that)."""
        left = {process.pid: process for process in _in_sessions({leader.pid}) if process.pid != leader.pid}
        # Children of these are found through the session; only who has no parent among them is recorded.
        heads = [process for process in left.values() if process.ppid() not in left]
        entries = [self.record(process.pid, role=f"{role}: {_program(process)}", lab=lab) for process in heads]
        if leader.poll() is not None:
            (self._folder / lab / f"{leader.pid}.json").unlink(missing_ok=True)
        return entries

    def entries(self, lab: str | None = None) -> list[Entry]:
        """What was recorded, dead or alive, oldest first."""
        found = []
        for path in self._folder.glob(f"{lab or '*'}/[0-9]*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError):
                found.append(Entry(**json.loads(path.read_text())))
        return sorted(found, key=lambda entry: entry.created)

    def members(self, lab: str, *, session: int | None = None) -> list[psutil.Process]:
        """All living processes of a lab: those recorded and what they started.

        Args:
            session: only those of this session.
        """
        recorded = {entry.pid: entry for entry in self.entries(lab)}
        sessions = {entry.session for entry in recorded.values()} if session is None else {session}
        return [process for process in _in_sessions(sessions) if _marked(process, lab, recorded)]

    def labs(self) -> list[str]:
        """Ids of all labs that have a record."""
        return sorted(path.name for path in self._folder.glob("*") if path.is_dir())

    def own(self, lab: str) -> None:
        """This process is now the one whose end lets the keeper stop `lab`."""
        _write(self._folder / lab / _OWNER, {"pid": os.getpid(), "created": _created(os.getpid())})

    def owned(self, lab: str) -> bool:
        """Whether the process that owns `lab` is alive."""
        try:
            owner = json.loads((self._folder / lab / _OWNER).read_text())
            return _same(owner["pid"], owner["created"])
        except (OSError, ValueError, KeyError):
            return False

    def keep(self, lab: str, *, seconds: float) -> None:
        """Own `lab`, and start the keeper that stops it `seconds` after its owners are gone."""
        self.own(lab)
        command = [
            sys.executable,
            "-m",
            "labkit.processes",
            "keep",
            str(self._folder.parent),
            lab,
            str(seconds),
        ]
        self.start(command, role="keeper", lab=lab, log=self._folder / lab / "keeper.log")

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
        _end([process for process in members if process.pid in last], grace=grace)
        _end(members, grace=grace / 3)
        # Whoever was started while the others were ending.
        _end(self.members(lab, session=session), grace=0)
        for entry in entries:
            (self._folder / lab / f"{entry.pid}.json").unlink(missing_ok=True)
        if session is None:
            shutil.rmtree(self._folder / lab, ignore_errors=True)
        return living

    def stop_all(self) -> list[Entry]:
        """Stop every lab of this home."""
        return [entry for lab in self.labs() for entry in self.stop(lab)]


def _write(path: Path, content: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_suffix(f".{os.getpid()}.part")
    partial.write_text(json.dumps(content))
    partial.replace(path)


def _created(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0  # gone before it could be recorded: the entry reads as dead


def _program(process: psutil.Process) -> str:
    """What a process runs, in one word: of a Python process the script or module."""
    with contextlib.suppress(psutil.Error):
        command = [part for part in process.cmdline()[1:] if part != "-m" and not part.startswith("-")]
        if process.name().startswith("python") and command:
            return Path(command[0]).stem
    with contextlib.suppress(psutil.Error):
        return process.name()
    return "gone"


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return pid


def _same(pid: int, created: float) -> bool:
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - created) < 0.1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _in_sessions(sessions: set[int]) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) in sessions:
                yield process


def _marked(process: psutil.Process, lab: str, recorded: Mapping[int, Entry]) -> bool:
    """Whether a process carries the lab's mark; a session number alone may have been used again."""
    with contextlib.suppress(psutil.Error):
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        entry = recorded.get(process.pid)
        if entry is not None and abs(process.create_time() - entry.created) < 0.1:
            return True
        return process.environ().get(MARK) == lab
    return False


def _end(processes: list[psutil.Process], *, grace: float) -> None:
    others = [process for process in processes if process.pid != os.getpid() and process.is_running()]
    for number in (signal.SIGTERM, signal.SIGKILL) if grace else (signal.SIGKILL,):
        for process in others:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        _, others = psutil.wait_procs(others, timeout=grace or 3.0)


def _keep(home: str, lab: str, seconds: float) -> None:
    """Wait until `lab` has had no living owner for `seconds`, then stop it."""
    registry = Registry(home)
    last_owned = time.monotonic()
    while registry.entries(lab):
        if registry.owned(lab):
            last_owned = time.monotonic()
        elif time.monotonic() - last_owned > seconds:
            registry.stop(lab)
            return
        time.sleep(_LOOK_EVERY)


if __name__ == "__main__":
    _, _verb, _home, _lab, _seconds = sys.argv
    _keep(_home, _lab, float(_seconds))
