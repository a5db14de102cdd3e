"""What the lab runs on this machine, as tables: its processes, and the ports on which they listen.

    >>> inventory.processes()
    >>> inventory.processes("node-2")
    >>> inventory.ports()

Both start from what was recorded (`process_registry`) and follow it to its children; nothing is looked
up by name. A cluster of somebody else's has no record here.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import psutil

from labkit.display.style import STYLE
from labkit.errors import ClusterError
from labkit.settings import Settings
from labkit.system import process_info as pids
from labkit.system.process_registry import Entry, Registry

# What each program is for, in the order in which a reader wants them.
_PURPOSES = {
    "gcs_server": "the cluster's register; new nodes sign up here",
    "raylet": "hands out a node's CPUs, starts its workers",
    "worker": "runs your tasks and actors",
    "forkserver": "has imported torch and more, so that workers need not",
    "agents": "a raylet's helpers: metrics, jobs, environments",
    "dashboard": "the web page",
    "ray.util.client": "a door for programs outside the cluster, ray://…",
    "log_monitor": "passes on what workers print",
    "monitor": "rents machines in a cloud; idle here",
    "driver": "the JVM of a Spark session: plans its jobs",
    "master": "Spark's register of workers",
    "worker-1": "starts Spark's executors: JVMs with slots for tasks",
    "worker-2": "starts Spark's executors: JVMs with slots for tasks",
    "keeper": "stops all of this when its notebook is gone",
}
_APART = "padding-right:20px!important"  # columns stay apart, whatever the theme says of tables
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


class Table:
    """Rows under a head, and a line below; shows itself.

    Attributes:
        head: names of the columns.
        rows: each as long as the head; numbers and strings.
        line: what there is to say of all rows together.
    """

    def __init__(self, head: Sequence[str], rows: Sequence[Sequence[object]], line: str = "") -> None:
        self.head, self.rows, self.line = tuple(head), [tuple(row) for row in rows], line

    def __repr__(self) -> str:
        cells = [self.head, *([str(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
        return "\n".join([*lines, self.line] if self.line else lines)

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="{_APART}">{escape(name)}</th>' for name in self.head)
        rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.rows)
        line = f'<div class="lk-text lk-rule">{escape(self.line)}</div>' if self.line else ""
        return (
            f'{STYLE}<div class="labkit lk-card"><div style="padding:6px 12px 8px">'
            f'<table style="table-layout:auto;width:auto"><tr>{head}</tr>{rows}</table></div>{line}</div>'
        )


def _cell(value: object) -> str:
    return f'<td style="{_APART}">{escape(str(value))}</td>'


def processes(node: str | None = None, *, home: Path | str | None = None) -> Table:
    """One row for each program on each node: how many processes, their memory in MB, what it is for.

    A page of memory that several processes share counts in parts, so that the sum is what they take together.

    Args:
        node: only this one, such as "node-2".
        home: the lab's home folder; default: that of the settings.

    Raises:
        ClusterError: the lab runs nothing on this machine, or there is no such node.
    """
    programs = _programs(home, node)
    megabytes = [round(sum(map(pids.memory, program.members)) / 1e6) for program in programs]
    rows = [
        (program.node, program.name, len(program.members), size, _PURPOSES.get(program.name, ""))
        for program, size in zip(programs, megabytes, strict=True)
    ]
    line = f"{sum(len(program.members) for program in programs)} processes, {sum(megabytes)} MB"
    return Table(("node", "program", "processes", "MB", "what it is for"), rows, line)


def ports(node: str | None = None, *, home: Path | str | None = None) -> Table:
    """One row for each program on each node that listens: from where it is reached, on which TCP ports.

    Args, Raises: as in `processes`.
    """
    rows = [
        (program.node, program.name, where, ", ".join(map(str, sorted(numbers))))
        for program in _programs(home, node)
        for where, numbers in sorted(_listening(program.members).items(), reverse=True)
    ]
    return Table(("node", "program", "reached from", "ports"), rows)


def _programs(home: Path | str | None, node: str | None) -> list[_Program]:
    registry = Registry(Settings.from_env().home if home is None else home)
    found: dict[tuple[str, str], _Program] = {}
    for entry in registry.entries():
        for where, name, process in _family(entry):
            found.setdefault((where, name), _Program(where, name)).members.append(process)
    programs = sorted(found.values(), key=lambda program: program.order)
    if not programs:
        fix = "lab = cluster.start()"
        raise ClusterError("list what the lab runs", "it runs nothing on this machine", fix)
    if node is not None and node not in {program.node for program in programs}:
        there = ", ".join(dict.fromkeys(program.node for program in programs))
        raise ClusterError(f"list what {node!r} runs", "there is no such node", f"take one of these: {there}")
    return [program for program in programs if node in (None, program.node)]


def _family(entry: Entry) -> Iterator[tuple[str, str, psutil.Process]]:
    """(node, program, process) of a recorded process and of all that it started."""
    if not entry.alive:
        return
    node, _, name = entry.role.rpartition(": ")
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(entry.pid)
        yield node or "–", name, process
        for child in process.children(recursive=True):
            kind = _kind(child) if name in ("raylet", "forkserver") else name
            if kind != "client":
                yield node or "–", kind, child


def _kind(child: psutil.Process) -> str:
    """What a raylet started or a forkserver forked.

    Ray names its workers after what they run (``ray::IDLE``, ``ray::my_task``).
    """
    with contextlib.suppress(psutil.Error):
        if child.name().endswith("Agent"):
            return "agents"
        if any(part.endswith("forkserver/client.py") for part in child.cmdline()):
            return "client"  # stands for a worker that a forkserver forked, and is counted there
    return "worker"


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
