"""Lesson 03: steps of an epoch, the global batch, who reports, where to go on, when it pays."""

import math
from typing import Any

from labkit.exercises.answers import Wrong, close_to, number, result_of, shown
from labkit.exercises.registry import Exercise, Lesson


def _steps(images_per_update: Any, updates_per_epoch: Any) -> None:
    close_to(
        images_per_update,
        3 * 32,
        what="the number of images in an update",
        mistakes={32: "that is what ONE worker sees", 1437: "that is an epoch"},
    )
    close_to(
        updates_per_epoch,
        math.ceil(1437 // 3 / 32),
        what="the number of updates",
        mistakes={
            math.ceil(1437 / 32): "so many if one worker did all; three do theirs at the same time",
            1437 // 3 // 32: "then some images of each worker's shard are never seen",
            1437 / 3 / 32: "a worker takes whole steps, and the last batch may be smaller",
        },
    )


def _one_process(batch_size: Any) -> None:
    mistakes = {
        48: "that is what ONE worker sees",
        48 / 4: "that is for 48 images in all workers together, and each has 48",
        2 * 48: "that is for two workers",
    }
    close_to(batch_size, 4 * 48, what="the batch size", mistakes=mistakes)


def _everyone_reports(end_of_epoch: Any) -> None:
    """With 1 to 3 ranks: each calls `report` once, with its metrics; rank 0 alone gives a checkpoint."""
    for world_size in (1, 2, 3):
        calls = [_calls_of(end_of_epoch, rank) for rank in range(world_size)]
        silent = [rank for rank, made in enumerate(calls) if not made]
        if silent:
            raise Wrong(
                f"of {world_size} workers, rank {silent[0]} never calls report: the others wait for it"
            )
        for rank, made in enumerate(calls):
            if len(made) > 1:
                raise Wrong(f"rank {rank} calls report {len(made)} times in one epoch")
            metrics, checkpoint = made[0]
            if metrics != {"loss": 0.5}:
                raise Wrong(f"rank {rank} was given {{'loss': 0.5}} and reports {shown(metrics)}")
            if rank == 0 and checkpoint != "a checkpoint":
                raise Wrong("rank 0 reports without its checkpoint: nothing would be saved")
            if rank and checkpoint is not None:
                raise Wrong(f"rank {rank} gives a checkpoint, too: only rank 0 has one")


def _calls_of(end_of_epoch: Any, rank: int) -> list[tuple[Any, Any]]:
    """What `report` was called with, as (metrics, checkpoint)."""
    made = []

    def report(metrics: Any = None, checkpoint: Any = None) -> None:
        made.append((metrics, checkpoint))

    checkpoint = "a checkpoint" if rank == 0 else None
    result_of(end_of_epoch, rank, report, {"loss": 0.5}, checkpoint, what="end_of_epoch")
    return made


def _first_epoch(first_epoch: Any) -> None:
    new = result_of(first_epoch, None, what="first_epoch")
    close_to(new, 0, what="first_epoch(None), for a new run", mistakes={1: "epochs are counted from 0"})
    for done in (3, 0):
        state = {"epoch": done, "loss": 0.5}
        close_to(
            result_of(first_epoch, state, what="first_epoch"),
            done + 1,
            what=f"first_epoch({state})",
            mistakes={done: "that epoch is finished, and would be trained twice", 0: "that begins anew"},
        )


def _epochs_to_pay(epochs_to_pay: Any) -> None:
    # (start, epoch) of one worker, (start, epoch) of many, the answer
    for one, many, expected in (
        ((5.0, 10.0), (20.0, 6.0), 4),
        ((10.0, 4.0), (20.0, 3.0), 10),
        ((2.0, 1.0), (15.0, 1.0), math.inf),
        ((2.0, 1.0), (15.0, 2.0), math.inf),
    ):
        what = "epochs_to_pay({:g}, {:g}, {:g}, {:g})".format(*one, *many)
        answer = number(result_of(epochs_to_pay, *one, *many, what="epochs_to_pay"), what)
        if expected == math.inf and answer != math.inf:
            raise Wrong(f"{what} is {answer:g}, and an epoch of many is not shorter: nothing is won back")
        remarks = {
            3.75: "after so many *whole* epochs",
            3: "after 3 epochs one worker is done at 35 s, and many at 38 s",
        }
        close_to(answer, expected, what=what, mistakes=remarks)


LESSON = Lesson(
    "03",
    "TorchTrainer",
    (
        Exercise(
            id="03-1",
            title="Steps of an epoch",
            hints=(
                "All workers make their step at the same time, and one update comes of it.",
                "First count the rows of one shard. All shards are equally long.",
                "An update sees 32 images of each worker. A shard has `1437 // 3` rows, taken 32 at a time.",
            ),
            check=_steps,
        ),
        Exercise(
            id="03-2",
            title="Same model, one process",
            hints=(
                "What does every worker hold after `backward()`?",
                "The average of the workers' gradients is the gradient of all their images together.",
                "Count the images of one step, all workers together. What fitted 2 workers with 64 each?",
            ),
            check=_one_process,
        ),
        Exercise(
            id="03-3",
            title="The loop that waits for ever",
            hints=(
                "Who waits for whom? Go through the lines once as rank 0 and once as rank 1.",
                "Every rank has to come to `report`, equally often. Ranks differ only in what they bring.",
                "Call `report` outside of the `if`. A rank that has no checkpoint passes `checkpoint=None`.",
            ),
            check=_everyone_reports,
        ),
        Exercise(
            id="03-4",
            title="Where to go on",
            hints=(
                "The smallest case: a checkpoint of the very first epoch. Which index is in it?",
                "The epoch in the checkpoint is finished. Training it again would change the model.",
                "`state is None` is a new run: begin with 0. Else with the epoch after `state['epoch']`.",
            ),
            check=_first_epoch,
        ),
        Exercise(
            id="03-5",
            title="After how many epochs does it pay?",
            hints=(
                "Both runs take start + epochs × seconds per epoch. When are they equal?",
                "How many seconds does the longer start cost? How many does an epoch win back? None?",
                "The extra start, divided by what an epoch saves, rounded up; or `math.inf`.",
            ),
            check=_epochs_to_pay,
        ),
    ),
)
