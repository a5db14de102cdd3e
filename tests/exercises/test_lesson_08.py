"""The exercises of lesson 08: what is said of a mistake. They run on a cluster."""

import math

import numpy as np
import pytest

from course.exercises import check, registry
from course.exercises.answers import Wrong
from course.exercises.running import limited
from verdicts import cases, solution

lesson_08 = registry.load("08")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("course/exercises/", "lessons/checks/"),
    pytest.mark.usefixtures("lab"),
]

MEAN = " / dist.get_world_size()"


CHANGED = {
    "08-1": [
        ({}, "solved"),
        ({'return state["step"]': 'return state["step"] + 1'}, "leaves out a step"),
        ({'return state["step"]': "return 0"}, "starts from scratch"),
        ({'    optimizer.load_state_dict(state["optimizer"])\n': ""}, "has no momentum"),
        ({'    scheduler.load_state_dict(state["scheduler"])\n': ""}, "0.045 instead of 0.0266"),
        ({'    model.load_state_dict(state["model"])\n': ""}, "were they loaded?"),
        ({"torch.manual_seed(100_000 * step + rank)": "return step"}, "depend on more than the step"),
        ({"100_000 * step + rank": "step + rank"}, "step 1 on rank 0 draws the numbers of step 0 on rank 1"),
        ({"100_000 * step + rank": "2 * step + rank"}, "also with more ranks than two"),
        ({"100_000 * step + rank": 'int(f"{step}{rank}")'}, "also with more ranks than two"),
        ({'    return state["step"]\n': ""}, "load_state returns nothing"),
        ({"torch.manual_seed(100_000 * step + rank)": "pass"}, "before_step does nothing yet"),
        ({"100_000 * step + rank": "step"}, "use the rank"),
        ({"100_000 * step + rank": "rank"}, "use the step"),
    ],
    "08-2": [
        ({}, "solved"),
        ({MEAN: ""}, "is that the sum, the largest"),
        ({"all_reduce(total)": "all_reduce(total, op=dist.ReduceOp.MIN)", MEAN: ""}, "only rank 0 is below"),
        ({"return total": "return loss < 0 and total"}, "in steps 3 and 4"),
        ({"torch.tensor(loss)": "torch.tensor(float(loss < 0.5))", f"{MEAN} < ": f"{MEAN} > "}, "or a vote"),
        ({MEAN: " / 2"}, "by the number of ranks, not by 2"),
        ({"total.item() / dist": "dist.all_reduce(total) / dist"}, "in place and returns nothing"),
        ({MEAN: " / ray.train.get_context().get_world_size()"}, "solved"),
    ],
    "08-3": [
        ({}, "solved"),
        ({"rank == 0": "rank == 3"}, "with one worker, no checkpoint"),
        ({"rank == 0": "rank >= 0"}, "with two workers, every rank writes the same file"),
        ({"rank == 0": "rank == ray.train.get_context().get_world_size() - 1"}, "solved"),
        ({'getattr(model, "module", model)': "model"}, "model.pt has module.weight, module.bias"),
    ],
}


@pytest.mark.parametrize(("exercise", "change", "verdict"), cases(CHANGED))
def test_what_a_check_says_of_a_run(exercise, change, verdict):
    assert verdict in repr(check(exercise, *solution(exercise, change)))


def test_a_save_that_each_rank_decides_for_itself_is_stopped():
    with pytest.raises(Wrong, match="its own loss"), limited(12, "each asks about its own loss"):
        lesson_08._agree(lambda loss: loss < 0.5)


def best_interval(step_seconds, save_seconds, machine_hours, machines):
    return max(1, round((2 * save_seconds * machine_hours * 3600 / machines) ** 0.5 / step_seconds))


ANSWERS = {
    "08-4": [
        ([best_interval], "solved"),
        ([lambda *times: np.int64(best_interval(*times))], "solved"),
        ([lambda a, b, c, n: round((2 * b * c * 3600) ** 0.5 / a)], "one machine"),
        ([lambda a, b, c, n: round((2 * b * c * 3600 * n) ** 0.5 / a)], "divide by their number"),
        ([lambda a, b, c, n: round((b * c * 3600 / n) ** 0.5 / a)], "a factor of 2"),
        ([lambda a, b, c, n: round((2 * b * c * 3600 / n) ** 0.5)], "step_seconds"),
        ([lambda a, b, c, n: round((2 * b * c * 3600 / n) ** 0.5 / a)], "at least one step"),
        ([lambda a, b, c, n: math.ceil((2 * b * c * 3600 / n) ** 0.5 / a)], "rounded up"),
        ([lambda a, b, c, n: max(1, int((2 * b * c * 3600 / n) ** 0.5 / a))], "cut off, and not rounded"),
        ([lambda a, b, c, n: float(best_interval(a, b, c, n))], "an int is expected"),
        ([lambda a, b, c, n: round((2 * b * c / n) ** 0.5 / a)], "machine_hours is in hours"),
    ],
}


@pytest.mark.parametrize(("exercise", "answers", "verdict"), cases(ANSWERS))
def test_what_a_check_says(exercise, answers, verdict):
    assert verdict in repr(check(exercise, *answers))
