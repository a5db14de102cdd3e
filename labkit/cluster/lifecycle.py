"""Start a Ray cluster of real `ray start` processes on this machine, find it again, or connect to another.

    lab = cluster.start(nodes=2)       # a head and one more node, both on this machine
    lab.add_node(cpus=2)
    lab.remove_node("node-2")
    lab.stop()

    lab = cluster.connect("10.0.0.7:6379")   # a cluster that the lab did not start: it is never stopped

All processes are recorded (`labkit.system.process_registry`), so that a restarted kernel finds its cluster
again and none of them outlives its use. Ray's token authentication is always on. It is what protects Ray's
gRPC ports, which cannot be bound to loopback; the dashboard is.
"""

import atexit
import importlib
import math
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock

from labkit import machine
from labkit.cluster import connection
from labkit.cluster.capacity import expect_int
from labkit.cluster.handle import Cluster
from labkit.cluster.nodes import OBJECT_STORE_BYTES, START_TIMEOUT, NodeLauncher, read_info, temp_dir
from labkit.cluster.preload import modules_of
from labkit.display.progress import Waiting
from labkit.errors import ClusterError
from labkit.settings import Settings
from labkit.system import interrupts

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
        nodes: the head and ``nodes - 1`` further nodes (default: the head alone), each a set of real
            ``ray start`` processes. A cluster that runs already is not changed: a warning says so.
        cpus_per_node: logical CPUs of each. Default: together enough for the settings' workers and one more
            for Ray Data, and at least the machine's cores.
        object_store_bytes: shared memory of the head.
        preload: what workers find imported, so that they start in a fraction of the time: "torch",
            "tensorflow", or a list of module names; an empty list: Ray starts them as always. It counts
            when this process connects; a cluster that is connected already is not changed.

    Raises:
        ClusterError: a node did not start, or an argument has a value that cannot work.
        RunStopped: the reader interrupted; nothing is left running.
    """
    settings, modules = Settings.given(settings), modules_of(preload)
    for name, count in (("nodes", nodes), ("cpus_per_node", cpus_per_node)):
        if count is not None:
            expect_int("start a cluster", name, count)
    expect_int("start a cluster", "object_store_bytes", object_store_bytes, least=78_643_200)  # as Ray wants
    running = current()
    with interrupts.stoppable("the start of the cluster", undo=_stop_unless(running)) as check:
        if running is not None:
            import ray

            if not ray.is_initialized():
                running.connect()
        elif settings.ray_address:
            running = connect(settings.ray_address)
        else:
            settings.make_home()
            # One process of this home starts a cluster; others wait here, and then find it.
            with FileLock(temp_dir(settings).parent / "starting", timeout=2 * START_TIMEOUT):
                running = _find(settings, modules)
                if running is None:
                    launcher = NodeLauncher(settings, modules)
                    each = math.ceil(max(machine.cores(), settings.num_workers + 1) / (nodes or 1))
                    return _start(launcher, nodes or 1, cpus_per_node or each, object_store_bytes, check)
    have = [node.cpus for node in running.nodes]
    if (nodes or len(have)) != len(have) or any(cpus != (cpus_per_node or cpus) for cpus in have):
        warnings.warn(
            f"a cluster with {len(have)} node{'s' * (len(have) > 1)}, {sum(have):g} CPUs runs already and is "
            "used; to get another one: lab.add_node() or lab.remove_node(), or lab.stop() first",
            stacklevel=2,
        )
    return running


def connect(address: str, *, token_file: Path | str | None = None) -> Cluster:
    """Connect to a cluster that runs already. It is used, and never stopped.

    The package labkit is sent along, so that the nodes do not need it.

    Args:
        address: ``host:port`` of its head, or ``ray://host:port`` for a Ray client from outside.
        token_file: its authentication token (default: Ray's own, ``~/.ray/auth_token``).

    Raises:
        ClusterError: nothing answers, or the token is not the cluster's.
    """
    attempt, running = f"connect to {address!r}", current()
    if not isinstance(address, str) or not address:
        raise ClusterError(attempt, "that is not an address", 'for example connect("10.0.0.7:6379")')
    if running is not None:
        if running.address == address:
            return running
        raise ClusterError(attempt, f"this notebook is connected to {running.address}", "lab.stop() first")
    token = Path(token_file).expanduser() if token_file else connection.user_token()
    if token_file and not token.is_file():
        raise ClusterError(attempt, f"there is no token file {token}", "copy it from the cluster's head")
    left = "This process is connected to no cluster"
    with interrupts.stoppable(f"the connection to {address}", undo=_stop_unless(None), left=left):
        return _use(Cluster(address, token=token))


def current() -> Cluster | None:
    """The cluster that this process is connected to through the lab, if any.

    If `labkit stop` has ended it, or its head has died, this process disconnects from it.
    """
    if _current is not None and not _current.is_running:
        _current.disconnect()
    return _current if _current is not None and _current.is_running else None


def _start(
    launcher: NodeLauncher, nodes: int, cpus: int, object_store_bytes: int, check: Callable[[], None]
) -> Cluster:
    """Start the head, connect to it, and start the other nodes."""
    # Ray reads its environment when it is imported. That takes a second of this process, while the node's
    # processes take several.
    connection.set_environment(launcher.token)
    threading.Thread(target=importlib.import_module, args=("ray",), daemon=True).start()
    try:
        with Waiting("starting the cluster", unit="nodes") as waiting:

            def on_wait() -> None:
                check()
                waiting(0, 1)

            info = launcher.start_head(cpus=cpus, object_store_bytes=object_store_bytes, on_wait=on_wait)
            cluster = _use(Cluster(info["address"], dashboard_url=info["dashboard"], launcher=launcher))
        for _ in range(1, nodes):
            cluster.add_node(cpus=cpus)
    except BaseException:
        # Also after an interrupt: half a cluster is of no use.
        connection.disconnect()
        launcher.release()
        launcher.stop()
        raise
    return cluster


def _find(settings: Settings, modules: Sequence[str]) -> Cluster | None:
    """The cluster of this home that an earlier kernel left running, or None."""
    if info := read_info(temp_dir(settings)):  # if its file is damaged, its watchdog stops it
        launcher = NodeLauncher(settings, modules, group_id=info["group"])
        if launcher.has_head():
            found = Cluster(info["address"], dashboard_url=info["dashboard"], launcher=launcher)
            try:
                return _use(found)
            except ClusterError:  # it is ending
                found.disconnect()
        launcher.stop()
    return None


def _use(cluster: Cluster) -> Cluster:
    """Connect to a cluster, which then is the current one."""
    global _current
    cluster.connect()
    _current = cluster
    # A script stops its cluster when it exits. A kernel leaves that to the watchdog: it may be a restart.
    if cluster.is_ours and "ipykernel" not in sys.modules:
        atexit.register(cluster.stop)
    return cluster


def _stop_unless(before: Cluster | None) -> Callable[[], None]:
    """A function that stops the current cluster, unless it was current before."""

    def stop() -> None:
        if _current is not None and _current is not before:
            _current.stop()

    return stop
