"""The exercises of lesson 09: what is said of a likely mistake."""

import statistics
import sys

import pytest
import ray.train
import torch
from ray import cloudpickle
from ray.train import ScalingConfig

from labkit.exercises import check, registry
from verdicts import Runs, verdicts

lesson_09 = registry.load("09")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this module


def measures(center=statistics.median, largest=True, solve=lambda alpha, beta, n: (alpha, beta)):
    """An answer to 09-1, which runs on a cluster."""

    def alpha_beta(config):
        n, found = ray.train.get_context().get_world_size(), []
        for megabytes in (1, 16):
            found.append(center([config["exchange"](megabytes) for _ in range(12)]))
        found = torch.tensor(found, dtype=torch.float64)
        if largest:
            torch.distributed.all_reduce(found, op=torch.distributed.ReduceOp.MAX)
        small, large = found.tolist()
        beta = (large - small) / 15 * n / (2 * (n - 1))
        return solve(small / (2 * (n - 1)) - beta / n, beta, n)

    return alpha_beta


def workers(count, **resources):
    return ScalingConfig(num_workers=count, resources_per_worker=resources or None)


def in_turn(answer, configs, name):
    """In place of a run on the engine: the pairs of the answer, one for each config."""
    return (next(answer.left) for _ in configs)


def both(*values):
    """Pairs in which both ranks return the same value."""
    return Runs(*[[value, value] for value in values])


SAID = {
    "09-5": [
        (lambda workers, cores: max(1, workers / cores), "solved"),
        (lambda workers, cores: max(1, workers - cores), "three workers share two cores"),
        (lambda workers, cores: min(1, cores / workers), "core's share"),
        (lambda workers, cores: workers / cores, "faster than one core"),
        (lambda workers, cores: workers - cores + 0.5 if workers > cores else 1, "that is not it"),
    ],
    "09-2": [
        (both(3 * 33_000.0, 3 * 32_000.0), "solved"),
        (both(3 * 32_000.0, 3 * 33_000.0), "solved"),
        (both(3 * 32_000.0, 3 * 32_000.0), "processed 64 rows in each step, of 65"),
        (both(3 * 33_000.0, 3 * 33_000.0), "processed 66 rows in each step, of 65"),
        (both(3 * 65_000.0, 3 * 65_000.0), "a worker processed all 65 rows"),
        (both(3 * 65_000.0, 3 * 65.0), "come from rank 0"),
        (both(3 * 33_000.0, 3 * 33.0), "come from rank 0"),
        (Runs([3 * 33_000.0, 33.0]), "rank 0 returns 99000, and rank 1 33: both"),
        (both(3 * 33_032.0, 3 * 32_033.0), "33.032 rows of the slow rank 0, then 32.033"),  # both ranks' sum
    ],
    "09-3": [
        (both(1, 0, 0, 1), "solved"),
        (both(1, 0, 1), "it returns 1, and rank 0 is slow"),  # of whole steps, which take both equally long
        (both(1, 1), "it returns 1, and rank 0 is slow"),
        (Runs([1, 0]), "rank 0 returns 1, and rank 1 0"),
        (both(0, 0), "it returns 0, and rank 1 is slow"),
    ],
    "09-4": [
        (workers(12, CPU=3), "solved"),
        (workers(16, CPU=3), "on one node"),
        (workers(13, CPU=3), "and the head has some, too"),
        (workers(10, CPU=3), "the head has CPUs, too"),
        (workers(12), "resources_per_worker"),
    ],
}


@verdicts(SAID)
def test_what_a_check_says(id, answers, said, monkeypatch):
    monkeypatch.setattr(lesson_09, "_of_both", in_turn)
    assert said in repr(check(id, *answers))


ON_A_CLUSTER = {
    "09-1": [
        (measures(), "solved"),
        (measures(statistics.mean), "do the first exchange and the slow ones"),
        (measures(lambda seconds: seconds[0]), "do the first exchange and the slow ones"),
        (measures(largest=False), "the ranks return different values"),
        (measures(solve=lambda alpha, beta, n: (beta, alpha)), "return alpha first"),
        (measures(solve=lambda alpha, beta, n: alpha), "a tuple (alpha, beta) is expected"),
        (measures(solve=lambda alpha, beta, n: (alpha * 4, beta)), "for all 4 messages together"),
        (measures(solve=lambda alpha, beta, n: (alpha, beta * 4 / n)), "for all 4 messages together"),
        (measures(solve=lambda alpha, beta, n: (alpha, beta / n)), "1/n of the size"),
        (measures(solve=lambda alpha, beta, n: (alpha + beta / n, beta)), "sends a megabyte, too"),
    ],
}


@pytest.mark.usefixtures("lab")
@verdicts(ON_A_CLUSTER)
def test_what_a_check_says_of_a_run(id, answers, said):
    assert said in repr(check(id, *answers))
