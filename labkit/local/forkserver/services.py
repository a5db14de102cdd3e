"""`ray start`, with Ray's own Python programs on the node as forks of one process.

``python -P -m labkit.local.forkserver.services SOCKET PYTHON start …``, which `labkit.local.nodes` runs
instead of `ray`. PYTHON is what Ray takes for its Python (`Preloader.make_launcher`): in place of one of
Ray's programs, it runs `labkit.local.forkserver.client`, which asks at SOCKET for a fork.

A node has an agent of the dashboard and one for runtime environments. A head also has the dashboard with ten
processes, and two monitors. Each is a Python that imports ray and more, for up to a second of one core. Here
this is done once, while Ray's first server starts.
"""

import contextlib
import functools
import importlib
import multiprocessing.forkserver
import multiprocessing.util
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.files import private_socket
from labkit.local.forkserver.server import Forks, freeze, other_threads, require_same
from labkit.local.forkserver.worker import Request, run, take_over

# Ray's programs, by their places in its package.
_DASHBOARD = "dashboard/dashboard.py"
PROGRAMS = (
    _DASHBOARD,
    "dashboard/agent.py",
    "_private/log_monitor.py",
    "_private/runtime_env/agent/main.py",
    "autoscaler/_private/monitor.py",
)
# What they import; the dashboard's own modules are found by Ray.
_MODULES = (
    "ray.dashboard.head",
    "ray.dashboard.agent",
    "ray.autoscaler._private.monitor",
    "ray._private.runtime_env.agent.runtime_env_agent",
)
# A raylet sets this one for its agents, and they read it when they are imported.
_FOR_AGENTS = {"RAY_enable_pipe_based_agent_to_parent_health_check": "1"}
# Read when they are used. With LD_PRELOAD's allocator, long-lived processes waste less memory. The last two
# are the size of a terminal, and Python's readline sets them for children.
_READ_LATER = {"RAY_RAYLET_PID", "RAY_NODE_ID", "LD_PRELOAD", "COLUMNS", "LINES"}


def main() -> None:
    """Import ray, let a child serve forks, and become `ray start`."""
    path, python, *arguments = sys.argv[1:]
    os.environ.update(_FOR_AGENTS)
    scripts = importlib.import_module("ray.scripts.scripts")
    environment = dict(os.environ)
    for name in _FOR_AGENTS:
        del os.environ[name]
    listener = private_socket(Path(path), socket.SOCK_SEQPACKET)
    starter = os.pidfd_open(os.getpid())
    # A lock that another thread holds would stay held in the fork; without a server, all are new Pythons.
    if not other_threads() and os.fork() == 0:
        _import_programs()
        request = _serve(listener, starter, environment)
        if request is not None:
            _become(request)
        os._exit(0)
    listener.close()
    os.close(starter)
    sys.executable = python
    sys.argv = ["ray", *arguments]
    _shorten(scripts)
    scripts.main()


def _import_programs() -> None:
    for module in _MODULES:
        with contextlib.suppress(Exception):  # another Ray: its program imports what it needs
            importlib.import_module(module)
    with contextlib.suppress(Exception):
        from ray.dashboard.subprocesses.module import SubprocessModule
        from ray.dashboard.utils import get_all_modules

        get_all_modules(SubprocessModule)  # it imports the agents' modules, too
    with contextlib.suppress(ImportError):
        _close_metrics(importlib.import_module("prometheus_client"))
    freeze()


def _close_metrics(prometheus_client: Any) -> None:
    """Without metrics, the dashboard and the monitor need no port for them: it would ask for no token."""
    if os.environ.get("RAY_enable_metrics_collection") == "0":  # noqa: SIM112 - Ray's name
        prometheus_client.start_http_server = lambda **_: None


def _serve(listener: socket.socket, starter: int, environment: dict[str, str]) -> Request | None:
    """Fork for each request, until `ray start` (the pidfd `starter`) and all forks have ended.

    Returns:
        The request, in a fork; None in this process.
    """
    forks = Forks(listener, starter, functools.partial(_examine, environment))
    while forks.request is None and forks.watched:
        forks.wait()
    return forks.request


def _examine(environment: dict[str, str], request: Request) -> None:
    """Raise a ValueError if a program has other variables than the node; see `Forks`."""
    require_same(environment, {**_FOR_AGENTS, **request.environment}, _READ_LATER)


def _become(request: Request) -> None:
    """Run one of Ray's programs in this fork, and exit as Python would."""
    take_over(request)
    if request.argv[0] == "-u":  # Python's option for output that is written at once
        request.argv.pop(0)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    from ray._raylet import setproctitle

    setproctitle(Path(request.argv[0]).stem)  # `ps` would name this module
    if request.argv[0].endswith(_DASHBOARD):
        _start_forkserver()
    run(request)


def _start_forkserver() -> None:
    """Start the fork server of `multiprocessing`, which the dashboard has for its modules, as a fork.

    It would import all of them once more.
    """

    def fork(_executable: str, arguments: Sequence[str], _descriptors: Sequence[int]) -> int:
        pid = os.fork()
        if pid == 0:
            exec(arguments[-1], {})
            os._exit(0)
        return pid

    spawn = multiprocessing.util.spawnv_passfds
    multiprocessing.util.spawnv_passfds = fork  # type: ignore[assignment]
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        multiprocessing.util.spawnv_passfds = spawn


def _shorten(scripts: Any) -> None:
    """Leave out of `ray start` what costs a second and that the lab doesn't need."""
    from ray._private import services
    from ray._private.node import Node

    # The server of Ray's clients, for programs that connect from another machine, imports ray twice.
    scripts.get_ray_client_dependency_error = lambda: "the lab has no Ray clients"
    # Ray asks for the new node a tenth of a second after its start, and then a second later.
    start = Node.start_ray_processes

    def start_and_wait(node: Any) -> None:
        start(node)
        with contextlib.suppress(TimeoutError):  # Ray itself waits on
            services.wait_for_node(node.gcs_address, node.plasma_store_socket_name)

    Node.start_ray_processes = start_and_wait


if __name__ == "__main__":
    main()
