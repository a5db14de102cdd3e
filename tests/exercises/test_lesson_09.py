"""The exercises of lesson 09: what is said of a likely mistake."""

import pytest
from ray.train import ScalingConfig

from course import slow_runs
from course.exercises import registry
from verdicts import Runs, checks

pytestmark = [pytest.mark.slow, pytest.mark.covers("course/exercises/", "lessons/checks/")]


def workers(count, **resources):
    return ScalingConfig(num_workers=count, resources_per_worker=resources or None)


def in_turn(answer, configs, name):
    """In place of a run on the engine: the pairs of the answer, one for each config."""
    return (next(answer.left) for _ in configs)


def both(*values):
    """Pairs in which both ranks return the same value."""
    return Runs(*[[value, value] for value in values])


def causes(**changed):
    return {case: tuple(known) for case, known in slow_runs.CASES.items()} | changed


ANSWERS = {
    "09-5": [
        ({"workers / cores": "workers - cores"}, "three workers share two cores"),
        ({"max(1, workers / cores)": "min(1, cores / workers)"}, "core's share"),
        ({"max(1, workers / cores)": "workers / cores"}, "faster than one core"),
        ({"workers / cores": "workers - cores + 0.5"}, "that is not it"),
    ],
    "09-2": [
        ([both(3 * 32_000.0, 3 * 33_000.0)], "solved"),
        ([both(3 * 32_000.0, 3 * 32_000.0)], "processed 64 rows in each step, of 65"),
        ([both(3 * 33_000.0, 3 * 33_000.0)], "processed 66 rows in each step, of 65"),
        ([both(3 * 65_000.0, 3 * 65_000.0)], "a worker processed all 65 rows"),
        ([both(3 * 65_000.0, 3 * 65.0)], "come from rank 0"),
        ([Runs([3 * 33_000.0, 33.0])], "rank 0 returns 99000, and rank 1 33: both"),
        # both ranks' sum
        ([both(3 * 33_032.0, 3 * 32_033.0)], "33.032 rows of the slow rank 0, then 32.033"),
    ],
    "09-3": [
        # of whole steps, which take both equally long
        ([both(1, 0, 1)], "it returns 1, and rank 0 is slow"),
        ([Runs([1, 0])], "rank 0 returns 1, and rank 1 0"),
        ([both(0, 0)], "it returns 0, and rank 1 is slow"),
    ],
    "09-6": [
        ([causes(A=["data", 0])], "solved"),
        ([causes(A=("exchange", None))], "run A: only one rank has a long exchange"),
        ([causes(A=("slow rank", 0))], "run A: both ranks compute about equally long"),
        ([causes(B=("data", 1))], "run B: both ranks wait for data about equally long"),
        ([causes(B=("slow rank", 0))], "the cause is right, and the rank isn't: the slow rank waits least"),
        ([causes(C=("exchange", 0))], "run C: the cause is right, and the rank isn't: is one of the two"),
        ([causes(C=("slow rank", 1))], "run C: the strips of both ranks are alike"),
        ([causes(C="exchange")], "run C: a pair such as"),
        ([causes(C=("network", None))], "one of the three causes"),
        ([{"A": ("data", 0)}], "a dict with the keys A, B and C"),
        ([causes(C=...)], "put your answer where"),
    ],
    "09-4": [
        ([workers(16, CPU=3)], "on one node"),
        ([workers(13, CPU=3)], "and the head has some, too"),
        ([workers(10, CPU=3)], "the head has CPUs, too"),
        ([workers(12)], "resources_per_worker"),
    ],
}


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr(registry.load("09"), "_of_both", in_turn)


test_what_a_check_says = pytest.mark.each_change(pytest.mark.usefixtures("engine")(checks(ANSWERS)))


MEDIAN = "statistics.median(seconds)"


CHANGED = {
    "09-1": [
        ({MEDIAN: "statistics.mean(seconds)"}, "do the first exchange and the slow ones"),
        ({"    dist.all_reduce(medians, op=dist.ReduceOp.MAX)\n": ""}, "the ranks return different values"),
        ({"ReduceOp.MAX": "ReduceOp.MIN"}, "that is what rank 0 measured"),
        ({"return alpha, beta": "return beta, alpha"}, "return alpha first"),
        ({"return alpha, beta": "return alpha"}, "a tuple (alpha, beta) is expected"),
        ({"small / rounds - beta * 1 / workers": "small - beta * 4 / 3"}, "all 4 messages together"),
        ({" * workers / rounds": ""}, "all 4 messages together"),
        ({" * workers / rounds": " / rounds"}, "1/n of the size"),
        ({" - beta * 1 / workers": ""}, "sends a megabyte, too"),
    ],
}


test_a_run_that_a_check_starts = pytest.mark.usefixtures("lab")(checks(CHANGED))
