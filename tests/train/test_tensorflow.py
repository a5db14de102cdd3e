"""TensorFlow under Ray Train: a crash loses no epoch, and the panel sees what is reported.

Lesson 04 proves that the workers train one model, and that a new run can begin with an old one. Nothing
here imports TensorFlow: it is in the workers, with the Keras that each run asks for.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import ray.train
from loops import first_epoch, rank
from ray import cloudpickle
from ray.train import RunConfig, ScalingConfig

from course import datasets
from course.models import KERAS_2
from labkit.errors import RunFailed
from labkit.local import cluster
from labs import idle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("labkit/panel/", "labkit/worker/", "labkit/train/", "course/models/"),
    pytest.mark.fault,
]

# The workers cannot import this file: what is in it travels by value, as from a notebook.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# A worker's part of the rows is a multiple of the global batch: TensorFlow divides each batch it is given,
# and would make two small ones of a last batch that is not full.
GLOBAL_BATCH, ROWS, EPOCHS = 64, 384, 4


@pytest.fixture(scope="module")
def lab(home):
    os.environ.update(KERAS_2)  # the workers' imports are done ahead with the Keras of this process
    with cluster.start(nodes=2, cpus_per_node=2, preload="tensorflow") as lab:
        yield lab


def trainer_of(home, loop, *, environment=KERAS_2, **config):
    """Of `loop`, with one worker on each node; all runs have one name."""
    from ray.train.tensorflow import TensorflowTrainer

    return TensorflowTrainer(
        loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="SPREAD"),
        run_config=RunConfig(
            name="tf",
            storage_path=str(home / "runs"),
            worker_runtime_env={"env_vars": environment},
        ),
    )


# -- what the workers run ---------------------------------------------------------------------------


def batches():
    import tensorflow as tf

    train = datasets.load("digits", split="train")[:ROWS]
    return tf.data.Dataset.from_tensor_slices((train.images / np.float32(255), train.labels)).batch(
        GLOBAL_BATCH
    )


def compiled():
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    layers = [tf.keras.Input((28, 28)), tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)]
    model = tf.keras.Sequential(layers)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=tf.keras.optimizers.Adam(0.001), loss=loss)
    return model


def resumable(config):
    """Adam, one epoch at a time, from the last checkpoint on."""
    import tensorflow as tf

    checkpoint, first = ray.train.get_checkpoint(), first_epoch()
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        if checkpoint:
            with checkpoint.as_directory() as folder:
                model = tf.keras.models.load_model(f"{folder}/model.keras")
        else:
            model = compiled()
    print("first", first, "updates", int(model.optimizer.iterations.numpy()))
    for epoch in range(first, EPOCHS):
        if epoch == config.get("breaks_in"):
            # Ray's controller looks for reports five times a second, and drops what one rank reported
            # if it sees another one's error first. So wait until it has the last epoch's.
            ray.train.get_all_reported_checkpoints(ray.train.CheckpointConsistencyMode.COMMITTED)
            raise OSError("the disk is full")
        history = model.fit(batches(), initial_epoch=epoch, epochs=epoch + 1, verbose=0).history
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/model.keras")
            Path(folder, "epoch").write_text(str(epoch))
            kept = ray.train.Checkpoint.from_directory(folder) if rank() == 0 else None
            ray.train.report({"epoch": epoch, "loss": history["loss"][0]}, checkpoint=kept)


def with_fit_of_keras_3(config):
    import tensorflow as tf

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = compiled()
    model.fit(batches(), verbose=0)


# -- what is promised -------------------------------------------------------------------------------


def test_a_run_that_crashed_goes_on_from_its_last_epoch(lab, home, panel):
    with pytest.raises(RunFailed, match="OSError: the disk is full"):
        panel.fit(trainer_of(home, resumable, breaks_in=2))
    assert panel.state.failures[-1].rank in (0, 1) and idle(lab)
    assert [report["epoch"] for report in panel.state.history] == [0, 1]
    result = panel.fit(trainer_of(home, resumable))
    assert panel.state.status == "finished"
    assert {worker.node for worker in panel.state.workers.values()} == {"head", "node-2"}
    printed = {line.partition("] ")[2] for line in panel.state.prints}
    assert f"first 2 updates {2 * ROWS // GLOBAL_BATCH}" in printed  # the optimizer is in the file, too
    assert sorted(metrics["epoch"] for _, metrics in result.best_checkpoints) == [0, 1, 2, 3]


def test_fit_of_keras_3_fails_with_two_workers(lab, home, panel):
    """Ray issue 47464, keras issue 20585. When this fails, they are fixed, and tf-keras may go."""
    with pytest.raises(RunFailed) as failed:
        keras_3 = KERAS_2 | {"TF_USE_LEGACY_KERAS": "0"}
        panel.fit(trainer_of(home, with_fit_of_keras_3, environment=keras_3))
    assert "PerReplica" in panel.state.failures[-1].text or "PerReplica" in failed.value.fact
    assert idle(lab)
