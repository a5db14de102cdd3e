"""The handle on a running cluster: its nodes, what grows, shrinks and stops it, how it displays itself."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from markupsafe import Markup

from labkit import interrupts
from labkit.cluster import connection
from labkit.cluster.capacity import Node, check_worker_capacity
from labkit.cluster.nodes import NodeLauncher
from labkit.display import cards
from labkit.display.formatting import size
from labkit.display.progress import Waiting
from labkit.errors import LabError, expect_int

_HEAD_EVERY = 3.0  # seconds between two looks at whether the head runs
_SILENT_FOR = 45.0  # seconds without an answer of a head on another machine; Ray waits for 60
_NOTICED_WITHIN = 30  # seconds until the head has noticed that a node has joined or gone


class Cluster:
    """A handle on a running cluster that this process is connected to. Displays itself.

    Use it as a context manager to stop what `start` started when the block ends.

    Attributes:
        address: ``host:port`` of its head.
        dashboard_url: of its dashboard, or None.
    """

    def __init__(
        self, address: str, *, token_file: Path | None = None, launcher: NodeLauncher | None = None
    ) -> None:
        self.address, self.dashboard_url = address, launcher.dashboard_url if launcher else None
        self._token_file = token_file
        self._launcher = launcher  # None: the lab did not start this cluster
        self._running = False
        self._disconnecting = threading.Lock()

    # -- what it is ---------------------------------------------------------------------------------

    @property
    def is_ours(self) -> bool:
        """Whether the lab started it (and may stop it)."""
        return self._launcher is not None

    @property
    def is_running(self) -> bool:
        """Whether this process is connected to it, and its head runs as far as this machine can tell."""
        return self._running and (self._launcher is None or self._launcher.has_head())

    @property
    def nodes(self) -> list[Node]:
        """The nodes that are alive, head first."""
        return [node for node in self._all_nodes() if node.alive]

    def _all_nodes(self) -> list[Node]:
        """With those that Ray has lost, which come last."""
        self._require_running("list the nodes")
        import ray

        nodes = [
            Node(
                name=n.get("NodeName") or n["NodeManagerHostname"],
                id=n["NodeID"],
                alive=n["Alive"],
                # Ray counts internals among the resources ("node:10.0.0.7"); no learner asks for those.
                resources={k: v for k, v in n.get("Resources", {}).items() if ":" not in k},
                address=n["NodeManagerAddress"],
            )
            for n in ray.nodes()
        ]
        return sorted(nodes, key=lambda node: (not node.alive, node.name != "head", node.name))

    @property
    def cpus(self) -> float:
        """Logical CPUs of all nodes that are alive."""
        return sum(node.cpus for node in self.nodes)

    @property
    def log_dir(self) -> Path | None:
        """The folder of Ray's logs, for a cluster that the lab started."""
        return self._launcher.folder / "session_latest" / "logs" if self._launcher else None

    # -- what it does -------------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect this process, for the first time or after the reader called `ray.shutdown`."""
        again, launcher = self._running, self._launcher
        if launcher is None:
            url = connection.connect(self.address, token_file=self._token_file)
            self.dashboard_url = f"http://{url}" if url else None
        else:
            launcher.connect()
        self._running = True
        if not again:
            threading.Thread(target=self._watch_head, name="labkit-head", daemon=True).start()
        if launcher is not None:
            if again and launcher.preloader is not None:
                launcher.preloader.stop()
            launcher.preload(node.name for node in self.nodes)

    def add_node(self, *, cpus: int | None = None, resources: dict[str, float] | None = None) -> Node:
        """Start one more node on this machine, and wait until it has joined the cluster.

        Args:
            cpus: its logical CPUs (default: as many as the head has).
            resources: custom resources, such as ``{"fast_disk": 1}``.

        Raises:
            LabError: the lab did not start this cluster, or the node did not join.
            RunStopped: the reader interrupted; the node is gone again.
        """
        launcher = self._require_ours("add a node")
        known = self._all_nodes()
        cpus = int(known[0].cpus) if cpus is None else cpus
        expect_int("add a node", "cpus", cpus, least=0)
        names = {node.name for node in known}
        name = next(f"node-{k}" for k in range(2, 1000) if f"node-{k}" not in names)
        undo = interrupts.stoppable(f"the start of {name}", undo=lambda: launcher.stop_node(name))
        with undo as check, Waiting(f"starting {name}", unit="nodes") as waiting:
            waiting(0, 1)
            for node in known:
                if not node.alive:  # its raylet ended by itself, and has left something behind
                    launcher.stop_node(node.name)
            launcher.start_node(name, cpus=cpus, resources=resources, on_wait=check)
            self._wait_for(name, True, check)
            launcher.preload([name])
        return next(node for node in self.nodes if node.name == name)

    def remove_node(self, node: "Node | str") -> None:
        """Stop the processes of one node, as if its machine were switched off; wait until Ray has noticed.

        Raises:
            LabError: there is no such node, it is the head (the cluster would end), or it does not go.
        """
        launcher = self._require_ours("remove a node")
        name = node.name if isinstance(node, Node) else node
        others = [n.name for n in self.nodes if n.name != "head"]
        if name not in others:
            fact = "it is the head: the cluster would end" if name == "head" else "there is no such node"
            fix = f"use one of these: {', '.join(others) or 'none'}; lab.stop() ends all"
            raise LabError(f"remove the node {name!r}", fact, fix)
        left = f"The processes of {name} have ended"
        with interrupts.stoppable(f"the removal of {name}", left=left) as check:
            launcher.stop_node(name)
            self._wait_for(name, False, check)

    def _wait_for(self, name: str, there: bool, on_wait: Callable[[], None]) -> None:
        """Wait until the head lists a node, or no longer; `on_wait` is called several times a second."""

        def noticed() -> bool:
            return (name in [node.name for node in self.nodes]) == there

        if not interrupts.wait_until(noticed, seconds=_NOTICED_WITHIN, check=on_wait):
            attempt = f"{'add' if there else 'remove'} {name}"
            fact = f"the head {'does not list' if there else 'still lists'} it after {_NOTICED_WITHIN} s"
            fix = f"look into {self.log_dir}/gcs_server.out, then lab.stop() and start again"
            raise LabError(attempt, fact, fix)

    def stop(self) -> None:
        """Disconnect, and stop all that `start` started, unless another notebook or script uses it too.

        A cluster that the lab did not start keeps running.
        """
        if not self._running:
            return
        with interrupts.stoppable("lab.stop()", left="The cluster has been stopped all the same"):
            self.disconnect()
            if self._launcher is not None and self._launcher.is_in_use:
                print("another notebook still uses the cluster (python -m labkit stop ends it)")
            elif self._launcher is not None:
                self._launcher.stop()

    def disconnect(self) -> None:
        """Disconnect from the cluster without stopping it, and put the environment back."""
        with self._disconnecting:
            if self._running:
                self._running = False
                connection.disconnect()
                if self._launcher is not None:
                    self._launcher.release()

    def _watch_head(self) -> None:
        """Disconnect once the head is gone: Ray tries for a minute to reach it, then ends this process."""
        answered = time.monotonic()
        while self.is_running and time.monotonic() - answered < _SILENT_FOR:
            if self._launcher is not None or self._answers():
                answered = time.monotonic()
            time.sleep(_HEAD_EVERY)
        self.disconnect()

    def _answers(self) -> bool:
        """Whether the head of a cluster that the lab did not start answers; busy heads may take seconds."""
        try:
            connection.check_reachable(self.address, connection.read_token(self._token_file))
        except LabError:
            return False
        return True

    def check_capacity(
        self, *, workers: int, cpus_per_worker: float = 1, gpus_per_worker: float = 0, data: bool = False
    ) -> None:
        """Refuse a run whose workers do not fit: Ray would wait forever and report nothing.

        On a cluster that the lab did not start, nodes may join by themselves: there it only warns.

        Args:
            workers: number of training workers.
            cpus_per_worker, gpus_per_worker: logical resources of each.
            data: whether a Ray Data pipeline feeds them, which needs a CPU of its own.

        Raises:
            LabError: with the numbers, and what to change.
        """
        each = {"cpus_per_worker": cpus_per_worker, "gpus_per_worker": gpus_per_worker}
        check_worker_capacity(self.nodes, workers=workers, data=data, ours=self.is_ours, **each)

    # -- how it displays itself ---------------------------------------------------------------------

    def __repr__(self) -> str:
        # Tracebacks and debuggers call this: it asks neither Ray nor the disk.
        origin = "started by the lab" if self.is_ours else "not started by the lab"
        return f"Cluster({self.address}, {origin if self._running else 'stopped'})"

    def _repr_html_(self) -> str:
        if not self.is_running:
            return str(cards.card("Ray cluster", ("dim", "stopped")))
        rows = []
        for node in self._all_nodes():
            state = "✓ alive" if node.alive else "✕ lost"
            store = size(node.resources.get("object_store_memory", 0))
            rows.append((node.name, state, f"{node.cpus:g}", f"{node.gpus:g}", store, node.address))
        origin = "started by the lab" if self.is_ours else "not started by the lab, which never stops it"
        where = Markup("{} · {}").format(self.address, origin)
        if self.dashboard_url:
            where += Markup(' · <a href="{}" target="_blank">dashboard</a>').format(self.dashboard_url)
        preloader = self._launcher.preloader if self._launcher else None
        if why := preloader.not_forked(node.name for node in self.nodes) if preloader else "":
            where += f" · some workers start slowly, as new Pythons ({why})"
        table = cards.table(("node", "state", "CPUs", "GPUs", "object store", "address"), rows)
        return str(cards.card("Ray cluster", ("ok", "running"), cards.rule(table), dim=where))

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def _require_running(self, attempt: str) -> None:
        if not self.is_running:
            gone = "its processes are gone: `labkit stop` ended them, or they died"
            fact = gone if self._running else "this notebook has left it, or it was stopped"
            again = "start()" if self.is_ours else f"connect({self.address!r})"
            raise LabError(attempt, fact, f"lab = cluster.{again}")

    def _require_ours(self, attempt: str) -> NodeLauncher:
        self._require_running(attempt)
        if self._launcher is None:
            fact = f"the lab did not start the cluster at {self.address}"
            raise LabError(attempt, fact, "use that cluster's own tools")
        return self._launcher
