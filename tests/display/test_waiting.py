"""The line of a long wait: silent when it is short, one line in a terminal, few in a log."""

import io
import sys
from types import SimpleNamespace

from labkit.display.progress import Waiting


class Terminal(io.StringIO):
    def isatty(self):
        return True


def wait(monkeypatch, stream, seconds):
    """What is written in this time; a unit of ten comes every 0.1 s."""
    now = [100.0]
    monkeypatch.setattr("labkit.display.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(sys, "stdout", stream)
    with Waiting("rendering digits", unit="images") as line:
        for tick in range(1, round(seconds * 10)):
            now[0] = 100.0 + tick / 10
            line(tick * 10, round(seconds * 100))
    return stream.getvalue()


def test_a_short_wait_writes_nothing(monkeypatch):
    assert wait(monkeypatch, Terminal(), 1.9) == ""


def test_a_terminal_gets_one_line_written_over_itself(monkeypatch):
    text = wait(monkeypatch, Terminal(), 6)
    lines = text.strip("\n").split("\r")[1:]
    assert text.count("\n") == 1 and text.endswith("\n")
    assert 6 <= len(lines) <= 11  # twice a second, from the second second on
    assert lines[0] == "rendering digits · 200 of 600 images · 2 s"
    assert lines[-1].rstrip() == "rendering digits · 600 of 600 images · 6 s"


def test_a_log_gets_few_lines(monkeypatch):
    assert wait(monkeypatch, io.StringIO(), 65).count("\r") <= 5
