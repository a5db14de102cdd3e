"""Can this machine train on that cluster? `python -m labkit check ADDRESS` asks, and changes nothing there.

Each line is ``[OK]``, or ``[FIX]`` with what to change, as in the doctor's table. One small task on each node
says what it has, connects to this process, as a worker does that has a panel, and to the object store.
"""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from labkit import cluster, machine
from labkit.cluster import connection
from labkit.cluster.capacity import Node
from labkit.display.formatting import plural
from labkit.errors import LabError
from labkit.panel.tracking.channel import Address, Listener, Sender
from labkit.settings import Settings
from labkit.system.diagnosis import Diagnosis, Finding

_WITHIN = 20.0  # seconds for all nodes; the first task of a node starts a Python there
_MOST_NODES = 32  # that are asked


def check(address: str, *, token_file: Path | str | None = None) -> Diagnosis:
    """Connect to the cluster at `address`, ask each of its nodes, and disconnect again.

    Args:
        address, token_file: as for `cluster.connect`.
    """
    verdicts = ("What the lab starts can run there", "Something is missing for a run there")
    began = time.monotonic()
    try:
        there = cluster.connect(address, token_file=token_file)
    except LabError as error:
        return Diagnosis((Finding("connection", False, error.fact, error.fix, blocking=True),), *verdicts)
    try:
        took = time.monotonic() - began
        text = f"{there.address} answered in {took:.1f} s, with this machine's Ray and Python"
        return Diagnosis((Finding("connection", True, text), *_look(there)), *verdicts)
    finally:
        there.stop()  # which only disconnects: the lab did not start it


def _look(there: cluster.Cluster) -> Iterator[Finding]:
    import ray

    settings, nodes = Settings.from_env(), there.nodes
    free, total = ray.available_resources(), ray.cluster_resources()
    yield _room(nodes, free.get("CPU", 0), total.get("CPU", 0))
    nodes = nodes[:_MOST_NODES]
    here = connection.own_address()
    answers, heard = _answers(nodes, here, settings.s3_endpoint)
    silent = [node.address for node in nodes if node.id not in answers]
    text = _how_many(answers, nodes, "answered a task", silent)
    fix = "look at that node: `ray status` on the head, and its logs in /tmp/ray/session_latest/logs"
    yield Finding("nodes", not silent, text, fix, blocking=True)
    deaf = [node.address for node in nodes if node.id in answers and node.id not in heard]
    text = _how_many(heard, answers, "can send to a panel here", deaf)
    fix = f"let the nodes connect to {here}, or run the notebook in their network; runs work, but unseen"
    yield Finding("panel", not deaf, text, fix)
    yield _versions(nodes, answers)
    yield _store(settings.s3_endpoint, nodes, answers)
    yield _gpus(free.get("GPU", 0), total.get("GPU", 0), settings.use_gpu)


def _room(nodes: list[Node], free: float, cpus: float) -> Finding:
    text = f"{plural(len(nodes), 'node')}; {free:g} of {cpus:g} CPUs are free"
    fix = "wait for the jobs that run there (`ray list jobs`), or let its autoscaler add nodes"
    return Finding("room", free >= 1, text, fix)


def _gpus(free: float, gpus: float, used: bool) -> Finding:
    if not gpus:
        return Finding("GPUs", True, "none")
    text = f"{free:g} of {gpus:g} are free" + ("" if used else "; the lessons don't use them")
    return Finding("GPUs", used, text, "export LABKIT_GPU=1, and LABKIT_WORKERS to the number of workers")


def _answers(nodes: list[Node], here: str, store: str | None) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """What each node says of itself, by the node's id; and the ids of those that a panel here would hear."""
    heard: set[str] = set()
    listener = Listener(lambda event: heard.add(event["node"]), host=here)
    try:
        answers = _ask(nodes, listener.address, store)
        listener.drain(2.0)
    finally:
        listener.close()
    return answers, heard


def _ask(nodes: list[Node], panel: Address, store: str | None) -> dict[str, dict[str, Any]]:
    """What each node that answered in time says of itself, by the node's id."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    task = ray.remote(num_cpus=0, max_retries=0)(_probe)
    asked = {
        task.options(scheduling_strategy=On(node.id, soft=False)).remote(node.id, panel, store): node.id
        for node in nodes
    }
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_WITHIN)
    answers = {}
    for reference in done:
        try:
            answers[asked[reference]] = ray.get(reference)
        except ray.exceptions.RayError:  # the node died, or has no room for a Python
            continue
    return answers


def _probe(node: str, panel: Address, store: str | None) -> dict[str, Any]:
    """On a node: say what it has, and try both ways out of it."""
    sender = Sender(panel)
    sender.send({"kind": "worker", "node": node})
    sender.flush(5.0)
    return {"torch": _torch(), "store": store is None or _reaches(store)}


def _torch() -> str:
    return machine.installed_versions().get("torch", "no torch").partition("+")[0]


def _reaches(endpoint: str) -> bool:
    url = urlsplit(endpoint)
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        socket.create_connection((url.hostname, port), 5).close()
    except OSError:
        return False
    return True


def _versions(nodes: list[Node], answers: dict[str, dict[str, Any]]) -> Finding:
    here = _torch()
    others = {
        f"{node.address}: {answers[node.id]['torch']}"
        for node in nodes
        if node.id in answers and answers[node.id]["torch"] != here
    }
    text = f"{here}, as here" if not others else f"here {here}; {', '.join(sorted(others))}"
    fix = "install the same version on all nodes: pip install -c constraints.txt torch"
    return Finding("torch", not others, text, fix)


def _store(endpoint: str | None, nodes: list[Node], answers: dict[str, dict[str, Any]]) -> Finding:
    if endpoint is None:
        text = "the lab's own store listens on this machine alone, and other nodes can't reach it"
        fix = "export LABKIT_S3_ENDPOINT=https://host:9000 (and its keys), or pass a bucket as storage_path"
        return Finding("object store", len({node.address for node in nodes}) <= 1, text, fix)
    cut_off = [node.address for node in nodes if node.id in answers and not answers[node.id]["store"]]
    fix = "check the endpoint's name and port from those nodes, and their proxy and firewall"
    reach = {id_ for id_, answer in answers.items() if answer["store"]}
    return Finding("object store", not cut_off, _how_many(reach, answers, "reach it", cut_off), fix)


def _how_many(these: Any, of_all: Any, what: str, others: list[str]) -> str:
    text = f"{len(these)} of {len(of_all)} {what}"
    return f"{text}; not {', '.join(others)}" if others else text
