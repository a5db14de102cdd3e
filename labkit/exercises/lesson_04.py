"""Lesson 04: the global batch, sharding once, who saves, what to divide a loss by."""

from typing import Any

import numpy as np

from labkit.exercises.answers import (
    Wrong,
    close_to,
    describe,
    number,
    once_by_each,
    recorder,
    result_of,
    returns,
)
from labkit.exercises.registry import Lesson

LESSON = Lesson("04", "TensorflowTrainer")


@LESSON.exercise(
    "04-1",
    "A batch for all of them",
    "`batch_size` is for one update, and all workers make one update together.",
    "TensorFlow divides the batch it is given by the number of workers.",
    "Right: 4 times 48. By mistake: a quarter of 48 in each worker, of 1,152 rows in each shard.",
)
def _global_batch(batch_size: Any, rows_per_worker: Any, updates: Any) -> None:
    near = {48: "that is what ONE worker should get", 12: "that is a quarter of 48: multiply"}
    close_to(batch_size, 4 * 48, what="the batch size for to_tf", mistakes=near)
    near = {
        48: "TensorFlow reads batch_size as that of all workers, and divides it",
        192: "of all, or of one?",
    }
    what = "the number of rows that a worker gets by mistake"
    close_to(rows_per_worker, 48 // 4, what=what, mistakes=near)
    near = {
        4608 // 12: "all four workers use their 12 rows at the same time",
        24: "that is with the right batch size; by mistake a worker uses 12 of its 1,152 rows, not 48",
    }
    close_to(updates, 4608 // 48, what="the number of updates by mistake", mistakes=near)


@LESSON.exercise(
    "04-2",
    "Sharded once",
    "How many rows does one worker get in each of the four cases? Then count all of them together.",
    "Ray and TensorFlow each cut what they get into as many parts as there are workers.",
    "Start with `rows * workers`, and divide by `workers` once for each of the two that cuts.",
)
def _rows_seen(rows_seen: Any) -> None:
    """With 2 and 3 workers, all four ways of sharding."""
    for rows, workers in ((1200, 2), (900, 3)):
        for by_ray, by_tensorflow in ((False, False), (False, True), (True, False), (True, True)):
            cuts = by_ray + by_tensorflow
            expected = rows * workers // workers**cuts
            near = {
                0: "every worker gets some rows, in all four cases",
                rows * workers: "that is every row once in EACH worker, and something cuts them",
                rows // workers: "that is the part of ONE worker, or what is left when rows are cut twice",
                rows: {
                    0: "nothing is cut: every worker gets all rows",
                    2: "Ray gives each worker its part, and TensorFlow takes a part of that part",
                }.get(cuts, ""),
            }
            near.pop(expected)
            returns(
                rows_seen, (rows, workers, by_ray, by_tensorflow), expected, name="rows_seen", mistakes=near
            )


@LESSON.exercise(
    "04-3",
    "Who saves, who reports",
    "Which of the two calls needs all workers? Which needs a folder from one of them only?",
    "To save, Keras adds up over all workers. And `report` is a barrier, as in lesson 03.",
    "Every rank calls `save(folder)`, then `report(metrics, checkpoint=…)`: the folder on rank 0, else None.",
)
def _end_of_epoch(end_of_epoch: Any) -> None:
    """With 1 to 3 ranks: each saves once, then reports once; rank 0 alone passes the folder."""

    def save(folder: Any = None) -> None: ...
    def report(metrics: Any = None, checkpoint: Any = None) -> None: ...

    for world_size in (1, 2, 3):
        ranks = [[] for _ in range(world_size)]
        for rank, made in enumerate(ranks):
            arguments = (rank, recorder(made, save), "a folder", recorder(made, report), {"loss": 0.5})
            result_of(end_of_epoch, *arguments, what="end_of_epoch")
        once_by_each(ranks, "save", "Keras adds up over all workers while it saves: the others wait for it")
        once_by_each(ranks, "report", "the others wait for it")
        for rank, ((first, saved), (_, reported)) in enumerate(ranks):
            if first != "save":
                raise Wrong("it reports before it saves: the folder is still empty then")
            if saved["folder"] != "a folder":
                raise Wrong(f"save was called with {describe(saved['folder'])}, not with the third argument")
            if reported["metrics"] != {"loss": 0.5}:
                found = describe(reported["metrics"])
                raise Wrong(f"rank {rank} was given {{'loss': 0.5}} and reports {found}")
            if rank == 0 and reported["checkpoint"] != "a folder":
                raise Wrong("rank 0 reports without its folder: nothing would be kept")
            if rank and reported["checkpoint"] is not None:
                again = f"the same model would be sent {world_size} times"
                raise Wrong(f"rank {rank} passes its folder, too: {again}")


@LESSON.exercise(
    "04-4",
    "What to divide by",
    "The optimizer adds the gradients of all workers. What should come out in the end?",
    "The mean over all rows of the step: the sum of all losses, divided by the number of rows.",
    "Each worker contributes its part: the sum of its own losses, divided by the global batch.",
)
def _worker_loss(worker_loss: Any) -> None:
    """Summed over the workers it is the mean over all rows, also if one has fewer rows."""
    for parts in ([[1.0, 3.0], [2.0, 6.0]], [[4.0, 2.0, 3.0], [1.0]]):
        rows = sum(map(len, parts))
        total, means = sum(map(sum, parts)), sum(np.mean(part) for part in parts)
        answers = [
            number(result_of(worker_loss, np.array(part), rows, what="worker_loss"), "worker_loss(…)")
            for part in parts
        ]
        near = {
            means: "each worker divides by its own number of rows, and the optimizer adds the workers up: "
            "twice as much as it should be",
            total: "nothing is divided, so the steps get longer with every row",
            means / 2: "right only if all workers have the same number of rows",
            total / rows / 2: "the losses are divided once too often: by the global batch alone",
        }
        which = " and ".join(map(describe, parts))
        what = f"the sum over both workers of worker_loss(losses, global_batch), for {which}"
        close_to(sum(answers), total / rows, what=what, mistakes=near)
