"""A cluster on this machine: the `ray start` commands of its nodes, what grows, shrinks and stops it."""

import contextlib
import importlib
import json
import math
import os
import re
import secrets
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from labkit import interrupts, process_info
from labkit.cluster import connection
from labkit.cluster.capacity import Node
from labkit.cluster.handle import Cluster
from labkit.display.formatting import cleaned
from labkit.display.progress import waiting
from labkit.errors import BadInput, NotReachable, expect_int
from labkit.files import last_line, private_file, text_of
from labkit.interrupts import wait_until
from labkit.local import family, temporary
from labkit.local.family import Member
from labkit.local.lab import UNKNOWN, Lab, alone
from labkit.local.preload import Modules, Preloader
from labkit.local.variables import Changes, changes
from labkit.machine import free_port
from labkit.settings import NODE_NAME, Settings

GROUP = family.CLUSTER
OBJECT_STORE_BYTES = 400_000_000  # shared memory of a node; lessons pass far less through it
START_TIMEOUT = 180  # seconds for one `ray start`; a cold disk needs 40, a machine with load 16 more than 90
_SLOW_AFTER = 40  # seconds of one `ray start` after which a line says what is known
# A raylet ends if its dashboard agent, a Python program, hasn't started within 15 s (its log: "Timed out
# waiting for file"), and `ray start` then waits 30 s for it. Neither can be set: ray-project/ray 65983.
_TOO_BUSY = "timed out during startup"
_NOTICED_WITHIN = 30  # seconds until the head has noticed that a node has joined or gone
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
# Tasks run on without the others: dashboard, monitors.
_HEAD = ("gcs_server", "raylet")


class LocalCluster(Cluster):
    """The cluster of the home on this machine: its nodes with their fork servers.

    Attributes:
        folder: Ray's folder for sockets and logs.
        preloader: the fork servers; None where Ray starts its workers by itself.
        changes: what this process's workers have that the nodes don't have.
    """

    is_ours = True

    def __init__(self, settings: Settings, modules: Modules | None) -> None:
        token = settings.home / "ray-token"
        private_file(token, secrets.token_hex(32))  # at its first use
        super().__init__("", token_file=token)
        self._lab = Lab(settings.home)
        self.folder = self._lab.make_folder()
        self.log_dir: Path = self.folder / "session_latest" / "logs"
        self.changes = Changes()
        self.preloader: Preloader | None = None
        if settings.preload and modules and Preloader.is_possible():
            self.preloader = Preloader(self._lab, modules)
        self._head: list[psutil.Process] = []
        self._head_started_at = math.inf  # by this process; the clock's seconds

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Let one process of the home start a cluster at a time; the others wait."""
        path = self.folder / "starting"
        return alone(path, seconds=2 * START_TIMEOUT, attempt="start a cluster")

    def find(self) -> bool:
        """Connect to the cluster that an earlier kernel left running. What it has left half is stopped."""
        self._lab.use(GROUP)  # before the connection: another kernel that stops meanwhile lets it run
        facts = self._lab.noted(GROUP, {"address": str})
        self._find_head()
        if facts and self._has_head() and _is_of_this_machine(facts["address"]):
            self.address = facts["address"]
            try:
                self.connect()
                return True
            except BaseException as error:
                self._abandon()
                if not isinstance(error, NotReachable) or self._is_in_use():
                    raise  # another notebook may be training there
        self._lab.stop(GROUP)  # it was ending anyway
        return False

    def start(self, nodes: int, *, cpus: int, object_store_bytes: int) -> None:
        """Start the head, connect to it, and start the other nodes."""
        try:
            with waiting("starting the cluster"):
                self._start_head(cpus, object_store_bytes)
                self.connect()
                self._lab.note(GROUP, {"address": self.address, "dashboard": self.dashboard_url})
            for _ in range(1, nodes):
                self.add_node(cpus=cpus)
        except BaseException:
            # Also after an interrupt: half a cluster is of no use.
            self._abandon()
            self._lab.stop(GROUP)
            raise

    def connect(self) -> None:
        """Connect as `Cluster.connect` does, and have the workers of this connection forked."""
        self.changes = self.changes_now()
        executable = None
        if self.preloader is not None:
            executable = self.preloader.py_executable
            if self._running:  # its servers are for the connection before
                self.preloader.stop()
        # Without RAY_ADDRESS, Ray's state API asks the cluster that was started last on this machine (a file
        # in /tmp/ray names it). If that one has ended, each run of Ray Train waits 12 s for it.
        runtime_env: dict[str, Any] = {"env_vars": {**self.changes.env_vars, "RAY_ADDRESS": self.address}}
        command = self.changes.command(executable)
        if command is not None:
            runtime_env["py_executable"] = command
        self._begin(runtime_env)
        self._preload(node.name for node in self.nodes)

    def changes_now(self) -> Changes:
        """Return what differs between this process and the nodes, which another kernel may have started."""
        here = temporary.without_unusable(os.environ)
        return changes(here, self._raylets().values(), forked=self.preloader is not None)

    @property
    def is_running(self) -> bool:
        return self._running and self._has_head()

    def runs_here(self, node: str) -> bool:
        return bool(self._lab.running(GROUP, node))

    def _answers(self) -> bool:
        """Return whether its address is this machine's; `is_running` looks at its processes.

        A laptop that has changed the network has lost the address, and Ray's processes their connections.
        """
        return _is_of_this_machine(self.address)

    def add_node(self, *, cpus: int | None = None, resources: dict[str, float] | None = None) -> Node:
        """Start one more node on this machine, and wait until it has joined the cluster.

        Args:
            cpus: its logical CPUs (default: as many as the head has).
            resources: custom resources, such as ``{"fast_disk": 1}``.

        Raises:
            NotReachable: the node did not join.
            RunStopped: the reader interrupted; the node is gone again.
        """
        self._require_running("add a node")
        nodes = self._all_nodes()
        cpus = int(nodes[0].cpus) if cpus is None else cpus
        expect_int("add a node", "cpus", cpus, least=0)
        names = {node.name for node in nodes}
        name = next(f"node-{k}" for k in range(2, 1000) if f"node-{k}" not in names)
        undo = interrupts.stoppable(f"the start of {name}", undo=lambda: self._stop_node(name))
        with undo, waiting(f"starting {name}"):
            for node in nodes:
                if not node.alive:  # its raylet ended by itself, and has left something behind
                    self._stop_node(node.name)
            # The head's monitor reads the logs of all nodes of this machine: a second one costs 0.7 s of CPU,
            # and would send each line twice.
            options = [
                f"--address={self.address}",
                "--include-log-monitor=false",
                f"--resources={json.dumps(resources or {})}",
            ]
            self._start(name, lambda: options, cpus, OBJECT_STORE_BYTES)
            self._wait_for(name, True)
            self._preload([name])
        return next(node for node in self.nodes if node.name == name)

    def remove_node(self, node: "Node | str") -> None:
        """Stop the processes of one node, as if its machine were switched off; wait until Ray has noticed.

        Raises:
            BadInput: there is no such node, or it is the head (the cluster would end).
            NotReachable: it does not go.
        """
        self._require_running("remove a node")
        name = node.name if isinstance(node, Node) else node
        others = [other.name for other in self.nodes if other.name != "head"]
        if name not in others:
            fact = "it is the head: the cluster would end" if name == "head" else "there is no such node"
            raise BadInput(
                f"remove the node {name!r}",
                fact,
                f"use one of these: {', '.join(others) or 'none'}; lab.stop() ends all",
            )
        left = f"The processes of {name} have ended"
        with interrupts.stoppable(f"the removal of {name}", left=left):
            self._stop_node(name)
            self._wait_for(name, False)

    def _wait_for(self, name: str, there: bool) -> None:
        """Wait until the head lists a node, or no longer."""

        def noticed() -> bool:
            return (name in [node.name for node in self.nodes]) == there

        if not wait_until(noticed, seconds=_NOTICED_WITHIN):
            raise NotReachable(
                f"{'add' if there else 'remove'} {name}",
                f"the head {'does not list' if there else 'still lists'} it after {_NOTICED_WITHIN} s",
                f"look into {self.log_dir}/gcs_server.out, then lab.stop() and start again",
            )

    def _leave(self) -> None:
        if self.preloader is not None:
            self.preloader.stop()
        self._lab.leave(GROUP)

    def _end(self) -> None:
        if self._is_in_use():
            print("another notebook still uses the cluster (python -m labkit stop ends it)")
        else:
            self._lab.stop(GROUP)

    def _is_in_use(self) -> bool:
        return bool(self._lab.users().get(GROUP))

    def exit_codes(self) -> dict[int, int]:
        if self.preloader is None:
            return {}
        return self.preloader.exit_codes()

    def _not_forked(self) -> str:
        if self.preloader is None:
            return ""
        return self.preloader.not_forked()

    # -- its nodes ----------------------------------------------------------------------------------

    def _stop_node(self, name: str) -> None:
        self._lab.stop(GROUP, node=name)

    def _find_head(self) -> None:
        daemons = self._daemons(*_HEAD)
        self._head = [daemon.process for daemon in daemons if daemon.node == "head"]

    def _has_head(self) -> bool:
        """Return whether the processes that the head can't do without are running."""
        return len(self._head) == len(_HEAD) and all(map(process_info.is_alive, self._head))

    def _start_head(self, cpus: int, object_store_bytes: int) -> None:
        self._lab.use(GROUP)
        # Ray reads its environment when it is imported. That takes a second of this process, while the node's
        # processes take several.
        connection.set_environment(self.token_file)
        threading.Thread(target=importlib.import_module, args=("ray",), daemon=True).start()
        self._head_started_at = time.time()

        def options() -> list[str]:
            clients = [] if self.preloader is not None else [f"--ray-client-server-port={free_port()}"]
            return [
                "--head",
                f"--port={free_port()}",
                "--dashboard-host=127.0.0.1",
                f"--dashboard-port={free_port()}",
                "--include-dashboard=true",  # else a head starts without one, for want of its port
                *clients,
                f"--temp-dir={self.folder}",
            ]

        output = self._start("head", options, cpus, object_store_bytes)
        address = re.search(r"ray start --address='(\S+)'", cleaned(output))  # for other nodes
        if address is None:
            raise NotReachable(
                "start head",
                "`ray start` did not print its address",
                f"read all of it in {self.folder / 'start-head.log'}",
            )
        self.address = address[1]
        self._find_head()

    def _start(self, name: str, options: Callable[[], list[str]], cpus: int, object_store_bytes: int) -> str:
        """Start a node, again if the machine was too busy or a port was taken; return what it printed."""
        log = self.folder / f"start-{name}.log"
        for _ in range(_ATTEMPTS):
            command = [
                *options(),
                f"--node-name={name}",
                f"--num-cpus={cpus}",
                f"--object-store-memory={object_store_bytes}",
                # Several nodes, and several clusters, on one machine.
                "--min-worker-port=0",
                "--max-worker-port=0",
                f"--dashboard-agent-listen-port={free_port()}",
            ]
            output, status = self._run(name, command, log)
            if not status:
                return output
            self._stop_node(name)
            may_pass = any(text in output for text in (_TOO_BUSY, *_PORT_TAKEN))
            if status != UNKNOWN and not may_pass:
                break
        fact = f"`ray start` failed: {last_line(output) or 'it printed nothing'}"
        if _NO_DASHBOARD in output:
            fact = f"its dashboard did not start{self._dashboards_error()}"
        raise NotReachable(f"start {name}", fact, f"read all of it in {log}")

    def _run(self, name: str, options: list[str], log: Path) -> tuple[str, int | None]:
        """Run one `ray start` while its fork server imports; returns what it printed, and its status."""
        log.unlink(missing_ok=True)
        # This process has the token and what the lab sets for Ray already (`connection.set_environment`).
        env = {"RAY_DASHBOARD_STARTUP_TIMEOUT_S": str(START_TIMEOUT), **os.environ, NODE_NAME: name}
        env.pop("RAY_ADDRESS", None)  # of another cluster
        if self.preloader is not None:
            env |= connection.FORKED
            self.preloader.prepare(name, env, self.changes)
        process = self._lab.start([*self._ray(name), "start", *options], group=GROUP, log=log, env=env)

        def is_over() -> bool:
            return process.status() is not None

        if not wait_until(is_over, seconds=_SLOW_AFTER):
            reason = self._dashboards_error() or "; the machine may be busy, or its disk cold"
            warnings.warn(f"the start of {name} takes more than {_SLOW_AFTER} s{reason}", stacklevel=2)
            if not wait_until(is_over, seconds=START_TIMEOUT - _SLOW_AFTER):
                raise NotReachable(
                    f"start {name}",
                    f"`ray start` takes more than {START_TIMEOUT} s{self._dashboards_error()}",
                    f"look into {log}; python -m labkit doctor reports what the machine lacks",
                )
        return text_of(log), process.status()

    def _ray(self, name: str) -> list[str]:
        """Return the command that is `ray` for a node."""
        if self.preloader is not None:
            return self.preloader.ray(name)
        return [sys.executable, "-P", "-c", "from ray.scripts.scripts import main; main()"]

    def _dashboards_error(self) -> str:
        """Return the last line of the dashboard's error log, which `ray start` doesn't show."""
        path = self.log_dir / "dashboard.err"
        with contextlib.suppress(OSError):
            line = last_line(text_of(path))
            if line and path.stat().st_mtime >= self._head_started_at:  # and not of an earlier cluster
                return f"; its dashboard says: {line:.200}"
        return ""

    def _preload(self, nodes: Iterable[str]) -> None:
        """Let the fork servers of these nodes fork the workers of this process's connection."""
        if self.preloader is None:
            return
        import ray

        job_id = ray.get_runtime_context().get_job_id()
        raylets = self._raylets()
        for node in raylets.keys() & set(nodes):
            self.preloader.serve(node, raylets[node], self.changes, job_id=job_id)

    def _raylets(self) -> dict[str, psutil.Process]:
        """Return the processes that start workers, by the names of their nodes."""
        return {daemon.node: daemon.process for daemon in self._daemons("raylet")}

    def _daemons(self, *programs: str) -> list[Member]:
        """Return the running processes that are one of these programs."""
        members = self._lab.running(GROUP)
        return [member for member in members if member.is_origin and member.program in programs]


def _is_of_this_machine(address: str) -> bool:
    """Return whether the host of a ``host:port`` is still an address of this machine."""
    host, _, _ = address.rpartition(":")
    interfaces = psutil.net_if_addrs().values()
    return any(host == entry.address for entries in interfaces for entry in entries)
