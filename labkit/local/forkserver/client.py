"""What Ray runs in place of python: asks the fork server for a worker, or becomes that python itself.

``python -I -S client.py SOCKET SCRIPT ARGUMENT…``. It imports only some modules of the standard library, and
so runs within a hundredth of a second. It stays as long as its worker lives: ending one ends the other.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys

_MAX_ANSWER = 1 << 20
_TIMEOUT = 120  # seconds for the server's imports, on a cold disk


def _request_worker(path: str, argv: list[str]) -> tuple[socket.socket, int] | None:
    """A connection to the forked worker, and its pid; None if the server cannot or will not fork one."""
    try:
        folder = os.getcwd()
    except OSError:  # the folder that the cluster was started in has been removed
        folder = "/"
    request = {
        "argv": argv,
        "environment": dict(os.environ),
        "folder": folder,
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
    }
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(_TIMEOUT)
    with contextlib.suppress(OSError, ValueError):
        connection.connect(path)
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        answer = connection.recv(_MAX_ANSWER)
        if answer.isdigit():
            return connection, int(answer)
        os.environ.update(json.loads(answer))  # a refusal, with what only the server has of this worker's
    connection.close()
    return None


def main() -> None:
    """Wait for the end of the forked worker; without one, become the python that Ray wanted."""
    path, *argv = sys.argv[1:]
    if path.endswith("-"):  # of a socket for workers, whose name goes on with the job and the raylet's pid
        path += f"{os.environ.get('RAY_JOB_ID', '')}-{os.environ.get('RAY_RAYLET_PID', '')}"
    answer = _request_worker(path, argv)
    if answer is None:
        os.execv(sys.executable, [sys.executable, *argv])
    _connection, pid = answer  # the worker ends with the connection

    with contextlib.suppress(ProcessLookupError):  # it has ended
        worker = os.pidfd_open(pid)

        def forward(number: int, _: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(worker, number)  # never to another process that got its number

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, forward)
        select.select([worker], [], [])


if __name__ == "__main__":
    main()
