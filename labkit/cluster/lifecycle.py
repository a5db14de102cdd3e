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
import contextlib
import math
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from labkit import machine
from labkit.cluster import connection
from labkit.cluster.capacity import expect_int, expect_type
from labkit.cluster.handle import Cluster
from labkit.cluster.nodes import (
    OBJECT_STORE_BYTES,
    START_TIMEOUT,
    NodeLauncher,
    read_info,
    temp_dir,
    user_token,
)
from labkit.cluster.preload import modules_of
from labkit.display.progress import Waiting
from labkit.errors import ClusterError
from labkit.settings import Settings
from labkit.system import interrupts

_MIN_OBJECT_STORE = 78_643_200  # bytes; `ray start` refuses less

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
    attempt = "start a cluster"
    if settings is not None:
        expect_type(attempt, "settings", settings, Settings, "settings=Settings(small=True)")
    settings = settings or Settings.from_env()
    if nodes is not None:
        nodes = expect_int(attempt, "nodes", nodes)
    if cpus_per_node is not None:
        cpus_per_node = expect_int(attempt, "cpus_per_node", cpus_per_node)
    expect_int(attempt, "object_store_bytes", object_store_bytes, least=_MIN_OBJECT_STORE)
    modules = modules_of(preload)
    running = current()
    if running is None and settings.ray_address:
        running = connect(settings.ray_address, settings=settings)
    with interrupts.stoppable("the start of the cluster", undo=_stop_unless(running)) as check:
        if running is None:
            settings.make_home()
            with _one_at_a_time(settings, check):
                running = _find(settings, modules)
                if running is None:
                    cpus = cpus_per_node or math.ceil(
                        max(machine.cores(), settings.num_workers + 1) / (nodes or 1)
                    )
                    launcher = NodeLauncher(settings, modules)
                    return _start(launcher, nodes or 1, cpus, object_store_bytes, check)
        elif not connection.is_connected():
            running._reconnect()
    _warn_of_another_shape(running, nodes, cpus_per_node)
    return running


def connect(
    address: str, *, token_file: Path | str | None = None, settings: Settings | None = None
) -> Cluster:
    """Connect to a cluster that runs already. It is used, and never stopped.

    The package labkit is sent along, so that the nodes do not need it.

    Args:
        address: ``host:port`` of its head, or ``ray://host:port`` for a Ray client from outside.
        token_file: its authentication token (default: Ray's own, ``~/.ray/auth_token``).

    Raises:
        ClusterError: nothing answers, or the token is not the cluster's.
    """
    global _current
    expect_type(f"connect to {address!r}", "address", address, str, 'connect("10.0.0.7:6379")')
    if token_file is not None:
        kinds = (str, Path)
        expect_type(f"connect to {address}", "token_file", token_file, kinds, 'token_file="~/token"')
    running = current()
    if running is not None:
        if running.address == address:
            return running
        fact = f"this notebook is connected to {running.address}"
        raise ClusterError(f"connect to {address}", fact, "lab.stop() first")
    token = Path(token_file).expanduser() if token_file else user_token()
    if token_file and not token.is_file():
        fact = f"there is no token file {token}"
        raise ClusterError(f"connect to {address}", fact, "copy it from the cluster's head")
    left = "This process is connected to no cluster"
    with interrupts.stoppable(f"the connection to {address}", undo=_stop_unless(None), left=left):
        url = connection.connect(address, token, ship=True)
        _current = Cluster(address, f"http://{url}" if url else None)
    return _current


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
    threading.Thread(target=_import_ray, daemon=True).start()
    try:
        with Waiting("starting the cluster", unit="nodes") as waiting:

            def show(have: int) -> None:
                check()
                waiting(have, nodes)

            info = launcher.start_head(
                cpus=cpus, object_store_bytes=object_store_bytes, on_wait=partial(show, 0)
            )
            cluster = _connect_to_own(launcher, info)
            for have in range(1, nodes):
                cluster._join(f"node-{have + 1}", cpus, on_wait=partial(show, have))
            show(nodes)
    except BaseException:
        # Also after an interrupt: half a cluster is of no use.
        connection.disconnect()
        launcher.release()
        launcher.stop()
        raise
    return cluster


def _import_ray() -> None:
    with contextlib.suppress(Exception):  # the next import reports the error
        import ray  # noqa: F401


def _find(settings: Settings, modules: Sequence[str]) -> Cluster | None:
    """The cluster of this home that an earlier kernel left running, or None."""
    info = read_info(temp_dir(settings))
    if not info:
        return None  # none was left; or its file is damaged, and then its watchdog stops it
    launcher = NodeLauncher(settings, modules, group_id=info["group"])
    if launcher.has_head():
        with contextlib.suppress(ClusterError):  # it is ending
            return _connect_to_own(launcher, info)
    launcher.stop()
    return None


def _connect_to_own(launcher: NodeLauncher, info: dict[str, str]) -> Cluster:
    """Connect to the cluster that `launcher` started, now or in an earlier kernel."""
    global _current
    launcher.connect(info["address"])
    _current = cluster = Cluster(info["address"], info["dashboard"], launcher)
    cluster._preload(node.name for node in cluster.nodes)
    # A script stops its cluster when it exits. A kernel leaves that to the watchdog: it may be a restart.
    if "ipykernel" not in sys.modules:
        atexit.register(cluster.stop)
    return cluster


def _stop_unless(before: Cluster | None) -> Callable[[], None]:
    """A function that stops the current cluster, unless it was current before."""

    def stop() -> None:
        if _current is not None and _current is not before:
            _current.stop()

    return stop


def _warn_of_another_shape(running: Cluster, nodes: int | None, cpus_per_node: int | None) -> None:
    """A second start() is no error; one that asks for something else gets a warning."""
    alive = running.nodes
    other_nodes = nodes is not None and nodes != len(alive)
    other_cpus = cpus_per_node is not None and any(node.cpus != cpus_per_node for node in alive)
    if other_nodes or other_cpus:
        change = "lab.add_node() or lab.remove_node(), or " if running.is_ours else ""
        warnings.warn(
            f"a cluster with {running.size} runs already and is used; to get another one: {change}"
            "lab.stop() first",
            stacklevel=3,
        )


@contextlib.contextmanager
def _one_at_a_time(settings: Settings, check: Callable[[], None]) -> Iterator[None]:
    """Let one process of this home start a cluster; others wait, and then find it.

    Raises:
        ClusterError: the other one is not done in time.
    """
    lock = FileLock(temp_dir(settings).parent / "starting")
    deadline = time.monotonic() + START_TIMEOUT
    with Waiting("another notebook starts the cluster", unit="nodes") as waiting:
        while not lock.is_locked:
            check()
            waiting(0, 1)
            if time.monotonic() > deadline:
                fact = f"another process that starts one is not done after {START_TIMEOUT} s"
                fix = "wait for that notebook, or end it: python -m labkit stop, and restart its kernel"
                raise ClusterError("start a cluster", fact, fix)
            with contextlib.suppress(Timeout):
                lock.acquire(timeout=0.2)
    try:
        yield
    finally:
        lock.release()
