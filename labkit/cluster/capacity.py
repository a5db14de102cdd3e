"""Check that workers and tasks fit on a cluster's nodes: if they don't, Ray waits for more in silence."""

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.display.formatting import plural, size
from labkit.errors import NoRoom, expect_int

Problem = tuple[str, str]  # the fact that stops something, and the fix

_ACCELERATOR = "accelerator_type:"  # and its name: a resource of a node with that kind of GPU
_MEMORY = "memory"  # in bytes
_STANDARD = ("CPU", "GPU", "TPU", _MEMORY)
OF_A_NODE = "node:"  # how Ray's own resources of one node begin; only Ray knows which node that is
QUIET_FOR = 20.0  # seconds without news of a run after which its panel says what it waits for


@dataclass(frozen=True)
class Node:
    """One node of a cluster, as Ray reports it."""

    name: str  # "head", "node-2", …; on a cluster that the lab did not start, the host's name
    id: str  # Ray's
    alive: bool  # False once Ray has noticed that it is gone
    resources: dict[str, float]  # logical resources, such as {"CPU": 2.0}
    address: str  # its IP address
    labels: dict[str, str] = field(default_factory=dict)

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
    each: Mapping[str, float],
    strategy: str = "PACK",
    labels: Sequence[Mapping[str, str]] = (),
    data: bool = False,
    ours: bool = False,
) -> None:
    """Refuse workers that never fit; see `Cluster.check_capacity`. `ours` is as in `_refuse`.

    Args:
        each: resources of one worker.
        strategy: of their placement group. STRICT_PACK wants one node for all workers, STRICT_SPREAD one for
            each.
        labels: that the node of each worker must have, as Ray's label selectors; () for none.
    """
    expect_int("start workers", "workers", workers)
    each = _asked(each)
    attempt = f"start {plural(workers, 'worker')}"
    if each:
        attempt += f" with {_amounts(each)} each"
    wrong = _wrong_case(nodes, each) or _lacking_labels(nodes, labels)
    if wrong:
        _refuse(attempt, *wrong, ours=ours)
        return
    if labels and all(selector == labels[0] for selector in labels):
        nodes = [node for node in nodes if _has_labels(node, labels[0])]
    more = _node_with(nodes, each, ours=ours)
    room, why, fix = _room([_places(node, each) for node in nodes], strategy)
    if room < workers:
        if room:
            fewer = f"num_workers={room}"
        elif any(name.startswith(_ACCELERATOR) for name in each):
            fewer = "leave accelerator_type out"
        else:
            fewer = "ask for less per worker"
        _refuse(
            attempt,
            f"the cluster has room for {room} of them{why} ({_available(nodes, each)})",
            _alternatives(fix, fewer, more),
            ours=ours,
        )
        return
    used = workers * each.get("CPU", 0)
    cpus = sum(node.cpus for node in nodes)
    if data and cpus - used < 1:
        _refuse(
            f"{attempt}, fed by Ray Data",
            f"they would use {used:g} of {cpus:g} CPUs, and the data pipeline needs one itself",
            f"one worker fewer, resources_per_worker={{'CPU': 0.5}}, or {more}",
            ours=ours,
        )


def check_validation_fits(nodes: list[Node], options: dict[str, Any], *, ours: bool) -> None:
    """Refuse a validation's task that no node could ever run, not even if nothing else ran.

    `options`: as for ``ray.remote``: num_cpus (default 1), num_gpus, memory, resources, accelerator_type and
    label_selector.
    """
    cpus = options.get("num_cpus")
    each = {
        "CPU": 1 if cpus is None else cpus,
        "GPU": options.get("num_gpus"),
        "memory": options.get("memory"),
        **(options.get("resources") or {}),
    }
    accelerator = options.get("accelerator_type")
    if accelerator:
        each[_ACCELERATOR + accelerator] = 0.001
    selector = options.get("label_selector") or {}
    attempt = "run validations"
    wrong = _lacking_labels(nodes, [selector])
    if wrong:
        _refuse(attempt, *wrong, ours=ours)
        return
    nodes = [node for node in nodes if _has_labels(node, selector)]
    check_bundles_fit(nodes, [each], attempt=attempt, ours=ours)


def check_bundles_fit(
    nodes: list[Node],
    bundles: Sequence[Mapping[str, float]],
    *,
    attempt: str,
    strategy: str = "PACK",
    ours: bool,
) -> None:
    """Refuse resources that are needed together, each bundle of one node, and that the nodes never have."""
    bundles = [_asked(each) for each in bundles]
    together = dict(sum(map(Counter, bundles), Counter()))
    wrong = _wrong_case(nodes, together)
    if wrong:
        _refuse(attempt, *wrong, ours=ours)
        return
    lacking = _lacking_resources(nodes, bundles, together, strategy)
    if lacking:
        fact, fix = lacking
        more = _node_with(nodes, together, ours=ours)
        _refuse(attempt, fact, _alternatives(fix, more), ours=ours)


def _lacking_resources(
    nodes: list[Node],
    bundles: Sequence[Mapping[str, float]],
    together: Mapping[str, float],
    strategy: str,
) -> Problem | None:
    """Return the problem with bundles that the nodes never have; `together` is the sum of the bundles."""
    for bundle in bundles:
        if not any(_places(node, bundle) for node in nodes):
            each = dict(sorted(bundle.items()))
            return (
                f"each needs {_amounts(each)} of one node, and no node has that ({_available(nodes, each)})",
                "ask for less",
            )
    needs = f"each needs {_amounts(together)}"
    available = _available(nodes, together)
    if strategy == "STRICT_PACK" and not any(_places(node, together) for node in nodes):
        return (
            f"{needs} of one node, because its strategy is STRICT_PACK, and no node has that ({available})",
            'strategy="PACK"',
        )
    if strategy == "STRICT_SPREAD" and len(bundles) > len(nodes):
        return (
            f"each needs {plural(len(bundles), 'node')}, because its strategy is STRICT_SPREAD, "
            f"and the cluster has {plural(len(nodes), 'node')}",
            'strategy="SPREAD"',
        )
    have = sum((Counter(node.resources) for node in nodes), Counter())
    if any(amount > have[name] + 1e-6 for name, amount in together.items()):
        return f"{needs}, and all nodes together have less ({available})", "ask for less"
    return None


def _alternatives(*fixes: str) -> str:
    """Join the fixes that there are."""
    return ", or ".join(filter(None, fixes))


def _asked(each: Mapping[str, float | None]) -> dict[str, float]:
    """Return the amounts that are asked for, without what only Ray knows, such as "node:10.0.0.7"."""
    return {name: amount for name, amount in each.items() if amount and not name.startswith(OF_A_NODE)}


def _room(places: list[int], strategy: str) -> tuple[int, str, str]:
    """Return how many equal bundles fit, why not more if that is the strategy's fault, and the fix for that.

    `places` has for each node how many fit on it.
    """
    if strategy == "STRICT_SPREAD":
        number = "is one" if len(places) == 1 else f"are {len(places)}"
        why = f", because STRICT_SPREAD puts each on a node of its own and there {number}"
        return len(places) - places.count(0), why, 'placement_strategy="SPREAD"'
    if strategy == "STRICT_PACK" and len(places) > 1:
        why = ", because STRICT_PACK puts all of them on one node"
        return max(places), why, 'placement_strategy="PACK"'
    return sum(places), "", ""


def _places(node: Node, each: Mapping[str, float]) -> int:
    """Return how many times a node has these resources."""
    times = [node.resources.get(name, 0) / amount for name, amount in each.items()]
    return math.floor(min(times, default=10**6) + 1e-9)


def _node_with(nodes: list[Node], each: Mapping[str, float], *, ours: bool) -> str:
    """Return how to get a node that has these resources; "" if one more of the same machine hasn't either."""
    most = max((node.resources.get(_MEMORY, 0) for node in nodes), default=0)
    if each.get(_MEMORY, 0) > most:
        return ""
    for name in each:
        if name.startswith(_ACCELERATOR):
            return f"connect to a cluster that has a {name.removeprefix(_ACCELERATOR)}"
    if not ours:
        return "add such a node"
    for name in each:
        if name not in _STANDARD:
            return f"lab.add_node(cpus=…, resources={{{name!r}: …}})"
    return "lab.add_node(cpus=…)"


def _wrong_case(nodes: list[Node], each: Mapping[str, float]) -> Problem | None:
    """Return the problem with "cpu": Ray takes it for a custom resource, next to its CPU."""
    right = {name.lower(): name for name in _STANDARD}
    for name, amount in each.items():
        meant = right.get(name.lower(), name)
        if meant == name or any(node.resources.get(name) for node in nodes):
            continue
        return (
            f"no node has the resource {name!r}, and Ray's own is spelled {meant!r}",
            f"{{{meant!r}: {amount:g}}} in place of {{{name!r}: {amount:g}}}",
        )
    return None


def _lacking_labels(nodes: list[Node], selectors: Sequence[Mapping[str, str]]) -> Problem | None:
    """Return the problem with labels that no node has."""
    for selector in selectors:
        if any(_has_labels(node, selector) for node in nodes) or not selector:
            continue
        has = []
        for node in nodes:
            labels = {name: node.labels.get(name) for name in selector}
            has.append(f"{node.name} {labels}")
        return (
            f"each needs a node with the labels {dict(selector)}, and none has them "
            f"({', '.join(has) or 'no node'})",
            "leave label_selector out, or use a cluster with such a node",
        )
    return None


def _has_labels(node: Node, selector: Mapping[str, str]) -> bool:
    """Return whether a node has labels as Ray's selectors want them: "a", "!a", "in(a,b)" or "!in(a,b)"."""
    for name, wanted in selector.items():
        wanted = wanted.strip()
        listed = wanted.removeprefix("!").removeprefix("in(").removesuffix(")")
        values = [value.strip() for value in listed.split(",")]
        is_among = node.labels.get(name) in values
        if is_among == wanted.startswith("!"):
            return False
    return True


def _amounts(each: Mapping[str, float]) -> str:
    amounts = [_amount(name, amount) for name, amount in each.items()]
    return " and ".join(amounts)


def _amount(name: str, amount: float) -> str:
    """Return an amount in words: ``2 CPU``, ``640 GB memory``, ``an accelerator of type T4``."""
    if name == _MEMORY:
        return f"{size(amount)} memory"
    if name.startswith(_ACCELERATOR):
        return f"an accelerator of type {name.removeprefix(_ACCELERATOR)}"
    return f"{amount:g} {name}"


def _available(nodes: list[Node], each: Mapping[str, float]) -> str:
    """Return what each node has of these resources."""
    has = []
    for node in nodes:
        resources = [_has(node, name) for name in each]
        has.append(" ".join([node.name, *resources]))
    return ", ".join(has) or "no node"


def _has(node: Node, name: str) -> str:
    amount = node.resources.get(name, 0)
    if name.startswith(_ACCELERATOR):
        return f"{'with' if amount else 'without'} a {name.removeprefix(_ACCELERATOR)}"
    return _amount(name, amount)


def waits_for(turns: Sequence[list[dict[str, float]]] = ()) -> str:
    """Describe this job's first pending placement group: what it requests, and how much of that is free.

    "" if nothing is pending. `turns` are bundles of trials: while one of them has its group, the others wait
    for their turn.
    """
    import ray

    job = ray.get_runtime_context().get_job_id()
    table = ray.util.placement_group_table()
    groups = [group for id, group in table.items() if id.endswith(job)]
    has_turn = any(group["state"] == "CREATED" and _bundles_of(group) in turns for group in groups)
    for group in groups:
        bundles = _bundles_of(group)
        if group["state"] == "PENDING" and not (has_turn and bundles in turns):
            return words_on_a_wait(
                bundles,
                group.get("strategy", "PACK"),
                ray.available_resources(),
                ray.cluster_resources(),
            )
    return ""


def _bundles_of(group: dict[str, Any]) -> list[dict[str, float]]:
    return list(group["bundles"].values())


def words_on_a_wait(
    bundles: list[dict[str, float]],
    strategy: str,
    free: Mapping[str, float],
    there: Mapping[str, float],
) -> str:
    """Return a line on what is waited for; `free` is what the cluster has left of what is `there`."""
    amounts = sum(map(Counter, bundles), Counter())
    if not amounts:
        return ""
    awaited = [_awaited(name, amount, free, there) for name, amount in amounts.items()]
    wait = f"waiting for {' and '.join(awaited)}"
    is_free = all(free.get(name, 0) >= amount for name, amount in amounts.items())
    if is_free and len(bundles) > 1:
        if strategy == "STRICT_SPREAD":
            return (
                f"{wait} on {len(bundles)} different nodes (STRICT_SPREAD): "
                'placement_strategy="SPREAD", or add a node'
            )
        if strategy == "STRICT_PACK":
            return f'{wait} on one node (STRICT_PACK): placement_strategy="PACK", or a larger node'
    return (
        f"{wait}: ask for less, end what holds the rest, or add a node; if nothing holds it, start the "
        "cluster again"
    )


def _awaited(name: str, amount: float, free: Mapping[str, float], there: Mapping[str, float]) -> str:
    text = _amount(name, amount)
    if name.startswith(_ACCELERATOR):
        return text if there.get(name) else f"{text} (no node has one)"
    shown = size if name == _MEMORY else "{:g}".format
    return f"{text} ({shown(free.get(name, 0))} of {shown(there.get(name, 0))} free)"


def _refuse(attempt: str, fact: str, fix: str, *, ours: bool) -> None:
    """Raise a LabError for what has no room; only warn if the lab did not start the cluster (`ours`).

    Such a cluster's autoscaler may be waiting for the request, which is what makes it start nodes.
    """
    if ours:
        raise NoRoom(attempt, f"{fact}, and Ray would wait forever", fix)
    text = f"{fact}. Unless an autoscaler or a person may add nodes, Ray waits forever: {fix}"
    warnings.warn(f"{attempt}: {text}", stacklevel=2)
