"""The exercises of lesson 07: what is right, and what is said of a mistake."""

import math

import pytest

from labkit.exercises import check, lesson_07


@pytest.mark.parametrize(
    "rows, dropped, said",
    [
        ([2, 5, 0], [2, 5], "solved"),
        ([2, 5], [2, 5], "would wait"),
        ([6, 7], [2, 5], "like cards"),
        ([2, 5, 8], [2, 5], "no row 8"),
        ([1, 4, 7], [2, 5], "it is not"),
        ([0, 2, 5], [2, 5], "not in its order"),
        ([2, 5, 0], [2, 5, 0], "6 and 7 are left out"),
        ([2, 5, 0], [2], "with drop_last it is not"),
        (7, [2, 5], "a list"),
        ([2, 5, 0], ..., "not attempted"),
    ],
)
def test_who_gets_which_row(rows, dropped, said):
    assert said in repr(check("07-1", rows, dropped))


def test_the_answer_is_what_pytorch_does():
    from torch.utils.data import DistributedSampler

    options = {"num_replicas": 3, "rank": 2, "shuffle": False}
    padded, cut = (DistributedSampler(range(8), drop_last=drop, **options) for drop in (False, True))
    assert "solved" in repr(check("07-1", list(padded), list(cut)))


@pytest.fixture
def launches(monkeypatch):
    """Let a launch return `found`."""
    return lambda found: monkeypatch.setattr(lesson_07, "launched", lambda *args, **options: found)


@pytest.mark.parametrize(
    "total, said",
    [
        (lambda rank, ranks: ranks * (ranks + 1) / 2, "solved"),
        (lambda rank, ranks: 1.0, "no sum over all ranks"),
        (lambda rank, ranks: 2.0, "takes no part"),
        (lambda rank, ranks: None, "a number is expected"),
        (lambda rank, ranks: 3.0, "the total of 3 ranks"),  # written down, not added up
        (
            lambda rank, ranks: ranks * (ranks + 1) / 2 if rank == 0 else 2.0,
            "every one of them",
        ),  # dist.reduce
    ],
)
def test_a_fixed_function_is_judged_by_the_total_of_each_rank(monkeypatch, total, said):
    def launched(function, *args, name, processes):
        found = []
        for rank in range(processes):
            monkeypatch.setenv("RANK", str(rank))
            found.append(function(lambda rank=rank: total(rank, processes), *args[1:]))
        return found[0]

    monkeypatch.setattr(lesson_07, "launched", launched)
    assert said in repr(check("07-2", lambda: 1))


@pytest.mark.parametrize(
    "rows, smallest, steps, said",
    [
        (1408, 690, 21, "solved"),
        (2816, 1408, 44, "all row groups"),
        (1408, 1408, 44, "the sum of both shares"),
        (1408, 718, 22, "the largest of two"),
        (1408, 690, 44, "all rows together"),
        (1408, 690, 22, "that is not it"),
    ],
)
def test_training_from_row_groups(launches, rows, smallest, steps, said):
    launches({"rows": rows, "smallest": smallest, "steps": steps})
    assert said in repr(check("07-3", lambda folder, epochs: 1, "folder", 1408))


def test_the_last_line_of_the_training_stays(launches):
    launches(None)
    assert "leave its last line" in repr(check("07-3", lambda folder, epochs: 1, "folder", 1408))


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
