"""Which Keras a process gets, in silence; and all that labkit does with Keras under both of them."""

import os
import subprocess
import sys

from labkit.models.keras.backend import KERAS_2
from labs import python

PREPARE = """
from labkit.models.keras import backend as keras_settings
print(keras_settings.prepare())
import tensorflow as tf
print(tf.keras.Model.__module__.partition(".")[0], len(tf.config.list_logical_devices()))
"""


def test_keras_2_without_noise():
    done = python(PREPARE)
    first, second = done.stdout.splitlines()  # what TensorFlow writes to stderr would be a third line
    assert first.partition("Keras ")[2].startswith("2.")
    assert second.split() == ["tf_keras", "1"]


def test_too_late_is_told():
    done = python("import tensorflow as tf; tf.keras.layers\n" + PREPARE, TF_USE_LEGACY_KERAS="0")
    assert done.returncode != 0
    assert "could not use Keras 2" in done.stdout and "restart the kernel" in done.stdout


def test_models_and_reports_work_with_keras_2(root):
    """In this process they are tested with Keras 3. What is followed in lesson 04 is Keras 2."""
    files = [str(root / "tests" / "models" / f"test_keras_{name}.py") for name in ("models", "reporting")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, **KERAS_2}, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout[-3000:]
