"""A network in Keras, which Keras a process has, and the panel's callback.

    prepare()                                                 # in the notebook, before TensorFlow is imported
    RunConfig(worker_runtime_env={"env_vars": KERAS_2})       # in the workers

Keras 3's ``model.fit`` does not work with MultiWorkerMirroredStrategy: with two workers it raises
"PerReplica … unsupported type" (ray issue 47464, keras issue 20585, both open). Keras 2 lives on as the
package ``tf-keras``, which TensorFlow uses as ``tf.keras`` if TF_USE_LEGACY_KERAS=1. Ray's trainer sets that
variable in its workers, but too late: importing ``ray.train.tensorflow`` already asks for ``tf.keras``.
Importing this package does not import TensorFlow.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from labkit.errors import LabError
from labkit.models import CLASSES, SIDE, initial_weights, not_uint8

__all__ = ["KERAS_2", "KERAS_3", "PanelCallback", "mlp", "prepare", "to_input"]

_QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",  # errors of TensorFlow's own come as Python exceptions anyway
    "TF_ENABLE_ONEDNN_OPTS": "0",  # no notice about other roundings, and no other roundings
}
# The environment of a process in which ``tf.keras`` is Keras 2 (the package ``tf-keras``), or Keras 3.
KERAS_2 = {**_QUIET, "TF_USE_LEGACY_KERAS": "1"}
KERAS_3 = {**_QUIET, "TF_USE_LEGACY_KERAS": "0"}


def __getattr__(name: str) -> Any:
    if name != "PanelCallback":  # a class of Keras's
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from labkit.models.keras.callback import PanelCallback

    return PanelCallback


def prepare() -> str:
    """Set `KERAS_2` in this process, import TensorFlow, and return both versions in words.

    Raises:
        LabError: TensorFlow was imported before, with Keras 3.
    """
    os.environ.update(KERAS_2)
    import tensorflow as tf

    package = tf.keras.Model.__module__.partition(".")[0]  # asking for it makes TensorFlow choose
    version = sys.modules[package].__version__
    if not version.startswith("2."):
        fact = f"TensorFlow was imported before, and took Keras {version}"
        fix = "restart the kernel, and let this cell come before every import of TensorFlow"
        raise LabError("use Keras 2 in this process", fact, fix)
    return f"TensorFlow {tf.__version__}, Keras {version}"


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
    stack = [tf.keras.Input((SIDE, SIDE)), layers.Flatten(), *stack, layers.Dense(CLASSES)]
    model = tf.keras.Sequential(stack)
    if seed is not None:
        # Keras has a kernel as [in, out], and torch as [out, in].
        shapes = [tuple(reversed(weight.shape)) for weight in model.weights]
        model.set_weights([array.T for array in initial_weights(shapes, seed)])
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
