"""Which Keras a process gets; and all that labkit does with Keras under both of them."""

import os
import subprocess
import sys

from labkit.models.keras import KERAS_2
from labs import python

PREPARE = "from labkit.models import keras; print(keras.prepare())"


def test_keras_2_and_too_late_is_told():
    assert python(PREPARE).stdout.splitlines()[-1].partition("Keras ")[2].startswith("2.")
    done = python("import tensorflow as tf; tf.keras.layers\n" + PREPARE, TF_USE_LEGACY_KERAS="0")
    assert done.returncode != 0
    assert "could not use Keras 2" in done.stdout and "restart the kernel" in done.stdout


def test_models_and_reports_work_with_keras_2(root):
    """In this process they are tested with Keras 3. What is followed in lesson 04 is Keras 2."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command.append(str(root / "tests" / "models" / "test_keras_models.py"))
    done = subprocess.run(
        command, cwd=root, env={**os.environ, **KERAS_2}, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout[-3000:]
