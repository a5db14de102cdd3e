"""A panel that follows Keras's `fit`; with Keras 3, and with Keras 2."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from course.models import KERAS_2
from labkit import runs
from labkit.errors import LabError
from labkit.keras import PanelCallback
from labkit.panel import Panel
from labkit.panel.reporters import NullReporter
from labkit.worker.events import Report, Step

pytestmark = [pytest.mark.slow, pytest.mark.covers("course/models/")]


RANDOM = np.random.default_rng(0)
X, Y = RANDOM.random((50, 28, 28), dtype=np.float32), np.arange(50) % 10


class Listening(Panel):
    """A panel that keeps the events that it gets."""

    events = ()

    def receive(self, event):
        self.events = [*self.events, event]
        super().receive(event)


@pytest.fixture
def panel(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    return Listening("keras", rows=50, reporter=NullReporter())


@pytest.fixture
def model():
    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential(
        [tf.keras.Input((28, 28)), tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


def counted():
    """Rows whose number TensorFlow knows beforehand."""
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(20)


def of_unknown_number():
    """As from Ray Data: Keras announces one batch more than there is, and then finds out."""
    signature = (tf.TensorSpec((None, 28, 28), tf.float32), tf.TensorSpec((None,), tf.int64))
    return tf.data.Dataset.from_generator(
        lambda: ((X[k : k + 20], Y[k : k + 20]) for k in (0, 20, 40)), output_signature=signature
    )


@pytest.mark.each_change
@pytest.mark.parametrize("rows", [of_unknown_number, counted])
def test_steps_rows_and_epochs_are_counted(panel, model, rows):
    names = {"loss": "loss", "accuracy": "val_accuracy"}
    follow = PanelCallback(rows_per_step=20, report=names)
    options = {"validation_data": (X[:10], Y[:10]), "validation_freq": 2, "verbose": 0}
    with panel:
        model.fit(rows(), epochs=2, callbacks=[follow], **options)
    ends = [event for event in panel.events if isinstance(event, Step) and event.done]
    assert [(end.epoch, end.step, end.rows) for end in ends] == [(0, 3, 60), (1, 3, 60)]
    assert all(end.metrics["loss"] > 0 and end.seconds > 0 for end in ends)
    reports = [event.metrics for event in panel.events if isinstance(event, Report)]
    # the first epoch had no validation
    assert [set(metrics) for metrics in reports] == [{"epoch", "loss"}, {"epoch", "loss", "accuracy"}]
    record = runs.latest("keras")
    assert (record.state, len(record.seconds_per_epoch)) == ("finished", 2)


@pytest.mark.each_change
def test_a_model_of_one_worker_is_refused_in_two(model, monkeypatch):
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(LabError, match="outside of the strategy's scope") as caught:
        model.fit(counted(), verbose=0, callbacks=[PanelCallback()])
    assert "with strategy.scope()" in caught.value.fix


ON_TORCH = """
import sys
import numpy as np

absent = {"tensorflow", "tf_keras", *sys.argv[1:]}

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        # None, as for a package that isn't installed: torch asks whether TensorFlow is there.
        return None if name.partition(".")[0] in absent else self.finder.find_spec(name, path, target)

sys.meta_path = [Without(finder) for finder in sys.meta_path]
from labkit.errors import LabError
from labkit.panel import Panel
from labkit.panel.reporters import NullReporter
try:
    from labkit.keras import PanelCallback
except LabError as error:
    print(error)
    raise SystemExit
import keras
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
x, y = np.ones((60, 4), "float32"), np.ones((60, 1), "float32")
for rows in (16, None):
    with Panel("keras", epochs=2, reporter=NullReporter()) as panel:
        follow = PanelCallback(rows_per_step=rows, report={"loss": "loss"})
        model.fit(x, y, epochs=2, batch_size=16, verbose=0, callbacks=[follow])
    worker, record = panel.state.workers[0], panel.state.to_record()
    print(worker.made, worker.rows, len(record["history"]), record["rows_per_second"] is None)
"""


def test_keras_on_torch_without_tensorflow(tmp_path):
    environment = {**os.environ, "KERAS_BACKEND": "torch", "LABKIT_HOME": str(tmp_path)}
    environment.pop("TF_USE_LEGACY_KERAS", None)

    def run(*without):
        command = [sys.executable, "-c", ON_TORCH, *without]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)

    done = run()
    assert done.stdout.splitlines() == ["8 128 2 False", "8 0 2 True"], done.stderr
    assert "could not follow a fit of Keras" in run("keras").stdout


def test_all_of_it_works_with_keras_2(root):
    """In this process it is tested with Keras 3. What is followed in lesson 04 is Keras 2."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        __file__,
        "-k",
        "not keras_2 and not on_torch",
    ]
    environment = {**os.environ, **KERAS_2}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout[-3000:]
