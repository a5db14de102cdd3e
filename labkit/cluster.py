"""Start, grow, shrink and stop a Ray cluster of real ``ray start`` processes, or connect to one.

    lab = cluster.start(nodes=2)       # a head and one more node, both on this machine
    lab.add_node(cpus=2)
    lab.remove_node("node-2")
    lab.stop()

    lab = cluster.connect("10.0.0.7:6379")   # a cluster of somebody else's: used, never stopped

All that is started is recorded (`labkit.processes`), so that a restarted kernel finds it again and
nothing outlives its use. Ray's token authentication is always on; the token lies in a file of mode 0600.

Ray's gRPC ports cannot be bound to loopback (Ray turns 127.0.0.1 into the host's own address): there
the token protects. The dashboard can, and is.
"""

import atexit
import contextlib
import json
import math
import os
import secrets
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from labkit import machine, ray_start
from labkit.errors import ClusterError, RunStopped
from labkit.knock import knock
from labkit.placement import Node, require_room
from labkit.preload import TORCH, Preloader
from labkit.processes import Registry
from labkit.settings import Settings
from labkit.style import STYLE
from labkit.waiting import Waiting

__all__ = ["Cluster", "Node", "connect", "current", "start"]

_KEEP_SECONDS = 60  # a cluster waits that long for a kernel that restarts
_RELEASED_WITHIN = 5.0  # seconds until the CPUs of a run that has just ended are free
_LAB_FILE = "cluster.json"

_current: "Cluster | None" = None


class Cluster:
    """A handle on a running cluster that this process is connected to. Displays itself.

    Use it as a context manager to stop what `start` started when the block ends.
    """

    def __init__(
        self,
        *,
        address: str,
        dashboard_url: str | None,
        lab: str | None = None,
        settings: Settings,
        temp_dir: Path | None = None,
    ) -> None:
        self.address, self.dashboard_url = address, dashboard_url
        self._lab, self._settings, self._temp_dir = lab, settings, temp_dir
        self._registry = Registry(settings.home)
        self._running = True
        self._preloader: Preloader | None = None

    # -- what it is ---------------------------------------------------------------------------------

    @property
    def is_ours(self) -> bool:
        """Whether the lab started it (and may stop it)."""
        return self._lab is not None

    @property
    def nodes(self) -> list[Node]:
        """The living nodes, head first."""
        return [node for node in self.all_nodes() if node.alive]

    def all_nodes(self) -> list[Node]:
        """The nodes that Ray knows, those that it lost included."""
        import ray

        self._require_running("list the nodes")
        nodes = [
            Node(
                name=n.get("NodeName") or n["NodeManagerHostname"],
                id=n["NodeID"],
                alive=n["Alive"],
                # Ray counts its internals among the resources ("node:10.0.0.7"); no learner asks for those.
                resources={k: v for k, v in n.get("Resources", {}).items() if ":" not in k},
                address=n["NodeManagerAddress"],
            )
            for n in ray.nodes()
        ]
        return sorted(nodes, key=lambda node: (not node.alive, node.name != "head", node.name))

    @property
    def cpus(self) -> float:
        """Logical CPUs of all living nodes."""
        return sum(node.cpus for node in self.nodes)

    @property
    def log_dir(self) -> Path | None:
        """Where Ray's own logs lie, for a cluster on this machine."""
        return self._temp_dir / "session_latest" / "logs" if self._temp_dir else None

    # -- what it does -------------------------------------------------------------------------------

    def add_node(self, *, cpus: int | None = None, resources: dict[str, float] | None = None) -> Node:
        """Start one more node on this machine, and wait until the cluster has it.

        Args:
            cpus: its logical CPUs (default: as many as the head has).
            resources: custom resources, such as ``{"fast_disk": 1}``.

        Raises:
            ClusterError: the cluster is not ours, or the node did not join.
        """
        self._require_ours("add a node")
        taken = {node.name for node in self.all_nodes()}
        name = next(f"node-{k}" for k in range(2, 1000) if f"node-{k}" not in taken)
        cpus = int(next((n.cpus for n in self.nodes), 1)) if cpus is None else cpus
        command = ray_start.node_command(self.address, name=name, cpus=cpus, resources=resources)
        with Waiting(f"starting {name}", unit="nodes") as waiting:
            return self._join(command, name, lambda: waiting(0, 1))

    def _join(self, command: list[str], name: str, waiting: Callable[[], None]) -> Node:
        """Run the command that starts a node, and return the node once the head lists it."""
        ray_start.run(self._registry, self._lab, command, name, self._temp_dir, self._settings, waiting)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for node in self.nodes:
                if node.name == name:
                    self._preload_on(name)
                    return node
            waiting()
            time.sleep(0.1)
        raise ClusterError(
            f"add {name} to the cluster at {self.address}",
            "its processes run, but the head does not list it after 30 s",
            f"look into {self.log_dir}/raylet.err, then lab.stop() and start again",
        )

    def _preload_on(self, node: str) -> None:
        """Start the server that does the imports for the workers of a node (`labkit.preload`)."""
        import ray

        if self._preloader is not None:
            job_id = ray.get_runtime_context().get_job_id()
            log = self._temp_dir / f"forkserver-{node}.log"
            self._preloader.start(self._registry, self._lab, node=node, job_id=job_id, log=log)

    def remove_node(self, node: "Node | str") -> None:
        """Stop the processes of one node, as a machine that is switched off would; wait until Ray knows.

        Raises:
            ClusterError: there is no such node, or it is the head (with it the cluster would end).
        """
        self._require_ours("remove a node")
        name = node.name if isinstance(node, Node) else node
        names = [n.name for n in self.nodes]
        if name not in names or name == "head":
            others = ", ".join(n for n in names if n != "head") or "none: lab.add_node() first"
            fact = (
                "it is the head: the cluster would end with it" if name == "head" else "there is no such node"
            )
            raise ClusterError(
                f"remove the node {name!r}", fact, f"take one of these: {others}; lab.stop() ends all"
            )
        sessions = {e.session for e in self._registry.entries(self._lab) if e.role.startswith(f"{name}:")}
        for session in sessions:
            self._registry.stop(self._lab, session=session)
        deadline = time.monotonic() + 30
        while any(n.name == name for n in self.nodes) and time.monotonic() < deadline:
            time.sleep(0.1)

    def stop(self) -> None:
        """Disconnect, and stop all that `start` started, unless another notebook or script uses it too.

        A cluster of somebody else's goes on.
        """
        global _current
        if not self._running:
            return
        self._running = False
        if _current is self:
            _current = None
        import ray

        ray.shutdown()
        if self._preloader is not None:
            self._preloader.stop()
        if self._lab is not None:
            self._registry.disown(self._lab)
            if self._registry.owned(self._lab):
                print("the cluster goes on: another notebook uses it (python -m labkit stop ends it)")
                return
            self._registry.stop(self._lab)
            _forget(self._settings, self._temp_dir)

    def require(
        self, *, workers: int, cpus_per_worker: float = 1, gpus_per_worker: float = 0, data: bool = False
    ) -> None:
        """Refuse a training that cannot be placed: Ray itself would wait for ever, and say nothing.

        Args:
            workers: number of training workers.
            cpus_per_worker, gpus_per_worker: what each asks for.
            data: whether a Ray Data pipeline feeds them, which needs a CPU of its own.

        Raises:
            ClusterError: with the numbers, and what to change.
        """
        require_room(
            self.nodes,
            workers=workers,
            cpus_per_worker=cpus_per_worker,
            gpus_per_worker=gpus_per_worker,
            data=data,
            growable=self.is_ours,
        )
        if self.is_ours:
            # On somebody else's cluster it is usual to wait for others; here nobody else will end.
            wanted = {"CPU": workers * cpus_per_worker + data, "GPU": workers * gpus_per_worker}
            self._require_free({name: amount for name, amount in wanted.items() if amount})

    def _require_free(self, wanted: dict[str, float]) -> None:
        import ray

        deadline = time.monotonic() + _RELEASED_WITHIN
        while True:
            free = ray.available_resources()
            missing = [name for name, amount in wanted.items() if free.get(name, 0) < amount - 1e-6]
            if not missing:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        name = missing[0]
        total = sum(node.resources.get(name, 0) for node in self.nodes)
        raise ClusterError(
            f"find {wanted[name]:g} free {name}s",
            f"of the cluster's {total:g} only {free.get(name, 0):g} are free, and Ray would wait for ever "
            f"for the others{_holders()}",
            "end what holds them (ray.kill(actor), or the run of another notebook), lab.add_node(), "
            "or lab.stop() and start again",
        )

    def commands(self, *, head_ip: str = "HEAD_IP") -> str:
        """The shell commands that do the same on real machines, for a copy and paste."""
        head = ray_start.head_command(name="head", cpus=None, port=6379, dashboard_port=8265, temp_dir=None)
        node = ray_start.node_command(f"{head_ip}:6379", name="node-2", cpus=None)
        return "\n".join(
            [
                "# on every machine: the same token, readable by you alone",
                "ray get-auth-token --generate && chmod 600 ~/.ray/auth_token",
                "# (then copy the file to the other machines)",
                "export RAY_AUTH_MODE=token",
                "# on the first machine",
                shlex.join(head),
                "# on each other machine",
                shlex.join(node),
                "# in the notebook, on any of them",
                f'lab = cluster.connect("{head_ip}:6379")',
                "# when you are done, on every machine",
                "ray stop",
            ]
        )

    # -- how it shows itself ------------------------------------------------------------------------

    def __repr__(self) -> str:
        if not self._running:
            return f"Cluster({self.address}, stopped)"
        nodes = self.nodes
        return f"Cluster({self.address}, {len(nodes)} node{'s' * (len(nodes) != 1)}, {self.cpus:g} CPUs)"

    def _repr_html_(self) -> str:
        if not self._running:
            return (
                f'{STYLE}<div class="labkit lk-card"><div class="lk-head"><b>Ray cluster</b>'
                '<span class="lk-dim">stopped</span></div></div>'
            )
        rows = "".join(
            f"<tr><td>{escape(n.name)}</td><td>{'✓ alive' if n.alive else '✕ lost'}</td><td>{n.cpus:g}</td>"
            f"<td>{n.gpus:g}</td><td>{n.resources.get('object_store_memory', 0) / 1e6:.0f} MB</td>"
            f"<td>{escape(n.address)}</td></tr>"
            for n in self.all_nodes()
        )
        link = (
            f'<a href="{escape(self.dashboard_url)}" target="_blank">dashboard</a>'
            if self.dashboard_url
            else ""
        )
        whose = (
            "started by the lab" if self.is_ours else "not started by the lab: it is never stopped from here"
        )
        return (
            f'{STYLE}<div class="labkit lk-card"><div class="lk-head"><b>Ray cluster</b>'
            f'<span class="lk-ok">running</span>'
            f'<span class="lk-dim">{self.address} · {whose}</span>{link}</div>'
            f'<div class="lk-rule lk-text"><table><tr><th>node</th><th>state</th><th>CPUs</th><th>GPUs</th>'
            f"<th>object store</th><th>address</th></tr>{rows}</table></div></div>"
        )

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def _require_running(self, attempt: str) -> None:
        if not self._running:
            raise ClusterError(attempt, "this cluster was stopped", "lab = cluster.start()")

    def _require_ours(self, attempt: str) -> None:
        self._require_running(attempt)
        if not self.is_ours:
            raise ClusterError(
                attempt,
                f"the cluster at {self.address} was not started by the lab",
                "use its own tools for that",
            )


def start(
    *,
    nodes: int | None = None,
    cpus_per_node: int | None = None,
    settings: Settings | None = None,
    object_store_bytes: int = ray_start.OBJECT_STORE_BYTES,
    preload: Sequence[str] = TORCH,
) -> Cluster:
    """Start a cluster on this machine and connect to it; or return the one that runs already.

    Where ``RAY_ADDRESS`` names a cluster, that one is used instead, and nothing is started.

    Args:
        nodes: the head and ``nodes - 1`` further nodes (default: the head alone), each a set of real
            ``ray start`` processes. A cluster that runs already is not changed: a warning says so.
        cpus_per_node: logical CPUs of each. Default: together enough for the settings' workers and one
            more for Ray Data, and at least the machine's cores. A logical CPU is a ticket, not a core.
        object_store_bytes: shared memory of each node.
        preload: modules that workers find imported, so that they start in a fraction of the time:
            `labkit.preload.TORCH`, ``TENSORFLOW`` or your own; empty: Ray starts them as always. It
            counts when this process connects; a cluster that is connected already is not changed.

    Raises:
        ClusterError: a node did not start, or the arguments cannot work.
    """
    settings = settings or Settings.from_env()
    if (nodes or 1) < 1 or (cpus_per_node is not None and cpus_per_node < 1) or nodes == 0:
        raise ClusterError(
            "start a cluster",
            f"nodes={nodes} and cpus_per_node={cpus_per_node} make none",
            "take 1 or more of each, for example cluster.start(nodes=2, cpus_per_node=2)",
        )
    running = current()
    if running is not None and not _is_connected():
        running = _reconnected(running)
    if running is None and settings.ray_address:
        running = connect(settings.ray_address, settings=settings)
    if running is None:
        with ray_start.one_at_a_time(settings):
            running = _find(settings, preload)
            if running is None:
                return _start(nodes or 1, cpus_per_node, settings, object_store_bytes, preload)
    _warn_of_another_shape(running, nodes, cpus_per_node)
    return running


def _start(
    nodes: int,
    cpus_per_node: int | None,
    settings: Settings,
    object_store_bytes: int,
    preload: Sequence[str],
) -> Cluster:
    global _current
    if cpus_per_node is None:
        cpus_per_node = math.ceil(max(machine.cores(), settings.num_workers + 1) / nodes)
    lab = f"ray-{secrets.token_hex(4)}"
    registry = Registry(settings.home)
    temp_dir = ray_start.temp_dir(settings)
    port, dashboard_port = ray_start.free_port(), ray_start.free_port()
    try:
        registry.keep(lab, seconds=_KEEP_SECONDS)
        command = ray_start.head_command(
            name="head", cpus=cpus_per_node, port=port, dashboard_port=dashboard_port, temp_dir=temp_dir,
            object_store_bytes=object_store_bytes,
        )  # fmt: skip
        with Waiting("starting the cluster", unit="nodes") as waiting:
            output = ray_start.run(
                registry, lab, command, "head", temp_dir, settings, lambda: waiting(0, nodes)
            )
            address = f"{ray_start.address_of(output)}:{port}"
            about = {"lab": lab, "address": address, "dashboard": f"http://127.0.0.1:{dashboard_port}"}
            (temp_dir / _LAB_FILE).write_text(json.dumps(about))
            cluster = _current = _connected(settings, about, temp_dir, preload)
            for have in range(1, nodes):
                name = f"node-{have + 1}"
                command = ray_start.node_command(address, name=name, cpus=cpus_per_node)
                cluster._join(command, name, lambda have=have: waiting(have, nodes))
            waiting(nodes, nodes)
    except BaseException as error:
        # Also when the reader interrupts: half a cluster is of no use to anyone.
        if _current is not None:
            _current.stop()
        registry.stop(lab)
        if isinstance(error, KeyboardInterrupt):
            raise RunStopped(
                "the start of the cluster", "stopped by you", "Nothing of it is left running"
            ) from None
        raise
    return cluster


def _warn_of_another_shape(running: Cluster, nodes: int | None, cpus_per_node: int | None) -> None:
    """A second start() is no error; one that asks for something else should not go by in silence."""
    alive = running.nodes
    other_nodes = nodes is not None and nodes != len(alive)
    other_cpus = cpus_per_node is not None and any(node.cpus != cpus_per_node for node in alive)
    if other_nodes or other_cpus:
        change = "lab.add_node() or lab.remove_node(), or " if running.is_ours else ""
        warnings.warn(
            f"{running!r} runs already, and is used as it is; for another one: {change}lab.stop() first",
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
    token = Path(token_file).expanduser() if token_file else ray_start.users_token()
    if token_file and not token.is_file():
        raise ClusterError(
            f"connect to {address}", f"there is no token file {token}", "copy it from the cluster's head"
        )
    cluster = _init(address, token, settings, ship=True)
    _current = cluster
    return cluster


def current() -> Cluster | None:
    """The cluster that this process is connected to through the lab, if any."""
    return _current if _current is not None and _current._running else None


def _is_connected() -> bool:
    import ray

    return ray.is_initialized()


def _reconnected(cluster: Cluster) -> Cluster | None:
    """The same handle, where the reader called `ray.shutdown` in between; None if its cluster is gone."""
    global _current
    token = ray_start.lab_token(cluster._settings) if cluster.is_ours else ray_start.users_token()
    try:
        again = _init(
            cluster.address, token, cluster._settings, ship=not cluster.is_ours, preloader=cluster._preloader
        )
    except ClusterError:
        if not cluster.is_ours:
            raise
        cluster._running, _current = False, None
        return None
    if cluster._preloader is not None:
        cluster._preloader.stop()  # it was for the connection before
        for node in again.nodes:
            cluster._preload_on(node.name)
    return cluster


def _connected(settings: Settings, about: dict[str, str], temp_dir: Path, preload: Sequence[str]) -> Cluster:
    wanted = preload and settings.preload and Preloader.possible()
    preloader = Preloader(temp_dir.parent, preload) if wanted else None
    token = ray_start.lab_token(settings)
    cluster = _init(about["address"], token, settings, ship=False, preloader=preloader)
    cluster.dashboard_url, cluster._lab, cluster._temp_dir = about["dashboard"], about["lab"], temp_dir
    cluster._registry.own(about["lab"])
    cluster._preloader = preloader
    for node in cluster.nodes:
        cluster._preload_on(node.name)
    # A script stops its cluster when it ends. A kernel leaves that to the keeper: it may be a restart.
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
    _prepare_environment(token)
    import ray

    ray.shutdown()  # a connection that the reader made without the lab would be in the way
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if ship:
        options["runtime_env"] = {"py_modules": [str(Path(__file__).parent)]}
    if preloader is not None:
        options["runtime_env"] = {"py_executable": preloader.py_executable}
    try:
        context = ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
        raise ClusterError(
            f"connect to the cluster at {address}",
            f"Ray says: {str(error).splitlines()[0][:200]}",
            "check it with `ray status` on its head; its Ray and Python must be of the same version as here",
        ) from error
    url = getattr(context, "dashboard_url", None)
    return Cluster(address=address, dashboard_url=f"http://{url}" if url else None, settings=settings)


def _prepare_environment(token: Path | None) -> None:
    """Set what Ray reads from the environment of this process, also where it is imported already."""
    for name, value in ray_start.ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if token is not None:
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
    if "ray" in sys.modules:
        # Ray reads these when it is imported; `import ray` in an earlier cell must not lock us out.
        from ray._raylet import AuthenticationTokenLoader, Config

        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()


def _find(settings: Settings, preload: Sequence[str] = TORCH) -> Cluster | None:
    """The cluster of this home that an earlier kernel left running, or None."""
    temp_dir = ray_start.temp_dir(settings)
    registry = Registry(settings.home)
    try:
        about = json.loads((temp_dir / _LAB_FILE).read_text())
        recorded = registry.entries(about["lab"])
        # A forkserver is its kernel's, and gone when that is gone: the cluster is none the worse for it.
        head = [e for e in recorded if e.role.startswith("head:") and e.role != "head: forkserver"]
        _ = about["address"], about["dashboard"]
    except (OSError, ValueError, KeyError, TypeError):
        # No cluster was left; or nobody can tell which, and then its keeper will end it.
        return None
    if head and all(entry.alive for entry in head):
        try:
            return _connected(settings, about, temp_dir, preload)
        except ClusterError:
            pass  # it is dying: clear it away and start anew
    registry.stop(about["lab"])
    _forget(settings, temp_dir)
    return None


def _holders() -> str:
    """The living actors, as the end of a sentence; nothing if Ray does not tell."""
    from ray.util import state

    with contextlib.suppress(Exception):  # it asks the dashboard, which may be busy
        actors = state.list_actors(filters=[("state", "=", "ALIVE")], detail=True, timeout=5)
        names = [f"{a.class_name} (pid {a.pid})" for a in actors if a.required_resources]
        if names:
            return ". These actors live: " + ", ".join(names[:6])
    return ""


def _forget(settings: Settings, temp_dir: Path | None) -> None:
    if temp_dir is not None:
        (temp_dir / _LAB_FILE).unlink(missing_ok=True)
