"""The simulation of ranks: their time, their messages and the arrays that they hold."""

import graphlib
import heapq
import itertools
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from course.schedule.drawing import drawing
from course.schedule.ops import COLLECTIVES, MESSAGES, Event, Op
from labkit.display import cards
from labkit.display.formatting import plural
from labkit.errors import RunFailed, expect_int

ALPHA = 0.1  # units of time for a message
BETA = 0.05  # and for each megabyte of it
MEGABYTE = 1000  # bytes that count as a megabyte, so that small arrays stand for large ones


@dataclass(repr=False)
class Simulated:
    """The outcome of a simulation. Draws itself.

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
        if not self.time:
            return 0.0
        busy = sum(event.end - event.begin for event in self.events if event.kind == "compute")
        return 1 - busy / (self.time * len(self.results))

    def __repr__(self) -> str:
        ranks = plural(len(self.results), "rank")
        held = _short(max(self.memory))
        sent = _short(max(self.sent))
        return (
            f"simulated: {ranks}, {self.time:.2f} units of time, bubble {self.bubble:.0%}, "
            f"at most {held} MB held and {sent} MB sent by a rank"
        )

    def _repr_html_(self) -> str:
        return str(cards.figure(repr(self), drawing(self)))


def _short(mb: float) -> str:
    if mb >= 100:
        return f"{mb:,.0f}"
    return f"{mb:.3g}"


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
        RunFailed: a deadlock, a message that no rank received or waited for, collectives that don't fit
            together, a missing ``yield``, or a rank that changes an array of `args`.
    """
    return _Simulation(program, world, args, alpha, beta, megabyte).run()


class _Simulation:
    """One simulation. Ranks are advanced in the order of simulated time, so links are used in that order."""

    def __init__(
        self,
        program: Callable,
        world: int,
        args: tuple,
        *costs: float,
    ) -> None:
        self.name = getattr(program, "__name__", "the program")
        expect_int(f"simulate {self.name}", "world", world)
        self.world = world
        self.alpha, self.beta, self.megabyte = costs
        self.outside = _roots(args)
        self.ranks = [program(rank, world, *map(_read_only, args)) for rank in range(world)]
        if not all(isinstance(generator, Generator) for generator in self.ranks):
            raise self._error(
                f"{self.name} is no generator: it has no `yield`",
                "yield compute(1)",
            )
        self.results: list[Any] = [None] * world
        self.running = set(range(world))
        self.waiting: dict[int, Event] = {}
        self.queue: list[tuple[float, int, int, Event | None]] = []
        for rank in range(world):
            self.queue.append((0.0, rank, rank, None))
        self.order = itertools.count(world)
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
        alone = list(itertools.chain(*self.open.values()))
        if alone:
            fact = "; ".join(f"{event} has no counterpart" for event in alone[:3])
            raise self._error(fact, "each send needs one recv on the other rank")
        for event in self.events:
            if not event.waited:
                raise self._error(
                    f"{event} by `start` and never waits for it",
                    "`yield wait(…)` with what `start` returned; until then the array may still be in use",
                )
        self.events.sort(key=lambda event: event.end)
        return Simulated(self.results, self.events, self.sent, self.held)

    def _advance(self, rank: int, now: float, event: Event | None) -> None:
        """Run a rank, which waited for `event`, from `now` until it has to wait, or to its end."""
        value = None
        if event is not None:
            value = event.value
            event.value = None  # it is the rank's from now on
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
        frame = traceback.extract_tb(error.__traceback__.tb_next)[0]
        line = f"in line {frame.lineno}"
        if frame.line:
            line += f", `{frame.line}`"
        if "read-only" in str(error):
            raise self._error(
                f"rank {rank} changes, {line}, an array that it was given and that belongs to the caller",
                "copy the array first, with `.copy()`",
            ) from None
        if "'Op'" in str(error):
            raise self._error(
                f"rank {rank} computes, {line}, with a message or collective that it didn't yield",
                "`total = yield all_reduce(…)` returns the sum",
            ) from None
        error.add_note(f"on rank {rank} {line}")

    def _resume(self, event: Event, time: float) -> None:
        heapq.heappush(self.queue, (time, next(self.order), event.rank, event))

    def _ask(self, rank: int, now: float, op: Any) -> Event:
        """Return the event that a rank yields: a new one, or for `wait` the one that was started."""
        if not isinstance(op, Op):
            raise self._error(
                f"rank {rank} yields {op!r:.60}",
                "yield compute(1), send(…), recv(…)",
            )
        op.yielded = True
        line = _frames(self.ranks[rank])[-1].f_lineno
        if op.kind == "wait":
            started = op.inner
            if isinstance(started, Event):
                started.waited = True
                return started
            fact = f"rank {rank} waits in line {line} for {started!r:.60}"
            if isinstance(started, Op):
                fact += ", which was made without `yield`"
            raise self._error(fact, "started = yield start(…)")
        if op.kind == "start":
            event = Event(rank, op.inner, now, line)
        else:
            event = Event(rank, op, now, line, waited=True)
        kind = getattr(event.op, "kind", None)
        if op.kind == "compute":
            self._finish(event, now, now + op.units)
        elif kind in MESSAGES:
            event.op.yielded = True
            self._message(event)
        elif kind in COLLECTIVES:
            event.op.yielded = True
            self._collective(event)
        else:
            raise self._error(
                f"rank {rank} starts {op.inner!r:.60}",
                "start a message or a collective",
            )
        return event

    def _message(self, event: Event) -> None:
        rank = event.rank
        peer = event.op.peer
        is_rank = isinstance(peer, (int, np.integer)) and 0 <= peer < self.world
        if not is_rank or peer == rank:
            raise self._error(
                f"{event}, and there are ranks 0 to {self.world - 1}, itself not counted",
                "(rank + 1) % world is the right neighbour",
            )
        pair = (rank, peer) if event.kind == "send" else (peer, rank)
        self.open[event.kind, pair].append(event)
        sends = self.open["send", pair]
        receives = self.open["recv", pair]
        if not sends or not receives:
            return
        send = sends.popleft()
        receive = receives.popleft()
        mb = send.op.array.nbytes / self.megabyte
        links = [("out", send.rank), ("in", receive.rank)]
        begin, end = self._use(links, event.posted, 1, mb)
        self.sent[send.rank] += mb
        receive.value = send.op.array
        self._finish(send, begin, end, mb)
        self._finish(receive, begin, end, mb)

    def _use(
        self,
        links: list[tuple[str, int]],
        posted: float,
        rounds: int,
        mb: float,
    ) -> tuple[float, float]:
        """Use links as soon as all of them are free; return when that begins and ends."""
        begin = max(posted, *(self.free[link] for link in links))
        end = begin + self.alpha * rounds + self.beta * mb
        for link in links:
            self.free[link] = end
        return begin, end

    def _collective(self, event: Event) -> None:
        """Let a collective take the time of a ring, once all ranks of its group have called it."""
        group = event.op.group or tuple(range(self.world))
        key = (group, self.calls[event.rank, group])
        self.calls[event.rank, group] += 1
        self.open[key].append(event)
        if len(self.open[key]) < len(group):
            return
        calls = sorted(self.open.pop(key), key=lambda call: call.rank)
        whole, values = self._values(calls)
        rounds = len(calls) - 1
        if event.kind == "all_reduce":
            rounds *= 2  # reduce_scatter, then all_gather
        mb = rounds * whole.nbytes / len(calls) / self.megabyte
        links = []
        for call in calls:
            links += [("out", call.rank), ("in", call.rank)]
        begin, end = self._use(links, event.posted, rounds, mb)
        for call, value in zip(calls, values, strict=True):
            call.value = value.copy()
            self.sent[call.rank] += mb
            self._finish(call, begin, end, mb)

    def _values(self, calls: list[Event]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the whole array that a collective makes, and what each rank gets of it."""
        first = calls[0]
        shape = first.op.array.shape
        for call in calls:
            if call.kind != first.kind or call.op.array.shape != shape:
                raise self._error(
                    f"{first}, but {call} at the same place",
                    "all ranks make the same collective calls, in the same order",
                )
        if first.kind == "reduce_scatter" and shape[0] % len(calls):
            raise self._error(
                f"{first}, and {shape[0]} rows can't be cut into {len(calls)} equal parts",
                "pad the array",
            )
        arrays = [call.op.array for call in calls]
        if first.kind == "all_gather":
            whole = np.concatenate(arrays)
        else:
            whole = np.sum(arrays, axis=0)
        if first.kind == "reduce_scatter":
            return whole, np.split(whole, len(calls))
        return whole, [whole] * len(calls)

    def _finish(self, event: Event, begin: float, end: float, mb: float = 0.0) -> None:
        event.begin = begin
        event.end = end
        event.mb = mb
        self.events.append(event)
        if self.waiting.get(event.rank) is event:
            del self.waiting[event.rank]
            self._resume(event, end)

    def _count(self, rank: int, now: float, arriving: Any = None) -> None:
        """Note what the variables of a rank hold, and what is about to be returned to it."""
        arrays = _roots(arriving)
        for frame in _frames(self.ranks[rank]):
            arrays |= _roots(list(frame.f_locals.values()))
        held = sum(size for key, size in arrays.items() if key not in self.outside)
        self.held[rank].append((now, held / self.megabyte))

    def _deadlock(self) -> RunFailed:
        for rank, name, op in self._without_yield():
            return self._error(
                f"deadlock: `{name}` of rank {rank} is {op!r}, made without `yield`, so it was never sent, "
                "and the others wait for it",
                f"`{name} = yield {op!r}`",
            )
        waits = {rank: sorted(self._missing(event)) for rank, event in sorted(self.waiting.items())}
        circle = _circle(waits)
        # All others wait for a rank of the circle.
        shown = [rank for rank in waits if not circle or rank in circle]
        sentences = [self._waits_for(rank, waits[rank]) for rank in shown[:8]]
        fact = f"deadlock: {'; '.join(sentences)}"
        fix = "each send needs one recv, and all ranks of a group make the same collective calls"
        if circle:
            fact += f". They wait in a circle: {' → '.join(map(str, circle))}"
            if all(self.waiting[rank].kind == "send" for rank in circle):
                fix = "let one of them receive first, or start(send(…)), recv(…), and wait after that"
        return self._error(fact, fix)

    def _waits_for(self, rank: int, others: list[int]) -> str:
        ended = [other for other in others if other not in self.running]
        named = ended or others
        ranks = "ranks" if len(named) > 1 else "rank"
        text = f"{self.waiting[rank]} and waits for {ranks} {', '.join(map(str, named))}"
        if ended:
            have = "have" if len(ended) > 1 else "has"
            text += f", which {have} returned already"
        return text

    def _without_yield(self) -> Iterator[tuple[int, str, Op]]:
        """Yield (rank, name, operation) of waiting ranks' variables that hold a never yielded operation."""
        for rank in sorted(self.waiting):
            for frame in _frames(self.ranks[rank]):
                for name, value in frame.f_locals.items():
                    if isinstance(value, Op) and not value.yielded:
                        yield rank, name, value

    def _missing(self, event: Event) -> set[int]:
        """Return the ranks that a waiting call still needs."""
        if event.kind in MESSAGES:
            return {event.op.peer}
        calls = next(events for events in self.open.values() if event in events)
        group = event.op.group or range(self.world)
        return set(group) - {call.rank for call in calls}

    def _error(self, fact: str, fix: str) -> RunFailed:
        return RunFailed(f"simulate {self.name} on {self.world} ranks", fact, fix)


def _circle(waits: dict[int, list[int]]) -> list[int]:
    """Return ranks that wait for each other in a circle, such as [0, 1, 0]; empty if there is none."""
    try:
        graphlib.TopologicalSorter(waits).prepare()
    except graphlib.CycleError as error:
        return error.args[1][::-1]
    return []


def _frames(generator: Any) -> list[Any]:
    """Return the frames of a generator, and of those that it delegates to by ``yield from``."""
    frames = []
    while getattr(generator, "gi_frame", None) is not None:
        frames.append(generator.gi_frame)
        generator = generator.gi_yieldfrom
    return frames


def _read_only(argument: Any) -> Any:
    """Return an argument as a rank gets it: arrays that it cannot change, in lists and dicts of its own."""
    if isinstance(argument, np.ndarray):
        view = argument.view()
        view.flags.writeable = False
        return view
    container = type(argument)
    if container in (list, tuple):
        return container(map(_read_only, argument))
    if container is dict:
        return {key: _read_only(value) for key, value in argument.items()}
    return argument


def _roots(value: Any) -> dict[int, int]:
    """Return {id: bytes} of the arrays in a value; a slice of an array keeps the whole array alive."""
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        return {id(value): value.nbytes}
    if isinstance(value, Event):
        return _roots(value.value)
    if isinstance(value, dict):
        value = list(value.values())
    roots: dict[int, int] = {}
    if isinstance(value, (list, tuple, set, deque)):
        for part in value:
            roots |= _roots(part)
    return roots
