"""What a forked process does to become the new Python that was asked for, from its first line to its exit."""

import atexit
import contextlib
import gc
import os
import random
import runpy
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import NoReturn


@dataclass
class Request:
    """How the new Python would have been started.

    Attributes:
        streams: descriptors of its standard input, output and error.
    """

    argv: list[str]
    environment: dict[str, str]
    folder: str
    niceness: int
    streams: list[int]


def become(request: Request) -> NoReturn:
    """Run the script that was asked for in this process, and exit as Python would."""
    # Ray kills a worker together with its process group, so it needs one of its own.
    os.setpgid(0, 0)
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.nice(max(request.niceness - os.getpriority(os.PRIO_PROCESS, 0), 0))
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    gc.unfreeze()
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    sys.addaudithook(_set_torch_threads)
    sys.argv = list(request.argv)
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    _exit(_run(sys.argv[0]))


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
    for finish in (getattr(threading, "_shutdown", None), getattr(atexit, "_run_exitfuncs", None)):
        with contextlib.suppress(BaseException):
            finish()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status & 0xFF)


def _set_torch_threads(event: str, args: tuple) -> None:
    """Ray sets OMP_NUM_THREADS when it gives a worker its CPUs; torch has read it before, at its import."""
    if event == "os.putenv" and args[0] == b"OMP_NUM_THREADS" and args[1].isdigit():
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(int(args[1]))
