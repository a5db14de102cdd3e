"""What Ray runs in the place of Python: asks the forkserver for a worker, or becomes one itself.

``python -I -S client.py SOCKETS SCRIPT ARGUMENT…``: the sockets are told apart by the job and the
raylet's pid at their end. It imports nothing but a few modules of the standard library, and so is there in a
hundredth of a second.
"""

import array
import contextlib
import json
import os
import signal
import socket
import struct
import sys

_LENGTH = struct.Struct("!i")  # that of labkit.forkserver, which is not to be imported here
_PATIENCE = 120  # seconds for the server's imports, on a cold disk


def _ask(path: str, argv: list[str]) -> tuple[socket.socket, int] | None:
    """A connection and the pid of the forked worker; None if the server cannot or will not."""
    request = {
        "argv": argv,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
    }
    content = json.dumps(request).encode()
    streams = array.array("i", [0, 1, 2])
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_PATIENCE)
    try:
        connection.connect(path)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)]
        connection.sendmsg([_LENGTH.pack(len(content))], rights)
        connection.sendall(content)
        pid = _number(connection)
    except OSError:
        pid = None
    if not pid:
        connection.close()
        return None
    return connection, pid


def _number(connection: socket.socket) -> int | None:
    data = connection.recv(_LENGTH.size, socket.MSG_WAITALL)
    return _LENGTH.unpack(data)[0] if len(data) == _LENGTH.size else None


def main() -> None:
    """Stand for a forked worker until it ends, and end as it did; or go on as the Python that Ray wanted."""
    sockets, *argv = sys.argv[1:]
    job, raylet = os.environ.get("RAY_JOB_ID", ""), os.environ.get("RAY_RAYLET_PID", "")
    asked = _ask(f"{sockets}-{job}-{raylet}", argv)
    if asked is None:
        os.execv(sys.executable, [sys.executable, *argv])
    connection, pid = asked

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    connection.settimeout(None)
    status = None
    with contextlib.suppress(OSError):
        status = _number(connection)
    if status is None:  # the server was killed; its worker lives on without either
        sys.exit(0)
    if status < 0:  # the worker was ended by that signal
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
