"""What pyspark prints during a run: all of it goes to a log file, and the training's own lines to the panel.

TorchDistributor prints every line of torchrun and of the ranks. Its wrapper around torchrun drops the exit
status, so a training file that failed shows in this text only.
"""

import contextlib
import logging
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

_CHARACTERS = 50_000  # of the log, the last ones
_FRAMES = 12  # callers of write() that are searched
# Lines of torchrun, its warnings and pyspark, which the training did not print.
_NOISE = re.compile(
    r"^(\[rank\d+\]|\[?[EWI]\d{4} |\*{5}|Setting OMP_NUM|node_rank is only|Started |Finished |\s*$)"
)


class Output:
    """Splits what is printed in this process into pyspark's lines and all others.

    Args:
        log: the file for pyspark's lines.
        on_line: called with each line that the training printed.

    Attributes:
        torchrun_failed: whether torchrun has reported that a rank failed.
    """

    def __init__(self, log: Path, on_line: Callable[[str], None]) -> None:
        self.log, self._on_line = log, on_line
        self.torchrun_failed = self._in_traceback = False

    def text(self) -> str:
        """The end of the log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-_CHARACTERS:]

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Split what is printed during the block. TorchDistributor's own messages are left out."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        logger, before = logging.getLogger("TorchDistributor"), (sys.stdout, sys.stderr)
        with self.log.open("a", encoding="utf-8", errors="replace", buffering=1) as log:
            sys.stdout, sys.stderr = (_Split(stream, log, self._line) for stream in before)
            logger.addFilter(_is_warning)
            try:
                yield
            finally:
                sys.stdout, sys.stderr = before
                logger.removeFilter(_is_warning)

    def _line(self, line: str) -> None:
        self.torchrun_failed = self.torchrun_failed or "failed (exitcode" in line
        before = self._in_traceback
        # The last line of a traceback is not indented.
        self._in_traceback = line.startswith("Traceback (most recent") or (
            before and line[:1] in ("", " ", "\t")
        )
        if not (self.torchrun_failed or before or self._in_traceback or _NOISE.match(line)):
            self._on_line(line)


class _Split:
    """Stream wrapper: what pyspark writes goes to the log file, everything else passes through."""

    def __init__(self, stream: TextIO, log: TextIO, on_line: Callable[[str], None]) -> None:
        self._stream, self._log, self._on_line, self._part = stream, log, on_line, ""

    def write(self, text: str) -> int:
        if self._log.closed or not _pyspark_writes(sys._getframe(1)):
            return self._stream.write(text)
        self._log.write(text)
        *lines, self._part = (self._part + text).split("\n")
        for line in lines:
            self._on_line(line)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _pyspark_writes(frame: FrameType | None) -> bool:
    """Whether pyspark writes this, itself or through `logging` and the like."""
    for _ in range(_FRAMES):
        package = frame.f_globals.get("__name__", "").partition(".")[0] if frame else ""
        if package not in ("logging", "traceback", "warnings"):
            return package == "pyspark"
        frame = frame.f_back
    return False


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO
