"""Exceptions that arrive in another process: unchanged where that works, and else with name and message."""

import copy
import pickle
import subprocess
import sys
import threading
import traceback

import pytest
from ray import cloudpickle

from labkit.worker.remote import RemoteTracker, TrackedFunction
from labkit.worker.sendable import raise_sendable


class DataMissing(Exception):
    def __init__(self, table, row):
        super().__init__(f"table {table} has no row {row}")
        self.table, self.row = table, row


class HoldsALock(Exception):
    def __init__(self, message):
        super().__init__(message)
        self.lock = threading.Lock()


class Mute(Exception):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def __str__(self):
        raise KeyError("no text")


def received(error, **options):
    """The exception that comes out at the other end, and the traceback that the worker writes."""
    try:
        try:
            raise error
        except BaseException as raised:
            raise_sendable(raised, **options)
    except BaseException as sent:
        text = "".join(traceback.format_exception(sent))
        return pickle.loads(cloudpickle.dumps(sent)), text


@pytest.mark.parametrize(
    "error, name, message",
    [
        (DataMissing("films", 7), "DataMissing", "table films has no row 7"),
        (HoldsALock("a lock"), "HoldsALock", "a lock"),
        (ValueError("a builtin one", threading.Lock()), "ValueError", "('a builtin one', "),
        (Mute(), "Mute", "no message, because its __str__ raised KeyError"),
        (ExceptionGroup("two", [DataMissing("films", 7)]), "ExceptionGroup", "two (1 sub-exception): Data"),
    ],
)
def test_what_cannot_be_unpickled_keeps_its_name_its_message_and_the_readers_line(error, name, message):
    with pytest.raises((TypeError, AttributeError)):
        pickle.loads(cloudpickle.dumps(error))
    arrived, text = received(error)
    assert type(arrived).__name__ == name and str(arrived).startswith(message)
    assert f"{name}: {message}" in text.splitlines()[-1] and "in received" in text
    again = pickle.loads(cloudpickle.dumps(copy.copy(arrived)))  # from the controller on to the kernel
    assert str(again) == str(arrived) and type(again).__name__ == name


@pytest.mark.parametrize("error", [ValueError("plain"), KeyError("x"), SystemExit(3), OSError(2, "no file")])
def test_what_can_be_sent_stays_what_it_is(error):
    arrived, _ = received(error)
    assert type(arrived) is type(error) and arrived.args == error.args


def test_an_exit_becomes_an_exception_where_it_would_end_the_process():
    arrived, _ = received(SystemExit("no films"), wrap=True)
    assert isinstance(arrived, Exception) and not isinstance(arrived, SystemExit)
    assert (type(arrived).__name__, str(arrived)) == ("SystemExit", "no films")


def test_a_class_that_the_receiver_has_is_that_class_and_another_ones_name_stays(tmp_path):
    (tmp_path / "of_workers.py").write_text("class Refused(Exception):\n    code = 7\n")
    write = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import of_workers, ray.cloudpickle as pickler\n"
        "from labkit.worker.sendable import raise_sendable\n"
        "try:\n    try:\n        raise of_workers.Refused('by the store')\n"
        "    except Exception as error:\n        raise_sendable(error)\n"
        "except Exception as error:\n    sys.stdout.buffer.write(pickler.dumps(error))\n"
    )
    content = subprocess.run([sys.executable, "-c", write], capture_output=True, check=True).stdout
    arrived = pickle.loads(content)  # this process has no module of_workers
    assert (type(arrived).__name__, str(arrived)) == ("Refused", "by the store")
    sys.path.insert(0, str(tmp_path))
    try:
        import of_workers
    finally:
        sys.path.remove(str(tmp_path))
    assert type(pickle.loads(content)) is of_workers.Refused


def test_the_causes_of_an_exception_are_in_its_traceback():
    def fails():
        try:
            {}["key"]
        except KeyError:
            raise DataMissing("films", 7)  # noqa: B904

    with pytest.raises(Exception, match="table films has no row 7") as raised:
        TrackedFunction(fails, RemoteTracker("run", None))()
    text = "".join(traceback.format_exception(raised.value))
    assert "KeyError: 'key'" in text and "in fails" in text and text.count("DataMissing: table films") == 1


def test_what_a_controller_imports_needs_nothing_that_its_node_may_lack():
    """A cluster that the lab didn't start has Ray and the source of labkit, and not its dependencies."""
    code = "import sys, labkit.train.callbacks; sys.exit('labkit.cluster' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
