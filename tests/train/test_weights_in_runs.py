"""Runs of Ray Train whose ranks hold different weights, and what Ray changes in their reports."""

import math
import tempfile

import pytest
import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint, Result, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader, TensorDataset

from labkit.panel.reporters import NullReporter
from labkit.train import TrainPanel

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/worker/", "labkit/panel/")]

LAB = {"nodes": 1, "cpus_per_node": 4}


def trained_by_ray(config):
    """The loop of a reader, on two ranks: what `config` says is wrong."""
    torch.manual_seed(0)
    model, lr = torch.nn.Linear(4, 1), 0.1
    if config["wraps"]:
        model = ray.train.torch.prepare_model(model)
        lr *= 1 + ray.train.get_context().get_world_rank()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    rows = ray.train.torch.prepare_data_loader(DataLoader(TensorDataset(torch.rand(64, 4)), batch_size=8))
    for epoch in range(3):
        for (x,) in rows:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        ray.train.report({"epoch": epoch})


@pytest.mark.parametrize("wraps", [False, True])
def test_a_run_of_ray_train(lab, home, wraps):
    panel = TrainPanel("weights", reporter=NullReporter())
    trainer = TorchTrainer(
        trained_by_ray,
        train_loop_config={"wraps": wraps, "epochs": 3},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(home / "runs")),
    )
    panel.fit(trainer)
    (note,) = panel.view(panel.state, panel.state.ended_at).notes
    assert "the learning rate" in note if wraps else "Wrap the model before" in note


def reports(config):
    for epoch in range(2):
        with tempfile.TemporaryDirectory() as folder:
            metrics = {"epoch": epoch, "loss": math.nan, "shape": (1, 2)}
            checkpoint = Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint, checkpoint_dir_name="same")


def test_what_ray_changes_in_a_report_is_said(lab, home):
    panel = TrainPanel("reports", reporter=NullReporter())
    where = RunConfig(storage_path=str(home / "runs"), name="reports")
    result = panel.fit(TorchTrainer(reports, scaling_config=ScalingConfig(num_workers=1), run_config=where))
    assert math.isnan(result.metrics["loss"])
    read = Result.from_path(str(home / "runs" / "reports")).metrics
    assert read["loss"] is None and read["shape"] == [1, 2]
    notes = "\n".join(panel.view(panel.state, panel.state.ended_at).notes)
    assert "'loss' is nan in line" in notes and "'shape' is tuple in line" in notes
    assert "checkpoint_dir_name='same'" in notes and "of test_weights_in_runs.py" in notes
