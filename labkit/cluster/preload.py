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
from collections.abc import Iterable
from pathlib import Path

import psutil

from labkit.files import atomic_path
from labkit.settings import NODE_NAME
from labkit.system.process_registry import ProcessRegistry


class Preloader:
    """The fork servers of one connection to Ray, one for each node.

    Args:
        registry, group_id: where the servers are recorded.
        folder: for their sockets and logs; only this user can enter it.
        modules: what they import.
    """

    def __init__(
        self, registry: ProcessRegistry, group_id: str, folder: Path, modules: Iterable[str]
    ) -> None:
        self._registry, self._group_id = registry, group_id
        self._modules, self._folder = list(modules), folder
        self._sockets: list[Path] = []
        self._servers: list[subprocess.Popen] = []
        self._waiting: dict[str, socket.socket] = {}  # node → standard input of a server that waits for it

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

    def prepare(self, node: str) -> None:
        """Start the server of a node that does not exist yet: it imports while the node starts.

        ``forkserver-<node>.log`` has what it could not import, and which requests it refused.
        """
        # Ray's variables are those of the node: in this process Ray may have set some for itself.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        environment[NODE_NAME] = node
        self._waiting[node], theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            server = self._registry.start(
                [sys.executable, "-P", "-m", "labkit.cluster.forkserver.server", *self._modules],
                role=f"{node}: forkserver",
                group_id=self._group_id,
                log=self._folder / f"forkserver-{node}.log",
                env=environment,
                stdin=theirs.fileno(),
            )
        self._servers.append(server)

    def serve(self, node: str, *, job_id: str) -> None:
        """Let a node's server fork the workers of a job. Workers that start while it imports wait for it.

        Args:
            node: its name; a node whose raylet is not recorded gets no server.
            job_id: of the connection, in hex. Ray reads it, and the raylet's pid, at its import: a server is
                for one job on one node.
        """
        role = f"{node}: raylet"
        raylet = next((r for r in self._registry.records(self._group_id) if r.role == role and r.alive), None)
        if raylet is None:
            return
        if node not in self._waiting:
            self.prepare(node)
        environment = {}
        with contextlib.suppress(psutil.Error):
            of_node = psutil.Process(raylet.pid).environ()
            environment = {k: v for k, v in of_node.items() if k.startswith("RAY_")}
        environment |= {"RAY_JOB_ID": job_id, "RAY_RAYLET_PID": str(raylet.pid)}
        path = self._folder / f"fork-{job_id}-{raylet.pid}"
        # If the server has ended, or any of this fails, Ray's workers start as always.
        with (
            contextlib.suppress(OSError),
            self._waiting.pop(node) as server,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
        ):
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            self._sockets.append(path)
            path.chmod(0o600)
            listener.listen(128)
            socket.send_fds(server, [json.dumps(environment).encode()], [listener.fileno()])

    def stop(self) -> None:
        """End the servers. The workers that they forked go on."""
        for one in self._waiting.values():
            one.close()
        for server in self._servers:
            server.terminate()
            server.wait()
            self._registry.remove(server.pid, group_id=self._group_id)
        for path in self._sockets:
            path.unlink(missing_ok=True)
        self._waiting.clear(), self._servers.clear(), self._sockets.clear()
