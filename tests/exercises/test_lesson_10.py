"""The exercises of lesson 10: what is said of a mistake. The last two run on a cluster."""

import sys
import tempfile

import numpy as np
import pytest
import ray.train
import torch
from ray import cloudpickle
from ray.train import CheckpointConfig
from ray.train.torch import prepare_data_loader, prepare_model
from torch.nn import functional as F

from labkit.exercises import check
from verdicts import verdicts

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this module
pytestmark = [pytest.mark.usefixtures("lab"), pytest.mark.filterwarnings("ignore:Using a target size")]


def by_fruit(fruits, share, seed):
    different = np.unique(fruits)
    return np.isin(fruits, different[np.random.default_rng(seed).random(len(different)) < share])


def by_photograph(fruits, share, seed):
    return np.random.default_rng(seed).random(len(fruits)) < share


def error(a, b, ddof=1, root=0.5):
    return (np.var(a, ddof=ddof) / len(a) + np.var(b, ddof=ddof) / len(b)) ** root


def table(shaped=True, resumes=True, name="rmse", saves=True, from_one=0, root=torch.sqrt):
    def train_table(config):
        x_valid, y_valid = config["valid"]
        flat = (lambda answers: answers.squeeze(1)) if shaped else (lambda answers: answers)
        model = prepare_model(torch.nn.Linear(x_valid.shape[1], 1))
        plain, first, checkpoint = getattr(model, "module", model), 0, ray.train.get_checkpoint()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        loader = prepare_data_loader(torch.utils.data.DataLoader(config["train"], batch_size=16))
        if checkpoint and resumes:
            with checkpoint.as_directory() as folder:
                state = torch.load(f"{folder}/state.pt", weights_only=True)
            plain.load_state_dict(state["model"])
            first = state["epoch"] + 1
        for epoch in range(first, config["epochs"]):
            for x, y in loader:
                optimizer.zero_grad()
                F.mse_loss(flat(model(x)), y).backward()
                optimizer.step()
            with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
                metrics = {
                    "epoch": epoch + from_one,
                    name: root(F.mse_loss(flat(plain(x_valid)), y_valid)).item(),
                }
                torch.save({"model": plain.state_dict(), "epoch": epoch}, f"{folder}/state.pt")
                saved = saves and ray.train.get_context().get_world_rank() == 0
                checkpoint = ray.train.Checkpoint.from_directory(folder) if saved else None
                ray.train.report(metrics, checkpoint=checkpoint)

    return train_table


def keep(attribute="rmse", order="min", number=2):
    return CheckpointConfig(number, checkpoint_score_attribute=attribute, checkpoint_score_order=order)


def text(seed=lambda config: torch.manual_seed(config["seed"]), shared=True, tests=True, late=False):
    def train_text(config):
        context = ray.train.get_context()
        mine = slice(context.get_world_rank(), None, context.get_world_size()) if shared else slice(None)
        x, y = (column[mine] for column in config["train"])
        late or seed(config)
        model = prepare_model(torch.nn.Sequential(torch.nn.Embedding(256, 32), torch.nn.Linear(32, 256)))
        seed(config)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(config["epochs"]):
            for rows in torch.randperm(len(x)).split(16):
                loss = F.cross_entropy(model(x[rows]).transpose(1, 2), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        x, y = config["test"] if tests else (x, y)
        with torch.no_grad():
            return F.cross_entropy(model(x).transpose(1, 2), y).exp().item()

    return train_text


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
    "10-3": [
        (table(), keep(order="max"), "that doesn't keep those with the lowest rmse"),
        (table(), keep(number=None), "two should be kept"),
        (table(shaped=False), keep(), "does `model(x)`, [n, 1], meet y, [n]?"),
        (table(root=torch.abs), keep(), "mean of the squares, without its root? `hint"),
        (table(resumes=False), keep(), "it starts from epoch 0"),
        (table(name="loss"), keep(), "the metric rmse is None"),
        (table(saves=False), keep(), "without a checkpoint"),
        (table(from_one=1), keep(), "counted from 0"),
    ],
    "10-4": [
        (text(late=True), "what is drawn before it is set?"),
        (text(seed=lambda config: torch.seed()), "what is drawn before it is set?"),
        (text(seed=lambda config: torch.manual_seed(0)), "the seed of the config is not used"),
        (text(shared=False), "each of two trains on its own half"),
        (text(tests=False), "comes from the training rows"),
    ],
}


@verdicts(SAID)
def test_what_a_check_says(id, answers, said):
    assert said in repr(check(id, *answers))
