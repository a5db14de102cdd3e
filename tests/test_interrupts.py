"""Ctrl-C during a start: noticed, undone, and told in one line."""

import os
import signal
import subprocess
import threading
import time

import pytest

from labkit import interrupts
from labkit.errors import RunStopped
from labs import begin


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_waits_for_the_next_check_and_is_undone_and_told_in_one_line():
    before, steps = signal.getsignal(signal.SIGINT), []

    def undo():
        interrupt()  # an impatient reader: the clean-up is not cut short
        steps.append("undone")

    with (
        pytest.raises(RunStopped) as stopped,
        interrupts.stoppable("the start of a thing", undo=undo),
    ):
        interrupt()
        steps.append("went on")
        interrupts.check()
        steps.append("never")
    assert steps == ["went on", "undone"] and signal.getsignal(signal.SIGINT) is before
    assert str(stopped.value) == "the start of a thing: stopped by you. Nothing of it is left running"
    with pytest.raises(RunStopped), interrupts.stoppable("x"):
        interrupt()  # no code checks: it is raised at the end


def test_an_error_is_undone_too_and_stays_what_it_is():
    undone = []
    with pytest.raises(ValueError), interrupts.stoppable("x", undo=lambda: undone.append(True)):
        raise ValueError
    assert undone == [True]


def test_who_insists_gets_out_of_a_call_that_never_checks(monkeypatch):
    monkeypatch.setattr(interrupts, "_INSIST", 0.0)
    with pytest.raises(RunStopped), interrupts.stoppable("x"):
        interrupt()
        time.sleep(0.01)
        interrupt()
        pytest.fail("the second one was ignored")


def test_a_thread_gets_no_signals_and_changes_no_handler():
    seen = []

    def run():
        with interrupts.stoppable("x"):
            interrupts.check()
            seen.append(signal.getsignal(signal.SIGINT))

    with pytest.raises(RunStopped), interrupts.stoppable("y"):
        interrupt()  # of the main thread
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert seen == [signal.getsignal(signal.SIGINT)]


# Imports of modules made on the fly, over and over: where a KeyboardInterrupt is printed and dropped.
IMPORTS = """
import sys
from pathlib import Path
from labkit import interrupts
folder = Path(sys.argv[1])
for k in range(50):
    (folder / f"module_{k}.py").write_text("")
sys.path.insert(0, str(folder))
try:
    with interrupts.stoppable("importing"):
        print("go", flush=True)
        while True:
            for k in range(50):
                __import__(f"module_{k}")
                del sys.modules[f"module_{k}"]
            interrupts.check()
except BaseException as error:
    print(error)
"""


@pytest.mark.parametrize("pause", [0.05, 0.063, 0.076])
def test_an_interrupt_in_the_middle_of_an_import_is_not_lost(tmp_path, pause):
    process = begin(IMPORTS, tmp_path, stderr=subprocess.STDOUT)
    try:
        process.stdout.readline()
        time.sleep(pause)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=90)[0].startswith("importing: stopped by you.")
    finally:
        process.kill()
