"""The parent of all that the lab runs for one home on this host.

``python -P -m labkit.local.supervisor HOME FOLDER``, which `Lab` runs.

It starts programs for the processes that use the lab, and ends a group of them some time after its last user
has ended, however that happened. So a restarted kernel finds its cluster again, and a ``kill -9`` leaves
nothing behind. On Linux it is a child subreaper: what a program leaves behind (`ray start` does) becomes its
child. Elsewhere, a program's POSIX session has to do.

It listens on a Unix socket that only this user reaches, and answers one request at a time, each a line of
JSON on a connection of its own. It keeps nothing that matters: if it is killed, the rest goes on, and the
next one finds it by its mark (`labkit.local.family`). A file lock lets only one run.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from labkit import process_info
from labkit.files import private_socket
from labkit.local import family

PROTOCOL = 3  # raise it when a request changes
OTHER_VERSION = "the lab's supervisor is of another version of labkit"
SOCKET = "lab.sock"
LOCK = "lab.lock"
ENDED = b"!"  # what a user receives that has left its group, or whose group was stopped
UNKNOWN = 256  # the exit status of what another supervisor started
KEEP_SECONDS = 60.0  # without a user: a kernel may be restarting
KEEP = "LABKIT_KEEP_SECONDS"  # the variable that shortens it, for tests
_IDLE = 3.0  # seconds without a group, or without its home, after which it ends
_LOOK_EVERY = 0.5
_PATIENCE = 20.0  # seconds for a request; its client may be in an import meanwhile
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@dataclass(frozen=True)
class _User:
    """A process that uses a group, and the connection on which it hears of the group's end."""

    process: psutil.Process
    connection: socket.socket


@dataclass
class _Group:
    """Processes that are started and stopped together."""

    keep: float  # seconds that it may run without a user
    users: dict[int, _User] = field(default_factory=dict)  # by pid
    since: float = field(default_factory=time.monotonic)  # when it lost its last user

    def drop(self, pid: int) -> None:
        user = self.users.pop(pid, None)
        if user is not None:
            self.since = time.monotonic()
            with user.connection, contextlib.suppress(OSError):
                user.connection.send(ENDED)


class Supervisor:
    """Answers requests on the socket `path` until it has nothing left to look after.

    A group may run for `keep` seconds without a user, at most.
    """

    def __init__(self, home: Path, path: Path, keep: float) -> None:
        self._home = home
        self._path = path
        self._keep = keep
        self._lab = family.lab_of(os.environ)  # by this process's mark: its home may be gone
        self._groups: dict[str, _Group] = {}
        self._children: dict[int, subprocess.Popen] = {}
        self._over = False

    def serve(self, listener: socket.socket) -> None:
        listener.settimeout(_LOOK_EVERY)
        for name in family.groups(self._lab):  # an earlier supervisor has started it
            self._group(name)
        needed = time.monotonic()
        while not self._over and time.monotonic() - needed < _IDLE:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                connection = None
            self._reap()
            self._look_at_the_users()
            if connection is not None:
                self._answer(connection)
                needed = time.monotonic()  # it may have taken longer than _IDLE
            if self._groups and self._has_home():
                needed = time.monotonic()
        self._reap()
        listener.settimeout(0)
        with contextlib.suppress(OSError):
            while self._over:  # who has waited meanwhile hears that its program has ended
                self._answer(listener.accept()[0])
        listener.close()
        if not self._over:
            self._end(None)
        self._path.unlink(missing_ok=True)

    def _has_home(self) -> bool:
        """Return whether its home is there: `rm -rf .labkit` is the end, a disk without an answer isn't."""
        try:
            return self._home.exists() and self._path.exists()
        except OSError:
            return True

    def _group(self, name: str) -> _Group:
        return self._groups.setdefault(name, _Group(self._keep))

    def _reap(self) -> None:
        """Take the status of each child that has ended, also of those that it inherited."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self._children:
                    self._children[pid].returncode = os.waitstatus_to_exitcode(status)

    def _look_at_the_users(self) -> None:
        """Drop those that have ended, and end the groups that none has used for a while."""
        for name, group in list(self._groups.items()):
            for pid, user in list(group.users.items()):
                if not process_info.is_alive(user.process):
                    group.drop(pid)
            if not group.users and time.monotonic() - group.since > group.keep:
                self._end(name)

    def _end(self, group: str | None, node: str | None = None) -> list[str]:
        if node is None:
            for name in list(self._groups):
                if group in (None, name):
                    entry = self._groups.pop(name)
                    for pid in list(entry.users):
                        entry.drop(pid)
        return family.end(self._lab, group, node)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(_PATIENCE)
        files: list[int] = []
        with connection:
            try:
                _, files, *_ = socket.recv_fds(connection, 1, 1)
                with connection.makefile("rb") as lines:
                    answer = self._do(connection, files, **json.loads(lines.readline()))
                connection.sendall(json.dumps(answer).encode() + b"\n")
            except Exception:  # whatever was asked, and also if nothing was: it looks after the others
                traceback.print_exc()
            for file in files:
                os.close(file)

    def _do(
        self, connection: socket.socket, files: list[int], *, do: str, protocol: int = 0, **arguments: Any
    ) -> object:
        if self._over and do in ("start", "use"):
            raise ConnectionAbortedError("it is ending")  # the client asks the next one
        if protocol != PROTOCOL and do != "stop":
            return {"error": OTHER_VERSION}
        match do:
            case "start":
                return self.start(stdin=files[0] if files else subprocess.DEVNULL, **arguments)
            case "use":
                return self.use(connection=connection.dup(), **arguments)  # it stays open
            case "status" | "leave" | "users" | "stop":
                return getattr(self, do)(**arguments)
        raise ValueError(f"there is no request {do!r}")

    # -- requests -------------------------------------------------------------------------------------

    def start(
        self, *, command: list[str], group: str, log: str, env: dict[str, str], folder: str, stdin: int
    ) -> dict[str, object]:
        """Start a program in a POSIX session of its own; return its pid, or the error."""
        self._group(group)
        try:
            Path(log).parent.mkdir(parents=True, exist_ok=True)
            with open(log, "ab") as output:
                child = subprocess.Popen(
                    command,
                    env=env,
                    cwd=folder,
                    stdin=stdin,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            return {"error": str(error)}
        self._children[child.pid] = child
        # In the middle of its exec it has no environment, and so no mark by which anyone could find it.
        with contextlib.suppress(psutil.Error):
            for _ in range(200):
                if psutil.Process(child.pid).environ() or child.poll() is not None:
                    break
                time.sleep(0.001)
        return {"pid": child.pid}

    def status(self, *, pid: int) -> dict[str, int | None]:
        """Return the exit status of what was started; None while it runs."""
        child = self._children.get(pid)
        return {"status": UNKNOWN if child is None else child.returncode}

    def use(self, *, group: str, pid: int, keep: float, connection: socket.socket) -> dict[str, object]:
        """Let a group run until `keep` seconds after the process `pid` has ended or left it."""
        user = _User(psutil.Process(pid), connection)
        used = self._group(group)
        used.drop(pid)  # its earlier connection
        used.keep = min(keep, self._keep)
        used.users[pid] = user
        return {}

    def leave(self, *, group: str, pid: int) -> dict[str, bool]:
        """End a process's use of a group, which runs on. Return whether others use it."""
        used = self._groups.get(group)
        if used is None:
            return {"in_use": False}
        used.drop(pid)
        return {"in_use": bool(used.users)}

    def users(self) -> dict[str, list[int]]:
        """Return the pids of the users of each group."""
        return {name: list(group.users) for name, group in self._groups.items()}

    def stop(self, *, group: str | None, node: str | None) -> list[str]:
        """Stop a group, one node of it, or everything. Return what was running."""
        self._over = group is None
        return self._end(group, node)


def main(home: Path, folder: Path) -> None:
    """Look after a home, unless another supervisor does. The folder, for socket and lock, exists."""
    path = folder / SOCKET
    with open(folder / LOCK, "ab") as lock:
        while True:  # until it has the lock
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            with socket.socket(socket.AF_UNIX) as other:
                if other.connect_ex(str(path)) == 0:
                    return  # else the other one is about to end
            time.sleep(0.05)
        with contextlib.suppress(OSError, AttributeError):  # macOS has none: sessions have to do
            ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        # The memory of what it starts has keys in it, so none of it leaves a core dump.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with private_socket(path, socket.SOCK_STREAM) as listener:
            Supervisor(home, path, float(os.environ.get(KEEP, KEEP_SECONDS))).serve(listener)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
