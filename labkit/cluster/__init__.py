"""A Ray cluster of real `ray start` processes: start one, find it again, or connect to another.

    lab = cluster.start(nodes=2)       # a head and one more node, both on this machine
    lab.add_node(cpus=2)
    lab.remove_node("node-2")
    lab.stop()

    lab = cluster.connect("10.0.0.7:6379")   # a cluster that the lab did not start: it is never stopped

A supervisor starts all processes (`labkit.local.supervisor`), so that a restarted kernel finds its cluster
again and none of them outlives its use. Ray's token authentication is always on. It is what protects Ray's
gRPC ports, which cannot be bound to loopback; the dashboard is.
"""

import atexit
import math
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from labkit import interrupts, machine
from labkit.cluster import connection
from labkit.cluster.capacity import Node
from labkit.cluster.handle import Cluster
from labkit.local.nodes import LocalCluster, OBJECT_STORE_BYTES
from labkit.local.preload import modules_of
from labkit.local.variables import Changes
from labkit.errors import LabError, expect_int
from labkit.settings import Settings, absolute

__all__ = ["Cluster", "Node", "connect", "current", "peek", "start"]

_current: Cluster | None = None


def start(
    *,
    nodes: int | None = None,
    cpus_per_node: int | None = None,
    settings: Settings | None = None,
    object_store_bytes: int = OBJECT_STORE_BYTES,
    preload: str | Sequence[str] = "torch",
) -> Cluster:
    """Start a cluster on this machine and connect to it, or return the one that runs already.

    If ``RAY_ADDRESS`` names a cluster, that one is used instead, and nothing is started.

    Args:
        nodes: the head and ``nodes - 1`` further nodes (default: only the head), each a set of real
            ``ray start`` processes. A cluster that runs already is not changed: a warning says so.
        cpus_per_node: logical CPUs of each. Default: together enough for the settings' workers and one more
            for Ray Data, and at least the machine's cores.
        object_store_bytes: shared memory of the head.
        preload: what workers find imported, so that they start in a fraction of the time, once this process
            connects: "torch" or "tensorflow"; an empty list: Ray starts them as always.

    Raises:
        LabError: a node did not start, or an argument has a value that cannot work.
        RunStopped: the reader interrupted; nothing is left running.
    """
    settings, modules = Settings.given(settings), modules_of(preload)
    expect_int("start a cluster", "nodes", 1 if nodes is None else nodes)
    expect_int("start a cluster", "cpus_per_node", 1 if cpus_per_node is None else cpus_per_node)
    expect_int("start a cluster", "object_store_bytes", object_store_bytes, least=78_643_200)  # as Ray wants
    running = _left_or_running()
    undo = _stop_current if running is None else lambda: None
    with interrupts.stoppable("the start of the cluster", undo=undo) as check:
        if running is not None:
            _reconnect(running)
        elif settings.ray_address:
            running = connect(settings.ray_address)
        else:
            connection.refuse_another_session("start a cluster")
            settings.make_home()
            running = LocalCluster(settings, modules)
            with running.alone(check):
                if not running.find():
                    each = math.ceil(max(machine.cores(), settings.num_workers + 1) / (nodes or 1))
                    each = cpus_per_node or each
                    running.start(nodes or 1, cpus=each, object_store_bytes=object_store_bytes, check=check)
                    return _use(running)
            _use(running)
    if isinstance(running, LocalCluster):
        _name_what_workers_lack(running)
    have = [node.cpus for node in running.nodes]
    other = (nodes or len(have)) != len(have) or any(cpus != (cpus_per_node or cpus) for cpus in have)
    if other and running.is_ours:
        warnings.warn(
            f"a cluster with {len(have)} node{'s' * (len(have) > 1)}, {sum(have):g} CPUs runs already "
            "and is used; to get another one: lab.add_node() or lab.remove_node(), or lab.stop() first",
            stacklevel=2,
        )
    return running


def connect(address: str, *, token_file: Path | str | None = None) -> Cluster:
    """Connect to a cluster that runs already. It is used, and never stopped.

    The package labkit is sent along, so that the nodes do not need it.

    Args:
        address: ``host:port`` of its head, or ``ray://host:port`` for a Ray client from outside.
        token_file: has its authentication token (default: as Ray does, ``RAY_AUTH_TOKEN``, the file that
            ``RAY_AUTH_TOKEN_PATH`` names, ``~/.ray/auth_token``; a cluster that wants none gets none).

    Raises:
        LabError: nothing answers, or the token is not the cluster's.
    """
    attempt, running = f"connect to {address!r}", _left_or_running()
    if not isinstance(address, str) or not address:
        raise LabError(attempt, "that is not an address", 'for example connect("10.0.0.7:6379")')
    if running is not None:
        if running.address == address:
            _reconnect(running)
            return running
        raise LabError(attempt, f"this notebook is connected to {running.address}", "lab.stop() first")
    token = Path(absolute(os.fspath(token_file))) if token_file else None
    if token is not None and not token.is_file():
        raise LabError(attempt, f"there is no token file {token}", "copy it from the cluster's head")
    left = "This process is connected to no cluster"
    with interrupts.stoppable(f"the connection to {address}", undo=_stop_current, left=left):
        lab = Cluster(address, token_file=token)
        lab.connect()
        return _use(lab)


def current() -> Cluster | None:
    """Return the cluster that this process is connected to through the lab, if any.

    If `labkit stop` has ended it, or its head has died, there is none: within seconds, a thread of the handle
    disconnects this process.
    """
    return _current if _current is not None and _current.is_running else None


def peek() -> Cluster | None:
    """Return the cluster that this process was connected to last, without a look at whether it still runs."""
    return _current


def _left_or_running() -> Cluster | None:
    """Return the current cluster, after this process has disconnected from one that has ended."""
    if _current is not None and not _current.is_running:
        _current.disconnect()
    return current()


def _use(cluster: Cluster) -> Cluster:
    """Make a cluster the current one."""
    global _current
    _current = cluster
    # A script stops its cluster when it exits. A kernel leaves that to the supervisor: it may be a restart.
    if cluster.is_ours and "ipykernel" not in sys.modules:
        atexit.register(cluster.stop)
    return cluster


def _name_what_workers_lack(running: LocalCluster) -> None:
    """Warn of variables that this process has changed and its workers don't have, each with the fix."""
    now = running.changes_now()
    if now.kept:
        warnings.warn(
            f"this cluster was started with other values of {', '.join(now.kept)}, and its nodes keep them; "
            "to get these: lab.stop(), then cluster.start() again",
            stacklevel=3,
        )
    late = {
        name
        for name in now.names | running.changes.names
        if _value(now, name) != _value(running.changes, name)
    }
    if late:
        warnings.warn(
            f"{', '.join(sorted(late))} changed after this process had connected, and its workers have the "
            "values from before; to give them these: ray.shutdown(), then cluster.start() again",
            stacklevel=3,
        )


def _value(changes: Changes, name: str) -> str | None:
    return {**changes.env_vars, **changes.handed}.get(name)


def _reconnect(running: Cluster) -> None:
    """Connect again if the reader has called `ray.shutdown`."""
    import ray

    if not ray.is_initialized():
        running.connect()


def _stop_current() -> None:
    if _current is not None:
        _current.stop()
