"""The network of all comparisons."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from course.models.torch import seeded


def mlp(hidden: Sequence[int] = (128, 64), *, seed: int = 0) -> nn.Module:
    """Fully connected layers 784-128-64-10 with ReLU between them.

    Takes float32 [n, 28, 28] in 0..1 (see `to_input`), gives logits float32 [n, 10].
    """
    layers = [nn.Flatten()]
    inputs = 28 * 28
    for outputs in hidden:
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        inputs = outputs
    return seeded(nn.Sequential(*layers, nn.Linear(inputs, 10)), seed)


def to_input(images: Any) -> torch.Tensor:
    """Convert uint8 images (array or tensor) to float32 in 0..1."""
    tensor = images if isinstance(images, torch.Tensor) else torch.tensor(images)
    return tensor.to(torch.float32) / 255
