"""The exercises of lesson 07: what is said of a mistake."""

import math
from collections import Counter

import pytest
import torch

from course.exercises import check, registry
from verdicts import Runs, cases, replaced

lesson_07 = registry.load("07")


def test_the_answer_is_what_pytorch_does():
    def dealt(**options):
        ranks = [
            torch.utils.data.DistributedSampler(range(10), 4, rank, shuffle=False, **options)
            for rank in range(4)
        ]
        return Counter(row for rank in ranks for row in rank)

    padded, cut = dealt(), dealt(drop_last=True)
    twice = [row for row in range(10) if padded[row] == 2]
    assert "solved" in repr(check("07-1", twice, [row for row in range(10) if not cut[row]]))


TOTALS = [
    (lambda rank, ranks: ranks * (ranks + 1) / 2, "solved"),
    (lambda rank, ranks: torch.tensor(6.0), "solved"),
    (lambda rank, ranks: 1.0, "no sum over all ranks"),
    (lambda rank, ranks: 2.0, "takes no part"),
    (lambda rank, ranks: 3.0, "the total of 3 ranks"),
    (lambda rank, ranks: 2.0 if rank else ranks * (ranks + 1) / 2, "every one of them"),
]


@pytest.mark.parametrize("total, verdict", TOTALS)
def test_a_fixed_function_is_judged_by_the_total_of_each_rank(monkeypatch, total, verdict):
    def launched(function, *args, name, processes):
        results = []
        for rank in range(processes):
            monkeypatch.setenv("RANK", str(rank))
            results.append(function(lambda rank=rank: total(rank, processes), *args[1:]))
        return results[0]

    monkeypatch.setattr(lesson_07, "launched", launched)
    assert verdict in repr(check("07-2", lambda: 1))


def trained(rows, smallest, steps):
    return Runs({"rows": rows, "smallest": smallest, "steps": steps})


def to_pay(start_a, rate_a, start_b, rate_b):
    saved = 1 / rate_a - 1 / rate_b
    return (start_b - start_a) / saved if saved > 0 else math.inf


ANSWERS = {
    "07-1": [
        ([[0, 1], [8, 9]], "solved"),
        ([[8, 9], [8, 9]], "these are dealt once"),
        ([[0], [8, 9]], "not one"),
        ([[], [8, 9]], "would wait"),
        ([[0, 1], [0, 1]], "with it no row does"),
        ([[0, 1], [9]], "make eight"),
        ([[0, 1], [7]], "the list of rows that are left out is [7] (a list): that is not it"),
    ],
    "07-3": [
        ([trained(1408, 690, 21), "folder", 1408], "solved"),
        ([trained(2816, 1408, 44), "folder", 1408], "all files"),
        ([trained(1408, 1408, 44), "folder", 1408], "the sum of both shares"),
        ([trained(1408, 718, 22), "folder", 1408], "the largest of two"),
        ([trained(1408, 690, 44), "folder", 1408], "all rows together"),
    ],
    "07-4": [
        ([to_pay], "solved"),
        ([lambda a, x, b, y: (b - a) * (y - x) if y > x else math.inf], "subtract seconds"),
        ([lambda a, x, b, y: (b - a) / (1 / x - 1 / y)], "ZeroDivisionError"),
        ([lambda a, x, b, y: abs((b - a) / (1 / x - 1 / y)) if x != y else math.inf], "nothing is won back"),
    ],
}


@pytest.mark.parametrize(("exercise", "answers", "verdict"), cases(ANSWERS))
def test_what_a_check_says(exercise, answers, verdict, monkeypatch):
    monkeypatch.setattr(lesson_07, "launched", replaced)
    assert verdict in repr(check(exercise, *answers))
