"""The panel follows `fit`: its batches, its rows, its epochs, its evaluation."""

import json

import numpy as np
import pytest
import tensorflow as tf

from labkit import runs
from labkit.errors import LabError
from labkit.models.keras import mlp
from labkit.models.keras.callback import PanelCallback
from labkit.panel import Panel
from labkit.panel.reporters import NullReporter

X = np.random.default_rng(0).random((50, 28, 28), dtype=np.float32)
Y = np.arange(50) % 10


@pytest.fixture
def panel(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    panel = Panel("keras", rows=50, reporter=NullReporter())
    panel.events = []
    receive = panel.receive
    panel.receive = lambda event: (panel.events.append(event), receive(event))
    panel._send = panel.receive
    return panel


@pytest.fixture
def model():
    model = mlp((4,), seed=0)
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


@pytest.mark.parametrize("rows, known", [(of_unknown_number, 50), (counted, None)])
def test_steps_rows_and_epochs_are_counted(panel, model, rows, known):
    report = {"loss": "loss", "accuracy": "val_accuracy"}
    follow = PanelCallback(rows_per_step=20, rows=known, report=report)
    with panel:
        model.fit(rows(), epochs=2, validation_data=(X[:10], Y[:10]), verbose=0, callbacks=[follow])
    ends = [event for event in panel.events if event["kind"] == "step" and event["done"]]
    assert [(e["epoch"], e["step"], e["total"]) for e in ends] == [(0, 3, 3), (1, 3, 3)]
    assert [e["rows"] for e in ends] == [50 if known else 60] * 2
    assert all(e["metrics"]["loss"] > 0 and e["seconds"] > 0 for e in ends)
    reports = [event for event in panel.events if event["kind"] == "report"]
    assert [report["epoch"] for report in reports] == [0, 1]
    assert set(reports[0]["metrics"]) == {"epoch", "loss", "accuracy"}
    record = runs.latest("keras")
    assert (record.state, len(record.seconds_per_epoch)) == ("finished", 2)


def test_a_model_of_one_worker_is_refused_in_two(panel, model, monkeypatch):
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(LabError, match="outside of the strategy's scope") as caught:
        model.fit(counted(), verbose=0, callbacks=[PanelCallback()])
    assert "with strategy.scope()" in caught.value.fix
