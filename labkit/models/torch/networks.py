"""Small torch models for uint8 images [n, 28, 28] of 10 classes, and the conversion of images to their input.

    >>> model = mlp(seed=0)
    >>> model(to_input(images)).shape  # images: uint8 [n, 28, 28]
    torch.Size([64, 10])

Neither model has batch normalization or dropout: with those, two workers would not train the same
model as one process does with the same global batch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from labkit.models.weights import CLASSES, SIDE, initial_weights, not_uint8


def mlp(hidden: Sequence[int] = (128, 64), *, seed: int | None = None) -> nn.Sequential:
    """Fully connected layers 784-128-64-10 with ReLU between them: the model of all comparisons.

    Takes float32 [n, 28, 28] in 0..1 (see `to_input`), gives logits float32 [n, 10].

    Args:
        hidden: widths of the hidden layers; ``()`` is a linear model.
        seed: the same seed gives the same weights in every process, and leaves torch's own random
            numbers where they were; None draws from those.
    """
    widths = [SIDE * SIDE, *hidden]
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in zip(widths, hidden, strict=False):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return _with_weights(nn.Sequential(*layers, nn.Linear(widths[-1], CLASSES)), seed)


def cnn(*, seed: int | None = None) -> nn.Sequential:
    """Twice convolution 3×3 (16, then 32 channels), ReLU, 2×2 maximum; then one linear layer.

    Takes and gives what `mlp` does, with the same `seed`. It has fewer weights (20,490) than `mlp` (109,386)
    and computes far more with each: a worker exchanges less for the work it does.
    """
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        layers: list[nn.Module] = [nn.Unflatten(1, (1, SIDE))]
        for inputs, outputs in ((1, 16), (16, 32)):
            layers += [nn.Conv2d(inputs, outputs, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        return _with_weights(nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 7 * 7, CLASSES)), seed)


def to_input(images: Any) -> torch.Tensor:
    """Convert uint8 images (array or tensor) to float32 in 0..1, of the same shape and on the same device.

    Raises:
        RunError: the images are not uint8. Scaled twice they would all be nearly black, and the
            training would just be slow to learn, without an error.
    """
    tensor = images if isinstance(images, torch.Tensor) else torch.tensor(images)
    if tensor.dtype != torch.uint8:
        raise not_uint8(str(tensor.dtype).removeprefix("torch."))
    return tensor.to(torch.float32).div_(255)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, without DistributedDataParallel around it."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def _with_weights(model: nn.Sequential, seed: int | None) -> nn.Sequential:
    """`model` with the first weights of `seed`, or those that torch drew."""
    if seed is not None:
        parameters = list(model.parameters())
        arrays = initial_weights([parameter.shape for parameter in parameters], seed)
        with torch.no_grad():
            for parameter, array in zip(parameters, arrays, strict=True):
                parameter.copy_(torch.from_numpy(array))
    return model
