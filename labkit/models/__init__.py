"""The lessons' networks, for torch and for Keras; here is what they share: size, first weights, an error."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from labkit.errors import LabError

SIDE, CLASSES = 28, 10  # of the images, and of the labels
# A weight near the kink of a ReLU amplifies rounding errors. Without a stream, seed 0 and SGD(0.1), as in the
# lessons, let workers and one process differ by 0.005 after 20 epochs on the digits; with this one by 2e-7.
_STREAM = 1


def initial_weights(shapes: Iterable[Sequence[int]], seed: int) -> list[np.ndarray]:
    """Draw float32 weights for layers whose shapes are given in torch's layout as kernel, bias, kernel, …

    Kernel and bias are uniform in ±1/sqrt(inputs of the layer), as torch initializes its layers. The same
    `seed` gives the same weights in every process and every framework.
    """
    draws, arrays, bound = np.random.default_rng((seed, _STREAM)), [], 0.0
    for shape in map(tuple, shapes):
        if len(shape) > 1:
            bound = 1 / math.sqrt(math.prod(shape[1:]))
        arrays.append(draws.uniform(-bound, bound, shape).astype(np.float32))
    return arrays


def not_uint8(dtype: str) -> LabError:
    """The error for images that are scaled already; scaled twice they would all be nearly black."""
    fact = f"they are {dtype}, and pixels are uint8, 0 to 255"
    fix = "give the images as the data set has them; what is float32 already needs no to_input"
    return LabError("turn images into the model's input", fact, fix)
