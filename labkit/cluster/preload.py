"""Workers that begin with their imports done: servers that fork them (`labkit.cluster.forkserver.server`).

    lab = cluster.start()                        # for PyTorch, the default
    lab = cluster.start(preload="tensorflow")
    lab = cluster.start(preload=[])              # each worker imports for itself, as Ray does it

Only for a cluster that the lab started, on Linux: a server is a process of this machine, and elsewhere
a fork after imports is not safe. On a cluster of somebody else's Ray starts its workers as always.
"""

import contextlib
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

import psutil

from labkit.errors import ClusterError
from labkit.settings import NODE_NAME
from labkit.system.process_registry import ProcessRegistry

# Ray, and what its libraries import of others. The libraries themselves come at the server's leisure.
_RAY = ("ray", "pandas", "pyarrow.dataset", "pyarrow.fs", "pyarrow.parquet", "pydantic", "requests", "rich")
_RAY += ("aiobotocore.session", "s3fs", "PIL.Image")
# torch._dynamo is what the first optimizer of a process imports, with sympy: 1.6 s, more than torch itself.
TORCH = (*_RAY, "torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data")
TORCH += ("ray.train.torch", "ray.data", "ray.tune", "torch._dynamo")
TENSORFLOW = (*_RAY, "tensorflow", "tf_keras", "ray.train.tensorflow", "ray.data", "ray.tune")
_LISTS = {"torch": TORCH, "tensorflow": TENSORFLOW}


def modules_of(preload: str | Sequence[str]) -> tuple[str, ...]:
    """The modules that ``cluster.start(preload=…)`` asks for.

    Args:
        preload: "torch", "tensorflow", or module names.

    Raises:
        ClusterError: it is neither.
    """
    if isinstance(preload, str):
        if preload in _LISTS:
            return _LISTS[preload]
        fact = f"preload={preload!r} is no list of modules, and not the name of one"
    elif isinstance(preload, Iterable):
        modules = tuple(preload)
        wrong = [m for m in modules if not isinstance(m, str) or not all(map(str.isidentifier, m.split(".")))]
        if not wrong:
            return modules
        fact = f"{wrong[0]!r} in preload is no name of a module"
    else:
        fact = f"preload={preload!r} is a {type(preload).__name__}"
    fix = 'preload="torch", preload="tensorflow", a list such as ["torch", "pandas"], or [] for none'
    raise ClusterError("import modules ahead for the workers", fact, fix)


def require_installed(modules: Iterable[str]) -> None:
    """Refuse names of modules that are not there.

    Raises:
        ClusterError: with their names.
    """
    if missing := sorted({module for module in modules if not _is_there(module)}):
        raise ClusterError(
            f"import {', '.join(missing)} ahead for the workers",
            "there is no such module here",
            "correct the name in cluster.start(preload=…), or install it",
        )


def _is_there(module: str) -> bool:
    """Whether a module is installed, looked up without importing the packages that it is in."""
    name, *rest = module.split(".")
    spec = importlib.util.find_spec(name)
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            break  # not there; or no package, and then its import alone can tell (os.path)
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations)
    return spec is not None


class Preloader:
    """The servers of one connection to Ray: one for each node that the lab started.

    Args:
        folder: where their sockets and logs come, one that only this user can enter.
        modules: what they import. None may draw ids from Ray meanwhile: then nothing is forked any more.
    """

    def __init__(self, folder: Path, modules: Sequence[str]) -> None:
        self._modules, self._folder = list(modules), folder
        self._sockets: list[Path] = []
        self._servers: list[tuple[subprocess.Popen, ProcessRegistry, str]] = []
        self._begun: dict[str, subprocess.Popen] = {}  # node → a server that does not know its node yet

    @staticmethod
    def possible() -> bool:
        """Whether this system can do it: Linux 5.3 or newer."""
        if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
            return False
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError:
            return False
        return True

    @property
    def py_executable(self) -> str:
        """For a runtime environment: what Ray is to run in the place of Python."""
        client = Path(__file__).with_name("forkserver") / "client.py"
        return shlex.join([sys.executable, "-I", "-S", str(client), str(self._folder / "fork")])

    def launcher(self) -> Path | None:
        """A program that a node has for its Python: it lets the servers fork what prepares each worker, and
        is Python for all else. None where no program may run in that folder.

        Ray prepares a worker in a Python of its own, which imports all of ray (0.6 s) and then becomes what
        `py_executable` says.
        """
        path = self._folder / "python"
        lines = ["#!/bin/sh", 'case "$1" in', f'*/setup_worker.py) exec {self.py_executable} "$@" ;;', "esac"]
        lines.append(f'exec {shlex.quote(sys.executable)} "$@"\n')
        part = path.with_suffix(f".{os.getpid()}")
        part.touch(mode=0o700)
        part.write_text("\n".join(lines))
        part.replace(path)
        try:
            subprocess.run([path, "-I", "-S", "-c", ""], check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return path

    def begin(self, registry: ProcessRegistry, lab: str, *, node: str) -> None:
        """Start the server of a node that is not there yet: it imports while the node starts.

        What it could not import and whom it refused stands in ``forkserver-<node>.log``.

        Args:
            node: its name.
        """
        # Ray's own variables are those of its node: in this process Ray may have set some for itself.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        environment[NODE_NAME] = node  # for whoever looks at a fork from outside: it shows this environment
        command = [sys.executable, "-P", "-m", "labkit.cluster.forkserver.server", *self._modules]
        log = self._folder / f"forkserver-{node}.log"
        server = registry.start(
            command, role=f"{node}: forkserver", group_id=lab, log=log, env=environment, stdin=subprocess.PIPE
        )
        self._begun[node] = server
        self._servers.append((server, registry, lab))

    def start(self, registry: ProcessRegistry, lab: str, *, node: str, job_id: str) -> None:
        """Let the server of one node, begun or not, serve it. Workers that are wanted while it still imports
        wait for it.

        Args:
            node: its name; one whose raylet has no record gets no server.
            job_id: of the connection, in hex. Ray reads it, and the raylet's pid, when it is imported, and
                so a server is for one job on one node.
        """
        raylet = next((e for e in registry.records(lab) if e.role == f"{node}: raylet" and e.alive), None)
        if raylet is None:
            return
        if node not in self._begun:
            self.begin(registry, lab, node=node)
        environment = {}
        with contextlib.suppress(psutil.Error):
            of_node = psutil.Process(raylet.pid).environ()
            environment = {k: v for k, v in of_node.items() if k.startswith("RAY_")}
        environment |= {"RAY_JOB_ID": job_id, "RAY_RAYLET_PID": str(raylet.pid)}
        self._sockets.append(self._folder / f"fork-{job_id}-{raylet.pid}")
        told = {"socket": str(self._sockets[-1]), "environment": environment}
        # If it ended meanwhile, workers start as Ray starts them.
        with contextlib.suppress(BrokenPipeError), self._begun.pop(node).stdin as pipe:
            pipe.write(json.dumps(told).encode() + b"\n")

    def stop(self) -> None:
        """End the servers. The workers that they forked live on."""
        self._begun.clear()
        for server, registry, lab in self._servers:
            with contextlib.suppress(ProcessLookupError):
                server.send_signal(signal.SIGTERM)
            server.wait()
            registry.remove(server.pid, group_id=lab)
        self._servers.clear()
        for socket in self._sockets:
            socket.unlink(missing_ok=True)
        self._sockets.clear()
