"""What the networks share, whichever framework builds them: their size, first weights, and distance.

Weights are numpy arrays in torch's layout: [outputs, inputs, *window] for a kernel, [outputs] for a bias.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from labkit.errors import RunError

SIDE, CLASSES = 28, 10  # of the images, and of the labels
_MAX_CONVOLUTIONS = 4
# A weight near the kink of a ReLU amplifies rounding errors. Without a stream, seed 0 and SGD(0.1), as in the
# lessons, let workers and one process differ by 0.005 after 20 epochs on the digits; with this one by 2e-7.
_STREAM = 1


def initial_weights(shapes: Iterable[Sequence[int]], seed: int | None) -> list[np.ndarray]:
    """Draw float32 weights for layers whose shapes are given as kernel, bias, kernel, bias, …

    Kernel and bias are uniform in ±1/sqrt(inputs of the layer), as torch initializes its layers.

    Args:
        seed: the same seed gives the same weights in every process and every framework; None gives others
            each time.
    """
    draws = np.random.default_rng(None if seed is None else (seed, _STREAM))
    arrays, bound = [], 0.0
    for shape in map(tuple, shapes):
        if len(shape) > 1:
            bound = 1 / math.sqrt(math.prod(shape[1:]))
        arrays.append(draws.uniform(-bound, bound, shape).astype(np.float32))
    return arrays


def distance(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> float:
    """The largest absolute difference between two models' weights: 0.0 where they are equal.

    NaN in a weight gives NaN.

    Raises:
        RunError: they do not have the same weights by name and shape.
    """
    if fact := difference_in_shape(a, b):
        raise RunError("compare two models", fact, "compare models that were built by the same call")
    gaps = [np.abs(a[name].astype(float) - b[name].astype(float)).max() for name in a if a[name].size]
    return float(np.max(gaps)) if gaps else 0.0


def difference_in_shape(a: Mapping, b: Mapping) -> str | None:
    """The first weight whose shape differs between two models, in words; None if all are equal."""
    for name in [*a, *b]:
        there, here = (tuple(weights[name].shape) if name in weights else "none" for weights in (a, b))
        if there != here:
            return f"{name!r} has the shape {there} in one and {here} in the other"
    return None


def check_widths(network: str, widths: Any) -> None:
    """Raise a `RunError` unless `widths` are whole numbers from 1 on."""
    if isinstance(widths, str) or not isinstance(widths, Sequence) or not all(map(_is_width, widths)):
        raise RunError(
            f"build {network}({widths!r})",
            "the widths of its layers are whole numbers from 1 on, in a tuple",
            "mlp((128, 64)) or cnn((16, 32))",
        )


def check_seed(seed: Any) -> None:
    """Raise a `RunError` unless `seed` is a whole number from 0 on."""
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise RunError(f"build a model with seed={seed!r}", "a seed is a whole number from 0 on", "seed=0")


def check_channels(channels: Any) -> None:
    """As `check_widths`; and an image must have a pixel left after convolutions that halve it."""
    check_widths("cnn", channels)
    if len(channels) > _MAX_CONVOLUTIONS:
        raise RunError(
            f"build a cnn with {len(channels)} convolutions",
            f"each halves the {SIDE}×{SIDE} image, and after {_MAX_CONVOLUTIONS} of them it is 1×1",
            f"give at most {_MAX_CONVOLUTIONS} channels, e.g. cnn((16, 32))",
        )


def _is_width(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool) and value >= 1


def not_uint8(dtype: str) -> RunError:
    """The error for images that are scaled already; scaled twice they would all be nearly black."""
    return RunError(
        "turn images into the model's input",
        f"they are {dtype}, and pixels are uint8, 0 to 255",
        "give the images as the data set has them; what is float32 already needs no to_input",
    )
