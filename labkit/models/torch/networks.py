"""Small torch models for uint8 images [n, 28, 28] of 10 classes, and the way from one to the other.

    >>> model = mlp(seed=0)
    >>> model(to_input(images)).shape  # images: uint8 [n, 28, 28]
    torch.Size([64, 10])

Neither model has batch normalisation or dropout: with those, two workers would not train the same
model as one process does with the same global batch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from labkit.errors import ModelError

_SIDE, _CLASSES = 28, 10


def mlp(hidden: Sequence[int] = (128, 64), *, seed: int | None = None) -> nn.Sequential:
    """Fully connected layers 784-128-64-10 with ReLU between: the model of all comparisons.

    Takes float32 [n, 28, 28] in 0..1 (see `to_input`), gives logits float32 [n, 10].

    Args:
        hidden: widths of the hidden layers; ``()`` is a linear model.
        seed: the same seed gives the same weights in every process, and leaves torch's own random
            numbers where they were; None draws from those.
    """
    widths = [_SIDE * _SIDE, *hidden]
    with _weights_from(seed):
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in zip(widths, widths[1:], strict=False):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], _CLASSES))


def cnn(channels: Sequence[int] = (16, 32), *, seed: int | None = None) -> nn.Sequential:
    """Per entry of `channels`: convolution 3×3, ReLU, 2×2 maximum; then one linear layer.

    Takes and gives what `mlp` does. It has fewer weights (20,490) than `mlp` (109,386) and
    computes far more with each: a worker exchanges less for the work it does.

    Args:
        channels: output channels of each convolution, at most 4 (each halves the 28×28 image).
        seed: as in `mlp`.

    Raises:
        ModelError: more than 4 convolutions: the image would have no pixel left.
    """
    if len(channels) > 4:
        raise ModelError(
            f"build a cnn with {len(channels)} convolutions",
            f"each halves the {_SIDE}×{_SIDE} image, and after 4 of them it is 1×1",
            "give at most 4 channels, e.g. cnn((16, 32))",
        )
    widths = [1, *channels]
    side = _SIDE >> len(channels)
    with _weights_from(seed):
        layers: list[nn.Module] = [nn.Unflatten(1, (1, _SIDE))]
        for inputs, outputs in zip(widths, widths[1:], strict=False):
            layers += [nn.Conv2d(inputs, outputs, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * side * side, _CLASSES))


def to_input(images: Any) -> torch.Tensor:
    """What the models take: uint8 images (array or tensor) as float32 in 0..1, same shape and device.

    Raises:
        ModelError: the images are not uint8. Scaled twice they would all be nearly black, and the
            training would just be slow to learn, without an error.
    """
    tensor = images if isinstance(images, torch.Tensor) else torch.tensor(images)
    if tensor.dtype != torch.uint8:
        raise ModelError(
            "turn images into the model's input",
            f"they are {str(tensor.dtype).removeprefix('torch.')}, and pixels are uint8, 0 to 255",
            "give the images as the data set has them; what is float32 already needs no to_input",
        )
    return tensor.to(torch.float32).div_(255)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, without DistributedDataParallel, DataParallel or torch.compile around it."""
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


@contextmanager
def _weights_from(seed: int | None) -> Iterator[None]:
    if seed is None:
        yield
        return
    # On the CPU, and by its generator alone: a GPU's numbers differ, and torch.manual_seed would
    # reset those of every GPU too.
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
