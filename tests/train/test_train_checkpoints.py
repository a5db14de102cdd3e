"""What a run's store says of its checkpoints, read from the list that Ray keeps there; which are kept."""

import functools
import json

import numpy as np
import pytest
from pyarrow.fs import LocalFileSystem
from ray.train import CheckpointConfig, ReportedCheckpointStatus

from labkit.errors import LabError
from labkit.models.torch import train_epoch
from labkit.train import callbacks, panel, reported_checkpoints
from labkit.train.callbacks import unranked, wrong_order

NAMES = ["c0", "c1", "c2", "c3", "c4"]
ORDER = [3, 0, 4, 1, 2]
# A list as Ray 2.60 writes it: by score, with the numbers of the reports next to it.
KEPT = {
    "checkpoint_results": [{"checkpoint_dir_name": NAMES[k], "metrics": {"epoch": k}} for k in ORDER],
    "checkpoint_report_indices": ORDER,
    "pending_training_results": [{"checkpoint_dir_name": "c4", "metrics": {"epoch": 4}}],
    "validated_checkpoint_dir_names": ["c0"],
    "timed_out_validation_checkpoint_dir_names": ["c1"],
    "failed_validation_checkpoint_dir_names": ["c2"],
}


@pytest.mark.parametrize("filesystem", [None, LocalFileSystem()])
def test_every_status_in_the_order_of_the_reports(tmp_path, filesystem):
    (tmp_path / "checkpoint_manager_snapshot.json").write_text(json.dumps(KEPT))
    found = reported_checkpoints(str(tmp_path), filesystem)
    assert [(one.metrics["epoch"], one.status.value) for one in found] == [
        (0, "VALIDATED"),
        (1, "VALIDATION_TIMEOUT"),
        (2, "VALIDATION_FAILED"),
        (3, "COMMITTED"),
        (4, "PENDING_VALIDATION"),
    ]
    assert [one.checkpoint.path for one in found] == [f"{tmp_path}/{name}" for name in NAMES]
    assert set(callbacks._STATUSES) == {status.value for status in ReportedCheckpointStatus}


@pytest.mark.parametrize("content", [None, "", "[]", json.dumps(KEPT | {"checkpoint_report_indices": [1]})])
def test_a_list_that_is_missing_or_not_rays(tmp_path, content):
    if content is not None:
        (tmp_path / "checkpoint_manager_snapshot.json").write_text(content)
    with pytest.raises(LabError, match=r"there is no list of them as Ray 2\.60 writes it") as refused:
        reported_checkpoints(str(tmp_path))
    assert "result.path" in refused.value.fix


@pytest.mark.parametrize(
    "name, warned",
    [("rmse", True), ("val_loss", True), ("test MAE", True)]
    + [(None, False), ("accuracy", False), ("neg_mean_squared_error", False), ("lossless", False)],
)
def test_keeping_the_worst_checkpoints_is_warned_of(name, warned):
    config = {"checkpoint_score_attribute": name, "num_to_keep": 2}
    said = wrong_order(CheckpointConfig(**config))
    assert (f"Ray keeps the 2 checkpoints with the highest {name}, " in said) == warned
    assert ('checkpoint_score_order="min"' in said) == warned
    assert not wrong_order(CheckpointConfig(**config, checkpoint_score_order="min"))


def test_a_metric_that_ranks_and_that_no_checkpoint_has_is_told():
    reported = {"epoch", "loss", "rmse"}
    told = unranked(CheckpointConfig(checkpoint_score_attribute="rsme"), reported)
    assert "none has checkpoint_score_attribute='rsme' (they have epoch, loss, rmse)" in told
    for name, seen in (("rmse", reported), (None, reported), ("valid/rmse", reported), ("rsme", set())):
        assert unranked(CheckpointConfig(checkpoint_score_attribute=name), seen) == ""


def test_a_validation_function_that_takes_a_data_set_along_is_refused():
    rows = np.zeros(10**6, np.uint8)
    for function in (lambda checkpoint: rows.mean(), functools.partial(train_epoch, images=rows)):
        with pytest.raises(LabError, match=r"it has 1\.0 MB.* the limit is 1\.0 MB") as refused:
            panel.check_closure_size(function)
        assert "load data inside the function" in refused.value.fix
    panel.check_closure_size(train_epoch)
