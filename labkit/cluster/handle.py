"""The handle on a running cluster: its nodes, what grows, shrinks and stops it, how it shows itself.

`labkit.cluster.lifecycle` makes one: by starting a cluster, by finding the one that an earlier kernel left,
or by connecting to somebody else's.
"""

import contextlib
import shlex
import threading
import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from labkit.cluster import connection
from labkit.cluster import nodes as ray_start
from labkit.cluster.capacity import Node, require_room, require_type, whole
from labkit.cluster.preload import Preloader
from labkit.display.progress import Waiting
from labkit.display.style import STYLE
from labkit.errors import ClusterError
from labkit.settings import Settings
from labkit.system import interrupts
from labkit.system.process_registry import ProcessRegistry

_LOOK_EVERY = 3.0  # seconds between two looks at whether the head lives
_NOTICED_WITHIN = 30  # seconds until the head has noticed that a node has gone
_RELEASED_WITHIN = 5.0  # seconds until the CPUs of a run that has just ended are free


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
        self._registry = ProcessRegistry(settings.home)
        self._running = True
        self._preloader: Preloader | None = None
        self._letting_go = threading.Lock()

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
        if cpus is not None:
            cpus = whole("add a node", "cpus", cpus, least=0)
        if resources is not None:
            require_type("add a node", "resources", resources, dict, 'resources={"fast_disk": 1}')
            for key, amount in resources.items():
                require_type("add a node", "a name in resources", key, str, 'resources={"fast_disk": 1}')
                require_type("add a node", f"resources[{key!r}]", amount, (int, float), "1")
        taken = {node.name for node in self.all_nodes()}
        name = next(f"node-{k}" for k in range(2, 1000) if f"node-{k}" not in taken)
        cpus = int(next((n.cpus for n in self.nodes), 1)) if cpus is None else cpus
        command = ray_start.node_command(self.address, name=name, cpus=cpus, resources=resources)
        undone = interrupts.stoppable(f"the start of {name}", undo=lambda: self._end_node(name))
        with undone as check, Waiting(f"starting {name}", unit="nodes") as waiting:

            def show() -> None:
                check()
                waiting(0, 1)

            return self._join(command, name, show)

    def _end_node(self, name: str) -> None:
        """Stop the recorded processes of a node and what they started."""
        sessions = {e.session for e in self._registry.records(self._lab) if e.role.startswith(f"{name}:")}
        for session in sessions:
            self._registry.stop(self._lab, session=session)

    def _join(self, command: list[str], name: str, waiting: Callable[[], None]) -> Node:
        """Run the command that starts a node, and return the node once the head lists it."""
        ray_start.run(
            self._registry, self._lab, command, name, self._temp_dir, self._settings, waiting, self._preloader
        )
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
        """Start the server that does the imports for the workers of a node (`labkit.cluster.preload`)."""
        import ray

        if self._preloader is not None:
            job_id = ray.get_runtime_context().get_job_id()
            self._preloader.start(self._registry, self._lab, node=node, job_id=job_id)

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
        left = f"The processes of {name} have ended"
        with interrupts.stoppable(f"the removal of {name}", undo=lambda: None, left=left) as check:
            self._end_node(name)
            deadline = time.monotonic() + _NOTICED_WITHIN
            while any(n.name == name for n in self.nodes):
                check()
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"remove {name} from the cluster at {self.address}",
                        f"its processes have ended, but the head still lists it after {_NOTICED_WITHIN} s",
                        f"look into {self.log_dir}/gcs_server.out, then lab.stop() and start again",
                    )
                time.sleep(0.1)

    def stop(self) -> None:
        """Disconnect, and stop all that `start` started, unless another notebook or script uses it too.

        A cluster of somebody else's goes on.
        """
        if not self._running:
            return
        left = "The cluster has been stopped all the same"
        with interrupts.stoppable("lab.stop()", undo=lambda: None, left=left):
            self._let_go()
            if self._lab is None:
                return
            if self._registry.has_owner(self._lab):
                print("the cluster goes on: another notebook uses it (python -m labkit stop ends it)")
                return
            self._registry.stop(self._lab)
            if self._temp_dir is not None:
                ray_start.about_file(self._temp_dir).unlink(missing_ok=True)

    def _let_go(self) -> None:
        """Disconnect from the cluster, which goes on, and put the environment back."""
        with self._letting_go:
            if not self._running:
                return
            self._running = False
            import ray

            ray.shutdown()
            if self._preloader is not None:
                self._preloader.stop()
            connection.restore()
            if self._lab is not None:
                self._registry.release(self._lab)

    def _watch(self) -> None:
        """Disconnect once the head is gone: Ray tries for a minute to reach it, then ends this process."""

        def look() -> None:
            while self._running and self._has_head():
                time.sleep(_LOOK_EVERY)
            self._let_go()

        threading.Thread(target=look, name="labkit-head", daemon=True).start()

    def _has_head(self) -> bool:
        """Whether the processes of its head are alive; True for a cluster that is not ours."""
        return self._lab is None or ray_start.has_head(self._registry, self._lab)

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

    @property
    def size(self) -> str:
        """Its living nodes and their logical CPUs, in words."""
        nodes = self.nodes
        return f"{len(nodes)} node{'s' * (len(nodes) != 1)}, {sum(n.cpus for n in nodes):g} CPUs"

    def __repr__(self) -> str:
        # Tracebacks and debuggers call this: it asks neither Ray nor the disk.
        how = "started by the lab" if self.is_ours else "not started by the lab"
        return f"Cluster({self.address}, {how if self._running else 'stopped'})"

    def _repr_html_(self) -> str:
        if not self._running or not self._has_head():
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
        if not self._has_head():
            fact = "its processes are gone: `labkit stop` ended them, or they died"
            raise ClusterError(attempt, fact, "lab = cluster.start()")

    def _require_ours(self, attempt: str) -> None:
        self._require_running(attempt)
        if not self.is_ours:
            raise ClusterError(
                attempt,
                f"the cluster at {self.address} was not started by the lab",
                "use its own tools for that",
            )


def _holders() -> str:
    """The living actors, as the end of a sentence; nothing if Ray does not tell."""
    import ray
    from ray.util import state

    with contextlib.suppress(Exception):  # it asks the dashboard, which may be busy
        address = ray.get_runtime_context().gcs_address  # else it asks whom ray.init() started last
        actors = state.list_actors(address, filters=[("state", "=", "ALIVE")], detail=True, timeout=5)
        names = [f"{a.class_name} (pid {a.pid})" for a in actors if a.required_resources]
        if names:
            return ". These actors live: " + ", ".join(names[:6])
    return ""
