"""Lesson 07: a sampler's rows, backend and device, row groups of a rank, when a launcher pays."""

import math
from typing import Any

from labkit.exercises.answers import Wrong, describe, result_of, returns
from labkit.exercises.registry import Lesson

LESSON = Lesson("07", "TorchDistributor")


@LESSON.exercise(
    "07-1",
    "Who gets which row?",
    "Rows are dealt like cards: 0 to rank 0, 1 to rank 1, 2 to rank 2, 3 to rank 0, …",
    "Eight rows do not divide into three equal parts. What could one do about the last?",
    "The list of rows is filled up from its beginning: 0 to 7, and then 0 once more.",
)
def _rows_of_rank_2(rows: Any) -> None:
    rows = _whole_numbers(rows, "your answer")
    if rows == [2, 5]:
        raise Wrong("then it would have two rows, and ranks 0 and 1 have three: they would wait for it")
    if rows in ([6, 7], [6, 7, 0], [5, 6, 7]):
        raise Wrong("rows are dealt like cards, one to each rank in turn, not in blocks")
    if rows == [2, 5, 8]:
        raise Wrong("there is no row 8: the rows are 0 to 7")
    if rows != [2, 5, 0]:
        raise Wrong(f"it is not {describe(rows)}")


@LESSON.exercise(
    "07-2",
    "Backend and device",
    "Which library communicates between GPUs, and which between CPUs?",
    "Each rank of a machine has its own GPU; `LOCAL_RANK` is its number.",
    'With GPUs `("nccl", f"cuda:{local_rank}")`, without them `("gloo", "cpu")`.',
)
def _backend_and_device(function: Any) -> None:
    for use_gpu, local_rank, expected in (
        (False, 0, ("gloo", "cpu")),
        (False, 1, ("gloo", "cpu")),
        (True, 0, ("nccl", "cuda:0")),
        (True, 3, ("nccl", "cuda:3")),
    ):
        what = f"backend_and_device({use_gpu}, {local_rank})"
        found = result_of(function, use_gpu, local_rank, what="backend_and_device")
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise Wrong(f"{what} is {describe(found)}, and two strings are expected: backend, device")
        backend, device = (str(part) for part in found)
        if backend != expected[0]:
            where = "between GPUs" if use_gpu else "between CPUs"
            raise Wrong(f"{what} uses the backend {backend!r}; {where} it is {expected[0]!r}")
        if device == "cuda" and use_gpu:
            raise Wrong(f"{what}: all ranks of a machine would share its first GPU")
        if device != expected[1]:
            raise Wrong(f"{what} uses the device {device!r}, and {expected[1]!r} is expected")


@LESSON.exercise(
    "07-3",
    "Which row groups are mine?",
    "A `DistributedSampler` has the same task with rows.",
    "Start with the group that has your rank's number, and continue in steps.",
    "The length of a step is the number of ranks: `range(start, stop, step)`.",
)
def _my_groups(function: Any) -> None:
    for world_size, groups in ((1, 3), (2, 4), (2, 5), (3, 8), (4, 2)):
        parts = []
        for rank in range(world_size):
            found = result_of(function, rank, world_size, groups, what="my_groups")
            parts.append(_whole_numbers(found, f"my_groups({rank}, {world_size}, {groups})"))
        what = f"of {groups} groups for {world_size} ranks"
        dealt = [k for part in parts for k in part]
        if missing := sorted(set(range(groups)) - set(dealt)):
            raise Wrong(f"{what}, no rank reads group {missing[0]}")
        if len(dealt) > len(set(dealt)):
            double = next(k for k in dealt if dealt.count(k) > 1)
            raise Wrong(f"{what}, group {double} is read {dealt.count(double)} times")
        if set(dealt) - set(range(groups)):
            raise Wrong(f"{what}, a rank reads group {max(dealt)}; they are counted from 0")
        if max(map(len, parts)) - min(map(len, parts)) > 1:
            raise Wrong(f"{what}, one rank has {max(map(len, parts))} and another {min(map(len, parts))}")


def _whole_numbers(answer: Any, what: str) -> list[int]:
    try:
        return [int(one) for one in answer]
    except (TypeError, ValueError):
        raise Wrong(f"{what} is {describe(answer)}, and a list of whole numbers is expected") from None


@LESSON.exercise(
    "07-4",
    "How many rows until it pays?",
    "Each takes its start, and then the same time for each row. When are both equal?",
    "A row takes `1 / rate` seconds. How many of them does B save with each row?",
    "The later start, divided by what a row saves; `math.inf` if it saves nothing.",
)
def _rows_to_pay(function: Any) -> None:
    # start and rate of A, start and rate of B, the answer
    for *args, expected in (
        (2.0, 1000.0, 12.0, 2000.0, 20_000),
        (5.0, 500.0, 8.0, 600.0, 9_000),
        (2.0, 1000.0, 12.0, 1000.0, math.inf),
        (2.0, 1000.0, 12.0, 500.0, math.inf),
    ):
        start_a, rate_a, start_b, rate_b = args
        near = {
            (start_b - start_a) * (rate_b - rate_a): "subtract seconds for a row, 1 / rate, not the rates"
        }
        remarks = {"mistakes": near}
        if expected == math.inf:
            remarks = {"otherwise": "B is not faster: nothing is won back"}
        returns(function, args, expected, name="rows_to_pay", **remarks)
