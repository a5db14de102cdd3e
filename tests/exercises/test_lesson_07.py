"""The exercises of lesson 07: what is right, and what a likely mistake is told."""

import math

import pytest

from labkit.exercises import check


@pytest.mark.parametrize(
    "rows, said",
    [
        ([2, 5, 0], "solved"),
        ([2, 5], "would wait"),
        ([6, 7], "like cards"),
        ([2, 5, 8], "no row 8"),
        ([1, 4, 7], "it is not"),
        (7, "a list"),
        (..., "not attempted"),
    ],
)
def test_who_gets_which_row(rows, said):
    assert said in repr(check("07-1", rows))


def test_the_answer_is_what_pytorch_does():
    from torch.utils.data import DistributedSampler

    sampler = DistributedSampler(range(8), num_replicas=3, rank=2, shuffle=False)
    assert "solved" in repr(check("07-1", list(sampler)))


@pytest.mark.parametrize(
    "function, said",
    [
        (lambda gpu, rank: ("nccl", f"cuda:{rank}") if gpu else ("gloo", "cpu"), "solved"),
        (lambda gpu, rank: ("gloo", f"cuda:{rank}") if gpu else ("gloo", "cpu"), "between GPUs"),
        (lambda gpu, rank: ("nccl", "cuda") if gpu else ("gloo", "cpu"), "share its first GPU"),
        (lambda gpu, rank: ("nccl", "cuda:0") if gpu else ("gloo", "cpu"), "'cuda:3' is expected"),
        (lambda gpu, rank: ("nccl", "cpu"), "between CPUs"),
        (lambda gpu, rank: "gloo", "two strings"),
        (lambda gpu: "gloo", "raised TypeError"),
    ],
)
def test_backend_and_device(function, said):
    assert said in repr(check("07-2", function))


@pytest.mark.parametrize(
    "function, said",
    [
        (lambda rank, world, groups: range(rank, groups, world), "solved"),
        (lambda rank, world, groups: [k for k in range(groups) if k % world == rank], "solved"),
        (lambda rank, world, groups: range(groups * rank // world, groups * (rank + 1) // world), "solved"),
        (lambda rank, world, groups: range(groups), "is read 2 times"),
        (lambda rank, world, groups: range(rank, groups // world * world, world), "no rank reads"),
        (lambda rank, world, groups: range(groups) if rank == 0 else [], "one rank has"),
        (lambda rank, world, groups: [*range(rank, groups, world), groups + rank], "counted from 0"),
        (lambda rank, world, groups: 3, "a list of whole numbers"),
    ],
)
def test_which_row_groups(function, said):
    assert said in repr(check("07-3", function))


def to_pay(start_a, rate_a, start_b, rate_b):
    saved = 1 / rate_a - 1 / rate_b
    return (start_b - start_a) / saved if saved > 0 else math.inf


@pytest.mark.parametrize(
    "function, said",
    [
        (to_pay, "solved"),
        (lambda a, x, b, y: (b - a) * (y - x) if y > x else math.inf, "subtract seconds"),
        (lambda a, x, b, y: (b - a) / (1 / x - 1 / y), "ZeroDivisionError"),
        (lambda a, x, b, y: abs((b - a) / (1 / x - 1 / y)) if x != y else math.inf, "nothing is won back"),
    ],
)
def test_how_many_rows_until_it_pays(function, said):
    assert said in repr(check("07-4", function))
