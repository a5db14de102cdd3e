"""A lab on this machine: one home folder, and what runs for it.

    lab = Lab(home)
    lab.use("store")           # it runs as long as this process does, and a minute longer
    started = lab.start(["rclone", "serve", "s3", …], group="store", log=log)
    lab.leave("store") or lab.stop("store")

All processes are started, and ended, by the lab's supervisor (`labkit.local.supervisor`). Facts about a group
of processes, such as its address, are in a small file (`note`): they outlive a supervisor that was killed,
and a server is started again on its old port.
"""

import contextlib
import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import interrupts, machine
from labkit.errors import BadInput, LabError, NotReachable
from labkit.files import atomic_write, json_object, last_line, text_of
from labkit.interrupts import wait_until
from labkit.local import family, temporary
from labkit.local.family import Member
from labkit.local.supervisor import KEEP_SECONDS, OTHER_VERSION, PROTOCOL, SOCKET, UNKNOWN
from labkit.settings import OTHER_HOME

_START_SECONDS = 30.0  # for a supervisor; it takes 0.3
_END_SECONDS = 3.0  # for one that has stopped everything
# Below the folder for sockets, Ray makes its longest path.
_SOCKET_TAIL = len("/abcdef/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store.1")
_AGAIN = "python -m labkit stop, then start again"

_supervisors: list[subprocess.Popen] = []  # that this process has started


@dataclass(frozen=True)
class Started:
    """A program that the supervisor has started."""

    lab: "Lab"
    pid: int

    def status(self) -> int | None:
        """Return its exit status; None while it runs, UNKNOWN if the supervisor was killed meanwhile."""
        answer = self.lab._ask("status", pid=self.pid)
        return UNKNOWN if answer is None else answer["status"]


@dataclass(frozen=True)
class Lab:
    """One home folder on this machine or container, and what runs for it.

    Several machines may share a home: each has a lab of its own.
    """

    home: Path

    @property
    def id(self) -> str:
        """What identifies the home folder on this host; "" if there is no such folder."""
        with contextlib.suppress(OSError):
            status = os.stat(self.home)  # a folder may be mounted at several paths
            text = f"{machine.host_id()} {status.st_dev} {status.st_ino}"
            digest = hashlib.sha256(text.encode())
            return digest.hexdigest()[:12]
        return ""

    @property
    def folder(self) -> Path:
        """The folder for its sockets and notes: in the home, if that path is short ASCII."""
        folder = self.home / "ray"
        if not str(folder).isascii() or len(str(folder)) + _SOCKET_TAIL > temporary.SOCKET_LIMIT:
            digest = hashlib.sha256(os.fsencode(self.home))
            folder = Path(f"/tmp/labkit-{os.getuid()}-{digest.hexdigest()[:8]}")
        # Ray opens its own folder to every user (mode 0777); the one around it protects it.
        return folder / machine.host_id()

    def make_folder(self) -> Path:
        """Create the home and `folder`. Raise an OSError, or `BadInput` if other users may enter it."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        own = self.folder
        folder = own.parent
        with contextlib.suppress(FileExistsError):  # of a link to nowhere
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # In /tmp, a link may be a neighbour's.
        status = folder.lstat() if folder.parent == Path("/tmp") else folder.stat()
        is_own = status.st_uid == os.getuid() and stat.S_ISDIR(status.st_mode)
        is_open = stat.S_IMODE(status.st_mode) & 0o077
        if is_open or not is_own:
            raise BadInput(
                f"use {folder} for sockets",
                "other users may enter it",
                f"chmod 700 {folder}, or set LABKIT_HOME to a folder of yours",
            )
        own.mkdir(exist_ok=True)
        return own

    def mark(self, group: str) -> dict[str, str]:
        """Return the variable of a process that belongs to `group`. A missing home is created."""
        with contextlib.suppress(OSError):  # the supervisor's start reports it
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        return {family.MARK: f"{group}@{self.id}"}

    # -- what runs ------------------------------------------------------------------------------------

    def running(self, group: str | None = None, node: str | None = None) -> list[Member]:
        """List all running processes, or those of a group or node, oldest first."""
        return family.running(self.id, group, node)

    def groups(self) -> set[str]:
        """Return the groups that have running processes, without the supervisor's."""
        return family.groups(self.id)

    def start(
        self,
        command: list[str],
        *,
        group: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        stdin: int | None = None,
    ) -> Started:
        """Start a program in a session of its own, and append its output to `log`.

        It is stopped with its group. `env` is this process's environment by default, `stdin` a file
        descriptor.
        """
        environment = temporary.without_unusable(os.environ if env is None else env)
        environment |= self.mark(group)
        connection, answer = self._request(
            "start",
            files=[] if stdin is None else [stdin],
            command=command,
            group=group,
            log=str(log),
            env=environment,
            folder=os.getcwd(),
        )
        connection.close()
        if "error" in answer:
            raise LabError(
                f"start {Path(command[0]).name}",
                answer["error"],
                "make that folder writable, or set LABKIT_HOME to one that is and has space",
            )
        return Started(self, answer["pid"])

    def use(self, group: str, *, keep: float = KEEP_SECONDS) -> None:
        """Keep a group running until `keep` seconds after this process has ended, or until `leave`."""
        use = {"group": group, "pid": os.getpid(), "keep": keep}
        connection, _ = self._request("use", **use)
        thread = threading.Thread(
            target=self._stay,
            args=[use, connection],
            name="labkit-use",
            daemon=True,
        )
        thread.start()

    def _stay(self, use: dict[str, Any], connection: socket.socket) -> None:
        """Wait until this process leaves the group or it is stopped; replace a supervisor that was killed."""
        group = use["group"]
        while True:
            with connection, contextlib.suppress(OSError):
                if connection.recv(1):  # `supervisor.ENDED`
                    return
            try:
                if group not in self.groups():
                    return
                connection, _ = self._request("use", **use)
            except (LabError, OSError):
                return
            if group not in self.groups():  # `stop` was ending it: there is nothing to look after
                self.stop(group)

    def leave(self, group: str) -> bool:
        """End this process's use of a group, which is not stopped. Return whether others use it."""
        answer = self._ask("leave", group=group, pid=os.getpid()) or {}
        return bool(answer.get("in_use"))

    def users(self) -> dict[str, list[int]]:
        """Return the pids of the processes that use each group; without a supervisor, none."""
        return self._ask("users") or {}

    def stop(self, group: str | None = None, *, node: str | None = None) -> list[str]:
        """Stop a group, one of its nodes, or all that the lab runs here. Return what was running."""
        stopped = self._ask("stop", group=group, node=node)
        if stopped is None:  # there is no supervisor, or it was killed
            return family.end(self.id, group, node)
        if group is None and not wait_until(lambda: not self.running(), seconds=_END_SECONDS):
            family.end(self.id)
        return stopped

    def note(self, group: str, facts: Mapping[str, Any]) -> None:
        """Remember facts about a group, such as its address, for processes that come later."""
        atomic_write(self.make_folder() / f"{group}.json", json.dumps(facts))

    def noted(self, group: str, kinds: Mapping[str, type]) -> dict[str, Any]:
        """Return the facts about a group, dead or alive; empty if any of them is missing or damaged."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            facts = json_object((self.folder / f"{group}.json").read_bytes(), kinds)
            return {name: facts[name] for name in kinds}
        return {}

    # -- the connection to the supervisor -------------------------------------------------------------

    def _ask(self, do: str, **arguments: Any) -> Any:
        """Ask the supervisor; None if there is none, or one of another version."""
        connection = self._open()
        if connection is None:
            return None
        with connection, contextlib.suppress(OSError, ValueError, LabError):  # it was killed
            return _answer(connection, do, **arguments)
        return None

    def _request(self, do: str, **arguments: Any) -> tuple[socket.socket, Any]:
        """Ask the supervisor, which is started if there is none; return the connection and the answer."""
        process = None
        deadline = time.monotonic() + _START_SECONDS
        try:
            log = self.make_folder() / "supervisor.log"
            while time.monotonic() < deadline:
                status = process.poll() if process is not None else None
                if status is not None and status > 0:
                    break  # it has failed
                connection = self._open()
                if connection is not None:
                    with contextlib.suppress(OSError, ValueError):
                        return connection, _answer(connection, do, **arguments)
                    connection.close()  # it was about to end
                elif process is None or status is not None:  # another one was ending, or has ended it
                    process = self._start_supervisor(log)
                time.sleep(0.01)
            fact = last_line(text_of(log)) or "it does not answer"
            fix = f"{_AGAIN} (its log is {log})"
        except OSError as error:
            fact = error.strerror or str(error)
            fix = f"make {self.home} writable, or use another home: {OTHER_HOME}"
        raise NotReachable("start the lab's supervisor", fact, fix)

    def _open(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(self.folder / SOCKET))
        except OSError:
            connection.close()
            return None
        return connection

    def _start_supervisor(self, log: Path) -> subprocess.Popen:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "labkit.local.supervisor",
                    str(self.home),
                    str(log.parent),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **self.mark(family.SUPERVISOR)},
            )
        _supervisors.append(process)
        return process


def _answer(connection: socket.socket, do: str, files: Sequence[int] = (), **arguments: Any) -> Any:
    socket.send_fds(connection, [b"\n"], files)
    request = {"do": do, "protocol": PROTOCOL, **arguments}
    connection.sendall(json.dumps(request).encode() + b"\n")
    with connection.makefile("rb", buffering=0) as lines:  # what follows the line is for `_stay`
        answer = json.loads(lines.readline())
    if isinstance(answer, dict) and answer.get("error") == OTHER_VERSION:
        raise NotReachable("use the lab's supervisor", OTHER_VERSION, _AGAIN)
    return answer


@contextlib.contextmanager
def alone(path: Path, *, seconds: float, attempt: str) -> Iterator[None]:
    """Hold a lock file: one process of a home starts something; the others wait, and then find it."""
    from filelock import FileLock, Timeout  # of Ray, and torch

    def is_cancelled() -> bool:
        interrupts.check()
        return False

    lock = FileLock(path, timeout=seconds)
    try:
        lock.acquire(cancel_check=is_cancelled)
    except Timeout:
        fact = f"another process has been starting it for {seconds:.0f} s"
        raise LabError(attempt, fact, "python -m labkit stop, and start again") from None
    try:
        yield
    finally:
        lock.release()
