"""Nodes of a cluster on this machine: the `ray start` commands, and the launcher that runs them."""

import contextlib
import importlib
import json
import os
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from labkit.cluster import connection
from labkit.cluster.preload import Modules, Preloader
from labkit.errors import LabError
from labkit.files import private_file
from labkit.interrupts import alone, wait_until
from labkit.machine import free_port
from labkit.settings import NODE_NAME, Settings
from labkit.system import family, process_info, supervision

GROUP = family.CLUSTER
OBJECT_STORE_BYTES = 400_000_000  # shared memory of a node; lessons pass far less through it
START_TIMEOUT = 180  # seconds for one `ray start`; a cold disk needs 40, a machine with load 16 more than 90
# A raylet ends if its dashboard agent, a Python program, hasn't started within 15 s (its log: "Timed out
# waiting for file"), and `ray start` then waits 30 s for it. Neither can be set: ray-project/ray 65983.
_TOO_BUSY = "timed out during startup"
_ATTEMPTS = 3  # each reads more of what the next one needs from the disk
# `ray start` takes a second or two until it binds ports that were free before, and another program may be
# quicker: the head's port, the dashboard's, and that again after `ray start` tried it. Or two free ports that
# were drawn for one node are the same.
_PORT_TAKEN = (
    "Failed to start the grpc server",
    "Failed to bind to",
    "Failed to find a valid port",
    "is not used by multiple components",
)
_NO_DASHBOARD = "Failed to start the dashboard"  # after it come lines of its log, which end anywhere
# Tasks run on without the others: dashboard, monitors, the server of Ray's clients.
_HEAD = ("gcs_server", "raylet")

# Runs the `ray` CLI with `sys.executable` replaced: Ray starts its workers with that path.
_PROGRAM = "import sys; sys.executable = sys.argv.pop(1); from ray.scripts.scripts import main; main()"
# For a node with a fork server; both are settings of Ray.
_FORKED = {
    # Ray would start one worker for each CPU when the first driver connects; but those of this driver have
    # another ``py_executable``.
    "RAY_prestart_worker_first_driver": "0",
    # Workers that may start at a time. Ray's default is the number of cores, because imports take seconds. It
    # prints a warning into the notebook when four times as many workers run on a node.
    "RAY_worker_maximum_startup_concurrency": "8",
    # Seconds for a worker's start, not 60. It may wait for the server's imports, on a cold disk.
    "RAY_worker_register_timeout_seconds": "300",
}


class NodeLauncher:
    """Starts and stops the nodes of the home's cluster on this machine, and their fork servers.

    Attributes:
        token: the file with its authentication token.
        folder: Ray's folder for sockets and logs.
        preloader: the fork servers; None where Ray starts its workers by itself.
        address, dashboard_url: of the cluster, once its head runs.
    """

    address = dashboard_url = ""

    def __init__(self, settings: Settings, modules: Modules | None) -> None:
        self._home = settings.home
        self.token = settings.home / "ray-token"
        private_file(self.token, secrets.token_hex(32))  # at its first use
        self.folder = family.make_folder(settings.home)
        self.preloader = None
        if settings.preload and modules and Preloader.is_possible():
            self.preloader = Preloader(self._home, self.folder, modules)
        self._head: list[psutil.Process] = []

    def alone(self, check: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """For the one process of the home that starts a cluster; the others wait."""
        path, seconds = self.folder / "starting", 2 * START_TIMEOUT
        return alone(path, seconds=seconds, check=check, attempt="start a cluster")

    def connect(self) -> None:
        """Become one of the cluster's users, and connect this process to it."""
        # In this order: another kernel that stops meanwhile lets the cluster run.
        supervision.use(self._home, GROUP)
        executable = self.preloader.py_executable if self.preloader is not None else None
        connection.connect(self.address, token_file=self.token, ours=True, py_executable=executable)

    def find(self) -> bool:
        """Whether an earlier kernel has left a cluster that runs. What it has left half is stopped."""
        supervision.use(self._home, GROUP)
        facts = supervision.noted(self._home, GROUP, {"address": str, "dashboard": str})
        self._find_head()
        if facts and self.has_head():
            self.address, self.dashboard_url = facts.values()
            return True
        supervision.stop(self._home, GROUP)
        return False

    def _find_head(self) -> None:
        members = [one for one in family.running(self._home, GROUP, "head") if one.is_origin]
        self._head = [one.process for one in members if one.program in _HEAD]

    def has_head(self) -> bool:
        """Whether the processes that the head can't do without are running."""
        return len(self._head) == len(_HEAD) and all(map(process_info.is_alive, self._head))

    def start_head(self, *, cpus: int, object_store_bytes: int, on_wait: Callable[[], object]) -> None:
        """Start the head. `on_wait` is called several times a second."""
        supervision.use(self._home, GROUP)
        # Ray reads its environment when it is imported. That takes a second of this process, while the node's
        # processes take several.
        connection.set_environment(self.token, authenticate=True)
        threading.Thread(target=importlib.import_module, args=("ray",), daemon=True).start()
        ports: list[int] = []

        def options() -> list[str]:
            ports[:] = free_port(), free_port(), free_port()
            return [
                "--head",
                f"--port={ports[0]}",
                "--dashboard-host=127.0.0.1",
                f"--dashboard-port={ports[1]}",
                "--include-dashboard=true",  # else a head starts without one, for want of its port
                f"--ray-client-server-port={ports[2]}",
                f"--temp-dir={self.folder}",
            ]

        output = self._start("head", options, cpus, object_store_bytes, on_wait)
        without_colours = re.sub(r"\x1b\[[\d;]*m", "", output)
        host = re.search(r"Local node IP: (\S+)", without_colours)[1]
        self.address, self.dashboard_url = f"{host}:{ports[0]}", f"http://127.0.0.1:{ports[1]}"
        self._find_head()
        supervision.note(self._home, GROUP, {"address": self.address, "dashboard": self.dashboard_url})

    def start_node(
        self, name: str, *, cpus: int, resources: dict[str, float] | None, on_wait: Callable[[], object]
    ) -> None:
        # The head's monitor reads the logs of all nodes of this machine: a second one costs 0.7 s of CPU, and
        # would send each line twice.
        options = [f"--address={self.address}", "--include-log-monitor=false"]
        options.append(f"--resources={json.dumps(resources or {})}")
        self._start(name, lambda: options, cpus, OBJECT_STORE_BYTES, on_wait)

    def _start(
        self,
        name: str,
        options: Callable[[], list[str]],
        cpus: int,
        object_store_bytes: int,
        on_wait: Callable[[], object],
    ) -> str:
        """Start a node, again if the machine was too busy or a port was taken; return what it printed."""
        log = self.folder / f"start-{name}.log"
        for _ in range(_ATTEMPTS):
            command = [*options(), f"--node-name={name}", f"--num-cpus={cpus}"]
            command += [f"--object-store-memory={object_store_bytes}"]
            # Several nodes, and several clusters, on one machine.
            command += ["--min-worker-port=0", "--max-worker-port=0"]
            command += [f"--dashboard-agent-listen-port={free_port()}"]
            output, status = self._run(name, command, log, on_wait)
            if not status:
                return output
            self.stop_node(name)
            again = status == supervision.UNKNOWN or any(text in output for text in (_TOO_BUSY, *_PORT_TAKEN))
            if not again:
                break
        last = (output.strip() or "it printed nothing").splitlines()[-1].strip()
        fact = "its dashboard did not start" if _NO_DASHBOARD in output else f"`ray start` failed: {last}"
        raise LabError(f"start {name}", fact, f"read all of it in {log}")

    def _run(
        self, name: str, options: list[str], log: Path, on_wait: Callable[[], object]
    ) -> tuple[str, int]:
        """Run one `ray start` while its fork server imports; returns what it printed, and its status."""
        log.unlink(missing_ok=True)
        env = {"RAY_DASHBOARD_STARTUP_TIMEOUT_S": str(START_TIMEOUT), **os.environ, **connection.ENVIRONMENT}
        for other in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"):  # of another cluster
            env.pop(other, None)
        env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token), NODE_NAME: name}
        python = sys.executable
        if self.preloader is not None:
            env |= _FORKED
            self.preloader.prepare(name, env)
            python = self.preloader.make_launcher()
        command = [sys.executable, "-P", "-c", _PROGRAM, python, "start", *options]
        process = supervision.start(self._home, command, group=GROUP, log=log, env=env)
        if not wait_until(lambda: process.status() is not None, seconds=START_TIMEOUT, check=on_wait):
            fix = f"look into {log}; python -m labkit doctor reports what the machine lacks"
            raise LabError(f"start {name}", f"`ray start` takes more than {START_TIMEOUT} s", fix)
        return log.read_text(errors="replace"), process.status()

    def preload(self, nodes: Iterable[str]) -> None:
        """Let the fork servers of these nodes fork the workers of this process's connection."""
        if self.preloader is not None:
            import ray

            job_id, wanted = ray.get_runtime_context().get_job_id(), set(nodes)
            for one in family.running(self._home, GROUP):
                if one.is_origin and one.program == "raylet" and one.node in wanted:
                    self.preloader.serve(one.node, one.process, job_id=job_id)

    def stop_node(self, name: str) -> None:
        supervision.stop(self._home, GROUP, node=name)

    def release(self) -> None:
        """End this process's use of the cluster."""
        if self.preloader is not None:
            self.preloader.stop()
        supervision.leave(self._home, GROUP)

    @property
    def is_in_use(self) -> bool:
        return bool(supervision.users(self._home).get(GROUP))

    def stop(self) -> None:
        supervision.stop(self._home, GROUP)
