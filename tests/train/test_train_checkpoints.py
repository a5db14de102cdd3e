"""The list of checkpoints that Ray keeps in a run's store, and which of them are kept."""

import functools

import numpy as np
import pytest
from ray.train import CheckpointConfig

from course.models.torch import cnn
from labkit.errors import BadInput
from labkit.train import panel, reported_checkpoints
from labkit.train.callbacks import unranked, wrong_order


@pytest.mark.parametrize("content", [None, "", "[]", '{"checkpoint_results": []}'])
def test_a_list_that_is_missing_or_not_rays(tmp_path, content):
    if content is not None:
        (tmp_path / "checkpoint_manager_snapshot.json").write_text(content)
    with pytest.raises(BadInput) as refused:
        reported_checkpoints(str(tmp_path))
    assert "result.path" in refused.value.fix


@pytest.mark.parametrize(
    "name, warned",
    [("rmse", True), ("val_loss", True), ("test MAE", True)]
    + [(None, False), ("accuracy", False), ("neg_mean_squared_error", False), ("lossless", False)],
)
def test_keeping_the_worst_checkpoints_is_warned_of(name, warned):
    config = {"checkpoint_score_attribute": name, "num_to_keep": 2}
    warning = wrong_order(CheckpointConfig(**config))
    assert (f"Ray keeps the 2 checkpoints with the highest {name}, " in warning) == warned
    assert ('checkpoint_score_order="min"' in warning) == warned
    assert not wrong_order(CheckpointConfig(**config, checkpoint_score_order="min"))


def test_a_metric_that_ranks_and_that_no_checkpoint_has_is_told():
    reported = {"epoch", "loss", "rmse"}
    warning = unranked(CheckpointConfig(checkpoint_score_attribute="rsme"), reported)
    assert "none has checkpoint_score_attribute='rsme' (they have epoch, loss, rmse)" in warning
    for name, seen in (("rmse", reported), (None, reported), ("valid/rmse", reported), ("rsme", set())):
        assert unranked(CheckpointConfig(checkpoint_score_attribute=name), seen) == ""


def test_a_validation_function_that_takes_a_data_set_along_is_refused():
    rows = np.zeros(10**6, np.uint8)
    for function in (lambda checkpoint: rows.mean(), functools.partial(cnn, images=rows)):
        with pytest.raises(BadInput, match=r"it has 1\.0 MB.* the limit is 1\.0 MB") as refused:
            panel.check_closure_size(function)
        assert "load data inside the function" in refused.value.fix
    panel.check_closure_size(cnn)
