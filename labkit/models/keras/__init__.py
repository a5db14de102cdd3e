"""The environment of Keras 2, and the panel's callback.

    os.environ.update(KERAS_2)                                # in the notebook, before TensorFlow is imported
    RunConfig(worker_runtime_env={"env_vars": KERAS_2})       # in the workers

Keras 3's ``model.fit`` does not work with MultiWorkerMirroredStrategy: with two workers it raises
"PerReplica … unsupported type" (ray issue 47464, keras issue 20585, both open). Keras 2 lives on as the
package ``tf-keras``, which TensorFlow uses as ``tf.keras`` if TF_USE_LEGACY_KERAS=1. Ray's trainer sets that
variable in its workers, but too late: importing ``ray.train.tensorflow`` already asks for ``tf.keras``.
Importing this package does not import TensorFlow.
"""

from typing import Any

__all__ = ["KERAS_2", "PanelCallback"]

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
