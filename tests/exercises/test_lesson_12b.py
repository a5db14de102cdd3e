"""The exercises of lesson 12b: what is said of a mistake. Right answers run on real ranks, too."""

import numpy as np
import pytest

from course.schedule import all_gather, all_reduce, compute, reduce_scatter
from verdicts import verdicts

pytestmark = pytest.mark.slow


def backward(weights, x, y, slope):
    inner = slope * (1 - y**2)
    return x.T @ inner, inner @ weights.T


def shards_of(
    divide=True, drop=True, drop_gradient=True, copy=True, scatter=True, part=0, rows=None, early=False,
    update=True, own=False, whole=False, gather_twice=True, computes=True, all_rows=False,
):  # fmt: skip
    """FSDP with one thing wrong."""

    def fsdp(rank, world, layers, batches, lr):
        shards = [np.split(weights, world)[(rank + part) % world] for weights in layers]
        if copy:
            shards = [shard.copy() for shard in shards]
        for batch in batches:
            outputs, kept = [batch if all_rows else batch[rank if rows is None else rows :: world]], []
            for shard in shards:
                weights = yield all_gather(shard)
                if computes:
                    yield compute(1, "F")
                outputs.append(np.tanh(outputs[-1] @ weights))
                if not drop or not gather_twice:
                    kept.append(weights)
                del weights
            slope = 2 * (outputs[-1] - outputs[0]) / outputs[0].size
            for number in reversed(range(len(shards))):
                weights = (yield all_gather(shards[number])) if gather_twice else kept[number]
                if computes:
                    yield compute(2, "B")
                if early:  # it sends the gradient of the layer before it is computed
                    total = yield reduce_scatter(np.zeros_like(weights))
                gradient, slope = backward(weights, outputs[number], outputs[number + 1], slope)
                del weights
                if early:
                    pass
                elif own:
                    total = np.split(gradient, world)[rank] * world
                    yield reduce_scatter(gradient)
                elif scatter:
                    total = yield reduce_scatter(gradient)
                else:
                    total = np.split((yield all_reduce(gradient)), world)[rank].copy()
                if update:
                    shards[number] -= lr * total / (world if divide else 1)
                if drop_gradient:
                    del gradient, total
        return [np.concatenate([shard] * world) for shard in shards] if whole else shards

    return fsdp


def plans(warm_up=lambda rank, world: world - rank - 1, cool_down=True, twice=False, skip=False, shift=0):
    """1F1B with one thing wrong."""

    def one_f_one_b(rank, world, count):
        first = max(0, min(warm_up(rank, world), count))
        plan = [("F", number) for number in range(first)]
        for number in range(count - first):
            plan += [("F", first + number), ("B", number)]
        plan += [("B", number) for number in range(count - first, count)] if cool_down else []
        if twice:
            plan.append(("B", 0))
        return plan[1:] if skip else plan

    return one_f_one_b


def gpipe(rank, world, count):
    return [("F", number) for number in range(count)] + [("B", number) for number in range(count)]


def backward_first(rank, world, count):
    return [(kind, number) for number in range(count) for kind in "BF"]


def newest_first(rank, world, count):
    forwards = [("F", number) for number in range(count)]
    return forwards + [("B", number) for number in reversed(range(count))]


def solved(stages, idle):
    return next(m for m in range(1, 999) if (stages - 1) / (m + stages - 1) <= idle)


SAID = """
12b-1
  shards_of(divide=False) => was updated with the sum: divide by the number of ranks
  shards_of(own=True) => with this rank's own gradient only
  shards_of(rows=0) => rank 3's shard of layer 0 was updated with the batch rows of rank 0 only
  shards_of(part=1) => rank 3's shard of layer 0 differs from that of `data_parallel`
  shards_of(early=True) => is as before the training
  shards_of(update=False) => is as before the training
  shards_of(whole=True) => is a whole layer: keep 16 of its 64 rows
  shards_of(drop=False) => MB are one layer): which array is still in a variable?
  shards_of(drop_gradient=False) => MB are one layer): which array is still in a variable?
  shards_of(gather_twice=False) => is a layer kept from forward to backward?
  shards_of(scatter=False) => a rank sends 1.33 times as much as it must
  shards_of(copy=False) => an array that it was given and that belongs to the caller
  shards_of(computes=False) => rank 0 computes for 0 units, and in `data_parallel` for 36
  shards_of(all_rows=True) => with the rows of all ranks. Its own are `batch[rank::world]`
  shards_of() => solved
12b-2
  lambda stages, idle: (stages - 1) * (1 - idle) / idle => round up
  lambda stages, idle: solved(stages, idle) - 1 => one too few
  lambda stages, idle: solved(stages, idle) + 1 => one fewer is enough
  lambda stages, idle: int(np.ceil((stages - 1) / idle)) => compared with the computing
  lambda stages, idle: "7" => a number is expected
  lambda stages, idle: stages => that is not it
  lambda stages, idle: round((stages - 1) * (1 - idle) / idle) => one too few
  lambda s, idle: max(1, int(np.ceil((s - 1) * (1 - idle) / idle))) => `ceil` goes one too far
  lambda stages, idle: solved(stages, idle) * (stages > 1) => there is at least one micro-batch
  solved => solved
12b-3
  gpipe => rank 0 keeps 8 micro-batches at once, and 4 are enough
  plans(warm_up=lambda rank, world: 0) => it works, but the bubble is
  plans(warm_up=lambda rank, world: world - rank) => rank 0 keeps 5 micro-batches at once
  plans(warm_up=lambda rank, world: rank) => They wait in a circle: 0 → 1 → 0. To fix it: each send
  plans(cool_down=False) => rank 0 never makes the backward pass of micro-batch 5
  plans(twice=True) => makes the backward pass of micro-batch 0 twice
  plans(skip=True) => never makes the forward pass of micro-batch 0
  backward_first => makes the backward pass of micro-batch 0 too early
  newest_first => messages arrive from 0 on
  lambda rank, world, count: "F0 B0" => a list of pairs such as ('F', 0) is expected
  plans() => solved
"""

test_what_a_check_says = verdicts(SAID, globals())
