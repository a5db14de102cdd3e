"""Lesson 06b: a metric of all ranks, a predictor to fix, CPUs for validators, three ways, a whole validator."""

import functools
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from course.exercises.answers import (
    NotAttempted,
    Wrong,
    array_of,
    close_to,
    describe,
    expect_function,
    is_blank,
    require_no_dots,
    result_of,
    returns,
)
from course.exercises.registry import Lesson
from course.exercises.running import folder_of_check, learners_errors, returned

LESSON = Lesson("06b", "Validation on several workers")

# For each rank, (right, label) of its batches. Rank 1 has no 0, no rank has a 9, and rank 1 has fewer rows.
_BATCHES = (
    [([1, 0, 1, 1], [0, 0, 1, 2]), ([1, 0, 0], [3, 4, 5]), ([1, 1], [6, 7])],
    [([0, 1], [1, 8]), ([0, 0], [2, 2])],
)
_EMPTY = ([([1, 0], [0, 0])], [])


@LESSON.exercise(
    "06b-1 · The accuracy of each digit",
    "Which twenty numbers does a rank know about its own rows? Add them up over the ranks first, and divide last.",
    "Count right answers and rows of each digit: `torch.bincount(label[right], minlength=10)`. A rank without "
    "batches still has to take part in the exchange.",
    "`counts = torch.zeros(2, 10)`, add both counts of each batch, `torch.distributed.all_reduce(counts)`, then "
    "`(counts[0] / counts[1].clamp(min=1)).tolist()`.",
    seconds=60,
    stuck="one rank calls `all_reduce` and another doesn't, such as the one without batches",
)
def _by_digit(by_digit: Any) -> None:
    """The function on two workers, for two sets of batches; every rank's result is looked at."""
    expect_function(by_digit, "by_digit")
    require_no_dots(by_digit)
    with learners_errors("by_digit"):
        results = returned(_calling(by_digit), {"cases": [_BATCHES, _EMPTY]}, name="by_digit")
    for case, of_ranks in zip((_BATCHES, _EMPTY), results, strict=True):
        expected, wrong = _accuracies(case), _likely(case)
        for rank, answer in enumerate(of_ranks):
            _same_accuracies(answer, expected, wrong, rank)


def _calling(by_digit: Callable) -> Callable:
    """A loop that calls the function with this rank's batches; returns the answers by case and rank."""

    def calling(config: dict) -> list[list[Any]]:
        import ray.train
        import torch

        rank = ray.train.get_context().get_world_rank()
        answers = []
        for case in config["cases"]:
            batches = [(torch.tensor(right).bool(), torch.tensor(label)) for right, label in case[rank]]
            of_ranks: list[Any] = [None, None]
            torch.distributed.all_gather_object(of_ranks, by_digit(batches))
            answers.append(of_ranks)
        return answers

    return calling


def _rows(batches: list) -> list[tuple[int, int]]:
    return [pair for right, label in batches for pair in zip(right, label, strict=True)]


def _accuracies(case: tuple) -> list[float]:
    """The accuracy of each digit over the rows of these lists of batches."""
    rows = [row for batches in case for row in _rows(batches)]
    of_digits = [[right for right, label in rows if label == digit] for digit in range(10)]
    return [sum(rights) / len(rights) if rights else 0.0 for rights in of_digits]


def _likely(case: tuple) -> list[tuple[list[float], str]]:
    ranks = [_accuracies((batches,)) for batches in case]
    mean = [sum(values) / 2 for values in zip(*ranks, strict=True)]
    total = [sum(values) for values in zip(*ranks, strict=True)]
    return [
        (ranks[0], "these are the rows of rank 0 alone"),
        (ranks[1], "these are the rows of rank 1 alone"),
        (mean, "that is the mean of the ranks' ratios: add up the counts first, and divide last"),
        (total, "that is the sum of the ranks' ratios: add up the counts first, and divide last"),
    ]


def _same_accuracies(answer: Any, expected: list[float], likely: list, rank: int) -> None:
    if is_blank(answer):
        raise NotAttempted
    if answer is None:
        raise Wrong(f"by_digit returns None on rank {rank}, and every rank should return the list")
    values = array_of(answer, shape=(10,), what=f"what by_digit returns on rank {rank}")
    if any(math.isnan(value) for value in values):
        raise Wrong("a digit without rows is nan: 0 divided by 0. It should be 0.0")
    for wrong, remark in likely:
        if _close(values, wrong) and not _close(wrong, expected):
            raise Wrong(f"on rank {rank}: {remark}")
    for digit, (value, right) in enumerate(zip(values, expected, strict=True)):
        close_to(value, right, abs=1e-5, what=f"on rank {rank}, the accuracy of digit {digit}")


def _close(first: Any, second: Any) -> bool:
    return all(abs(a - b) < 1e-5 for a, b in zip(first, second, strict=True))


@LESSON.exercise(
    "06b-2 · Fix this predictor",
    "Which of the two methods runs once? And what does dropout do to a model in training mode?",
    "Pixels go from 0 to 255 here, and the model was trained with 0 to 1. The column needs one value for each row.",
    '`self.model = load().eval()` in `__init__`; divide the images by 255; return `{"right": right.numpy()}`.',
)
def _predictor(fixed_predictor: Any) -> None:
    """The class in this process, with a model that notices training mode, and pixels that are too large."""
    import numpy as np

    if not isinstance(fixed_predictor, type):
        raise Wrong(f"FixedPredictor is {describe(fixed_predictor)}, and a class is expected")
    if is_blank(vars(fixed_predictor).get("__call__")):
        raise NotAttempted
    loads: list[int] = []
    predictor = result_of(fixed_predictor, functools.partial(_noting_load, loads), what="FixedPredictor")
    images = np.zeros((7, 784), np.uint8)
    images[:, 0] = [0, 10, 100, 200, 255, 255, 0]
    labels = np.array([0, 0, 0, 1, 1, 0, 1])
    expected = np.array([1, 1, 1, 1, 1, 0, 0], float)
    for rows in (slice(0, 4), slice(4, 7)):
        batch = {"image": images[rows].copy(), "label": labels[rows].copy()}
        result = result_of(predictor, batch, what="an object of FixedPredictor")
        if not hasattr(result, "keys") or "right" not in result:
            raise Wrong(f"it returns {describe(result)}, and a dict with the column `right` is expected")
        _same_column(result["right"], expected[rows])
    if len(loads) != 1:
        raise Wrong(f"for 2 batches the model was loaded {len(loads)} times")


def _noting_load(loads: list[int]) -> Any:
    """A model for two classes: 1 if the first pixel is above a half; in training mode it is always wrong."""
    import torch

    class Threshold(torch.nn.Module):
        def forward(self, images: Any) -> Any:
            if images.max() > 1:  # so that unscaled pixels are noticed whatever their value
                return torch.full((len(images), 2), float("nan"))
            score = images[:, 0] - 0.5
            score = -score if self.training else score
            return torch.stack([-score, score], dim=1)

    loads.append(1)
    return Threshold()


def _same_column(column: Any, expected: Any) -> None:
    values = array_of(column, what="the column `right`")
    if values.ndim == 0 or len(values) != len(expected):
        count = 1 if values.ndim == 0 else len(values)
        fact = f"the column `right` has {count} value{'s' * (count > 1)} for {len(expected)} rows"
        raise Wrong(f"{fact}: return one for each row, because the last batch is smaller than the others")
    found = values.astype(float)
    if (found == expected).all():
        return
    if (found == 1 - expected).all():
        raise Wrong("all answers are the opposite: is the model in training mode? Call `.eval()`")
    raise Wrong("some rows are wrong: do the pixels go from 0 to 1, as in training?")


_WAYS = ("function", "trainer", "map_batches")
_CASES = {
    "quick": (
        "function",
        {
            "trainer": "the start of its workers takes longer than the two seconds",
            "map_batches": "the start of its actors takes longer than what they would save",
        },
    ),
    "sharded": (
        "trainer",
        {
            "function": "the model doesn't fit on the one GPU of a task",
            "map_batches": "its actors can't exchange activations: they have no process group",
        },
    ),
    "images": (
        "map_batches",
        {
            "function": "one process would read 40 million images",
            "trainer": "each machine that is taken away ends the run of all ranks, and one value for each row needs no ranks",
        },
    ),
    "old code": (
        "trainer",
        {
            "function": "`dist.all_gather` needs a process group",
            "map_batches": "`dist.all_gather` needs a process group, which its actors don't have",
        },
    ),
}


@LESSON.exercise(
    "06b-3 · Choose a way",
    "Ask of each case: do the workers have to talk to each other? If not: is one process enough?",
    "A process group is what only a trainer has. One value for each row is what `map_batches` is made for.",
    "Two of the four are the trainer: those in which ranks exchange something.",
)
def _choose(choice: Any) -> None:
    if not hasattr(choice, "keys") or set(choice) != set(_CASES):
        raise Wrong(f"choice is {describe(choice)}, and a dict with {', '.join(_CASES)} is expected")
    for case, (expected, remarks) in _CASES.items():
        answer = choice[case]
        if is_blank(answer):
            raise NotAttempted
        if answer not in _WAYS:
            raise Wrong(f"{case} is {describe(answer)}: choose {', '.join(_WAYS[:2])} or {_WAYS[2]}")
        if answer != expected:
            raise Wrong(f"{case}, with {answer}: {remarks[answer]}")


@LESSON.exercise(
    "06b-4 · How many validators fit?",
    "Write down who holds a CPU at the same time: four kinds of processes.",
    "The task that waits holds `own`, and one more must stay free for the tasks that read.",
    "`max(0, cpus - training - own - 1)`.",
)
def _most_workers(most_workers: Any) -> None:
    for cpus, training, own in ((16, 8, 2), (16, 8, 0), (16, 8, 1), (4, 2, 0), (4, 3, 1), (3, 2, 1)):
        expected = max(0, cpus - training - own - 1)
        mistakes = {
            cpus - training - 1: "the task in which your function runs holds `own` CPUs as well",
            cpus
            - training
            - own: "then no CPU is free for the tasks that read, and the workers wait for rows",
            cpus - training: "then nothing is left for the validation's task, nor for the tasks that read",
            cpus - own - 1: "the training holds its CPUs meanwhile",
        }
        mistakes = {value: remark for value, remark in mistakes.items() if value != expected}
        if cpus - training - own - 1 < 0:
            mistakes = {cpus - training - own - 1: "there is no negative number of workers"} | mistakes
        returns(most_workers, (cpus, training, own), expected, name="most_workers", mistakes=mistakes)


_SIZE, _CLASSES = 101, 3


@LESSON.exercise(
    "06b-5 · A validator of your own",
    "The lesson's `evaluate_all` and `in_a_trainer` have all parts. What changes is the number that a row has.",
    'Add up losses with `reduction="sum"`, count rows, exchange both with one `all_reduce`, and divide at the end.',
    "`rows.streaming_split(workers, equal=False)` gives the parts, `get_world_rank()` chooses one, and "
    "`trainer.fit().return_value` is the result.",
    seconds=120,
    stuck="a rank calls `all_reduce` and another doesn't, or no CPU is free for the tasks that read rows",
)
def _validates(validate_loss: Any) -> None:
    """One validation with two workers, of a small model and 101 rows; compared with the loss in this process."""
    import ray.data
    import ray.train
    import torch
    from ray import cloudpickle

    expect_function(validate_loss, "validate_loss")
    require_no_dots(validate_loss)
    x, labels = _points()
    with folder_of_check() as place, tempfile.TemporaryDirectory() as saved:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(2, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, _CLASSES)
        )
        torch.save(model.state_dict(), Path(saved, "state.pt"))
        checkpoint = ray.train.Checkpoint(
            ray.train.Checkpoint.from_directory(saved).to_directory(f"{place}/saved")
        )
        rows = ray.data.from_items(
            [{"x": point.numpy(), "label": int(label)} for point, label in zip(x, labels, strict=True)],
            override_num_blocks=5,
        )
        load = _counting_load(f"{place}/loads")
        with learners_errors("validate_loss", _REMARKS):
            cloudpickle.dumps(validate_loss)
            answer = validate_loss(checkpoint, load, rows, 2, {"storage_path": place})
        loads = Path(place, "loads").read_text().splitlines() if Path(place, "loads").exists() else []
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(model.eval()(x), labels, reduction="none").double()
    _right_loss(answer, losses, loads)


_REMARKS = {
    "num_workers": "num_workers is not the number that was asked for",
    "doesn't exist in": "the loop asks for a shard that the trainer has not: use the iterators of `streaming_split`",
}


def _points() -> tuple[Any, Any]:
    """Points and labels in an order that makes early and late rows differ, so that a wrong mean shows."""
    import torch

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(_SIZE, 2, generator=generator) + torch.linspace(0, 4, _SIZE).unsqueeze(1)
    return x, torch.arange(_SIZE) * _CLASSES // _SIZE


def _counting_load(path: str) -> Callable:
    """Return a `load` that notes in the file `path` which process has called it."""

    def load(checkpoint: Any) -> Any:
        import os

        import torch

        model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
        with checkpoint.as_directory() as folder:
            model.load_state_dict(torch.load(f"{folder}/state.pt", weights_only=True))
        with open(path, "a") as file:
            file.write(f"{os.getpid()}\n")
        return model

    return load


def _right_loss(answer: Any, losses: Any, loads: list[str]) -> None:
    if is_blank(answer):
        raise NotAttempted
    if answer is None:
        raise Wrong("validate_loss returns None: return what rank 0's loop has returned, `return_value`")
    if not hasattr(answer, "keys") or set(answer) != {"val_loss", "rows"}:
        raise Wrong(f'it returns {describe(answer)}, and {{"val_loss": …, "rows": …}} is expected')
    processes = len(set(loads))
    if processes != 2:
        raise Wrong(
            f"the model was loaded in {processes} process{'es' * (processes != 1)}, and 2 workers were asked for"
        )
    remarks = {
        _SIZE - 1: "one row is missing: each worker got equally many, and the rest was dropped",
        2 * _SIZE: "each worker counts all rows, so each row counts twice",
        2 * _SIZE - 2: "each worker counts all rows, so each row counts twice",
    }
    otherwise = f"there are {_SIZE}: is that the count of one rank?"
    close_to(answer["rows"], _SIZE, what="rows", mistakes=remarks, otherwise=otherwise)
    mean, total = losses.mean().item(), losses.sum().item()
    remarks = {
        total: "that is the sum of the losses and not their mean",
        mean / 2: "that is half of it: was it divided by the number of workers?",
        mean * 2: "that is twice as much: were the ranks' means added?",
    }
    otherwise = (
        f"one process finds {mean:.6f}. Is dropout off (`eval()`), and does each row count as much as every other? "
        "The mean of the batches' means is another number"
    )
    close_to(answer["val_loss"], mean, rel=1e-5, what="val_loss", mistakes=remarks, otherwise=otherwise)
