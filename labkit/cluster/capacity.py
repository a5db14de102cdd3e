"""Whether workers and tasks fit on the nodes of a cluster: if not, Ray waits forever and reports nothing."""

import contextlib
import math
import numbers
import time
from dataclasses import dataclass
from typing import Any

from labkit.errors import ClusterError

_RELEASED_WITHIN = 5.0  # seconds until the CPUs of a run that has just ended are free


@dataclass(frozen=True)
class Node:
    """One node of a cluster, as Ray reports it.

    Attributes:
        name: "head", "node-2", …; on a cluster that the lab did not start, the host's name.
        id: Ray's id of the node.
        alive: False once Ray has noticed that it is gone.
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
        """Logical CPUs: a number that tasks take from while they run, not cores."""
        return self.resources.get("CPU", 0.0)

    @property
    def gpus(self) -> float:
        return self.resources.get("GPU", 0.0)


def check_worker_capacity(
    nodes: list[Node],
    *,
    workers: int,
    cpus_per_worker: float = 1,
    gpus_per_worker: float = 0,
    data: bool = False,
    growable: bool = False,
) -> None:
    """Refuse a training whose workers do not fit on `nodes`.

    Args:
        workers: number of training workers.
        cpus_per_worker, gpus_per_worker: logical resources of each.
        data: whether a Ray Data pipeline feeds them, which needs a CPU of its own.
        growable: whether the lab may add nodes to this cluster.

    Raises:
        ClusterError: with the numbers, and what to change.
    """
    expect_int("start workers", "workers", workers)
    for name, value in (("cpus_per_worker", cpus_per_worker), ("gpus_per_worker", gpus_per_worker)):
        expect_number("start workers", name, value)
    each = f"{cpus_per_worker:g} CPU" + (f" and {gpus_per_worker:g} GPU" if gpus_per_worker else "")
    attempt = f"start {workers} worker{'s' * (workers != 1)} with {each} each"
    places = sum(_places(node, cpus_per_worker, gpus_per_worker) for node in nodes)
    has = ", ".join(f"{n.name} {n.cpus:g} CPU" + (f" {n.gpus:g} GPU" if n.gpus else "") for n in nodes)
    if places < workers:
        more = "lab.add_node(cpus=…)" if growable else "a larger cluster"
        raise ClusterError(
            attempt,
            f"the cluster has room for {places} of them ({has}), and Ray would wait for the others forever",
            f"num_workers={places}, or {more}" if places else f"ask for less per worker, or {more}",
        )
    cpus = sum(node.cpus for node in nodes)
    if data and cpus - workers * cpus_per_worker < 1:
        more = "lab.add_node(cpus=1)" if growable else "a larger cluster"
        raise ClusterError(
            f"{attempt}, fed by Ray Data",
            f"they would use {workers * cpus_per_worker:g} of {cpus:g} CPUs, and the data pipeline needs one "
            "itself: both would wait for each other forever",
            f"one worker less, resources_per_worker={{'CPU': 0.5}}, or {more}",
        )


def check_task_fits(nodes: list[Node], options: dict[str, Any], *, attempt: str) -> None:
    """Refuse a task that no node could ever run, not even if nothing else ran.

    Args:
        options: of ``ray.remote``: num_cpus (default 1), num_gpus, resources. Labels are ignored.

    Raises:
        ClusterError: with what the task asks for, and what the nodes have.
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
        f"each needs {asked} of one node, and no node has that ({has}): Ray would wait forever",
        "ask for less, or add a node that has it, as in lab.add_node(cpus=1, resources={…})",
    )


def check_free(nodes: list[Node], wanted: dict[str, float]) -> None:
    """Refuse resources that other work uses, after waiting for a run that has just ended.

    Raises:
        ClusterError: with what is free, and the actors that use the rest.
    """
    import ray

    deadline = time.monotonic() + _RELEASED_WITHIN
    while True:
        free = ray.available_resources()
        missing = [name for name, amount in wanted.items() if amount and free.get(name, 0) < amount - 1e-6]
        if not missing:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    name = missing[0]
    total = sum(node.resources.get(name, 0) for node in nodes)
    raise ClusterError(
        f"find {wanted[name]:g} free {name}s",
        f"of the cluster's {total:g} only {free.get(name, 0):g} are free, and Ray would wait forever for the "
        f"others{_actors()}",
        "end what uses them (ray.kill(actor), or the run of another notebook), lab.add_node(), or lab.stop() "
        "and start again",
    )


def _actors() -> str:
    """The running actors, as the end of a sentence; empty if Ray does not answer."""
    import ray
    from ray.util import state

    with contextlib.suppress(Exception):  # it asks the dashboard, which may be busy
        address = ray.get_runtime_context().gcs_address  # else it asks the cluster that was started last
        actors = state.list_actors(address, filters=[("state", "=", "ALIVE")], detail=True, timeout=5)
        names = [f"{a.class_name} (pid {a.pid})" for a in actors if a.required_resources]
        if names:
            return ". These actors are running: " + ", ".join(names[:6])
    return ""


def _places(node: Node, cpus: float, gpus: float) -> int:
    """How many workers of that size fit on a node."""
    by_cpu = math.floor(node.cpus / cpus + 1e-9) if cpus else 10**6
    by_gpu = math.floor(node.gpus / gpus + 1e-9) if gpus else 10**6
    return min(by_cpu, by_gpu)


def expect_int(attempt: str, name: str, value: Any, *, least: int = 1) -> int:
    """Return `value` as an int. Raise ClusterError unless it is a whole number from `least` on."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and value >= least:
        return int(value)
    fact = f"{name}={value!r} is not a whole number from {least} on"
    raise ClusterError(attempt, fact, f"for example {name}={least + 1}")


def expect_number(attempt: str, name: str, value: Any) -> None:
    """Raise ClusterError unless `value` is a finite number from 0 on."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ClusterError(attempt, f"{name}={value!r} is not a number from 0 on", f"for example {name}=1")


def expect_type(attempt: str, name: str, value: Any, kind: type | tuple[type, ...], example: str) -> None:
    """Raise ClusterError unless `value` is of type `kind` and not empty."""
    if not isinstance(value, kind):
        fact = f"{name}={value!r} is of type {type(value).__name__}"
        raise ClusterError(attempt, fact, f"for example {example}")
    if not value:
        raise ClusterError(attempt, f"{name} is empty", f"for example {example}")


def expect_resources(attempt: str, resources: Any) -> None:
    """Raise ClusterError unless `resources` maps names to amounts."""
    example = 'resources={"fast_disk": 1}'
    expect_type(attempt, "resources", resources, dict, example)
    for name, amount in resources.items():
        expect_type(attempt, "a name in resources", name, str, example)
        expect_number(attempt, f"resources[{name!r}]", amount)
