"""The exercises of lesson 07: what is said of a mistake."""

from collections import Counter

import pytest
import torch

from course.exercises import check, registry
from verdicts import Runs, checks, replaced

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


ANSWERS = {
    "07-1": [
        ([[8, 9], [8, 9]], "these are dealt once"),
        ([[0], [8, 9]], "not one"),
        ([[], [8, 9]], "would wait"),
        ([[0, 1], [0, 1]], "with it no row does"),
        ([[0, 1], [9]], "make eight"),
        ([[0, 1], [7]], "the list of rows that are left out is [7] (a list): that is not it"),
    ],
    "07-3": [
        ([trained(2816, 1408, 44), "folder", 1408], "all files"),
        ([trained(1408, 1408, 44), "folder", 1408], "the sum of both shares"),
        ([trained(1408, 718, 22), "folder", 1408], "the largest of two"),
        ([trained(1408, 690, 44), "folder", 1408], "all rows together"),
    ],
    "07-4": [
        ({"/ (1 / rate_a - 1 / rate_b)": "* (rate_b - rate_a)"}, "subtract seconds"),
        ({"rate_b <= rate_a": "False"}, "ZeroDivisionError"),
        ({"rate_b <= rate_a": "rate_b == rate_a"}, "nothing is won back"),
    ],
}


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    monkeypatch.setattr(lesson_07, "launched", replaced)


test_what_a_check_says = checks(ANSWERS)
