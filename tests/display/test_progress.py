"""The line of a long wait: silent when it is short, one line in a terminal, few in a log."""

import io
import re
import sys
import time

import pytest

from labkit.display import progress
from labkit.display.progress import Waiting
from labs import until


class Terminal(io.StringIO):
    def isatty(self):
        return True


def wait(monkeypatch, stream, *, lines):
    """What is written while a block is busy with the last of its three images, until so many lines are."""
    monkeypatch.setattr(sys, "stdout", stream)
    with Waiting("reading images", unit="images") as line:
        line(2, 3)
        until(lambda: stream.getvalue().count("\r") >= lines)
        time.sleep(0.7)  # longer than between two lines in a terminal
    return stream.getvalue()


def test_a_short_wait_writes_nothing(monkeypatch):
    assert progress._DELAY == 2  # seconds; the longer one below is for busy machines
    monkeypatch.setattr(progress, "_DELAY", 600.0)
    assert wait(monkeypatch, Terminal(), lines=0) == ""


@pytest.mark.parametrize("stream, lines", [(Terminal(), 2), (io.StringIO(), 1)])
def test_a_long_wait_has_a_line_written_over_itself_and_rarely_in_a_log(monkeypatch, stream, lines):
    monkeypatch.setattr(progress, "_DELAY", 0.1)
    text = wait(monkeypatch, stream, lines=lines)
    _, first, *others, last = text.split("\r")
    assert len(others) >= 1 if stream.isatty() else others == []
    assert text.count("\n") == 1 and text.endswith("\n")
    assert re.fullmatch(r"reading images · 2 of 3 images · \d+ s", first)
    assert last.startswith("reading images · 3 of 3 images")


def test_what_fails_is_not_said_to_be_done(monkeypatch):
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    monkeypatch.setattr(sys, "stdout", stream := io.StringIO())
    with pytest.raises(KeyError), Waiting("reading images", unit="images") as line:
        line(2, 3)
        raise KeyError
    assert re.search(r"2 of 3 images · \d+ s\n$", stream.getvalue())
