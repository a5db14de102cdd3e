"""What the lab runs on this machine, as tables: its processes, and the ports on which they listen.

    >>> inventory.processes()
    >>> inventory.ports()

Both start from what was recorded (`labkit.processes`) and follow it to its children; nothing is looked
up by name. A cluster of somebody else's has no record here.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from labkit.errors import ClusterError
from labkit.processes import Entry, Registry
from labkit.settings import Settings

if TYPE_CHECKING:  # half a second to import, and needed only by the callers
    import pandas

__all__ = ["ports", "processes"]

# What each program is for, in the order in which a reader wants them; pandas shows 50 letters of a cell.
_PURPOSES = {
    "gcs_server": "the cluster's register; new nodes sign up here",
    "raylet": "hands out a node's CPUs, starts its workers",
    "worker": "runs your tasks and actors",
    "agents": "a raylet's helpers: metrics, jobs, environments",
    "dashboard": "the web page",
    "ray.util.client": "a door for programs outside the cluster, ray://…",
    "log_monitor": "passes on what workers print",
    "monitor": "rents machines in a cloud; idle here",
    "keeper": "stops all of this when its notebook is gone",
}
_PORTS_SHOWN = 4
_HERE, _THERE = "this machine", "the network"


@dataclass
class _Program:
    """All processes of one program on one node."""

    node: str
    name: str
    members: list[psutil.Process] = field(default_factory=list)

    @property
    def order(self) -> tuple[bool, str, int]:
        names = list(_PURPOSES)
        return self.node != "head", self.node, names.index(self.name) if self.name in names else len(names)


def processes(home: Path | str | None = None) -> "pandas.DataFrame":
    """One row for each program on each node: how many processes, their memory in MB, what it is for.

    The memory is what the system would get back if they ended; what they share is not counted.

    Args:
        home: the lab's home folder; default: that of the settings.

    Raises:
        ClusterError: the lab runs nothing on this machine.
    """
    import pandas

    rows = [
        {
            "node": program.node,
            "program": program.name,
            "processes": len(program.members),
            "MB": round(sum(map(_own_memory, program.members)) / 1e6),
            "what it is for": _PURPOSES.get(program.name, ""),
        }
        for program in _programs(home)
    ]
    return pandas.DataFrame(rows).set_index(["node", "program"])


def ports(home: Path | str | None = None) -> "pandas.DataFrame":
    """One row for each program on each node that listens: its TCP ports, and from where they are reached.

    Raises:
        ClusterError: the lab runs nothing on this machine.
    """
    import pandas

    rows = [
        {"node": program.node, "program": program.name, "reached from": where, "ports": _listed(numbers)}
        for program in _programs(home)
        for where, numbers in sorted(_listening(program.members).items(), reverse=True)
    ]
    return pandas.DataFrame(rows).set_index(["node", "program"])


def _programs(home: Path | str | None) -> list[_Program]:
    registry = Registry(Settings.from_env().home if home is None else home)
    found: dict[tuple[str, str], _Program] = {}
    for entry in registry.entries():
        for node, name, process in _family(entry):
            found.setdefault((node, name), _Program(node, name)).members.append(process)
    if not found:
        raise ClusterError(
            "list what the lab runs", "it runs nothing on this machine", "lab = cluster.start()"
        )
    return sorted(found.values(), key=lambda program: program.order)


def _family(entry: Entry) -> Iterator[tuple[str, str, psutil.Process]]:
    """(node, program, process) of a recorded process and of all that it started."""
    if not entry.alive:
        return
    node, _, name = entry.role.rpartition(": ")
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(entry.pid)
        yield node or "–", name, process
        for child in process.children(recursive=True):
            yield node or "–", _kind(child) if name == "raylet" else name, child


def _kind(child: psutil.Process) -> str:
    """What a raylet started: Ray names its workers after what they run (``ray::IDLE``, ``ray::my_task``)."""
    with contextlib.suppress(psutil.Error):
        if child.name().endswith("Agent"):
            return "agents"
    return "worker"


def _own_memory(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return process.memory_full_info().uss
    return 0  # it ended while we looked


def _listening(members: list[psutil.Process]) -> dict[str, set[int]]:
    """{from where: ports} of all TCP sockets on which these processes listen."""
    found: dict[str, set[int]] = {}
    for process in members:
        with contextlib.suppress(psutil.Error):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found.setdefault(_where(connection.laddr.ip), set()).add(connection.laddr.port)
    # A port that is open to all is not made safer by being open on loopback too.
    others = set().union(*(ports for where, ports in found.items() if where != _HERE), set())
    found[_HERE] = found.get(_HERE, set()) - others
    return {where: ports for where, ports in found.items() if ports}


def _where(address: str) -> str:
    plain = address.removeprefix("::ffff:")
    return _HERE if plain.startswith("127.") or plain == "::1" else _THERE


def _listed(numbers: set[int]) -> str:
    shown = ", ".join(map(str, sorted(numbers)[:_PORTS_SHOWN]))
    more = len(numbers) - _PORTS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
