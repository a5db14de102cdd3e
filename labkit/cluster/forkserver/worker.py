"""What a forked process does to be the new Python that was asked for, from its first line to its end."""

import atexit
import contextlib
import gc
import os
import random
import runpy
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn


@dataclass
class Request:
    """What a client sends: how the new Python would have been started."""

    argv: list[str]
    environment: dict[str, str]
    folder: str
    niceness: int
    streams: list[int]  # copies of its standard input, output and error


def become(request: Request) -> NoReturn:
    """Go on as the Python that was asked for."""
    # Ray ends a worker together with its process group. It must be its own.
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
    sys.addaudithook(_tell_torch)
    sys.argv = list(request.argv)
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    _leave(_status_of(lambda: runpy.run_path(sys.argv[0], run_name="__main__")))


def _status_of(main: Callable[[], object]) -> int:
    """What Python would end with after `main`."""
    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _leave(status: int) -> NoReturn:
    """End as Python ends, but without taking all modules apart: that copies the pages that forks share, for
    more than a second. Forks of Python's own `multiprocessing` leave in this way, too."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # waits for the threads that are no daemons
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status & 0xFF)


def _tell_torch(event: str, args: tuple) -> None:
    """Ray sets OMP_NUM_THREADS when it gives a worker its CPUs; torch has read it before, at its import."""
    if event == "os.putenv" and args[0] == b"OMP_NUM_THREADS" and args[1].isdigit():
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(int(args[1]))
