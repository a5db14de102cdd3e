"""A network in Keras, the environment of Keras 2, and the panel's callback.

    os.environ.update(KERAS_2)                                # in the notebook, before TensorFlow is imported
    RunConfig(worker_runtime_env={"env_vars": KERAS_2})       # in the workers

Keras 3's ``model.fit`` does not work with MultiWorkerMirroredStrategy: with two workers it raises
"PerReplica … unsupported type" (ray issue 47464, keras issue 20585, both open). Keras 2 lives on as the
package ``tf-keras``, which TensorFlow uses as ``tf.keras`` if TF_USE_LEGACY_KERAS=1. Ray's trainer sets that
variable in its workers, but too late: importing ``ray.train.tensorflow`` already asks for ``tf.keras``.
Importing this package does not import TensorFlow.
"""

from collections.abc import Sequence
from typing import Any

from labkit.models import CLASSES, SIDE, initial_weights, not_uint8

__all__ = ["KERAS_2", "PanelCallback", "mlp", "to_input"]

KERAS_2 = {
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",  # errors of TensorFlow's own come as Python exceptions anyway
    "TF_ENABLE_ONEDNN_OPTS": "0",  # no notice about other roundings, and no other roundings
}


def __getattr__(name: str) -> Any:
    if name != "PanelCallback":  # a class of Keras's
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from labkit.models.keras.callback import PanelCallback

    return PanelCallback


def mlp(hidden: Sequence[int] = (128, 64), *, seed: int | None = None) -> Any:
    """The network of `labkit.models.torch.mlp`, with the same input, logits and weights for a seed.

    None leaves the weights that Keras draws.
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
    """Convert uint8 images (array or tensor) to a tensor of float32 in 0..1; a `LabError` for other types."""
    import tensorflow as tf

    tensor = tf.convert_to_tensor(images)
    if tensor.dtype != tf.uint8:
        raise not_uint8(tensor.dtype.name)
    return tf.cast(tensor, tf.float32) / 255
