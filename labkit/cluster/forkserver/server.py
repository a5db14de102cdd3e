"""A process that has done the imports of Ray's workers, and forks one for each that Ray starts.

``python -P -m labkit.cluster.forkserver.server KERNEL MODULE…``, started by `labkit.cluster.preload` for the
process KERNEL. Its standard input is a Unix socket that listens. It starts before its node exists and imports
what does not depend on Ray. Then the kernel connects and sends Ray's environment; all later connections are
requests for a worker.

Ray starts each worker as a new Python, and on two cores a short run spends most of its time on their imports.
Here they are done once, and forks share them, as in `multiprocessing.forkserver` and Android's zygote.

The clients (`labkit.cluster.forkserver.client`) stay as long as their workers live, so that ending one ends
the other. A request that a fork cannot serve as a new Python would is refused, and the client then becomes a
new Python. In doubt it is refused: that costs time, and a worker that differs from a new Python costs truth.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from labkit.cluster.forkserver.ids import actor_ids_from_urandom, forks_draw_same_ids
from labkit.cluster.forkserver.worker import REFUSED, UNFIT, Request, become

_MAX_MESSAGE = 1 << 20
_OWNER_EVERY = 1.0  # seconds between two looks at whether the kernel lives
_PATIENCE = 1.0  # seconds for a client to send its request, which it does at once
_IDLE = 0.2  # seconds without a request; before the first one ten times as many, since it is on its way

# A library may read any variable when it is imported. These may differ: a raylet, Ray Train or a shell sets
# them for a single worker, and they are read only when they are used.
_READ_LATER = {"PWD", "OLDPWD", "SHLVL", "_", "SPT_NOENV", "PYTHONBREAKPOINT", "CUDA_VISIBLE_DEVICES"}
_READ_LATER |= {"RAY_ADDRESS", "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC", "RAY_LD_PRELOAD_ON_WORKERS"}
_READ_LATER |= {"RAY_DATA_SHUFFLE_MAP_WORKER", "RAY_DATA_SHUFFLE_REDUCE_WORKER", "__RAY_DATA_OPERATOR_ID"}
# Ray Tune passes these to its trials.
_READ_LATER |= {"PL_DISABLE_FORK", "RAY_CHDIR_TO_TRIAL_DIR", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
_READ_LATER |= {"AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN"}
_RAY_TRAIN, _AT_IMPORT = "RAY_TRAIN_", {"RAY_TRAIN_V2_ENABLED"}
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


def serve(kernel: int, modules: list[str]) -> None:
    """Import `modules`, then fork a worker for each request, until the process `kernel` has ended.

    In a forked process this function does not return: that process becomes the worker.

    Args:
        modules: names to import. One that cannot be imported is reported in the log.
    """
    owner, given = os.pidfd_open(kernel), dict(os.environ)
    listener = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # number 0 stays taken
    early = [m for m in modules if m.partition(".")[0] in _EARLY and m not in _LATER]
    # As Ray sets it for a worker of one CPU; one that gets more tells torch and numpy (`worker.become`).
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _import(early)
    environment, path = _prepared(listener, owner)
    os.environ |= environment
    _import(m for m in modules if m not in {*early, *_LATER})
    if _can_fork():
        later = [module for module in modules if module in _LATER]
        request = _Server(listener, given | environment, owner, later).until_forked()
        if request is not None:
            become(request)
    with contextlib.suppress(OSError):  # the kernel may have removed it
        os.unlink(path)


def _prepared(listener: socket.socket, owner: int) -> tuple[dict[str, str], str]:
    """Ray's environment, and the path of the socket: the kernel sends them once the node runs."""
    listener.settimeout(_OWNER_EVERY)
    while not _has_ended(owner):
        with contextlib.suppress(TimeoutError):
            with listener.accept()[0] as kernel:
                kernel.settimeout(_PATIENCE)
                told = json.loads(kernel.recv(_MAX_MESSAGE))
            listener.settimeout(None)
            return told["environment"], told["path"]
    sys.exit("the process that this was started for has ended")


def _has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        try:
            with actor_ids_from_urandom():
                importlib.import_module(module)
        except Exception as error:
            print(f"could not import {module}: {error}", flush=True)


def _can_fork() -> bool:
    """Whether forks can be taken after what was imported; the log says why not."""
    why = ""
    if forks_draw_same_ids():
        why = "two forks draw the same ids: one of these modules has drawn some at its import"
    elif gpus := open_gpus():
        why = f"one of these modules has opened {gpus[0]} at its import, and CUDA does not work in forks"
    if why:
        print(f"{UNFIT}{why}", flush=True)
        return False
    # What exists by now is never freed: the collector would only touch, and so copy, shared pages.
    gc.collect()
    gc.freeze()
    print(f"ready: {len(sys.modules)} modules", flush=True)
    return True


class _Server:
    """Forks workers for the clients that connect.

    Args:
        listener: where they connect.
        given: the environment in which the modules were imported.
        owner: a pidfd of the kernel.
        later: modules to import when no request has come for a while.
    """

    def __init__(
        self, listener: socket.socket, given: Mapping[str, str], owner: int, later: list[str]
    ) -> None:
        self._listener, self._given, self._owner, self._later = listener, given, owner, later
        self._workers: set[_Worker] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def until_forked(self) -> Request | None:
        """The request, in a forked process; None in this one, when it is not needed any more."""
        idle = 10 * _IDLE
        # When its owner has ended, it stays for its workers: a detached actor outlives the kernel.
        while not _has_ended(self._owner) or self._workers:
            ready = self._selector.select(idle if self._later else _OWNER_EVERY)
            if not ready and self._later:
                self._import_later()
            for key, _ in ready:
                worker = key.data
                if worker is None:
                    if (request := self._accept()) is not None:
                        return request
                    idle = _IDLE
                elif key.fd == worker.pidfd:
                    self._worker_ended(worker)
                elif worker in self._workers:
                    self._client_ended(worker)
        return None

    def _import_later(self) -> None:
        _import([self._later.pop(0)])
        if not _can_fork():
            self._later.clear()
            self._selector.unregister(self._listener)
            self._listener.close()  # clients are refused from here on

    def _accept(self) -> Request | None:
        """Fork for the client that has connected. Returns its request in the fork, None in this process."""
        try:
            client, _ = self._listener.accept()
        except OSError as error:  # too many open files
            print(f"{REFUSED}{error}", flush=True)
            time.sleep(_IDLE)
            return None
        pid, request = _fork_for(client, self._given)
        if pid == 0:
            # A copy of another worker's connection would hide from its client that this server ended.
            for one in self._workers:
                os.close(one.pidfd)
                one.client.close()
            for mine in (client, self._listener, self._selector):
                mine.close()
            os.close(self._owner)
            return request
        if pid is not None:
            worker = _Worker(pid, os.pidfd_open(pid), client)
            self._workers.add(worker)
            self._selector.register(worker.pidfd, selectors.EVENT_READ, worker)
            self._selector.register(client, selectors.EVENT_READ, worker)
        return None

    def _worker_ended(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        _, status = os.waitpid(worker.pid, 0)
        for one in (worker.pidfd, worker.client):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(one)
        os.close(worker.pidfd)
        _answer(worker.client, os.waitstatus_to_exitcode(status))
        worker.client.close()

    def _client_ended(self, worker: _Worker) -> None:
        """A client never writes again: what can be read is its end, and ending it means its worker."""
        self._selector.unregister(worker.client)
        with contextlib.suppress(OSError):
            os.killpg(worker.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):  # it may not have made its group yet
            signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)


def _fork_for(client: socket.socket, given: Mapping[str, str]) -> tuple[int | None, Request | None]:
    """Fork for the request of a client: (its pid, or 0 in the fork; the request).

    The pid is None if the request is refused: the log says why, and the client becomes a new Python.
    """
    pid, streams = None, []
    try:
        client.settimeout(_PATIENCE)
        message, streams, _, _ = socket.recv_fds(client, _MAX_MESSAGE, 3)
        request = Request(**json.loads(message), streams=streams)
        if different := differing_variables(given, request.environment):
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
        print(f"{REFUSED}{error}", flush=True)
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


def open_gpus() -> list[str]:
    """Device files of NVIDIA that this process has open: CUDA is initialized, and can't be used in a fork."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in found if path.startswith("/dev/nvidia")]


def differing_variables(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Names of the variables that differ, except those that no module reads at its import."""
    names = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
    late = {name for name in names if name.startswith(_RAY_TRAIN)} - _AT_IMPORT | _READ_LATER
    return [name for name in names if name not in late]


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2:])
