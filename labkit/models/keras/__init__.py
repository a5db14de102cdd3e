"""The lessons' networks in Keras, the backend's settings and the panel's callback.

Importing this package does not import TensorFlow: `prepare` has to come before.
"""

from typing import Any

from labkit.models.keras.backend import KERAS_2, KERAS_3, prepare
from labkit.models.keras.networks import cnn, mlp, to_input, weights_distance

__all__ = ["KERAS_2", "KERAS_3", "PanelCallback", "cnn", "mlp", "prepare", "to_input", "weights_distance"]


def __getattr__(name: str) -> Any:
    if name != "PanelCallback":  # a class of Keras's
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from labkit.models.keras.callback import PanelCallback

    return PanelCallback


def __dir__() -> list[str]:
    return __all__
