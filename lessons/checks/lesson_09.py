"""Lesson 09: shared cores, alpha and beta, a fair comparison, the slowest rank, what fits on the nodes."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from course import slow_runs
from course.exercises.answers import (
    Wrong,
    close_to,
    describe,
    expect_function,
    expect_type,
    number,
    result_of,
)
from course.exercises.registry import Lesson
from course.exercises.running import returned, run_loop

LESSON = Lesson("09", "From two cores to a cluster")
_ROWS, _STEPS = 65, 3
_WORKERS, _ALPHA, _BETA = 3, 0.004, 0.02  # seconds for a message, and for a megabyte
_BEHIND = 0.8  # what the other ranks measure, of what the last one does
_SLOW = "that is not it: do the first exchange and the slow ones change your number?"

_CAUSES = ("data", "slow rank", "exchange")


@LESSON.exercise(
    "09-5 · Repair the model",
    "How many workers share one core, if there are 4 workers and 2 cores? And if there are 2 workers and 4 cores?",
    "With more workers than cores, each worker has `cores / workers` of a core. What does that do to its time?",
    "It's `workers / cores`, and at least 1: `max(1, workers / cores)`.",
)
def _slowdown(slowdown: Any) -> None:
    for workers, cores, right, mistakes in (
        (3, 2, 1.5, {1: "three workers share two cores", 2 / 3: "that is a core's share for each worker"}),
        (2, 4, 1.0, {0.5: "a worker can't compute faster than one core does"}),
        (8, 4, 2.0, {4: "that is how many workers have no core"}),
    ):
        what = f"slowdown({workers}, {cores})"
        found = result_of(slowdown, workers, cores, what="slowdown")
        close_to(found, right, what=what, mistakes=mistakes)


@LESSON.exercise(
    "09-1 · α and β of a cluster",
    "Measure two sizes, several times each. Which number of the several isn't changed by a slow one?",
    "Take the median of each size, then the largest median of all ranks. The difference of the two sizes has no "
    "α in it, so it gives β. With β, either of them gives α.",
    "`dist.all_reduce(medians, op=dist.ReduceOp.MAX)`; `rounds = 2 * (workers - 1)`; "
    "`beta = (large - small) / (16 - 1) * workers / rounds`; `alpha = small / rounds - beta * 1 / workers`.",
    seconds=90,
    stuck="a collective operation that only some ranks call",
)
def _alpha_beta(alpha_beta: Any) -> None:
    """On three workers, whose exchanges take what a formula says: no clock is read."""
    expect_function(alpha_beta, "alpha_beta")
    result, _ = run_loop(_measured, {"loop": alpha_beta}, num_workers=_WORKERS, name="alpha_beta")
    for rank, answer in enumerate(result.return_value):
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise Wrong(f"rank {rank} returns {answer}, and a tuple (alpha, beta) is expected")
        alpha, beta = (number(one, f"what rank {rank} returns") for one in answer)
        if (alpha, beta) != result.return_value[0]:
            raise Wrong("the ranks return different values: every rank needs the largest of all")
    rounds, share = 2 * (_WORKERS - 1), _BEHIND
    close_to(beta, _BETA, rel=1e-3, what="beta", otherwise=_SLOW, mistakes={
        _ALPHA: "that is alpha; return alpha first",
        _BETA * rounds / _WORKERS: f"that is for all {rounds} messages together",
        _BETA / _WORKERS: "a message is 1/n of the size",
        _BETA * share: "that is what rank 0 measured, and the slowest rank counts",
    })  # fmt: skip
    close_to(alpha, _ALPHA, rel=1e-3, what="alpha", otherwise=_SLOW, mistakes={
        _ALPHA * rounds: f"that is for all {rounds} messages together",
        _ALPHA * rounds / _WORKERS: f"each worker sends {rounds} messages",
        _ALPHA + _BETA / _WORKERS: "the small exchange sends a megabyte, too",
    })  # fmt: skip


def _measured(config: dict) -> list[Any]:
    """On every rank: what the loop returns, with exchanges that report their seconds by the formula."""
    import ray.train
    import torch
    import torch.distributed as dist

    rank, count = ray.train.get_context().get_world_rank(), 0

    def exchange(megabytes: float) -> float:
        nonlocal count
        dist.all_reduce(torch.ones(1))
        rounds, count = 2 * (_WORKERS - 1), count + 1
        seconds = _ALPHA * rounds + _BETA * megabytes * rounds / _WORKERS
        slow = 50 if count == 1 else 3 if count % 5 == 0 else 1
        return seconds * slow * (1 if rank == _WORKERS - 1 else _BEHIND)

    answer = config["loop"]({"exchange": exchange})
    found: list[Any] = [None] * _WORKERS
    dist.all_gather_object(found, answer if isinstance(answer, tuple) else describe(answer))
    return found


@LESSON.exercise(
    "09-2 · The same work",
    "How many rows does each of two workers get, if both together should have 65?",
    "The first `rows % world` ranks get one row more. Another all-reduce finds the largest of the seconds.",
    "`rows // world + (rank < rows % world)`; `dist.all_reduce(seconds, op=dist.ReduceOp.MAX)` of a tensor.",
    seconds=90,
    stuck="a collective operation that only some ranks call",
)
def _fairly(train_fairly: Any) -> None:
    """One rank is slow, then the other: a row takes it 1000 s, by its own account, and the other rank 1 s."""
    rows = []
    configs = [{"steps": _STEPS, "rows": _ROWS, "step": partial(_seconds, slow=slow)} for slow in (0, 1)]
    for slow, (found, other) in enumerate(_of_both(train_fairly, configs, "train_fairly")):
        if slow == 1 and found <= _ROWS * _STEPS:
            raise Wrong("rank 1 was slow, and the seconds come from rank 0")
        if found != other:
            raise Wrong(f"rank 0 returns {found:g}, and rank 1 {other:g}: both should return the largest")
        rows.append(found / 1000 / _STEPS)
    if abs(rows[0] - _ROWS) < 0.01 or abs(rows[1] - _ROWS) < 0.01:
        raise Wrong(f"a worker processed all {_ROWS} rows in each step")
    if not any(abs(share - round(share)) < 0.002 and round(share) in (32, 33) for share in rows):
        raise Wrong(
            f"your seconds match {rows[0]:g} rows of the slow rank 0, then {rows[1]:g} of the slow "
            "rank 1. Whole numbers are expected: the slowest rank counts, not the mean"
        )
    if round(sum(rows)) != _ROWS:
        raise Wrong(f"both workers together processed {round(sum(rows))} rows in each step, of {_ROWS}")


def _of_both(loop: Any, configs: list[dict[str, Any]], name: str) -> Iterator[list[float]]:
    """The numbers that the loop returns on each of two workers; one pair for each config, all in one run."""
    for pair in returned(_gathered, {"loop": loop, "configs": configs}, name=name):
        yield [number(one, f"what {name} returns") for one in pair]


def _gathered(config: dict) -> list[list[Any]]:
    """What the loop returns on each rank; Ray returns only what rank 0 does."""
    import torch.distributed as dist

    pairs = []
    for one in config["configs"]:
        pair = [None] * dist.get_world_size()
        dist.all_gather_object(pair, config["loop"](one))
        pairs.append(pair)
    return pairs


def _seconds(rows: int, *, slow: int) -> float:
    import ray.train

    return rows * (1000.0 if ray.train.get_context().get_world_rank() == slow else 1.0)


@LESSON.exercise(
    "09-3 · Find it",
    "Whole steps take all ranks equally long. Which part of a step doesn't depend on the others?",
    "Measure `compute()` alone, on each rank. Then every rank needs the numbers of all ranks.",
    "`ranks = [None] * world`; `dist.all_gather_object(ranks, seconds)`; `ranks.index(max(ranks))`.",
    seconds=90,
    stuck="a collective operation that only some ranks call",
)
def _slowest(slowest: Any) -> None:
    ranks = (1, 0, 0, 1)  # a loop that measures whole steps is right in half of the cases
    configs = [{"steps": 3, "compute": partial(_compute, slow=slow)} for slow in ranks]
    for slow, (found, other) in zip(ranks, _of_both(slowest, configs, "slowest"), strict=True):
        if found not in (0, 1):
            raise Wrong(f"slowest returns {describe(found)}, and a rank is expected: 0 or 1")
        if found != slow:
            raise Wrong(f"it returns {found:g}, and rank {slow} is slow. The other waits in the all-reduce")
        if other != slow:
            raise Wrong(f"rank 0 returns {found:g}, and rank 1 {other:g}: every rank needs all numbers")


def _compute(*, slow: int) -> None:
    import ray.train

    # A busy machine may hold up the fast rank for a part of that, too.
    time.sleep(0.5 if ray.train.get_context().get_world_rank() == slow else 0.01)


@LESSON.exercise(
    "09-6 · Three slow runs",
    "A rank that waits for the other one waits in the exchange. In which run do both ranks wait there?",
    "In the other two runs, one rank has a short exchange: the slow one. Which other part is longer than the "
    "other rank's?",
    'Run C is `("exchange", None)`. In run A, `data` is long on one rank, and in run B `forward`.',
)
def _causes(causes: Any) -> None:
    if not isinstance(causes, dict) or set(causes) != set(slow_runs.CASES):
        raise Wrong(f"causes is {describe(causes)}, and a dict with the keys A, B and C is expected")
    for case, (cause, rank) in slow_runs.CASES.items():
        pair = causes[case]
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or pair[0] not in _CAUSES:
            raise Wrong(f'run {case}: a pair such as ("data", 1) is expected, with one of the three causes')
        if pair[0] != cause:
            raise Wrong(f"run {case}: {_why_not(pair[0], cause)}")
        if pair[1] != rank:
            why = "is one of the two ranks slower?" if rank is None else "the slow rank waits least"
            raise Wrong(f"run {case}: the cause is right, and the rank isn't: {why}")


def _why_not(answer: str, cause: str) -> str:
    """Why the strips of a run with this cause contradict an answer."""
    if cause == "exchange":
        return "the strips of both ranks are alike, and one part is longer than all others"
    if answer == "exchange":
        return "only one rank has a long exchange, because it waits for the other. What for?"
    part = "wait for data" if answer == "data" else "compute"
    return f"both ranks {part} about equally long. Which other part differs?"


@LESSON.exercise(
    "09-4 · What fits",
    "How many workers of 3 CPUs run on one node of 8?",
    "There are six nodes with the head. Two CPUs of each stay free: no worker can use those of two nodes.",
    '`ScalingConfig(num_workers=…, resources_per_worker={"CPU": 3})`, with two workers per node.',
)
def _fits(scaling: Any) -> None:
    expect_type(scaling, "ScalingConfig")
    each = (scaling.resources_per_worker or {}).get("CPU", 1)
    close_to(each, 3, what="the CPUs of a worker", otherwise="each needs 3: resources_per_worker")
    mistakes = {
        16: "48 CPUs would be enough, but a worker needs its 3 CPUs on one node",
        10: "the head has CPUs, too",
        13: "40 CPUs would be enough, but a worker needs its 3 CPUs on one node, and the head has some, too",
    }
    close_to(scaling.num_workers, 12, what="num_workers", mistakes=mistakes)
