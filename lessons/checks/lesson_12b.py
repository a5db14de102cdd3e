"""Lesson 12b: shards that are gathered and dropped, the bubble of a pipeline, and the schedule 1F1B."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from course import schedule
from labkit.errors import LabError
from course.exercises.answers import (
    NotAttempted,
    Wrong,
    array_of,
    describe,
    expect_function,
    require_no_dots,
    result_of,
    returns,
)
from course.exercises.registry import Lesson, load

LESSON = Lesson("12b", "Sharding and pipelines by hand")
_LESSON_12 = load("12")
simulated, on_real_ranks = _LESSON_12.simulated, _LESSON_12.on_real_ranks
_LIMIT, _STUCK = _LESSON_12.LIMIT, _LESSON_12.STUCK
_LR = 0.5


@LESSON.exercise(
    "12b-1 · FSDP",
    "Which arrays of `data_parallel` does a rank need only while one layer computes?",
    "Before a layer computes, forward or backward: `weights = yield all_gather(shards[number])`; after it, "
    "`del weights`. What replaces the all-reduce?",
    "In the backward pass: `total = yield reduce_scatter(gradient)`, `shards[number] -= lr * total / world`, and "
    "`del gradient, total` before the next layer is gathered.",
    seconds=_LIMIT,
    stuck=_STUCK,
)
def _fsdp(fsdp: Any) -> None:
    world, (layers, batches) = 4, _network(4)
    one = batches[:1]  # after one step, mistakes are easiest to tell
    _are_shards(simulated("fsdp", fsdp, world, layers, one, _LR).results, layers, one, world)
    ran = simulated("fsdp", fsdp, world, layers, batches, _LR)
    _are_shards(ran.results, layers, batches, world)
    computed, units = (_computed(ran), 3 * len(layers) * len(batches))
    if computed != units:
        raise Wrong(
            f"the shards are right, but rank 0 computes for {computed:g} units, and in `data_parallel` for {units}: "
            'keep `yield compute(1, "F")` and `yield compute(2, "B")` for each layer'
        )
    least = 3 * len(batches) * sum(map(_mb, layers)) * (world - 1) / world
    if max(ran.sent) < 0.99 * least:
        raise Wrong(
            "the shards are right, but less is sent than FSDP needs: is a layer kept from forward to backward?"
        )
    if max(ran.sent) > 1.01 * least:
        raise Wrong(
            f"the shards are right, but a rank sends {max(ran.sent) / least:.2f} times as much as it must: two "
            "all-gathers and one reduce-scatter for each layer are enough"
        )
    if max(ran.memory) > 100:
        rank = int(np.argmax(ran.memory))
        when = next(time for time, mb in ran.held[rank] if mb == ran.memory[rank])
        twice = simulated("fsdp", fsdp, world, layers, [np.tile(one, (2, 1)) for one in batches], _LR)
        if max(twice.memory) - max(ran.memory) > 2 * len(layers) * _mb(batches[0]) / world:
            raise Wrong(
                f"the shards are right, but rank {rank} holds {ran.memory[rank]:.0f} MB, and 100 is the limit: it "
                "computes with the rows of all ranks. Its own are `batch[rank::world]`"
            )
        raise Wrong(
            f"the shards are right, but rank {rank} holds {ran.memory[rank]:.0f} MB at {when:.1f}, and 100 is the "
            f"limit ({_mb(layers[0]):.0f} MB are one layer): which array is still in a variable? `del` it"
        )
    _are_shards(on_real_ranks("fsdp", fsdp, 2, layers, batches, _LR), layers, batches, 2)


@LESSON.exercise(
    "12b-2 · How many micro-batches",
    "Solve (p − 1)/(m + p − 1) ≤ idle for m, or try m = 1, 2, 3, …",
    "`while (stages - 1) / (count + stages - 1) > idle: count += 1`.",
    "Begin with `count = 1`, use that loop, and return `count`.",
)
def _micro_batches(micro_batches: Any) -> None:
    for stages, idle in ((4, 0.3), (8, 0.1), (4, 0.25), (2, 0.6), (3, 0.45), (4, 0.2), (7, 0.2), (1, 0.1)):
        right = next(m for m in range(1, 1000) if stages - 1 <= idle * (m + stages - 1) * (1 + 1e-12))
        exact = (stages - 1) * (1 - idle) / idle
        enough = "one fewer is enough"
        if exact > right:  # by a rounding error
            enough += f": as floats, (p − 1)(1 − idle)/idle is {exact!r}, so `ceil` goes one too far. Try 1, 2, 3 and so on"
        mistakes = {
            right - 1: "that is one too few: the bubble is larger then",
            right + 1: enough,
            exact: "a micro-batch can't be divided: round up",
            int(
                np.ceil((stages - 1) / idle)
            ): "(p − 1)/m is the bubble compared with the computing, not with the time",
            0: "there is at least one micro-batch",
        }
        mistakes.pop(right, None)
        returns(micro_batches, (stages, idle), right, name="micro_batches", mistakes=mistakes)


@LESSON.exercise(
    "12b-3 · 1F1B",
    "How many forward passes can rank r make before the first backward pass can reach it?",
    "Warm-up: `min(world - rank - 1, count)` forward passes. Then forward pass number warm_up + k and backward pass "
    "number k, for each k.",
    "After `count - warm_up` such pairs, append the backward passes from `count - warm_up` to `count - 1`.",
    seconds=_LIMIT,
    stuck=_STUCK,
)
def _one_f_one_b(one_f_one_b: Any) -> None:
    expect_function(one_f_one_b, "one_f_one_b")
    require_no_dots(one_f_one_b)
    for world, count in ((4, 8), (4, 2), (2, 4), (3, 16)):
        where = f"{world} ranks and {count} micro-batches"
        plans = [result_of(one_f_one_b, rank, world, count, what="one_f_one_b") for rank in range(world)]
        for rank, plan in enumerate(plans):
            _is_whole(plan, f"with {where}, rank {rank}", count)
        layers, batches = _network(world, rows=count)
        ran = _pipeline(world, one_f_one_b, count, layers, batches[0])
        formula = (world - 1) / (count + world - 1)
        if ran.bubble > formula + 1e-9:
            raise Wrong(
                f"with {where} it works, but the bubble is {ran.bubble:.0%}, and the formula's is {formula:.0%}"
            )
        for rank, plan in enumerate(plans):
            most = _most_kept(plan)
            if most > world - rank:
                raise Wrong(
                    f"with {where}, rank {rank} keeps {most} micro-batches at once, and {world - rank} are enough: "
                    "in the steady phase, a backward pass follows each forward pass"
                )
        _are_layers(ran.results, layers, batches[0], where)
    layers, batches = _network(2, rows=4)
    real = on_real_ranks("your plan", _stage, 2, one_f_one_b, 4, layers, batches[0], _LR)
    _are_layers(real, layers, batches[0], "two real ranks")


def _pipeline(world: int, plan: Callable, count: int, layers: list[np.ndarray], batch: np.ndarray) -> Any:
    """The simulation of a plan, with messages that are free; its lines are none of the learner's."""
    try:
        return simulated("your plan", _stage, world, plan, count, layers, batch, _LR, alpha=0, beta=0)
    except Wrong as error:
        raise Wrong(re.sub(r" in line \d+", "", str(error))) from None


def _computed(ran: schedule.Simulated) -> float:
    """The units that rank 0 computes."""
    return sum(event.op.units for event in ran.events if event.rank == 0 and event.kind == "compute")


def _mb(array: np.ndarray) -> float:
    return array.nbytes / schedule.MEGABYTE


# -- the network of the lesson -------------------------------------------------------------------------


def _network(count: int, rows: int = 16) -> tuple[list[np.ndarray], list[np.ndarray]]:
    numbers = np.random.default_rng(1)
    layers = [numbers.normal(size=(64, 64)) / 8 for _ in range(count)]
    return layers, [numbers.normal(size=(rows, 64)) for _ in range(3)]


def _backward(weights: np.ndarray, x: np.ndarray, y: np.ndarray, slope: np.ndarray) -> tuple:
    inner = slope * (1 - y**2)
    return x.T @ inner, inner @ weights.T


def _gradients(layers: list[np.ndarray], rows: np.ndarray) -> list[np.ndarray]:
    """The gradient of each layer, in one process."""
    outputs = [rows]
    for weights in layers:
        outputs.append(np.tanh(outputs[-1] @ weights))
    slope, found = 2 * (outputs[-1] - rows) / rows.size, []
    for number in reversed(range(len(layers))):
        gradient, slope = _backward(layers[number], outputs[number], outputs[number + 1], slope)
        found.append(gradient)
    return found[::-1]


def _trained(layers: list[np.ndarray], batches: list[np.ndarray], times: float = 1.0) -> list[np.ndarray]:
    """The layers after a step with each batch; `times` is a mistake in the gradient."""
    for batch in batches:
        moves = _gradients(layers, batch)
        layers = [weights - _LR * times * move for weights, move in zip(layers, moves, strict=True)]
    return layers


def _stage(
    rank: int, world: int, plan: Callable, count: int, layers: list[np.ndarray], batch: np.ndarray, lr: float
) -> Iterator:
    """The lesson's stage of a pipeline."""
    weights, micro, kept, sent, gradient = layers[rank].copy(), np.split(batch, count), {}, [], 0.0
    unit = 32 / count
    for kind, number in plan(rank, world, count):
        if kind == "F":
            x = micro[number] if rank == 0 else (yield schedule.recv(rank - 1))
            yield schedule.compute(unit, f"F{number}")
            kept[number] = (x, np.tanh(x @ weights))
            if rank < world - 1:
                sent.append((yield schedule.start(schedule.send(rank + 1, kept[number][1]))))
        else:
            x, y = kept.pop(number)
            last = rank == world - 1
            slope = 2 * (y - micro[number]) / batch.size if last else (yield schedule.recv(rank + 1))
            yield schedule.compute(2 * unit, f"B{number}")
            part, slope = _backward(weights, x, y, slope)
            gradient = gradient + part
            if rank > 0:
                sent.append((yield schedule.start(schedule.send(rank - 1, slope))))
    for one in sent:
        yield schedule.wait(one)
    return weights - lr * gradient


# -- looking at results --------------------------------------------------------------------------------


def _are_shards(results: list[Any], layers: list[np.ndarray], batches: list[np.ndarray], world: int) -> None:
    """Each rank returns its rows of each trained layer."""
    right, summed = _trained(layers, batches), _trained(layers, batches, world)
    alone = [_trained(layers, [batch[rank::world] for batch in batches]) for rank in range(world)]
    for rank, result in reversed(list(enumerate(results))):  # rank 0's own rows may also be what all took
        if not isinstance(result, (list, tuple)) or len(result) != len(layers):
            raise Wrong(
                f"rank {rank} returns {describe(result)}; the list of its {len(layers)} shards is expected"
            )
        for number, found in enumerate(result):
            what = f"rank {rank}'s shard of layer {number}"
            found = array_of(found, what=what)
            if found.shape == layers[0].shape:
                raise Wrong(f"{what} is a whole layer: keep {64 // world} of its 64 rows")
            if found.shape != (64 // world, 64):
                raise Wrong(f"{what} has the shape {found.shape}, and {64 // world} rows of 64 are expected")
            new, times, old = (np.split(each[number], world) for each in (right, summed, layers))
            if np.allclose(found, new[rank]):
                continue
            only = [np.split(one[number], world)[rank] for one in alone]
            likely = {
                "was updated with the sum: divide by the number of ranks": times[rank],
                "was updated with this rank's own gradient only": only[rank],
                "is as before the training": old[rank],
            }
            for other in range(world):
                likely |= {
                    f"was updated with the batch rows of rank {other} only": only[other],
                    f"belongs to rank {other}": new[other],
                    f"was updated with the gradient of rank {other}'s shard": old[rank]
                    + new[other]
                    - old[other],
                }
            said = (text for text, wrong in likely.items() if np.allclose(found, wrong))
            raise Wrong(f"{what} {next(said, 'differs from that of `data_parallel`')}")


def _is_whole(plan: Any, what: str, count: int) -> None:
    """A plan has each forward and backward pass once, in an order that is possible."""
    try:
        plan = [(kind, int(number)) for kind, number in plan]
    except (TypeError, ValueError):
        raise Wrong(
            f"{what}: the plan is {describe(plan)}; a list of pairs such as ('F', 0) is expected"
        ) from None
    for kind, words in (("F", "forward"), ("B", "backward")):
        numbers = [number for one, number in plan if one == kind]
        if twice := sorted({one for one in numbers if numbers.count(one) > 1}):
            raise Wrong(f"{what} makes the {words} pass of micro-batch {twice[0]} twice")
        if never := sorted(set(range(count)) - set(numbers)):
            raise Wrong(f"{what} never makes the {words} pass of micro-batch {never[0]}")
        if too_many := sorted(set(numbers) - set(range(count))):
            raise Wrong(
                f"{what} makes the {words} pass of micro-batch {too_many[0]}, and the last is {count - 1}"
            )
        if numbers != sorted(numbers):
            raise Wrong(
                f"{what} makes its {words} passes in the order {numbers[:8]}: messages arrive from 0 on"
            )
    for number in range(count):
        if plan.index(("B", number)) < plan.index(("F", number)):
            raise Wrong(
                f"{what} makes the backward pass of micro-batch {number} too early, before its forward pass"
            )


def _most_kept(plan: list[tuple[str, int]]) -> int:
    kept = most = 0
    for kind, _ in plan:
        kept += 1 if kind == "F" else -1
        most = max(most, kept)
    return most


def _are_layers(results: list[Any], layers: list[np.ndarray], batch: np.ndarray, where: str) -> None:
    for rank, (found, right) in enumerate(zip(results, _trained(layers, [batch]), strict=True)):
        if not np.allclose(found, right):
            raise Wrong(f"with {where}, the layer of rank {rank} isn't the one that one process trains")
