"""The folder for temporary files of what the lab starts: its path must be short.

Python's multiprocessing, torch's DataLoader and Spark listen on Unix sockets in that folder, and the path of
a socket has 107 bytes at most. Slurm and HTCondor set TMPDIR to a longer one, or to a folder that is gone by
now. What the lab starts doesn't have such a variable, and uses /tmp.
"""

import os
import sys
from collections.abc import Mapping

VARIABLES = ("TMPDIR", "TEMP", "TMP")  # in Python's order; others look at the first one only
SOCKET_LIMIT = 107 if sys.platform == "linux" else 103  # bytes of a Unix socket's path
# After it come multiprocessing's "/pymp-abcdefgh/listener-abcdefgh" or torch's
# "/torch-shm-dir-abcdef/manager.sock".
_LONGEST = SOCKET_LIMIT - len("/torch-shm-dir-abcdef/manager.sock")


def problem(environment: Mapping[str, str]) -> str:
    """Say why this environment's folder for temporary files can't be used; empty if it can."""
    for name in VARIABLES:
        folder = environment.get(name, "")
        if not folder:
            continue
        if not (os.path.isabs(folder) and os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)):
            return f"{name}={folder} is not the whole path of a folder that can be written to"
        length = len(os.fsencode(folder))
        if length > _LONGEST:
            return f"{name}={folder} has {length} bytes, and sockets in it leave room for {_LONGEST}"
        return ""  # the others don't count then
    return ""


def without_unusable(environment: Mapping[str, str]) -> dict[str, str]:
    """Return this environment without the variables whose folder for temporary files can't be used."""
    usable = dict(environment)
    while problem(usable):
        del usable[next(name for name in VARIABLES if usable.get(name))]
    return usable
