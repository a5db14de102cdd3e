"""The exercises of lesson 09: what is right, and what the check says about a likely mistake."""

from types import SimpleNamespace

import pytest
from ray.train import ScalingConfig

from labkit.exercises import check, lesson_09


def alpha_beta(workers, small, large):
    rounds = 2 * (workers - 1)
    beta = (large[1] - small[1]) / (large[0] - small[0]) * workers / rounds
    return small[1] / rounds - beta * small[0] / workers, beta


def slope_alone(workers, small, large):
    slope = (large[1] - small[1]) / (large[0] - small[0])
    return small[1] - slope * small[0], slope


def stub(workers, small, large): ...


@pytest.mark.parametrize(
    "function, said",
    [
        (alpha_beta, "solved"),
        (stub, "not attempted"),
        (lambda *one: alpha_beta(*one)[::-1], "return alpha first"),
        (lambda *one: alpha_beta(*one)[0], "a tuple (alpha, beta) is expected"),
        (lambda *one: (slope_alone(*one)[0], alpha_beta(*one)[1]), "for all 2 messages together"),
        (lambda n, *two: (alpha_beta(n, *two)[0], slope_alone(n, *two)[1]), "beta of 4 workers is"),
        (lambda n, *two: (two[0][1] / (2 * (n - 1)), alpha_beta(n, *two)[1]), "sends some bytes, too"),
    ],
)
def test_alpha_and_beta(function, said):
    assert said in repr(check("09-1", function))


def returning(monkeypatch, *values):
    """The engine is replaced: runs return these values, one after the other."""
    left = iter(values)
    run = lambda *args, **options: (SimpleNamespace(return_value=next(left)), [])  # noqa: E731
    monkeypatch.setattr(lesson_09, "run_loop", run)


@pytest.mark.parametrize(
    "values, said",
    [
        ((3 * 33_000.0, 3 * 32_000.0), "solved"),
        ((3 * 32_000.0, 3 * 33_000.0), "solved"),
        ((3 * 32_000.0, 3 * 32_000.0), "processed 64 rows in each step, of 65"),
        ((3 * 33_000.0, 3 * 33_000.0), "processed 66 rows in each step, of 65"),
        ((3 * 65_000.0, 3 * 65_000.0), "a worker processed all 65 rows"),
        ((3 * 65_000.0, 3 * 65.0), "are those of rank 0"),
        ((3 * 33_000.0, 3 * 33.0), "are those of rank 0"),
        ((3 * 33_032.0, 3 * 32_033.0), "33.032 rows of the slow rank 0, then 32.033"),  # both ranks' sum
        ((None,), "a number is expected"),
    ],
)
def test_a_fair_comparison(values, said, monkeypatch):
    returning(monkeypatch, *values)
    assert said in repr(check("09-2", lambda config: 1))


@pytest.mark.parametrize(
    "values, said",
    [
        ((1, 0, 0, 1), "solved"),
        ((1, 0, 1), "it returns 1, and rank 0 is slow"),  # of whole steps, which take both equally long
        ((1, 1), "it returns 1, and rank 0 is slow"),
        ((0, 0), "it returns 0, and rank 1 is slow"),
        ((1.27, 0.1), "a rank is expected"),
        ((None,), "a number is expected"),
    ],
)
def test_the_slowest(values, said, monkeypatch):
    returning(monkeypatch, *values)
    assert said in repr(check("09-3", lambda config: 1))


def workers(count, **resources):
    return ScalingConfig(num_workers=count, resources_per_worker=resources or None)


@pytest.mark.parametrize(
    "answer, said",
    [
        (workers(12, CPU=3), "solved"),
        (..., "not attempted"),
        (12, "a ScalingConfig is expected"),
        (workers(16, CPU=3), "on one node"),
        (workers(13, CPU=3), "and the head has some, too"),
        (workers(10, CPU=3), "the head has CPUs, too"),
        (workers(12), "resources_per_worker"),
    ],
)
def test_what_fits(answer, said):
    assert said in repr(check("09-4", answer))
