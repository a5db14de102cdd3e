"""The lessons' networks in Keras: the layers of `labkit.models.torch`, and the same weights from a seed.

    >>> model = cnn(seed=0)
    >>> model(to_input(images)).shape  # images: uint8 [n, 28, 28]
    TensorShape([64, 10])

They are built with ``tf.keras``, whichever that is in this process. Importing this package does not import
TensorFlow: `prepare` (see `labkit.models.keras.backend`) has to come before.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.models.keras.backend import KERAS_2, KERAS_3, prepare
from labkit.models.weights import CLASSES, SIDE, distance, initial_weights, not_uint8

__all__ = ["KERAS_2", "KERAS_3", "PanelCallback", "cnn", "mlp", "prepare", "to_input", "weights_distance"]


def __getattr__(name: str) -> Any:
    if name != "PanelCallback":  # a class of Keras's
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from labkit.models.keras.callback import PanelCallback

    return PanelCallback


def mlp(hidden: Sequence[int] = (128, 64), *, seed: int | None = None) -> Any:
    """Fully connected layers 784-128-64-10 with ReLU between them, as in `labkit.models.torch`.

    Takes float32 [n, 28, 28] in 0..1 (see `to_input`), gives logits float32 [n, 10].

    Args:
        hidden: widths of the hidden layers; ``()`` is a linear model.
        seed: the same seed gives the same weights in every process, and the same as torch's model has;
            None leaves those that Keras draws.
    """
    import tensorflow as tf

    layers = tf.keras.layers
    stack = [layers.Dense(width, activation="relu") for width in hidden]
    return _with_weights([layers.Flatten(), *stack, layers.Dense(CLASSES)], seed)


def cnn(*, seed: int | None = None) -> Any:
    """Twice convolution 3×3 (16, then 32 channels), ReLU, 2×2 maximum; then one linear layer.

    Takes and gives what `mlp` does, with the same `seed`; 20,490 weights. As in `labkit.models.torch`, but
    with channels last, as TensorFlow computes on a CPU: torch has [n, 32, 7, 7], this has [n, 7, 7, 32].
    """
    import tensorflow as tf

    layers = tf.keras.layers
    stack = [layers.Reshape((SIDE, SIDE, 1))]
    for width in (16, 32):
        stack += [layers.Conv2D(width, 3, padding="same", activation="relu"), layers.MaxPooling2D(2)]
    return _with_weights([*stack, layers.Flatten(), layers.Dense(CLASSES)], seed, flattened=(32, 7, 7))


def _with_weights(layers: list, seed: int | None, flattened: tuple[int, ...] = ()) -> Any:
    """A model of `layers` with the first weights of `seed`; `flattened` is what torch flattens last."""
    import tensorflow as tf

    model = tf.keras.Sequential([tf.keras.Input((SIDE, SIDE)), *layers])
    if seed is None:
        return model
    # Keras has kernels as [in, out] and [3, 3, in, out], torch as [out, in] and [out, in, 3, 3].
    shapes = [[*reversed(weight.shape[-2:]), *weight.shape[:-2]] for weight in model.weights]
    arrays = [
        array.transpose(*range(2, array.ndim), 1, 0) if array.ndim > 1 else array
        for array in initial_weights(shapes, seed)
    ]
    if flattened:  # by torch as [channels, height, width], by TensorFlow as [height, width, channels]
        arrays[-2] = np.moveaxis(arrays[-2].reshape(*flattened, CLASSES), 0, 2).reshape(-1, CLASSES)
    model.set_weights(arrays)
    return model


def to_input(images: Any) -> Any:
    """Convert uint8 images (array or tensor) to a tensor of float32 in 0..1, of the same shape.

    Raises:
        LabError: the images are not uint8.
    """
    import tensorflow as tf

    tensor = tf.convert_to_tensor(images)
    if tensor.dtype != tf.uint8:
        raise not_uint8(tensor.dtype.name)
    return tf.cast(tensor, tf.float32) / 255


def weights_distance(a: Any, b: Any) -> float:
    """The largest absolute difference between two models, or what their ``get_weights()`` gives.

    Raises:
        LabError: they do not have as many weights of the same shapes.
    """
    weights = (model.get_weights() if hasattr(model, "get_weights") else model for model in (a, b))
    return distance(*({str(n): np.asarray(array) for n, array in enumerate(arrays)} for arrays in weights))
