"""Tests of EXPERIMENT.py, on one batch and without a cluster: ``python -m pytest test_EXPERIMENT.py``."""

import EXPERIMENT as experiment
import pytest
import torch

torch.set_num_threads(1)  # for batches this small, more threads only wait for each other


@pytest.fixture(scope="module")
def data():
    return experiment.load_data()


@pytest.fixture
def batch(data):
    x, y = next(data.batches("train"))
    return {"x": torch.tensor(x[:32]), "y": torch.tensor(y[:32])}


@pytest.fixture
def config(data):
    return experiment.CONFIG | experiment.facts(data)


def test_rows_for_training_and_testing(data):
    for split in ("train", "test"):
        x, y = next(data.batches(split))
        assert len(x) == len(y) > 0


def test_the_model_learns_a_batch_by_heart(batch, config):
    torch.manual_seed(0)
    model = experiment.build_model(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    before = experiment.measure(model, [batch], config)["loss"]
    for _ in range(20):
        outputs = model(experiment.prepared(batch["x"]))
        loss = experiment.values(outputs, batch["y"], config)["loss"].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert experiment.measure(model, [batch], config)["loss"] < before


def test_all_rows_count_alike(batch, config):
    torch.manual_seed(0)
    model = experiment.build_model(config)
    parts = [{name: column[some] for name, column in batch.items()} for some in (slice(5), slice(5, None))]
    whole, split = (experiment.measure(model, batches, config) for batches in ([batch], parts))
    assert split == pytest.approx(whole, rel=1e-4)
