"""Workers that start with their imports done, because a fork server (`labkit.local.forkserver`) forks them.

Only on Linux, since a fork after imports is not safe elsewhere, and only for a cluster that the lab started.
"""

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from labkit import process_info
from labkit.errors import BadInput
from labkit.files import atomic_write, private_socket, text_of
from labkit.local import family
from labkit.local.forkserver.services import PROGRAMS
from labkit.local.forkserver.worker import ENDS, REFUSED
from labkit.local.lab import Lab
from labkit.local.variables import Changes
from labkit.settings import NODE_NAME

Modules = tuple[Sequence[str], Sequence[str], Sequence[str]]

_LIBRARIES = (
    # What Ray's own libraries import of others …
    "pandas",
    "pyarrow.dataset",
    "pyarrow.fs",
    "pyarrow.parquet",
    "pydantic",
    "requests",
    "rich",
    "aiobotocore.session",
    "s3fs",
    "PIL.Image",
    # … and by which a panel hears of a worker.
    "zmq",
)
_SHORTER = "labkit.local.forkserver.shorter_start"
_TORCH = ("torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data")
# What the first optimizer of a process imports: it takes longer than torch. In pieces, since a request waits
# for the end of one.
_DYNAMO = ("sympy", "torch.distributed.fsdp", "torch._dynamo")
# What a server imports: before there is a node, which Ray can't do; then; and when no request has come for a
# while.
MODULES: dict[str, Modules] = {
    "torch": (
        (*_LIBRARIES, *_TORCH),
        ("ray",),
        ("ray.train.torch", _SHORTER, "ray.data", "ray.tune", *_DYNAMO),
    ),
    "tensorflow": (
        (*_LIBRARIES, "tensorflow", "tf_keras"),
        ("ray",),
        ("ray.train.tensorflow", _SHORTER, "ray.data", "ray.tune"),
    ),
}


def modules_of(preload: str | Sequence[str]) -> Modules | None:
    """Return the modules that ``cluster.start(preload=…)`` names; None for none."""
    if not preload:
        return None
    if isinstance(preload, str) and preload in MODULES:
        return MODULES[preload]
    raise BadInput(
        "import modules ahead for the workers",
        f"preload={preload!r} is not known",
        'preload="torch", preload="tensorflow", or [] for none',
    )


class Preloader:
    """The fork servers of one process that is connected to Ray, one for each node.

    Their sockets and logs are in the lab's folder, which only this user can enter.
    """

    def __init__(self, lab: Lab, modules: Modules) -> None:
        self._lab = lab
        self._folder = lab.make_folder()
        self._modules = modules
        # Each with its socket, by the name of its node.
        self._servers: dict[str, tuple[psutil.Process, Path]] = {}

    @staticmethod
    def is_possible() -> bool:
        """Return whether this system can do it: Linux 5.3 or newer."""
        try:
            os.close(os.pidfd_open(os.getpid()))
        except (AttributeError, OSError):
            return False
        return True

    @property
    def py_executable(self) -> str:
        """Command for ``runtime_env["py_executable"]``: the fork server's client instead of python."""
        return f"{self._client} {shlex.quote(str(self._folder / 'fork-'))}"

    @property
    def _client(self) -> str:
        client = Path(__file__).parent / "forkserver" / "client.py"
        return shlex.join([sys.executable, "-I", "-S", str(client)])

    def ray(self, node: str) -> list[str]:
        """Return the command that is `ray` for a node, so that Ray's programs there are forks, too."""
        socket = self._folder / f"services-{node}"
        return [
            sys.executable,
            "-P",
            "-m",
            "labkit.local.forkserver.services",
            str(socket),
            self.make_launcher(),
        ]

    def make_launcher(self) -> str:
        """Write a script for a node to use as its Python, and return its path.

        Ray prepares each worker in a Python that imports ray (0.6 s) before it becomes `py_executable`.
        The script has that forked, too, as well as Ray's own programs, and runs Python for everything else.
        Where the folder's file system forbids programs, the node uses Python itself.
        """
        path = self._folder / "python"
        programs = "|".join(f"*/ray/{program}" for program in PROGRAMS)
        services = f'{self._client} {shlex.quote(str(self._folder))}/services-"${NODE_NAME}"'
        lines = [
            "#!/bin/sh",
            'if [ "$1" = -u ]; then program=$2; else program=$1; fi',
            'case "$program" in',
            f'*/setup_worker.py) exec {self.py_executable} "$@" ;;',
            f'{programs}) exec {services} "$@" ;;',
            "esac",
            f'exec {shlex.quote(sys.executable)} "$@"\n',
        ]
        atomic_write(path, "\n".join(lines), mode=0o700)
        try:
            subprocess.run([path, "-I", "-S", "-c", ""], check=True)
        except (OSError, subprocess.CalledProcessError):
            return sys.executable
        return str(path)

    def prepare(self, node: str, environment: Mapping[str, str], changes: Changes) -> None:
        """Start the server of a node, which may not exist yet: it imports while the node starts.

        The node's raylet has this environment, and so have its workers, but for the changes.
        """
        environment = changes.applied_to(environment)
        # Ray's variables follow with the node's job. A raylet removes LD_PRELOAD for its workers.
        variables = {name: value for name, value in environment.items() if not name.startswith("RAY_")}
        variables[NODE_NAME] = node
        if environment.get("RAY_LD_PRELOAD_ON_WORKERS") != "1":
            variables.pop("LD_PRELOAD", None)
        path = self._folder / f"fork-{node}-{os.getpid()}"
        log = self._log_of(node)
        log.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-P",
            "-m",
            "labkit.local.forkserver.server",
            str(os.getpid()),
            json.dumps(self._modules),
        ]
        with private_socket(path, socket.SOCK_SEQPACKET) as listener:
            started = self._lab.start(
                command,
                group=family.CLUSTER,
                log=log,
                env=variables,
                stdin=listener.fileno(),
            )
        self._servers[node] = psutil.Process(started.pid), path

    def serve(self, node: str, raylet: psutil.Process, changes: Changes, *, job_id: str) -> None:
        """Let the server of a node fork the workers of a job (in hex). Workers that start meanwhile wait.

        Ray reads the job and the pid of its raylet at its import, so a server is for one job on one node.
        """
        # If the raylet or the server has ended meanwhile, Ray's workers start as always.
        with contextlib.suppress(psutil.Error, OSError):
            environment = raylet.environ()
            if node not in self._servers:
                self.prepare(node, environment, changes)
            changed = changes.applied_to(environment)
            rays_variables = {name: value for name, value in changed.items() if name.startswith("RAY_")}
            rays_variables["RAY_JOB_ID"] = job_id
            rays_variables["RAY_RAYLET_PID"] = str(raylet.pid)
            path = self._folder / f"fork-{job_id}-{raylet.pid}"  # where the clients look
            job = {
                "environment": rays_variables,
                "path": str(path),
                "client": self.py_executable,
                "changed": sorted(changes.variables),
                "handed": {name: environment.get(name) for name in changes.handed},
            }
            process, prepared = self._servers[node]
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
                server.connect(str(prepared))
                server.send(json.dumps(job).encode())
            self._servers[node] = process, prepared.rename(path)

    def not_forked(self) -> str:
        """Say why workers of this connection were started as new Pythons; empty if all were forked."""
        lines: list[str] = []
        for node in self._servers:
            lines += text_of(self._log_of(node)).splitlines()
        for line in reversed(lines):
            if line.startswith(REFUSED):
                return line
        return ""

    def exit_codes(self) -> dict[int, int]:
        """Return, by pid, how forked workers ended: an exit status, or minus the number of a signal."""
        codes: dict[int, int] = {}
        for _, path in self._servers.values():
            for line in text_of(Path(f"{path}{ENDS}")).splitlines():
                pid, code = line.split()
                codes[int(pid)] = int(code)
        return codes

    def _log_of(self, node: str) -> Path:
        """Return the log of a node's server: what it could not import, and which requests it refused."""
        return self._folder / f"forkserver-{node}.log"

    def stop(self) -> None:
        """End the servers: each is for one connection. The workers that they forked go on."""
        process_info.terminate([process for process, _ in self._servers.values()], grace=3)
        for _, path in self._servers.values():
            path.unlink(missing_ok=True)
            Path(f"{path}{ENDS}").unlink(missing_ok=True)
        self._servers.clear()
