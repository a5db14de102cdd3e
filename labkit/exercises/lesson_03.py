"""Lesson 03: steps of an epoch, the global batch, who reports, where to resume, when more workers pay."""

import math
from typing import Any

from labkit.exercises.answers import Wrong, close_to, describe, once_by_each, recorder, result_of, returns
from labkit.exercises.registry import Lesson

LESSON = Lesson("03", "TorchTrainer")


@LESSON.exercise(
    "03-1",
    "Steps of an epoch",
    "All workers make their step at the same time, and the result is one update.",
    "First count the rows of one shard. All shards have the same length.",
    "An update sees 32 images of each worker. A shard has `1437 // 3` rows, read 32 at a time.",
)
def _steps(images_per_update: Any, updates_per_epoch: Any) -> None:
    near = {32: "that is what ONE worker sees", 1437: "that is an epoch"}
    close_to(images_per_update, 3 * 32, what="the number of images in an update", mistakes=near)
    near = {
        math.ceil(1437 / 32): "that is for one worker alone; three do theirs at the same time",
        1437 // 3 // 32: "then some images of each worker's shard are never seen",
        1437 / 3 / 32: "a worker makes whole steps, and the last batch may be smaller",
    }
    close_to(updates_per_epoch, math.ceil(1437 // 3 / 32), what="the number of updates", mistakes=near)


@LESSON.exercise(
    "03-2",
    "Same model, one process",
    "What does every worker have after `backward()`?",
    "The average of the workers' gradients is the gradient of all their images together.",
    "Count the images of one step, all workers together. What fitted 2 workers with 64 each?",
)
def _one_process(batch_size: Any) -> None:
    near = {
        48: "that is what ONE worker sees",
        48 / 4: "that is for 48 images in all workers together, and each has 48",
        2 * 48: "that is for two workers",
    }
    close_to(batch_size, 4 * 48, what="the batch size", mistakes=near)


@LESSON.exercise(
    "03-3",
    "The loop that waits forever",
    "Who waits for whom? Go through the lines once as rank 0 and once as rank 1.",
    "Every rank has to call `report`, and all of them equally often. Only the arguments differ.",
    "Call `report` outside of the `if`. A rank that has no checkpoint passes `checkpoint=None`.",
)
def _everyone_reports(end_of_epoch: Any) -> None:
    """With 1 to 3 ranks: each calls `report` once, with its metrics; rank 0 alone passes a checkpoint."""

    def report(metrics: Any = None, checkpoint: Any = None) -> None: ...

    for world_size in (1, 2, 3):
        ranks = [[] for _ in range(world_size)]
        for rank, made in enumerate(ranks):
            checkpoint = None if rank else "a checkpoint"
            arguments = (rank, recorder(made, report), {"loss": 0.5}, checkpoint)
            result_of(end_of_epoch, *arguments, what="end_of_epoch")
        once_by_each(ranks, "report", "the others wait for it")
        for rank, ((_, reported),) in enumerate(ranks):
            if reported["metrics"] != {"loss": 0.5}:
                found = describe(reported["metrics"])
                raise Wrong(f"rank {rank} was given {{'loss': 0.5}} and reports {found}")
            if rank == 0 and reported["checkpoint"] != "a checkpoint":
                raise Wrong("rank 0 reports without its checkpoint: nothing would be saved")
            if rank and reported["checkpoint"] is not None:
                raise Wrong(f"rank {rank} passes a checkpoint, too: only rank 0 has one")


@LESSON.exercise(
    "03-4",
    "Where to go on",
    "The smallest case: a checkpoint of the very first epoch. Which index is in it?",
    "The epoch in the checkpoint is finished. Training it again would change the model.",
    "`state is None` is a new run, which starts with 0. Else start after `state['epoch']`.",
)
def _first_epoch(first_epoch: Any) -> None:
    returns(first_epoch, (None,), 0, name="first_epoch", mistakes={1: "epochs are counted from 0"})
    for done in (3, 0):
        near = {done: "that epoch is finished, and would be trained twice", 0: "that starts from scratch"}
        returns(first_epoch, ({"epoch": done, "loss": 0.5},), done + 1, name="first_epoch", mistakes=near)


@LESSON.exercise(
    "03-5",
    "After how many epochs does it pay?",
    "Both runs take start + epochs × seconds per epoch. When are they equal?",
    "How many seconds does the longer start cost? How many does an epoch win back? None?",
    "The extra start, divided by what an epoch saves, rounded up; or `math.inf`. Never below 0.",
)
def _epochs_to_pay(epochs_to_pay: Any) -> None:
    near = {
        3.75: "count *whole* epochs",
        3: "after 3 epochs one worker is done at 35 s, and many at 38 s",
        -4: "many workers are ahead from the start, after 0 epochs",
    }
    slower = {"otherwise": "an epoch of many is not shorter: nothing is won back"}
    # start and epoch of one worker, start and epoch of many, the answer
    for *args, expected in (
        (5.0, 10.0, 20.0, 6.0, 4),
        (10.0, 4.0, 20.0, 3.0, 10),
        (5.0, 1.0, 3.0, 0.5, 0),
        (2.0, 1.0, 15.0, 1.0, math.inf),
        (2.0, 1.0, 15.0, 2.0, math.inf),
    ):
        remarks = slower if expected == math.inf else {"mistakes": near}
        returns(epochs_to_pay, args, expected, name="epochs_to_pay", **remarks)
