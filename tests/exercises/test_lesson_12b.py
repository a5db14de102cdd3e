"""The exercises of lesson 12b: what is said of a mistake."""

import numpy as np
import pytest

from course.schedule import all_reduce
from verdicts import checks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("course/exercises/", "course/schedule/", "lessons/checks/"),
]


def backward(weights, x, y, slope):
    inner = slope * (1 - y**2)
    return x.T @ inner, inner @ weights.T


def forward(weights, x):
    return np.tanh(x @ weights)


OWN, SCATTER = "batch[rank::world]", "total = yield reduce_scatter(gradient)"
KEPT = {
    f"outputs = [{OWN}]": f"outputs, kept = [{OWN}], []",
    " outputs.append": " kept.append(weights); outputs.append",
}
WARM_UP, COOL_DOWN = "min(world - rank - 1, count)", "range(count - warm_up, count)"
GIVEN = {"forward": forward, "backward": backward, "all_reduce": all_reduce}


ANSWERS = {
    "12b-1": [
        ({"lr * total / world": "lr * total"}, "was updated with the sum: divide by the number of ranks"),
        (
            {
                SCATTER: "yield reduce_scatter(gradient)\n"
                "            total = np.split(gradient, world)[rank] * world"
            },
            "with this rank's own gradient only",
        ),
        (
            {OWN: "batch[0::world]"},
            "rank 3's shard of layer 0 was updated with the batch rows of rank 0 only",
        ),
        (
            {"[rank].copy()": "[(rank + 1) % world].copy()"},
            "rank 3's shard of layer 0 differs from that of `data_parallel`",
        ),
        ({"            shards[number] -= lr * total / world\n": ""}, "is as before the training"),
        (
            {"return shards": "return [np.concatenate([shard] * world) for shard in shards]"},
            "is a whole layer: keep 16 of its 64 rows",
        ),
        (KEPT, "MB are one layer): which array is still in a variable?"),
        ({"            del gradient, total\n": ""}, "MB are one layer): which array is still in a variable?"),
        (
            KEPT | {"yield all_gather(shards[number])": "kept[number]"},
            "is a layer kept from forward to backward?",
        ),
        (
            {SCATTER: "total = np.split((yield all_reduce(gradient)), world)[rank].copy()"},
            "a rank sends 1.33 times as much as it must",
        ),
        ({"[rank].copy()": "[rank]"}, "an array that it was given and that belongs to the caller"),
        (
            {'            yield compute(1, "F")\n': "", '            yield compute(2, "B")\n': ""},
            "rank 0 computes for 0 units, and in `data_parallel` for 36",
        ),
        ({OWN: "batch"}, "with the rows of all ranks. Its own are `batch[rank::world]`"),
    ],
    "12b-2": [
        ([lambda stages, idle: (stages - 1) * (1 - idle) / idle], "round up"),
        ({"return count": "return count - 1"}, "one too few"),
        ({"return count": "return count + 1"}, "one fewer is enough"),
        ([lambda stages, idle: int(np.ceil((stages - 1) / idle))], "compared with the computing"),
        ([lambda stages, idle: "7"], "a number is expected"),
        ([lambda stages, idle: stages], "that is not it"),
        ([lambda s, idle: max(1, int(np.ceil((s - 1) * (1 - idle) / idle)))], "`ceil` goes one too far"),
        ({"return count": "return count * (stages > 1)"}, "there is at least one micro-batch"),
    ],
    "12b-3": [
        ({WARM_UP: "count"}, "rank 0 keeps 8 micro-batches at once, and 4 are enough"),
        ({WARM_UP: "0"}, "it works, but the bubble is"),
        ({WARM_UP: "min(world - rank, count)"}, "rank 0 keeps 5 micro-batches at once"),
        ({WARM_UP: "min(rank, count)"}, "They wait in a circle: 0 → 1 → 0. To fix it: each send"),
        ({COOL_DOWN: "()"}, "rank 0 never makes the backward pass of micro-batch 5"),
        ({COOL_DOWN: f"[*{COOL_DOWN}, 0]"}, "makes the backward pass of micro-batch 0 twice"),
        ({"return plan": "return plan[1:]"}, "never makes the forward pass of micro-batch 0"),
        (
            {WARM_UP: "0", '("F", warm_up + number), ("B", number)': '("B", number), ("F", number)'},
            "makes the backward pass of micro-batch 0 too early",
        ),
        ({WARM_UP: "count", COOL_DOWN: "reversed(range(count))"}, "messages arrive from 0 on"),
        ({"return plan": "return 'F0 B0'  #"}, "a list of pairs such as ('F', 0) is expected"),
    ],
}


test_what_a_check_says = checks(ANSWERS, **GIVEN)
