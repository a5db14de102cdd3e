"""The line of a long wait: silent when it is short, one line in a terminal, few in a log."""

import io
import sys
import time

import pytest

from labkit.display import progress
from labkit.display.progress import Waiting


class Terminal(io.StringIO):
    def isatty(self):
        return True


def wait(monkeypatch, stream, *, seconds):
    """What is written while a block is busy with the last of its three images."""
    monkeypatch.setattr(sys, "stdout", stream)
    with Waiting("reading images", unit="images") as line:
        line(2, 3)
        time.sleep(seconds)
    return stream.getvalue()


def test_a_short_wait_writes_nothing(monkeypatch):
    assert wait(monkeypatch, Terminal(), seconds=0.1) == ""


@pytest.mark.parametrize("stream, least", [(Terminal(), 3), (io.StringIO(), 2)])
def test_a_long_wait_has_a_line_written_over_itself_and_rarely_in_a_log(monkeypatch, stream, least):
    monkeypatch.setattr(progress, "_DELAY", 0.1)
    text = wait(monkeypatch, stream, seconds=0.9)
    _, first, *_, last = lines = text.split("\r")
    assert len(lines) - 1 >= least and (least == 3 or len(lines) - 1 == 2)
    assert text.count("\n") == 1 and text.endswith("\n")
    assert first == "reading images · 2 of 3 images · 0 s" and last.startswith(
        "reading images · 3 of 3 images"
    )


def test_what_fails_is_not_said_to_be_done(monkeypatch):
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    monkeypatch.setattr(sys, "stdout", stream := io.StringIO())
    with pytest.raises(KeyError), Waiting("reading images", unit="images") as line:
        line(2, 3)
        raise KeyError
    assert stream.getvalue().rstrip("\n").endswith("2 of 3 images · 0 s")
