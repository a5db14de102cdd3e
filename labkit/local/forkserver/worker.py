"""What a forked process does to become the new Python that was asked for, from its first line to its exit."""

import atexit
import contextlib
import ctypes
import os
import random
import runpy
import signal
import socket
import sys
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

REFUSED = "refused: "  # how a line of the server's log begins that says why
ENDS = ".ends"  # the file that says how workers ended has the name of the server's socket, and this


@dataclass
class Request:
    """How the new Python would have been started."""

    argv: list[str]
    environment: dict[str, str]
    folder: str
    niceness: int
    streams: list[int]  # descriptors of its standard input, output and error
    client: socket.socket  # a connection to the process that Ray has started
    handed: dict[str, str] = field(default_factory=dict)  # variables that only the server has


def become(request: Request) -> NoReturn:
    """Run a worker's script in this process, and exit as Python would."""
    take_over(request)
    # When memory runs out, Linux should end workers first. Ray sets this score for the process that it has
    # started, which is the client, and that uses no memory.
    score = request.environment.get("RAY_worker_oom_score_adjustment", "1000")  # Ray's default
    with contextlib.suppress(OSError):  # a container may forbid it
        Path("/proc/self/oom_score_adj").write_text(score)
    _use_threads(request.environment.get("OMP_NUM_THREADS", ""))
    sys.addaudithook(_set_threads)
    run(request)


def take_over(request: Request) -> None:
    """Take the streams, the environment and all else that the new Python would have had."""
    # Ray kills a worker together with its process group, so it needs one of its own.
    os.setpgid(0, 0)
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.nice(max(request.niceness - os.getpriority(os.PRIO_PROCESS, 0), 0))
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.random.default_generator.seed()


def run(request: Request) -> NoReturn:
    """Run the script that was asked for, until its client ends."""
    threading.Thread(target=_end_with, args=[request.client], name="labkit-client", daemon=True).start()
    sys.argv = list(request.argv)
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    _exit(_run(sys.argv[0]))


def _end_with(client: socket.socket) -> None:
    """End this worker when its client has ended. That never writes again: what can be read is its end."""
    client.settimeout(None)
    with contextlib.suppress(OSError):
        client.recv(1)
    os.killpg(0, signal.SIGKILL)


def _run(script: str) -> int:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _exit(status: int) -> NoReturn:
    """Exit without interpreter finalization, which would touch and so copy every shared page (more than 1 s).

    `multiprocessing` does the same. Threads are waited for and atexit functions called as usual.
    """
    for finish in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            finish()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status & 0xFF)


def _set_threads(event: str, args: tuple) -> None:
    """Ray sets OMP_NUM_THREADS when it gives a worker its CPUs; torch and numpy have read it before.

    What the reader sets later has no effect, as in any Python that has imported them.
    """
    if event == "os.putenv" and args[0] == b"OMP_NUM_THREADS" and "OMP_NUM_THREADS" not in os.environ:
        _use_threads(os.fsdecode(args[1]))


def _use_threads(number: str) -> None:
    """Let torch and numpy use so many threads; their imports were done with one."""
    if number.isdecimal() and int(number):
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(int(number))
        _set_openblas_threads(int(number))


def _set_openblas_threads(number: int) -> None:
    """Set how many threads numpy's and scipy's OpenBLAS use; each wheel brings one with names of its own."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    names = ("openblas_set_num_threads", "openblas_set_num_threads64_")
    for path in {line.split(maxsplit=5)[-1] for line in lines if "openblas" in line}:
        for name in (*names, *(f"scipy_{name}" for name in names)):
            with contextlib.suppress(AttributeError, OSError):
                getattr(ctypes.CDLL(path), name)(number)
