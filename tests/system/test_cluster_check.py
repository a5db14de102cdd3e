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


def test_what_differs_between_nodes_is_said_with_their_addresses(monkeypatch):
    monkeypatch.setattr(labkit.check, "_torch", lambda: "2.13.0")
    nodes = [node(1), node(2)]
    answers = {"id1": {"torch": "2.13.0", "store": True}, "id2": {"torch": "2.11.0", "store": False}}
    found = labkit.check._versions(nodes, answers)
    assert not found.ok and "10.0.0.2: 2.11.0" in found.text and "10.0.0.1" not in found.text
    found = labkit.check._store("https://store:9000", nodes, answers)
    assert not found.ok and found.text == "1 of 2 reach it; not 10.0.0.2"
    assert (
        labkit.check._store(None, nodes[:1], answers).ok and not labkit.check._store(None, nodes, answers).ok
    )


@pytest.mark.parametrize(
    ("free", "gpus", "used", "ok"), [(0, 0, False, True), (2, 2, False, False), (1, 2, True, True)]
)
def test_gpus_that_no_lesson_would_use_are_named(free, gpus, used, ok):
    found = labkit.check._gpus(free, gpus, used)
    assert found.ok is ok and (ok or "LABKIT_GPU=1" in found.fix)
