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
import hashlib
import json
import math
import os
import secrets
import shlex
import socket
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from labkit import drawing
from labkit.errors import ClusterError
from labkit.processes import Registry
from labkit.settings import Settings
from labkit.tracking import NODE_NAME

__all__ = ["Cluster", "Node", "connect", "current", "start"]

_START_TIMEOUT = 120  # seconds for one `ray start`; a cold disk needs 40
_KEEP_SECONDS = 60  # a cluster waits that long for a kernel that restarts
_SOCKET_LIMIT = 107  # bytes of a Unix socket's path on Linux
_SOCKET_TAIL = len("/t/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store.1")
_OBJECT_STORE = 400_000_000  # bytes of shared memory per node; lessons pass far less through it
_LAB_FILE = "cluster.json"

# Visible here and in the shell commands that a handle prints; each is a documented setting of Ray.
_RAY_ENV = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",  # silent, and no waiting for a network that is not there
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # the controller looks at its workers 5 times a second, not every 2 s
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",  # the panel shows progress; Ray Data would print lines
}

_current: "Cluster | None" = None


@dataclass(frozen=True)
class Node:
    """One node of a cluster, as Ray sees it.

    Attributes:
        name: "head", "node-2", …; on a cluster of somebody else's, the host's name.
        id: Ray's own id of the node.
        alive: False once Ray has noticed its end.
        resources: logical resources, such as ``{"CPU": 2.0}``.
        address: the node's IP address.
    """

    name: str
    id: str
    alive: bool
    resources: dict[str, float]
    address: str

    @property
    def cpus(self) -> float:
        """Logical CPUs: tickets that tasks hold, not cores."""
        return self.resources.get("CPU", 0.0)

    @property
    def gpus(self) -> float:
        return self.resources.get("GPU", 0.0)


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
        command = _node_command(self.address, name=name, cpus=cpus, resources=resources)
        _ray_start(self._registry, self._lab, command, name, self._temp_dir, self._settings)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for node in self.nodes:
                if node.name == name:
                    return node
            time.sleep(0.1)
        raise ClusterError(
            f"add {name} to the cluster at {self.address}",
            "its processes run, but the head does not list it after 30 s",
            f"look into {self.log_dir}/raylet.err, then lab.stop() and start again",
        )

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
            fact = "it is the head: the cluster would end with it" if name == "head" else "there is no such node"
            raise ClusterError(f"remove the node {name!r}", fact, f"take one of these: {others}; lab.stop() ends all")
        sessions = {e.session for e in self._registry.entries(self._lab) if e.role.startswith(f"{name}:")}
        for session in sessions:
            self._registry.stop(self._lab, session=session)
        deadline = time.monotonic() + 30
        while any(n.name == name for n in self.nodes) and time.monotonic() < deadline:
            time.sleep(0.1)

    def stop(self) -> None:
        """Disconnect; stop all that `start` started. A cluster of somebody else's goes on."""
        global _current
        if not self._running:
            return
        self._running = False
        if _current is self:
            _current = None
        import ray

        ray.shutdown()
        if self._lab is not None:
            self._registry.stop(self._lab)
            _forget(self._settings, self._temp_dir)

    def require(self, *, workers: int, cpus_per_worker: float = 1, gpus_per_worker: float = 0, data: bool = False) -> None:
        """Refuse a training that cannot be placed: Ray itself would wait for ever, and say nothing.

        Args:
            workers: number of training workers.
            cpus_per_worker, gpus_per_worker: what each asks for.
            data: whether a Ray Data pipeline feeds them, which needs a CPU of its own.

        Raises:
            ClusterError: with the numbers, and what to change.
        """
        nodes = self.nodes
        attempt = f"start {workers} workers with {cpus_per_worker:g} CPU each"
        if gpus_per_worker:
            attempt += f" and {gpus_per_worker:g} GPU each"
        places = sum(_places(node, cpus_per_worker, gpus_per_worker) for node in nodes)
        has = ", ".join(f"{n.name} {n.cpus:g} CPU" + (f" {n.gpus:g} GPU" if n.gpus else "") for n in nodes)
        if places < workers:
            raise ClusterError(
                attempt,
                f"the cluster has room for {places} of them ({has}), and Ray would wait for the others for ever",
                f"num_workers={places}" + (", or lab.add_node(cpus=…)" if self.is_ours else ", or a larger cluster")
                if places
                else "ask for less per worker, or start a cluster with more CPUs per node",
            )
        spare = sum(node.cpus for node in nodes) - workers * cpus_per_worker
        if data and spare < 1:
            raise ClusterError(
                attempt + ", fed by Ray Data",
                f"they would take {workers * cpus_per_worker:g} of {self.cpus:g} CPUs, and the data pipeline needs "
                "one itself: both would wait for each other for ever",
                "one worker less, resources_per_worker={'CPU': 0.5}, or lab.add_node(cpus=1)",
            )

    def commands(self, *, head_ip: str = "HEAD_IP") -> str:
        """The shell commands that do the same on real machines, for a copy and paste."""
        head = _head_command(name="head", cpus=None, port=6379, dashboard_port=8265, temp_dir=None)
        node = _node_command(f"{head_ip}:6379", name="node-2", cpus=None)
        return "\n".join(
            [
                "# on every machine: the same token, readable by you alone",
                "ray get-auth-token --generate && chmod 600 ~/.ray/auth_token   # then copy the file to the others",
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
                f'{drawing.STYLE}<div class="labkit lk-card"><div class="lk-head"><b>Ray cluster</b>'
                '<span class="lk-dim">stopped</span></div></div>'
            )
        rows = "".join(
            f"<tr><td>{escape(n.name)}</td><td>{'✓ alive' if n.alive else '✕ lost'}</td><td>{n.cpus:g}</td>"
            f"<td>{n.gpus:g}</td><td>{n.resources.get('object_store_memory', 0) / 1e6:.0f} MB</td>"
            f"<td>{escape(n.address)}</td></tr>"
            for n in self.all_nodes()
        )
        link = f'<a href="{escape(self.dashboard_url)}" target="_blank">dashboard</a>' if self.dashboard_url else ""
        whose = "started by the lab" if self.is_ours else "not started by the lab: it is never stopped from here"
        return (
            f'{drawing.STYLE}<div class="labkit lk-card"><div class="lk-head"><b>Ray cluster</b>'
            f'<span class="lk-ok">running</span><span class="lk-dim">{self.address} · {whose}</span>{link}</div>'
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
                attempt, f"the cluster at {self.address} was not started by the lab", "use its own tools for that"
            )


def start(
    *,
    nodes: int = 1,
    cpus_per_node: int | None = None,
    settings: Settings | None = None,
    object_store_bytes: int = _OBJECT_STORE,
) -> Cluster:
    """Start a cluster on this machine and connect to it; or return the one that runs already.

    Where ``RAY_ADDRESS`` names a cluster, that one is used instead, and nothing is started.

    Args:
        nodes: the head and ``nodes - 1`` further nodes, each a set of real ``ray start`` processes.
        cpus_per_node: logical CPUs of each. Default: together enough for the settings' workers and one
            more for Ray Data, and at least the machine's cores. A logical CPU is a ticket, not a core.
        object_store_bytes: shared memory of each node.

    Raises:
        ClusterError: a node did not start, or the arguments cannot work.
    """
    global _current
    settings = settings or Settings.from_env()
    if nodes < 1 or (cpus_per_node is not None and cpus_per_node < 1):
        raise ClusterError(
            "start a cluster",
            f"nodes={nodes} and cpus_per_node={cpus_per_node} make none",
            "take 1 or more of each, for example cluster.start(nodes=2, cpus_per_node=2)",
        )
    if _current is not None and _current._running:
        return _current
    if settings.ray_address:
        return connect(settings.ray_address, settings=settings)
    found = _find(settings)
    if found is not None:
        _current = found
        return found
    if cpus_per_node is None:
        cpus_per_node = math.ceil(max(os.cpu_count() or 1, settings.num_workers + 1) / nodes)
    lab = f"ray-{secrets.token_hex(4)}"
    registry = Registry(settings.home)
    registry.keep(lab, seconds=_KEEP_SECONDS)
    temp_dir = _temp_dir(settings)
    port, dashboard_port = _free_port(), _free_port(8265)
    try:
        command = _head_command(
            name="head", cpus=cpus_per_node, port=port, dashboard_port=dashboard_port, temp_dir=temp_dir,
            object_store_bytes=object_store_bytes,
        )  # fmt: skip
        output = _ray_start(registry, lab, command, "head", temp_dir, settings)
        address = f"{_address_of(output)}:{port}"
        about = {"lab": lab, "address": address, "dashboard": f"http://127.0.0.1:{dashboard_port}"}
        (temp_dir / _LAB_FILE).write_text(json.dumps(about))
        _current = _connected(settings, about, temp_dir)
        for _ in range(nodes - 1):
            _current.add_node(cpus=cpus_per_node)
    except BaseException:
        # Also when the reader interrupts: half a cluster is of no use to anyone.
        if _current is not None:
            _current.stop()
        registry.stop(lab)
        raise
    return _current


def connect(address: str, *, token_file: Path | str | None = None, settings: Settings | None = None) -> Cluster:
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
    if _current is not None and _current._running:
        if _current.address == address:
            return _current
        raise ClusterError(
            f"connect to {address}",
            f"this notebook is connected to {_current.address}",
            "lab.stop() first",
        )
    token = Path(token_file).expanduser() if token_file else _users_token()
    cluster = _init(address, token, settings, ship=True)
    _current = cluster
    return cluster


def current() -> Cluster | None:
    """The cluster that this process is connected to through the lab, if any."""
    return _current if _current is not None and _current._running else None


# -- ray start -----------------------------------------------------------------------------------------


def _head_command(
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
        command += [f"--temp-dir={temp_dir}", f"--ray-client-server-port={_free_port()}"]
        command += ["--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={_free_port()}"]
    if object_store_bytes is not None:
        command.append(f"--object-store-memory={object_store_bytes}")
    return command + ([f"--num-cpus={cpus}"] if cpus is not None else [])


def _node_command(
    address: str, *, name: str, cpus: int | None, resources: dict[str, float] | None = None
) -> list[str]:
    command = ["ray", "start", f"--address={address}", f"--node-name={name}"]
    if cpus is not None:
        command += [f"--num-cpus={cpus}", f"--object-store-memory={_OBJECT_STORE}"]
        command += ["--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={_free_port()}"]
    return command + ([f"--resources={json.dumps(resources)}"] if resources else [])


def _ray_start(
    registry: Registry, lab: str, command: list[str], name: str, temp_dir: Path, settings: Settings
) -> str:
    """Run one `ray start`, record what it leaves running, and return what it printed."""
    log = temp_dir / f"start-{name}.log"
    log.unlink(missing_ok=True)
    env = {**os.environ, **_RAY_ENV, "RAY_AUTH_TOKEN_PATH": str(_token(settings)), NODE_NAME: name}
    env.pop("RAY_ADDRESS", None)
    program = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
    process = registry.start([*program, *command[1:]], role=f"{name}: ray start", lab=lab, log=log, env=env)
    try:
        process.wait(_START_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"start {name}",
            f"`ray start` is not done after {_START_TIMEOUT} s",
            f"look into {log}; python -m labkit doctor tells what the machine lacks",
        ) from None
    finally:
        registry.record_session(process, role=name, lab=lab)
    output = log.read_text(errors="replace")
    if process.returncode:
        last = [line for line in output.splitlines() if line.strip()][-1:] or ["it said nothing"]
        raise ClusterError(f"start {name}", f"`ray start` failed: {last[0].strip()}", f"read all of it in {log}")
    return output


def _address_of(output: str) -> str:
    """The IP address that the head chose, from what `ray start` prints."""
    plain = "".join(part.partition("m")[2] if k else part for k, part in enumerate(output.split("\x1b[")))
    for line in plain.splitlines():
        if "Local node IP" in line:
            return line.rpartition(":")[2].strip()
    raise ClusterError("start the head", "`ray start` did not say its address", "report this with the version of Ray")


# -- this process's connection -------------------------------------------------------------------------


def _connected(settings: Settings, about: dict[str, str], temp_dir: Path) -> Cluster:
    cluster = _init(about["address"], _token(settings), settings, ship=False)
    cluster.dashboard_url, cluster._lab, cluster._temp_dir = about["dashboard"], about["lab"], temp_dir
    cluster._registry.own(about["lab"])
    # A script stops its cluster when it ends. A kernel leaves that to the keeper: it may be a restart.
    if "ipykernel" not in sys.modules:
        atexit.register(cluster.stop)
    return cluster


def _init(address: str, token: Path | None, settings: Settings, *, ship: bool) -> Cluster:
    _prepare_environment(token)
    import ray

    ray.shutdown()  # a connection that the reader made without the lab would be in the way
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if ship:
        options["runtime_env"] = {"py_modules": [str(Path(__file__).parent)]}
    try:
        context = ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
        text = f"{error} {error.__cause__ or ''}"
        if "InvalidAuthToken" in text or "uthentication" in text:
            raise ClusterError(
                f"connect to the cluster at {address}",
                "it refused the token" + ("" if token else ": none was found"),
                f"copy the token file of its head to {token or '~/.ray/auth_token'}, or name it: "
                "connect(address, token_file=…)",
            ) from None
        raise ClusterError(
            f"connect to the cluster at {address}",
            f"nobody answers there ({str(error).splitlines()[0][:120]})",
            "check the address with `ray status` on its head, and that the port is reachable from here",
        ) from None
    url = getattr(context, "dashboard_url", None)
    return Cluster(address=address, dashboard_url=f"http://{url}" if url else None, settings=settings)


def _prepare_environment(token: Path | None) -> None:
    """Set what Ray reads from the environment of this process, also where it is imported already."""
    for name, value in _RAY_ENV.items():
        os.environ.setdefault(name, value)
    if token is not None:
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
    if "ray" in sys.modules:
        # Ray reads these when it is imported; `import ray` in an earlier cell must not lock us out.
        from ray._raylet import AuthenticationTokenLoader, Config

        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()


def _find(settings: Settings) -> Cluster | None:
    """The cluster of this home that an earlier kernel left running, or None."""
    temp_dir = _temp_dir(settings)
    try:
        about = json.loads((temp_dir / _LAB_FILE).read_text())
    except (OSError, ValueError):
        return None
    registry = Registry(settings.home)
    head = [e for e in registry.entries(about["lab"]) if e.role.startswith("head:")]
    if head and all(entry.alive for entry in head):
        try:
            return _connected(settings, about, temp_dir)
        except ClusterError:
            pass  # it is dying: clear it away and start anew
    registry.stop(about["lab"])
    _forget(settings, temp_dir)
    return None


def _forget(settings: Settings, temp_dir: Path | None) -> None:
    if temp_dir is not None:
        (temp_dir / _LAB_FILE).unlink(missing_ok=True)


# -- places --------------------------------------------------------------------------------------------


def _temp_dir(settings: Settings) -> Path:
    """Ray's folder for sockets and logs: in the home, or in a shorter place where sockets would not fit."""
    wanted = settings.home / "ray"
    if len(str(wanted)) + _SOCKET_TAIL > _SOCKET_LIMIT:
        mark = hashlib.sha256(str(settings.home).encode()).hexdigest()[:8]
        wanted = Path(tempfile.gettempdir()) / f"labkit-{os.getuid()}-{mark}"
    wanted.mkdir(parents=True, exist_ok=True, mode=0o700)
    if wanted.stat().st_uid != os.getuid() or stat.S_IMODE(wanted.stat().st_mode) & 0o077:
        raise ClusterError(
            f"use {wanted} for Ray's sockets",
            "others may enter it",
            f"chmod 700 {wanted}, or set LABKIT_HOME to a folder of yours",
        )
    # Ray opens its own folder to everybody (mode 0777); the one around it is what protects.
    return wanted / "t"


def _token(settings: Settings) -> Path:
    """The lab's own token file, made at its first use."""
    path = settings.home / "ray-token"
    if not path.exists():
        settings.home.mkdir(parents=True, exist_ok=True)
        # Made with the right mode from the start, and never replaced: two kernels may come here at once.
        with contextlib.suppress(FileExistsError):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
    return path


def _users_token() -> Path | None:
    """Ray's own token of this user, if there is one."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else Path.home() / ".ray" / "auth_token"
    return path if path.is_file() else None


def _free_port(wanted: int = 0) -> int:
    """`wanted` if it is free on this machine, else any free port."""
    for port in (wanted, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            return probe.getsockname()[1]
    raise ClusterError("find a free port", "the machine has none left", "close some programs and try again")


def _places(node: Node, cpus: float, gpus: float) -> int:
    """How many workers of that size fit on a node."""
    by_cpu = math.floor(node.cpus / cpus + 1e-9) if cpus else 10**6
    by_gpu = math.floor(node.gpus / gpus + 1e-9) if gpus else 10**6
    return min(by_cpu, by_gpu)
