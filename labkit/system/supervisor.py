"""The parent of all that the lab runs for one home on this host: ``python -P supervisor.py HOME FOLDER``.

It starts programs for the processes that use the lab, and ends a group of them some time after its last user
has ended, however that happened. So a restarted kernel finds its cluster again, and a ``kill -9`` leaves
nothing behind. On Linux it is a child subreaper: what a program leaves behind (`ray start` does) becomes its
child. Elsewhere, a program's POSIX session has to do.

It listens on a Unix socket that only this user reaches, and answers the requests in `_REQUESTS`, each a line
of JSON on a connection of its own. It keeps nothing that matters: if it is killed, the rest goes on, and the
next one finds it by its mark (`labkit.system.family`). A file lock lets only one run.

A start waits for it, so it first listens, and then imports the rest of labkit.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

PROTOCOL = 1  # raise it when a request changes
SOCKET, LOCK = "lab.sock", "lab.lock"
ENDED = b"ended\n"  # what users of a group receive when it was stopped
UNKNOWN = 256  # the exit status of what another supervisor started
KEEP_SECONDS = 60.0  # without a user: a kernel may be restarting
KEEP = "LABKIT_KEEP_SECONDS"  # the variable that shortens it, for tests
_IDLE = 3.0  # seconds without a group, or without its home, after which it ends
_LOOK_EVERY = 0.5
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


class _Group:
    """What is started and stopped together.

    Attributes:
        keep: seconds that it may run without a user.
        users: the pid of each, by the connection that it holds.
        since: when it lost its last one.
    """

    def __init__(self, keep: float) -> None:
        self.keep, self.since = keep, time.monotonic()
        self.users: dict[socket.socket, int] = {}

    def drop(self, connections: Iterable[socket.socket]) -> None:
        for connection in connections:
            if self.users.pop(connection, None) is not None:
                self.since = time.monotonic()
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for its end


class Supervisor:
    """Answers requests until it has nothing left to look after.

    Args:
        home: whose processes these are.
        path: of its socket.
        keep: seconds that a group may run without a user, at most.
    """

    def __init__(self, home: Path, path: Path, keep: float) -> None:
        self._home, self._path, self._keep = home, path, keep
        self._groups: dict[str, _Group] = {}
        self._changes: dict[str, threading.Lock] = defaultdict(threading.Lock)  # one at a time in each group
        self._statuses: dict[int, int] = {}
        self._children: dict[int, subprocess.Popen] = {}
        self._reaping = threading.Lock()
        self._stopping = self._over = False  # it has to stop everything; that is done
        self._adoption = threading.Thread(target=self._adopt, daemon=True)

    def serve(self, listener: socket.socket) -> None:
        listener.settimeout(_LOOK_EVERY)
        self._adoption.start()
        threads: list[threading.Thread] = []
        needed = time.monotonic()
        while time.monotonic() - needed < _IDLE and not self._over:
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=self._follow, args=[connection], daemon=True))
                threads[-1].start()
            self._reap()
            self._end_the_unused()
            threads = [thread for thread in threads if thread.is_alive()]
            is_there = self._home.exists() and self._path.exists()  # `rm -rf .labkit` is the end
            if is_there and (self._groups or threads):
                needed = time.monotonic()
        listener.close()
        if not self._over:
            self._end_all()
        self._path.unlink(missing_ok=True)

    def _adopt(self) -> None:
        """Look after what an earlier supervisor started."""
        from labkit.system import family

        for group in family.groups(self._home):
            self._groups.setdefault(group, _Group(self._keep))

    def _end_the_unused(self) -> None:
        for name, group in list(self._groups.items()):
            if not group.users and time.monotonic() - group.since > group.keep:
                with self._changes[name]:
                    if not group.users:
                        self._end(name)

    def _end_all(self) -> list[str]:
        for name in list(self._groups):
            with self._changes[name]:
                self._forget(name)
        return self._end(None)

    def _end(self, group: str | None, node: str | None = None) -> list[str]:
        from labkit.system import family

        lab = os.environ.get(family.MARK, "").rpartition("@")[2]
        ended = family.end(self._home, group, node, lab=lab)
        if node is None:
            self._forget(group)
        return ended

    def _forget(self, name: str | None) -> None:
        if (group := self._groups.pop(name, None)) is not None:
            users = list(group.users)
            for connection in users:
                with contextlib.suppress(OSError):
                    connection.send(ENDED)
            group.drop(users)

    def _reap(self) -> None:
        """Take the status of each child that has ended, also of those that it inherited."""
        with self._reaping, contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                if (child := self._children.pop(pid, None)) is not None:
                    self._statuses[pid] = child.returncode = os.waitstatus_to_exitcode(status)

    # -- requests -------------------------------------------------------------------------------------

    def _follow(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError):  # its user has ended, or isn't one
            self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        _, files, _, _ = socket.recv_fds(connection, 1, 1)
        try:
            with connection.makefile("rb") as lines:
                request = json.loads(lines.readline())
            do, protocol = request.pop("do"), request.pop("protocol")
            if self._stopping and do in ("start", "use"):
                return  # it asks again, and then the next supervisor
            if do not in _REQUESTS or (protocol != PROTOCOL and do != "stop"):
                answer: object = {"error": "the lab's supervisor is of another version of labkit"}
            elif do == "start":
                answer = self.start(stdin=files[0] if files else subprocess.DEVNULL, **request)
            elif do == "use":
                self.use(connection, **request)
                return
            else:
                answer = getattr(self, do)(**request)
        finally:
            for file in files:
                os.close(file)
        connection.sendall(json.dumps(answer).encode() + b"\n")
        self._over = self._over or (do == "stop" and request["group"] is None)

    def start(
        self, *, command: list[str], group: str, log: str, env: dict[str, str], folder: str, stdin: int
    ) -> dict[str, object]:
        """Start a program in a POSIX session of its own: its pid, or an error."""
        with self._changes[group]:
            self._groups.setdefault(group, _Group(self._keep))
            try:
                Path(log).parent.mkdir(parents=True, exist_ok=True)
                with open(log, "ab") as output, self._reaping:
                    child = subprocess.Popen(
                        command,
                        env=env,
                        cwd=folder,
                        stdin=stdin,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                    self._children[child.pid] = child
            except OSError as error:
                return {"error": str(error)}
        return {"pid": child.pid}

    def status(self, *, pid: int) -> dict[str, int | None]:
        """The exit status of what it started; None while that runs."""
        self._reap()
        return {"status": self._statuses.get(pid, None if pid in self._children else UNKNOWN)}

    def use(self, connection: socket.socket, *, group: str, pid: int, keep: float, again: bool) -> None:
        """Let a group run until the process `pid` ends or its connection is closed.

        Args:
            again: the user had an earlier supervisor. If its group is gone, it receives `ENDED`.
        """
        if again:
            self._adoption.join()
        with self._changes[group]:
            if again and group not in self._groups:
                connection.sendall(ENDED)
                return
            entry = self._groups.setdefault(group, _Group(self._keep))
            entry.keep = min(keep, self._keep)
            entry.users[connection] = pid
            connection.sendall(b"{}\n")
        _wait_for_the_end_of(connection, pid)
        entry.drop([connection])

    def leave(self, *, group: str, pid: int) -> dict[str, bool]:
        """End a process's use of a group, which runs on. Whether others use it."""
        if (entry := self._groups.get(group)) is None:
            return {"in_use": False}
        entry.drop([connection for connection, user in list(entry.users.items()) if user == pid])
        return {"in_use": bool(entry.users)}

    def users(self) -> dict[str, list[int]]:
        """The pids of the users of each group."""
        self._adoption.join()
        return {name: list(group.users.values()) for name, group in list(self._groups.items())}

    def stop(self, *, group: str | None, node: str | None) -> list[str]:
        """Stop a group, one node of it, or everything. Says what was running."""
        self._adoption.join()
        if group is None:
            self._stopping = True
            return self._end_all()
        with self._changes[group]:
            return self._end(group, node)


_REQUESTS = {"start", "status", "use", "leave", "users", "stop"}


def _wait_for_the_end_of(connection: socket.socket, pid: int) -> None:
    """Return when a process has ended, or has closed its end of a connection.

    The connection alone would not do: a process that it forked may hold it open.
    """
    poll = select.poll()
    poll.register(connection, select.POLLIN)  # a user never writes again: what can be read is the end
    ends = -1
    with contextlib.suppress(AttributeError, OSError):
        ends = os.pidfd_open(pid)
        poll.register(ends, select.POLLIN)
    poll.poll()
    if ends >= 0:
        os.close(ends)


def main(home: Path, folder: Path) -> None:
    """Look after a home, unless another supervisor does. The folder, for socket and lock, exists."""
    path = folder / SOCKET
    with open(folder / LOCK, "ab") as lock:
        while not _is_free(lock):  # another one runs, or is about to end
            with socket.socket(socket.AF_UNIX) as other:
                if other.connect_ex(str(path)) == 0:
                    return
            time.sleep(0.05)
        with contextlib.suppress(OSError, AttributeError):  # macOS has none: sessions have to do
            ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        # The memory of what it starts has keys in it, so none of it leaves a core dump.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(64)
            keep = float(os.environ.get(KEEP, KEEP_SECONDS))
            Supervisor(home, path, keep).serve(listener)


def _is_free(lock: BinaryIO) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    main(Path(sys.argv[1]), Path(sys.argv[2]))
