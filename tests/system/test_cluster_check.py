"""`labkit check ADDRESS`: what it says about a cluster that the lab did not start."""

import json

from labkit.__main__ import main
from labkit.check import compare
from labkit.machine import free_port
from labkit.settings import Settings

HERE = {"torch": "2.13.0", "home": True, "store": ""}


def test_a_cluster_that_does_not_answer_is_one_line_with_a_fix(capsys):
    assert main(["check", f"127.0.0.1:{free_port()}", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    (finding,) = said["findings"]
    assert finding["topic"] == "connection" and not said["ok"]
    assert "nothing answers there" in finding["text"] and "ray status" in finding["fix"]


def found(*answers, here=HERE, **settings):
    nodes = [(f"10.0.0.{number}", answer) for number, answer in enumerate(answers, start=1)]
    return {node.topic: node for node in compare(nodes, Settings(home="/home/me", **settings), here)}


def test_what_differs_between_nodes_is_said_with_their_addresses():
    other = {"torch": "2.11.0", "home": False, "store": "NoCredentialsError: none"}
    said = found(HERE, other, {"raised": "No module named x"}, s3_endpoint="https://store:9000")
    assert [topic for topic, one in said.items() if one.ok] == []
    assert said["nodes"].text == "2 of 3 answered a task; not 10.0.0.3: No module named x"
    assert said["nodes"].blocking
    assert said["torch"].text == "1 of 2 have 2.13.0, as here; not 10.0.0.2: 2.11.0"
    assert said["home"].text == "1 of 2 see the folder /home/me; not 10.0.0.2"
    assert said["object store"].text == "2 of 3 can use it; not 10.0.0.2: NoCredentialsError: none"


def test_the_store_has_to_work_from_this_machine_too_and_the_labs_own_works_only_here():
    there = {"s3_endpoint": "https://store:9000"}
    assert all(one.ok for one in found(HERE, HERE, **there).values())
    said = found(HERE, here=HERE | {"store": "EndpointConnectionError"}, **there)["object store"]
    assert not said.ok and "this machine: EndpointConnectionError" in said.text
    assert found(HERE)["object store"].ok and not found(HERE, HERE)["object store"].ok
