"""`labkit check ADDRESS`: what it says about a cluster that the lab did not start."""

import json

import pytest

import labkit.check
from labkit.__main__ import main
from labkit.cluster.capacity import Node
from labkit.machine import free_port


def test_a_cluster_that_does_not_answer_is_one_line_with_a_fix(capsys):
    address = f"127.0.0.1:{free_port()}"
    assert main(["check", address, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert [one["topic"] for one in said["findings"]] == ["connection"] and not said["ok"]
    assert (
        "nothing answers there" in said["findings"][0]["text"] and "ray status" in said["findings"][0]["fix"]
    )


def node(number, **resources):
    return Node(
        name=f"n{number}", id=f"id{number}", alive=True, resources=resources, address=f"10.0.0.{number}"
    )


def test_what_differs_between_nodes_is_said_with_their_addresses():
    nodes = [node(1), node(2)]
    answers = {
        "id1": {"torch": "2.13.0", "home": True, "store": ""},
        "id2": {"torch": "2.11.0", "home": False, "store": "NoCredentialsError: none"},
    }
    found = labkit.check._torch(nodes, answers, "2.13.0")
    assert not found.ok and "10.0.0.2: 2.11.0" in found.text and "10.0.0.1" not in found.text
    found = labkit.check._home("/home/me", nodes, answers)
    assert not found.ok and found.text == "1 of 2 see the folder /home/me; not 10.0.0.2"
    found = labkit.check._store("https://store:9000", nodes, answers, "")
    assert (
        not found.ok and found.text == "1 of 2 can use it; not 10.0.0.2; 10.0.0.2: NoCredentialsError: none"
    )
    for count, alone in ((1, True), (2, False)):  # the lab's own store is on this machine
        assert labkit.check._store(None, nodes[:count], answers, "").ok is alone


def test_a_node_whose_task_fails_says_why():
    nodes, answers = (
        [node(1), node(2), node(3)],
        {"id1": {"torch": "2"}, "id2": {"raised": "No module named x"}},
    )
    found = labkit.check._nodes(nodes, answers)
    assert not found.ok and found.blocking
    assert found.text == "1 of 3 answered a task; not 10.0.0.2, 10.0.0.3: No module named x"


@pytest.mark.parametrize(
    ("free", "gpus", "used", "ok"), [(0, 0, False, True), (2, 2, False, False), (1, 2, True, True)]
)
def test_gpus_that_no_lesson_would_use_are_named(free, gpus, used, ok):
    found = labkit.check._gpus(free, gpus, used)
    assert found.ok is ok and (ok or "LABKIT_GPU=1" in found.fix)
