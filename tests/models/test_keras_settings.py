"""Which Keras a process gets, in silence; and all that labkit does with Keras under both of them."""

import os
import subprocess
import sys

import pytest

from labkit.models.keras.backend import KERAS_2
from labs import python

PREPARE = """
from labkit.models.keras import backend as keras_settings
print(keras_settings.prepare(getattr(keras_settings, {!r})))
import tensorflow as tf
print(tf.keras.Model.__module__.partition(".")[0], len(tf.config.list_logical_devices()))
"""


@pytest.mark.parametrize("name, package, major", [("KERAS_2", "tf_keras", "2"), ("KERAS_3", "keras", "3")])
def test_the_wanted_keras_without_noise(name, package, major):
    done = python(PREPARE.format(name))
    first, second = done.stdout.splitlines()  # what TensorFlow writes to stderr would be a third line
    assert first.partition("Keras ")[2].startswith(f"{major}.")
    assert second.split() == [package, "1"]


def test_too_late_is_told():
    code = "import tensorflow as tf; tf.keras.layers\n" + PREPARE.format("KERAS_2")
    done = python(code, TF_USE_LEGACY_KERAS="0")
    assert done.returncode != 0
    assert "could not use Keras 2" in done.stdout and "restart the kernel" in done.stdout


def test_models_states_and_reports_work_with_keras_2(root):
    """In this process they are tested with Keras 3. What is saved and followed in lesson 04 is Keras 2."""
    files = [
        str(root / "tests" / "models" / f"test_keras_{name}.py") for name in ("models", "states", "reporting")
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, **KERAS_2}, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout[-3000:]
