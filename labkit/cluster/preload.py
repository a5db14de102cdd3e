"""Workers that start with their imports done, because a fork server (`labkit.cluster.forkserver`) forks them.

Only on Linux, since a fork after imports is not safe elsewhere, and only for a cluster that the lab started.
"""

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import psutil

from labkit.errors import LabError
from labkit.files import atomic_path
from labkit.settings import NODE_NAME
from labkit.system import family, supervision

# Ray, and what its libraries import of others. Those libraries come last: the server imports them when idle.
_RAY = ("ray", "pandas", "pyarrow.dataset", "pyarrow.fs", "pyarrow.parquet", "pydantic", "requests", "rich")
_RAY += ("aiobotocore.session", "s3fs", "PIL.Image")
# torch._dynamo is what the first optimizer of a process imports, with sympy: 1.6 s, more than torch itself.
TORCH = (*_RAY, "torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data")
TORCH += ("ray.train.torch", "ray.data", "ray.tune", "torch._dynamo")
TENSORFLOW = (*_RAY, "tensorflow", "tf_keras", "ray.train.tensorflow", "ray.data", "ray.tune")
_LISTS = {"torch": TORCH, "tensorflow": TENSORFLOW}
_PACKAGES = {"site-packages", "dist-packages"}


def modules_of(preload: str | Sequence[str]) -> tuple[str, ...]:
    """The modules that ``cluster.start(preload=…)`` names.

    Of ``a.b.c`` only the package ``a`` is looked for. The fork server's log has what else it cannot import.

    Raises:
        LabError: it isn't a list, a package is missing or not installed: workers would not see an edit.
    """
    attempt = "import modules ahead for the workers"
    fix = 'preload="torch", preload="tensorflow", a list such as ["torch", "pandas"], or [] for none'
    if isinstance(preload, str):
        if preload in _LISTS:
            return _LISTS[preload]
        raise LabError(attempt, f"preload={preload!r} is not the name of a list of modules", fix)
    try:
        modules = tuple(preload)
        found = {module: find_spec(module.partition(".")[0]) for module in modules}
    except (TypeError, AttributeError, ValueError):
        raise LabError(attempt, f"preload={preload!r} is not a list of module names", fix) from None
    if missing := [module for module, spec in found.items() if spec is None]:
        raise LabError(attempt, f"there is no module {', '.join(missing)} here", fix)
    if own := [module for module, spec in found.items() if not _is_installed(spec.origin)]:
        fact = f"{', '.join(own)} is not an installed package, and workers would not notice an edit"
        raise LabError(attempt, fact, "leave it out of the list: workers import it by themselves")
    return modules


def _is_installed(origin: str | None) -> bool:
    if origin in ("built-in", "frozen"):
        return True
    path = Path(origin or "")
    return bool(_PACKAGES & {*path.parts}) or path.is_relative_to(sysconfig.get_path("stdlib"))


class Preloader:
    """The fork servers of one process that is connected to Ray, one for each node.

    Args:
        home: of the lab.
        folder: for their sockets and logs; only this user can enter it.
        modules: what they import.
    """

    def __init__(self, home: Path, folder: Path, modules: Iterable[str]) -> None:
        self._home, self._modules, self._folder = home, list(modules), folder
        self._servers: dict[str, int] = {}  # pids, by the names of their nodes
        self._sockets: dict[str, Path] = {}

    @staticmethod
    def is_possible() -> bool:
        """Whether this system can do it: Linux 5.3 or newer."""
        try:
            os.close(os.pidfd_open(os.getpid()))
        except (AttributeError, OSError):
            return False
        return sys.platform == "linux"

    @property
    def py_executable(self) -> str:
        """Command for ``runtime_env["py_executable"]``: the fork server's client instead of python."""
        client = Path(__file__).parent / "forkserver" / "client.py"
        return shlex.join([sys.executable, "-I", "-S", str(client), str(self._folder / "fork")])

    def make_launcher(self) -> Path | None:
        """Write a script for a node to use as its Python. None if the folder's file system forbids programs.

        Ray prepares each worker in a Python that imports ray (0.6 s) before it becomes `py_executable`.
        The script has that forked too, and runs Python for everything else.
        """
        path = self._folder / "python"
        lines = ["#!/bin/sh", 'case "$1" in', f'*/setup_worker.py) exec {self.py_executable} "$@" ;;', "esac"]
        lines.append(f'exec {shlex.quote(sys.executable)} "$@"\n')
        with atomic_path(path, mode=0o700) as partial:
            partial.write_text("\n".join(lines))
        try:
            subprocess.run([path, "-I", "-S", "-c", ""], check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return path

    def prepare(self, node: str, environment: Mapping[str, str]) -> None:
        """Start the server of a node, which may not exist yet: it imports while the node starts.

        Args:
            environment: of the node's raylet, and so of its workers.
        """
        # Ray's variables follow with the node's job. A raylet removes LD_PRELOAD for its workers.
        given = {k: v for k, v in environment.items() if not k.startswith("RAY_")}
        if environment.get("RAY_LD_PRELOAD_ON_WORKERS") != "1":
            given.pop("LD_PRELOAD", None)
        path = self._sockets[node] = self._folder / f"fork-{node}-{os.getpid()}"
        for old in (path, self.log_of(node)):
            old.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(128)  # requests during the imports wait for their end
            command = [sys.executable, "-P", "-m", "labkit.cluster.forkserver.server", str(os.getpid())]
            self._servers[node] = supervision.start(
                self._home,
                [*command, *self._modules],
                group=family.CLUSTER,
                log=self.log_of(node),
                env={**given, NODE_NAME: node},
                stdin=listener.fileno(),
            ).pid

    def serve(self, node: str, raylet: psutil.Process, *, job_id: str) -> None:
        """Let a node's server fork the workers of a job. Workers that start while it imports wait for it.

        Args:
            node, raylet: its name, and its main process.
            job_id: of the connection, in hex. Ray reads it, and the raylet's pid, at its import: a server is
                for one job on one node.
        """
        # If the raylet or the server has ended meanwhile, Ray's workers start as always.
        with contextlib.suppress(psutil.Error, OSError):
            environment = raylet.environ()
            if node not in self._servers:
                self.prepare(node, environment)
            rays = {k: v for k, v in environment.items() if k.startswith("RAY_")}
            rays |= {"RAY_JOB_ID": job_id, "RAY_RAYLET_PID": str(raylet.pid)}
            path = self._folder / f"fork-{job_id}-{raylet.pid}"  # where the clients look
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
                server.connect(str(self._sockets[node]))
                server.send(json.dumps({"environment": rays, "path": str(path)}).encode())
            self._sockets[node] = self._sockets[node].rename(path)

    def log_of(self, node: str) -> Path:
        """What the server of a node could not import, and which requests it refused."""
        return self._folder / f"forkserver-{node}.log"

    def stop(self) -> None:
        """End the servers. The workers that they forked go on."""
        for pid in self._servers.values():
            with contextlib.suppress(psutil.Error):
                server = psutil.Process(pid)
                server.terminate()
                server.wait(timeout=3)
        for path in self._sockets.values():
            path.unlink(missing_ok=True)
        self._servers.clear(), self._sockets.clear()
