"""The exercises of lesson 07: what is said of a mistake."""

import math

import pytest
import torch

from labkit.exercises import check, registry
from verdicts import Runs, replaced, verdicts

lesson_07 = registry.load("07")


def test_the_answer_is_what_pytorch_does():
    from torch.utils.data import DistributedSampler

    options = {"num_replicas": 3, "rank": 2, "shuffle": False}
    padded, cut = (DistributedSampler(range(8), drop_last=drop, **options) for drop in (False, True))
    assert "solved" in repr(check("07-1", list(padded), list(cut)))


@pytest.mark.parametrize(
    "total, said",
    [
        (lambda rank, ranks: ranks * (ranks + 1) / 2, "solved"),
        (lambda rank, ranks: torch.tensor(6.0), "solved"),
        (lambda rank, ranks: 1.0, "no sum over all ranks"),
        (lambda rank, ranks: 2.0, "takes no part"),
        (lambda rank, ranks: 3.0, "the total of 3 ranks"),  # written down, not added up
        (lambda rank, ranks: 2.0 if rank else ranks * (ranks + 1) / 2, "every one of them"),  # dist.reduce
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


def trained(rows, smallest, steps):
    return Runs({"rows": rows, "smallest": smallest, "steps": steps})


def to_pay(start_a, rate_a, start_b, rate_b):
    saved = 1 / rate_a - 1 / rate_b
    return (start_b - start_a) / saved if saved > 0 else math.inf


SAID = {
    "07-1": [
        ([2, 5, 0], [2, 5], "solved"),
        ([2, 5], [2, 5], "would wait"),
        ([6, 7], [2, 5], "like cards"),
        ([2, 5, 0], [2, 5, 0], "6 and 7 are left out"),
        ([2, 5, 0], [2], "the answer with drop_last is [2] (a list): that is not it"),
    ],
    "07-3": [
        (trained(1408, 690, 21), "folder", 1408, "solved"),
        (trained(2816, 1408, 44), "folder", 1408, "all row groups"),
        (trained(1408, 1408, 44), "folder", 1408, "the sum of both shares"),
        (trained(1408, 718, 22), "folder", 1408, "the largest of two"),
        (trained(1408, 690, 44), "folder", 1408, "all rows together"),
    ],
    "07-4": [
        (to_pay, "solved"),
        (lambda a, x, b, y: (b - a) * (y - x) if y > x else math.inf, "subtract seconds"),
        (lambda a, x, b, y: (b - a) / (1 / x - 1 / y), "ZeroDivisionError"),
        (lambda a, x, b, y: abs((b - a) / (1 / x - 1 / y)) if x != y else math.inf, "nothing is won back"),
    ],
}


@verdicts(SAID)
def test_what_a_check_says(id, answers, said, monkeypatch):
    monkeypatch.setattr(lesson_07, "launched", replaced)
    assert said in repr(check(id, *answers))
