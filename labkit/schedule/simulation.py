"""The simulation: which rank does what, when, with which arrays, and what it holds meanwhile."""

import heapq
import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.display import cards
from labkit.errors import LabError, expect_int
from labkit.schedule.drawing import drawing
from labkit.schedule.ops import Op

ALPHA, BETA = 0.1, 0.05  # units of time for a message, and for each megabyte of it
MEGABYTE = 1000  # bytes that count as a megabyte, so that small arrays stand for large ones
_ONE_TO_ONE = ("send", "recv")
_VERBS = {"send": "send to rank {}", "recv": "receive from rank {}"}


@dataclass
class Event:
    """Something that took simulated time on a rank: computing, or a message or collective on its links."""

    rank: int
    kind: str
    begin: float
    end: float
    label: str = ""
    peer: int = -1
    mb: float = 0.0
    posted: float = 0.0
    line: int = 0
    array: Any = field(default=None, repr=False)  # a copy of what was sent or contributed


@dataclass(eq=False)
class _Pending:
    """A message or collective that a rank has asked for; `end` is known when all that it needs are there."""

    op: Op
    rank: int
    posted: float
    line: int
    end: float | None = None
    value: Any = None
    members: tuple[int, ...] = ()


@dataclass(repr=False)
class Simulated:
    """What came out of a simulation; it draws itself.

    Attributes:
        results: what each rank returned.
        time: when the last rank was done, in units of simulated time.
        memory: the most megabytes that each rank held; `sent`: the megabytes that it sent.
        bubble: the share of the ranks' time in which they didn't compute.
        events: computing, messages and collectives, in the order in which they ended.
    """

    results: list[Any]
    time: float
    memory: list[float]
    sent: list[float]
    bubble: float
    events: list[Event]
    held: list[list[tuple[float, float]]] = field(default_factory=list)  # (time, MB) of each rank

    def __repr__(self) -> str:
        held, sent = (f"{mb:,.0f}" if mb >= 100 else f"{mb:.3g}" for mb in (max(self.memory), max(self.sent)))
        most = f"at most {held} MB held and {sent} MB sent by a rank"
        ranks = f"{len(self.results)} rank{'s' * (len(self.results) > 1)}"
        return f"simulated: {ranks}, {self.time:.2f} units of time, bubble {self.bubble:.0%}, {most}"

    def _repr_html_(self) -> str:
        return str(cards.figure(repr(self), drawing(self)))


def run(
    program: Callable[..., Generator],
    world: int,
    *args: Any,
    alpha: float = ALPHA,
    beta: float = BETA,
    megabyte: float = MEGABYTE,
) -> Simulated:
    """Simulate ``program(rank, world, *args)`` on `world` ranks.

    Arrays in `args` are the world outside: they aren't counted as memory.

    Raises:
        LabError: a deadlock, a message that no rank received, or collectives that don't fit together.
    """
    return _Simulation(program, world, args, alpha, beta, megabyte).run()


class _Simulation:
    """One simulation. Ranks are advanced in the order of simulated time, so links are used in that order."""

    def __init__(self, program: Callable, world: int, args: tuple, *costs: float) -> None:
        self.name = getattr(program, "__name__", "the program")
        expect_int(f"simulate {self.name}", "world", world)
        self.world, (self.alpha, self.beta, self.megabyte) = world, costs
        self.outside = _roots(args)
        self.ranks = [program(rank, world, *args) for rank in range(world)]
        if not all(isinstance(one, Generator) for one in self.ranks):
            raise self._error(f"{self.name} is no generator: it has no `yield`", "yield compute(1)")
        self.results: list[Any] = [None] * world
        self.running, self.waiting = set(range(world)), {}
        self.queue, self.order = [(0.0, rank, rank, None) for rank in range(world)], itertools.count(world)
        self.posted: dict[tuple, deque[_Pending]] = defaultdict(deque)
        self.calls: Counter[tuple] = Counter()  # collectives of each (rank, group)
        self.free: dict[tuple, float] = defaultdict(float)  # when each ("out" or "in", rank) is free again
        self.sent = [0.0] * world
        self.events: list[Event] = []
        self.held: list[list[tuple[float, float]]] = [[] for _ in range(world)]

    def run(self) -> Simulated:
        while self.queue:
            now, _, rank, value = heapq.heappop(self.queue)
            self._advance(rank, now, value)
        if self.running:
            raise self._deadlock()
        if left := [one for several in self.posted.values() for one in several]:
            facts = "; ".join(f"{_call(one)} has no counterpart" for one in left[:3])
            raise self._error(facts, "each send needs one recv on the other rank")
        events = sorted(self.events, key=lambda event: event.end)
        time = max((event.end for event in events), default=0.0)
        busy = sum(event.end - event.begin for event in events if event.kind == "compute")
        memory = [max((mb for _, mb in held), default=0.0) for held in self.held]
        bubble = 1 - busy / (time * self.world) if time else 0.0
        return Simulated(self.results, time, memory, self.sent, bubble, events, self.held)

    def _advance(self, rank: int, now: float, value: Any) -> None:
        """Run a rank from `now` until it has to wait, or to its end."""
        while True:
            if isinstance(value, _Pending):
                pending, value = value, value.value
                pending.value = None  # it is the rank's from now on
            self._count(rank, now, value)
            try:
                op = self.ranks[rank].send(value)
            except StopIteration as end:
                self.results[rank] = end.value
                self.running.discard(rank)
                self.held[rank].append((now, 0.0))
                return
            value = None
            self._count(rank, now)
            if not isinstance(op, Op):
                raise self._error(f"rank {rank} yields {op!r:.60}", "yield compute(1), send(…), recv(…)")
            if op.kind == "start":
                value = _Started(self._post(rank, now, op.inner))
                continue
            if op.kind == "compute":
                self.events.append(Event(rank, "compute", now, now + op.units, op.label))
                return self._resume(rank, now + op.units, None)
            if op.kind == "wait" and not isinstance(op.inner, _Started):
                raise self._error(f"rank {rank} waits for {op.inner!r:.60}", "started = yield start(…)")
            pending = op.inner.pending if op.kind == "wait" else self._post(rank, now, op)
            if pending.end is not None:
                return self._resume(rank, max(now, pending.end), pending)
            self.waiting[rank] = pending
            return None

    def _resume(self, rank: int, time: float, value: Any) -> None:
        heapq.heappush(self.queue, (time, next(self.order), rank, value))

    def _post(self, rank: int, now: float, op: Op) -> _Pending:
        pending = _Pending(op, rank, now, _frames(self.ranks[rank])[-1].f_lineno)
        if op.kind in _ONE_TO_ONE:
            if not (isinstance(op.peer, (int, np.integer)) and 0 <= op.peer < self.world) or op.peer == rank:
                raise self._error(
                    f"{_call(pending)}, and there are ranks 0 to {self.world - 1}, itself not counted",
                    "(rank + 1) % world is the right neighbour",
                )
            pending.members = (op.peer,)
            pair = (rank, op.peer) if op.kind == "send" else (op.peer, rank)
            self.posted[op.kind, pair].append(pending)
            if self.posted["send", pair] and self.posted["recv", pair]:
                self._deliver(now, *(self.posted[kind, pair].popleft() for kind in _ONE_TO_ONE))
        else:
            pending.members = op.group or tuple(range(self.world))
            key = (pending.members, self.calls[rank, pending.members])
            self.calls[rank, pending.members] += 1
            self.posted[key].append(pending)
            if len(self.posted[key]) == len(pending.members):
                self._collect(now, sorted(self.posted.pop(key), key=lambda one: one.rank))
        return pending

    def _deliver(self, now: float, sent: _Pending, received: _Pending) -> None:
        mb = sent.op.array.nbytes / self.megabyte
        begin = max(now, self.free["out", sent.rank], self.free["in", received.rank])
        end = begin + self.alpha + self.beta * mb
        self.free["out", sent.rank] = self.free["in", received.rank] = end
        self.sent[sent.rank] += mb
        received.value = sent.op.array
        for one in (sent, received):
            self._finish(one, begin, end, mb)

    def _collect(self, now: float, calls: list[_Pending]) -> None:
        """All ranks of a group have called: it takes the time of a ring."""
        kind, arrays, n = calls[0].op.kind, [one.op.array for one in calls], len(calls)
        different = next((one for one in calls if one.op.kind != kind), None)
        different = different or next((c for c in calls if c.op.array.shape != arrays[0].shape), None)
        if different:
            fact = f"{_call(calls[0])}, but {_call(different)} at the same place"
            raise self._error(fact, "all ranks make the same collective calls, in the same order")
        if kind == "reduce_scatter" and len(arrays[0]) % n:
            fact = f"{_call(calls[0])}, and {len(arrays[0])} rows can't be cut into {n} equal parts"
            raise self._error(fact, "pad the array")
        whole = np.concatenate(arrays) if kind == "all_gather" else np.sum(arrays, axis=0)
        values = np.split(whole, n) if kind == "reduce_scatter" else [whole] * n
        rounds = (2 if kind == "all_reduce" else 1) * (n - 1)
        mb = rounds * whole.nbytes / n / self.megabyte
        links = [(way, one.rank) for way in ("out", "in") for one in calls]
        begin = max([now, *(self.free[link] for link in links)])
        end = begin + self.alpha * rounds + self.beta * mb
        self.free |= dict.fromkeys(links, end)
        for one, value in zip(calls, values, strict=True):
            one.value = value.copy()
            self.sent[one.rank] += mb
            self._finish(one, begin, end, mb)

    def _finish(self, one: _Pending, begin: float, end: float, mb: float) -> None:
        op, one.end = one.op, end
        self.events.append(
            Event(one.rank, op.kind, begin, end, "", op.peer, mb, one.posted, one.line, op.array)
        )
        if self.waiting.get(one.rank) is one:
            del self.waiting[one.rank]
            self._resume(one.rank, end, one)

    def _count(self, rank: int, now: float, arriving: Any = None) -> None:
        """Note what the variables of a rank hold, and what is about to be returned to it."""
        found: dict[int, int] = {}
        for frame in _frames(self.ranks[rank]):
            found |= _roots(list(frame.f_locals.values()))
        found |= _roots(arriving)
        held = sum(size for key, size in found.items() if key not in self.outside) / self.megabyte
        self.held[rank].append((now, held))

    def _deadlock(self) -> LabError:
        waits = {rank: sorted(self._missing(one)) for rank, one in sorted(self.waiting.items())}
        lines = []
        for rank, others in waits.items():
            ended = [other for other in others if other not in self.running]
            reason = f", which {'have' if len(ended) > 1 else 'has'} returned already" if ended else ""
            who = "rank" + "s" * (len(others) > 1) + " " + ", ".join(map(str, ended or others))
            lines.append(f"{_call(self.waiting[rank])} and waits for {who}{reason}")
        circle = _circle(waits)
        around = f". They wait in a circle: {' → '.join(map(str, circle))}" if circle else ""
        fix = "each send needs one recv, and all ranks of a group make the same collective calls"
        if circle and all(self.waiting[rank].op.kind == "send" for rank in circle):
            fix = "let one of them receive first, or start(send(…)), recv(…), and wait after that"
        return self._error(f"deadlock: {'; '.join(lines[:8])}{around}", fix)

    def _missing(self, one: _Pending) -> set[int]:
        """The ranks that a waiting call needs."""
        if one.op.kind in _ONE_TO_ONE:
            return {one.op.peer}
        there = next(several for several in self.posted.values() if one in several)
        return set(one.members) - {other.rank for other in there}

    def _error(self, fact: str, fix: str) -> LabError:
        return LabError(f"simulate {self.name} on {self.world} ranks", fact, fix)


@dataclass(frozen=True)
class _Started:
    """What a rank gets from `start`."""

    pending: _Pending


def _call(one: _Pending) -> str:
    """``rank 0 sends to rank 1 in line 3``, as a clause."""
    verb = _VERBS.get(one.op.kind, f"call {one.op.kind}").format(one.op.peer)
    first, _, rest = verb.partition(" ")
    return f"rank {one.rank} {first}s {rest} in line {one.line}"


def _circle(waits: dict[int, list[int]]) -> list[int]:
    """Ranks that wait for each other in a circle, such as [0, 1, 0]; empty if there is none."""
    for first in waits:
        path = [first]
        while (after := next(iter(waits.get(path[-1], [])), None)) is not None and after not in path:
            path.append(after)
        if after == first:
            return [*path, first]
    return []


def _frames(generator: Any) -> list[Any]:
    """The frames of a generator, and of those that it delegates to by ``yield from``."""
    frames = []
    while getattr(generator, "gi_frame", None) is not None:
        frames.append(generator.gi_frame)
        generator = generator.gi_yieldfrom
    return frames


def _roots(value: Any) -> dict[int, int]:
    """{id: bytes} of the arrays in a value; a slice of an array keeps the whole array alive."""
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        return {id(value): value.nbytes}
    if isinstance(value, _Started):
        return _roots(value.pending.value)
    if isinstance(value, dict):
        value = list(value.values())
    found: dict[int, int] = {}
    for one in value if isinstance(value, (list, tuple, set, deque)) else ():
        found |= _roots(one)
    return found
