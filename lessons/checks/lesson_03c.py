"""Lesson 03c: equal steps, the batches of an epoch, the budget of CPUs, and the rows that are left."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from course.exercises.answers import NotAttempted, Wrong, describe, expect_function, is_blank, result_of
from course.exercises.registry import Lesson
from course.exercises.running import learners_errors

LESSON = Lesson("03c", "The whole pipeline")


@LESSON.exercise(
    "03c-1 · How many steps?",
    "All ranks get equally many rows. How many does each get, and how many are dropped before any batch is made?",
    "`each = rows // workers`. Without `drop_last` a small last batch is a step, too: round up. With it, round down.",
    "`steps = each // batch_size if drop_last else -(-each // batch_size)`; with `drop_last` the ranks use "
    "`steps * batch_size * workers` rows, otherwise `each * workers`.",
)
def _steps(steps_and_dropped: Any) -> None:
    name = "steps_and_dropped"
    for rows, workers, size, drop in (
        (513, 2, 32, False),
        (513, 2, 32, True),
        (1000, 4, 60, False),
        (1000, 4, 60, True),
        (103, 2, 10, True),
        (3, 4, 8, False),
        (10, 2, 8, True),
    ):
        each = rows // workers
        steps = each // size if drop else -(-each // size)
        used = workers * (steps * size if drop else each)
        answer = result_of(steps_and_dropped, rows, workers, size, drop, what=name)
        case = f"for {rows} rows, {workers} workers, batch_size={size} and drop_last={drop}"
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise Wrong(f"{name} returns {describe(answer)}, and two numbers are expected")
        if any(is_blank(number) for number in answer):
            raise NotAttempted
        if answer[0] != steps:
            near = {
                each // size: "the last, small batch is a step, too, unless drop_last is set",
                -(-each // size): "with drop_last, the small batch is no step",
                -(-rows // size): "a rank makes its own steps only, with its part of the rows",
                rows // size: "a rank makes its own steps only, with its part of the rows",
            }
            why = near.get(answer[0], "each rank has rows // workers rows")
            raise Wrong(f"{case} you return {describe(answer[0])} steps: {why}")
        if answer[1] != rows - used:
            near = {
                rows - each * workers: "drop_last drops rows of each rank, too",
                each - steps * size: "that is what one rank drops; count all ranks, and the odd rows",
                workers * (each - steps * size): "the rows that can't be divided are dropped as well",
            }
            why = near.get(answer[1], "count the rows that no rank uses")
            raise Wrong(f"{case} you return {describe(answer[1])} dropped rows: {why}")


_SIZE, _ROWS = 16, 75


@LESSON.exercise(
    "03c-2 · The batches of an epoch",
    "`iter_torch_batches` has an argument for each line of the table that is about batches and order. Which?",
    "`drop_last=True`, `local_shuffle_buffer_size=…`, and `local_shuffle_seed=epoch`. Then `yield` the pair.",
    '`yield batch["image"] / 255, batch["label"].long()` in a loop over '
    "`shard.iter_torch_batches(batch_size=…, drop_last=True, local_shuffle_buffer_size=…, local_shuffle_seed=epoch)`.",
    seconds=90,
    stuck="the loop over the shard doesn't end",
)
def _batches(batches: Any) -> None:
    """The generator on a data set of the cluster, whose images carry their number in the first pixel."""
    import ray.data

    expect_function(batches, "batches")
    images = np.full((_ROWS, 28, 28), 255, np.uint8)
    images[:, 0, 0] = np.arange(_ROWS)
    rows = [{"image": image, "label": np.int32(number % 10)} for number, image in enumerate(images)]
    with learners_errors("batches"):
        data = ray.data.from_items(rows, override_num_blocks=4)
        data.context.execution_options.preserve_order = True
        first, second, third, again = (_numbers_of(batches, data.iterator(), epoch) for epoch in (0, 1, 2, 0))
    if first == sorted(first):
        raise Wrong("the rows come in the order of the data set: draw them from a local buffer")
    if first != again:
        raise Wrong("epoch 0, repeated, has a different order: the seed must follow from the epoch")
    if first == second:
        raise Wrong("epochs 0 and 1 have the same order: the seed must contain the epoch")
    if third in (first, second):
        raise Wrong(
            "epoch 2 has an order that an earlier epoch had: the seed must be another one in each epoch"
        )
    if max(first[:_SIZE]) < 2 * _SIZE:
        raise Wrong(f"the first batch has only the first {2 * _SIZE} rows: the buffer is too small")


@LESSON.exercise(
    "03c-3 · The budget",
    "Who keeps a CPU while the validation runs? What is left when all of them have theirs?",
    "`left = cpus - workers - validation`. How often does `per_task` fit into it, and when does it not fit at all?",
    '`raise ValueError(f"the run needs {workers + validation + per_task:g} CPUs, …")` if `left < per_task`, '
    "otherwise `int(left / per_task)`.",
)
def _budget(data_tasks: Any) -> None:
    name = "data_tasks"
    for cpus, workers, validation, each, expected in (
        (6, 2, 3, 0.25, 4),
        (8, 2, 1, 1, 5),
        (4, 2, 1, 0.5, 2),
        (3, 2, 0, 1, 1),
        (16, 4, 5, 2, 3),
        (4, 2, 1, 0.1, 10),
    ):
        answer = result_of(data_tasks, cpus, workers, validation, each, what=name)
        near = {
            int((cpus - workers) / each): "while the validation runs, its CPUs aren't free",
            cpus - workers - validation: "that is the number of CPUs that are left, not of tasks",
            int(cpus / each): "the workers and the validation keep their CPUs",
            (cpus - workers - validation) // each: "`1 // 0.1` is 9.0: divide by `/`, then round down",
        }
        if isinstance(answer, bool) or not isinstance(answer, (int, float)) or answer != expected:
            case = f"for {cpus} CPUs, {workers} workers, validation={validation} and per_task={each}"
            why = next((text for value, text in near.items() if value == answer != expected), "")
            raise Wrong(f"{case} you return {describe(answer)}{': ' * bool(why)}{why}")
    for cpus, workers, validation, each in (
        (3, 2, 1, 1),
        (3, 2, 3, 0.25),
        (4, 4, 0, 1),
        (5, 2, 3, 0.5),
        (4, 2, 1, 2),
    ):
        _refused(data_tasks, cpus, workers, validation, each)


@LESSON.exercise(
    "03c-4 · The rows that are left",
    "Write down the order of all names first. Which part of it is done, which part fills whole steps, and which of "
    "the rest belongs to this rank?",
    "A step of all ranks uses `workers * batch_size` names. Cut the order at `step` such steps and after the last "
    "whole one, then take every `workers`-th name.",
    "`order[step * per_step : steps * per_step][rank::workers]` with "
    "`order = np.random.default_rng((seed, epoch)).permutation(names).tolist()`.",
)
def _rows_left(rows_left: Any) -> None:
    expect_function(rows_left, "rows_left")
    names = [f"images/{number % 10}/{number:05}.png" for number in range(53)]
    left = _Left(rows_left, names)
    whole = left(epoch=0, workers=1, batch_size=12)
    left.expect_whole(whole, 48)
    if left(epoch=0, workers=1, batch_size=12) != whole:
        raise Wrong(
            "the same call returns a different order the second time: a restarted run must find the same one"
        )
    if whole == names[: len(whole)]:
        raise Wrong("the names are in their old order: permute them")
    if left(epoch=1, workers=1, batch_size=12) == whole:
        raise Wrong("epochs 0 and 1 have the same order")
    if left(epoch=0, workers=1, batch_size=12, seed=8) == whole:
        raise Wrong("seeds 7 and 8 give the same order")
    for workers in (2, 3, 4):
        left.expect_same_steps(whole, workers, 12 // workers)
    for step in (1, 3, 4):
        _expect_resumed(left, step)


class _Left:
    """The learner's function with a fixed list of names; its answers are lists of strings."""

    def __init__(self, function: Callable, names: Sequence[str]) -> None:
        self._function, self.names = function, list(names)

    def __call__(
        self, *, epoch: int, workers: int, batch_size: int, rank: int = 0, step: int = 0, seed: int = 7
    ) -> list[str]:
        names = list(self.names)
        answer = result_of(
            self._function, names, seed, epoch, step, rank, workers, batch_size, what="rows_left"
        )
        if names != self.names:
            raise Wrong("the list of names was changed: other epochs need it in its old order")
        try:
            answer = [str(name) for name in answer]
        except TypeError:
            raise Wrong(f"rows_left returns {describe(answer)}, and a list of names is expected") from None
        if unknown := set(answer) - set(names):
            raise Wrong(f"{min(unknown)!r} is none of the names")
        if len(set(answer)) < len(answer):
            raise Wrong("a name is in the list twice")
        return answer

    def expect_whole(self, answer: list[str], expected: int) -> None:
        """Require that only names of whole steps are there."""
        if len(answer) == len(self.names):
            raise Wrong("names that don't fill a step are in the list, too")
        if len(answer) != expected:
            count = len(self.names)
            raise Wrong(f"of {count} names in steps of 12, {expected} are used, and you return {len(answer)}")

    def expect_same_steps(self, whole: list[str], workers: int, batch_size: int) -> None:
        """Require that each step has the rows that one process would use."""
        parts = [self(epoch=0, workers=workers, batch_size=batch_size, rank=rank) for rank in range(workers)]
        lengths = {len(part) for part in parts}
        if len(lengths) > 1:
            raise Wrong(f"{workers} ranks get {sorted(lengths)} names: all need the same number of steps")
        every = [name for part in parts for name in part]
        if len(set(every)) < len(every):
            raise Wrong(f"with {workers} workers, several ranks read the same name")
        if len(every) != len(whole):
            raise Wrong(f"{workers} ranks read {len(every)} names together, and {len(whole)} are expected")
        per_step = workers * batch_size
        for start in range(0, len(whole), per_step):
            place = start // workers
            used = {name for part in parts for name in part[place : place + batch_size]}
            if used != set(whole[start : start + per_step]):
                raise Wrong(
                    f"with {workers} workers, step {start // per_step} uses other names than with one: "
                    "deal the names to the ranks in turn"
                )


def _expect_resumed(left: _Left, step: int) -> None:
    for rank in range(2):
        about = {"epoch": 2, "workers": 2, "batch_size": 6, "rank": rank}
        whole, answer = left(**about), left(**about, step=step)
        if answer == whole:
            raise Wrong(f"after {step} steps the list is still the whole one: leave out what is done")
        if answer != whole[6 * step :]:
            count = len(whole) - 6 * step
            raise Wrong(
                f"after {step} steps of 6 names, rank {rank} has the last {count} of its {len(whole)} names left, "
                f"and you return {len(answer)}" + (" others" if len(answer) == count else "")
            )


def _numbers_of(batches: Callable, shard: Any, epoch: int) -> list[int]:
    """The numbers of the rows that the learner's generator yields, in their order."""
    import torch

    pairs = batches(shard, _SIZE, epoch)
    if pairs is None or pairs is ...:
        raise NotAttempted
    if not hasattr(pairs, "__iter__"):
        raise Wrong(f"batches returns {describe(pairs)}; a generator is expected: yield each pair")
    numbers: list[int] = []
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise Wrong(f"it yields {describe(pair)}, and a pair (x, y) is expected")
        x, y = pair
        if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
            raise Wrong(f"it yields {describe(x)} and {describe(y)}, and two tensors are expected")
        if y.dtype != torch.int64:
            raise Wrong(f"y has the type {y.dtype}, and int64 is expected: .long()")
        if x.dtype != torch.float32:
            raise Wrong(f"x has the type {x.dtype}, and float32 is expected: divide by 255")
        if len(x) != _SIZE:
            raise Wrong(f"a batch has {len(x)} rows, and {_SIZE} are asked for: full ones only")
        if x.numel() != _SIZE * 28 * 28:
            raise Wrong(f"x has the shape {tuple(x.shape)}, and the images have 28×28 pixels")
        if not 0.99 < x.max() <= 1:
            raise Wrong(f"the largest pixel is {x.max():.3g}, and 1 is expected")
        found = (x.reshape(_SIZE, -1)[:, 0] * 255).round().long()
        if not torch.equal(found % 10, y):
            raise Wrong("labels and images no longer belong together")
        numbers += found.tolist()
    if len(numbers) != _ROWS // _SIZE * _SIZE:
        raise Wrong(f"{_ROWS} rows are {_ROWS // _SIZE} full batches, and it yields {len(numbers) // _SIZE}")
    if len(set(numbers)) < len(numbers):
        raise Wrong("a row comes twice in an epoch")
    return numbers


def _refused(data_tasks: Callable, cpus: int, workers: int, validation: int, each: float) -> None:
    """Require a ValueError that says how many CPUs would do."""
    enough = workers + validation + each
    case = f"for {cpus} CPUs, {workers} workers, validation={validation} and per_task={each}"
    try:
        answer = data_tasks(cpus, workers, validation, each)
    except ValueError as error:
        if f"{enough:g}" not in re.findall(r"\d+(?:\.\d+)?", str(error).replace(".0 ", " ")):
            raise Wrong(
                f"{case}, {enough:g} CPUs would be enough, and the error says {str(error)!r}"
            ) from None
        return
    except Exception as error:
        raise Wrong(f"{case} it raises {type(error).__name__}, and a ValueError is expected") from None
    raise Wrong(f"{case} there's no room, and you return {describe(answer)}: raise a ValueError")
