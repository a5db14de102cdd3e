"""The folder for temporary files of what the lab starts: its path must be short.

Python's multiprocessing, torch's DataLoader and Spark listen on Unix sockets in that folder, and the path of
a socket has 107 bytes at most. Slurm and HTCondor set TMPDIR to a longer one, or to a folder that is gone by
now. What the lab starts then gets a link to the folder, next to the lab's own sockets; its name begins with
`PREFIX`.
"""

import contextlib
import hashlib
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from labkit.settings import absolute

PREFIX = "tmp-"
SOCKET_LIMIT = 107 if sys.platform == "linux" else 103  # bytes of a Unix socket's path
_VARIABLES = ("TMPDIR", "TEMP", "TMP")  # in Python's order; others look at the first one only
# After it come multiprocessing's "/pymp-abcdefgh/listener-abcdefgh" or torch's
# "/torch-shm-dir-abcdef/manager.sock".
_LONGEST = SOCKET_LIMIT - len("/torch-shm-dir-abcdef/manager.sock")


def problem(environment: Mapping[str, str]) -> str:
    """Say why this environment's folder for temporary files can't be used; empty if it can."""
    for name in _VARIABLES:
        folder = environment.get(name, "")
        if not folder:
            continue
        if not os.path.isabs(folder):
            return f"{name}={folder} is a relative path"
        if not os.path.isdir(folder):
            return f"{name}={folder} is no folder"
        if not os.access(folder, os.W_OK | os.X_OK):
            return f"{name}={folder} can't be written to"
        length = len(os.fsencode(folder))
        if length > _LONGEST:
            return f"{name}={folder} has {length} bytes, and sockets in it leave room for {_LONGEST}"
        return ""  # the others don't count then
    return ""


def with_a_short_one(environment: Mapping[str, str], make_folder: Callable[[], Path]) -> dict[str, str]:
    """Return this environment with a folder for temporary files that can be used.

    `make_folder` makes and returns the folder for a link, if one is needed (`Lab.make_folder`).
    """
    fitting = dict(environment)
    while problem(fitting):
        name = next(name for name in _VARIABLES if fitting.get(name))
        folder = absolute(fitting.pop(name))
        if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            short = len(os.fsencode(folder)) <= _LONGEST
            fitting[name] = folder if short else str(_link(folder, make_folder()))
    return fitting


def _link(folder: str, place: Path) -> Path:
    """Return a link in `place` to a folder. It stays until the supervisor ends, because processes use it."""
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:6]
    link = place / f"{PREFIX}{digest}"
    if not link.is_symlink():
        new = link.with_name(f".{secrets.token_hex(8)}")
        new.symlink_to(folder, target_is_directory=True)
        os.replace(new, link)  # another process may do the same
    return link


def remove_links(folder: Path) -> None:
    """Remove all links below the folder of a lab's sockets."""
    for link in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            link.unlink()
