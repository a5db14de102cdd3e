"""`labkit check ADDRESS`: what it says about a cluster that the lab did not start."""

import json
from types import SimpleNamespace

from labkit.__main__ import main
from labkit.check import check, compare
from labkit.machine import free_port
from labkit.settings import Settings

HERE = {"torch": "2.13.0", "home": True, "store": ""}


def test_a_cluster_that_does_not_answer_is_one_line_with_a_fix(capsys):
    assert main(["check", f"127.0.0.1:{free_port()}", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)
    (finding,) = findings["findings"]
    assert finding["topic"] == "connection" and not findings["ok"]
    assert "nothing answers there" in finding["text"] and "ray status" in finding["fix"]


def compared(*answers, here=HERE, **settings):
    nodes = [(f"10.0.0.{number}", answer) for number, answer in enumerate(answers, start=1)]
    return {node.topic: node for node in compare(nodes, Settings(home="/home/me", **settings), here)}


def test_what_differs_between_nodes_is_said_with_their_addresses():
    other = {"torch": "2.11.0", "home": False, "store": "NoCredentialsError: none"}
    findings = compared(HERE, other, {"raised": "No module named x"}, s3_endpoint="https://store:9000")
    assert [topic for topic, finding in findings.items() if finding.ok] == []
    assert findings["nodes"].text == "2 of 3 answered a task; not 10.0.0.3: No module named x"
    assert findings["nodes"].blocking
    assert findings["torch"].text == "1 of 2 have 2.13.0, as here; not 10.0.0.2: 2.11.0"
    assert findings["home"].text == "1 of 2 see the folder /home/me; not 10.0.0.2"
    assert findings["object store"].text == "2 of 3 can use it; not 10.0.0.2: NoCredentialsError: none"


def test_the_store_has_to_work_from_this_machine_too_and_the_labs_own_works_only_here():
    there = {"s3_endpoint": "https://store:9000"}
    assert all(finding.ok for finding in compared(HERE, HERE, **there).values())
    findings = compared(HERE, here=HERE | {"store": "EndpointConnectionError"}, **there)["object store"]
    assert not findings.ok and "this machine: EndpointConnectionError" in findings.text
    assert compared(HERE)["object store"].ok and not compared(HERE, HERE)["object store"].ok
    assert not compared(HERE | {"home": False})["object store"].ok  # the one node is another machine


def test_nodes_that_do_not_answer_have_nothing_that_is_fine():
    assert list(compared({"raised": "GetTimeoutError"})) == ["nodes"]


def test_a_check_in_a_notebook_leaves_its_cluster_alone(monkeypatch):
    left = []
    mine = SimpleNamespace(address="10.0.0.7:6379", stop=lambda: left.append("mine"))
    monkeypatch.setattr("labkit.check._look", lambda there: [])
    monkeypatch.setattr("labkit.cluster.connect", lambda *_, **__: mine)
    monkeypatch.setattr("labkit.cluster.current", lambda: mine)
    assert check(mine.address).ok and not left
    monkeypatch.setattr("labkit.cluster.current", lambda: None)
    assert check(mine.address).ok and left
