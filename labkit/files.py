"""Files that are complete or absent, files and sockets of their owner alone, and JSON that may be damaged."""

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_BEING_WRITTEN = 10.0  # seconds in which an empty file may get its content


@contextlib.contextmanager
def atomic_path(path: Path | str, *, mode: int | None = None) -> Iterator[Path]:
    """Give a path to write to. It replaces `path` when the block ends; if the block raises, nothing changes.

    Folders that are missing are created. `mode` are the file's permissions, set before anything is written.
    """
    # The name starts with a dot, so that readers of the folder ignore it, and ends like `path`, so that
    # writers recognize the format. It can't be guessed, so no other user can put a link there.
    path = Path(path)
    partial = path.with_name(f".part-{secrets.token_hex(8)}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode is not None:
            partial.touch(mode=mode)
        yield partial
        os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def atomic_write(path: Path | str, content: str | bytes, *, mode: int | None = None) -> Path:
    """Write a file and return its path. A reader never sees half of it.

    A text is written as UTF-8; what that cannot express becomes "?". `mode` is as in `atomic_path`.
    """
    with atomic_path(path, mode=mode) as partial:
        partial.write_bytes(content.encode(errors="replace") if isinstance(content, str) else content)
    return Path(path)


def private_file(path: Path | str, content: str) -> bool:
    """Create a file that only its owner can read; False if there is one, which is left unchanged.

    An empty one that another process isn't about to fill, as a power cut leaves it, is none.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if not path.is_file():
            raise
        status = path.stat()
        if status.st_size or time.time() - status.st_mtime < _BEING_WRITTEN:
            return False
        path.unlink(missing_ok=True)
        return private_file(path, content)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(content)
    except OSError:  # a full disk: half of it would be taken for the whole
        path.unlink()
        raise
    return True


def text_of(path: Path) -> str:
    """Return the text of a file without white space around it; "" if it can't be read."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""


def last_line(text: str) -> str:
    """Return the last line of what a program printed, without spaces; "" if it printed nothing."""
    lines = text.strip().splitlines() or [""]
    return lines[-1].strip()


def private_socket(path: Path, kind: socket.SocketKind) -> socket.socket:
    """Listen at a path where only its owner can connect; clients wait until this process answers."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(128)
    return listener


def json_object(text: str | bytes, types: Mapping[str, type] | None = None) -> dict[str, Any]:
    """Read the JSON object in `text`; a ValueError says that it is damaged, or a value has another type."""
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError(f"it is no object but a {type(values).__name__}")
    for name, expected in (types or {}).items():
        if not isinstance(values.get(name, expected()), expected):
            raise ValueError(f"its {name} is {values[name]!r:.80}, and {expected} is expected")
    return values
