"""Which Keras a process uses, and how quiet TensorFlow is: both are decided before its import.

    backend.prepare()                                         # in the notebook, before TensorFlow is imported
    RunConfig(worker_runtime_env={"env_vars": KERAS_2})       # in the workers

Keras 3's ``model.fit`` does not work with MultiWorkerMirroredStrategy: with two workers it raises
"PerReplica … unsupported type" (ray issue 47464, keras issue 20585, both open). Keras 2 lives on as the
package ``tf-keras``, which TensorFlow uses as ``tf.keras`` if TF_USE_LEGACY_KERAS=1. Ray's trainer sets that
variable in its workers, but too late: importing ``ray.train.tensorflow`` already asks for ``tf.keras``.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

from labkit.errors import LabError

_QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",  # errors of TensorFlow's own come as Python exceptions anyway
    "TF_ENABLE_ONEDNN_OPTS": "0",  # no notice about other roundings, and no other roundings
}
# The environment of a process in which ``tf.keras`` is Keras 2 (the package ``tf-keras``), or Keras 3.
KERAS_2 = {**_QUIET, "TF_USE_LEGACY_KERAS": "1"}
KERAS_3 = {**_QUIET, "TF_USE_LEGACY_KERAS": "0"}


def prepare() -> str:
    """Set `KERAS_2` in this process, import TensorFlow quietly, and return both versions in words.

    Raises:
        LabError: TensorFlow was imported before, with Keras 3.
    """
    os.environ.update(KERAS_2)
    with _quiet_stderr():
        import tensorflow as tf

        package = tf.keras.Model.__module__.partition(".")[0]  # asking for it makes TensorFlow choose
    version = sys.modules[package].__version__
    if not version.startswith("2."):
        fact = f"TensorFlow was imported before, and took Keras {version}"
        fix = "restart the kernel, and let this cell come before every import of TensorFlow"
        raise LabError("use Keras 2 in this process", fact, fix)
    return f"TensorFlow {tf.__version__}, Keras {version}"


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Hold back what C++ writes to the process's stderr; if the block fails, write it after all.

    What is written before absl is initialised ("Could not find cuda drivers") obeys no variable.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as kept:
        saved = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(saved, kept.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
