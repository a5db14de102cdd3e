"""What a training loop calls: counts, waiting, metrics and prints, at the price of a microsecond a step."""

import contextlib
import inspect
import io
import json
import multiprocessing
import pickle
import re
import sys
import time
import warnings
from collections import UserDict

import numpy as np
import pytest

from labkit.panel.tracking.channel import Listener
from labkit.panel.tracking.remote import RemoteTracker, TrackedFunction
from labkit.panel.tracking.tracker import EVENTS_PER_SECOND, Tracker
from labkit.settings import NODE_NAME
from labs import until


@pytest.fixture
def events():
    return []


@pytest.fixture
def tracker(events):
    return Tracker("run-1", events.append)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    """No rank and no node from whatever started the tests."""
    for name in ("RANK", "TF_CONFIG", NODE_NAME):
        monkeypatch.delenv(name, raising=False)


def of_kind(events, kind):
    return [event for event in events if event["kind"] == kind]


def last_step(events):
    return of_kind(events, "step")[-1]


# -- what every event says ------------------------------------------------------------------------------


def test_every_event_says_whose_it_is(tracker, events, monkeypatch):
    list(tracker.steps([1, 2]))
    tracker.report({"loss": 0.25}, epoch=4)
    monkeypatch.setenv(NODE_NAME, "node-2")
    tracker.phase("evaluating")
    for event in events:
        assert event["run"] == "run-1" and event["rank"] == 0 and event["pid"] > 0 and event["node"]
    assert [event["kind"] for event in events] == ["phase", "step", "step", "report", "phase"]
    assert (events[3]["metrics"], events[3]["epoch"]) == ({"loss": 0.25}, 4)
    assert events[0]["node"] != "node-2" == events[-1]["node"]
    json.dumps(events)


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({}, 0),
        ({"RANK": "3", "TF_CONFIG": '{"task": {"index": 1}}'}, 3),
        ({"TF_CONFIG": '{"cluster": {}, "task": {"type": "worker", "index": 1}}'}, 1),
        ({"TF_CONFIG": "not json"}, 0),
    ],
)
def test_rank_from_the_environment(tracker, events, monkeypatch, variables, rank):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    tracker.emit("worker")
    assert events[0]["rank"] == rank


# -- steps ----------------------------------------------------------------------------------------------


def test_batches_pass_through_and_the_last_event_of_an_epoch_is_complete(tracker, events):
    batches = [np.zeros(8)] * 5
    for batch in tracker.steps(batches, epoch=2, epochs=4):
        assert batch is batches[0]
        tracker.log(loss=0.25)
    event = last_step(events)
    assert (event["epoch"], event["epochs"], event["step"], event["total"]) == (2, 4, 5, 5)
    assert (event["rows"], event["metrics"], event["done"]) == (40, {"loss": 0.25}, True)
    assert 0 <= event["first_wait"] <= event["waiting"] <= event["seconds"]
    assert of_kind(events, "step")[0]["step"] == 0 and not of_kind(events, "step")[0]["done"]
    assert list(tracker.steps([])) == []
    assert list(tracker.steps([None, 0, ()])) == [None, 0, ()]


def test_a_step_tells_the_memory_of_its_process(tracker, events):
    list(tracker.steps([1]))
    before = last_step(events)["memory"]
    kept = np.ones(10_000_000)
    list(tracker.steps([1]))
    assert last_step(events)["memory"] - before > 0.8 * kept.nbytes
    assert "gpu_memory" not in last_step(events)


@pytest.mark.gpu
def test_a_step_tells_the_memory_of_its_gpu(tracker, events):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU that PyTorch can use")
    kept = torch.ones(10_000_000, device="cuda")
    list(tracker.steps([1]))
    assert last_step(events)["gpu_memory"] >= 4 * kept.numel()


class Loader:
    """A DataLoader over a stream has __len__, and raises in it."""

    def __len__(self):
        raise TypeError("object of type 'Stream' has no len()")

    def __iter__(self):
        return iter([1, 2])


def test_a_stream_has_no_total(tracker, events):
    for stream in (iter([1, 2]), Loader()):
        assert list(tracker.steps(stream)) == [1, 2]
        assert last_step(events)["total"] is None
    list(tracker.steps(iter([1, 2, 3]), total=3))
    assert last_step(events)["total"] == 3


def array(*shape):
    return np.zeros(shape)


class Tensor:
    """As torch has it: a length unless it has no dimensions, and a shape."""

    def __init__(self, *shape):
        self.shape = shape

    def __len__(self):
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (array(64, 28, 28), 64),
        ((array(64, 784), array(64)), 64),
        ([Tensor(64, 784), Tensor(64)], 64),
        ({"image": array(32, 28), "label": array(32)}, 32),
        (({"image": array(32, 28), "mask": array(32)}, array(32)), 32),
        (([1, 2, 3], [0, 1, 0]), 3),
        ([1, 2, 3, 4], 4),
        ([(array(784), 0)] * 6, 6),
        (None, 1),
        (Tensor(), 1),
        ({}, 0),
        (UserDict(ids=array(32, 7), labels=array(32)), 32),  # as transformers' BatchEncoding
        ((4, [Tensor(32, 784), Tensor(32)]), 32),  # of enumerate(loader)
        (([Tensor(32, 7), Tensor(32)], [Tensor(32, 7), Tensor(32)]), 32),  # of zip(loader, loader)
        ((None, array(32, 3)), 32),
        ({"epoch": 3, "x": array(32, 3)}, 32),
        ({"name": "digits", "x": array(32, 3)}, 32),
        ({"name": ["a"] * 32, "x": array(32, 3)}, 32),
        ({"inputs": {"ids": array(32, 3)}, "y": array(32)}, 32),
    ],
)
def test_rows_of_a_batch(tracker, events, batch, rows):
    list(tracker.steps([batch]))
    assert last_step(events)["rows"] == rows


def test_the_time_of_iter_is_waiting(tracker, events):
    """A DataLoader starts its processes there."""

    class Loader:
        def __iter__(self):
            time.sleep(0.3)
            return iter(range(5))

    for _ in tracker.steps(Loader()):
        time.sleep(0.01)
    event = last_step(events)
    assert event["waiting"] >= 0.3 and event["seconds"] >= 0.35


def slow(n, seconds):
    for k in range(n):
        time.sleep(seconds)
        yield k


def test_waiting_for_data_is_apart_from_work_and_from_what_is_between_epochs(tracker, events):
    class Slow:
        def __float__(self):
            time.sleep(0.1)  # a device that is behind
            return 1.0

    for _ in tracker.steps(slow(6, 0.05)):
        pass
    lazy = last_step(events)
    time.sleep(0.05)  # evaluate, save, report
    for _ in tracker.steps(range(6), epoch=1):
        time.sleep(0.05)
    busy = last_step(events)
    assert lazy["waiting"] / lazy["seconds"] > 0.8
    assert busy["waiting"] / busy["seconds"] < 0.2
    assert lazy["first_wait"] >= 0.05 and lazy["waiting"] >= 0.3 and busy["seconds"] >= 0.3
    assert lazy["between"] == 0 and 0.05 <= busy["between"] < 20
    for _ in tracker.steps(range(3)):  # reading a loss is work
        tracker.log(loss=Slow())
        time.sleep(1 / EVENTS_PER_SECOND)
    assert last_step(events)["seconds"] >= 0.8 and last_step(events)["waiting"] < 0.1


def test_fast_steps_are_few_events_and_metrics_become_numbers_only_then(tracker, events):
    class Scalar:
        """A loss on a device: to read it costs a wait, counted here."""

        read = 0

        def __float__(self):
            Scalar.read += 1
            return 0.5

    started = time.monotonic()
    for _ in tracker.steps(range(10_000)):
        tracker.log(loss=Scalar(), accuracy=Scalar())
    most = (time.monotonic() - started) * EVENTS_PER_SECOND + 2  # and the first and the last
    assert len(of_kind(events, "step")) <= most < 10_000
    assert 2 <= Scalar.read <= 2 * len(of_kind(events, "step"))
    assert last_step(events)["step"] == 10_000
    assert last_step(events)["metrics"] == {"loss": 0.5, "accuracy": 0.5}


def test_what_is_no_number_is_no_metric_and_a_live_loss_is_detached(tracker, events):
    class Vector:
        def __float__(self):
            raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")

    class Loss:
        """One that is not detached keeps its whole graph in memory until the next step."""

        def detach(self):
            return 0.125

    odd = {"vector": Vector(), "array": array(3), "name": "digits", "none": None, "huge": 10**400}
    good = {"loss": np.float32(0.5), "zero-d": np.array(1.5), "hit": True, "nan": float("nan"), 7: 1}
    tracker.report(odd | good)
    numbers = events[-1]["metrics"]
    assert set(numbers) == {"loss", "zero-d", "hit", "nan", "7"}
    assert all(type(value) is float for value in numbers.values())
    for _ in tracker.steps([1]):
        tracker.log(**odd, loss=Loss())
    assert last_step(events)["metrics"] == {"loss": 0.125}


# -- loops that do not run to their end -----------------------------------------------------------------


def test_a_loop_that_breaks_has_told_how_far_it_came(tracker, events):
    for k in tracker.steps(range(1000)):
        if k == 300:
            break
    event = last_step(events)
    assert (event["step"], event["rows"], event["done"]) == (300, 300, False)


# -- in another process ---------------------------------------------------------------------------------


@pytest.fixture
def heard():
    return []


@pytest.fixture
def listener(heard):
    with contextlib.closing(Listener(heard.append)) as listener:
        yield listener


@pytest.fixture
def stdout(monkeypatch):
    """A stdout of this test, so that the tee is gone afterwards; pytest has one of its own per phase."""

    class Stream(io.StringIO):
        flushed = 0

        def flush(self):
            self.flushed += 1

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


def texts(heard, number):
    until(lambda: len(of_kind(heard, "print")) >= number)
    return [event["text"] for event in of_kind(heard, "print")]


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
    listener.drain(30)
    assert [(event["kind"], event["run"]) for event in heard] == [("worker", "run-1"), ("print", "run-1")]


def test_or_with_its_first_event(listener, heard, stdout):
    stdout.install()
    tracker = RemoteTracker("run-1", listener.address)
    for _ in tracker.steps([array(4)] * 3):
        tracker.log(loss=1.5)
    tracker.report({"loss": 2.5})
    until(lambda: of_kind(heard, "report"))
    assert [event["kind"] for event in heard] == ["worker", "phase", "step", "step", "report"]
    assert last_step(heard)["rows"] == 12


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_a_worker_forks_may_print_and_is_no_worker(listener, heard, stdout):
    """As the processes of a data loader do."""
    stdout.install()
    with worker(listener):
        until(lambda: heard)
        child = multiprocessing.get_context("fork").Process(target=print, args=("from a loader",))
        child.start()
        child.join(30)
        until(lambda: of_kind(heard, "print"))
    assert [event["kind"] for event in heard] == ["worker", "print"]


def test_prints_go_on_and_are_sent_once_per_line(listener, heard, stdout):
    class Chatty:
        """A metric that prints when it is read."""

        def __float__(self):
            print("reading")
            return 1.0

    stdout.install()
    with worker(listener, "run-2"), worker(listener) as tracker:  # two panels in the same process
        print("one")
        print("two", "words", end="")
        print(" and more\n\nthree")
        print("   ")
        print("é 😀 \udc80 \x1b[31mred\x1b[0m \x00")
        tracker.report({"loss": Chatty()})
    assert stdout.getvalue().startswith("one\ntwo words and more\n\nthree\n   \né 😀")
    assert texts(heard, 5)[:3] == ["one", "two words and more", "three"]
    assert texts(heard, 5)[3].startswith("é 😀") and texts(heard, 5)[4] == "reading"
    assert {event["run"] for event in of_kind(heard, "print")} == {"run-1"}
    until(lambda: of_kind(heard, "report"))
    assert of_kind(heard, "report")[0]["metrics"] == {"loss": 1.0}


def test_long_lines_are_cut_and_progress_bars_are_not_kept(listener, heard, stdout):
    stdout.install()
    with worker(listener):
        print("x" * 10_000)
        for k in range(2000):
            print(f"\rstep {k}", end="")
        print("." * 100_000)
        print("\r10%\r100%\r")
    assert len(stdout.getvalue()) > 100_000
    first, second, third = texts(heard, 3)
    assert first == "x" * 2000
    assert second.startswith("step 1999....") and len(second) == 2000
    assert third == "100%"


def test_the_tee_is_as_good_as_the_stream(listener, stdout):
    stdout.install()
    with worker(listener):
        out = sys.stdout
        assert out is not stdout
        assert (out.isatty(), out.encoding) == (True, stdout.encoding)
        assert out.write("abc") == 3
        print("now", flush=True)
    assert stdout.flushed == 1 and stdout.getvalue() == "abcnow\n"


def test_a_warning_for_who_wrote_the_function_is_sent_by_rank_0(listener, heard, monkeypatch, recwarn):
    before = warnings.showwarning
    warnings.simplefilter("always")
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        with worker(listener):
            warnings.warn(f"shapes of rank {rank}\n  do not fit", UserWarning, stacklevel=1)
            warnings.warn("an old name", DeprecationWarning, stacklevel=1)
    assert warnings.showwarning is before
    until(lambda: len(of_kind(heard, "worker")) == 2)
    listener.drain(30)
    [text] = texts(heard, 1)
    assert re.fullmatch(r"warning: shapes of rank 0 do not fit \(test_tracking\.py, line \d+\)", text)
    assert len(recwarn) == 4  # all are shown as ever
