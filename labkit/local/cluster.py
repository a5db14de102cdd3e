"""A Ray cluster of real `ray start` processes on this machine: start it, or find it again.

    lab = cluster.start(nodes=2)       # a head and one more node
    lab.add_node(cpus=2)
    lab.remove_node("node-2")
    lab.stop()

A supervisor starts all processes (`labkit.local.supervisor`), so that a restarted kernel finds its cluster
again and none of them outlives its use. Ray's token authentication is always on. It is what protects Ray's
gRPC ports, which cannot be bound to loopback; the dashboard is.
"""

import math
import warnings
from collections.abc import Sequence

from labkit import interrupts, machine
from labkit.cluster import (
    Cluster,
    Node,
    connect,
    connection,
    current,
    left_or_running,
    reconnect,
    stop_current,
    use,
)
from labkit.display.formatting import plural
from labkit.errors import expect_int
from labkit.local.nodes import OBJECT_STORE_BYTES, LocalCluster
from labkit.local.preload import modules_of
from labkit.settings import Settings

__all__ = ["Cluster", "Node", "connect", "current", "start"]


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
    settings = settings or Settings.from_env()
    modules = modules_of(preload)
    expect_int("start a cluster", "nodes", 1 if nodes is None else nodes)
    expect_int("start a cluster", "cpus_per_node", 1 if cpus_per_node is None else cpus_per_node)
    expect_int("start a cluster", "object_store_bytes", object_store_bytes, least=78_643_200)  # as Ray wants
    running = left_or_running()
    undo = stop_current if running is None else lambda: None
    with interrupts.stoppable("the start of the cluster", undo=undo):
        if running is not None:
            reconnect(running)
        elif settings.ray_address:
            running = connect(settings.ray_address)
        else:
            connection.refuse_another_session("start a cluster")
            settings.make_home()
            running = LocalCluster(settings, modules)
            with running.alone():
                if not running.find():
                    each = math.ceil(max(machine.cores(), settings.num_workers + 1) / (nodes or 1))
                    each = cpus_per_node or each
                    running.start(nodes or 1, cpus=each, object_store_bytes=object_store_bytes)
                    return use(running)
            use(running)
    if isinstance(running, LocalCluster):
        _name_what_workers_lack(running)
    have = [node.cpus for node in running.nodes]
    other = (nodes or len(have)) != len(have) or any(cpus != (cpus_per_node or cpus) for cpus in have)
    if other and running.is_ours:
        warnings.warn(
            f"a cluster with {plural(len(have), 'node')}, {sum(have):g} CPUs runs already "
            "and is used; to get another one: lab.add_node() or lab.remove_node(), or lab.stop() first",
            stacklevel=2,
        )
    return running


def _name_what_workers_lack(running: LocalCluster) -> None:
    """Warn of variables that this process has changed and its workers don't have, each with the fix."""
    now = running.changes_now()
    if now.kept:
        warnings.warn(
            f"this cluster was started with other values of {', '.join(now.kept)}, and its nodes keep them; "
            "to get these: lab.stop(), then cluster.start() again",
            stacklevel=3,
        )
    late = {name for name, _ in now.variables.items() ^ running.changes.variables.items()}
    if late:
        warnings.warn(
            f"{', '.join(sorted(late))} changed after this process had connected, and its workers have the "
            "values from before; to give them these: ray.shutdown(), then cluster.start() again",
            stacklevel=3,
        )
