"""The torch models: what goes in and comes out, that a seed is a seed, and the plain training loop."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from labkit.errors import LabError
from labkit.models.torch import cnn, mlp, parameter_distance, to_input, train_epoch

IMAGES = np.random.default_rng(0).integers(0, 256, size=(40, 28, 28), dtype=np.uint8)
LABELS = torch.arange(40) % 10
LOSS = nn.CrossEntropyLoss()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("build", [mlp, cnn])
def test_images_in_logits_out_and_a_seed_leaves_torchs_numbers_alone(build):
    logits = build()(to_input(IMAGES))
    assert (logits.shape, logits.dtype) == ((40, 10), torch.float32)
    assert sum(p.numel() for p in build().parameters()) == {mlp: 109_386, cnn: 20_490}[build]
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first = build(seed=7)
    assert torch.equal(torch.rand(3), expected)
    assert parameter_distance(first, build(seed=7)) == 0 < parameter_distance(first, build(seed=8))
    assert parameter_distance(build(), build()) > 0


def test_to_input_scales_once_and_does_not_change_the_data_set():
    tensor = torch.tensor(IMAGES)
    for images in (IMAGES, tensor):
        assert np.allclose(to_input(images).numpy(), IMAGES / 255.0)
    assert torch.equal(tensor, torch.tensor(IMAGES))
    with pytest.raises(LabError, match="float32"):
        to_input(to_input(IMAGES))


def test_a_wrapped_model_is_compared_as_the_model_inside(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(mlp(seed=0))
        assert parameter_distance(wrapped, mlp(seed=0)) == 0.0
        assert parameter_distance(wrapped, mlp(seed=1).state_dict()) > 0.0
    finally:
        wrapped = None  # freed after the process group, it can hang (docs/upstream.md)
        dist.destroy_process_group()


def test_an_epoch_is_the_loop_that_a_lesson_writes_out():
    rows = DataLoader(TensorDataset(to_input(IMAGES), LABELS), batch_size=16)
    dicts = [{"image": torch.tensor(IMAGES[i : i + 16]), "label": LABELS[i : i + 16]} for i in (0, 16, 32)]
    imported, from_dicts, written = mlp(seed=0), mlp(seed=0), mlp(seed=0)
    found = train_epoch(imported, rows, LOSS, sgd(imported))
    train_epoch(from_dicts, dicts, LOSS, sgd(from_dicts))
    optimizer, total = sgd(written), 0.0
    for x, y in rows:
        optimizer.zero_grad()
        loss = LOSS(written(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)
    assert parameter_distance(imported, written) == parameter_distance(from_dicts, written) == 0.0
    assert found["rows"] == 40 and found["loss"] == pytest.approx(total / 40) and 0 <= found["accuracy"] <= 1
    with pytest.raises(LabError, match="no batch"):
        train_epoch(mlp(), iter(()), LOSS, sgd(mlp()))
