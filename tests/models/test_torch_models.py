"""The torch models: what goes in and comes out, and that a seed is a seed."""

import numpy as np
import pytest
import torch

from labkit import datasets
from labkit.errors import LabError
from labkit.models.torch import cnn, mlp, parameter_distance, to_input

IMAGES = np.random.default_rng(0).integers(0, 256, size=(5, 28, 28), dtype=np.uint8)


@pytest.mark.parametrize("build", [mlp, cnn])
def test_images_in_logits_out(build):
    model = build()
    logits = model(to_input(IMAGES))
    assert (logits.shape, logits.dtype) == ((5, 10), torch.float32)
    assert sum(p.numel() for p in model.parameters()) == {mlp: 109_386, cnn: 20_490}[build]
    logits.square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.fixture
def one_thread():
    """As in the lessons: the number of threads decides in which order numbers are added, and rounded."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_two_workers_train_the_lessons_model_as_one_process_does(one_thread):
    """Lessons 03 and 07 compare the weights: rounding errors must not grow on their way."""
    train = datasets.load("digits")[:1408]
    images, labels = to_input(train.images), torch.tensor(train.labels)
    models = mlp(seed=0), mlp(seed=0)
    for parts, model in zip((1, 2), models, strict=True):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(20):
            for x, y in zip(images.split(128), labels.split(128), strict=True):
                optimizer.zero_grad()
                for rank in range(parts):  # each has every second row; gradients are averaged
                    loss = torch.nn.functional.cross_entropy(model(x[rank::parts]), y[rank::parts])
                    (loss / parts).backward()
                optimizer.step()
    assert parameter_distance(*models) < 1e-5 < parameter_distance(models[0], mlp(seed=0))


@pytest.mark.parametrize("build", [mlp, cnn])
def test_a_seed_gives_the_same_weights_and_leaves_torchs_numbers_alone(build):
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
        x = to_input(images)
        assert x.dtype == torch.float32
        assert np.allclose(x.numpy(), IMAGES / 255.0)
    assert torch.equal(tensor, torch.tensor(IMAGES))
    with pytest.raises(LabError, match="float32"):
        to_input(to_input(IMAGES))
