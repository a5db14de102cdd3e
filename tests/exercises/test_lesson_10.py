"""The exercises of lesson 10: what is said of a mistake. The last two run on a cluster."""

import numpy as np
import pytest

from labkit.exercises import check
from verdicts import changes, solution, verdicts

pytestmark = [pytest.mark.usefixtures("lab"), pytest.mark.filterwarnings("ignore:Using a target size")]


def by_fruit(fruits, share, seed):
    different = np.unique(fruits)
    return np.isin(fruits, different[np.random.default_rng(seed).random(len(different)) < share])


def by_photograph(fruits, share, seed):
    return np.random.default_rng(seed).random(len(fruits)) < share


def error(a, b, ddof=1, root=0.5):
    return (np.var(a, ddof=ddof) / len(a) + np.var(b, ddof=ddof) / len(b)) ** root


SAID = {
    "10-1": [
        (by_fruit, "solved"),
        (by_photograph, "of 400 fruits have photographs on both sides"),
        (lambda fruits, share, seed: by_fruit(fruits, share, 7), "the seed is not used"),
        (lambda fruits, share, seed: by_fruit(fruits, share, None), "a different division"),
        (lambda fruits, share, seed: by_fruit(fruits, 1 - share, seed), "are for testing, and the share"),
        (lambda fruits, share, seed: by_fruit(fruits, 0.25, seed), "and the share is 50%"),
        (lambda *given: np.flatnonzero(by_fruit(*given)), "has the shape"),
        (lambda *given: by_fruit(*given).astype(int), "True or False"),
    ],
    "10-2": [
        (lambda a, b: (np.mean(b) - np.mean(a), error(a, b)), "solved"),
        (lambda a, b: (np.mean(a) - np.mean(b), error(a, b)), "that is a minus b"),
        (lambda a, b: (np.mean(b) - np.mean(a), error(a, b, ddof=0)), "ddof=1"),
        (lambda a, b: (np.mean(b) - np.mean(a), error(a, b, root=1)), "take the root"),
        (lambda a, b: (np.mean(b) - np.mean(a), np.hypot(np.std(a, ddof=1), np.std(b, ddof=1))), "the more"),
    ],
}


@verdicts(SAID)
def test_what_a_check_says(id, answers, said):
    assert said in repr(check(id, *answers))


SEED = '    torch.manual_seed(config["seed"])\n'
CHANGED = {
    "10-3": [
        ({'order="min"': 'order="max"'}, "that doesn't keep those with the lowest rmse"),
        ({"num_to_keep=2": "num_to_keep=None"}, "two should be kept"),
        ({".squeeze(1)": ""}, "does `model(x)`, [n, 1], meet y, [n]?"),
        ({".sqrt()": ""}, "mean of the squares, without its root? `hint"),
        ({"my_loop.resume(model, optimizer)": "0"}, "it starts from epoch 0"),
        ({'{"rmse": rmse}': '{"loss": rmse}'}, "the metric rmse is None"),
        (
            {"my_loop.save(model, optimizer, epoch, {": 'ray.train.report({"epoch": epoch, '},
            "without a checkpoint",
        ),
        ({"optimizer, epoch, {": "optimizer, epoch + 1, {"}, "counted from 0"),
    ],
    "10-4": [
        ({SEED: "", "    optimizer =": f"{SEED}    optimizer ="}, "what is drawn before it is set?"),
        ({SEED: "    torch.seed()\n"}, "what is drawn before it is set?"),
        ({SEED: "    torch.manual_seed(0)\n"}, "the seed of the config is not used"),
        ({"    x, y = x[rank::workers], y[rank::workers]\n": ""}, "each of two trains on its own half"),
        ({'    x, y = config["test"]\n': ""}, "comes from the training rows"),
    ],
}


@changes(CHANGED)
def test_what_a_check_says_of_a_run(id, change, said):
    assert said in repr(check(id, *solution(id, change, store=None)))
