"""A process that has done the imports of Ray's workers, and forks one for each that Ray starts.

``python -P -m labkit.cluster.forkserver.server MODULE…``, started by `labkit.cluster.preload`. It starts
before its node exists and imports what does not depend on Ray. Then a message on its standard input, a Unix
socket, brings Ray's environment and the listening socket for requests.

Ray starts each worker as a new Python, and on two cores a short run spends most of its time on their imports.
Here they are done once, and forks share them, as in `multiprocessing.forkserver` and Android's zygote.

The clients (`labkit.cluster.forkserver.client`) stay as long as their workers live, so that ending one ends
the other. A request that a fork cannot serve as a new Python would is refused, and the client then becomes a
new Python.
"""

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from labkit.cluster.forkserver.ids import actor_ids_from_urandom, forks_draw_same_ids
from labkit.cluster.forkserver.worker import Request, become

_MAX_MESSAGE = 1 << 20
_OWNER_EVERY = 1.0  # seconds between two looks at whether the kernel lives
_IDLE = 0.2  # seconds without a request; before the first one ten times as many, since it is on its way

# What libraries read when they are imported: a worker with another value needs imports of its own.
_READ_AT_IMPORT = {
    "sys": ("PYTHON", "LD_", "MALLOC_"),
    "ray": ("RAY_",),
    "pyarrow": ("ARROW_",),
    "numpy": ("OMP_", "OPENBLAS_", "MKL_", "NUMEXPR_"),
    "torch": ("TORCH",),
    "tensorflow": ("TF_", "KERAS_", "XLA_"),
}
# Variables that a raylet or Ray Train sets, and that are read only when they are used.
_READ_LATER = ("RAY_TRAIN_", "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC", "RAY_LD_PRELOAD_ON_WORKERS")
_READ_LATER += ("RAY_ADDRESS", "RAY_DATA_SHUFFLE_", "PYTHONBREAKPOINT")
# Packages that do not import Ray, and so can be imported before a node exists.
_EARLY = {"PIL", "aiobotocore", "numpy", "pandas", "pyarrow", "pydantic", "requests", "rich", "s3fs"}
_EARLY |= {"tensorflow", "tf_keras", "torch"}
# What not every worker needs: imported when no request has come for a while. torch._dynamo takes as long as
# torch.
_LATER = {"ray.data", "ray.train.tensorflow", "ray.train.torch", "ray.tune", "torch._dynamo"}


@dataclass(frozen=True)
class _Worker:
    """A forked process, and the connection of the client that stands for it."""

    pid: int
    pidfd: int
    client: socket.socket


def serve(modules: list[str]) -> None:
    """Import `modules`, then fork a worker for each request, until the process that started this has ended.

    In a forked process this function does not return: that process becomes the worker.

    Args:
        modules: names to import. One that cannot be imported is reported in the log.
    """
    owner, given = os.getppid(), dict(os.environ)
    early = [m for m in modules if m.partition(".")[0] in _EARLY and m not in _LATER]
    # As Ray sets it for a worker of one CPU; one that gets more tells torch (`worker.become`).
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _import(early)
    starter = socket.socket(fileno=sys.stdin.fileno())
    message, descriptors, _, _ = socket.recv_fds(starter, _MAX_MESSAGE, 1)
    starter.detach()  # number 0 stays taken
    if not message:
        return  # the node did not start
    environment = json.loads(message)
    os.environ |= environment
    listener = socket.socket(fileno=descriptors[0])
    path = listener.getsockname()
    _import(m for m in modules if m not in {*early, *_LATER})
    request = None
    if _can_fork():
        later = [module for module in modules if module in _LATER]
        request = _until_forked(listener, given | environment, owner, later)
    if request is not None:
        become(request)
    with contextlib.suppress(OSError):  # the kernel may have removed it
        os.unlink(path)


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        try:
            with actor_ids_from_urandom():
                importlib.import_module(module)
        except Exception as error:
            print(f"could not import {module}: {error}", flush=True)


def _can_fork() -> bool:
    """Whether forks can be taken after what was imported; the log says why not."""
    if forks_draw_same_ids():
        print("two forks draw the same ids: one of these modules has drawn some at its import", flush=True)
        return False
    # What exists by now is never freed: the collector would only touch, and so copy, shared pages.
    gc.collect()
    gc.freeze()
    print(f"ready: {len(sys.modules)} modules", flush=True)
    return True


def _until_forked(
    listener: socket.socket, given: Mapping[str, str], owner: int, later: list[str]
) -> Request | None:
    """The request, in a forked process; None in this one, when it is not needed any more."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    workers: set[_Worker] = set()
    idle = 10 * _IDLE
    # When its owner has ended, it stays for its workers: a detached actor outlives the kernel.
    while os.getppid() == owner or workers:
        ready = selector.select(idle if later else _OWNER_EVERY)
        if not ready and later:
            _import([later.pop(0)])
            if not _can_fork():
                later.clear()
                selector.unregister(listener)
                listener.close()  # clients are refused from here on
        for key, _ in ready:
            worker = key.data
            if worker is None:
                client, _ = listener.accept()
                pid, request = _fork_for(client, given)
                if pid == 0:
                    # A copy of another worker's connection would hide from its client that this server ended.
                    for one in workers:
                        os.close(one.pidfd)
                        one.client.close()
                    for mine in (client, listener, selector):
                        mine.close()
                    return request
                if pid is not None:
                    idle = _IDLE
                    workers.add(worker := _Worker(pid, os.pidfd_open(pid), client))
                    selector.register(worker.pidfd, selectors.EVENT_READ, worker)
                    selector.register(client, selectors.EVENT_READ, worker)
            elif key.fd == worker.pidfd:
                workers.remove(worker)
                _, status = os.waitpid(worker.pid, 0)
                for one in (worker.pidfd, worker.client):
                    with contextlib.suppress(KeyError, ValueError):
                        selector.unregister(one)
                os.close(worker.pidfd)
                _answer(worker.client, os.waitstatus_to_exitcode(status))
                worker.client.close()
            elif worker in workers:
                # A client never writes again: what can be read is its end, and ending it means its worker.
                selector.unregister(worker.client)
                with contextlib.suppress(OSError):
                    os.killpg(worker.pid, signal.SIGKILL)
                with contextlib.suppress(OSError):  # it may not have made its group yet
                    signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
    return None


def _fork_for(client: socket.socket, given: Mapping[str, str]) -> tuple[int | None, Request | None]:
    """Fork for the request of a client: (its pid, or 0 in the fork; the request).

    The pid is None if the request is refused: the log says why, and the client becomes a new Python.
    """
    pid, streams = None, []
    try:
        client.settimeout(10)
        message, streams, _, _ = socket.recv_fds(client, _MAX_MESSAGE, 3)
        request = Request(**json.loads(message), streams=streams)
        if different := differing_variables(given, request.environment, sys.modules):
            raise ValueError(f"it differs in {', '.join(different)}")
        # A lock that another thread holds would stay held in the fork. Some threads have just started and
        # have no name of their own yet, or are about to end.
        for pause in (0.0, 0.1, 0.4):
            time.sleep(pause)
            if not (threads := other_threads()):
                break
        else:
            raise ValueError(f"these threads run: {', '.join(threads)}")
        pid = os.fork()
        if pid == 0:
            return 0, request
        _answer(client, pid)
        return pid, request
    except (OSError, ValueError, TypeError, AttributeError) as error:
        print(f"refused: {error}", flush=True)
        client.close()
        return None, None
    finally:
        for stream in streams if pid != 0 else []:
            os.close(stream)


def _answer(client: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the client was killed: the selector reports it
        client.send(b"%d" % number)


def other_threads() -> list[str]:
    """Names of the threads of this process except its main one and jemalloc's, which is made for forks.

    The system's list also has those of native libraries, which Python does not know.
    """
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            name = Path(f"/proc/self/task/{task}/comm").read_text().strip()
            if int(task) != os.getpid() and name != "jemalloc_bg_thd":
                names.append(name)
    return names


def differing_variables(
    here: Mapping[str, str], there: Mapping[str, str], loaded: Container[str]
) -> list[str]:
    """Names of the variables that differ, of those that a loaded module reads at its import."""
    prefixes = tuple(p for module, read in _READ_AT_IMPORT.items() if module in loaded for p in read)
    names = sorted(name for name in {*here, *there} if name.startswith(prefixes))
    return [n for n in names if not n.startswith(_READ_LATER) and here.get(n) != there.get(n)]


if __name__ == "__main__":
    serve(sys.argv[1:])
