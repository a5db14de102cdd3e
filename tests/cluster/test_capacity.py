"""What the nodes have no room for is refused, with the numbers."""

import pytest

from labkit.cluster.capacity import Node, check_task_fits, check_worker_capacity
from labkit.errors import LabError


def node(cpus, name="head", **resources):
    return Node(name, name, alive=True, resources={"CPU": float(cpus), **resources}, address="127.0.0.1")


@pytest.mark.parametrize(
    "nodes, wanted",
    [
        ([node(3)], {"workers": 2, "data": True}),
        ([node(1), node(1)], {"workers": 2}),
        ([node(0.3)], {"workers": 3, "cpus_per_worker": 0.1}),  # to a computer, 0.1 + 0.1 + 0.1 > 0.3
        ([node(8, GPU=2)], {"workers": 2, "gpus_per_worker": 1, "data": True}),
        ([node(4, GPU=1)], {"workers": 1, "cpus_per_worker": 0, "gpus_per_worker": 1}),
    ],
)
def test_what_fits_is_let_through(nodes, wanted):
    check_worker_capacity(nodes, **wanted)


@pytest.mark.parametrize(
    "nodes, wanted, said",
    [
        ([node(2)], {"workers": 3}, ["3 workers with 1 CPU each", "room for 2 ", "num_workers=2"]),
        # Three CPUs in all, and no node where a worker of two would fit twice.
        ([node(2), node(1, "node-2")], {"workers": 2, "cpus_per_worker": 2}, ["room for 1", "node-2 1 CPU"]),
        ([node(8, GPU=1)], {"workers": 2, "gpus_per_worker": 1}, ["room for 1", "head 8 CPU 1 GPU"]),
        ([node(2)], {"workers": 2, "data": True}, ["fed by Ray Data", "2 of 2 CPUs", "one worker fewer"]),
        ([], {"workers": 1}, ["room for 0"]),
    ],
)
def test_what_does_not_fit_is_refused(nodes, wanted, said):
    with pytest.raises(LabError) as refused:
        check_worker_capacity(nodes, ours=True, **wanted)
    assert all(part in str(refused.value) for part in said)
    assert "lab.add_node" in refused.value.fix
    # Other clusters may scale by themselves, and the request is what makes them grow.
    with pytest.warns(UserWarning, match="an autoscaler or a person may add nodes"):
        check_worker_capacity(nodes, ours=False, **wanted)


NODES = [node(2, GPU=1), node(4, "node-2", validation=1.0)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_cpus": None, "num_gpus": 1},
        {"num_cpus": 3, "resources": {"validation": 1}},
        {"label_selector": {"ray.io/accelerator-type": "L4"}},  # Ray alone knows the labels …
        {"resources": {"node:__internal_head__": 0.001}},  # … and names of its own
    ],
)
def test_a_task_that_some_node_can_run(options):
    check_task_fits(NODES, options, attempt="run validations")


@pytest.mark.parametrize(
    "options, said, fix",
    [
        ({"num_cpus": 5}, "each needs 5 CPU of one node", "lab.add_node(cpus=…)"),
        (
            {"num_gpus": 1, "resources": {"validation": 1}},
            "1 CPU and 1 GPU and 1 validation of one node",
            "lab.add_node(cpus=…, resources={'validation': …})",  # Ray refuses a GPU there
        ),
        ({"num_cpus": 0, "resources": {"disk": 0.5}}, "head 0 disk, node-2 0 disk", "{'disk': …})"),
    ],
)
def test_a_task_that_no_node_can_ever_run(options, said, fix):
    with pytest.raises(LabError, match="run validations") as refused:
        check_task_fits(NODES, options, attempt="run validations")
    assert said in refused.value.fact and "wait forever" in refused.value.fact
    assert refused.value.fix.endswith(fix)
