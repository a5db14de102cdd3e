"""The exercises of lesson 08: what is said of a mistake. They run on a cluster."""

import math

import numpy as np
import pytest

from course.exercises import registry
from course.exercises.answers import Wrong
from course.exercises.running import limited
from verdicts import checks

lesson_08 = registry.load("08")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("course/exercises/", "lessons/checks/"),
    pytest.mark.usefixtures("lab"),
]

MEAN = " / dist.get_world_size()"


ANSWERS = {
    "08-1": [
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
        ({MEAN: ""}, "is that the sum, the largest"),
        ({"all_reduce(total)": "all_reduce(total, op=dist.ReduceOp.MIN)", MEAN: ""}, "only rank 0 is below"),
        ({"return total": "return loss < 0 and total"}, "in steps 3 and 4"),
        ({"torch.tensor(loss)": "torch.tensor(float(loss < 0.5))", f"{MEAN} < ": f"{MEAN} > "}, "or a vote"),
        ({MEAN: " / 2"}, "by the number of ranks, not by 2"),
        ({"total.item() / dist": "dist.all_reduce(total) / dist"}, "in place and returns nothing"),
        ({MEAN: " / ray.train.get_context().get_world_size()"}, "solved"),
    ],
    "08-3": [
        ({"rank == 0": "rank == 3"}, "with one worker, no checkpoint"),
        ({"rank == 0": "rank >= 0"}, "with two workers, every rank writes the same file"),
        ({"rank == 0": "rank == ray.train.get_context().get_world_size() - 1"}, "solved"),
        ({'getattr(model, "module", model)': "model"}, "model.pt has module.weight, module.bias"),
    ],
    "08-4": [
        (
            {"max(1, round(seconds / step_seconds))": "np.int64(max(1, round(seconds / step_seconds)))"},
            "solved",
        ),
        ({" / machines": ""}, "one machine"),
        ({" / machines": " * machines"}, "divide by their number"),
        ({"2 * ": ""}, "a factor of 2"),
        ({"seconds / step_seconds": "seconds"}, "step_seconds"),
        ({"max(1, round(seconds / step_seconds))": "round(seconds / step_seconds)"}, "at least one step"),
        ({"round(": "math.ceil("}, "rounded up"),
        ({"round(": "int("}, "cut off, and not rounded"),
        ({"return ": "return 1.0 * "}, "an int is expected"),
        ({" * 3600": ""}, "machine_hours is in hours"),
    ],
}


test_what_a_check_says = checks(ANSWERS, math=math, np=np)


def test_a_save_that_each_rank_decides_for_itself_is_stopped():
    with pytest.raises(Wrong, match="its own loss"), limited(12, "each asks about its own loss"):
        lesson_08._agree(lambda loss: loss < 0.5)
