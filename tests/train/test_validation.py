"""Checkpoints that are validated during the training: the ways in which a validation may end."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import ray
import ray.train
from ray import cloudpickle
from ray.train import (
    CheckpointUploadMode,
    ReportedCheckpointStatus,
    RunConfig,
    ScalingConfig,
    ValidationConfig,
    ValidationTaskConfig,
)
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import labs
from labkit import runs
from labkit.errors import LabError
from labkit.panel.reporters import NullReporter
from labkit.panel.tracking.hooks import current
from labkit.train.checkpoints import reported_checkpoints
from labkit.train.panel import TrainPanel

pytestmark = pytest.mark.fault

# The workers cannot import this file: what is in it travels by value, as from a notebook.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

PENDING, VALIDATED, FAILED, TIMED_OUT = (
    ReportedCheckpointStatus.PENDING_VALIDATION,
    ReportedCheckpointStatus.VALIDATED,
    ReportedCheckpointStatus.VALIDATION_FAILED,
    ReportedCheckpointStatus.VALIDATION_TIMEOUT,
)


LAB = {"cpus_per_node": 4}


@pytest.fixture
def panel(home):
    return TrainPanel("run", reporter=NullReporter())


def loop(config):
    """Epochs of a few steps; what each epoch's validation is to do comes with the configuration."""
    again = ray.train.get_checkpoint()
    first = 0
    if again:
        with again.as_directory() as folder:
            first = int(Path(folder, "epoch").read_text()) + 1
    for epoch in range(first, config["epochs"]):
        current().begin_epoch(4)
        for _ in range(4):
            current().step()
            time.sleep(config.get("seconds_per_epoch", 0.4) / 4)
        checkpoint, how = None, config["how"].get(epoch, "well")
        if ray.train.get_context().get_world_rank() == 0:
            folder = tempfile.mkdtemp()
            Path(folder, "epoch").write_text(str(epoch))
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report(
            {"epoch": epoch, "loss": 1 / (epoch + 1), "both": "training"},
            checkpoint=checkpoint,
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            # Ray refuses one without a checkpoint.
            validation=checkpoint is not None
            and ValidationTaskConfig(fn_kwargs={"how": how}, timeout_s=config.get("timeout_s")),
        )
    if log := config.get("reported"):
        found = ray.train.get_all_reported_checkpoints(
            consistency_mode=ray.train.CheckpointConsistencyMode.COMMITTED
        )
        Path(log).write_text(" ".join(one.status.value for one in found))


def validate(checkpoint, how="well"):
    with checkpoint.as_directory() as folder:
        epoch = int(Path(folder, "epoch").read_text())
    if how == "raise":
        raise ValueError("the labels are <gone>")
    if how == "text":
        return "fine"
    if how.startswith("gate "):
        behind_a_gate(epoch, Path(how.removeprefix("gate ")))
    time.sleep(1000 if how == "hang" else 0)
    return {"score": -abs(epoch - 1), "both": "validation"}


def behind_a_gate(epoch, folder):
    """Notes when it begins and ends; all but the first wait until the gate opens."""
    with (folder / "notes").open("a") as notes:
        notes.write(f"begin {epoch}\n")
    while epoch and not (folder / "open").exists():
        time.sleep(0.1)
    with (folder / "notes").open("a") as notes:
        notes.write(f"end {epoch}\n")


def trainer_of(panel, home, *, workers=1, epochs=3, how=None, fn=validate, options=None, name=None, **config):
    return DataParallelTrainer(
        loop,
        train_loop_config={"epochs": epochs, "how": how or {}, **config},
        scaling_config=ScalingConfig(num_workers=workers),
        validation_config=ValidationConfig(fn, ray_remote_kwargs=options),
        run_config=RunConfig(
            name=name or panel.run_id, storage_path=str(home / "runs"), callbacks=[panel.callback()]
        ),
    )


def fit(panel, trainer):
    with panel.watch(trainer):
        return trainer.fit()


def spans_of(panel, row):
    """The bars of one row of the time axis."""
    return [span for span in panel.state.timeline(time.time()) if span.row == row]


def statuses(panel):
    return {checkpoint.label: checkpoint.status for checkpoint in panel.state.checkpoints}


# -- how a validation may end ---------------------------------------------------------------------------


def test_one_that_raises_and_one_that_hangs_disturb_nobody(lab, home, panel, tmp_path):
    """Statuses in the panel, in the result's store and in the worker; the others keep their metrics."""
    how, log = {1: "raise", 2: "hang", 4: "text"}, tmp_path / "seen"
    trainer = trainer_of(panel, home, workers=2, epochs=6, how=how, timeout_s=5, reported=log)
    result = fit(panel, trainer)
    assert panel.state.status == "finished"
    assert statuses(panel) == {
        "epoch 1": "validated", "epoch 2": "failed", "epoch 3": "timed out", "epoch 4": "validated",
        "epoch 5": "failed", "epoch 6": "validated",
    }  # fmt: skip
    by_epoch = {one.label: one for one in panel.state.checkpoints}
    assert by_epoch["epoch 2"].reason == "ValueError: the labels are <gone>"
    assert "a dict of metrics is wanted" in by_epoch["epoch 5"].reason
    assert by_epoch["epoch 4"].late == {"score": -2, "both": "validation"}
    # The same key in both: the validated one wins, and where there is none the other stays.
    kept = {metrics["epoch"]: metrics for _, metrics in result.best_checkpoints}
    assert [kept[epoch]["both"] for epoch in range(6)] == [
        "validation", "training", "training", "validation", "training", "validation",
    ]  # fmt: skip
    assert [kept[epoch].get("score") for epoch in range(6)] == [-1, None, None, -2, None, -4]
    found = reported_checkpoints(result.path, result.filesystem)
    assert [one.status for one in found] == [VALIDATED, FAILED, TIMED_OUT, VALIDATED, FAILED, VALIDATED]
    assert [one.metrics["epoch"] for one in found] == list(range(6))
    # The best by the validated metric is not the last one.
    assert result.get_best_checkpoint("score", "max").path == found[0].checkpoint.path
    assert len(log.read_text().split()) == 6  # the loop was over before its validations were
    assert "PENDING_VALIDATION" in log.read_text()
    # Each epoch and each validation has its place on the time axis, and an end.
    assert [span.label for span in spans_of(panel, "training")] == list("123456")
    assert [(s.label, s.status) for s in spans_of(panel, "validation")] == [
        ("1", "validated"), ("2", "failed"), ("3", "timed out"), ("4", "validated"), ("5", "failed"),
        ("6", "validated"),
    ]  # fmt: skip
    hung = spans_of(panel, "validation")[2]
    assert hung.end - hung.begin > 3
    # The training did not wait for it: its last epoch began before the one that hung was given up.
    assert spans_of(panel, "training")[-1].begin < hung.end
    kept = runs.latest("run").extra["checkpoints"]
    assert [one["status"] for one in kept] == [one.status for one in panel.state.checkpoints]


# -- killed, and started again --------------------------------------------------------------------------

FIRST_LIFE = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
import test_validation as t
from labkit import cluster

with cluster.start():
    panel = t.TrainPanel("run", reporter=t.NullReporter())
    how = {epoch: f"gate {sys.argv[2]}" for epoch in range(4)}
    t.fit(panel, t.trainer_of(panel, Path(sys.argv[1]), epochs=3, how=how, name="killed"))
"""


def wait_for(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def known_of(path):
    try:
        return [one.status for one in reported_checkpoints(str(path))]
    except LabError:  # nothing yet
        return []


def test_killed_while_validations_are_pending_and_resumed(lab, home, panel, tmp_path):
    """The pending ones are validated then; what began twice counts once."""
    notes, path = tmp_path / "notes", home / "runs" / "killed"
    modules = [str(Path(file).parent) for file in (__file__, labs.__file__)]
    command = [sys.executable, "-c", FIRST_LIFE, str(home), str(tmp_path), *modules]
    first_life = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: known_of(path) == [VALIDATED, PENDING, PENDING] and "begin 1" in notes.read_text())
    finally:
        first_life.kill()
        first_life.wait()
    assert [one.metrics.get("score") for one in reported_checkpoints(str(path))] == [-1, None, None]
    (tmp_path / "open").touch()
    how = dict.fromkeys(range(4), f"gate {tmp_path}")
    result = fit(panel, trainer_of(panel, home, epochs=4, how=how, name="killed"))
    assert known_of(path) == [VALIDATED] * 4
    told = notes.read_text().split("\n")
    assert [told.count(f"begin {epoch}") for epoch in range(4)] == [1, 2, 1, 1]
    kept = sorted((metrics["epoch"], metrics["score"]) for _, metrics in result.best_checkpoints)
    assert kept == [(0, -1), (1, 0), (2, -1), (3, -2)]
    # The panel shows what was left to do, and what this run did itself.
    assert statuses(panel) == dict.fromkeys(["epoch 2", "epoch 3", "epoch 4"], "validated")
    assert [span.label for span in spans_of(panel, "training")] == ["4"]


# -- refused --------------------------------------------------------------------------------------------


def test_a_data_set_that_travels_along_is_refused(lab, home, panel):
    validation_images = np.zeros((2000, 28, 28), np.uint8)
    small = {"rate": 0.1}

    def with_images(checkpoint):
        return {"mean": float(validation_images.mean()) * small["rate"]}

    with pytest.raises(LabError, match=r"it has 1\.6 MB") as refused:
        panel.watch(trainer_of(panel, home, fn=with_images))
    assert "load data inside the function" in refused.value.fix
    assert panel.state.status == "ready"


def test_a_validation_that_no_node_can_run_is_refused(lab, home, panel):
    with pytest.raises(LabError, match="1 CPU and 1 lab_gpu of one node"):
        panel.watch(trainer_of(panel, home, options={"resources": {"lab_gpu": 1}}))
    with pytest.raises(LabError, match="9 CPU"):
        panel.watch(trainer_of(panel, home, options={"num_cpus": 9}))
