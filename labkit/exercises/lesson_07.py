"""Lesson 07: a sampler's rows, backend and device, row groups of a rank, when a launcher pays."""

import math
from typing import Any

from labkit.exercises.answers import Wrong, close_to, number, result_of, shown
from labkit.exercises.registry import Exercise, Lesson


def _rows_of_rank_2(rows: Any) -> None:
    try:
        rows = [int(row) for row in rows]
    except (TypeError, ValueError):
        raise Wrong(f"a list of row numbers is wanted, not {shown(rows)}") from None
    if rows == [2, 5]:
        raise Wrong("so it would have two rows, and ranks 0 and 1 have three: they would wait for it")
    if rows in ([6, 7], [6, 7, 0], [5, 6, 7]):
        raise Wrong("rows are dealt like cards, one to each rank in turn, not in blocks")
    if rows == [2, 5, 8]:
        raise Wrong("there is no row 8: the rows are 0 to 7")
    if rows != [2, 5, 0]:
        raise Wrong(f"it is not {shown(rows)}")


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
            raise Wrong(f"{what} is {shown(found)}, and two strings are wanted: backend, device")
        backend, device = (str(part) for part in found)
        if backend != expected[0]:
            where = "between GPUs" if use_gpu else "between CPUs"
            raise Wrong(f"{what} takes the backend {backend!r}; {where} it is {expected[0]!r}")
        if device == "cuda" and use_gpu:
            raise Wrong(f"{what}: all ranks of a machine would share its first GPU")
        if device != expected[1]:
            raise Wrong(f"{what} takes the device {device!r}, and {expected[1]!r} is wanted")


def _my_groups(function: Any) -> None:
    for world_size, groups in ((1, 3), (2, 4), (2, 5), (3, 8), (4, 2)):
        parts = []
        for rank in range(world_size):
            found = result_of(function, rank, world_size, groups, what="my_groups")
            try:
                parts.append([int(k) for k in found])
            except (TypeError, ValueError):
                raise Wrong(f"my_groups({rank}, {world_size}, {groups}) is {shown(found)}, no list") from None
        what = f"of {groups} groups for {world_size} ranks"
        dealt = [k for part in parts for k in part]
        missing = sorted(set(range(groups)) - set(dealt))
        if missing:
            raise Wrong(f"{what}, nobody reads group {missing[0]}")
        if len(dealt) > len(set(dealt)):
            double = next(k for k in dealt if dealt.count(k) > 1)
            raise Wrong(f"{what}, group {double} is read {dealt.count(double)} times")
        if set(dealt) - set(range(groups)):
            raise Wrong(f"{what}, somebody reads group {max(dealt)}; they are counted from 0")
        if max(map(len, parts)) - min(map(len, parts)) > 1:
            raise Wrong(f"{what}, one rank has {max(map(len, parts))} and another {min(map(len, parts))}")


def _rows_to_pay(function: Any) -> None:
    for a, b, expected in (
        ((2.0, 1000.0), (12.0, 2000.0), 20_000),
        ((5.0, 500.0), (8.0, 600.0), 9_000),
        ((2.0, 1000.0), (12.0, 1000.0), math.inf),
        ((2.0, 1000.0), (12.0, 500.0), math.inf),
    ):
        what = "rows_to_pay({:g}, {:g}, {:g}, {:g})".format(*a, *b)
        answer = number(result_of(function, *a, *b, what="rows_to_pay"), what)
        if expected == math.inf and answer != math.inf:
            raise Wrong(f"{what} is {answer:g}, and B is not faster: nothing is won back")
        remarks = {
            (b[0] - a[0]) * (b[1] - a[1]): "seconds for a row are 1 / rate; subtract those, not the rates"
        }
        close_to(answer, expected, what=what, mistakes=remarks)


LESSON = Lesson(
    "07",
    "TorchDistributor",
    (
        Exercise(
            id="07-1",
            title="Who gets which row?",
            hints=(
                "Rows are dealt like cards: 0 to rank 0, 1 to rank 1, 2 to rank 2, 3 to rank 0, …",
                "Eight rows do not go into three equal parts. What could one do about the last?",
                "The list of rows is filled up from its beginning: 0 to 7, and then 0 once more.",
            ),
            check=_rows_of_rank_2,
        ),
        Exercise(
            id="07-2",
            title="Backend and device",
            hints=(
                "Which library talks between GPUs, and which between CPUs?",
                "Each rank of a machine has a GPU of its own; which one, `LOCAL_RANK` says.",
                'With GPUs `("nccl", f"cuda:{local_rank}")`, without them `("gloo", "cpu")`.',
            ),
            check=_backend_and_device,
        ),
        Exercise(
            id="07-3",
            title="Which row groups are mine?",
            hints=(
                "A `DistributedSampler` has the same task with rows.",
                "Begin with the group that has your rank's number, and go on in steps.",
                "The steps are as long as there are ranks: `range(start, stop, step)`.",
            ),
            check=_my_groups,
        ),
        Exercise(
            id="07-4",
            title="How many rows until it pays?",
            hints=(
                "Each takes its start, and then so many seconds for each row. When are both equal?",
                "A row takes `1 / rate` seconds. How many of them does B save with each row?",
                "The later start, divided by what a row saves; `math.inf` if it saves nothing.",
            ),
            check=_rows_to_pay,
        ),
    ),
)
