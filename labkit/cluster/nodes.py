"""The commands, folders, ports and tokens behind a cluster of real ``ray start`` processes.

Nothing here imports ray: what is started is a command line that a reader could have typed, and prints
the same (`Cluster.commands`).
"""

import contextlib
import functools
import hashlib
import json
import os
import secrets
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from labkit import machine
from labkit.cluster.connection import VARIABLES
from labkit.cluster.preload import Preloader
from labkit.display.progress import Waiting
from labkit.errors import ClusterError
from labkit.settings import NODE_NAME, Settings
from labkit.system.process_registry import ProcessRegistry

OBJECT_STORE_BYTES = 400_000_000  # shared memory of a node; lessons pass far less through it
_START_TIMEOUT = 120  # seconds for one `ray start`; a cold disk needs 40
# What `ray` is, but for the Python that its processes get: Ray takes the one that it runs in itself.
_PROGRAM = "import sys; sys.executable = sys.argv.pop(1); from ray.scripts.scripts import main; main()"
_SOCKET_LIMIT = 107 if sys.platform == "linux" else 103  # bytes of a Unix socket's path
_SOCKET_TAIL = len("/t/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store.1")

# For a node whose workers are forked; both are settings of Ray's.
FORKED = {
    # Ray would start one for each CPU when the first driver connects, in its own way; but those that this
    # driver takes have another ``py_executable``.
    "RAY_prestart_worker_first_driver": "0",
    # Workers that may start at a time. Ray's own is the number of cores, since each imports for seconds; and
    # it prints a warning into the notebook when four times as many workers live on a node.
    "RAY_worker_maximum_startup_concurrency": "8",
}


def head_command(
    *,
    name: str,
    cpus: int | None,
    port: int,
    dashboard_port: int,
    temp_dir: Path | None,
    object_store_bytes: int | None = None,
) -> list[str]:
    command = ["ray", "start", "--head", f"--node-name={name}", f"--port={port}"]
    command += ["--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}"]
    if temp_dir is not None:
        # Ports 0 and 0 together: `ray start` refuses one without the other.
        command += [f"--temp-dir={temp_dir}", f"--ray-client-server-port={machine.free_port()}"]
        command += [
            "--min-worker-port=0",
            "--max-worker-port=0",
            f"--dashboard-agent-listen-port={machine.free_port()}",
        ]
    if object_store_bytes is not None:
        command.append(f"--object-store-memory={object_store_bytes}")
    return command + ([f"--num-cpus={cpus}"] if cpus is not None else [])


def node_command(
    address: str, *, name: str, cpus: int | None, resources: dict[str, float] | None = None
) -> list[str]:
    command = ["ray", "start", f"--address={address}", f"--node-name={name}"]
    if cpus is not None:
        command += [f"--num-cpus={cpus}", f"--object-store-memory={OBJECT_STORE_BYTES}"]
        command += [
            "--min-worker-port=0",
            "--max-worker-port=0",
            f"--dashboard-agent-listen-port={machine.free_port()}",
        ]
    return command + ([f"--resources={json.dumps(resources)}"] if resources else [])


def run(
    registry: ProcessRegistry,
    lab: str,
    command: list[str],
    name: str,
    temp_dir: Path,
    settings: Settings,
    waiting: Callable[[], None],
    preloader: Preloader | None,
) -> str:
    """Run one `ray start`, and beside it the imports for the node's workers; record what it leaves running.

    Returns:
        What it printed.

    Args:
        waiting: called several times a second until it is done.
        preloader: of the node's workers; None: Ray starts them by itself.

    Raises:
        ClusterError: it failed, or took too long.
    """
    log = temp_dir / f"start-{name}.log"
    log.unlink(missing_ok=True)
    env = {**os.environ, **VARIABLES, "RAY_AUTH_TOKEN_PATH": str(lab_token(settings)), NODE_NAME: name}
    env.pop("RAY_ADDRESS", None)
    python = None
    if preloader is not None:
        env |= FORKED
        preloader.begin(registry, lab, node=name)
        python = preloader.launcher()
    program = [sys.executable, "-c", _PROGRAM, str(python or sys.executable)]
    process = registry.start(
        [*program, *command[1:]], role=f"{name}: ray start", group_id=lab, log=log, env=env
    )
    deadline = time.monotonic() + _START_TIMEOUT
    try:
        while process.poll() is None:
            waiting()
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"start {name}",
                    f"`ray start` is not done after {_START_TIMEOUT} s",
                    f"look into {log}; python -m labkit doctor tells what the machine lacks",
                )
            time.sleep(0.1)
    finally:
        registry.record_session(process, role=name, group_id=lab)
    output = log.read_text(errors="replace")
    if process.returncode:
        last = [line for line in output.splitlines() if line.strip()][-1:] or ["it said nothing"]
        raise ClusterError(
            f"start {name}", f"`ray start` failed: {last[0].strip()}", f"read all of it in {log}"
        )
    return output


def address_of(output: str) -> str:
    """The IP address that the head chose, from what `ray start` prints."""
    plain = "".join(part.partition("m")[2] if k else part for k, part in enumerate(output.split("\x1b[")))
    for line in plain.splitlines():
        if "Local node IP" in line:
            return line.rpartition(":")[2].strip()
    raise ClusterError(
        "start the head", "`ray start` did not say its address", "report this with the version of Ray"
    )


def temp_dir(settings: Settings) -> Path:
    """Ray's folder for sockets and logs: in the home, unless that path is too long for them or not ASCII.

    Raises:
        ClusterError: others may enter the folder.
    """
    mark = hashlib.sha256(os.fsencode(settings.home)).hexdigest()[:8]
    elsewhere = f"labkit-{os.getuid()}-{mark}"
    places = [settings.home / "ray", Path(tempfile.gettempdir()) / elsewhere, Path("/tmp") / elsewhere]
    wanted = next((place for place in places if _suits_ray(place)), places[-1])
    wanted.mkdir(parents=True, exist_ok=True, mode=0o700)
    if wanted.stat().st_uid != os.getuid() or stat.S_IMODE(wanted.stat().st_mode) & 0o077:
        raise ClusterError(
            f"use {wanted} for Ray's sockets",
            "others may enter it",
            f"chmod 700 {wanted}, or set LABKIT_HOME to a folder of yours",
        )
    # Ray opens its own folder to everybody (mode 0777); the one around it is what protects.
    return wanted / "t"


def _suits_ray(folder: Path) -> bool:
    """Whether Ray's sockets fit below a folder. Ray's core takes ASCII alone."""
    return str(folder).isascii() and len(str(folder)) + _SOCKET_TAIL <= _SOCKET_LIMIT


def about_file(temp_dir: Path) -> Path:
    """Where the lab writes down which cluster runs there."""
    return temp_dir / "cluster.json"


def has_head(registry: ProcessRegistry, lab: str) -> bool:
    """Whether all processes of a cluster's head are alive, as recorded at its start."""
    # A forkserver is its kernel's, and ends with it: the cluster is none the worse for it.
    head = [e for e in registry.records(lab) if e.role.startswith("head:") and e.role != "head: forkserver"]
    return bool(head) and all(entry.alive for entry in head)


def lab_token(settings: Settings) -> Path:
    """The lab's own token file, made at its first use."""
    path = settings.home / "ray-token"
    if not path.exists():
        settings.home.mkdir(parents=True, exist_ok=True)
        # Made with the right mode from the start, and never replaced: two kernels may come here at once.
        private = functools.partial(os.open, mode=0o600)
        with contextlib.suppress(FileExistsError), open(path, "x", opener=private) as file:
            file.write(secrets.token_hex(32))
    return path


def users_token() -> Path | None:
    """Ray's own token of this user, if there is one."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else Path.home() / ".ray" / "auth_token"
    return path if path.is_file() else None


@contextlib.contextmanager
def one_at_a_time(settings: Settings, check: Callable[[], None]) -> Iterator[None]:
    """Let one process of this home start a cluster; others wait, and then find it.

    Args:
        check: called several times a second while it waits.

    Raises:
        ClusterError: the other one is not done after two minutes.
    """
    lock = FileLock(temp_dir(settings).parent / "starting")
    deadline = time.monotonic() + _START_TIMEOUT
    with Waiting("another notebook starts the cluster", unit="nodes") as waiting:
        while not lock.is_locked:
            with contextlib.suppress(Timeout):
                lock.acquire(timeout=0.2)
            check()
            waiting(0, 1)
            if not lock.is_locked and time.monotonic() > deadline:
                raise ClusterError(
                    "start a cluster",
                    f"another process that starts one is not done after {_START_TIMEOUT} s",
                    "wait for that notebook, or end it: python -m labkit stop, and restart its kernel",
                )
    try:
        yield
    finally:
        lock.release()
