"""A Ray cluster: connect to one, ask what fits on it, and disconnect.

    lab = cluster.connect("10.0.0.7:6379")   # it is used, and never stopped

`labkit.local.cluster` starts one on this machine.
"""

import atexit
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit import interrupts
from labkit.cluster.capacity import Node
from labkit.cluster.handle import Cluster
from labkit.errors import BadInput, LabError
from labkit.settings import absolute

__all__ = ["Cluster", "Node", "connect", "current", "peek"]

_current: Cluster | None = None


def connect(
    address: str,
    *,
    token_file: Path | str | None = None,
    runtime_env: Mapping[str, Any] | None = None,
) -> Cluster:
    """Connect to a cluster that runs already. It is used, and never stopped.

    The package labkit is sent along, so that the nodes do not need it.

    Args:
        address: ``host:port`` of its head, or ``ray://host:port`` for a Ray client from outside.
        token_file: has its authentication token (default: as Ray does, ``RAY_AUTH_TOKEN``, the file that
            ``RAY_AUTH_TOKEN_PATH`` names, ``~/.ray/auth_token``; a cluster that wants none gets none).
        runtime_env: as for `ray.init`, such as ``{"working_dir": "."}`` with your own modules. labkit is
            added to its ``py_modules``.

    Raises:
        LabError: nothing answers, or the token is not the cluster's.
    """
    attempt = f"connect to {address!r}"
    running = left_or_running()
    if not isinstance(address, str) or not address:
        raise BadInput(attempt, "that is not an address", 'for example connect("10.0.0.7:6379")')
    if running is not None:
        if running.address != address:
            raise LabError(attempt, f"this notebook is connected to {running.address}", "lab.stop() first")
        if runtime_env is not None and dict(runtime_env) != running.runtime_env:
            fact = "this notebook is connected to it, with another runtime_env"
            raise LabError(attempt, fact, "lab.stop() first: it disconnects, and stops nothing there")
        reconnect(running)
        return running
    token = Path(absolute(os.fspath(token_file))) if token_file else None
    if token is not None and not token.is_file():
        raise BadInput(attempt, f"there is no token file {token}", "copy it from the cluster's head")
    left = "This process is connected to no cluster"
    with interrupts.stoppable(f"the connection to {address}", undo=stop_current, left=left):
        lab = Cluster(address, token_file=token, runtime_env=runtime_env)
        lab.connect()
        return use(lab)


def current() -> Cluster | None:
    """Return the cluster that this process is connected to through the lab, if any.

    If `labkit stop` has ended it, or its head has died, there is none: within seconds, a thread of the handle
    disconnects this process.
    """
    return _current if _current is not None and _current.is_running else None


def peek() -> Cluster | None:
    """Return the cluster that this process was connected to last, without a look at whether it still runs."""
    return _current


def log_dir() -> Path | None:
    """Return the folder of Ray's logs, if the cluster of `peek` has it on this machine."""
    lab = peek()
    return None if lab is None else lab.log_dir


def of_this_connection() -> Cluster | None:
    """Return the cluster that Ray is connected to, if this process has connected by the lab; else None."""
    lab = peek()
    return lab if lab is not None and lab.has_this_session else None


def left_or_running() -> Cluster | None:
    """Return the current cluster, after this process has disconnected from one that has ended."""
    if _current is not None and not _current.is_running:
        _current.disconnect()
    return current()


def use(cluster: Cluster) -> Cluster:
    """Make a cluster the current one."""
    global _current
    _current = cluster
    # A script stops its cluster when it exits. A kernel leaves that to the supervisor: it may be a restart.
    if cluster.is_ours and "ipykernel" not in sys.modules:
        atexit.register(cluster.stop)
    return cluster


def reconnect(running: Cluster) -> None:
    """Connect again if the reader has called `ray.shutdown`."""
    import ray

    if not ray.is_initialized():
        running.connect()


def stop_current() -> None:
    if _current is not None:
        _current.stop()
