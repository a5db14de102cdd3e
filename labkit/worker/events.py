"""What workers tell the panel: one small dataclass for each kind of event, and its form on the way.

On the way an event is a JSON object: its fields, and as ``kind`` the name of its class in lower case.
"""

import contextlib
import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

MAX_BYTES = 1 << 18  # of an event on its way

Values = Mapping[str, Any]  # by name


@dataclass(frozen=True, kw_only=True)
class Event:
    """What all events have. The tracker that sends an event fills it in."""

    run: str = ""  # its id
    at: float = 0.0  # Unix seconds: when it was made, and in the kernel, when it arrived there
    rank: int = 0
    pid: int = 0
    node: str = ""

    @property
    def source(self) -> tuple[int, str, int]:
        """The worker process that the event is about, by its rank, node and pid."""
        return self.rank, self.node, self.pid


# -- a worker ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Worker(Event):
    """A worker process exists."""

    workers: int | None = None  # how many its group has, if known
    cores: float = 0  # that it may use, with the other processes of its node; 0 if unknown


@dataclass(frozen=True)
class Phase(Event):
    """A worker enters a phase, such as ``loading``."""

    name: str


@dataclass(frozen=True)
class Print(Event):
    """The training function has printed a line."""

    text: str


@dataclass(frozen=True)
class Note(Event):
    """There is something that the reader should know about the loop."""

    text: str


@dataclass(frozen=True)
class Returned(Event):
    """The training function has returned. Only ranks of TorchDistributor report this."""


@dataclass(frozen=True)
class Failure(Event):
    """A worker has failed; the engine may start the workers again."""

    text: str  # its traceback
    died: str = ""  # Ray's message, if the worker's process is gone


# -- its loop ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step(Event):
    """An optimizer has stepped. All counts are of this worker, and most of them of this epoch."""

    epoch: int  # 0 is the first one of this process
    step: int  # steps made in this epoch
    made: int  # steps of all epochs
    total: int | None  # steps of the whole epoch, if known
    rows: int | None  # 0 without a loader; None where they are unknown
    seconds: float
    waiting: float  # the part of `seconds` without data
    first_wait: float  # the part of `waiting` before the first batch
    between: float  # seconds between the epoch before and this one
    ago: float  # seconds since the step
    metrics: Mapping[str, float]  # such as the loss
    done: bool  # whether the epoch is over
    parts: Values  # seconds of all steps by part, for `labkit.runs.verdict`; or why they are unseen
    memory: int | None = None  # bytes of the process
    gpu_memory: int | None = None  # bytes


@dataclass(frozen=True)
class End(Event):
    """The loop is over."""

    seconds: float  # after its last epoch
    parts: Values  # as those of a step


@dataclass(frozen=True)
class Empty(Event):
    """A worker's loader had no batch."""


@dataclass(frozen=True)
class Report(Event):
    """The loop has reported, which ends an epoch."""

    metrics: Values  # with "epoch" as the loop reports it, if it does
    passes: int | None = None  # that this process had made over its loaders, if known
    step: int = 0  # since the latest of them was over


@dataclass(frozen=True)
class Saved(Event):
    """The loop has given a checkpoint to Ray, after so many epochs and steps of its process."""

    epoch: int
    step: int


@dataclass(frozen=True)
class Parts(Event):
    """A trial of a sweep has made steps."""

    trial: str  # Tune's id
    parts: Values  # as those of a step
    memory: int | None = None  # bytes of its process, if it was looked at


@dataclass(frozen=True)
class Weights(Event):
    """A look at the weights of one rank, as `labkit.worker.weights` takes it.

    Each list has one entry for each parameter. The fields below the lists tell which loops hold different
    weights on purpose.
    """

    number: int  # of epochs that were over before the look
    steps: int
    names: list[str]
    averaged: list[bool]  # whether a wrapper averages its gradient
    weights: list[float | None]  # norms; None for what isn't finite
    gradients: list[float | None]  # norms; None without one, too
    last: bool = False  # whether the loop is over
    is_whole: bool = False  # whether each backward began at one number
    crossed: float = 0.0  # share of forward passes with a collective
    exchanged: float = 0.0  # share of steps with a collective for the gradients
    gathered: float = 0.0  # share of steps with a collective after them
    rewritten: bool = False  # whether weights have changed between two steps
    syncs_buffers: bool = False  # whether a wrapper sends buffers in each forward pass
    solo: bool = False  # whether the rank trains alone, as far as `labkit.worker.alone` knows


# -- checkpoints ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkpoint(Event):
    """A checkpoint has a new status."""

    path: str
    status: str  # committed, pending, validated, failed, timed out, deleted
    metrics: Values
    bytes: int | None = None  # if known


@dataclass(frozen=True)
class Validation(Event):
    """A validation that runs in parallel to the training has begun, or is over."""

    path: str  # of the checkpoint
    seconds: float | None = None  # that it took; None as it begins
    text: str = ""  # what it raised
    process: int | None = None  # its pid, as it begins


# -- on the way -------------------------------------------------------------------------------------

KINDS = {kind.__name__.lower(): kind for kind in Event.__subclasses__()}


def encode(event: Event) -> bytes | None:
    """Return the event as JSON; None if JSON cannot express it, or it is too long."""
    data = {"kind": type(event).__name__.lower(), **vars(event)}
    try:
        message = json.dumps(data, separators=(",", ":"), default=_plain, skipkeys=True).encode()
    except Exception:  # a metric may be anything, and raise anything when it is converted
        return None
    return message if len(message) <= MAX_BYTES else None


def _plain(value: Any) -> int | float | str:
    """Return a scalar of numpy or torch as a number, anything else as text."""
    for convert in (operator.index, float):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return convert(value)
    return str(value)[:200]


def decode(message: bytes) -> Event:
    """Return the event of a message, which another version of labkit may have sent.

    Unknown fields are left out, and an event of an unknown kind is a plain `Event`. A message that is damaged
    raises any exception: callers pass over it.
    """
    data = json.loads(message)
    kind = KINDS.get(data["kind"], Event)
    names = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in data.items() if name in names})


# -- what a loop reports ----------------------------------------------------------------------------


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are numbers, or can be made one."""
    values = {}
    for name, value in metrics.items():
        # A string or an object is not for a curve. What it raises is its affair: torch takes RuntimeError.
        with contextlib.suppress(Exception):
            values[str(name)] = float(value)
    return values


def number_of(epoch: Any) -> float | None:
    """Return an epoch as reported: a number from 0 on, maybe a fraction; None for anything else."""
    with contextlib.suppress(Exception):
        number = float(epoch)
        if 0 <= number < 2**53 and not isinstance(epoch, bool | str):
            return number
    return None
