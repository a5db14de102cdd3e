"""The models of `labkit.models.torch` in Keras: the same layers, and from the same seed the same weights.

    >>> model = cnn(seed=0)
    >>> model(to_input(images)).shape  # images: uint8 [n, 28, 28]
    TensorShape([64, 10])

They are built with ``tf.keras``, whichever that is in this process: Keras 3, or Keras 2 (``tf-keras``) where
``TF_USE_LEGACY_KERAS=1`` was set before TensorFlow was imported (see `labkit.models.keras.backend`).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from labkit.errors import ModelError

_SIDE, _CLASSES = 28, 10


def mlp(hidden: Sequence[int] = (128, 64), *, seed: int | None = None) -> Any:
    """Fully connected layers 784-128-64-10 with ReLU between, as `labkit.models.torch.networks.mlp`.

    Takes float32 [n, 28, 28] in 0..1 (see `to_input`), gives logits float32 [n, 10].

    Args:
        hidden: widths of the hidden layers; ``()`` is a linear model.
        seed: the same seed gives the same weights in every process, and the same as torch's model has;
            None takes a fresh one.
    """
    layers = tf.keras.layers
    stack = [layers.Flatten()]
    stack += [layers.Dense(width, activation="relu") for width in hidden]
    return _model([*stack, layers.Dense(_CLASSES)], seed)


def cnn(channels: Sequence[int] = (16, 32), *, seed: int | None = None) -> Any:
    """Per entry of `channels`: convolution 3×3, ReLU, 2×2 maximum; then one linear layer.

    Takes and gives what `mlp` does; 20,490 weights. As `labkit.models.torch.cnn`, but with channels last,
    as TensorFlow computes on a CPU: where torch has [n, 32, 7, 7], here is [n, 7, 7, 32].

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
    layers = tf.keras.layers
    stack = [layers.Reshape((_SIDE, _SIDE, 1))]
    for width in channels:
        stack += [layers.Conv2D(width, 3, padding="same", activation="relu"), layers.MaxPooling2D(2)]
    return _model([*stack, layers.Flatten(), layers.Dense(_CLASSES)], seed)


def to_input(images: Any) -> tf.Tensor:
    """What the models take: uint8 images (array or tensor) as float32 in 0..1, same shape.

    Raises:
        ModelError: the images are not uint8. Scaled twice they would all be nearly black, and the
            training would just be slow to learn, without an error.
    """
    tensor = tf.convert_to_tensor(images)
    if tensor.dtype != tf.uint8:
        raise ModelError(
            "turn images into the model's input",
            f"they are {tensor.dtype.name}, and pixels are uint8, 0 to 255",
            "give the images as the data set has them; what is float32 already needs no to_input",
        )
    return tf.cast(tensor, tf.float32) / 255


def _model(layers: list, seed: int | None) -> Any:
    model = tf.keras.Sequential([tf.keras.Input((_SIDE, _SIDE)), *layers])
    draws = np.random.RandomState(seed)
    drawn = [_as_torch_draws(layer, draws) for layer in model.layers if layer.weights]
    _undo_channels_first(model, drawn)
    model.set_weights([array for pair in drawn for array in pair])
    return model


def _as_torch_draws(layer: Any, draws: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
    """(kernel, bias) from the random numbers that torch would take for this layer, in the same order.

    torch draws both evenly from ±1/sqrt(inputs) (``reset_parameters`` of its layers), filling its own memory
    order: [out, in] and [out, in, 3, 3].
    """
    kernel, bias = layer.weights
    # Dense [in, out] and Conv2D [3, 3, in, out] end on (in, out); torch begins with (out, in).
    *window, inputs, outputs = kernel.shape
    bound = 1 / math.sqrt(inputs * math.prod(window))
    values = _uniform(draws, bound, (outputs, inputs, *window))
    return values.transpose(*range(2, values.ndim), 1, 0), _uniform(draws, bound, tuple(bias.shape))


def _uniform(draws: np.random.RandomState, bound: float, shape: tuple[int, ...]) -> np.ndarray:
    """float32 in ±`bound`, as ``Tensor.uniform_`` makes them on the CPU.

    numpy's RandomState and torch's generator are the same Mersenne Twister, seeded alike; torch makes a float
    of the lowest 24 of each 32 bits (``uniform_real_distribution`` in ATen's TransformationHelper.h).
    """
    bits = draws.randint(0, 2**32, size=shape, dtype=np.uint32) & np.uint32(2**24 - 1)
    unit = bits.astype(np.float32) * np.float32(2**-24)
    return unit * np.float32(2 * bound) - np.float32(bound)


def _undo_channels_first(model: Any, drawn: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Put the rows of the kernel behind a Flatten into the order of channels last.

    torch flattens [channels, height, width], TensorFlow [height, width, channels].
    """
    for number, layer in enumerate(_layers_with_flat_images(model)):
        if layer is None:
            continue
        height, width, channels = layer
        kernel, bias = drawn[number]
        rows = kernel.reshape(channels, height, width, -1).transpose(1, 2, 0, 3)
        drawn[number] = (rows.reshape(kernel.shape), bias)


def _layers_with_flat_images(model: Any) -> Iterator[tuple[int, int, int] | None]:
    """For each layer with weights: the [height, width, channels] that were flattened before it, or None."""
    flattened = None
    for layer in model.layers:
        if isinstance(layer, tf.keras.layers.Flatten):
            shape = tuple(layer.input.shape[1:])
            flattened = shape if len(shape) == 3 else None
        elif layer.weights:
            yield flattened
            flattened = None
