"""Lesson 07: a sampler's rows, a function to fix, training from files, when a launcher has won."""

import json
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from course.exercises.answers import Wrong, close_to, describe, expect_function, list_is, number, returns
from course.exercises.registry import Lesson
from course.exercises.running import learners_errors
from labkit.settings import Settings

LESSON = Lesson("07", "TorchDistributor")


@LESSON.exercise(
    "07-1 · Who gets which row?",
    "Rows are dealt like cards: 0 to rank 0, 1 to rank 1, 2 to rank 2, 3 to rank 3, 4 to rank 0, …",
    "After ten rows, two ranks have three and two ranks have two. What could one do about the last two?",
    "The list of rows is filled up from its beginning (0 to 9, then 0 and 1), or cut off after row 7.",
)
def _who_gets_which(twice: Any, left_out: Any) -> None:
    near = {
        (8, 9): "these are dealt once, to ranks 0 and 1; which rows fill up the other two ranks?",
        (0,): "two ranks are one row short, not one",
        (10, 11): "there is no row 10: the rows are 0 to 9",
        (1, 0): "write them in order, please",
        (): "two ranks would then make fewer steps, and the others would wait for them",
    }
    list_is(twice, [0, 1], what="the list of rows that come twice", mistakes=near)
    near = {
        (0, 1): "these come twice without drop_last; with it no row does, and the last ones are left out",
        (): "ten rows don't divide by four: some are left out",
        (9,): "four ranks with two rows each make eight",
        (9, 8): "write them in order, please",
    }
    list_is(left_out, [8, 9], what="the list of rows that are left out", mistakes=near)


@LESSON.exercise(
    "07-2 · Fix this function",
    "Which object can't be pickled? Which backend needs GPUs? Which call must all ranks make?",
    "A lock protects threads of one process; these are several processes. `all_reduce` waits for all ranks.",
    '`dist.init_process_group("gloo")`, no lock at all, and `dist.all_reduce(total)` in every rank.',
    seconds=90,
    stuck="one rank calls all_reduce and the other doesn't, so it waits",
)
def _total(fixed_total: Any) -> None:
    near = {
        1: "that is what rank 0 has alone: no sum over all ranks",
        2: "that is what rank 1 has alone: it takes no part in all_reduce",
        3: "that is the total of two ranks, or what rank 2 has alone",
    }
    with tempfile.TemporaryDirectory() as folder:  # three ranks, so that who returns the text's 3 is caught
        found = launched(_of_each_rank, fixed_total, folder, name="fixed_total", processes=3)
        totals = [json.loads(path.read_text()) for path in sorted(Path(folder).iterdir())]
    close_to(number(found, "the total"), 6, what="the total of 3 ranks", mistakes=near)
    if any(total != 6 for total in totals):
        raise Wrong(f"the ranks return {totals}: every one of them should have the sum")


def _of_each_rank(function: Callable, folder: str) -> Any:
    """Runs in a rank. In local mode only one rank's return value comes back."""
    total = function()
    text = json.dumps(total, default=lambda one: one.item() if getattr(one, "ndim", 1) == 0 else repr(one))
    Path(folder, os.environ["RANK"]).write_text(text)
    return total


@LESSON.exercise(
    "07-3 · Each rank its own part",
    "A `DistributedSampler` deals rows; deal the files in the same way.",
    "The steps follow from the smallest share. Which `dist.ReduceOp` finds it?",
    "`files[dist.get_rank() :: dist.get_world_size()]`, `dist.ReduceOp.MIN`, `int(smallest) // 32`.",
    seconds=120,
    stuck="the ranks make different numbers of steps, so one waits for the other, "
    "or the model is not deleted before destroy_process_group",
)
def _from_parquet(train_from_parquet: Any, folder: Any, rows: Any) -> None:
    found = launched(train_from_parquet, folder, 1, name="train_from_parquet")
    if not isinstance(found, dict) or not {"rows", "smallest", "steps"} <= set(found):
        raise Wrong(
            f"the function returns {describe(found)}; a dict with rows, smallest and steps is expected"
        )
    near = {2 * rows: "each rank reads all files", 0: "no rank reads anything"}
    close_to(found["rows"], rows, what="the number of rows of all ranks together", mistakes=near)
    if found["smallest"] == rows:
        raise Wrong(f"the smallest share is {rows}: that is the sum of both shares")
    if found["smallest"] > rows / 2:
        raise Wrong(f"the smallest share is {found['smallest']} of {rows} rows: that is the largest of two")
    near = {rows // 32: "that is for all rows together"}
    close_to(found["steps"], found["smallest"] // 32, what="the number of steps in an epoch", mistakes=near)


@LESSON.exercise(
    "07-4 · When has the faster launcher won?",
    "Each takes its start, and then the same time for each row. When are both equal?",
    "A row takes `1 / rate` seconds. How many of them does B save with each row?",
    "The later start, divided by what a row saves; `math.inf` if it saves nothing.",
)
def _rows_to_pay(function: Any) -> None:
    rates = "subtract seconds for a row, 1 / rate, not the rates"
    never = "B is not faster: nothing is won back"
    # start and rate of A, start and rate of B, the answer, what is said of a mistake
    for *args, expected, remarks in (
        (2.0, 1000.0, 12.0, 2000.0, 20_000, {"mistakes": {10 * 1000.0: rates}}),
        (5.0, 500.0, 8.0, 600.0, 9_000, {"mistakes": {3 * 100.0: rates}}),
        (2.0, 1000.0, 12.0, 1000.0, math.inf, {"otherwise": never}),
        (2.0, 1000.0, 12.0, 500.0, math.inf, {"otherwise": never}),
    ):
        returns(function, args, expected, name="rows_to_pay", **remarks)


def launched(function: Callable, *args: Any, name: str, processes: int = 2) -> Any:
    """Run `function` with Spark's TorchDistributor, in processes of this machine and without GPUs.

    Returns:
        What one of the processes returned.

    Raises:
        NotAttempted: a ``...`` is still in it.
        Wrong: it cannot be pickled, or a rank raises.
    """
    from pyspark.ml.torch.distributor import TorchDistributor

    from labkit.spark import SparkPanel

    expect_function(function, name)
    quiet = replace(Settings.from_env(), panel="none")
    distributor = TorchDistributor(num_processes=processes, local_mode=True, use_gpu=False)
    try:
        with learners_errors(name), SparkPanel(f"check of {name}", settings=quiet).watch(distributor):
            return distributor.run(function, *args)
    except Wrong as wrong:
        if any(sign in str(wrong) for sign in ("closed by peer", "SIGABRT")):
            fact = "one rank ended while another waited for it: all ranks make the same calls and steps"
            raise Wrong(f"{name}: {fact}") from None
        raise
