"""The torch models: what goes in and comes out, that a seed is a seed, and the distance of two models."""

import pytest
import torch
from torch import nn

from benchmarks._models import mlp, to_input, train_epoch
from course.models.torch import cnn, parameter_distance

pytestmark = pytest.mark.slow


def test_images_in_logits_out_and_a_seed_leaves_torchs_numbers_alone():
    logits = cnn()(torch.rand(40, 28, 28))
    assert (logits.shape, logits.dtype) == ((40, 10), torch.float32)
    assert sum(parameter.numel() for parameter in cnn().parameters()) == 20_490
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first = cnn(seed=7)
    assert torch.equal(torch.rand(3), expected)
    assert parameter_distance(first, cnn(seed=7).state_dict()) == 0 < parameter_distance(first, cnn(seed=8))
    assert parameter_distance(cnn(), cnn()) > 0


def test_the_benchmarks_epoch_is_the_loop_that_a_lesson_writes_out():
    images, labels = torch.randint(256, (40, 28, 28), dtype=torch.uint8), torch.arange(40) % 10
    imported, written, loss_fn = mlp(seed=0), mlp(seed=0), nn.CrossEntropyLoss()
    dicts = [{"image": images[i : i + 16], "label": labels[i : i + 16]} for i in (0, 16, 32)]
    train_epoch(imported, dicts, loss_fn, torch.optim.SGD(imported.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(written.parameters(), lr=0.1)
    for batch in dicts:
        optimizer.zero_grad()
        loss_fn(written(to_input(batch["image"])), batch["label"]).backward()
        optimizer.step()
    assert parameter_distance(imported, written) == 0.0
