"""The handle on a running cluster: its nodes, what fits on them, how it displays itself."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from labkit import interrupts
from labkit.cluster import connection
from labkit.cluster.capacity import OF_A_NODE, Node, check_worker_capacity
from labkit.display import cards
from labkit.display.formatting import size
from labkit.errors import LabError
from labkit.settings import PACKAGES

_HEAD_EVERY = 3.0  # seconds between two looks at whether the head runs
_SILENT_FOR = 45.0  # seconds without an answer of a head on another machine; Ray waits for 60


class Cluster:
    """A handle on a running cluster that this process is connected to. Displays itself.

    Use it as a context manager to stop what `start` started when the block ends.

    Attributes:
        address: ``host:port`` of its head.
        token_file: has its authentication token; None where Ray finds one, or the cluster wants none.
        dashboard_url: of its dashboard, or None.
        runtime_env: that `connect` was given; {} for a cluster that the lab started.
        is_ours: whether the lab started it, and may stop it (`labkit.local`).
        log_dir: the folder of Ray's logs, for a cluster that the lab started.
    """

    is_ours = False
    log_dir: Path | None = None

    def __init__(
        self,
        address: str,
        *,
        token_file: Path | None = None,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        self.address = address
        self.runtime_env = dict(runtime_env or {})
        self.dashboard_url: str | None = None
        self.token_file = token_file
        self._head_address: str | None = None  # as Ray has it, "10.0.0.7:6379" for "localhost:6379"
        self._running = False
        self._disconnecting = threading.Lock()

    @property
    def is_running(self) -> bool:
        """Whether this process is connected to it, and its head runs as far as this machine can tell."""
        return self._running

    @property
    def nodes(self) -> list[Node]:
        """The nodes that are alive, head first."""
        return [node for node in self._all_nodes() if node.alive]

    def _all_nodes(self) -> list[Node]:
        """Return all nodes, including lost ones, which come last."""
        self._require_running("list the nodes")
        import ray

        nodes = [_as_node(entry) for entry in ray.nodes()]
        return sorted(nodes, key=lambda node: (not node.alive, node.name != "head", node.name))

    def runs_here(self, node: str) -> bool:
        """Return whether a node that has a name of its own runs on this machine."""
        return False

    @property
    def cpus(self) -> float:
        """Logical CPUs of all nodes that are alive."""
        return sum(node.cpus for node in self.nodes)

    def connect(self) -> None:
        """Connect this process, for the first time or after the reader called `ray.shutdown`."""
        modules = [*self.runtime_env.get("py_modules", ()), *map(str, PACKAGES)]
        self._begin({**self.runtime_env, "py_modules": modules})

    @property
    def has_this_session(self) -> bool:
        """Whether Ray is connected to it: after `ray.shutdown`, the reader may use another one."""
        return connection.is_connected_to(self._head_address)

    def _begin(self, runtime_env: Mapping[str, Any]) -> None:
        """Connect this process, and watch the head from then on."""
        self.dashboard_url = connection.connect(
            self.address, token_file=self.token_file, runtime_env=runtime_env
        )
        was_running = self._running
        self._running = True
        self._head_address = connection.connected_to()
        if not was_running:
            threading.Thread(target=self._watch_head, name="labkit-head", daemon=True).start()

    def disconnect(self) -> None:
        """Disconnect from the cluster without stopping it, and put the environment back."""
        with self._disconnecting:
            if self._running:
                self._abandon()

    def stop(self) -> None:
        """Disconnect, and stop all that `start` started, unless another notebook or script uses it too.

        A cluster that the lab did not start keeps running.
        """
        if self._running:
            with interrupts.stoppable("lab.stop()", left="The cluster has been stopped all the same"):
                self.disconnect()
                self._end()

    def _abandon(self) -> None:
        self._running = False
        connection.disconnect(self._head_address)
        self._leave()

    def _leave(self) -> None:
        """End this process's use of what `start` started."""

    def _end(self) -> None:
        """Stop what `start` started, unless another process uses it."""

    def _watch_head(self) -> None:
        """Disconnect once the head is gone: Ray tries for a minute to reach it, then ends this process."""
        answered = time.monotonic()
        while self.is_running and time.monotonic() - answered < _SILENT_FOR:
            if self._answers():
                answered = time.monotonic()
            time.sleep(_HEAD_EVERY)
        self.disconnect()

    def _answers(self) -> bool:
        """Return whether the head answers; busy heads may take seconds."""
        try:
            connection.check_reachable(self.address, connection.read_token(self.token_file))
        except LabError:
            return False
        return True

    def add_node(self, *, cpus: int | None = None, resources: dict[str, float] | None = None) -> Node:
        """Start one more node on this machine, of a cluster that the lab started."""
        raise self._not_ours("add a node")

    def remove_node(self, node: "Node | str") -> None:
        """Stop one node, by its name, of a cluster that the lab started; the head can't be removed."""
        raise self._not_ours("remove a node")

    def _not_ours(self, attempt: str) -> LabError:
        self._require_running(attempt)
        fact = f"the lab did not start the cluster at {self.address}"
        return LabError(attempt, fact, "use that cluster's own tools")

    def check_capacity(self, *, workers: int) -> None:
        """Refuse a run whose workers do not fit: Ray would wait forever and report nothing.

        On a cluster that the lab did not start, nodes may join by themselves: there it only warns.

        Args:
            workers: number of training workers, with a CPU each. A panel checks all that a trainer asks for.

        Raises:
            LabError: with the numbers, and what to change.
        """
        check_worker_capacity(self.nodes, workers=workers, each={"CPU": 1}, ours=self.is_ours)

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
        why = self._not_forked()
        if why:
            where += f" · some workers start slowly, as new Pythons ({why})"
        table = cards.table(("node", "state", "CPUs", "GPUs", "object store", "address"), rows)
        return str(cards.card("Ray cluster", ("ok", "running"), cards.rule(table), dim=where))

    def exit_codes(self) -> dict[int, int]:
        """Return, by pid, how the workers ended that this process had forked.

        An exit status, or minus the number of a signal. Ray starts some workers itself, which aren't here.
        """
        return {}

    def _not_forked(self) -> str:
        """Return why Ray starts workers of this process as new Pythons although they should be forked."""
        return ""

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


def _as_node(entry: dict[str, Any]) -> Node:
    """Return a node from an entry of `ray.nodes()`."""
    resources = entry.get("Resources", {})
    return Node(
        name=entry.get("NodeName") or entry["NodeManagerHostname"],
        id=entry["NodeID"],
        alive=entry["Alive"],
        # Ray counts internals among the resources ("node:10.0.0.7"); no learner asks for those.
        resources={name: amount for name, amount in resources.items() if not name.startswith(OF_A_NODE)},
        address=entry["NodeManagerAddress"],
        labels=dict(entry.get("Labels", {})),
    )
