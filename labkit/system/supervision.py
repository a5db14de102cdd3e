"""A process's side of the supervisor (`labkit.system.supervisor`): start, use and stop what the lab runs.

    supervision.use(home, "store")           # it runs as long as this process does, and a minute longer
    started = supervision.start(home, ["rclone", "serve", "s3", …], group="store", log=log)
    supervision.leave(home, "store") or supervision.stop(home, "store")

A group of processes has a name, and facts that the next process needs to use it (`note`). They are in a small
file, because they outlive the supervisor: one that was killed, and for the port of the next store server.
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

from labkit.errors import LabError
from labkit.files import atomic_write, json_object
from labkit.interrupts import wait_until
from labkit.settings import OTHER_HOME
from labkit.system import family, supervisor
from labkit.system.supervisor import ENDED, KEEP_SECONDS, PROTOCOL, SOCKET, UNKNOWN

_START_SECONDS = 30.0  # for a supervisor; it takes 0.2
_END_SECONDS = 3.0  # for one that has stopped everything

_held: dict[tuple[Path, str], socket.socket] = {}  # of this process, one for each group that it uses
_supervisors: list[subprocess.Popen] = []  # that this process has started


@dataclass(frozen=True)
class Started:
    """A program that the supervisor has started."""

    home: Path
    pid: int

    def status(self) -> int | None:
        """Its exit status; None while it runs, UNKNOWN if the supervisor was killed meanwhile."""
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

    Args:
        group: what it belongs to, and is stopped with.
        env: default: the environment of this process.
        stdin: a file descriptor for it.

    Raises:
        LabError: there is no such program, or the log cannot be written.
    """
    environment = {**(os.environ if env is None else env), **family.mark(home, group)}
    about = {"command": command, "group": group, "log": str(log), "env": environment, "folder": _here()}
    connection, said = _request(home, "start", [] if stdin is None else [stdin], **about)
    connection.close()
    answer = json.loads(said)
    if "pid" not in answer:
        fix = "make that folder writable, or set LABKIT_HOME to one that is and has space"
        raise LabError(f"start {Path(command[0]).name}", answer["error"], fix)
    return Started(home, answer["pid"])


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return "/"


def use(home: Path, group: str, *, keep: float = KEEP_SECONDS) -> None:
    """Keep a group running until `keep` seconds after this process has ended, or until `leave`."""
    key = (home, group)
    if key in _held and os.getpid() in users(home).get(group, ()):
        return
    _held[key] = _use(home, group, keep, again=False)
    threading.Thread(target=_hold, args=[key, _held[key], keep], name="labkit-use", daemon=True).start()


def _use(home: Path, group: str, keep: float, *, again: bool) -> socket.socket:
    connection, said = _request(home, "use", [], group=group, pid=os.getpid(), keep=keep, again=again)
    if said == b"{}\n":
        return connection
    connection.close()
    fact = f"the {group} was stopped" if said == ENDED else json.loads(said)["error"]
    raise LabError(f"use the {group}", fact, "python -m labkit stop, then start again")


def _hold(key: tuple[Path, str], connection: socket.socket, keep: float) -> None:
    """Wait until the group was stopped. A supervisor that was killed is replaced."""
    while _held.get(key) is connection:  # else this process has left or stopped it
        with connection, contextlib.suppress(OSError):
            if connection.recv(len(ENDED)):
                break
        if _held.get(key) is connection:
            try:
                _held[key] = connection = _use(*key, keep, again=True)
            except (LabError, OSError):
                break
    if _held.get(key) is connection:
        del _held[key]


def leave(home: Path, group: str) -> bool:
    """End this process's use of a group, which is not stopped. Returns whether others use it."""
    _drop((home, group))
    answer = _ask(home, "leave", group=group, pid=os.getpid())
    return bool(answer and answer.get("in_use"))


def _drop(key: tuple[Path, str]) -> None:
    if (connection := _held.pop(key, None)) is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that holds it


def users(home: Path) -> dict[str, list[int]]:
    """The pids of the processes that use each group. Without a supervisor nothing is known to be used."""
    return _ask(home, "users") or {}


def stop(home: Path, group: str | None = None, *, node: str | None = None) -> list[str]:
    """Stop a group, one of its nodes, or all that the lab runs for a home here. Says what was running."""
    if node is None:
        for key in [key for key in _held if key[0] == home and group in (None, key[1])]:
            _drop(key)
    stopped = _ask(home, "stop", group=group, node=node)
    if stopped is None:  # it was killed
        return family.end(home, group, node)
    if group is None and not wait_until(lambda: not family.running(home), seconds=_END_SECONDS, check=int):
        family.end(home)
    return stopped


def note(home: Path, group: str, facts: Mapping[str, Any]) -> None:
    """Remember facts about a group, such as its address, for processes that come later."""
    atomic_write(family.make_folder(home) / f"{group}.json", json.dumps(facts))


def noted(home: Path, group: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """The facts about a group, dead or alive; empty if there are none, or one is missing or damaged."""
    with contextlib.suppress(OSError, ValueError):
        facts = json_object((family.folder_of(home) / f"{group}.json").read_bytes(), kinds)
        if kinds.keys() <= facts.keys():
            return {name: facts[name] for name in kinds}
    return {}


# -- the connection -------------------------------------------------------------------------------------


def _ask(home: Path, do: str, **about: Any) -> Any:
    """The supervisor's answer; None if there is no supervisor."""
    if (connection := _open(home)) is not None:
        with connection, contextlib.suppress(OSError):
            _send(connection, do, [], **about)
            said = _line(connection)
            return json.loads(said) if said else None
    return None


def _request(home: Path, do: str, files: list[int], **about: Any) -> tuple[socket.socket, bytes]:
    """Ask the supervisor, which is started if there is none: the connection, and its answer.

    Raises:
        LabError: it does not start.
    """
    attempt, process = "start the lab's supervisor", None
    deadline = time.monotonic() + _START_SECONDS
    try:
        log = family.make_folder(home) / "supervisor.log"
        while not (process and process.poll()) and time.monotonic() < deadline:
            if (connection := _open(home)) is not None:
                with contextlib.suppress(OSError):
                    _send(connection, do, files, **about)
                    if said := _line(connection):
                        return connection, said
                connection.close()  # it was about to end
            elif process is None or process.poll() == 0:  # another one was about to end
                process = _start_supervisor(home, log)
            time.sleep(0.01)
        said = log.read_text(errors="replace").strip().splitlines()
        raise LabError(attempt, said[-1] if said else "it does not answer", f"read {log}")
    except OSError as error:
        fact, fix = error.strerror or str(error), f"make {home} writable, or use another home: {OTHER_HOME}"
        raise LabError(attempt, fact, fix) from error


def _send(connection: socket.socket, do: str, files: list[int], **about: Any) -> None:
    socket.send_fds(connection, [b"\n"], files)
    connection.sendall(json.dumps({"do": do, "protocol": PROTOCOL, **about}).encode() + b"\n")


def _line(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as lines:
        return lines.readline()


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


def _forget_in_a_fork() -> None:
    """A fork isn't a user: it closes its copies, so that they don't hide the end of this process."""
    for connection in _held.values():
        connection.close()
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_a_fork)
