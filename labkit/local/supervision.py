"""A process's side of the supervisor (`labkit.local.supervisor`): start, use and stop what the lab runs.

    supervision.use(home, "store")           # it runs as long as this process does, and a minute longer
    started = supervision.start(home, ["rclone", "serve", "s3", …], group="store", log=log)
    supervision.leave(home, "store") or supervision.stop(home, "store")

Facts about a group of processes, such as its address, are in a small file (`note`): they outlive a supervisor
that was killed, and a server is started again on its old port.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabError, NotReachable
from labkit.files import atomic_write, json_object
from labkit.interrupts import wait_until
from labkit.local import family, supervisor, temporary
from labkit.local.supervisor import KEEP_SECONDS, OTHER_VERSION, PROTOCOL, SOCKET, UNKNOWN
from labkit.settings import OTHER_HOME

_START_SECONDS = 30.0  # for a supervisor; it takes 0.3
_END_SECONDS = 3.0  # for one that has stopped everything
_AGAIN = "python -m labkit stop, then start again"

_supervisors: list[subprocess.Popen] = []  # that this process has started


@dataclass(frozen=True)
class Started:
    """A program that the supervisor has started."""

    home: Path
    pid: int

    def status(self) -> int | None:
        """Return its exit status; None while it runs, UNKNOWN if the supervisor was killed meanwhile."""
        answer = _ask(self.home, "status", pid=self.pid)
        return UNKNOWN if answer is None else answer["status"]


def start(
    home: Path,
    command: list[str],
    *,
    group: str,
    log: Path,
    env: Mapping[str, str] | None = None,
    stdin: int | None = None,
) -> Started:
    """Start a program in a session of its own, and append its output to `log`.

    It is stopped with its group. `env` is this process's environment by default, `stdin` a file descriptor.
    """
    try:
        folder = os.getcwd()
    except OSError:  # it was removed
        folder = "/"
    environment = temporary.with_a_short_one(os.environ if env is None else env, home)
    environment |= family.mark(home, group)
    connection, answer = _request(
        home,
        "start",
        [] if stdin is None else [stdin],
        command=command,
        group=group,
        log=str(log),
        env=environment,
        folder=folder,
    )
    connection.close()
    if "error" in answer:
        fix = "make that folder writable, or set LABKIT_HOME to one that is and has space"
        raise LabError(f"start {Path(command[0]).name}", answer["error"], fix)
    return Started(home, answer["pid"])


def use(home: Path, group: str, *, keep: float = KEEP_SECONDS) -> None:
    """Keep a group running until `keep` seconds after this process has ended, or until `leave`."""
    use = {"group": group, "pid": os.getpid(), "keep": keep}
    connection, _ = _request(home, "use", [], **use)
    threading.Thread(target=_stay, args=[home, use, connection], name="labkit-use", daemon=True).start()


def _stay(home: Path, use: dict[str, Any], connection: socket.socket) -> None:
    """Wait until this process leaves the group, or it is stopped; replace a supervisor that was killed."""
    while True:
        with connection, contextlib.suppress(OSError):
            if connection.recv(1):  # `supervisor.ENDED`
                return
        try:
            if use["group"] not in family.groups(home):
                return
            connection, _ = _request(home, "use", [], **use)
        except (LabError, OSError):
            return
        if use["group"] not in family.groups(home):  # `stop` was ending it: there is nothing to look after
            stop(home, use["group"])


def leave(home: Path, group: str) -> bool:
    """End this process's use of a group, which is not stopped. Return whether others use it."""
    answer = _ask(home, "leave", group=group, pid=os.getpid())
    return bool(answer and answer.get("in_use"))


def users(home: Path) -> dict[str, list[int]]:
    """Return the pids of the processes that use each group; without a supervisor, none."""
    return _ask(home, "users") or {}


def stop(home: Path, group: str | None = None, *, node: str | None = None) -> list[str]:
    """Stop a group, one of its nodes, or all that the lab runs for a home here. Return what was running."""
    stopped = _ask(home, "stop", group=group, node=node)
    if stopped is None:  # there is no supervisor, or it was killed
        stopped = family.end(home, group, node)
        if not family.running(home):
            temporary.remove_links(family.folder_of(home))
        return stopped
    if group is None and not wait_until(lambda: not family.running(home), seconds=_END_SECONDS, check=int):
        family.end(home)
    return stopped


def note(home: Path, group: str, facts: Mapping[str, Any]) -> None:
    """Remember facts about a group, such as its address, for processes that come later."""
    atomic_write(family.make_folder(home) / f"{group}.json", json.dumps(facts))


def noted(home: Path, group: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return the facts about a group, dead or alive; empty if any of them is missing or damaged."""
    with contextlib.suppress(OSError, ValueError):
        facts = json_object((family.folder_of(home) / f"{group}.json").read_bytes(), kinds)
        if kinds.keys() <= facts.keys():
            return {name: facts[name] for name in kinds}
    return {}


# -- the connection -------------------------------------------------------------------------------------


def _ask(home: Path, do: str, **arguments: Any) -> Any:
    """Ask the supervisor; None if there is none, or one of another version."""
    connection = _open(home)
    if connection is not None:
        with connection, contextlib.suppress(OSError, ValueError, LabError):  # it was killed
            return _answer(connection, do, [], **arguments)
    return None


def _request(home: Path, do: str, files: list[int], **arguments: Any) -> tuple[socket.socket, Any]:
    """Ask the supervisor, which is started if there is none; return the connection and the answer."""
    process = None
    deadline = time.monotonic() + _START_SECONDS
    try:
        log = family.make_folder(home) / "supervisor.log"
        while time.monotonic() < deadline:
            status = process.poll() if process is not None else None
            if status is not None and status > 0:
                break  # it has failed
            connection = _open(home)
            if connection is not None:
                with contextlib.suppress(OSError, ValueError):
                    return connection, _answer(connection, do, files, **arguments)
                connection.close()  # it was about to end
            elif process is None or status is not None:  # another one was ending, or has ended it
                process = _start_supervisor(home, log)
            time.sleep(0.01)
        printed = log.read_text(errors="replace").strip().splitlines()
        fact = printed[-1] if printed else "it does not answer"
        fix = f"{_AGAIN} (its log is {log})"
    except OSError as error:
        fact = error.strerror or str(error)
        fix = f"make {home} writable, or use another home: {OTHER_HOME}"
    raise NotReachable("start the lab's supervisor", fact, fix)


def _answer(connection: socket.socket, do: str, files: list[int], **arguments: Any) -> Any:
    socket.send_fds(connection, [b"\n"], files)
    request = {"do": do, "protocol": PROTOCOL, **arguments}
    connection.sendall(json.dumps(request).encode() + b"\n")
    with connection.makefile("rb", buffering=0) as lines:  # what follows the line is for `_stay`
        answer = json.loads(lines.readline())
    if isinstance(answer, dict) and answer.get("error") == OTHER_VERSION:
        raise NotReachable("use the lab's supervisor", OTHER_VERSION, _AGAIN)
    return answer


def _open(home: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(family.folder_of(home) / SOCKET))
    except OSError:
        connection.close()
        return None
    return connection


def _start_supervisor(home: Path, log: Path) -> subprocess.Popen:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", supervisor.__file__, str(home), str(log.parent)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **family.mark(home, family.SUPERVISOR)},
        )
    _supervisors.append(process)
    return process
