"""The exercises of lesson 06b: what is said of a mistake."""

import sys

import pytest
import torch
from ray import cloudpickle

from course.exercises import check, registry
from verdicts import cases, solution

pytestmark = [pytest.mark.slow, pytest.mark.covers("course/exercises/", "lessons/checks/")]


lesson_06b = registry.load("06b")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this module

RIGHT = [lesson_06b._accuracies(case) for case in (lesson_06b._BATCHES, lesson_06b._EMPTY)]
FIRST = lesson_06b._likely(lesson_06b._BATCHES)


def ranks(first, second=None, empty=None):
    """What two ranks return, for each of the two cases."""
    empty = empty or [RIGHT[1], RIGHT[1]]
    return [[first, second or first], empty]


WITH_NAN = [*RIGHT[0][:9], float("nan")]


OF_TWO_RANKS = [
    (ranks(RIGHT[0]), "solved"),
    (ranks(FIRST[0][0]), "the rows of rank 0 alone"),
    (ranks(RIGHT[0], FIRST[1][0]), "on rank 1: these are the rows of rank 1 alone"),
    (ranks(FIRST[2][0]), "the mean of the ranks' ratios"),
    (ranks(FIRST[3][0]), "the sum of the ranks' ratios"),
    (ranks(WITH_NAN), "a digit without rows is nan"),
    (ranks(RIGHT[0][:9]), "has the shape (9,)"),
    ([[RIGHT[0], None], [RIGHT[1], RIGHT[1]]], "returns None on rank 1"),
    (ranks(RIGHT[0], empty=[RIGHT[1], [0.0] * 10]), "on rank 1: these are the rows of rank 1 alone"),
]


@pytest.mark.each_change
@pytest.mark.parametrize("values, verdict", OF_TWO_RANKS)
def test_what_a_check_says_of_two_ranks(values, verdict, monkeypatch):
    monkeypatch.setattr(lesson_06b, "returned", lambda *args, **options: values)
    assert verdict in repr(check("06b-1", lambda batches: batches))


CHANGED = {
    "06b-2": [
        ({}, "solved"),
        ({".eval()": ""}, "is the model in training mode?"),
        ({" / 255": ""}, "do the pixels go from 0 to 1"),
        ({"right.numpy()": "[right.mean().item()]"}, "1 value for 4 rows"),
        ({"right.numpy()": "right.mean().item()"}, "1 value for 4 rows"),
        (
            {"self.model = load().eval()": "self.load = load", "self.model(": "self.load().eval()("},
            "for 2 batches the model was loaded 2 times",
        ),
        ({'{"right": ': '{"hits": '}, "a dict with the column `right` is expected"),
    ],
    "06b-4": [
        ({}, "solved"),
        ({" - own": ""}, "holds `own` CPUs as well"),
        ({" - 1": ""}, "no CPU is free for the tasks that read"),
        ({" - training": ""}, "the training holds its CPUs meanwhile"),
        ({"max(0, cpus - training - own - 1)": "cpus - training - own - 1"}, "no negative number"),
        ({" - own - 1": ""}, "nothing is left for the validation's task"),
    ],
    "06b-3": [
        ({}, "solved"),
        ({'"quick": "function"': '"quick": "trainer"'}, "takes longer than the two seconds"),
        ({'"sharded": "trainer"': '"sharded": "map_batches"'}, "they have no process group"),
        ({'"images": "map_batches"': '"images": "trainer"'}, "ends the run of all ranks"),
        ({'"old code": "trainer"': '"old code": "function"'}, "needs a process group"),
        ({'"quick": "function"': '"quick": "task"'}, "choose function, trainer or map_batches"),
    ],
}


@pytest.mark.each_change
@pytest.mark.parametrize(("exercise", "change", "verdict"), cases(CHANGED))
def test_what_a_check_says_of_a_change(exercise, change, verdict):
    assert verdict in repr(check(exercise, *solution(exercise, change)))


LOSSES = torch.tensor([0.5] * 50 + [1.5] * 51, dtype=torch.float64)
MEAN = LOSSES.mean().item()


OF_A_LOSS = [
    ({"val_loss": MEAN, "rows": 101}, ["1", "2"], "solved"),
    (None, ["1", "2"], "returns None"),
    (MEAN, ["1", "2"], '{"val_loss": …, "rows": …} is expected'),
    ({"val_loss": MEAN, "rows": 100}, ["1", "2"], "one row is missing"),
    ({"val_loss": MEAN, "rows": 202}, ["1", "2"], "each worker counts all rows"),
    ({"val_loss": MEAN, "rows": 51}, ["1", "2"], "the count of one rank"),
    ({"val_loss": MEAN, "rows": 101}, ["1", "1"], "was loaded in 1 process,"),
    ({"val_loss": MEAN * 101, "rows": 101}, ["1", "2"], "the sum of the losses"),
    ({"val_loss": MEAN / 2, "rows": 101}, ["1", "2"], "that is half of it"),
    ({"val_loss": 1.0, "rows": 101}, ["1", "2"], "one process finds"),
]


@pytest.mark.each_change
@pytest.mark.parametrize("answer, loads, verdict", OF_A_LOSS)
def test_what_a_check_says_of_a_loss(answer, loads, verdict):
    if verdict == "solved":
        lesson_06b._right_loss(answer, LOSSES, loads)
        return
    with pytest.raises(lesson_06b.Wrong, match="(?s)" + verdict.replace("{", r"\{").replace("}", r"\}")):
        lesson_06b._right_loss(answer, LOSSES, loads)


PART = 'config["parts"][ray.train.get_context().get_world_rank()]'
SPLIT = "rows.streaming_split(workers, equal=False)"


ON_THE_CLUSTER = {
    "06b-1": [
        ({}, "solved"),
        ({"    torch.distributed.all_reduce(counts)\n": ""}, "the rows of rank 0 alone"),
        ({".clamp(min=1)": ""}, "a digit without rows is nan"),
    ],
    "06b-5": [
        ({}, "solved"),
        ({"equal=False": "equal=True"}, "one row is missing"),
        ({"        torch.distributed.all_reduce(totals)\n": ""}, "the count of one rank"),
        ({f'"parts": {SPLIT}': '"rows": rows', PART: 'config["rows"]'}, "each worker counts all rows"),
        (
            {
                f'{{"parts": {SPLIT}}},': '{}, datasets={"rows": rows},',
                PART: 'ray.train.get_dataset_shard("rows")',
            },
            "one row is missing",
        ),
    ],
}


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(("exercise", "change", "verdict"), cases(ON_THE_CLUSTER))
def test_a_run_that_a_check_starts(exercise, change, verdict):
    assert verdict in repr(check(exercise, *solution(exercise, change)))
