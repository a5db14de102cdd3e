"""The exercises of lesson 03: what is right, and what a likely mistake is told."""

import math

import pytest

from labkit.exercises import check


@pytest.mark.parametrize(
    "images, updates, said",
    [
        (96, 15, "solved"),
        (32, 15, "ONE worker"),
        (1437, 15, "an epoch"),
        (96, 45, "at the same time"),
        (96, 14, "never seen"),
        (96, 1437 / 96, "whole steps"),
        (96, 3 * 15 + 1, "not it"),
        (96, ..., "not attempted"),
    ],
)
def test_steps_of_an_epoch(images, updates, said):
    assert said in repr(check("03-1", images, updates))


@pytest.mark.parametrize(
    "size, said", [(192, "solved"), (48, "ONE"), (12, "each has 48"), (96, "two workers")]
)
def test_the_batch_of_one_process(size, said):
    assert said in repr(check("03-2", size))


def everyone(rank, report, metrics, checkpoint):
    report(metrics, checkpoint=checkpoint if rank == 0 else None)


def as_given(rank, report, metrics, checkpoint):
    report(metrics, checkpoint)


def by_branches(rank, report, metrics, checkpoint):
    if rank == 0:
        report(metrics, checkpoint=checkpoint)
    else:
        report(metrics)


def rank_0_alone(rank, report, metrics, checkpoint):
    if rank == 0:
        report(metrics, checkpoint=checkpoint)


def all_but_rank_0(rank, report, metrics, checkpoint):
    if rank:
        report(metrics)


def twice(rank, report, metrics, checkpoint):
    if rank == 0:
        report(metrics, checkpoint=checkpoint)
    report(metrics)


def nothing_saved(rank, report, metrics, checkpoint):
    report(metrics)


def no_metrics(rank, report, metrics, checkpoint):
    report({}, checkpoint=checkpoint)


def two_ranks(rank, report, metrics, checkpoint):
    if rank in (0, 1):
        report(metrics, checkpoint=checkpoint)


def stub(rank, report, metrics, checkpoint): ...


@pytest.mark.parametrize(
    "function, said",
    [
        (everyone, "solved"),
        (as_given, "solved"),
        (by_branches, "solved"),
        (rank_0_alone, "of 2 workers, rank 1 never"),
        (all_but_rank_0, "of 1 workers, rank 0 never"),
        (two_ranks, "of 3 workers, rank 2 never"),
        (twice, "rank 0 calls report 2 times"),
        (nothing_saved, "without its checkpoint"),
        (no_metrics, "reports {}"),
        (lambda rank: rank, "raised TypeError"),
        (stub, "not attempted"),
        (7, "a function is expected"),
    ],
)
def test_who_reports(function, said):
    assert said in repr(check("03-3", function))


@pytest.mark.parametrize(
    "function, said",
    [
        (lambda state: 0 if state is None else state["epoch"] + 1, "solved"),
        (lambda state: (state or {"epoch": -1})["epoch"] + 1, "solved"),
        (lambda state: 0 if state is None else state["epoch"], "trained twice"),
        (lambda state: 1 if state is None else state["epoch"] + 1, "counted from 0"),
        (lambda state: 0, "starts from scratch"),
        (lambda state: state["epoch"] + 1, "raised TypeError"),
    ],
)
def test_where_to_go_on(function, said):
    assert said in repr(check("03-4", function))


def caught_up(start_one, epoch_one, start_many, epoch_many):
    saved = epoch_one - epoch_many
    return max(math.ceil((start_many - start_one) / saved), 0) if saved > 0 else math.inf


@pytest.mark.parametrize(
    "function, said",
    [
        (caught_up, "solved"),
        (lambda a, b, c, d: (c - a) / (b - d) if b > d else math.inf, "whole"),
        (lambda a, b, c, d: (c - a) // (b - d) if b > d else math.inf, "after 3 epochs"),
        (lambda a, b, c, d: math.ceil((c - a) / (b - d)) if b > d else math.inf, "ahead from the start"),
        (lambda a, b, c, d: max(0, math.ceil((c - a) / (b - d))), "ZeroDivisionError"),
        (lambda a, b, c, d: max(0, math.ceil((c - a) / abs(b - d))) if b != d else math.inf, "won back"),
        (lambda a, b, c, d: "never", "a number is expected"),
    ],
)
def test_after_how_many_epochs(function, said):
    assert said in repr(check("03-5", function))
