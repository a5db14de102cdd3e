"""Checkpoints that are validated during the training: the ways in which a validation may end."""

import time
from pathlib import Path

import pytest
import ray
import ray.train
import torch
from loops import checkpoint_of, first_epoch, trainer_of
from ray.train import (
    CheckpointUploadMode,
    ValidationConfig,
    ValidationTaskConfig,
)

from labkit import runs
from labkit.train import reported_checkpoints

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("labkit/local/forkserver/", "labkit/panel/", "labkit/worker/", "labkit/train/"),
    pytest.mark.fault,
]

LAB = {"cpus_per_node": 4}


def loop(config):
    """Epochs of a few steps; what each epoch's validation is to do comes with the configuration."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(first_epoch(), config["epochs"]):
        for x in torch.utils.data.DataLoader(torch.ones(4, 1)):
            time.sleep(0.1)
            model(x).mean().backward()
            optimizer.step()
        checkpoint, how = checkpoint_of(epoch), config["how"].get(epoch, "well")
        ray.train.report(
            {"epoch": epoch, "loss": 1 / (epoch + 1), "both": "training"},
            checkpoint=checkpoint,
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            # Ray refuses one without a checkpoint.
            validation=checkpoint is not None
            and ValidationTaskConfig(fn_kwargs={"how": how}, timeout_s=20 if how == "hang" else None),
        )
    checkpoints = ray.train.get_all_reported_checkpoints(
        consistency_mode=ray.train.CheckpointConsistencyMode.COMMITTED
    )
    config["reported"].write_text(" ".join(checkpoint.status.value for checkpoint in checkpoints))


def validate(checkpoint, how="well"):
    with checkpoint.as_directory() as folder:
        epoch = int(Path(folder, "epoch").read_text())
    if how == "raise":
        raise ValueError("the labels are <gone>")
    if how == "text":
        return "fine"
    time.sleep(1000 if how == "hang" else 0)
    return {"score": -abs(epoch - 1), "both": "validation"}


def test_one_that_raises_and_one_that_hangs_disturb_nobody(lab, panel, tmp_path):
    """Statuses in the panel, in the result's store and in the worker; the others keep their metrics."""
    how, log = {1: "raise", 2: "hang", 4: "text"}, tmp_path / "seen"
    options = {"validation_config": ValidationConfig(validate)}
    result = panel.fit(trainer_of(loop, options=options, epochs=6, how=how, reported=log))
    assert panel.state.status == "finished"
    seen = panel.state.checkpoints
    statuses = ["validated", "failed", "timed out", "validated", "failed", "validated"]
    assert [checkpoint.label for checkpoint in seen] == [f"epoch {number}" for number in range(1, 7)]
    assert [checkpoint.status for checkpoint in seen] == statuses
    assert [entry["status"] for entry in runs.latest("run").extra["checkpoints"]] == statuses
    assert seen[1].reason == "ValueError: the labels are <gone>"
    assert "a dict of metrics is wanted" in seen[4].reason
    assert seen[3].late == {"score": -2, "both": "validation"}
    # The same key in both: the validated one wins, and where there is none the other stays.
    kept = {metrics["epoch"]: metrics for _, metrics in result.best_checkpoints}
    assert [kept[epoch]["both"] for epoch in range(6)] == [
        "validation", "training", "training", "validation", "training", "validation",
    ]  # fmt: skip
    of_ray = {"VALIDATED": "validated", "VALIDATION_FAILED": "failed", "VALIDATION_TIMEOUT": "timed out"}
    reported = reported_checkpoints(result.path, result.filesystem)
    assert [of_ray[checkpoint.status.value] for checkpoint in reported] == statuses
    # The best by the validated metric is not the last one.
    assert result.get_best_checkpoint("score", "max").path == reported[0].checkpoint.path
    assert len(log.read_text().split()) == 6  # the loop was over before its validations were
    assert "PENDING_VALIDATION" in log.read_text()
    # Each epoch and each validation has its place on the time axis, and an end.
    spans = panel.state.timeline(time.time())
    trained, validated = ([s for s in spans if s.row == row] for row in ("training", "validation"))
    assert [s.label for s in trained] == [s.label for s in validated] == list("123456")
    # The training did not wait: its last epoch began before the validation that hung was given up.
    assert trained[-1].begin < validated[2].end
