"""Lesson 04: the global batch, sharding once, who saves, what to divide a loss by."""

from typing import Any

import numpy as np

from labkit.exercises.answers import Wrong, close_to, number, result_of, shown
from labkit.exercises.registry import Exercise, Lesson


def _global_batch(batch_size: Any, rows_per_worker: Any, updates: Any) -> None:
    close_to(
        batch_size,
        4 * 48,
        what="the batch size for to_tf",
        mistakes={48: "that is what ONE worker is to take", 12: "that is a quarter of 48: multiply"},
    )
    close_to(
        rows_per_worker,
        48 // 4,
        what="the number of rows that a worker takes by mistake",
        mistakes={
            48: "TensorFlow takes batch_size for all workers, and divides it",
            192: "of all, or of one?",
        },
    )
    close_to(
        updates,
        4608 // 48,
        what="the number of updates by mistake",
        mistakes={
            4608 // 12: "all four workers take their 12 rows at the same time",
            24: "so many with the right batch size; by mistake a worker takes 12 of its 1,152 rows, not 48",
        },
    )


def _rows_seen(rows_seen: Any) -> None:
    """With 2 and 3 workers, all four ways of sharding."""
    for rows, workers in ((1200, 2), (900, 3)):
        for by_ray in (False, True):
            for by_tensorflow in (False, True):
                what = f"rows_seen({rows}, {workers}, by_ray={by_ray}, by_tensorflow={by_tensorflow})"
                given = result_of(rows_seen, rows, workers, by_ray, by_tensorflow, what="rows_seen")
                cuts = by_ray + by_tensorflow
                expected = rows * workers // workers**cuts
                mistakes = {
                    0: "nobody takes all rows of everybody away; every worker takes some",
                    rows * workers: "that is every row once in EACH worker, and something cuts them",
                    rows
                    // workers: "that is the part of ONE worker, or what is left when rows are cut twice",
                    rows: {
                        0: "nobody cuts: every worker takes all rows",
                        2: "Ray gives each worker its part, and TensorFlow takes a part of that part",
                    }.get(cuts, ""),
                }
                mistakes.pop(expected)
                close_to(number(given, what), expected, what=what, mistakes=mistakes)


def _end_of_epoch(end_of_epoch: Any) -> None:
    """With 1 to 3 ranks: each saves once, then reports once; rank 0 alone gives the folder."""
    for world_size in (1, 2, 3):
        calls = {rank: _calls_of(end_of_epoch, rank) for rank in range(world_size)}
        for rank, made in calls.items():
            names = [name for name, _ in made]
            for name, loss in (
                ("save", "Keras adds up over all workers while it saves: the others wait for it"),
                ("report", "the others wait for it"),
            ):
                if name not in names:
                    raise Wrong(f"of {world_size} workers, rank {rank} never calls {name}: {loss}")
                if names.count(name) > 1:
                    raise Wrong(f"rank {rank} calls {name} {names.count(name)} times in one epoch")
            if names != ["save", "report"]:
                raise Wrong("it reports before it saves: the folder is still empty then")
            ((_, saved), (_, (metrics, checkpoint))) = made
            if saved != "a folder":
                raise Wrong(f"save was called with {shown(saved)}, and the folder is the third argument")
            if metrics != {"loss": 0.5}:
                raise Wrong(f"rank {rank} was given {{'loss': 0.5}} and reports {shown(metrics)}")
            if rank == 0 and checkpoint != "a folder":
                raise Wrong("rank 0 reports without its folder: nothing would be kept")
            if rank and checkpoint is not None:
                raise Wrong(
                    f"rank {rank} gives its folder, too: the same model would be sent {world_size} times"
                )


def _calls_of(end_of_epoch: Any, rank: int) -> list[tuple[str, Any]]:
    made: list[tuple[str, Any]] = []

    def save(folder: Any = None) -> None:
        made.append(("save", folder))

    def report(metrics: Any = None, checkpoint: Any = None) -> None:
        made.append(("report", (metrics, checkpoint)))

    result_of(end_of_epoch, rank, save, "a folder", report, {"loss": 0.5}, what="end_of_epoch")
    return made


def _worker_loss(worker_loss: Any) -> None:
    """Summed over the workers it is the mean over all rows, also where one has fewer rows."""
    for parts in ([[1.0, 3.0], [2.0, 6.0]], [[4.0, 2.0, 3.0], [1.0]]):
        rows = sum(map(len, parts))
        mean = sum(map(sum, parts)) / rows
        answers = [
            number(result_of(worker_loss, np.array(part), rows, what="worker_loss"), "worker_loss(…)")
            for part in parts
        ]
        what = "the sum over both workers of worker_loss(losses, global_batch), for " + " and ".join(
            shown(part) for part in parts
        )
        close_to(
            sum(answers),
            mean,
            what=what,
            mistakes={
                sum(
                    np.mean(part) for part in parts
                ): "each worker divides by its own number of rows, and the "
                "optimizer adds the workers up: twice as much as it should be",
                sum(map(sum, parts)): "nothing is divided, so the steps get longer with every row",
                sum(np.mean(part) / 2 for part in parts): "right only if all workers have as many rows",
                mean / 2: "they are divided once too often: by the global batch alone",
            },
        )


LESSON = Lesson(
    "04",
    "TensorflowTrainer",
    (
        Exercise(
            id="04-1",
            title="A batch for all of them",
            hints=(
                "`batch_size` is for one update, and one update is made by all workers together.",
                "TensorFlow divides the batch it is given by the number of workers.",
                "Right: 4 times 48. By mistake: a quarter of 48 in each worker, of 1,152 rows in each shard.",
            ),
            check=_global_batch,
        ),
        Exercise(
            id="04-2",
            title="Sharded once",
            hints=(
                "How many rows does one worker take in each of the four cases? Then all of them together.",
                "Whoever cuts, cuts what it gets into as many parts as there are workers.",
                "Begin with `rows * workers`, and divide by `workers` once for each of the two that cuts.",
            ),
            check=_rows_seen,
        ),
        Exercise(
            id="04-3",
            title="Who saves, who reports",
            hints=(
                "Which of the two calls needs all workers? Which needs a folder from one of them only?",
                "To save, Keras adds up over all workers. And `report` is a barrier, as in lesson 03.",
                "Every rank calls `save(folder)`, then `report(metrics, checkpoint=…)`: the folder if rank "
                "is 0, else None.",
            ),
            check=_end_of_epoch,
        ),
        Exercise(
            id="04-4",
            title="What to divide by",
            hints=(
                "The optimizer adds the gradients of all workers. What should come out in the end?",
                "The mean over all rows of the step: the sum of all losses, divided by how many there are.",
                "Each worker gives its share of it: the sum of its own losses, divided by the global batch.",
            ),
            check=_worker_loss,
        ),
    ),
)
