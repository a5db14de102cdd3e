"""A traceback that fits a panel: the frames of the reader's own code, and the error.

A function that was written in a notebook and pickled to a worker has its cell's file name in its
frames, but no source there: the worker never saw the cell. The kernel did, so the lines are filled in here.
"""

import linecache
import re
import sysconfig
import traceback
from pathlib import Path
from typing import NamedTuple

from labkit import _jupyter
from labkit.settings import PACKAGES

_HEAD = re.compile(r"(?m)^Traceback \(most recent call last\).*$")
_FRAME = re.compile(r'(?m)^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>.+)$')
_LIBRARY = sysconfig.get_path("stdlib")
_FRAMES_KEPT = 3
_MESSAGE_LINES = 6
_MESSAGE_WIDTH = 300


class _Frame(NamedTuple):
    file: str
    line: int
    function: str


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
    own = [frame for frame in frames if is_own(frame.file)]
    kept = own or frames[-1:]
    lines = []
    for file, line, function in kept[-_FRAMES_KEPT:]:
        lines.append(f"{function}, {place(file)}, line {line}")
        source = linecache.getline(file, line).strip()
        if source:
            lines.append(f"    {source}")
    for line_of_message in message[:_MESSAGE_LINES]:
        lines.append(line_of_message[:_MESSAGE_WIDTH])
    shortened = "\n".join(lines).strip()
    return shortened or text.strip()[-_MESSAGE_WIDTH:] or "no message"


def passed_through(error: BaseException, *packages: str) -> bool:
    """Return whether code of one of the packages raised an exception, or let it pass."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__", "")
        if module.startswith(packages):
            return True
    return False


def shows_own(text: str) -> bool:
    """Return whether the short form of a formatted traceback has a line of the reader's own code."""
    frames, _ = _parse(text)
    return any(is_own(frame.file) for frame in frames)


def _parse(text: str) -> tuple[list[_Frame], list[str]]:
    """Return the frames and the lines of the message of the last exception."""
    text = "\n".join(text.splitlines())
    last = _HEAD.split(text)[-1]  # before the last head was the cause
    frames = []
    end = 0
    for match in _FRAME.finditer(last):
        frames.append(_Frame(match["file"], int(match["line"]), match["function"]))
        end = match.end()
    message: list[str] = []
    for line in last[end:].splitlines():
        is_source = not message and line.startswith(" ")  # of the last frame
        if line.strip() and not is_source:
            message.append(line)
    return frames, message


def is_own(file: str) -> bool:
    """Return whether a file is the reader's, and not Python's, an installed package's or labkit's."""
    path = Path(file)
    if file.startswith("<frozen") or path.is_relative_to(_LIBRARY):
        return False
    if path.suffix in (".pyx", ".pxi", ".pxd"):  # of a package in Cython, without its folder
        return False
    if {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(_is_of(package, path) for package in PACKAGES)


def _is_of(package: Path, path: Path) -> bool:
    """Return whether a path is a file of the package, or of a copy that Ray has sent to another machine."""
    for index, part in enumerate(path.parts):
        if part == package.name:
            below = path.parts[index + 1 :]
            if package.joinpath(*below).is_file():
                return True
    return False


def place(file: str) -> str:
    """Return ``cell 14`` for a cell's file, which is called something like ``/tmp/ipykernel_123/456.py``."""
    cell = _jupyter.cell_of(file)
    if cell:
        return cell
    return "in a cell" if "ipykernel_" in file else Path(file).name
