"""Tests of EXPERIMENT.py, on one batch and without a cluster: ``python -m pytest test_EXPERIMENT.py``."""

import EXPERIMENT as experiment
import pytest
import torch

torch.set_num_threads(1)  # for batches this small, more threads only wait for each other


@pytest.fixture(scope="module")
def data():
    return experiment.load_data()


def test_rows_for_training_and_testing(data):
    for split in ("train", "test"):
        x, y = next(data.batches(split))
        assert len(x) == len(y) > 0


def test_the_model_learns_a_batch_by_heart(data):
    torch.manual_seed(0)
    config = experiment.CONFIG | experiment.facts(data)
    x, y = (torch.tensor(part[:32]) for part in next(data.batches("train")))
    model, batch = experiment.Network(config), {"x": x, "y": y}
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    before = experiment.measure(model, [batch], config)["loss"]
    for _ in range(20):
        optimizer.zero_grad()
        experiment.values(model, batch, config)["loss"].mean().backward()
        optimizer.step()
    assert experiment.measure(model, [batch], config)["loss"] < before


def test_predictions_are_shown(data):
    config = experiment.CONFIG | experiment.facts(data)
    assert len(experiment.predictions(experiment.Network(config), data, config)) > 0
