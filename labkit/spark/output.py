"""What TorchDistributor prints during a run: all goes to a log file, the training's own lines to the panel.

TorchDistributor prints every line of torchrun and of the ranks. Its wrapper around torchrun drops the exit
status, so a training file that failed shows in this text only. Spark wraps the error of a rank into that of
torchrun, that into a task's, and that into a job's; only the text has all of them.
"""

import contextlib
import logging
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

_BYTES = 50_000  # of the log, at its end
# Lines of torchrun and pyspark.
_NOISE = re.compile(
    r"^(\[rank\d+\]|\[?[EWI]\d{4} |\*{5}|Setting OMP_NUM|node_rank is only|Started |Finished |\s*$)"
)
_PORT_TAKEN = re.compile(r"server socket has failed to (listen|bind).*(EADDRINUSE|already in use)", re.I)
_TRACEBACK = "Traceback (most recent call last):"
# The lines of two ranks can mix: where another traceback begins, this one has no end.
_OF_RANK = re.compile(rf"^{re.escape(_TRACEBACK)}\n(?:[ \t].*\n|\n)*(?!Traceback \()\S.*$", re.MULTILINE)
_PYTHON = re.compile(rf"{re.escape(_TRACEBACK)}.*?^(\w[\w.]*(?:Error|Exception)\b.*?)$", re.S | re.M)
_SPARK = re.compile(r"\[[A-Z_.\d-]{6,}\]:? .+")
_ROOT = re.compile(r"Root Cause.*?rank\s*: (\d+)", re.DOTALL)
_KILLED = re.compile(r"rank\s*: (\d+) .*?\n\s*exitcode\s*: -(\d+)")
_FIXES = {  # pattern: fix; `{0}` is the pattern's group
    r"CONTEXT_ONLY_VALID_ON_DRIVER|cannot pickle '?[\w.]+'? object|Could not serialize object": (
        "create inside the function what cannot be pickled, such as a lock. Spark's session exists in this "
        "process only: write the DataFrame as Parquet first, and pass its path to the function"
    ),
    r"No module named '([\w.]+)'": (
        "from pyspark import cloudpickle; cloudpickle.register_pickle_by_value({0}) sends your own "
        "module with the function; a package must be installed on every node"
    ),
    r"GPUs were unable to be found|gpu usage is unavailable|GPU resources were not configured": (
        "TorchDistributor(…, use_gpu=False); its default is True"
    ),
}


class Output:
    """Writes what pyspark's threads print to `log`, and calls `on_line` with the training's lines.

    Attributes:
        torchrun_failed: whether torchrun has reported that a rank failed.
        port_taken: whether a torchrun found its port taken by another program (then `on_port_taken`).
    """

    def __init__(self, log: Path, on_line: Callable[[str], None], on_port_taken: Callable[[], None]) -> None:
        self.log, self._on_line, self._on_port_taken = log, on_line, on_port_taken
        self.torchrun_failed = self.port_taken = self._in_traceback = False

    def text(self) -> str:
        """The end of the log."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _BYTES))
            return file.read().decode(errors="replace")
        return ""

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Keep what is printed by this thread, which runs pyspark, and by threads that start in the block."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        logger, others = logging.getLogger("TorchDistributor"), set(threading.enumerate())
        others.remove(threading.current_thread())
        with self.log.open("a", encoding="utf-8", errors="replace", buffering=1) as log:
            out, err = (_Split(stream, log, self._line, others) for stream in (sys.stdout, sys.stderr))
            logger.addFilter(_is_warning)
            try:
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    yield
            finally:
                logger.removeFilter(_is_warning)

    def _line(self, line: str) -> None:
        self.torchrun_failed = self.torchrun_failed or "failed (exitcode" in line
        if _PORT_TAKEN.search(line) and not self.port_taken:
            self.port_taken = True
            self._on_port_taken()
        before = self._in_traceback
        # The last line of a traceback is not indented.
        self._in_traceback = line.startswith(_TRACEBACK) or (before and line[:1] in ("", " ", "\t"))
        if not (self.torchrun_failed or before or self._in_traceback or _NOISE.match(line)):
            self._on_line(line)


class _Split:
    """Stream wrapper: what `others` write passes through, everything else goes to the log file."""

    def __init__(
        self, stream: TextIO, log: TextIO, on_line: Callable[[str], None], others: set[threading.Thread]
    ) -> None:
        self._stream, self._log, self._on_line, self._others, self._part = stream, log, on_line, others, ""

    def write(self, text: str) -> int:
        if self._log.closed or threading.current_thread() in self._others:
            return self._stream.write(text)
        self._log.write(text)
        *lines, self._part = (self._part + text).split("\n")
        for line in lines:
            self._on_line(line)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def advice(text: str) -> str | None:
    """The fix for an error with this text; None if it is not a known one."""
    found = ((re.search(pattern, text), fix) for pattern, fix in _FIXES.items())
    return next((fix.format(*match.groups()) for match, fix in found if match), None)


def rank_error(text: str) -> tuple[int, str] | None:
    """(rank, traceback) of the rank that failed first, according to this text; None if none did.

    A rank that was killed has no traceback, and the others fail because it is gone. Ranks that torchrun ended
    (SIGTERM) are no cause. Once the ranks have met, ``[rank0]:`` is before each line of a traceback.
    """
    for rank, number in _KILLED.findall(text):
        if number != "15":
            return int(rank), f"killed ({signal.Signals(int(number)).name})"
    if (root := _ROOT.search(text)) is None:  # torchrun names the rank that failed first
        return None
    rank = root[1]
    if lines := re.findall(rf"^\s*\[rank{rank}\]: ?(.*\S.*)$", text, re.MULTILINE):
        return int(rank), "\n".join(lines)
    found = _OF_RANK.search(text.partition("failed (exitcode")[0])
    return (int(rank), found[0]) if found else None


def summary(text: str) -> str:
    """The message of a Spark error in one line, without Java's stack trace."""
    found = _PYTHON.search(text)
    line = found[1] if found else (spark[0] if (spark := _SPARK.search(text)) else text.strip())
    return line.partition("\n")[0][:300]


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO
