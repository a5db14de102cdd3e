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
from labkit.diagnosis import Diagnosis, Finding
from labkit.display.formatting import plural
from labkit.errors import LabError
from labkit.files import last_line
from labkit.settings import Settings

_WITHIN = 30.0  # seconds for all nodes; the first task of a node starts a Python there
_MOST_NODES = 32  # that are asked

_VERDICTS = (
    "What the lab starts can run there",
    "Something is missing for a run there",
)

Answers = list[tuple[str, dict[str, Any]]]  # a node's address, and what it says of itself or its task raised


def check(address: str, *, token_file: Path | str | None = None) -> Diagnosis:
    """Connect to the cluster at `address`, ask each of its nodes, and disconnect again.

    Args:
        address, token_file: as for `cluster.connect`.
    """
    began = time.monotonic()
    before = cluster.current()
    try:
        there = cluster.connect(address, token_file=token_file)
    except LabError as error:
        refused = Finding("connection", False, error.fact, error.fix, blocking=True)
        return Diagnosis((refused,), *_VERDICTS)
    try:
        took = time.monotonic() - began
        text = f"{there.address} answered in {took:.1f} s, with this machine's Ray and Python"
        connected = Finding("connection", True, text)
        return Diagnosis((connected, *_look(there)), *_VERDICTS)
    finally:
        if there is not before:  # a notebook that was connected stays so
            there.stop()  # which only disconnects: the lab did not start it


def _look(there: cluster.Cluster) -> Iterator[Finding]:
    import ray

    settings = Settings.from_env()
    nodes = there.nodes
    free = ray.available_resources()
    total = ray.cluster_resources()
    free_cpus = free.get("CPU", 0)
    yield Finding(
        "room",
        free_cpus >= 1,
        f"{plural(len(nodes), 'node')}; {free_cpus:g} of {total.get('CPU', 0):g} CPUs are free",
        "wait for the jobs that run there (`ray list jobs`), or let its autoscaler add nodes",
    )
    with tempfile.NamedTemporaryFile(dir=settings.make_home()) as file:
        store = settings.s3_endpoint, settings.s3_bucket
        answers = _ask(nodes[:_MOST_NODES], file.name, *store)
    yield from compare(answers, settings, _probe()("", *store))
    gpus = total.get("GPU", 0)
    if not gpus:
        return
    text = f"{free.get('GPU', 0):g} of {gpus:g} are free"
    if not settings.use_gpu:
        text += "; the lessons don't use them"
    yield Finding(
        "GPUs",
        settings.use_gpu,
        text,
        "export LABKIT_GPU=1, and LABKIT_WORKERS to the number of workers",
    )


def _ask(nodes: list[Node], *arguments: Any) -> Answers:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    task = ray.remote(num_cpus=0, max_retries=0)(_probe())
    refs = []
    for node in nodes:
        on_node = task.options(scheduling_strategy=On(node.id, soft=False))
        refs.append(on_node.remote(*arguments))
    answers: Answers = []
    end = time.monotonic() + _WITHIN
    for node, ref in zip(nodes, refs, strict=True):
        try:
            answer = ray.get(ref, timeout=max(end - time.monotonic(), 0))
        except ray.exceptions.RayError as error:  # too late; the node died, or has no room for a Python
            message = last_line(str(getattr(error, "cause", error))) or type(error).__name__
            answer = {"raised": message[:200]}
        answers.append((node.address, answer))
    return answers


def _probe() -> Callable[[str, str | None, str], dict[str, Any]]:
    """Make the function that runs on a node: it gets a file and a store, and returns what it has and reaches.

    A function in a function is pickled by value: this module imports what nodes need not have.
    """

    def probe(file: str, store: str | None, bucket: str) -> dict[str, Any]:
        import os
        from importlib import metadata

        import labkit  # noqa: F401 - which the connection brings along

        try:
            torch = metadata.version("torch").partition("+")[0]
        except metadata.PackageNotFoundError:
            torch = "no torch"
        return {
            "torch": torch,
            "home": os.path.exists(file),
            "store": problem(store, bucket) if store else "",
        }

    def problem(endpoint: str, bucket: str) -> str:
        """Return why a signed request fails; "" if it doesn't."""
        try:
            from labkit.storage.client import ObjectFiles

            files = ObjectFiles(endpoint=endpoint, keys="", hasty=True)
            files.call_s3("list_objects_v2", Bucket=bucket, MaxKeys=1)
        except FileNotFoundError:
            return ""  # the bucket is made when it is needed
        except Exception as error:  # whatever botocore raises, or the package s3fs is missing
            return f"{type(error).__name__}: {error}"[:160]
        return ""

    return probe


def compare(answers: Answers, settings: Settings, here: dict[str, Any]) -> Iterator[Finding]:
    """Compare the nodes' answers with this machine's (`here`)."""
    silent = [(node, answer["raised"]) for node, answer in answers if "raised" in answer]
    yield _on_nodes(
        "nodes",
        "answered a task",
        answers,
        silent,
        "look at that node: `ray status` on the head, and its logs in /tmp/ray/session_latest/logs",
        blocking=True,
    )
    answers = [(node, answer) for node, answer in answers if "raised" not in answer]
    if not answers:
        return
    others = [(node, answer["torch"]) for node, answer in answers if answer["torch"] != here["torch"]]
    yield _on_nodes(
        "torch",
        f"have {here['torch']}, as here",
        answers,
        others,
        "install the same version on all nodes: pip install -c constraints.txt torch",
    )
    # Lesson 05 and checks keep in the home what workers write.
    others = [(node, "") for node, answer in answers if not answer["home"]]
    yield _on_nodes(
        "home",
        f"see the folder {settings.home}",
        answers,
        others,
        "export LABKIT_HOME=/a/folder/on/a/disk/that/all/nodes/share",
    )
    if settings.s3_endpoint is None:
        # The one node is this machine if it sees the file that was written here.
        is_here = len(answers) == 1 and answers[0][1]["home"]
        yield Finding(
            "object store",
            is_here,
            "the lab's own store listens on this machine alone, and other nodes can't reach it",
            "export LABKIT_S3_ENDPOINT=https://host:9000 (with its keys and LABKIT_S3_BUCKET), or pass a "
            "bucket as storage_path",
        )
        return
    answers = [*answers, ("this machine", here)]
    others = [(node, answer["store"]) for node, answer in answers if answer["store"]]
    yield _on_nodes(
        "object store",
        "can use it",
        answers,
        others,
        "on every node: pip install s3fs, LABKIT_S3_ACCESS_KEY and _SECRET_KEY before its `ray start`, and "
        "a network in which that name and port answer",
    )


def _on_nodes(
    topic: str,
    fact: str,
    answers: Answers,
    others: list[tuple[str, str]],
    fix: str,
    *,
    blocking: bool = False,
) -> Finding:
    """Write ``1 of 2 see the folder; not 10.0.0.2``, and why the others don't, where that is known."""
    text = f"{len(answers) - len(others)} of {len(answers)} {fact}"
    if others:
        text += "; not " + ", ".join(f"{node}: {why}" if why else node for node, why in others)
    return Finding(topic, not others, text, fix, blocking)
