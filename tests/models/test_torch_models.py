"""The torch models: what goes in and comes out, that a seed is a seed, and the distance of two models."""

import pytest
import torch

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
