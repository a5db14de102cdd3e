"""Write files so that readers find them complete or not at all, and files that only their owner can read."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_path(path: Path | str, *, mode: int | None = None) -> Iterator[Path]:
    """Give a path to write to. It replaces `path` when the block ends; if the block raises, nothing changes.

    The temporary file is in the same folder, which is created if it is missing. Its name starts with a dot,
    so that readers of a folder ignore it, and ends like `path`, so that writers recognize the format.

    Args:
        mode: permissions of the file, set before anything is written (default: as the umask says).

    Raises:
        OSError: the folder cannot be written to.
    """
    path = Path(path)
    partial = _partial(path)
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
    """Write a file, as UTF-8 if `content` is text, and return its path. A reader never sees half of it.

    Raises:
        OSError: the folder cannot be written to.
    """
    with atomic_path(path, mode=mode) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


def private_file(path: Path | str, content: str) -> bool:
    """Create a file that only its owner can read (mode 0600). A file that exists already is left unchanged.

    Returns:
        Whether the file was created. Of several processes that try at once, one creates it.

    Raises:
        OSError: the folder cannot be written to.
    """
    path = Path(path)
    partial = _partial(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        partial.touch(mode=0o600)
        partial.write_text(content, encoding="utf-8")
        try:
            os.link(partial, path)  # unlike a rename, it never replaces another's file
        except FileExistsError:
            return False
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return True


def _partial(path: Path) -> Path:
    """The name of a temporary file for `path` that no other thread or process uses."""
    return path.with_name(f".part-{os.getpid()}-{threading.get_ident()}-{path.name}")
