"""Train a Keras model on two workers with Ray's TensorflowTrainer: what lesson 04 does, in plain Ray.

Prints TF_CONFIG in each worker, and in the end the accuracy of the checkpoint on held-out images.
"""

import os
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # before TensorFlow is imported: fit() needs Keras 2
import pyarrow.parquet
import ray
import ray.train
import tensorflow as tf
from ray.train.tensorflow import TensorflowTrainer
from ray.train.tensorflow.keras import ReportCheckpointCallback

DIGITS = Path(__file__).resolve().parents[2] / "datasets/digits.parquet"


def load_digits():
    table = pyarrow.parquet.read_table(DIGITS)
    images = table["image"].combine_chunks().to_numpy_ndarray().astype("float32") / 255
    return images, table["label"].to_numpy()


def train_loop(config):
    print(os.environ["TF_CONFIG"])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input((28, 28)),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(64, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=tf.keras.optimizers.Adam(0.005), loss=loss, metrics=["accuracy"])
    images, labels = config["data"]
    rows = tf.data.Dataset.from_tensor_slices((images[:1437], labels[:1437])).batch(128)  # the global batch
    model.fit(rows, epochs=config["epochs"], verbose=0, callbacks=[ReportCheckpointCallback()])


if __name__ == "__main__":
    ray.init("local", num_cpus=3)
    images, labels = load_digits()
    trainer = TensorflowTrainer(
        train_loop,
        train_loop_config={"data": (images, labels), "epochs": 8},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(worker_runtime_env={"env_vars": {"TF_USE_LEGACY_KERAS": "1"}}),
    )
    with trainer.fit().checkpoint.as_directory() as folder:
        model = tf.keras.models.load_model(f"{folder}/model.keras")
    accuracy = (model.predict(images[1437:], verbose=0).argmax(axis=1) == labels[1437:]).mean()
    print(f"accuracy on {len(labels) - 1437} test images: {accuracy:.3f}")
