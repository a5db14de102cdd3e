"""Can this machine train on that cluster? `python -m labkit check ADDRESS` asks, and changes nothing there.

Each line is ``[OK]``, or ``[FIX]`` with what to change, as in the doctor's table. One small task on each node
says what it has, and connects to the object store. What a worker reports to a panel goes through Ray, as the
answers of these tasks do.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from labkit import cluster
from labkit.cluster.capacity import Node
from labkit.display.formatting import plural
from labkit.errors import LabError
from labkit.settings import Settings
from labkit.system.diagnosis import Diagnosis, Finding

_WITHIN = 20.0  # seconds for all nodes; the first task of a node starts a Python there
_MOST_NODES = 32  # that are asked

Answers = dict[str, dict[str, Any]]  # by a node's id: what it says of itself, or what its task raised


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
    with tempfile.NamedTemporaryFile(dir=settings.make_home()) as file:
        answers = _ask(nodes, file.name, settings.s3_endpoint)
    yield _nodes(nodes, answers)
    nodes = [node for node in nodes if "torch" in answers.get(node.id, {})]
    here = _probe()("", settings.s3_endpoint)
    yield _torch(nodes, answers, here["torch"])
    yield _home(str(settings.home), nodes, answers)
    yield _store(settings.s3_endpoint, nodes, answers, here["store"])
    yield _gpus(free.get("GPU", 0), total.get("GPU", 0), settings.use_gpu)


def _ask(nodes: list[Node], *given: Any) -> Answers:
    """What the nodes say that answer in time."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    task = ray.remote(num_cpus=0, max_retries=0)(_probe())
    asked = {
        task.options(scheduling_strategy=On(node.id, soft=False)).remote(*given): node.id for node in nodes
    }
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_WITHIN)
    answers: Answers = {}
    for reference in done:
        try:
            answers[asked[reference]] = ray.get(reference)
        except ray.exceptions.RayError as error:  # the node died, or has no room for a Python
            said = str(getattr(error, "cause", error)).strip() or type(error).__name__
            answers[asked[reference]] = {"raised": said.splitlines()[-1][:200]}
    return answers


def _probe() -> Callable[[str, str | None], dict[str, Any]]:
    """What runs on a node: (a file, the store) -> what it has and reaches.

    A function in a function is pickled by value: this module imports what nodes need not have.
    """

    def probe(file: str, store: str | None) -> dict[str, Any]:
        import os
        from importlib import metadata

        import labkit  # noqa: F401 - which the connection brings along

        try:
            torch = metadata.version("torch").partition("+")[0]
        except metadata.PackageNotFoundError:
            torch = "no torch"
        return {"torch": torch, "home": os.path.exists(file), "store": problem(store) if store else ""}

    def problem(endpoint: str) -> str:
        """Why a signed request fails, or an empty text."""
        try:
            from labkit.storage.client import ObjectFiles

            files = ObjectFiles(endpoint=endpoint, keys="", hasty=True)
            files.call_s3("list_objects_v2", Bucket="lab", MaxKeys=1)
        except FileNotFoundError:
            return ""  # the bucket is made when it is needed
        except Exception as error:  # whatever botocore raises, or the package s3fs is missing
            return f"{type(error).__name__}: {error}"[:160]
        return ""

    return probe


def _room(nodes: list[Node], free: float, cpus: float) -> Finding:
    text = f"{plural(len(nodes), 'node')}; {free:g} of {cpus:g} CPUs are free"
    fix = "wait for the jobs that run there (`ray list jobs`), or let its autoscaler add nodes"
    return Finding("room", free >= 1, text, fix)


def _nodes(nodes: list[Node], answers: Answers) -> Finding:
    """Whether they run a task, and with labkit, which the connection brings along."""
    silent = [node.address for node in nodes if "torch" not in answers.get(node.id, {})]
    text = _how_many("answered a task", nodes, silent)
    if raised := sorted({answer["raised"] for answer in answers.values() if "raised" in answer}):
        text += f": {'; '.join(raised)}"
    fix = "look at that node: `ray status` on the head, and its logs in /tmp/ray/session_latest/logs"
    return Finding("nodes", not silent, text, fix, blocking=True)


def _gpus(free: float, gpus: float, used: bool) -> Finding:
    if not gpus:
        return Finding("GPUs", True, "none")
    text = f"{free:g} of {gpus:g} are free" + ("" if used else "; the lessons don't use them")
    return Finding("GPUs", used, text, "export LABKIT_GPU=1, and LABKIT_WORKERS to the number of workers")


def _torch(nodes: list[Node], answers: Answers, here: str) -> Finding:
    found = {f"{one.address}: {answers[one.id]['torch']}" for one in nodes}
    others = {text for text in found if not text.endswith(f": {here}")}
    text = f"{here}, as here" if not others else f"here {here}; {', '.join(sorted(others))}"
    fix = "install the same version on all nodes: pip install -c constraints.txt torch"
    return Finding("torch", not others, text, fix)


def _home(home: str, nodes: list[Node], answers: Answers) -> Finding:
    """Lesson 05 and checks keep there what workers write."""
    others = [node.address for node in nodes if not answers[node.id]["home"]]
    fix = "export LABKIT_HOME=/a/folder/on/a/disk/that/all/nodes/share"
    return Finding("home", not others, _how_many(f"see the folder {home}", nodes, others), fix)


def _store(endpoint: str | None, nodes: list[Node], answers: Answers, here: str) -> Finding:
    """Whether the lab's store works from this machine (`here`: why not) and from the nodes."""
    if endpoint is None:
        text = "the lab's own store listens on this machine alone, and other nodes can't reach it"
        fix = "export LABKIT_S3_ENDPOINT=https://host:9000 (and its keys), or pass a bucket as storage_path"
        return Finding("object store", len({node.address for node in nodes}) <= 1, text, fix)
    problems = {node.address: answers[node.id]["store"] for node in nodes if answers[node.id]["store"]}
    cut_off = list(problems)
    if here:
        problems["this machine"] = here
    text = _how_many("can use it", nodes, cut_off)
    text += "".join(f"; {where}: {problem}" for where, problem in list(problems.items())[:2])
    fix = "on every node: pip install s3fs, LABKIT_S3_ACCESS_KEY and _SECRET_KEY before its `ray start`, and "
    return Finding("object store", not problems, text, fix + "a network in which that name and port answer")


def _how_many(what: str, nodes: list[Node], others: list[str]) -> str:
    text = f"{len(nodes) - len(others)} of {len(nodes)} {what}"
    return f"{text}; not {', '.join(others)}" if others else text
