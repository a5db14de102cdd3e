"""The line of a long wait: silent when it is short, one line in a notebook, few in a log."""

import io
import threading
import time

import nbformat
import pytest
from nbclient import NotebookClient

from labkit.display.progress import Waiting


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def wait(stream, seconds, *, step=0.1, unit="images"):
    clock = Clock()
    with Waiting("rendering digits", unit=unit, stream=stream, clock=clock) as line:
        for tick in range(1, round(seconds / step) + 1):
            clock.now = 100.0 + tick * step
            line(tick * 1000, 60_000)
    return stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_short_wait_writes_nothing(stream):
    assert wait(stream(), 1.9) == ""


def test_a_terminal_gets_one_line_written_over_itself():
    text = wait(Terminal(), 6)
    assert text.count("\n") == 1
    assert text.endswith("\n")
    lines = text.strip("\n").split("\r")[1:]
    assert 6 <= len(lines) <= 11  # twice a second, from the second second on
    assert lines[0] == "rendering digits · 20,000 of 60,000 images · 2 s"
    assert lines[-1].rstrip() == "rendering digits · 60,000 of 60,000 images · done in 6 s"


def test_a_longer_line_is_wiped():
    stream = Terminal()
    clock = Clock()
    with Waiting("x", unit="images", stream=stream, clock=clock) as line:
        clock.now += 3
        line(1, 1_000_000_000)
        clock.now += 3
        line(1, 2)
    long, short = stream.getvalue().split("\r")[1:3]
    assert len(short) == len(long)


def test_a_log_gets_few_lines():
    lines = wait(io.StringIO(), 65).splitlines()
    assert [line.rpartition(" · ")[2] for line in lines] == ["2 s", "32 s", "62 s", "done in 65 s"]


def test_bytes_are_shown_in_megabytes():
    assert "0.0 of 0.1 MB" in wait(io.StringIO(), 3, unit="bytes")


def test_what_is_done_is_all_done():
    """A node counts when it has joined, and then there is nothing left to wait for."""
    stream, clock = io.StringIO(), Clock()
    with Waiting("starting node-2", unit="nodes", stream=stream, clock=clock) as line:
        clock.now += 3
        line(0, 1)
    assert stream.getvalue().splitlines()[-1] == "starting node-2 · 1 of 1 nodes · done in 3 s"


def test_what_fails_is_not_called_done():
    stream, clock = io.StringIO(), Clock()
    with pytest.raises(OSError), Waiting("fetching", unit="bytes", stream=stream, clock=clock) as line:
        clock.now += 3
        line(1_000_000, 2_000_000)
        raise OSError
    assert stream.getvalue().splitlines()[-1] == "fetching · 1.0 of 2.0 MB · ended after 3 s"


def test_the_line_goes_on_during_a_call_that_blocks():
    stream, clock = Terminal(), Clock()
    with Waiting("starting", unit="slots", stream=stream, clock=clock) as line:
        clock.now += 3
        with line.during(0, 2):
            deadline = time.monotonic() + 10
            while "3 s" not in stream.getvalue() and time.monotonic() < deadline:
                time.sleep(0.01)
        line(2, 2)
    assert "starting · 0 of 2 slots · 3 s" in stream.getvalue()
    assert "labkit-waiting" not in [thread.name for thread in threading.enumerate()]


NOTEBOOK = """
import time
from labkit.display import progress
progress._DELAY = 0
with progress.Waiting("starting", unit="nodes") as line:
    for have in range(3):
        line(have, 2)
        time.sleep(0.6)
"""


@pytest.mark.notebook
def test_a_saved_notebook_has_one_line():
    """It is updated, and not written again for each half second."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(NOTEBOOK)])
    NotebookClient(notebook, kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs
    assert output["output_type"] == "display_data"
    assert output["data"] == {"text/plain": "starting · 2 of 2 nodes · done in 2 s"}
