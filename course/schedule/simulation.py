"""The simulation: which rank does what, when, with which arrays, and what it holds meanwhile."""

import graphlib
import heapq
import itertools
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from course.schedule.drawing import drawing
from course.schedule.ops import COLLECTIVES, MESSAGES, Op
from labkit.display import cards
from labkit.errors import LabError, expect_int

ALPHA, BETA = 0.1, 0.05  # units of time for a message, and for each megabyte of it
MEGABYTE = 1000  # bytes that count as a megabyte, so that small arrays stand for large ones


@dataclass(eq=False)
class Event:
    """What a rank asked for: computing, or its part of a message or a collective.

    It asked at the time `posted`, in a `line` of its program. `begin`, `end` and `mb`, the megabytes that
    moved, are set when all that it needs are there.
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


@dataclass(repr=False)
class Simulated:
    """What came out of a simulation; it draws itself.

    Attributes:
        results: what each rank returned.
        events: computing, messages and collectives, in the order in which they ended.
        sent: the megabytes that each rank sent.
        held: for each rank, pairs of a time and the megabytes that it held from then on.
    """

    results: list[Any]
    events: list[Event]
    sent: list[float]
    held: list[list[tuple[float, float]]]

    @cached_property
    def time(self) -> float:
        """When the last rank was done, in units of simulated time."""
        return max((event.end for event in self.events), default=0.0)

    @cached_property
    def memory(self) -> list[float]:
        """The most megabytes that each rank held."""
        return [max((mb for _, mb in held), default=0.0) for held in self.held]

    @cached_property
    def bubble(self) -> float:
        """The share of the ranks' time in which they didn't compute."""
        busy = sum(event.end - event.begin for event in self.events if event.kind == "compute")
        return 1 - busy / (self.time * len(self.results)) if self.time else 0.0

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

    Arrays in `args` belong to the caller: they aren't counted as memory, and a rank cannot change them.
    What the program raises says on which rank and in which line.

    Raises:
        LabError: a deadlock, a message that no rank received or waited for, collectives that don't fit
            together, a missing ``yield``, or a rank that changes an array of `args`.
    """
    return _Simulation(program, world, args, alpha, beta, megabyte).run()


class _Simulation:
    """One simulation. Ranks are advanced in the order of simulated time, so links are used in that order."""

    def __init__(self, program: Callable, world: int, args: tuple, *costs: float) -> None:
        self.name = getattr(program, "__name__", "the program")
        expect_int(f"simulate {self.name}", "world", world)
        self.world, (self.alpha, self.beta, self.megabyte) = world, costs
        self.outside = _roots(args)
        self.ranks = [program(rank, world, *map(_given, args)) for rank in range(world)]
        if not all(isinstance(one, Generator) for one in self.ranks):
            raise self._error(f"{self.name} is no generator: it has no `yield`", "yield compute(1)")
        self.results: list[Any] = [None] * world
        self.running = set(range(world))
        self.waiting: dict[int, Event] = {}
        self.queue: list[tuple[float, int, int, Event | None]]
        self.queue, self.order = [(0.0, rank, rank, None) for rank in range(world)], itertools.count(world)
        self.open: dict[tuple, deque[Event]] = defaultdict(deque)  # messages and collectives that lack a side
        self.calls: Counter[tuple] = Counter()  # collectives of each (rank, group)
        self.free: dict[tuple, float] = defaultdict(float)  # when each ("out" or "in", rank) is free again
        self.sent = [0.0] * world
        self.events: list[Event] = []
        self.held: list[list[tuple[float, float]]] = [[] for _ in range(world)]

    def run(self) -> Simulated:
        while self.queue:
            now, _, rank, event = heapq.heappop(self.queue)
            self._advance(rank, now, event)
        if self.running:
            raise self._deadlock()
        if left := [str(event) for several in self.open.values() for event in several]:
            facts = "; ".join(f"{one} has no counterpart" for one in left[:3])
            raise self._error(facts, "each send needs one recv on the other rank")
        if never := next((event for event in self.events if not event.waited), None):
            fix = "`yield wait(…)` with what `start` returned; until then the array may still be in use"
            raise self._error(f"{never} by `start` and never waits for it", fix)
        return Simulated(self.results, sorted(self.events, key=lambda one: one.end), self.sent, self.held)

    def _advance(self, rank: int, now: float, event: Event | None) -> None:
        """Run a rank, which waited for `event`, from `now` until it has to wait, or to its end."""
        value = None
        if event is not None:
            value, event.value = event.value, None  # it is the rank's from now on
        while True:
            self._count(rank, now, value)
            try:
                op = self.ranks[rank].send(value)
            except StopIteration as end:
                self.results[rank] = end.value
                self.running.discard(rank)
                self.held[rank].append((now, 0.0))
                return
            except Exception as error:
                self._explain(rank, error)
                raise
            value = None
            self._count(rank, now)
            event = self._ask(rank, now, op)
            if op.kind != "start":
                break
            value = event
        if event.end is None:
            self.waiting[rank] = event
        else:
            self._resume(event, max(now, event.end))

    def _explain(self, rank: int, error: Exception) -> None:
        """Say where a program raised, and why if that is a mistake with this simulator."""
        assert error.__traceback__ is not None
        where = traceback.extract_tb(error.__traceback__.tb_next)[0]
        line = f"in line {where.lineno}" + f", `{where.line}`" * bool(where.line)
        if "read-only" in str(error):
            fact = f"rank {rank} changes, {line}, an array that it was given and that belongs to the caller"
            raise self._error(fact, "copy the array first, with `.copy()`") from None
        if "'Op'" in str(error):
            fact = f"rank {rank} computes, {line}, with a message or collective that it didn't yield"
            raise self._error(fact, "`total = yield all_reduce(…)` returns the sum") from None
        error.add_note(f"on rank {rank} {line}")

    def _resume(self, event: Event, time: float) -> None:
        heapq.heappush(self.queue, (time, next(self.order), event.rank, event))

    def _ask(self, rank: int, now: float, op: Any) -> Event:
        """What a rank yields, as an event: a new one, or for `wait` the one that was started."""
        if not isinstance(op, Op):
            raise self._error(f"rank {rank} yields {op!r:.60}", "yield compute(1), send(…), recv(…)")
        op.yielded, line = True, _frames(self.ranks[rank])[-1].f_lineno
        if op.kind == "wait":
            if not isinstance(op.inner, Event):
                never = ", which was made without `yield`" * isinstance(op.inner, Op)
                fact = f"rank {rank} waits in line {line} for {op.inner!r:.60}{never}"
                raise self._error(fact, "started = yield start(…)")
            op.inner.waited = True
            return op.inner
        started = op.kind == "start"
        event = Event(rank, op.inner if started else op, now, line, waited=not started)
        if op.kind == "compute":
            self._finish(event, now, now + op.units)
        elif getattr(event.op, "kind", None) in (*MESSAGES, *COLLECTIVES):
            event.op.yielded = True
            (self._message if event.kind in MESSAGES else self._collective)(event)
        else:
            raise self._error(f"rank {rank} starts {op.inner!r:.60}", "start a message or a collective")
        return event

    def _message(self, event: Event) -> None:
        kind, peer, rank = event.kind, event.op.peer, event.rank
        if not (isinstance(peer, (int, np.integer)) and 0 <= peer < self.world) or peer == rank:
            fact = f"{event}, and there are ranks 0 to {self.world - 1}, itself not counted"
            raise self._error(fact, "(rank + 1) % world is the right neighbour")
        pair = (rank, peer) if kind == "send" else (peer, rank)
        self.open[kind, pair].append(event)
        if not (self.open["send", pair] and self.open["recv", pair]):
            return
        sent, received = self.open["send", pair].popleft(), self.open["recv", pair].popleft()
        mb = sent.op.array.nbytes / self.megabyte
        begin = max(event.posted, self.free["out", sent.rank], self.free["in", received.rank])
        end = begin + self.alpha + self.beta * mb
        self.free["out", sent.rank] = self.free["in", received.rank] = end
        self.sent[sent.rank] += mb
        received.value = sent.op.array
        for one in (sent, received):
            self._finish(one, begin, end, mb)

    def _collective(self, event: Event) -> None:
        """When all ranks of a group have called, it takes the time of a ring."""
        group = event.op.group or tuple(range(self.world))
        key = (group, self.calls[event.rank, group])
        self.calls[event.rank, group] += 1
        self.open[key].append(event)
        if len(self.open[key]) < len(group):
            return
        calls, n = sorted(self.open.pop(key), key=lambda one: one.rank), len(group)
        whole, values = self._values(calls)
        rounds = (2 if event.kind == "all_reduce" else 1) * (n - 1)
        mb = rounds * whole.nbytes / n / self.megabyte
        links = [(way, one.rank) for way in ("out", "in") for one in calls]
        begin = max([event.posted, *(self.free[link] for link in links)])
        end = begin + self.alpha * rounds + self.beta * mb
        self.free |= dict.fromkeys(links, end)
        for one, value in zip(calls, values, strict=True):
            one.value = value.copy()
            self.sent[one.rank] += mb
            self._finish(one, begin, end, mb)

    def _values(self, calls: list[Event]) -> tuple[np.ndarray, list[np.ndarray]]:
        """The whole array that a collective makes, and what each rank gets of it."""
        first, arrays, n = calls[0], [one.op.array for one in calls], len(calls)
        shape, kind = arrays[0].shape, first.kind
        if other := next((one for one in calls if (one.kind, one.op.array.shape) != (kind, shape)), None):
            fact = f"{first}, but {other} at the same place"
            raise self._error(fact, "all ranks make the same collective calls, in the same order")
        if kind == "reduce_scatter" and shape[0] % n:
            fact = f"{first}, and {shape[0]} rows can't be cut into {n} equal parts"
            raise self._error(fact, "pad the array")
        whole = np.concatenate(arrays) if kind == "all_gather" else np.sum(arrays, axis=0)
        return whole, np.split(whole, n) if kind == "reduce_scatter" else [whole] * n

    def _finish(self, event: Event, begin: float, end: float, mb: float = 0.0) -> None:
        event.begin, event.end, event.mb = begin, end, mb
        self.events.append(event)
        if self.waiting.get(event.rank) is event:
            del self.waiting[event.rank]
            self._resume(event, end)

    def _count(self, rank: int, now: float, arriving: Any = None) -> None:
        """Note what the variables of a rank hold, and what is about to be returned to it."""
        found = _roots(arriving)
        for frame in _frames(self.ranks[rank]):
            found |= _roots(list(frame.f_locals.values()))
        held = sum(size for key, size in found.items() if key not in self.outside) / self.megabyte
        self.held[rank].append((now, held))

    def _deadlock(self) -> LabError:
        waits = {rank: sorted(self._missing(event)) for rank, event in sorted(self.waiting.items())}
        circle, lines = _circle(waits), []
        for rank, others in waits.items():
            if circle and rank not in circle:
                continue  # it waits for one of those
            ended = [other for other in others if other not in self.running]
            reason = f", which {'have' if len(ended) > 1 else 'has'} returned already" if ended else ""
            who = "rank" + "s" * (len(others) > 1) + " " + ", ".join(map(str, ended or others))
            lines.append(f"{self.waiting[rank]} and waits for {who}{reason}")
        around = f". They wait in a circle: {' → '.join(map(str, circle))}" if circle else ""
        fix = "each send needs one recv, and all ranks of a group make the same collective calls"
        if circle and all(self.waiting[rank].kind == "send" for rank in circle):
            fix = "let one of them receive first, or start(send(…)), recv(…), and wait after that"
        if forgotten := next(self._without_yield(), None):
            rank, name, op = forgotten
            fact = f"deadlock: `{name}` of rank {rank} is {op!r}, made without `yield`, so it was never sent"
            return self._error(f"{fact}, and the others wait for it", f"`{name} = yield {op!r}`")
        return self._error(f"deadlock: {'; '.join(lines[:8])}{around}", fix)

    def _without_yield(self) -> Iterator[tuple[int, str, Op]]:
        """Variables of waiting ranks with an operation that was never yielded: (rank, name, operation)."""
        for rank in sorted(self.waiting):
            for frame in _frames(self.ranks[rank]):
                for name, value in frame.f_locals.items():
                    if isinstance(value, Op) and not value.yielded:
                        yield rank, name, value

    def _missing(self, event: Event) -> set[int]:
        """The ranks that a waiting call needs."""
        if event.kind in MESSAGES:
            return {event.op.peer}
        there = next(several for several in self.open.values() if event in several)
        return set(event.op.group or range(self.world)) - {other.rank for other in there}

    def _error(self, fact: str, fix: str) -> LabError:
        return LabError(f"simulate {self.name} on {self.world} ranks", fact, fix)


def _circle(waits: dict[int, list[int]]) -> list[int]:
    """Ranks that wait for each other in a circle, such as [0, 1, 0]; empty if there is none."""
    try:
        graphlib.TopologicalSorter(waits).prepare()
    except graphlib.CycleError as error:
        return error.args[1][::-1]
    return []


def _frames(generator: Any) -> list[Any]:
    """The frames of a generator, and of those that it delegates to by ``yield from``."""
    frames = []
    while getattr(generator, "gi_frame", None) is not None:
        frames.append(generator.gi_frame)
        generator = generator.gi_yieldfrom
    return frames


def _given(value: Any) -> Any:
    """An argument as a rank gets it: arrays that it cannot change, in lists and dicts of its own."""
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    elif type(value) in (list, tuple):
        value = type(value)(map(_given, value))
    elif type(value) is dict:
        value = {key: _given(one) for key, one in value.items()}
    return value


def _roots(value: Any) -> dict[int, int]:
    """{id: bytes} of the arrays in a value; a slice of an array keeps the whole array alive."""
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        return {id(value): value.nbytes}
    if isinstance(value, Event):
        return _roots(value.value)
    if isinstance(value, dict):
        value = list(value.values())
    found: dict[int, int] = {}
    for one in value if isinstance(value, (list, tuple, set, deque)) else ():
        found |= _roots(one)
    return found
