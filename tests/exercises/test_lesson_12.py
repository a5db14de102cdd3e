"""The exercises of lesson 12: what is said of a mistake. No cluster; right answers run on real ranks, too."""

import re
from pathlib import Path

import numpy as np
import pytest

from course.exercises import check, predict, reveal, solved
from course.schedule import all_gather, all_reduce, compute, recv, reduce_scatter, send, start, wait
from verdicts import verdicts

pytestmark = pytest.mark.slow


LESSONS = Path(__file__).resolve().parents[2] / "lessons"


def around(rank, world):
    return (rank + 1) % world, (rank - 1) % world


# -- 12-1 ----------------------------------------------------------------------------------------------


def all_send_first(rank, world, values):
    yield send(around(rank, world)[0], values[rank])
    return (yield recv(around(rank, world)[1]))


def from_the_wrong_side(rank, world, values):
    right, left = around(rank, world)
    sending = yield start(send(left, values[rank]))
    other = yield recv(right)
    yield wait(sending)
    return other


def even_ranks_first(rank, world, values):
    right, left = around(rank, world)
    if rank % 2 == 0:
        yield send(right, values[rank])
        return (yield recv(left))
    other = yield recv(left)
    yield send(right, values[rank])
    return other


def without_a_message(rank, world, values):
    yield compute(0)
    return values[rank - 1]


def its_own(rank, world, values):
    right, left = around(rank, world)
    sending = yield start(send(right, values[rank]))
    yield recv(left)
    yield wait(sending)
    return values[rank]


def passed_on(rank, world, values):
    right, left = around(rank, world)
    sending = yield start(send(right, values[rank]))
    other = yield recv(left)
    yield wait(sending)
    return other


# -- 12-2 ----------------------------------------------------------------------------------------------


def a_ring(rounds=None, first=0, add=None, divide=False, order=1, in_place=False):
    """A ring with one thing wrong."""

    def ring(rank, world, values):
        mine = values[rank] if in_place else values[rank].copy()
        pieces, (right, left) = np.split(mine, world), around(rank, world)
        last = 2 * (world - 1) if rounds is None else rounds(world)
        for step in range(last):
            sending = yield start(send(right, pieces[(rank + first - step) % world]))
            got = yield recv(left)
            yield wait(sending)
            into = (rank - step - 1) % world
            adds = step < world - 1 if add is None else add(step, world)
            if in_place and adds:
                pieces[into] += got
            else:
                pieces[into] = pieces[into] + got if adds else got
        return np.concatenate(pieces[::order]) / (world if divide else 1)

    return ring


def everything_around(rank, world, values):
    """Right, but each message is the whole array."""
    total = mine = values[rank]
    for _ in range(world - 1):
        sending = yield start(send((rank + 1) % world, mine))
        mine = yield recv((rank - 1) % world)
        yield wait(sending)
        total = total + mine
    return total


def one_after_the_other(rank, world, values):
    """Right, and in pieces, but only one link works at a time."""
    pieces, (right, left) = np.split(values[rank].copy(), world), around(rank, world)
    for step in range(2 * (world - 1)):
        sending = yield start(send(right, pieces[(rank - step) % world]))
        got = yield recv(left)
        yield wait(sending)
        yield compute(1)
        into = (rank - step - 1) % world
        pieces[into] = pieces[into] + got if step < world - 1 else got
    return np.concatenate(pieces)


def one_blank_left(rank, world, values):
    pieces, (right, left) = np.split(values[rank].copy(), world), around(rank, world)
    for step in range(2 * (world - 1)):
        sending = yield start(send(right, pieces[(rank - step) % world]))
        got = yield recv(left)
        yield wait(sending)
        into = (rank - step - 1) % world
        pieces[into] = pieces[into] + got if ... else got
    return np.concatenate(pieces)


def by_the_engine(rank, world, values):
    return (yield all_reduce(values[rank]))


# -- 12-3 ----------------------------------------------------------------------------------------------


def backward(layer, grads, source):
    yield compute(1, f"B{layer}")
    grads[layer] += source[layer]


def buckets(
    early=False, wait_at_once=False, twice=False, divide=True, forget=False, each=False, swap=False,
    order=reversed, full=0, whose=0, one_more=None,
):  # fmt: skip
    """Buckets with one thing wrong."""

    def bucketed(rank, world, source, size):
        grads = [np.zeros_like(one) for one in source[rank]]
        bucket, started = [], []
        layers = list(order(range(len(grads))))
        for layer in layers:
            if not early:
                yield from backward(layer, grads, source[(rank + whose) % world])
            bucket.append(layer)
            last = layer == layers[-1] and one_more is None
            if last or each or sum(len(grads[one]) for one in bucket) >= size + full:
                if forget and layer == 0:
                    break
                one = yield start(all_reduce(np.concatenate([grads[one] for one in bucket])))
                started.append((bucket, (yield wait(one)) if wait_at_once else one))
                bucket = [layer] if twice and layer else []
            if early:
                yield from backward(layer, grads, source[rank])
        if one_more == "always" or (one_more and bucket):
            one = yield start(all_reduce(np.concatenate([grads[one] for one in bucket])))
            started.append((bucket, one))
        elif one_more == "empty":
            yield wait((yield start(all_reduce(np.zeros(0)))))
        for bucket, one in started:
            total = (one if wait_at_once else (yield wait(one))) / (world if divide else 1)
            ends = np.cumsum([len(grads[layer]) for layer in bucket])[:-1]
            for layer, average in zip(bucket, np.split(total, ends), strict=True):
                grads[layer] = average
        return grads[::-1] if swap else grads

    return bucketed


def at_the_end(rank, world, source, size):
    grads = [np.zeros_like(one) for one in source[rank]]
    for layer in reversed(range(len(grads))):
        yield from backward(layer, grads, source[rank])
    total = yield all_reduce(np.concatenate(grads))
    return np.split(total / world, np.cumsum([len(one) for one in grads])[:-1])


# -- 12-4 ----------------------------------------------------------------------------------------------


def stage_1(
    divide=True, momentum=0.9, part=0, whole_velocity=False, gather="after", reduce=True, keep=False, whose=0
):
    """ZeRO with one thing wrong."""

    def zero(rank, world, weights, gradients, lr):
        weights, kept = weights.copy(), []
        size, at = len(weights) // world, (rank + part) % world
        mine = slice(at * size, (at + 1) * size)
        velocity = np.zeros(len(weights) if whole_velocity else size)
        for gradient in gradients[(rank + whose) % world]:
            yield compute(3, "step")
            if gather == "before":
                weights = yield all_gather(weights[mine])
            if whole_velocity:
                average = (yield all_reduce(gradient)) / world
                velocity = momentum * velocity + average
                update_of_mine = velocity[mine]
            else:
                sum_of_mine = (yield reduce_scatter(gradient)) if reduce else gradient[mine] * world
                velocity = momentum * velocity + sum_of_mine / (world if divide else 1)
                update_of_mine = velocity
            new = weights[mine] - lr * update_of_mine
            if keep:
                kept.append(weights[mine])
            if gather == "after":
                weights = yield all_gather(new)
            else:
                weights[mine] = new
        return (yield all_gather(weights[mine])) if gather in ("before", "at the end") else weights

    return zero


def in_place(rank, world, weights, gradients, lr):
    size = len(weights) // world
    mine, velocity = slice(rank * size, (rank + 1) * size), np.zeros(size)
    for gradient in gradients[rank]:
        yield compute(3, "step")
        velocity = 0.9 * velocity + (yield reduce_scatter(gradient)) / world
        weights[mine] -= lr * velocity
        weights = yield all_gather(weights[mine])
    return weights


def of_another_shape(rank, world, weights, gradients, lr):
    yield compute(3, "step")
    return weights - np.zeros(3)


SAID = """
12-1
  all_send_first => They wait in a circle: 0 → 1 → 0. To fix it: let one of them receive first
  from_the_wrong_side => rank 0 returns what belongs to rank 1: it should be what rank 2 sent
  even_ranks_first => some messages wait for others
  its_own => rank 0 returns what belongs to rank 0
  without_a_message => what the others have must be sent
  passed_on => solved
12-2
  a_ring(rounds=lambda world: world - 1) => piece 0 of rank 0's result lacks the numbers of rank 1
  a_ring(add=lambda step, world: True) => twice or more
  a_ring(add=lambda step, world: step < world - 2) => lacks the numbers of rank
  a_ring(divide=True) => is the mean: return the sum
  a_ring(first=1) => piece 0 of rank 0's result
  a_ring(order=-1) => the pieces are in the wrong order
  everything_around => rank 0 sends 2.88 MB, and a ring sends 1.92 MB
  one_after_the_other => all links should work at the same time
  by_the_engine => it uses `all_reduce`
  a_ring(in_place=True) => `pieces[into] += got`, an array that it was given
  one_blank_left => still has a `...`
  a_ring() => solved
12-3
  buckets(early=True) => is too early: it has zeros
  buckets(twice=True) => sends layer 4 twice
  buckets(divide=False) => is the sum: divide by the number of ranks
  buckets(forget=True) => this rank's own gradient, and never sent
  buckets(wait_at_once=True) => backward doesn't go on until it's through
  buckets(each=True) => there are 6 all-reduces, and buckets of 700 numbers need 3
  buckets(full=1) => there are 2 all-reduces, and buckets of 700 numbers need 3
  buckets(order=list) => a backward pass goes from the last layer to the first
  buckets(swap=True) => for layer 0 is the average of layer 5
  at_the_end => nothing is sent before the end of backward
  buckets(whose=1) => rank 0 reads entry 1 of a list that has one for each rank
  buckets(one_more="always") => if the first layer fills the last bucket exactly
  buckets(one_more="empty") => there are 4 all-reduces, and one of them is empty
  buckets(one_more="if any") => solved
  buckets() => solved
12-4
  stage_1(divide=False) => not divided by the number of ranks
  stage_1(momentum=0) => trained without momentum
  stage_1(part=1) => part 0 of the weights is made of part 1 and the gradient of part 0
  stage_1(reduce=False) => the weights of rank 0 differ from those of `replicated`
  stage_1(gather="never") => the weights of rank 0 differ in part 1, 2, 3, 4, 5, 6, 7
  stage_1(gather="at the end") => an `all_gather` belongs at the end of each step
  stage_1(gather="before") => one `reduce_scatter` and one `all_gather` in each step are enough
  stage_1(whose=1) => rank 0 reads entry 1 of a list that has one for each rank
  stage_1(whole_velocity=True) => a rank sends 1.50 times as much
  stage_1(keep=True) => times the weights, and 2.5 is the limit
  in_place => `weights[mine] -= lr * velocity`, an array that it was given
  of_another_shape => raised ValueError on rank 0 in line
  stage_1() => solved
"""

test_what_a_check_says = verdicts(SAID, globals())


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
    check("12-1", passed_on)
    assert solved("12-1")
    check("12-1", its_own)
    assert not solved("12-1")


@pytest.mark.parametrize("id", ["12-1", "12-2", "12-3", "12-4", "12b-1", "12b-3"])
def test_an_answer_with_a_blank_is_none(id):
    def blank(rank, world, *args):
        yield ...

    assert check(id, blank).state == "not attempted"
