"""A process that has imported what Ray's workers need, and forks a worker for each that Ray starts.

``python -P -m labkit.cluster.forkserver.server MODULE…``; started by `labkit.cluster.preload`. It begins
before there is a node: it imports what knows nothing of Ray, and is told socket and environment in a line of
JSON on its standard input.

Ray starts each worker as a new Python. On two cores most of a short run is spent there: every worker
imports ray, ray.train, pandas, pyarrow and torch before it does anything. Here that is done once; a fork
shares it. The idea is that of Python's own `multiprocessing.forkserver` and of Android's zygote.

Who asks is `labkit.cluster.forkserver.client`, which Ray runs in the place of Python (``py_executable``, a
documented field of a runtime environment). It sends its arguments, environment, folder and the three
standard streams, and stays for as long as the worker lives: whoever kills the one kills the other. A
request that this process cannot serve in the same way as a new Python would is refused, and the client
then becomes that new Python.
"""

import array
import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
import threading
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from labkit.cluster.forkserver.ids import forks_are_alike, ids_of_the_system
from labkit.cluster.forkserver.worker import Request, become

_LENGTH = struct.Struct("!i")  # before a request: its bytes; in answers: a pid, then an exit status
_REFUSED = 0  # in place of a pid
_STREAMS = 3
_LOOK_EVERY = 1.0  # seconds between two looks at whether the kernel lives
_LEISURE = 0.2  # seconds without a request; before the first one ten times as many: it is on its way

# What libraries read when they are imported, and which library that is: a worker that has another value
# needs an import of its own.
_READ_AT_IMPORT = {
    "PYTHON": "sys",
    "LD_": "sys",
    "MALLOC_": "sys",
    "RAY_": "ray",
    "ARROW_": "pyarrow",
    "OMP_": "numpy",
    "OPENBLAS_": "numpy",
    "MKL_": "numpy",
    "NUMEXPR_": "numpy",
    "TORCH": "torch",
    "TF_": "tensorflow",
    "KERAS_": "tensorflow",
    "XLA_": "tensorflow",
}
# Packages that import no Ray, and so do not read its environment: they can come before a node is there.
_EARLY = {"PIL", "aiobotocore", "numpy", "pandas", "pyarrow", "pydantic", "requests", "rich", "s3fs"}
_EARLY |= {"tensorflow", "tf_keras", "torch"}
# What not every worker needs: it comes when nobody has asked for a moment. torch._dynamo takes as long as
# torch itself.
_LATER = {"ray.data", "ray.train.tensorflow", "ray.train.torch", "ray.tune", "torch._dynamo"}
# What a raylet or Ray Train sets, and is read when it is used.
_READ_LATER = ("RAY_TRAIN_", "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC", "RAY_LD_PRELOAD_ON_WORKERS")
_READ_LATER += ("RAY_ADDRESS", "RAY_DATA_SHUFFLE_", "PYTHONBREAKPOINT")


@dataclass
class _Worker:
    """A forked process, and the client that stands for it."""

    pid: int
    pidfd: int
    client: socket.socket
    ended: bool = False


def differs(here: Mapping[str, str], there: Mapping[str, str], loaded: Container[str]) -> list[str]:
    """Names of the variables that matter to a loaded module and are not the same in both environments."""
    prefixes = tuple(prefix for prefix, module in _READ_AT_IMPORT.items() if module in loaded)
    names = sorted(name for name in {*here, *there} if name.startswith(prefixes))
    return [n for n in names if not n.startswith(_READ_LATER) and here.get(n) != there.get(n)]


def serve(modules: list[str]) -> None:
    """Import `modules`, then fork a worker for each request, until the process that started this is gone.

    A line on standard input tells the socket, which is made here, for this user alone, and what Ray is to
    find in the environment. Requests that come during the import wait. In a forked process this function does
    not return: it becomes the worker.

    Args:
        modules: names to import; one that fails is told in the log, and left out. If two forks would draw
            the same random ids from Ray after them, nothing is served.
    """
    owner, given = os.getppid(), dict(os.environ)
    early = [m for m in modules if m.partition(".")[0] in _EARLY and m not in _LATER]
    # As Ray has it for a worker of one CPU; one that gets more is told (`labkit.cluster.forkserver.worker`).
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    told = _Told()
    _import(early)
    told.join()  # no fork with a second thread
    if told.listener is None:
        return  # no node came of it
    given |= told.environment
    os.environ |= told.environment
    _import(module for module in modules if module not in {*early, *_LATER})
    if not _ready("ready"):
        os.unlink(told.path)
        return
    later = [module for module in modules if module in _LATER]
    request = _until_forked(told.listener, given, owner, later)
    if request is not None:
        become(request)
    else:
        with contextlib.suppress(OSError):
            os.unlink(told.path)


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        try:
            with ids_of_the_system():
                importlib.import_module(module)
        except Exception as error:
            print(f"could not import {module}: {error}", flush=True)


def _ready(what: str) -> bool:
    """Whether forks can be taken after what was imported; told in the log."""
    if forks_are_alike():
        print("two forks draw the same ids: one of these modules has drawn some at its import", flush=True)
        return False
    # What was made so far is never freed: the collector would only touch, and so copy, shared pages.
    gc.collect()
    gc.freeze()
    print(f"{what}: {len(sys.modules)} modules", flush=True)
    return True


class _Told(threading.Thread):
    """Waits for the line on standard input, and opens the socket at once: who asks then is not turned away.

    Attributes:
        path: of the socket.
        listener: there is none where the input ended without a line.
        environment: what Ray reads at its import, as in the node.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.path, self.listener = "", None
        self.environment: dict[str, str] = {}
        self.start()

    def run(self) -> None:
        line = sys.stdin.readline()
        if line:
            told = json.loads(line)
            self.path, self.environment = told["socket"], told["environment"]
            self.listener = _listen(self.path)


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # of one that was killed
    mask = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(mask)
    listener.listen(128)
    return listener


def _until_forked(
    listener: socket.socket, given: Mapping[str, str], owner: int, later: list[str]
) -> Request | None:
    """The request, in a forked process; None in this one, when it is needed no longer."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    workers, leisure = 0, 10 * _LEISURE
    # Its owner gone, it stays for its workers' sake: a detached actor outlives the kernel.
    while os.getppid() == owner or workers:
        ready = selector.select(leisure if later else _LOOK_EVERY)
        if not ready and later:
            _import([later.pop(0)])
            if _ready("and at leisure"):
                continue
            # Who asks now becomes a new Python; the workers that are there go on.
            later.clear()
            selector.unregister(listener)
            with contextlib.suppress(OSError):  # the kernel may have removed it
                os.unlink(listener.getsockname())
            listener.close()
        for key, _ in ready:
            if key.fileobj is listener:
                client, _ = listener.accept()
                request = _receive(client, given)
                if request is not None and (threads := _other_threads()):
                    print(f"refused, since these threads run: {', '.join(threads)}", flush=True)
                    _close(request.streams)
                    request = None
                if request is None:
                    client.close()
                    continue
                pid = os.fork()
                if pid == 0:
                    client.close()
                    _close_all(selector)
                    return request
                _close(request.streams)
                workers, leisure = workers + 1, _LEISURE
                worker = _Worker(pid, os.pidfd_open(pid), client)
                selector.register(worker.pidfd, selectors.EVENT_READ, worker)
                selector.register(client, selectors.EVENT_READ, worker)
                with contextlib.suppress(OSError):  # it was killed meanwhile: the selector tells
                    client.sendall(_LENGTH.pack(pid))
            elif key.fd == key.data.pidfd:
                workers -= 1
                _forget(key.data, selector)
            elif not key.data.ended:
                # A client never writes again: what can be read is its end. Who killed it meant its worker.
                selector.unregister(key.data.client)
                with contextlib.suppress(OSError):
                    os.killpg(key.data.pid, signal.SIGKILL)
                with contextlib.suppress(OSError):  # it may have had no time yet to make a group
                    signal.pidfd_send_signal(key.data.pidfd, signal.SIGKILL)
    return None


def _receive(client: socket.socket, given: Mapping[str, str]) -> Request | None:
    """A request; None where it was refused, or is none."""
    streams = array.array("i")
    try:
        client.settimeout(10)
        # The streams come with the first bytes.
        data, extra, _, _ = client.recvmsg(_LENGTH.size, socket.CMSG_SPACE(_STREAMS * streams.itemsize))
        for level, kind, content in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                streams.frombytes(content[: len(content) - len(content) % streams.itemsize])
        content = _exactly(client, _LENGTH.unpack(data)[0])
        request = Request(**json.loads(content), streams=list(streams))
        other = differs(given, request.environment, sys.modules)
        if not other and len(streams) == _STREAMS:
            return request
        print(f"refused, since it differs in {', '.join(other)}", flush=True)
        client.sendall(_LENGTH.pack(_REFUSED))
    except (OSError, EOFError, ValueError, TypeError, struct.error) as error:
        print(f"a request failed: {error!r}", flush=True)
    _close(streams)
    return None


def _close_all(selector: selectors.BaseSelector) -> None:
    """Close what belongs to other workers: a copy would hide from their clients that this server ended."""
    for key in list(selector.get_map().values()):
        if key.data is None:
            key.fileobj.close()
        elif key.fd == key.data.pidfd:
            os.close(key.fd)
            key.data.client.close()
    selector.close()


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _other_threads() -> list[str]:
    """Names of this process's threads but for its first: a lock that one of them holds stays held in a fork.

    Threads of native libraries count, of which Python knows nothing; jemalloc looks after its own.
    """
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            name = Path(f"/proc/self/task/{task}/comm").read_text().strip()
            if int(task) != os.getpid() and name != "jemalloc_bg_thd":
                names.append(name)
    return names


def _exactly(client: socket.socket, length: int) -> bytes:
    content = b""
    while len(content) < length:
        part = client.recv(length - len(content))
        if not part:
            raise EOFError("the client is gone")
        content += part
    return content


def _forget(worker: _Worker, selector: selectors.BaseSelector) -> None:
    """A worker ended: its client ends in the same way."""
    worker.ended = True
    _, status = os.waitpid(worker.pid, 0)
    for one in (worker.pidfd, worker.client):
        with contextlib.suppress(KeyError, ValueError):
            selector.unregister(one)
    os.close(worker.pidfd)
    with contextlib.suppress(OSError):
        worker.client.sendall(_LENGTH.pack(os.waitstatus_to_exitcode(status)))
    worker.client.close()


if __name__ == "__main__":
    serve(sys.argv[1:])
