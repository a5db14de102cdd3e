"""What the lab runs on this machine: tables of its processes and of the ports that they listen on.

    >>> system.processes("node-2")
    >>> system.ports()

Both start from the recorded processes (`labkit.system.process_registry`) and follow them to their children.
A cluster that the lab did not start has no record here.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

from labkit.display.tables import Table
from labkit.errors import ClusterError
from labkit.settings import Settings
from labkit.system import process_info
from labkit.system.process_registry import ProcessRecord, ProcessRegistry

# What each program does, in the order of the table.
_PURPOSES = {
    "gcs_server": "the cluster's metadata; new nodes register here",
    "raylet": "hands out a node's CPUs, starts its workers",
    "worker": "runs your tasks and actors",
    "forkserver": "has imported torch and more, so that workers need not",
    "agents": "a raylet's helpers: metrics, jobs, environments",
    "dashboard": "the web page",
    "ray.util.client": "serves programs outside the cluster, ray://…",
    "log_monitor": "forwards what workers print",
    "monitor": "rents machines in a cloud; idle here",
    "driver": "the JVM of a Spark session: plans its jobs",
    "watchdog": "stops all of this when its notebook is gone",
}
_HERE, _NETWORK = "this machine", "the network"

_Programs = dict[tuple[str, str], list[psutil.Process]]  # (node, program) → its processes


def processes(node: str | None = None, *, home: Path | str | None = None) -> Table:
    """One row for each program on each node: its processes, their memory in MB, what it does.

    A page of memory that several processes share counts in parts, so that the sum is what they use together.

    Args:
        node: only this one, such as "node-2".
        home: the lab's home folder; default: that of the settings.

    Raises:
        ClusterError: the lab runs nothing on this machine, or there is no such node.
    """
    programs = _programs(home, node)
    rows = [
        (*where, len(found), round(sum(map(process_info.memory, found)) / 1e6), _PURPOSES.get(where[1], ""))
        for where, found in programs.items()
    ]
    line = f"{sum(row[2] for row in rows)} processes, {sum(row[3] for row in rows)} MB"
    return Table(("node", "program", "processes", "MB", "what it is for"), rows, line)


def ports(node: str | None = None, *, home: Path | str | None = None) -> Table:
    """One row for each program on each node that listens: from where it can be reached, on which TCP ports.

    Args, Raises: as in `processes`.
    """
    rows = [
        (*where, origin, ", ".join(map(str, sorted(numbers))))
        for where, found in _programs(home, node).items()
        for origin, numbers in sorted(_listening(found).items(), reverse=True)
        if numbers
    ]
    return Table(("node", "program", "reached from", "ports"), rows)


def _programs(home: Path | str | None, node: str | None) -> _Programs:
    found: _Programs = {}
    for record in ProcessRegistry(Settings.from_env().home if home is None else home).records():
        for where, program, process in _family(record):
            found.setdefault((where, program), []).append(process)
    if not found:
        fix = "lab = cluster.start()"
        raise ClusterError("list what the lab runs", "it runs nothing on this machine", fix)
    order = [*_PURPOSES, *(program for _, program in found)]
    keys = sorted(found, key=lambda key: (key[0] != "head", key[0], order.index(key[1])))
    nodes = dict.fromkeys(where for where, _ in keys)
    if node is not None and node not in nodes:
        fix = f"use one of these: {', '.join(nodes)}"
        raise ClusterError(f"list what {node!r} runs", "there is no such node", fix)
    return {key: found[key] for key in keys if node in (None, key[0])}


def _family(record: ProcessRecord) -> Iterator[tuple[str, str, psutil.Process]]:
    """Yield (node, program, process) for a recorded process and its descendants."""
    node, _, program = record.role.rpartition(": ")
    with contextlib.suppress(psutil.NoSuchProcess):
        if record.alive:
            process = psutil.Process(record.pid)
            yield node or "–", program, process
            for child in process.children(recursive=True):
                kind = _kind(child) if program in ("raylet", "forkserver") else program
                if kind != "client":
                    yield node or "–", kind, child


def _kind(child: psutil.Process) -> str:
    """The program of a process that a raylet or a forkserver started. Ray names workers after their task."""
    with contextlib.suppress(psutil.Error):
        if child.name().endswith("Agent"):
            return "agents"
        if any("forkserver/client.py" in part for part in child.cmdline()):
            return "client"  # stands for a forked worker, which is counted under its forkserver
    return "worker"


def _listening(members: list[psutil.Process]) -> dict[str, set[int]]:
    """The TCP ports on which these processes listen, by where they can be reached from."""
    found: dict[str, set[int]] = {_HERE: set(), _NETWORK: set()}
    for process in members:
        with contextlib.suppress(psutil.Error):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    address = connection.laddr.ip.removeprefix("::ffff:")
                    local = address.startswith("127.") or address == "::1"
                    found[_HERE if local else _NETWORK].add(connection.laddr.port)
    found[_HERE] -= found[_NETWORK]  # being open on loopback too does not make it safer
    return found
