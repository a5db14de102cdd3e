"""What the lab runs on this machine: tables of its processes and of the ports that they listen on.

A cluster that the lab did not start is not in them.
"""

import contextlib
import sys

import psutil

from labkit.display.cards import Table
from labkit.errors import LabError
from labkit.settings import Settings
from labkit.system import family, process_info

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
    "rclone": "the object store",
    "java": "the JVM of a Spark session: plans its jobs",
    "supervisor": "stops all of this when its notebook is gone",
}


def processes() -> Table:
    """One row for each program on each node: its processes, their memory in MB, what it does.

    A page of memory that several processes share counts in parts, so that the sum is what they use together.
    A `LabError` says that the lab runs nothing on this machine.
    """
    rows = [
        (*where, len(found), round(sum(map(process_info.memory, found)) / 1e6), _PURPOSES.get(where[1], ""))
        for where, found in _programs().items()
    ]
    line = f"{sum(row[2] for row in rows)} processes, {sum(row[3] for row in rows)} MB"
    return Table(("node", "program", "processes", "MB", "what it is for"), rows, line)


def ports() -> Table:
    """One row for each program on each node that listens: from where it is reached, on which TCP ports."""
    rows = []
    for where, found in _programs().items():
        open_ports = set().union(*(process_info.listening(process.pid) for process in found))
        network = {port for port, local in open_ports if not local}
        here = {port for port, _ in open_ports} - network  # also on loopback does not make it safer
        for origin, numbers in (("the network", network), ("this machine", here)):
            if numbers:
                rows.append((*where, origin, ", ".join(map(str, sorted(numbers)))))
    return Table(("node", "program", "reached from", "ports"), rows)


def _programs() -> dict[tuple[str, str], list[psutil.Process]]:
    """The lab's processes by (node, program), in the order of the table."""
    settings = Settings.from_env()
    members = family.running(settings.home)
    if not {one.group for one in members} - {family.SUPERVISOR}:
        fact, fix = "it runs nothing on this machine", "lab = cluster.start()"
        ray = sys.modules.get("ray")
        if settings.ray_address or (ray and ray.is_initialized()):
            fact += "; this notebook's cluster was not started by it"
            fix = "import ray; ray.nodes() lists the nodes of that cluster, and `ray status` there its load"
        raise LabError("list what the lab runs", fact, fix)
    found: dict[tuple[str, str], list[psutil.Process]] = {}
    for one in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            if program := _program(one):
                found.setdefault((one.node or "–", program), []).append(one.process)
    order = [*_PURPOSES, *(program for _, program in found)]
    keys = sorted(found, key=lambda key: (key[0] != "head", key[0], order.index(key[1])))
    return {key: found[key] for key in keys}


def _program(one: family.Member) -> str:
    """The program in whose row it counts; "" if it counts in none. Ray names workers after their task."""
    if one.is_origin or one.program not in ("raylet", "forkserver"):
        return one.program
    if one.process.name().endswith("Agent"):
        return "agents"
    # A client stands for a forked worker, which is counted itself.
    is_client = any("forkserver/client.py" in part for part in one.process.cmdline())
    return "" if is_client else "worker"
