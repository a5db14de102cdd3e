"""The operations that a rank can yield, and the events that they become in a simulation."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MESSAGES = {"send": "sends to rank {}", "recv": "receives from rank {}"}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


@dataclass(eq=False, repr=False)
class Op:
    """An operation that a rank yields. The functions below make one."""

    kind: str
    array: Any = None
    peer: int = -1
    group: tuple[int, ...] | None = None
    units: float = 0.0
    label: str = ""
    inner: Any = None  # of start: an Op; of wait: what start returned
    yielded: bool = False  # set by the simulation: what is still False may lack its `yield`

    def __str__(self) -> str:
        """Describe what the rank does, as a clause: "sends to rank 1", "calls all_reduce"."""
        op = self.inner if self.kind == "start" else self
        return MESSAGES.get(op.kind, f"calls {op.kind}").format(op.peer)

    def __repr__(self) -> str:
        """Return it as it was written, without arrays: "start(send(1, …))"."""
        arguments = {
            "compute": f"{self.units:g}",
            "send": f"{self.peer}, …",
            "recv": f"{self.peer}",
            "start": repr(self.inner),
        }
        return f"{self.kind}({arguments.get(self.kind, '…')})"


@dataclass(eq=False)
class Event:
    """A request of a rank: computing, or its part of a message or a collective.

    The rank yielded it at the time `posted`, in a `line` of its program. `begin`, `end` and `mb`, the
    megabytes that moved, are set when all that it needs are there.
    """

    rank: int
    op: Op
    posted: float
    line: int
    begin: float = 0.0
    end: float = None  # type: ignore[assignment]  # until then
    mb: float = 0.0
    value: Any = field(default=None, repr=False)  # what `yield` returns, until it has done so
    waited: bool = False  # or is about to be waited for

    @property
    def kind(self) -> str:
        return self.op.kind

    def __str__(self) -> str:
        return f"rank {self.rank} {self.op} in line {self.line}"


def compute(units: float = 1.0, label: str = "") -> Op:
    """Compute for some `units` of simulated time. On real ranks the code around it takes its own time."""
    return Op("compute", units=units, label=label)


def send(to: int, array: np.ndarray) -> Op:
    """Send a copy of `array` to a rank, and wait until it has been received."""
    return Op("send", np.array(array), peer=to)


def recv(source: int) -> Op:
    """Wait for the next array from the rank `source`; ``yield`` returns it."""
    return Op("recv", peer=source)


def all_reduce(array: np.ndarray, group: Sequence[int] | None = None) -> Op:
    """Sum the arrays of all ranks (of a `group`): each rank gets the sum."""
    return _collective("all_reduce", array, group)


def all_gather(part: np.ndarray, group: Sequence[int] | None = None) -> Op:
    """Join the equally large parts of all ranks along their first axis: each rank gets the whole."""
    return _collective("all_gather", part, group)


def reduce_scatter(array: np.ndarray, group: Sequence[int] | None = None) -> Op:
    """Sum the arrays of all ranks, and cut the sum along its first axis: each rank gets its own part."""
    return _collective("reduce_scatter", array, group)


def _collective(kind: str, array: np.ndarray, group: Sequence[int] | None) -> Op:
    return Op(kind, np.array(array), group=None if group is None else tuple(group))


def start(op: Op) -> Op:
    """Start a message or a collective without waiting; ``yield`` returns what `wait` needs."""
    return Op("start", inner=op)


def wait(started: Any) -> Op:
    """Wait for what `start` started; ``yield`` returns its result."""
    return Op("wait", inner=started)
