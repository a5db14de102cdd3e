"""The exercises of lesson 10: what is said of a mistake. The last two run on a cluster."""

import numpy as np
import pytest

from verdicts import checks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("course/exercises/", "lessons/checks/"),
    pytest.mark.usefixtures("lab"),
    pytest.mark.filterwarnings("ignore:Using a target size"),
]


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


def pooled(a, b):
    spread = (np.var(a) * len(a) + np.var(b) * len(b)) / (len(a) + len(b) - 2)
    return np.mean(b) - np.mean(a), (spread / len(a) + spread / len(b)) ** 0.5


GAP, ERROR = "np.mean(b) - np.mean(a)", "(error_a**2 + error_b**2) ** 0.5"


ANSWERS = {
    "10-1": [
        (
            {"np.isin(pieces, chosen)": "numbers.random(len(pieces)) < share"},
            "of 400 pieces have photographs on both sides",
        ),
        ({"default_rng(seed)": "default_rng(7)"}, "the seed is not used"),
        ({"default_rng(seed)": "default_rng()"}, "a different division"),
        ({"< share": "< 1 - share"}, "are for testing, and the share"),
        ({"< share": "< 0.25"}, "and the share is 50%"),
        ({"return np.isin": "return np.flatnonzero(np.isin", "chosen)": "chosen))"}, "has the shape"),
        ({"return ": "return 1 * "}, "True or False"),
    ],
    "10-2": [
        ({GAP: f"-({GAP})"}, "that is a minus b"),
        ({GAP: f"abs({GAP})"}, "the sign is lost"),
        ({f"{GAP}, {ERROR}": f"{ERROR}, {GAP}"}, "the difference comes first"),
        ({ERROR: f"2 * {ERROR}"}, "those are two standard errors"),
        ({ERROR: f"{ERROR} / 2**0.5"}, "added, not averaged"),
        ({" + error_b**2": ""}, "b's is uncertain, too"),
        ([pooled], "use each arm's own"),
        ({", ddof=1": ""}, "ddof=1"),
        ({ERROR: "error_a**2 + error_b**2"}, "take the root"),
        ({" / len(a) ** 0.5": "", " / len(b) ** 0.5": ""}, "the more"),
    ],
    "10-3": [
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


test_what_a_check_says = checks(ANSWERS, store=None)
