"""A small network in PyTorch with the first weights of a seed, and the distance of two models.

It has no batch normalization and no dropout: with those, two workers would not train the same model as one
process does with the same global batch.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from labkit.errors import BadInput

# A weight near the kink of a ReLU amplifies rounding errors. Without a stream, seed 0 and SGD(0.1) let
# workers and one process differ by 0.005 after 20 epochs on the digits; with this one by 2e-7.
_STREAM = 1


def cnn(*, seed: int | None = None) -> nn.Sequential:
    """Twice convolution 3×3 (16, then 32 channels), ReLU, 2×2 maximum; then one linear layer.

    Takes float32 [n, 28, 28] in 0..1, gives logits float32 [n, 10].

    Args:
        seed: the same seed gives the same weights in every process, and leaves torch's own random
            numbers where they were; None draws from those.
    """
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        model = nn.Sequential(
            nn.Unflatten(1, (1, 28)),
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 7 * 7, 10),
        )
    if seed is None:
        return model
    return seeded(model, seed)


@torch.no_grad()
def seeded(model: nn.Module, seed: int) -> nn.Module:
    """Draw weights and biases uniformly in ±1/sqrt(inputs of the layer), as torch does; return the model."""
    draws = np.random.default_rng((seed, _STREAM))
    bound = 0.0
    for parameter in model.parameters():
        if parameter.dim() > 1:  # else it is the bias of the weights before it
            inputs = parameter[0].numel()
            bound = 1 / math.sqrt(inputs)
        values = draws.uniform(-bound, bound, parameter.shape)
        parameter.copy_(torch.from_numpy(values))
    return model


def parameter_distance(a: nn.Module | Mapping, b: nn.Module | Mapping) -> float:
    """Return the largest absolute difference between two models' weights: 0.0 if equal, NaN for a NaN.

    `a` and `b` are models or their ``state_dict()``. Other names or shapes are `BadInput`.
    """
    if not isinstance(a, Mapping):
        a = a.state_dict()
    if not isinstance(b, Mapping):
        b = b.state_dict()
    if _shapes(a) != _shapes(b):
        raise BadInput(
            "compare two models",
            f"the shapes of their weights are {_shapes(a)} and {_shapes(b)}",
            "compare models that were built by the same call",
        )
    distances = []
    for name, weight in a.items():
        difference = weight.cpu().double() - b[name].cpu().double()
        distances.append(difference.abs().max())
    return torch.stack(distances).max().item()


def _shapes(weights: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in weights.items()}
