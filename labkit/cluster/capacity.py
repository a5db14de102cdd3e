"""Whether a training's workers fit on the nodes of a cluster: Ray would wait for ever, and say nothing."""

import math
import numbers
from dataclasses import dataclass
from typing import Any

from labkit.errors import ClusterError


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


def whole(attempt: str, name: str, value: Any, *, least: int = 1) -> int:
    """`value` as an int, if it is a whole number from `least` on.

    Raises:
        ClusterError: it is not; True and 2.0 are not either.
    """
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and value >= least:
        return int(value)
    raise ClusterError(
        attempt, f"{name}={value!r} is not a whole number from {least} on", f"for example {name}={least + 1}"
    )


def require_type(attempt: str, name: str, value: Any, kind: type | tuple[type, ...], example: str) -> None:
    """Refuse a value of another type, or an empty one.

    Raises:
        ClusterError: with an example of one that works.
    """
    if not isinstance(value, kind) or not value:
        given = f"a {type(value).__name__}" if value or not isinstance(value, kind) else "empty"
        raise ClusterError(attempt, f"{name}={value!r} is {given}", f"for example {example}")


def require_room(
    nodes: list[Node],
    *,
    workers: int,
    cpus_per_worker: float = 1,
    gpus_per_worker: float = 0,
    data: bool = False,
    growable: bool = False,
) -> None:
    """Refuse a training that cannot be placed on `nodes`.

    Args:
        workers: number of training workers.
        cpus_per_worker, gpus_per_worker: what each asks for.
        data: whether a Ray Data pipeline feeds them, which needs a CPU of its own.
        growable: whether the lab may add nodes to this cluster.

    Raises:
        ClusterError: with the numbers, and what to change.
    """
    whole("start workers", "workers", workers)
    for name, value in (("cpus_per_worker", cpus_per_worker), ("gpus_per_worker", gpus_per_worker)):
        if not isinstance(value, numbers.Real) or isinstance(value, bool) or not 0 <= value < math.inf:
            fact = f"{name}={value!r} is not a number from 0 on"
            raise ClusterError("start workers", fact, f"for example {name}=1")
    each = f"{cpus_per_worker:g} CPU" + (f" and {gpus_per_worker:g} GPU" if gpus_per_worker else "")
    attempt = f"start {workers} worker{'s' * (workers != 1)} with {each} each"
    places = sum(_places(node, cpus_per_worker, gpus_per_worker) for node in nodes)
    has = ", ".join(f"{n.name} {n.cpus:g} CPU" + (f" {n.gpus:g} GPU" if n.gpus else "") for n in nodes)
    if places < workers:
        more = "lab.add_node(cpus=…)" if growable else "a larger cluster"
        raise ClusterError(
            attempt,
            f"the cluster has room for {places} of them ({has}), and Ray would wait for the others for ever",
            f"num_workers={places}, or {more}" if places else f"ask for less per worker, or {more}",
        )
    cpus = sum(node.cpus for node in nodes)
    spare = cpus - workers * cpus_per_worker
    if data and spare < 1:
        raise ClusterError(
            attempt + ", fed by Ray Data",
            f"they would take {workers * cpus_per_worker:g} of {cpus:g} CPUs, and the data pipeline needs "
            "one itself: both would wait for each other for ever",
            "one worker less, resources_per_worker={'CPU': 0.5}, or "
            + ("lab.add_node(cpus=1)" if growable else "a larger cluster"),
        )


def require_place(nodes: list[Node], options: dict[str, Any], *, attempt: str) -> None:
    """Refuse a task that no node could ever run, not even if nothing else ran.

    Args:
        options: of ``ray.remote``: num_cpus (1, unless given), num_gpus, resources. Labels are not looked at.

    Raises:
        ClusterError: with what it wants, and what there is.
    """
    wanted = {"CPU": options.get("num_cpus", 1) or 0, "GPU": options.get("num_gpus", 0) or 0}
    wanted.update(options.get("resources") or {})
    wanted = {name: amount for name, amount in wanted.items() if amount}
    if any(all(n.resources.get(name, 0) >= amount for name, amount in wanted.items()) for n in nodes):
        return
    asked = " and ".join(f"{amount:g} {name}" for name, amount in wanted.items())
    has = "; ".join(f"{n.name} " + ", ".join(f"{n.resources.get(w, 0):g} {w}" for w in wanted) for n in nodes)
    raise ClusterError(
        attempt,
        f"each wants {asked} of one node, and no node has that ({has}): Ray would wait for ever",
        "ask for less, or add a node that has it, as in lab.add_node(cpus=1, resources={…})",
    )


def _places(node: Node, cpus: float, gpus: float) -> int:
    """How many workers of that size fit on a node."""
    by_cpu = math.floor(node.cpus / cpus + 1e-9) if cpus else 10**6
    by_gpu = math.floor(node.gpus / gpus + 1e-9) if gpus else 10**6
    return min(by_cpu, by_gpu)
