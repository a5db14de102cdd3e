"""The exercises of lesson 03c: what is said of a mistake."""

import numpy as np
import pytest

from verdicts import checks

pytestmark = [pytest.mark.slow, pytest.mark.covers("course/exercises/", "lessons/checks/")]


def dealt(names, seed, epoch, step, rank, workers, batch_size):
    """A right answer to 03c-4: each rank takes its batch out of each step's names in one piece."""
    order = np.random.default_rng([epoch, seed]).permutation(len(names))
    per_step = workers * batch_size
    own = range(rank * batch_size, (rank + 1) * batch_size)
    places = [start + k for start in range(0, len(names) - per_step + 1, per_step) for k in own]
    return [names[order[place]] for place in places[step * batch_size :]]


def in_place(names, seed, epoch, step, rank, workers, batch_size):
    np.random.default_rng((seed, epoch)).shuffle(names)
    return names


LEFT = "left = order[step * per_step : steps * per_step]"


ANSWERS = {
    "03c-1": [
        ({"if drop_last else -(-each // batch_size)": "if True else 0"}, "the last, small batch is a step"),
        ({"steps = each // batch_size if drop_last else ": "steps = "}, "the small batch is no step"),
        ({"each = rows // workers": "each = rows"}, "a rank makes its own steps only"),
        ({"steps * batch_size if drop_last else each": "each"}, "drop_last drops rows of each rank"),
        ({"rows - used * workers": "each - used"}, "dropped rows"),
        ({"rows - used * workers": "(each - used) * workers"}, "that can't be divided are dropped"),
        ({"return steps, rows - used * workers": "return steps"}, "two numbers are expected"),
        ({"return steps, rows - used * workers": "return steps, ..."}, "not attempted"),
    ],
    "03c-3": [
        ({"cpus - workers - validation": "cpus - workers"}, "while the validation runs"),
        ({"int(left / per_task)": "left"}, "of CPUs that are left"),
        ({"int(left / per_task)": "int(left // per_task)"}, "divide by `/`"),
        ({"left < per_task": "left <= 0"}, "raise a ValueError"),
        ({"+ validation + per_task": "+ validation"}, "CPUs would be enough"),
        ({"ValueError": "RuntimeError"}, "a ValueError is expected"),
        ({"the run needs {enough:g} CPUs, and": "at least {float(enough)} CPUs:"}, "solved"),
    ],
    "03c-4": [
        ([dealt], "solved"),
        ([in_place], "the list of names was changed"),
        ({"default_rng((seed, epoch))": "default_rng(seed)"}, "epochs 0 and 1 have the same order"),
        ({"default_rng((seed, epoch))": "default_rng(epoch)"}, "seeds 7 and 8 give the same order"),
        ({"default_rng((seed, epoch))": "default_rng()"}, "different order the second time"),
        ({"np.random.default_rng((seed, epoch)).permutation(names).tolist()": "names"}, "in their old order"),
        ({"left[rank::workers]": "left"}, "several ranks read the same name"),
        ({LEFT: "left = order[step * per_step :]"}, "don't fill a step"),
        ({LEFT: "left = order[: steps * per_step]"}, "is still the whole one"),
        ({LEFT: "left = order[step * batch_size : steps * per_step]"}, "names left, and you return"),
        ({LEFT: "left = order[(step + 1) * per_step : steps * per_step]"}, "48 are"),
        (
            {"left[rank::workers]": "left[len(left) // workers * rank :][: len(left) // workers]"},
            "uses other names than with one",
        ),
    ],
}


test_what_a_check_says = pytest.mark.each_change(checks(ANSWERS, np=np))


BATCHES = {
    "03c-2": [
        ({".long()": ""}, "int64 is expected"),
        ({" / 255": ""}, "float32 is expected"),
        ({" / 255": ".float()"}, "the largest pixel is 255"),
        ({"drop_last=True,": ""}, "full ones only"),
        ({"local_shuffle_seed=epoch": "local_shuffle_seed=7"}, "the same order"),
        ({"local_shuffle_seed=epoch": "local_shuffle_seed=epoch % 2"}, "an earlier epoch had"),
        ({"        local_shuffle_seed=epoch,\n": ""}, "the seed must follow from the epoch"),
        (
            {"        local_shuffle_buffer_size=4 * batch_size,\n        local_shuffle_seed=epoch,\n": ""},
            "in the order of the data set",
        ),
        ({'batch["image"] / 255, ': ""}, "a pair (x, y) is expected"),
        ({"batch_size=batch_size,": "batch_size=batch_size // 2,"}, "are asked for"),
        ({"yield ": "return "}, "is expected"),
    ],
}


test_batches = pytest.mark.each_change(pytest.mark.usefixtures("lab")(checks(BATCHES)))
