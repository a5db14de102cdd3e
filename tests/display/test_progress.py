"""The line of a long wait: silent when it is short, one line in a terminal, few in a log."""

import io
import re
import sys
import time

import pytest

from labkit.display import progress
from labkit.display.progress import waiting
from labs import until


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream, lines", [(Terminal(), 2), (io.StringIO(), 1)])
def test_a_long_wait_has_a_line_written_over_itself_and_rarely_in_a_log(monkeypatch, stream, lines):
    """It is silent for two seconds, or here less."""
    monkeypatch.setattr(progress, "_DELAY", 0.1)
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(KeyError), waiting("reading images"):
        until(lambda: stream.getvalue().count("\r") >= lines)
        time.sleep(0.7)  # longer than between two lines in a terminal
        raise KeyError
    _, first, *others, last = stream.getvalue().split("\r")
    assert len(others) >= 1 if stream.isatty() else others == []
    assert last.count("\n") == 1 and last.endswith("\n")
    for line in (first, last):
        assert re.fullmatch(r"reading images · \d+ s\n?", line)
