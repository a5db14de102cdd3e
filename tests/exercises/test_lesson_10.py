"""The exercises of lesson 10: what is said of a mistake. The last two run on a cluster."""

import numpy as np
import pytest

from course.exercises import check
from verdicts import cases, solution

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("course/exercises/", "lessons/checks/"),
    pytest.mark.usefixtures("lab"),
    pytest.mark.filterwarnings("ignore:Using a target size"),
]


def by_fruit(fruits, share, seed):
    different = np.unique(fruits)
    return np.isin(fruits, different[np.random.default_rng(seed).random(len(different)) < share])


def by_photograph(fruits, share, seed):
    return np.random.default_rng(seed).random(len(fruits)) < share


def gap(a, b):
    return np.mean(b) - np.mean(a)


def error(a, b, ddof=1, root=0.5):
    return (np.var(a, ddof=ddof) / len(a) + np.var(b, ddof=ddof) / len(b)) ** root


def pooled(a, b):
    spread = (np.var(a) * len(a) + np.var(b) * len(b)) / (len(a) + len(b) - 2)
    return (spread / len(a) + spread / len(b)) ** 0.5


ANSWERS = {
    "10-1": [
        ([by_fruit], "solved"),
        ([by_photograph], "of 400 pieces have photographs on both sides"),
        ([lambda fruits, share, seed: by_fruit(fruits, share, 7)], "the seed is not used"),
        ([lambda fruits, share, seed: by_fruit(fruits, share, None)], "a different division"),
        ([lambda fruits, share, seed: by_fruit(fruits, 1 - share, seed)], "are for testing, and the share"),
        ([lambda fruits, share, seed: by_fruit(fruits, 0.25, seed)], "and the share is 50%"),
        ([lambda *arrays: np.flatnonzero(by_fruit(*arrays))], "has the shape"),
        ([lambda *arrays: by_fruit(*arrays).astype(int)], "True or False"),
    ],
    "10-2": [
        ([lambda a, b: (gap(a, b), error(a, b))], "solved"),
        ([lambda a, b: (-gap(a, b), error(a, b))], "that is a minus b"),
        ([lambda a, b: (abs(gap(a, b)), error(a, b))], "the sign is lost"),
        ([lambda a, b: (error(a, b), gap(a, b))], "the difference comes first"),
        ([lambda a, b: (gap(a, b), 2 * error(a, b))], "those are two standard errors"),
        ([lambda a, b: (gap(a, b), error(a, b) / 2**0.5)], "added, not averaged"),
        ([lambda a, b: (gap(a, b), error(a, [0, 0]))], "b's is uncertain, too"),
        ([lambda a, b: (gap(a, b), pooled(a, b))], "use each arm's own"),
        ([lambda a, b: (gap(a, b), error(a, b, ddof=0))], "ddof=1"),
        ([lambda a, b: (gap(a, b), error(a, b, root=1))], "take the root"),
        ([lambda a, b: (gap(a, b), np.hypot(np.std(a, ddof=1), np.std(b, ddof=1)))], "the more"),
    ],
}


@pytest.mark.parametrize(("exercise", "answers", "verdict"), cases(ANSWERS))
def test_what_a_check_says(exercise, answers, verdict):
    assert verdict in repr(check(exercise, *answers))


MODEL, LOADER = "prepare_model(torch.nn.Linear(x_valid.shape[1], 1))", "prepare_data_loader(DataLoader("
RMSE = "torch.nn.functional.mse_loss(plain(x_valid).squeeze(1), y_valid).sqrt().item()"
SAVE = "my_loop.save(model, optimizer, epoch, {"
RESUME = "my_loop.resume(model, optimizer)"
NARROW, OTHER = "prepare_model(torch.nn.Linear(1, 1))", "torch.nn.Linear(3, 1)"
ONLY_EPOCH = f"my_loop.resume({OTHER}, torch.optim.SGD({OTHER}.parameters(), lr=1))"
TWICE = 'torch.utils.data.Subset(config["train"], range(ray.train.get_context().get_world_rank(), 320, 2))'
SEED = '    torch.manual_seed(config["seed"])\n'
MINE = "    x, y = x[rank::workers], y[rank::workers]\n"
TEST = '    x, y = config["test"]\n'
LOSS = "cross_entropy(model(x).transpose(1, 2), y)"
WRAPPED = "prepare_model(torch.nn.Sequential(torch.nn.Embedding(256, 32), torch.nn.Linear(32, 256)))"


CHANGED = {
    "10-3": [
        ({}, "solved"),
        ({"batch_size=16": "batch_size=10", "lr=0.05": "lr=0.03"}, "solved"),
        ({'order="min"': 'order="max"'}, "that doesn't keep those with the lowest rmse"),
        ({"num_to_keep=2": "num_to_keep=None"}, "two should be kept"),
        ({".squeeze(1)": ""}, "does `model(x)`, [n, 1], meet y, [n]?"),
        ({".sqrt()": ""}, "mean of the squares, without its root"),
        ({"mse_loss(plain": "l1_loss(plain", ".sqrt()": ""}, "that is the mean absolute error"),
        ({RMSE: "loss.sqrt().item()"}, "of which rows, and which error"),
        ({MODEL: NARROW, "(x)": "(x[:, :1])", "(x_valid)": "(x_valid[:, :1])"}, "trains no `torch.nn.Linear"),
        ({RESUME: "0"}, "it starts from epoch 0"),
        ({RESUME: ONLY_EPOCH}, "but with new weights"),
        ({MODEL: "torch.nn.Linear(x_valid.shape[1], 1)"}, "which call averages the gradients?"),
        ({LOADER: "(DataLoader("}, "which call gives each its part?"),
        ({'DataLoader(config["train"]': f"DataLoader({TWICE}"}, "are they divided twice?"),
        ({'{"rmse": rmse}': '{"loss": rmse}'}, "the metric rmse is None"),
        ({SAVE: 'ray.train.report({"epoch": epoch, '}, "without a checkpoint"),
        ({"optimizer, epoch, {": "optimizer, epoch + 1, {"}, "counted from 0"),
    ],
    "10-4": [
        ({}, "solved"),
        ({"split(16)": "split(8)"}, "solved"),
        ({"split(16)": "split(32)"}, "solved"),
        ({SEED: "", "    optimizer =": f"{SEED}    optimizer ="}, "what is drawn before it is set?"),
        ({SEED: "    torch.manual_seed(0)\n"}, "the seed of the config is not used"),
        ({MINE: ""}, "both ranks trained on all 96 rows"),
        ({MINE: MINE.replace("rank", "0")}, "rank 1 trained on rows 0, 2, 4, …, and those are rank 0's"),
        (
            {MINE: "    x, y = x[40 * rank :][:56], y[40 * rank :][:56]\n"},
            "both ranks trained on rows 40, 41,",
        ),
        ({MINE: MINE.replace("workers]", "4]")}, "no rank trained on rows 2, 3, 6, …"),
        ({MINE: "    x, y = x[48 * rank :][:48], y[48 * rank :][:48]\n"}, "0, 1, 2, …: every second row"),
        ({"range(config": "range(2 * config"}, "rank 0 trained 12 times on row"),
        ({WRAPPED: WRAPPED.removeprefix("prepare_model")}, "the ranks have different weights"),
        ({TEST: '    x, y = config["train"]\n'}, "that is of the training rows"),
        ({f"        return {LOSS}": "        return loss"}, "is it of all of them, after the last epoch?"),
        ({f"{LOSS}.exp()": LOSS}, "that is the loss"),
        ({f"{LOSS}.exp()": LOSS[:-1] + ', reduction="none").exp().mean()'}, "average the losses first"),
    ],
}


@pytest.mark.parametrize(("exercise", "change", "verdict"), cases(CHANGED))
def test_what_a_check_says_of_a_run(exercise, change, verdict):
    assert verdict in repr(check(exercise, *solution(exercise, change, store=None)))
