"""How a process ended: from Ray's message, and from the fork server."""

import os
import subprocess
import sys
import threading

import pytest

from labkit import cluster
from labkit.cluster import ends

CLOSED = (
    "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) "
    "the process was killed by the OOM killer due to high memory usage, (2) ray stop --force was called, …"
)


def died(detail, pid=12):
    """What Ray 2.60 says of an actor."""
    return (
        "The actor died unexpectedly before finishing this task.\n\tclass_name: X\n"
        f"\tpid: {pid}\n\tip: 10.0.0.7\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit "
        f"detail: {detail}"
    )


class Lab:
    log_dir = None

    def __init__(self, codes):
        self.exit_codes = lambda: codes


@pytest.fixture
def codes(monkeypatch):
    """By pid, what the fork server knows."""
    codes = {}
    monkeypatch.setattr(cluster, "peek", lambda: Lab(codes))
    monkeypatch.setattr(ends, "_WAIT", 0.0)
    return codes


STATUSES = [
    (3, "it exited with status 3"),
    (0, "it exited with status 0"),
    (-11, "signal 11 (SIGSEGV) ended it"),
    (-6, "signal 6 (SIGABRT) ended it"),
    (-9, "signal 9 (SIGKILL) ended it, as `kill -9` does, or the system when its memory runs out"),
    (-35, "signal 35 (no name) ended it"),
]


# What Ray 2.60 says of an actor whose death isn't known yet where it was called: `kill -9` a second ago.
LATE = (
    "The actor a435f8776d11fcc3eb39d9a1 is unavailable: The actor is temporarily unavailable: RpcError: "
    "RPC error: Socket closed rpc_code: 14. The task may or may not have been executed on the actor."
)


@pytest.mark.parametrize("code, words", STATUSES)
def test_the_fork_server_knows_a_status(codes, code, words):
    codes[12] = code
    assert ends.how_it_ended(died(CLOSED)) == words
    assert ends.how_it_ended("The worker died unexpectedly while executing this task.", 12) == words
    assert ends.how_it_ended(LATE, 12) == words


def test_a_fork_server_that_imports_something_is_waited_for(codes):
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # from here on it's a zombie
    threading.Timer(0.3, codes.update, [{child.pid: -9}]).start()
    assert ends.exit_code(child.pid) == -9
    child.wait()
    codes.clear()
    assert ends.exit_code(child.pid) is None


MESSAGES = [
    (
        died("Worker exits unexpectedly. Worker exits with an exit code there is no data set called films."),
        "it exited: there is no data set called films",
    ),
    (died("Worker exits unexpectedly. Worker exits with an exit code 4."), "it exited with status 4"),
    (
        died("Worker exits unexpectedly. Worker exits with an exit code 1. The process receives a SIGTERM."),
        "it exited with status 1 (The process receives a SIGTERM)",
    ),
    (LATE, "it may have crashed or been killed, and Ray doesn't know which"),
    (died(CLOSED), "it may have crashed or been killed, and Ray doesn't know which"),
    (
        "2 worker(s) were killed due to the node running low on memory. Memory on the node …",
        "Ray killed it, because its node was running low on memory",
    ),
    ("The actor died unexpectedly because its node has died.", "its node was lost"),
    ("The actor is dead because it was killed by `ray.kill`.", "Ray says: it was killed by `ray.kill`."),
    (died("Worker exits by an user request. ray.actor.exit_actor() is called."), "Ray says: Worker exits by"),
]


@pytest.mark.parametrize("text, words", MESSAGES)
def test_what_only_ray_knows(codes, text, words):
    assert ends.is_an_end(text)
    assert ends.how_it_ended(text).startswith(words)
    assert ("memory" in words) == ("running low on memory" in text)  # it is never guessed


def test_rays_word_on_an_exit_says_more_than_the_status(codes):
    codes[12] = 1
    text = died("Worker exits unexpectedly. Worker exits with an exit code no such data set.")
    assert ends.how_it_ended(text) == "it exited: no such data set"


def test_a_traceback_is_no_end():
    text = 'ray::f()\n  File "train.py", line 3, in f\n    ray.get(actor)\nActorDiedError: The actor died'
    assert not ends.is_an_end(text)
    assert not ends.is_an_end("ValueError: the model is wrong")


def test_a_log_is_named_if_there_is_something_in_it(tmp_path, monkeypatch):
    lab = Lab({})
    lab.log_dir = tmp_path
    monkeypatch.setattr(cluster, "peek", lambda: lab)
    (tmp_path / "worker-ab-01000000-12.err").write_text(":job_id:01000000\n:actor_name:X\n")
    assert ends.log_of(12) == ends.log_of(13) == ends.log_of(None) == ""
    with (tmp_path / "worker-ab-01000000-12.err").open("a") as file:
        file.write("Fatal Python error: Segmentation fault\n")
    assert ends.log_of(12).endswith("worker-ab-01000000-12.err")
