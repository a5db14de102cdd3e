"""A process that has done the imports of Ray's workers, and forks one for each that Ray starts.

``python -P -m labkit.local.forkserver.server KERNEL MODULES``, started by `labkit.local.preload` for the
process KERNEL. Its standard input is a Unix socket that listens. It starts before its node exists and imports
what does not depend on Ray. Then the kernel connects and sends Ray's environment; all later connections are
requests for a worker, of `labkit.local.forkserver.client`.

Ray starts each worker as a new Python, and on two cores a short run spends most of its time on their imports.
Here they are done once, and forks share them, as in `multiprocessing.forkserver` and Android's zygote.

A request that a fork cannot serve as a new Python would is refused, and the client then becomes a new Python.
In doubt it is refused: that costs time, and a worker that differs from a new Python costs truth.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from labkit.local.forkserver.setup import is_setup, worker_after
from labkit.local.forkserver.worker import ENDS, REFUSED, Request, become

_MAX_MESSAGE = 1 << 20
_PATIENCE = 10.0  # seconds for a client to send its request, which it does at once, but on a busy machine
_IDLE = 0.2  # seconds without a request
_IDLE_AT_FIRST = 0.5  # a first task, such as one that follows the start at once, is on its way

# A library may read any variable at its import, so a request has the server's environment but for these: a
# raylet, Ray Train or a shell sets them for a single worker, and they are read only when they are used.
_READ_LATER = {
    "PWD", "OLDPWD", "SHLVL", "_", "SPT_NOENV", "PYTHONBREAKPOINT", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS",
    "RAY_ADDRESS", "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC", "RAY_LD_PRELOAD_ON_WORKERS",
    "RAY_DATA_SHUFFLE_MAP_WORKER", "RAY_DATA_SHUFFLE_REDUCE_WORKER", "__RAY_DATA_OPERATOR_ID",
    # Ray Tune passes these to its trials.
    "PL_DISABLE_FORK", "RAY_CHDIR_TO_TRIAL_DIR", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
    "AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN",
}  # fmt: skip


def serve(kernel: int, early: list[str], modules: list[str], later: list[str]) -> None:
    """Import modules, then fork a worker for each request, until the process `kernel` has ended.

    Args:
        early: names of modules to import at once. One that can't be imported is reported in the log.
        modules: those that need Ray's environment.
        later: those to import when no request has come for a while, since not every worker needs them.
    """
    owner = os.pidfd_open(kernel)
    inherited = dict(os.environ)
    listener = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # number 0 stays taken
    # As Ray sets it for a worker of one CPU; one that gets more tells torch and numpy (`worker.become`). With
    # more, their imports start threads, and nothing can be forked.
    os.environ["OMP_NUM_THREADS"] = "1"
    _import(early)
    job = _prepared(listener, owner)
    os.environ |= job.environment
    _import(modules)
    freeze()
    print(f"ready: {len(sys.modules)} modules", flush=True)
    request = _until_forked(listener, replace(job, environment=inherited | job.environment), owner, later)
    if request is not None:
        become(request)
    for file in (job.path, job.path + ENDS):
        with contextlib.suppress(OSError):  # the kernel may have removed it
            os.unlink(file)


@dataclass(frozen=True)
class Job:
    """What the kernel says of its connection to Ray, once the node runs."""

    environment: dict[str, str]  # Ray's; later, all in which the modules were imported
    path: str  # of the socket
    client: str  # the command of the client, as the workers' runtime environments have it
    changed: list[str]  # names of the variables that its workers have from the kernel, and not from the node
    handed: dict[str, str | None]  # those of them that Ray doesn't know, with their values on the node

    def examine(self, request: Request) -> None:
        """Hand a worker its variables; raise a ValueError if it has others than the server."""
        for name, on_the_node in self.handed.items():
            if request.environment.get(name) == on_the_node:  # and not one of the actor's own
                request.handed[name] = self.environment[name]
        request.environment.update(request.handed)
        # What prepares a worker reads none of the changed ones, and sets them for the worker.
        require_same(self.environment, request.environment, self.changed if is_setup(request) else ())


def _prepared(listener: socket.socket, owner: int) -> Job:
    """Wait for what the kernel says of its connection."""
    awaited: list[Any] = [listener, owner]
    ready, _, _ = select.select(awaited, [], [])
    if owner in ready:
        sys.exit("the process that this was started for has ended")
    with listener.accept()[0] as kernel:
        kernel.settimeout(_PATIENCE)
        return Job(**json.loads(kernel.recv(_MAX_MESSAGE)))


def _until_forked(listener: socket.socket, job: Job, owner: int, later: list[str]) -> Request | None:
    """The request, in a forked process; None in this one, when its kernel (the pidfd `owner`) has ended.

    How a worker ended is noted next to the socket.
    """
    forks = Forks(listener, owner, job.examine, functools.partial(_note, Path(job.path + ENDS)))
    idle = _IDLE_AT_FIRST
    while forks.request is None and owner in forks.watched:
        if forks.wait(idle if later else None):
            idle = _IDLE
        else:
            _import([later.pop(0)])
            freeze()
    return _shortened(forks.request, job) if forks.request else None


def _shortened(request: Request, job: Job) -> Request:
    """In the fork: the worker's own request instead of the one for the program that prepares it."""
    if is_setup(request):
        worker = worker_after(request, job.client)
        if worker is not None and not differing_variables(job.environment, worker.environment):
            return worker
    return request


def _note(ends: Path, pid: int, code: int) -> None:
    """Note the exit status of a worker, or minus the signal that ended it: Ray never hears of it."""
    with contextlib.suppress(OSError), ends.open("a") as file:  # the kernel may have removed its folder
        file.write(f"{pid} {code}\n")


class Forks:
    """The forks of this process, each for a client of `listener`.

    `examine` raises a ValueError that says why a fork can't serve a request. `note` gets the pid and the exit
    status of each fork that has ended.

    Attributes:
        watched: pidfds of what runs, with the pids of the forks; the first one is `owner`, without a pid.
        request: what this process is a fork for; None in the process that forks.
    """

    def __init__(
        self,
        listener: socket.socket,
        owner: int,
        examine: Callable[[Request], None],
        note: Callable[[int, int], None] = lambda pid, status: None,
    ) -> None:
        self.watched: dict[int, int | None] = {owner: None}
        self.request: Request | None = None
        self._listener = listener
        self._examine = examine
        self._note = note

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for clients and for the end of what is watched; return whether there was any in time."""
        watched: list[Any] = [self._listener, *self.watched]
        ready, _, _ = select.select(watched, [], [], seconds)
        for pidfd in self.watched.keys() & {*ready}:
            pid = self.watched.pop(pidfd)
            os.close(pidfd)
            if pid is not None:
                _, status = os.waitpid(pid, 0)
                self._note(pid, os.waitstatus_to_exitcode(status))
        if self._listener in ready:
            self._fork()
        return bool(ready)

    def _fork(self) -> None:
        """Fork for the client that has connected.

        If a fork can't serve it, the log says why, and the client becomes a new Python.
        """
        pid = None
        request = None
        streams: list[int] = []
        client, _ = self._listener.accept()
        try:
            client.settimeout(_PATIENCE)
            message, streams, *_ = socket.recv_fds(client, _MAX_MESSAGE, 3)
            request = Request(**json.loads(message), streams=streams, client=client)
            self._examine(request)
            if gpus := open_gpus():
                raise ValueError(f"an import has opened {gpus[0]}, and CUDA does not work in forks")
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
                self.request = request
                self._listener.close()
                for pidfd in self.watched:
                    os.close(pidfd)
                return
            self.watched[os.pidfd_open(pid)] = pid
            client.send(b"%d" % pid)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            print(f"{REFUSED}{error}", flush=True)
            if pid is None:
                handed = request.handed if request is not None else {}
                with contextlib.suppress(OSError):
                    client.send(json.dumps(handed).encode())
        finally:
            if pid != 0:
                client.close()
                for stream in streams:
                    os.close(stream)


def require_same(here: Mapping[str, str], there: Mapping[str, str], but: Collection[str] = ()) -> None:
    """Raise a ValueError if variables differ, `but` some, that a module may have read at its import."""
    different = [name for name in differing_variables(here, there) if name not in but]
    if different:
        raise ValueError(f"it differs in {', '.join(different)}")


def differing_variables(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Names of the variables that differ, except those that no module reads at its import."""
    names = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
    late = {name for name in names if name.startswith("RAY_TRAIN_")} - {"RAY_TRAIN_V2_ENABLED"} | _READ_LATER
    return [name for name in names if name not in late]


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


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        try:
            with _actor_ids_from_urandom():
                importlib.import_module(module)
        except Exception as error:
            print(f"could not import {module}: {error}", flush=True)


def freeze() -> None:
    """Never free what exists by now: the collector would only touch, and so copy, shared pages.

    That holds in the forks, too, where a full collection took 0.4 s some hundred steps after a run's start.
    """
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def _actor_ids_from_urandom() -> Iterator[None]:
    """Classes that the block decorates with ray.remote get ids from the system: the same in all forks.

    Ray draws one for each such class, also in its own libraries, from a generator of absl that is not made
    for forks: after that, all forks would draw the same ids, and two tasks with one id end a worker ("Check
    failed: erased == 1").
    """
    actor: Any = sys.modules.get("ray.actor")
    if actor is None:
        yield
        return
    real = actor.ActorClassID
    actor.ActorClassID = SimpleNamespace(from_random=lambda: real(os.urandom(real.size())))
    try:
        yield
    finally:
        actor.ActorClassID = real


if __name__ == "__main__":
    serve(int(sys.argv[1]), *json.loads(sys.argv[2]))
