"""What a worker does for the panel: who it is, what it prints, and how little it needs for that."""

import contextlib
import inspect
import io
import json
import multiprocessing
import pickle
import re
import subprocess
import sys
import warnings
from collections import UserDict

import numpy as np
import pytest

from labkit.settings import NODE_NAME
from labkit.worker import Tracker
from labkit.worker.events import Print, Report, Step, Worker, encode, numbers
from labkit.worker.follower import memory
from labkit.worker.remote import RemoteTracker, TrackedFunction
from labkit.worker.rows import of_columns
from labs import until


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    """No rank and no node from whatever started the tests."""
    for name in ("RANK", "TF_CONFIG", NODE_NAME):
        monkeypatch.delenv(name, raising=False)


# -- what every event says, and what is counted ----------------------------------------------------------


TF = '{"cluster": {}, "task": {"type": "worker", "index": 1}}'


@pytest.mark.parametrize(
    ("variables", "rank"),
    [({}, 0), ({"RANK": "3", "TF_CONFIG": TF}, 3), ({"TF_CONFIG": TF}, 1), ({"TF_CONFIG": "not json"}, 0)],
)
def test_every_event_says_whose_it_is(monkeypatch, variables, rank):
    for name, value in {**variables, NODE_NAME: "node-2"}.items():
        monkeypatch.setenv(name, value)
    events = []
    Tracker("run-1", events.append).emit(Report({"loss": 0.25}))
    (event,) = (json.loads(encode(event)) for event in events)
    assert (event["run"], event["rank"], event["node"]) == ("run-1", rank, "node-2") and event["pid"] > 0


@pytest.mark.gpu
def test_the_memory_of_a_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU that PyTorch can use")
    kept = torch.ones(10_000_000, device="cuda")
    assert memory()["gpu_memory"] >= 4 * kept.numel()


def array(*shape):
    return np.zeros(shape)


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (({"image": array(32, 28), "mask": array(32)}, array(32)), 32),
        (UserDict(ids=array(32, 7), labels=array(32)), 32),  # as transformers' BatchEncoding
        ({"name": ["a"] * 32, "inputs": {"ids": array(32, 3)}}, 32),
        (array(), None),
        ({}, None),
    ],
)
def test_rows_of_columns(batch, rows):
    assert of_columns(batch) == rows


def test_what_is_no_number_is_no_metric():
    class Vector:
        def __float__(self):
            raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")

    odd = {"vector": Vector(), "array": array(3), "name": "digits", "none": None, "huge": 10**400}
    good = {"loss": np.float32(0.5), "zero-d": np.array(1.5), "hit": True, "nan": float("nan"), 7: 1}
    metrics = numbers(odd | good)
    assert set(metrics) == {"loss", "zero-d", "hit", "nan", "7"}
    assert all(type(value) is float for value in metrics.values())


# -- in another process ---------------------------------------------------------------------------------


@pytest.fixture
def stdout(monkeypatch):
    """install(): a stdout of this test; pytest has one of its own per phase."""

    class Stream(io.StringIO):
        def isatty(self):
            return True

        def install(self):
            monkeypatch.setattr(sys, "stdout", self)

    return Stream()


@contextlib.contextmanager
def worker(listener, run="run-1"):
    """The tracker of a worker that is in its training function."""
    tracker = RemoteTracker(run, listener.address)
    with tracker.working():
        yield tracker


def test_a_remote_tracker_greets_when_its_function_begins(listener, heard, stdout):
    def loop(config, *, extra=1):
        print("in the loop")
        return config["x"] + extra

    stdout.install()
    tracker = pickle.loads(pickle.dumps(RemoteTracker("run-1", listener.address)))
    assert sys.stdout is stdout
    tracked = TrackedFunction(loop, tracker)
    assert inspect.signature(tracked) == inspect.signature(loop) and tracked.__name__ == "loop"
    assert tracked({"x": 1}, extra=2) == 3
    assert sys.stdout is stdout  # a worker process that is used again prints as it did before
    listener.close(90)
    assert [(type(event), event.run) for event in heard] == [(Worker, "run-1"), (Print, "run-1")]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_a_worker_forks_may_print_and_is_no_worker(listener, heard, stdout):
    """As the processes of a data loader do."""
    stdout.install()
    with worker(listener):
        until(lambda: heard)
        child = multiprocessing.get_context("fork").Process(target=print, args=("from a loader",))
        child.start()
        child.join(90)
        until(lambda: heard.of_kind(Print))
    assert [type(event) for event in heard] == [Worker, Print]


def test_prints_go_on_and_are_sent_once_per_line(listener, heard, stdout):
    class Chatty:
        """A metric that prints when it is read."""

        def __float__(self):
            print("reading")
            return 1.0

    stdout.install()
    with worker(listener) as tracker:
        assert (sys.stdout.isatty(), sys.stdout.encoding) == (True, stdout.encoding)
        print("two", "words", end="", flush=True)
        print(" and more\n\nthree")
        print("é 😀 \udc80 \x1b[31mred\x1b[0m \x00")
        tracker.emit(Report(numbers({"loss": Chatty()})))
        for k in range(2000):  # a progress bar; what was written over is not sent, and long lines are cut
            print(f"\rstep {k}", end="")
        print("." * 100_000)
    assert stdout.getvalue().startswith("two words and more\n\nthree\né 😀")
    assert len(stdout.getvalue()) > 100_000
    until(lambda: len(heard.of_kind(Print)) == 5)
    first, second, third, reading, bar = (event.text for event in heard.of_kind(Print))
    assert (first, second, reading) == ("two words and more", "three", "reading") and third.startswith("é 😀")
    assert bar.startswith("step 1999....") and len(bar) == 2000
    assert heard.of_kind(Report)[0].metrics == {"loss": 1.0}


def test_a_last_line_without_an_end_is_sent(listener, heard, stdout):
    stdout.install()
    with worker(listener):
        print("first")
        print("\rstep 1", end="")
        print("\rstep 2 of 2", end="")
    listener.close(90)
    assert [event.text for event in heard.of_kind(Print)] == ["first", "step 2 of 2"]


def test_a_warning_for_who_wrote_the_function_is_sent_by_rank_0(listener, heard, monkeypatch, recwarn):
    before = warnings.showwarning
    warnings.simplefilter("always")
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        with worker(listener):
            warnings.warn(f"shapes of rank {rank}\n  do not fit", UserWarning, stacklevel=1)
            warnings.warn("an old name", DeprecationWarning, stacklevel=1)
    assert warnings.showwarning is before
    until(lambda: len(heard.of_kind(Worker)) == 2)
    listener.close(90)
    [text] = [event.text for event in heard.of_kind(Print)]
    assert re.fullmatch(r"warning: shapes of rank 0 do not fit \(test_tracking\.py, line \d+\)", text)
    assert len(recwarn) == 4  # all are shown as ever


BARE = """
import pickle, sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "labkit", "zmq"}:
            raise ImportError(f"not here: {name}")

sys.meta_path.insert(0, Nothing())
tracker = pickle.loads(sys.stdin.buffer.read())
from labkit.worker import mailbox
from labkit.worker.hooks import current
from labkit.worker.remote import TrackedFunction

def loop():
    print("trains")
    current().step(8, loss=0.5)

TrackedFunction(loop, tracker)()
"""


def test_a_worker_needs_the_standard_library_and_what_sends_its_events(listener, heard):
    sent = pickle.dumps(RemoteTracker("run-1", listener.address))
    subprocess.run([sys.executable, "-c", BARE], input=sent, timeout=200, check=True)
    listener.close(90)
    assert [type(event) for event in heard] == [Worker, Print, Step, Step]
    assert (heard[-1].rows, heard[-1].metrics, heard[-1].done) == (8, {"loss": 0.5}, True)
