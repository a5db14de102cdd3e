"""Whether workers and tasks fit on the nodes of a cluster. If not, Ray waits for more and reports nothing."""

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.errors import LabError, expect_int

QUIET_FOR = 20.0  # seconds without news of a run after which its panel says what it waits for


@dataclass(frozen=True)
class Node:
    """One node of a cluster, as Ray reports it."""

    name: str  # "head", "node-2", …; on a cluster that the lab did not start, the host's name
    id: str  # Ray's
    alive: bool  # False once Ray has noticed that it is gone
    resources: dict[str, float]  # logical resources, such as {"CPU": 2.0}
    address: str  # its IP address

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
    ours: bool = False,
) -> None:
    """See `Cluster.check_capacity`; `ours` is as in `_refuse`."""
    expect_int("start workers", "workers", workers)
    each = {"CPU": cpus_per_worker} | ({"GPU": gpus_per_worker} if gpus_per_worker else {})
    attempt = f"start {workers} worker{'s' * (workers != 1)} with {_amounts(each)} each"
    more = "lab.add_node(cpus=…)" if ours else "a larger cluster"
    places = sum(_places(node, each) for node in nodes)
    used, cpus = workers * cpus_per_worker, sum(node.cpus for node in nodes)
    if places < workers:
        fact = f"the cluster has room for {places} of them ({_available(nodes, each)})"
        fix = f"num_workers={places}, or {more}" if places else f"ask for less per worker, or {more}"
        _refuse(attempt, fact, fix, ours=ours)
    elif data and cpus - used < 1:
        fact = f"they would use {used:g} of {cpus:g} CPUs, and the data pipeline needs one itself"
        fix = f"one worker fewer, resources_per_worker={{'CPU': 0.5}}, or {more}"
        _refuse(f"{attempt}, fed by Ray Data", fact, fix, ours=ours)


def check_task_fits(nodes: list[Node], options: dict[str, Any], *, attempt: str, ours: bool = True) -> None:
    """Refuse a task that no node could ever run, not even if nothing else ran.

    `options`: num_cpus (default 1), num_gpus and resources, as for ``ray.remote``. Labels are ignored.
    """
    asked = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus")}
    each = {name: amount for name, amount in (asked | (options.get("resources") or {})).items() if amount}
    check_bundles_fit(nodes, [each], attempt=attempt, ours=ours)


def check_bundles_fit(
    nodes: list[Node], bundles: Sequence[dict[str, float]], *, attempt: str, ours: bool = True
) -> None:
    """Refuse resources that are needed together, each bundle of one node, and that the nodes never have."""
    # `Cluster.nodes` leaves out names such as "node:10.0.0.7" and "accelerator_type:T4", which are Ray's own.
    bundles = [{name: amount for name, amount in each.items() if ":" not in name} for each in bundles]
    together = sum(map(Counter, bundles), Counter())
    have = sum((Counter(node.resources) for node in nodes), Counter())
    if lacking := [each for each in bundles if not any(_places(node, each) for node in nodes)]:
        each = dict(sorted(lacking[0].items()))
        fact = f"each needs {_amounts(each)} of one node, and no node has that ({_available(nodes, each)})"
    elif any(amount > have[name] + 1e-6 for name, amount in together.items()):
        fact = f"each needs {_amounts(together)}, and all nodes together have less "
        fact += f"({_available(nodes, together)})"
    else:
        return
    own = [name for name in together if name not in ("CPU", "GPU", "memory", "object_store_memory")]
    node = f"lab.add_node(cpus=…, resources={{{own[0]!r}: …}})" if own else "lab.add_node(cpus=…)"
    _refuse(attempt, fact, f"ask for less, or {node if ours else 'add a node that has it'}", ours=ours)


def _places(node: Node, each: dict[str, float]) -> int:
    """How many times a node has these resources."""
    times = (math.floor(node.resources.get(name, 0) / n + 1e-9) for name, n in each.items() if n)
    return min(times, default=10**6)


def _amounts(each: dict[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in each.items())


def _available(nodes: list[Node], each: dict[str, float]) -> str:
    """What each node has of these resources."""
    has = [" ".join([n.name, *(f"{n.resources.get(one, 0):g} {one}" for one in each)]) for n in nodes]
    return ", ".join(has) or "no node"


def waits_for(turns: Sequence[list[dict[str, float]]] = ()) -> str:
    """What the first placement group of this job that waits wants, and what is free of it; "" if none waits.

    `turns` are bundles of trials: while one of them has its group, the others wait for their turn.
    """
    import ray

    job, table = ray.get_runtime_context().get_job_id(), ray.util.placement_group_table()
    groups = [group for id, group in table.items() if id.endswith(job)]
    made, wanted = (
        [[*group["bundles"].values()] for group in groups if group["state"] == state]
        for state in ("CREATED", "PENDING")
    )
    excused = turns if any(bundles in turns for bundles in made) else ()
    asked = next((bundles for bundles in wanted if bundles not in excused), [])
    amounts = sum(map(Counter, asked), Counter())
    if not amounts:
        return ""
    free, there = ray.available_resources(), ray.cluster_resources()
    told = [f"{n:g} {one} ({free.get(one, 0):g} of {there.get(one, 0):g} free)" for one, n in amounts.items()]
    fix = "ask for less, end what holds the rest, or add a node; if nothing holds it, start the cluster again"
    return f"waiting for {' and '.join(told)}: {fix}"


def _refuse(attempt: str, fact: str, fix: str, *, ours: bool) -> None:
    """Raise a LabError for what has no room; only warn if the lab did not start the cluster (`ours`).

    Such a cluster's autoscaler may be waiting for the request, which is what makes it start nodes.
    """
    if ours:
        raise LabError(attempt, f"{fact}, and Ray would wait forever", fix)
    text = f"{fact}. Unless an autoscaler or a person may add nodes, Ray waits forever: {fix}"
    warnings.warn(f"{attempt}: {text}", stacklevel=2)
