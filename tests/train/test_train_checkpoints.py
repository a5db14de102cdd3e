"""What a run's store says of its checkpoints, read from the list that Ray keeps there."""

import json

import pytest
from pyarrow.fs import LocalFileSystem
from ray.train import CheckpointConfig

from labkit.errors import LabError
from labkit.train import reported_checkpoints
from labkit.train.checkpoints import unranked, wrong_order

NAMES = ["c0", "c1", "c2", "c3", "c4"]
ORDER = [3, 0, 4, 1, 2]
# A list as Ray 2.60 writes it: by score, with the numbers of the reports next to it.
KEPT = {
    "checkpoint_results": [
        {"version": 0, "checkpoint_dir_name": NAMES[k], "metrics": {"epoch": k}} for k in ORDER
    ],
    "checkpoint_report_indices": ORDER,
    "pending_training_results": [{"version": 0, "checkpoint_dir_name": "c4", "metrics": {"epoch": 4}}],
    "validated_checkpoint_dir_names": ["c0"],
    "timed_out_validation_checkpoint_dir_names": ["c1"],
    "failed_validation_checkpoint_dir_names": ["c2"],
}


def write(folder, content):
    (folder / "checkpoint_manager_snapshot.json").write_text(content)
    return str(folder)


@pytest.mark.parametrize("filesystem", [None, LocalFileSystem()])
def test_every_status_in_the_order_of_the_reports(tmp_path, filesystem):
    found = reported_checkpoints(write(tmp_path, json.dumps(KEPT)), filesystem)
    assert [(one.metrics["epoch"], one.status.value) for one in found] == [
        (0, "VALIDATED"),
        (1, "VALIDATION_TIMEOUT"),
        (2, "VALIDATION_FAILED"),
        (3, "COMMITTED"),
        (4, "PENDING_VALIDATION"),
    ]
    assert [one.checkpoint.path for one in found] == [f"{tmp_path}/{name}" for name in NAMES]


@pytest.mark.parametrize("content", [None, "", "[]", json.dumps(KEPT | {"checkpoint_report_indices": [1]})])
def test_a_list_that_is_missing_or_not_rays(tmp_path, content):
    if content is not None:
        write(tmp_path, content)
    with pytest.raises(LabError, match=r"there is no list of them as Ray 2\.60 writes it") as refused:
        reported_checkpoints(str(tmp_path))
    assert "result.path" in refused.value.fix


def warning(name, order="max"):
    config = {"checkpoint_score_attribute": name, "checkpoint_score_order": order}
    return wrong_order(CheckpointConfig(num_to_keep=2, **config))


@pytest.mark.parametrize("name", ["rmse", "val_loss", "valid/error", "perplexity", "test MAE"])
def test_keeping_the_worst_checkpoints_is_warned_of(name):
    assert f"Ray keeps the 2 checkpoints with the highest {name}, " in warning(name)
    assert 'checkpoint_score_order="min"' in warning(name)
    assert not warning(name, "min")


def test_a_metric_that_ranks_and_that_no_checkpoint_has_is_told():
    reported = {"epoch", "loss", "rmse"}
    told = unranked(CheckpointConfig(checkpoint_score_attribute="rsme"), reported)
    assert "none has checkpoint_score_attribute='rsme' (they have epoch, loss, rmse)" in told
    for name, seen in (("rmse", reported), (None, reported), ("valid/rmse", reported), ("rsme", set())):
        assert unranked(CheckpointConfig(checkpoint_score_attribute=name), seen) == ""


def test_an_accuracy_is_the_other_way_round_and_what_is_not_known_is_left_alone():
    assert 'checkpoint_score_order="max"' in warning("val_accuracy", "min")
    assert not warning("val_accuracy", "max")
    for name in (None, "epoch", "neg_mean_squared_error", "lossless", "accuracy_loss"):
        assert not warning(name, "max") and not warning(name, "min")
