"""The exercises of lesson 04: what is right, and what a likely mistake is told."""

import numpy as np
import pytest

from labkit.exercises import check


@pytest.mark.parametrize(
    "batch, rows, updates, said",
    [
        (192, 12, 96, "solved"),
        (48, 12, 96, "ONE worker"),
        (12, 12, 96, "multiply"),
        (192, 48, 96, "divides it"),
        (192, 12, 24, "not 48"),
        (192, 12, 384, "at the same time"),
        (192, 12, 97, "not it"),
        (..., 12, 96, "not attempted"),
    ],
)
def test_a_batch_for_all_of_them(batch, rows, updates, said):
    assert said in repr(check("04-1", batch, rows, updates))


def seen(rows, workers, by_ray, by_tensorflow):
    return rows * workers // workers ** (by_ray + by_tensorflow)


def by_cases(rows, workers, by_ray, by_tensorflow):
    if by_ray and by_tensorflow:
        return rows / workers
    return rows if by_ray or by_tensorflow else rows * workers


@pytest.mark.parametrize(
    "function, said",
    [
        (seen, "solved"),
        (by_cases, "solved"),
        (lambda rows, workers, by_ray, by_tensorflow: rows, "nothing is cut"),
        (lambda rows, workers, by_ray, by_tensorflow: rows * workers, "in EACH worker"),
        (lambda rows, workers, r, t: rows if r or t else rows * workers, "a part of that part"),
        (lambda rows, workers, r, t: rows // workers if r or t else rows * workers, "ONE worker"),
        (lambda rows, workers, r, t: 0 if r and t else seen(rows, workers, r, t), "every worker gets some"),
        (lambda rows, workers: rows, "raised TypeError"),
        (7, "a function is expected"),
    ],
)
def test_sharded_once(function, said):
    assert said in repr(check("04-2", function))


def stub(rank, save, folder, report, metrics): ...


def everyone(rank, save, folder, report, metrics):
    save(folder)
    report(metrics, checkpoint=folder if rank == 0 else None)


def rank_0_saves(rank, save, folder, report, metrics):
    if rank == 0:
        save(folder)
    report(metrics, checkpoint=folder if rank == 0 else None)


def rank_0_reports(rank, save, folder, report, metrics):
    save(folder)
    if rank == 0:
        report(metrics, checkpoint=folder)


def all_give(rank, save, folder, report, metrics):
    save(folder)
    report(metrics, checkpoint=folder)


def nobody_gives(rank, save, folder, report, metrics):
    save(folder)
    report(metrics)


def too_early(rank, save, folder, report, metrics):
    report(metrics, checkpoint=folder if rank == 0 else None)
    save(folder)


def twice(rank, save, folder, report, metrics):
    save(folder)
    if rank == 0:
        report(metrics, checkpoint=folder)
    report(metrics)


def no_metrics(rank, save, folder, report, metrics):
    save(folder)
    report({}, checkpoint=folder if rank == 0 else None)


@pytest.mark.parametrize(
    "function, said",
    [
        (everyone, "solved"),
        (rank_0_saves, "of 2 workers, rank 1 never calls save"),
        (rank_0_reports, "of 2 workers, rank 1 never calls report"),
        (all_give, "rank 1 passes its folder"),
        (nobody_gives, "without its folder"),
        (too_early, "before it saves"),
        (twice, "rank 0 calls report 2 times"),
        (no_metrics, "reports {}"),
        (stub, "not attempted"),
    ],
)
def test_who_saves(function, said):
    assert said in repr(check("04-3", function))


@pytest.mark.parametrize(
    "function, said",
    [
        (lambda losses, global_batch: losses.sum() / global_batch, "solved"),
        (lambda losses, global_batch: sum(losses) / global_batch, "solved"),
        (lambda losses, global_batch: losses.mean(), "adds the workers up"),
        (lambda losses, global_batch: losses.sum(), "nothing is divided"),
        (lambda losses, global_batch: losses.mean() / 2, "same number of rows"),
        (lambda losses, global_batch: losses.sum() / global_batch / 2, "once too often"),
        (lambda losses, global_batch: losses / global_batch, "a number is expected"),
        (lambda losses: np.mean(losses), "raised TypeError"),
        (lambda losses, global_batch: ..., "not attempted"),
    ],
)
def test_what_to_divide_by(function, said):
    assert said in repr(check("04-4", function))
