"""The exercises of lesson 12: what is said of a mistake. No cluster."""

import re
from pathlib import Path

import numpy as np
import pytest

from course.exercises import check, predict, reveal, solved
from course.schedule import all_reduce, compute, recv, send, start, wait
from verdicts import checks, solution

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("course/exercises/", "course/schedule/", "lessons/checks/"),
]


LESSONS = Path(__file__).resolve().parents[2] / "lessons"


def even_ranks_first(rank, world, values):
    right, left = (rank + 1) % world, (rank - 1) % world
    if rank % 2 == 0:
        yield send(right, values[rank])
        return (yield recv(left))
    other = yield recv(left)
    yield send(right, values[rank])
    return other


def everything_around(rank, world, values):
    """Right, but each message is the whole array."""
    total = mine = values[rank]
    for _ in range(world - 1):
        sending = yield start(send((rank + 1) % world, mine))
        mine = yield recv((rank - 1) % world)
        yield wait(sending)
        total = total + mine
    return total


def by_the_engine(rank, world, values):
    return (yield all_reduce(values[rank]))


def backward(layer, grads, source):
    yield compute(1, f"B{layer}")
    grads[layer] += source[layer]


SEND, WAIT = "sending = yield start(send((rank + 1) % world, values[rank]))", "    yield wait(sending)\n"
ADD, ADDS = (
    "            pieces[into] += got",
    "pieces[into] = pieces[into] + got if step < world - 1 else got",
)
OF_LAYER = "        yield from backward(layer, grads, source[rank])\n"
LAST, CLEARED = "            bucket = []", "            bucket = []\n"
FULL = "if layer == 0 or sum(len(grads[one]) for one in bucket) >= size"
FLAT = "flat = np.concatenate([grads[one] for one in bucket])\n"
STARTED = "started.append((bucket, (yield start(all_reduce(flat)))))\n"
AFTERWARDS = "    for bucket, one in started"
MEAN, GATHER = "(yield reduce_scatter(gradient)) / world", "weights = yield all_gather(part)"
AT_THE_END = {GATHER: "weights[mine] = part", "return weights": "return (yield all_gather(weights[mine]))"}
GIVEN = {"compute": compute, "all_reduce": all_reduce, "backward": backward}


ANSWERS = {
    "12-1": [
        (
            {SEND: SEND.replace("sending = yield start(", "yield (")[:-1] + ")", WAIT: ""},
            "They wait in a circle: 0 → 1 → 0. To fix it: let one of them receive first",
        ),
        (
            {"rank + 1": "rank - 1", "recv((rank - 1": "recv((rank + 1"},
            "rank 0 returns what belongs to rank 1: it should be what rank 2 sent",
        ),
        ({"return other": "return values[rank]"}, "rank 0 returns what belongs to rank 0"),
        (
            {SEND: "yield compute(0)", "yield recv((rank - 1) % world)": "values[rank - 1]", WAIT: ""},
            "what the others have must be sent",
        ),
        ([even_ranks_first], "some messages wait for others"),
        ({"return other": "return ..."}, "not attempted"),
    ],
    "12-2": [
        ({"2 * (world - 1)": "world - 1"}, "piece 0 of rank 0's result lacks the numbers of rank 1"),
        ({" if step < world - 1 else got": ""}, "twice or more"),
        ({"step < world - 1": "step < world - 2"}, "lacks the numbers of rank"),
        ({"np.concatenate(pieces)": "np.concatenate(pieces) / world"}, "is the mean: return the sum"),
        ({"pieces[(rank - step)": "pieces[(rank + 1 - step)"}, "piece 0 of rank 0's result"),
        ({"concatenate(pieces)": "concatenate(pieces[::-1])"}, "the pieces are in the wrong order"),
        (
            {"yield wait(sending)": "yield wait(sending)\n        yield compute(1)"},
            "all links should work at the same time",
        ),
        (
            {
                ".copy()": "",
                ADDS: f"if step < world - 1:\n{ADD}\n        else:\n            pieces[into] = got",
            },
            "`pieces[into] += got`, an array that it was given",
        ),
        ({"if step < world - 1 else": "if ... else"}, "still has a `...`"),
        ([everything_around], "rank 0 sends 2.88 MB, and a ring sends 1.92 MB"),
        ([by_the_engine], "it uses `all_reduce`"),
    ],
    "12-3": [
        ({OF_LAYER: "", CLEARED: f"{CLEARED}{OF_LAYER}"}, "is too early: it has zeros"),
        ({LAST: "            bucket = [layer] if layer else []"}, "sends layer 4 twice"),
        ({" / world": ""}, "is the sum: divide by the number of ranks"),
        ({"layer == 0 or sum": "sum"}, "this rank's own gradient, and never sent"),
        (
            {"(yield start(all_reduce(flat)))": "(yield all_reduce(flat))", "(yield wait(one))": "one"},
            "backward doesn't go on until it's through",
        ),
        ({FULL: "if True"}, "there are 6 all-reduces, and buckets of 700 numbers need 3"),
        ({">= size": ">= size + 1"}, "there are 2 all-reduces, and buckets of 700 numbers need 3"),
        (
            {"reversed(range(len(grads)))": "range(len(grads))", "layer == 0": "layer == len(grads) - 1"},
            "a backward pass goes from the last layer to the first",
        ),
        ({"return grads": "return grads[::-1]"}, "for layer 0 is the average of layer 5"),
        ({">= size": ">= 1e9"}, "nothing is sent before the end of backward"),
        (
            {"source[rank])\n        bucket": "source[(rank + 1) % world])\n        bucket"},
            "rank 0 reads entry 1 of a list that has one for each rank",
        ),
        (
            {"layer == 0 or sum": "sum", AFTERWARDS: f"    {FLAT}    {STARTED}{AFTERWARDS}"},
            "if the first layer fills the last bucket exactly",
        ),
        (
            {AFTERWARDS: f"    yield all_reduce(np.zeros(0))\n{AFTERWARDS}"},
            "there are 4 all-reduces, and one of them is empty",
        ),
        (
            {
                "layer == 0 or sum": "sum",
                AFTERWARDS: f"    if bucket:\n        {FLAT}        {STARTED}{AFTERWARDS}",
            },
            "solved",
        ),
    ],
    "12-4": [
        ({MEAN: "yield reduce_scatter(gradient)"}, "not divided by the number of ranks"),
        ({"0.9 * velocity + ": ""}, "trained without momentum"),
        (
            {"slice(rank * size, (rank + 1)": "slice((rank + 1) % world * size, ((rank + 1) % world + 1)"},
            "part 0 of the weights is made of part 1 and the gradient of part 0",
        ),
        ({MEAN: "gradient[mine]"}, "the weights of rank 0 differ from those of `replicated`"),
        ({GATHER: "weights[mine] = part"}, "the weights of rank 0 differ in part 1, 2, 3, 4, 5, 6, 7"),
        (AT_THE_END, "an `all_gather` belongs at the end of each step"),
        (
            AT_THE_END
            | {"        average": "        weights = yield all_gather(weights[mine])\n        average"},
            "one `reduce_scatter` and one `all_gather` in each step are enough",
        ),
        (
            {"gradients[rank]": "gradients[(rank + 1) % world]"},
            "rank 0 reads entry 1 of a list that has one for each rank",
        ),
        (
            {
                "zeros(size)": "zeros(len(weights))",
                "reduce_scatter": "all_reduce",
                "lr * velocity": "lr * velocity[mine]",
            },
            "a rank sends 1.50 times as much",
        ),
        (
            {
                "weights = weights.copy()": "weights, kept = weights.copy(), []",
                "        part": "        kept.append(weights[mine])\n        part",
            },
            "times the weights, and 2.5 is the limit",
        ),
        (
            {".copy()": "", "part = weights[mine] - lr": "weights[mine] -= lr", "(part)": "(weights[mine])"},
            "`weights[mine] -= lr * velocity`, an array that it was given",
        ),
        ({"zeros(size)": "zeros(3)"}, "raised ValueError on rank 0 in line"),
    ],
}


test_what_a_check_says = checks(ANSWERS, **GIVEN)


@pytest.mark.parametrize(
    "id, right",
    [("12-a", "they wait until a timeout"), ("12-c", "6.9"), ("12b-a", "1.5 times"), ("12b-b", "about 30 %")],
)
def test_one_of_the_choices_is_right(id, right, capsys):
    """Whether the lesson's own run comes to it, its claims say."""
    (source,) = LESSONS.glob(f"{id.partition('-')[0]}_*.py")
    values = (
        {"choices": ["they swap", "an error at once", "they wait until a timeout"]} if id == "12-a" else {}
    )
    (call,) = re.findall(rf'predict\("{id}", \.\.\., choices=(.*)\)', source.read_text(encoding="utf-8"))
    for choice in (choices := eval(call, values)):
        predict(id, choice, choices=choices)
        reveal(id, right)
    assert len(re.findall(r": right$", capsys.readouterr().out, re.MULTILINE)) == 1


@pytest.mark.parametrize(
    "id, name",
    [("12-2", "ring"), ("12-3", "bucketed"), ("12-4", "zero"), ("12b-1", "fsdp"), ("12b-3", "one_f_one_b")],
)
def test_the_version_with_blanks_can_be_pasted(id, name):
    (source,) = LESSONS.glob(f"{id.partition('-')[0]}_*.py")
    text = re.sub(r"(?m)^# ?", "", source.read_text(encoding="utf-8"))
    (version,) = re.findall(rf"```python\n(def {name}\(.*?)```", text, re.DOTALL)
    exec(version, names := {"np": np})
    assert check(id, names[name]).state == "not attempted"


def test_the_cells_after_an_exercise_know_whether_it_is_solved():
    check("12-1", *solution("12-1"))
    assert solved("12-1")
    check("12-1", *solution("12-1", {"return other": "return values[rank]"}))
    assert not solved("12-1")
