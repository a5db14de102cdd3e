"""What the nodes have no room for is refused, with the numbers."""

import pytest

from labkit.cluster.capacity import (
    Node,
    check_bundles_fit,
    check_validation_fits,
    check_worker_capacity,
    words_on_a_wait,
)
from labkit.errors import NoRoom


def node(cpus, name="head", labels=(), accelerators=(), **resources):
    resources = {"CPU": float(cpus), **dict.fromkeys(accelerators, 1.0), **resources}
    return Node(name, name, alive=True, resources=resources, address="127.0.0.1", labels=dict(labels))


T4 = {"CPU": 1, "accelerator_type:T4": 0.001}
FITS = [
    ([node(3)], {"workers": 2, "data": True}, "a CPU is left for Ray Data"),
    ([node(1), node(1)], {"workers": 2}, "one on each node"),
    ([node(0.3)], {"workers": 3, "each": {"CPU": 0.1}}, "to a computer, 0.1 + 0.1 + 0.1 > 0.3"),
    ([node(8, GPU=2)], {"workers": 2, "each": {"CPU": 1, "GPU": 1}, "data": True}, "two GPUs"),
    ([node(4, cpu=2)], {"workers": 2, "each": {"cpu": 1}}, "a custom resource"),
    ([node(4, accelerators=["accelerator_type:T4"])], {"workers": 2, "each": T4}, "a T4"),
    ([node(1), node(1)], {"workers": 2, "strategy": "STRICT_SPREAD"}, "two nodes"),
    ([node(2), node(1)], {"workers": 2, "strategy": "STRICT_PACK"}, "one node"),
    ([node(2, labels={"zone": "a"}), node(2)], {"workers": 2, "labels": [{"zone": "a"}]}, "a label"),
    ([node(2, labels={"zone": "a"})], {"workers": 1, "labels": [{"zone": "in(a, b)"}]}, "one of two labels"),
    ([node(2, labels={"zone": "a"})], {"workers": 1, "labels": [{"zone": "!b"}]}, "not another label"),
]


@pytest.mark.parametrize("nodes, wanted, why", FITS)
def test_what_fits_is_let_through(nodes, wanted, why):
    check_worker_capacity(nodes, **{"each": {"CPU": 1}, **wanted})


NEVER = [
    ([node(2)], {"workers": 3}, "room for 2", "num_workers=2"),
    # three CPUs in all, and no node where a worker of two would fit twice
    (
        [node(2), node(1, "node-2")],
        {"each": {"CPU": 2}},
        "room for 1 of them (head 2 CPU, node-2 1 CPU)",
        "lab.add_node",
    ),
    (
        [node(8, GPU=1)],
        {"each": {"CPU": 1, "GPU": 1}},
        "room for 1 of them (head 8 CPU 1 GPU)",
        "lab.add_node",
    ),
    ([node(2)], {"data": True}, "2 of 2 CPUs", "one worker fewer"),
    ([], {"workers": 1}, "room for 0", "lab.add_node"),
    (
        [node(3, memory=21e9)],
        {"each": {"CPU": 1, "memory": 640e9}},
        "room for 0 of them (head 3 CPU 21 GB memory)",
        "ask for less per worker",
    ),
    (
        [node(3)],
        {"each": {"cpu": 1}},
        "no node has the resource 'cpu', and Ray's own is spelled 'CPU'",
        "{'CPU': 1} in place of {'cpu': 1}",
    ),
    ([node(3)], {"each": {"CPU": 1, "Memory": 4e9}}, "spelled 'memory'", "{'memory': 4e+09} in place of"),
    ([node(3)], {"each": {"CPU": 1, "disk": 1}}, "head 3 CPU 0 disk", "resources={'disk': …})"),
    ([node(3)], {"each": T4}, "head 3 CPU without a T4", "a cluster that has a T4"),
    (
        [node(3, accelerators=["accelerator_type:T4"]), node(3, "node-2")],
        {"each": T4, "workers": 4},
        "room for 3 of them (head 3 CPU with a T4, node-2 3 CPU without a T4)",
        "num_workers=3",
    ),
    (
        [node(3)],
        {"strategy": "STRICT_SPREAD"},
        "room for 1 of them, because STRICT_SPREAD puts each on a node of its own and there is one",
        'placement_strategy="SPREAD", or num_workers=1, or lab.add_node(cpus=…)',
    ),
    (
        [node(1), node(1, "node-2")],
        {"strategy": "STRICT_PACK"},
        "room for 1 of them, because STRICT_PACK puts all of them on one node",
        'placement_strategy="PACK", or num_workers=1',
    ),
    (
        [node(2, labels={"zone": "a"}), node(2, "node-2")],
        {"labels": [{"zone": "b"}] * 2},
        "labels {'zone': 'b'}, and none has them (head {'zone': 'a'}, node-2 {'zone': None})",
        "leave label_selector out",
    ),
    (
        [node(1, labels={"zone": "a"}), node(9, "node-2")],
        {"labels": [{"zone": "a"}] * 2},
        "room for 1 of them (head 1 CPU)",
        "num_workers=1",
    ),
]


@pytest.mark.parametrize("nodes, wanted, fact, fix", NEVER)
def test_what_no_node_can_ever_give_is_refused_in_words(nodes, wanted, fact, fix):
    wanted = {"each": {"CPU": 1}, "workers": 2, **wanted}
    with pytest.raises(NoRoom) as refused:
        check_worker_capacity(nodes, ours=True, **wanted)
    assert fact in refused.value.fact and fix in refused.value.fix
    with pytest.warns(UserWarning, match="an autoscaler or a person may add nodes"):
        check_worker_capacity(nodes, ours=False, **wanted)


TRIALS = [
    ([{"CPU": 1}, {"CPU": 1}, {"CPU": 1}], "STRICT_SPREAD", "each needs 3 nodes"),
    ([{"CPU": 3}, {"CPU": 2}], "STRICT_PACK", "each needs 5 CPU of one node"),
    ([{"CPU": 4}, {"CPU": 4}], "PACK", "all nodes together have less"),
]


@pytest.mark.parametrize("bundles, strategy, fact", TRIALS)
def test_trials_that_never_fit_are_refused_in_words(bundles, strategy, fact):
    nodes = [node(4), node(3, "node-2")]
    with pytest.raises(NoRoom, match="start trials") as refused:
        check_bundles_fit(nodes, bundles, attempt="start trials", strategy=strategy, ours=True)
    assert fact in refused.value.fact


WAITS = [
    ([{"CPU": 1}] * 4, "PACK", "4 CPU (3 of 3 free): ask for less, end what holds the rest"),
    ([{"CPU": 1}] * 2, "STRICT_SPREAD", "2 CPU (3 of 3 free) on 2 different nodes (STRICT_SPREAD): place"),
    ([{"CPU": 1}] * 2, "STRICT_PACK", 'on one node (STRICT_PACK): placement_strategy="PACK"'),
    ([{"CPU": 1, "memory": 640e9}], "PACK", "1 CPU (3 of 3 free) and 640 GB memory (21 GB of 21 GB free)"),
    ([T4], "PACK", "an accelerator of type T4 (no node has one)"),
]


@pytest.mark.parametrize("bundles, strategy, words", WAITS)
def test_what_is_waited_for_has_units_and_a_word_for_its_strategy(bundles, strategy, words):
    there = {"CPU": 3.0, "memory": 21e9}
    assert words in words_on_a_wait(bundles, strategy, there, there)
    assert words_on_a_wait([], strategy, there, there) == ""


NODES = [
    node(2, GPU=1, labels={"ray.io/accelerator-type": "L4"}, accelerators=["accelerator_type:L4"]),
    node(4, "node-2", validation=1.0),
]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_cpus": None, "num_gpus": 1},
        {"num_cpus": 3, "resources": {"validation": 1}},
        {"label_selector": {"ray.io/accelerator-type": "L4"}},
        {"accelerator_type": "L4"},
        {"resources": {"node:__internal_head__": 0.001}},  # Ray alone knows names of its own
    ],
)
def test_a_task_that_some_node_can_run(options):
    check_validation_fits(NODES, options, ours=True)


TASKS = [
    ({"num_cpus": 5}, "each needs 5 CPU of one node", "lab.add_node(cpus=…)"),
    (
        {"num_gpus": 1, "resources": {"validation": 1}},
        "1 CPU and 1 GPU and 1 validation of one node",
        "lab.add_node(cpus=…, resources={'validation': …})",
    ),
    ({"accelerator_type": "T4"}, "head 2 CPU without a T4", "a cluster that has a T4"),
    ({"num_cpus": 3, "label_selector": {"ray.io/accelerator-type": "L4"}}, "(head 2 CPU)", "(cpus=…)"),
    ({"label_selector": {"zone": "b"}}, "the labels {'zone': 'b'}", "a cluster with such a node"),
]


@pytest.mark.parametrize("options, fact, fix", TASKS)
def test_a_task_that_no_node_can_ever_run(options, fact, fix):
    with pytest.raises(NoRoom, match="run validations") as refused:
        check_validation_fits(NODES, options, ours=True)
    assert fact in refused.value.fact and "wait forever" in refused.value.fact
    assert refused.value.fix.endswith(fix)
