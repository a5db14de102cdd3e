"""A traceback that fits a panel: the frames of the reader's own code, and the error.

A function that was written in a notebook and pickled to a worker has its cell's file name in its
frames, but no source there: the worker never saw the cell. The kernel did, so the lines are filled in here.
"""

import itertools
import linecache
import re
import sysconfig
import traceback
from pathlib import Path

from labkit import _jupyter
from labkit.settings import PACKAGES

_HEAD = re.compile(r"(?m)^Traceback \(most recent call last\).*$")
_FRAME = re.compile(r'(?m)^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>.+)$')
_LIBRARY = sysconfig.get_path("stdlib")
_FRAMES_KEPT, _MESSAGE_LINES, _MESSAGE_WIDTH = 3, 6, 300


def shorten(error: BaseException) -> str:
    """Return the short form of an exception of this process."""
    if isinstance(error, BaseExceptionGroup):
        return f"{shorten(error.exceptions[0])}\n{type(error).__name__}: {error}"
    return shorten_text(formatted(error))


def formatted(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def shorten_text(text: str) -> str:
    """Return the short form of a formatted traceback, from whatever process it came.

    Frames of installed packages and of labkit go; if nothing is left, the innermost frame stays.
    """
    frames, message = _parse(text)
    own = [frame for frame in frames if is_own(frame[0])] or frames[-1:]
    lines = []
    for file, line, function in own[-_FRAMES_KEPT:]:
        lines.append(f"{function}, {place(file)}, line {line}")
        source = linecache.getline(file, line).strip()
        if source:
            lines.append(f"    {source}")
    lines += [part[:_MESSAGE_WIDTH] for part in message[:_MESSAGE_LINES]]
    return "\n".join(lines).strip() or text.strip()[-_MESSAGE_WIDTH:] or "no message"


def passed_through(error: BaseException, *packages: str) -> bool:
    """Return whether code of one of the packages raised an exception, or let it pass."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").startswith(packages) for frame, _ in frames)


def shows_own(text: str) -> bool:
    """Return whether the short form of a formatted traceback has a line of the reader's own code."""
    frames, _ = _parse(text)
    return any(is_own(file) for file, _, _ in frames)


def _parse(text: str) -> tuple[list[tuple[str, int, str]], list[str]]:
    """Return (file, line, function) of each frame, and the message's lines, of the last exception."""
    last = _HEAD.split("\n".join(text.splitlines()))[-1]  # before the last head was the cause
    frames = []
    end = 0
    for match in _FRAME.finditer(last):
        frames.append((match["file"], int(match["line"]), match["function"]))
        end = match.end()
    lines = [line for line in last[end:].splitlines() if line.strip()]
    # They begin with the last frame's source.
    message = itertools.dropwhile(lambda line: line.startswith(" "), lines)
    return frames, list(message)


def is_own(file: str) -> bool:
    """Return whether a file is the reader's, and not Python's, an installed package's or labkit's."""
    path = Path(file)
    is_compiled = path.suffix in (".pyx", ".pxi", ".pxd")  # of a package in Cython, without its folder
    if is_compiled or file.startswith("<frozen") or path.is_relative_to(_LIBRARY):
        return False
    if {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(_is_of(package, path) for package in PACKAGES)


def _is_of(package: Path, path: Path) -> bool:
    """Return whether a path is a file of the package, or of a copy that Ray has sent to another machine."""
    places = [index + 1 for index, part in enumerate(path.parts) if part == package.name]
    return any(package.joinpath(*path.parts[place:]).is_file() for place in places)


def place(file: str) -> str:
    """Return ``cell 14`` for a cell's file, which is called something like ``/tmp/ipykernel_123/456.py``."""
    return _jupyter.cell_of(file) or ("in a cell" if "ipykernel_" in file else Path(file).name)
