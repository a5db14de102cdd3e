"""Start, grow, shrink and stop a Ray cluster of real ``ray start`` processes, or connect to one.

    lab = cluster.start(nodes=2)       # a head and one more node, both on this machine
    lab.add_node(cpus=2)
    lab.remove_node("node-2")
    lab.stop()

    lab = cluster.connect("10.0.0.7:6379")   # a cluster of somebody else's: used, never stopped

All that is started is recorded (`labkit.system.process_registry`), so that a restarted kernel finds it
again and nothing outlives its use. Ray's token authentication is always on; the token lies in a file of
mode 0600.

Ray's gRPC ports cannot be bound to loopback (Ray turns 127.0.0.1 into the host's own address): there
the token protects. The dashboard can, and is.
"""

import atexit
import contextlib
import json
import math
import secrets
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit import machine
from labkit.cluster import connection
from labkit.cluster import nodes as ray_start
from labkit.cluster.capacity import require_type, whole
from labkit.cluster.handle import Cluster
from labkit.cluster.preload import Preloader, modules_of, require_installed
from labkit.cluster.probe import knock
from labkit.display.progress import Waiting
from labkit.errors import ClusterError
from labkit.settings import PACKAGE_ROOT, Settings
from labkit.system import interrupts
from labkit.system.process_registry import ProcessRegistry

_LEAST_STORE = 78_643_200  # bytes; `ray start` refuses less
_KEEP_SECONDS = 60  # a cluster waits that long for a kernel that restarts

_current: Cluster | None = None


def start(
    *,
    nodes: int | None = None,
    cpus_per_node: int | None = None,
    settings: Settings | None = None,
    object_store_bytes: int = ray_start.OBJECT_STORE_BYTES,
    preload: str | Sequence[str] = "torch",
) -> Cluster:
    """Start a cluster on this machine and connect to it; or return the one that runs already.

    Where ``RAY_ADDRESS`` names a cluster, that one is used instead, and nothing is started.

    Args:
        nodes: the head and ``nodes - 1`` further nodes (default: the head alone), each a set of real
            ``ray start`` processes. A cluster that runs already is not changed: a warning says so.
        cpus_per_node: logical CPUs of each. Default: together enough for the settings' workers and one
            more for Ray Data, and at least the machine's cores. A logical CPU is a ticket, not a core.
        object_store_bytes: shared memory of each node.
        preload: what workers find imported, so that they start in a fraction of the time: "torch",
            "tensorflow", or a list of module names; an empty list: Ray starts them as always. It counts
            when this process connects; a cluster that is connected already is not changed.

    Raises:
        ClusterError: a node did not start, or an argument has a value that cannot work.
        RunStopped: the reader interrupted; nothing is left running.
    """
    if settings is not None:
        require_type("start a cluster", "settings", settings, Settings, "settings=Settings(small=True)")
    settings = settings or Settings.from_env()
    if nodes is not None:
        nodes = whole("start a cluster", "nodes", nodes)
    if cpus_per_node is not None:
        cpus_per_node = whole("start a cluster", "cpus_per_node", cpus_per_node)
    whole("start a cluster", "object_store_bytes", object_store_bytes, least=_LEAST_STORE)
    modules = modules_of(preload)
    require_installed(modules)
    before = running = current()

    def undo() -> None:
        if (begun := current()) is not None and begun is not before:
            begun.stop()

    with interrupts.stoppable("the start of the cluster", undo=undo) as check:
        if running is not None and not _is_connected():
            running = _reconnected(running)
        if running is None and settings.ray_address:
            running = connect(settings.ray_address, settings=settings)
        if running is None:
            with ray_start.one_at_a_time(settings, check):
                running = _find(settings, modules)
                if running is None:
                    return _start(nodes or 1, cpus_per_node, settings, object_store_bytes, modules, check)
    _warn_of_another_shape(running, nodes, cpus_per_node)
    return running


def _start(
    nodes: int,
    cpus_per_node: int | None,
    settings: Settings,
    object_store_bytes: int,
    modules: Sequence[str],
    check: Callable[[], None],
) -> Cluster:
    global _current
    if cpus_per_node is None:
        cpus_per_node = math.ceil(max(machine.cores(), settings.num_workers + 1) / nodes)
    lab = f"ray-{secrets.token_hex(4)}"
    registry = ProcessRegistry(settings.make_home())
    temp_dir = ray_start.temp_dir(settings)
    try:
        registry.start_watchdog(lab, seconds=_KEEP_SECONDS)
        preloader = _preloader(settings, modules, temp_dir)
        connection.prepare(ray_start.lab_token(settings))
        # What takes a second of this process goes on beside what takes several in others.
        threading.Thread(target=_import_ray, daemon=True).start()
        with Waiting("starting the cluster", unit="nodes") as waiting:

            def show(have: int) -> None:
                check()
                waiting(have, nodes)

            ask = {"cpus": cpus_per_node, "object_store_bytes": object_store_bytes}
            about = _start_head(registry, lab, temp_dir, settings, ask, lambda: show(0), preloader)
            check()
            cluster = _current = _connected(settings, about, temp_dir, preloader)
            for have in range(1, nodes):
                name = f"node-{have + 1}"
                command = ray_start.node_command(about["address"], name=name, cpus=cpus_per_node)
                cluster._join(command, name, lambda have=have: show(have))
            show(nodes)
    except BaseException:
        # Also when the reader interrupts: half a cluster is of no use to anyone.
        if _current is not None:
            _current.stop()
        registry.stop(lab)
        connection.restore()
        raise
    return cluster


def _start_head(
    registry: ProcessRegistry,
    lab: str,
    temp_dir: Path,
    settings: Settings,
    ask: dict[str, int],
    waiting: Callable[[], None],
    preloader: Preloader | None,
) -> dict[str, str]:
    """Start the head, and once more if another program has taken one of its ports; record its address."""
    for last in (False, True):
        port, dashboard_port = machine.free_port(), machine.free_port()
        command = ray_start.head_command(
            name="head", port=port, dashboard_port=dashboard_port, temp_dir=temp_dir, **ask
        )
        try:
            output = ray_start.run(registry, lab, command, "head", temp_dir, settings, waiting, preloader)
            break
        except ClusterError:
            if last or machine.port_is_free(port) and machine.port_is_free(dashboard_port):
                raise
    address = f"{ray_start.address_of(output)}:{port}"
    about = {"lab": lab, "address": address, "dashboard": f"http://127.0.0.1:{dashboard_port}"}
    ray_start.about_file(temp_dir).write_text(json.dumps(about))
    return about


def _warn_of_another_shape(running: Cluster, nodes: int | None, cpus_per_node: int | None) -> None:
    """A second start() is no error; one that asks for something else should not go by in silence."""
    alive = running.nodes
    other_nodes = nodes is not None and nodes != len(alive)
    other_cpus = cpus_per_node is not None and any(node.cpus != cpus_per_node for node in alive)
    if other_nodes or other_cpus:
        change = "lab.add_node() or lab.remove_node(), or " if running.is_ours else ""
        warnings.warn(
            f"a cluster with {running.size} runs already and is used as it is; for another one: "
            f"{change}lab.stop() first",
            stacklevel=3,
        )


def connect(
    address: str, *, token_file: Path | str | None = None, settings: Settings | None = None
) -> Cluster:
    """Connect to a cluster that runs already. It is used, and never stopped.

    The package labkit travels with the connection, so that the nodes need not have it.

    Args:
        address: ``host:port`` of its head, or ``ray://host:port`` for a Ray client from outside.
        token_file: its authentication token (default: Ray's own, ``~/.ray/auth_token``).

    Raises:
        ClusterError: nobody answers, or the token is not the cluster's.
    """
    global _current
    require_type(f"connect to {address!r}", "address", address, str, 'connect("10.0.0.7:6379")')
    settings = settings or Settings.from_env()
    running = current()
    if running is not None:
        if running.address == address:
            return running
        raise ClusterError(
            f"connect to {address}",
            f"this notebook is connected to {running.address}",
            "lab.stop() first",
        )
    if token_file is not None:
        require_type(f"connect to {address}", "token_file", token_file, (str, Path), 'token_file="~/token"')
    token = Path(token_file).expanduser() if token_file else ray_start.users_token()
    if token_file and not token.is_file():
        raise ClusterError(
            f"connect to {address}", f"there is no token file {token}", "copy it from the cluster's head"
        )
    left = "This process is connected to no cluster"
    with interrupts.stoppable(f"the connection to {address}", undo=_disconnect, left=left):
        _current = _init(address, token, settings, ship=True)
    return _current


def current() -> Cluster | None:
    """The cluster that this process is connected to through the lab, if any.

    A cluster that `labkit stop` has ended, or whose head has died, is let go.
    """
    if _current is not None and _current._running and not _current._has_head():
        _current._let_go()
    return _current if _current is not None and _current._running else None


def _disconnect() -> None:
    if _current is not None:
        _current._let_go()


def _is_connected() -> bool:
    import ray

    return ray.is_initialized()


def _reconnected(cluster: Cluster) -> Cluster | None:
    """The same handle, where the reader called `ray.shutdown` in between; None if its cluster is gone."""
    token = ray_start.lab_token(cluster._settings) if cluster.is_ours else ray_start.users_token()
    try:
        again = _init(
            cluster.address, token, cluster._settings, ship=not cluster.is_ours, preloader=cluster._preloader
        )
    except ClusterError:
        cluster._let_go()
        if not cluster.is_ours:
            raise
        return None
    if cluster._preloader is not None:
        cluster._preloader.stop()  # it was for the connection before
        for node in again.nodes:
            cluster._preload_on(node.name)
    return cluster


def _import_ray() -> None:
    with contextlib.suppress(Exception):  # who imports it next gets the error, in a place where it is told
        import ray  # noqa: F401


def _preloader(settings: Settings, modules: Sequence[str], temp_dir: Path) -> Preloader | None:
    wanted = modules and settings.preload and Preloader.possible()
    return Preloader(temp_dir.parent, modules) if wanted else None


def _connected(
    settings: Settings, about: dict[str, str], temp_dir: Path, preloader: Preloader | None
) -> Cluster:
    token = ray_start.lab_token(settings)
    cluster = _init(about["address"], token, settings, ship=False, preloader=preloader)
    cluster.dashboard_url, cluster._lab, cluster._temp_dir = about["dashboard"], about["lab"], temp_dir
    cluster._registry.acquire(about["lab"])
    cluster._preloader = preloader
    cluster._watch()
    for node in cluster.nodes:
        cluster._preload_on(node.name)
    # A script stops its cluster when it ends. A kernel leaves that to the watchdog: it may be a restart.
    if "ipykernel" not in sys.modules:
        atexit.register(cluster.stop)
    return cluster


def _init(
    address: str,
    token: Path | None,
    settings: Settings,
    *,
    ship: bool,
    preloader: Preloader | None = None,
) -> Cluster:
    knock(address, token)
    connection.prepare(token)
    try:
        context = _ray_init(address, ship=ship, preloader=preloader)
    except BaseException:
        import ray

        ray.shutdown()
        connection.restore()
        raise
    url = getattr(context, "dashboard_url", None)
    return Cluster(address=address, dashboard_url=f"http://{url}" if url else None, settings=settings)


def _ray_init(address: str, *, ship: bool, preloader: Preloader | None) -> Any:
    import ray

    ray.shutdown()  # a connection that the reader made without the lab would be in the way
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if ship:
        options["runtime_env"] = {"py_modules": [str(PACKAGE_ROOT)]}
    else:
        # Where nothing names a cluster, Ray's state API asks the one that somebody on this machine started
        # last, by a file in /tmp/ray; and where that is dead, each run of Ray Train waits 12 s for it.
        options["runtime_env"] = {"env_vars": {"RAY_ADDRESS": address}}
    if preloader is not None:
        options["runtime_env"]["py_executable"] = preloader.py_executable
    try:
        return ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
        raise ClusterError(
            f"connect to the cluster at {address}",
            f"Ray says: {str(error).splitlines()[0][:200]}",
            "check it with `ray status` on its head; its Ray and Python must be of the same version as here",
        ) from error


def _find(settings: Settings, modules: Sequence[str]) -> Cluster | None:
    """The cluster of this home that an earlier kernel left running, or None."""
    temp_dir = ray_start.temp_dir(settings)
    registry = ProcessRegistry(settings.home)
    try:
        about = json.loads(ray_start.about_file(temp_dir).read_text())
        lives = ray_start.has_head(registry, about["lab"])
        _ = about["address"], about["dashboard"]
    except (OSError, ValueError, KeyError, TypeError):
        # No cluster was left; or nobody can tell which, and then its keeper will end it.
        return None
    if lives:
        try:
            return _connected(settings, about, temp_dir, _preloader(settings, modules, temp_dir))
        except ClusterError:
            pass  # it is dying: clear it away and start anew
    registry.stop(about["lab"])
    ray_start.about_file(temp_dir).unlink(missing_ok=True)
    return None
