"""Lesson 12: messages in a circle, a ring, buckets, a divided optimizer. All run on simulated and real ranks.

Arrays are filled so that a sum shows whose numbers are in it: rank r contributes 16 ** r, so each digit of the
sum in base 16 says how often a rank's numbers were added.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from course import schedule
from labkit.errors import LabError
from course.exercises.answers import Wrong, array_of, describe, expect_function, require_no_dots
from course.exercises.registry import Lesson

LESSON = Lesson("12", "Data parallel by hand")
LIMIT = 60  # seconds of a check that starts real ranks
STUCK = "a real rank waits for a message or a collective that no rank sends"


# -- running an answer; lesson 12b does the same --------------------------------------------------------


def simulated(
    name: str, program: Callable, world: int, *args: Any, only_own: bool = False, **costs: float
) -> schedule.Simulated:
    """The simulation of an answer.

    Args:
        only_own: each list in `args` has an entry for each rank, of which a rank may read its own.

    Raises:
        NotAttempted: a ``...`` is still in it.
        Wrong: it is no function, it raises, or the simulator refuses it.
    """
    expect_function(program, name)
    require_no_dots(program)

    def alone(rank: int, world: int, *given: Any) -> Any:
        return program(rank, world, *(_Own(rank, one) if isinstance(one, list) else one for one in given))

    alone.__name__ = program.__name__
    try:
        return schedule.run(alone if only_own else program, world, *args, **costs)
    except Wrong:
        raise
    except LabError as error:
        raise Wrong(f"with {world} ranks, {error.fact}. To fix it: {error.fix}") from None
    except Exception as error:
        where = " ".join(getattr(error, "__notes__", []))
        raise Wrong(f"with {world} ranks, {name} raised {type(error).__name__} {where}: {error}") from error


def on_real_ranks(name: str, program: Callable, world: int, *args: Any) -> list[Any]:
    """What real ranks return. The simulation was right, so the answer hardly ever fails here."""
    try:
        return schedule.on_ranks(program, world, *args, limit=15).results
    except LabError as error:
        fact = f"the simulation is right, but on {world} real ranks {name} stops: {error.fact}"
        raise Wrong(fact) from None


class _Own:
    """What a list with an entry for each rank is to one of them: it reads its own."""

    def __init__(self, rank: int, every: list) -> None:
        self._rank, self._every = rank, every

    def __len__(self) -> int:
        return len(self._every)

    def __getitem__(self, place: Any) -> Any:
        if place != self._rank:
            raise Wrong(
                f"rank {self._rank} reads entry {place!r} of a list that has one for each rank: only its own "
                "is on that rank, and what the others have must be sent"
            )
        return self._every[place]


_simulated = partial(simulated, only_own=True)


# -- the exercises ---------------------------------------------------------------------------------------


@LESSON.exercise(
    "12-1 · Pass it on",
    "If every rank sends first, who receives?",
    "Start your message with `start`, receive, and wait for your own message after that.",
    "`sending = yield start(send(right, values[rank]))`, `other = yield recv(left)`, `yield wait(sending)`, "
    "and return `other`.",
)
def _passed(pass_on: Any) -> None:
    for world in (2, 3, 5):
        values = [np.full(250, float(rank)) for rank in range(world)]
        ran = _simulated("pass_on", pass_on, world, values)
        for rank, result in enumerate(ran.results):
            found = array_of(result, what=f"what rank {rank} returns")
            left = (rank - 1) % world
            if found.shape == (250,) and (found == left).all():
                continue
            whose = sorted({int(one) for one in found.flat if one in range(world)})
            raise Wrong(
                f"with {world} ranks, rank {rank} returns what belongs to rank {', '.join(map(str, whose))}: "
                f"it should be what rank {left} sent"
            )
        if ran.time > 1.01 * _message(250):
            raise Wrong(
                f"with {world} ranks it works, but some messages wait for others: {ran.time:.2f} units of time, "
                f"and {_message(250):.2f} are enough if all are under way at once"
            )


@LESSON.exercise(
    "12-2 · Ring all-reduce",
    "In round 0, rank r sends piece r. Which piece does it receive, and which one does it send next?",
    "In each round it sends what it received in the round before. So in round s it sends piece "
    "`(rank - s) % world` and receives piece `(rank - s - 1) % world`.",
    "In rounds 0 to n − 2, add what you received to your piece; in rounds n − 1 to 2 n − 3, replace it. "
    "At the end, `np.concatenate(pieces)`.",
    seconds=LIMIT,
    stuck=STUCK,
)
def _ring(ring: Any) -> None:
    for world in (2, 3, 5):
        ran = _simulated("ring", ring, world, [np.full(60 * world, 16.0**rank) for rank in range(world)])
        _is_sum(ran.results, world, f"with {world} ranks")
        if other := {event.kind for event in ran.events} - {"send", "recv", "compute"}:
            raise Wrong(f"it uses `{min(other)}`: write it from `send` and `recv`")
        least = 2 * (world - 1) * 60 * 8 / schedule.MEGABYTE
        if max(ran.sent) > 1.01 * least:
            rank = int(np.argmax(ran.sent))
            raise Wrong(
                f"with {world} ranks the sum is right, but rank {rank} sends {ran.sent[rank]:.2f} MB, and a ring "
                f"sends {least:.2f} MB: one piece in each of {2 * (world - 1)} rounds"
            )
        if ran.time > 1.01 * 2 * (world - 1) * _message(60):
            raise Wrong(
                f"with {world} ranks the sum is right, but it takes {ran.time:.2f} units instead of "
                f"{2 * (world - 1) * _message(60):.2f}: in each round, all links should work at the same time"
            )
        mixed = [np.arange(6.0 * world) * 7**rank for rank in range(world)]
        if any((one != sum(mixed)).any() for one in _simulated("ring", ring, world, mixed).results):
            raise Wrong(f"with {world} ranks each piece is complete, but the pieces are in the wrong order")
    _is_sum(
        on_real_ranks("ring", ring, 3, [np.full(9, 16.0**rank) for rank in range(3)]),
        3,
        "on three real ranks",
    )


@LESSON.exercise(
    "12-3 · Buckets",
    "What do you know about a layer right after `yield from backward(layer, …)`? When can its bucket be sent?",
    "Keep a list of the layers in the current bucket. When it's full, or after layer 0, start an all-reduce of "
    "`np.concatenate([grads[one] for one in bucket])`, and keep what `start` returns. Wait after the loop.",
    "After the loop: for each bucket, `total = (yield wait(started)) / world`, and cut it with "
    "`np.split(total, np.cumsum([len(grads[one]) for one in bucket])[:-1])`.",
    seconds=LIMIT,
    stuck=STUCK,
)
def _buckets(bucketed: Any) -> None:
    _are_buckets(bucketed, [300, 500, 200, 400, 600, 100], 700)  # the first two fill a bucket exactly
    try:
        _are_buckets(bucketed, [500] * 6, 1000)
    except Wrong as error:
        raise Wrong(
            f"if the first layer fills the last bucket exactly (six layers of 500 numbers): {error}"
        ) from error
    lengths = [300, 500, 200, 400, 600, 100]
    _are_averages(
        on_real_ranks("bucketed", bucketed, 2, _layered(lengths, 2), 700), _layered(lengths, 2), lengths
    )


def _are_buckets(bucketed: Any, lengths: Sequence[int], size: int) -> None:
    """The averages are right, and sent in the right buckets at the right time."""
    world = 4
    source = _layered(lengths, world)
    ran = _simulated("bucketed", bucketed, world, source, size)
    calls = [event for event in ran.events if event.rank == 0 and event.kind == "all_reduce"]
    _backwards(ran.events, len(lengths))
    _not_too_early(ran.events, calls)
    _are_averages(ran.results, source, lengths)
    buckets = list(_full(lengths, size))
    if len(calls) != len(buckets):
        right = f"buckets of {size} numbers need {len(buckets)} here"
        there = f"there are {len(calls)} all-reduces"
        if any(event.op.array.size == 0 for event in calls):
            there += ", and one of them is empty"
        elif len(calls) == 1:
            there, right = "there is one all-reduce", f"{right}: nothing is sent before the end of backward"
        raise Wrong(f"the averages are right, but {there}, and {right}")
    best = schedule.run(_reference, world, source, buckets).time
    if ran.time > 1.01 * best:
        waits = next((e for e in calls if e.end > e.posted and _blocked(ran.events, e)), calls[0])
        raise Wrong(
            f"the averages are right, but the step takes {ran.time:.1f} units, and {best:.1f} are enough: after "
            f"the bucket that starts at {waits.posted:.1f}, backward doesn't go on until it's through"
        )


@LESSON.exercise(
    "12-4 · ZeRO, stage 1",
    "Which part of the average gradient does a rank need, if it updates only one part of the weights?",
    "`reduce_scatter(gradient)` gives you your part of the sum. Update your part of the weights, and send it to "
    "the others with `all_gather`.",
    "`mine = slice(rank * size, (rank + 1) * size)`, `velocity = np.zeros(size)`, and in the loop "
    "`average = (yield reduce_scatter(gradient)) / world`, then `part = weights[mine] - lr * velocity` and "
    "`weights = yield all_gather(part)`.",
    seconds=LIMIT,
    stuck=STUCK,
)
def _zero(zero: Any) -> None:
    world, size, steps = 8, 800, 3
    numbers = np.random.default_rng(1)
    weights = numbers.normal(size=size)
    gradients = [[numbers.normal(size=size) for _ in range(steps)] for _ in range(world)]
    first = [one[:1] for one in gradients]  # after one step, mistakes are easiest to tell
    _are_trained(_simulated("zero", zero, world, weights, first, 0.1).results, weights, first)
    ran = _simulated("zero", zero, world, weights, gradients, 0.1)
    _are_trained(ran.results, weights, gradients)
    computed = sum(event.kind == "compute" and event.rank == 0 for event in ran.events)
    if computed != steps:
        raise Wrong(
            f"rank 0 computes {computed} times, and there are {steps} steps: keep `yield compute(3, …)`"
        )
    whole = size * 8 / schedule.MEGABYTE
    least = 2 * steps * whole * (world - 1) / world
    if max(ran.sent) < 0.99 * least:
        raise Wrong(
            f"the weights are right, but between two of the {steps} steps a rank has only its own part up to date, "
            "and the next forward pass needs all of them: an `all_gather` belongs at the end of each step"
        )
    if max(ran.sent) > 1.01 * least:
        reduced = any(event.kind == "all_reduce" for event in ran.events)
        enough = "a rank needs only its part of the sum, and `reduce_scatter` returns that"
        once = "one `reduce_scatter` and one `all_gather` in each step are enough"
        raise Wrong(
            f"the weights are right, but a rank sends {max(ran.sent) / least:.2f} times as much as `replicated`: "
            f"{enough if reduced else once}"
        )
    if max(ran.memory) > 2.51 * whole:
        rank = int(np.argmax(ran.memory))
        raise Wrong(
            f"the weights are right, but rank {rank} holds {ran.memory[rank] / whole:.2f} times the weights, and "
            "2.5 is the limit: is the velocity as long as a part? A slice that you keep keeps its whole array"
        )
    _are_trained(on_real_ranks("zero", zero, 2, weights, gradients[:2], 0.1), weights, gradients[:2])


# -- looking at results --------------------------------------------------------------------------------


def _message(numbers: int) -> float:
    return schedule.ALPHA + schedule.BETA * numbers * 8 / schedule.MEGABYTE


def _is_sum(results: Sequence[Any], world: int, where: str) -> None:
    """Each result is the sum of 16 ** rank; if not, whose numbers are missing or there twice."""
    for rank, result in enumerate(results):
        what = f"{where}, what rank {rank} returns"
        found = array_of(result, what=what)
        if found.ndim != 1 or len(found) % world:
            raise Wrong(f"{what} has the shape {found.shape}: return the pieces as one array")
        for number, piece in enumerate(np.split(found, world)):
            value = piece[0] if (piece == piece[0]).all() and len(piece) else np.nan
            if value == sum(16.0**one for one in range(world)):
                continue
            raise Wrong(f"{where}, piece {number} of rank {rank}'s result {_counted(value, world)}")


def _counted(value: float, world: int) -> str:
    if value * world == sum(16.0**one for one in range(world)):
        return "is the mean: return the sum"
    if not float(value).is_integer():
        return "isn't a sum of the ranks' numbers"
    times = [int(value) // 16**one % 16 for one in range(world)]
    twice = [str(one) for one, count in enumerate(times) if count > 1]
    never = [str(one) for one, count in enumerate(times) if count == 0]
    said = [f"has the numbers of rank {', '.join(twice)} twice or more"] * bool(twice)
    said += [f"lacks the numbers of rank {', '.join(never)}"] * bool(never)
    return " and ".join(said)


def _layered(lengths: Sequence[int], world: int) -> list[list[np.ndarray]]:
    """Gradients of each rank and layer: a number shows its layer and whose it is."""
    return [
        [np.full(n, (layer + 1) * 2.0**20 + 16.0**rank) for layer, n in enumerate(lengths)]
        for rank in range(world)
    ]


def _layers_in(array: np.ndarray) -> list[int]:
    """The layers that a contribution has; -1 for zeros."""
    return sorted({int(one // 2**20) - 1 for one in np.unique(array)})


def _backwards(events: Sequence[schedule.Event], layers: int) -> None:
    passes = [event for event in events if event.rank == 0 and event.op.label.startswith("B")]
    order = [event.op.label for event in sorted(passes, key=lambda one: one.begin)]
    if order == [f"B{layer}" for layer in range(layers)]:
        raise Wrong("it computes layer 0 first: a backward pass goes from the last layer to the first")


def _not_too_early(events: Sequence[schedule.Event], calls: Sequence[schedule.Event]) -> None:
    """Each layer's gradient is sent once, and after backward has computed it."""
    done = {event.op.label: event.end for event in events if event.rank == 0 and event.kind == "compute"}
    sent: set[int] = set()
    for call in sorted(calls, key=lambda one: one.posted):
        place = f"the all-reduce that rank 0 starts at {call.posted:.1f} (line {call.line})"
        for layer in _layers_in(call.op.array):
            if layer < 0:
                raise Wrong(f"{place} is too early: it has zeros, where backward hasn't put a gradient yet")
            if layer in sent:
                raise Wrong(f"{place} sends layer {layer} twice: it was in an earlier one")
            if call.posted < done.get(f"B{layer}", np.inf) - 1e-9:
                raise Wrong(f"{place} is too early: backward isn't through with layer {layer}")
            sent.add(layer)


def _are_averages(results: Sequence[Any], source: list[list[np.ndarray]], lengths: Sequence[int]) -> None:
    world = len(source)
    right = [np.mean([mine[layer] for mine in source], axis=0) for layer in range(len(lengths))]
    for rank, result in enumerate(results):
        if not isinstance(result, (list, tuple)) or len(result) != len(lengths):
            raise Wrong(
                f"rank {rank} returns {describe(result)}; a list of {len(lengths)} averages is expected"
            )
        for layer, wanted in enumerate(right):
            found = array_of(result[layer], what=f"rank {rank}'s average of layer {layer}")
            if found.shape == wanted.shape and np.allclose(found, wanted, rtol=1e-12):
                continue
            likely = {
                "the sum: divide by the number of ranks": wanted * world,
                "this rank's own gradient, and never sent": source[rank][layer],
                "zero": wanted * 0,
            }
            likely |= {f"the average of layer {other}": one for other, one in enumerate(right)}
            what = (
                text for text, one in likely.items() if one.shape == found.shape and np.allclose(one, found)
            )
            said = next(what, f"an array of shape {found.shape}, and not the average")
            raise Wrong(f"what rank {rank} returns for layer {layer} is {said}")


def _full(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    bucket: list[int] = []
    for layer in reversed(range(len(lengths))):
        bucket.append(layer)
        if layer == 0 or sum(lengths[one] for one in bucket) >= size:
            yield bucket
            bucket = []


def _reference(rank: int, world: int, source: list[list[np.ndarray]], buckets: list[list[int]]) -> Iterator:
    started = []
    for bucket in buckets:
        for layer in bucket:
            yield schedule.compute(1, f"B{layer}")
        flat = np.concatenate([source[rank][layer] for layer in bucket])
        started.append((yield schedule.start(schedule.all_reduce(flat))))
    for one in started:
        yield schedule.wait(one)


def _blocked(events: Sequence[schedule.Event], call: schedule.Event) -> bool:
    """Whether rank 0 computes nothing from the start of a collective to its end."""
    mine = (event for event in events if event.rank == 0 and event.kind == "compute")
    return not any(call.posted - 1e-9 <= event.begin < call.end - 1e-9 for event in mine)


def _are_trained(results: Sequence[Any], weights: np.ndarray, gradients: list[list[np.ndarray]]) -> None:
    """The results are the weights that `replicated` of the lesson would return on all ranks."""
    world, right = len(gradients), _trained(weights, np.mean(gradients, axis=0))
    found = [array_of(one, shape=right.shape, what=f"what rank {r} returns") for r, one in enumerate(results)]
    near = [bool(np.allclose(one, right)) for one in found]
    if all(near):
        return
    likely = {
        "not divided by the number of ranks": _trained(weights, np.sum(gradients, axis=0)),
        "trained without momentum: the velocity doesn't last from step to step": _trained(
            weights, np.mean(gradients, axis=0), momentum=0
        ),
        "those from before": weights,
        "trained with this rank's own gradient only": None,
    }
    for rank, one in enumerate(found):
        own = _trained(weights, np.array(gradients[rank]))
        for text, wrong in likely.items():
            if np.allclose(one, own if wrong is None else wrong):
                raise Wrong(f"the weights of rank {rank} are {text}")
        mine, old, moves = (np.split(each, world) for each in (one, weights, right - weights))
        for part, source, move in itertools.product(range(world), repeat=3):
            if not part == source == move and np.allclose(mine[part], old[source] + moves[move]):
                raise Wrong(
                    f"on rank {rank}, part {part} of the weights is made of part {source} and the gradient of "
                    f"part {move}: which part does `reduce_scatter` return?"
                )
    wrong = next(r for r, one in enumerate(near) if not one)
    parts = zip(np.split(found[wrong], world), np.split(right, world), strict=True)
    off = [str(number) for number, (one, other) in enumerate(parts) if not np.allclose(one, other)]
    different = "" if len(off) == world else f" in part {', '.join(off)}"
    raise Wrong(
        f"the weights of rank {wrong} differ{different} from those of `replicated`: who sends which part, and when?"
    )


def _trained(weights: np.ndarray, gradients: np.ndarray, momentum: float = 0.9) -> np.ndarray:
    velocity = np.zeros_like(weights)
    for gradient in gradients:
        velocity = momentum * velocity + gradient
        weights = weights - 0.1 * velocity
    return weights
