"""Rows per second of lesson 04's training, against TensorFlow's own multi-worker script without Ray.

    .venv/bin/python -m benchmarks tf_throughput [--rows 60000] [--repeat 3] [--epochs 4] [--json FILE]

The same rows (rendered digits, uint8, one Parquet file for each worker), the same `mlp` 784-128-64-10 in
Keras 2, plain SGD, global batch 128, `fit` with `MultiWorkerMirroredStrategy`, one thread for each process.
In each round all come in turn.

- ray data, recipe: lesson 04's. Rows are read into Ray's object store once, before the training; `to_tf`,
  and `cache()`, which keeps the rows of the first epoch for the others.
- two scripts: all rows in each of two processes with a TF_CONFIG, which TensorFlow shards; without Ray.
- one process: all rows in memory, no strategy.

First epoch: from the moment when Keras begins it, with all that Ray Data has to start and TensorFlow has to
trace then. "Whole" is from the start of reading to the end of `fit()`, or of the programs. Later epochs:
their median. The last line is ``tf_throughput: ratio=…``, that of the later epochs of the recipe against
the two scripts.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import _throughput
from benchmarks._paired import Found
from course.models import KERAS_2
from labkit.local import cluster
from labkit.machine import free_port
from labkit.settings import Settings


def train(feed: Callable[[], Any], epochs: int, distributed: bool = True) -> list[float]:
    """Train, and return the seconds of each epoch. `feed()` gives a tf.data.Dataset of batches."""
    import contextlib

    import tensorflow as tf

    class Watch(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            seconds.append(time.perf_counter() - self.began)

    seconds: list[float] = []
    if distributed:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        scope = strategy.scope()
    else:
        tf.config.threading.set_intra_op_parallelism_threads(_throughput.WORKERS)
        scope = contextlib.nullcontext()
    with scope:
        layers = [tf.keras.layers.Dense(width, activation="relu") for width in (128, 64)]
        layers = [tf.keras.Input((28, 28)), tf.keras.layers.Flatten(), *layers, tf.keras.layers.Dense(10)]
        model = tf.keras.Sequential(layers)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss=loss)
    model.fit(feed(), epochs=epochs, verbose=0, callbacks=[Watch()])
    return seconds


def in_memory(folder: str) -> Any:
    """All rows, in global batches; of each TensorFlow gives every worker its part."""
    import tensorflow as tf

    from course.datasets import read_rows

    rows = tf.data.Dataset.from_tensor_slices(read_rows(folder))
    batches = rows.batch(_throughput.GLOBAL_BATCH)
    return batches.map(lambda image, label: (tf.cast(image, tf.float32) / 255, label))


def of_shard() -> Any:
    """This worker's shard, as lesson 04 has it."""
    import ray.train
    import tensorflow as tf

    rows = ray.train.get_dataset_shard("train").to_tf(
        "image",
        "label",
        batch_size=_throughput.GLOBAL_BATCH,
        feature_type_spec=tf.TensorSpec((None, 28, 28), tf.uint8, name="image"),
        label_type_spec=tf.TensorSpec((None,), tf.int64, name="label"),
    )
    return rows.cache().map(lambda image, label: (tf.cast(image, tf.float32) / 255, label))


def ray_loop(config: dict[str, Any]) -> None:
    """What each worker does; the seconds of its epochs go into a file."""
    import ray.train

    seconds = train(of_shard, config["epochs"])
    if ray.train.get_context().get_world_rank() == 0:
        Path(config["told"]).write_text(json.dumps(seconds))
    ray.train.report({"epochs": len(seconds)})


def in_ray(folder: str, options: Any) -> dict[str, float]:
    """A run of two workers in Ray."""
    import ray.data
    from ray.train import RunConfig, ScalingConfig
    from ray.train.tensorflow import TensorflowTrainer

    ray.data.DataContext.get_current().use_datasource_v2 = False  # lesson 02: with few files it is slower
    with tempfile.TemporaryDirectory() as place:
        told = f"{place}/seconds.json"
        began = time.perf_counter()
        TensorflowTrainer(
            ray_loop,
            train_loop_config={"epochs": options.epochs, "told": told},
            scaling_config=ScalingConfig(num_workers=_throughput.WORKERS),
            datasets={"train": ray.data.read_parquet(folder).materialize()},
            run_config=RunConfig(storage_path=f"{place}/runs", worker_runtime_env={"env_vars": KERAS_2}),
        ).fit()
        return _throughput.figures(json.loads(Path(told).read_text()), time.perf_counter() - began)


_PROGRAM = """
import json, sys
from benchmarks.tf_throughput import in_memory, train
folder, epochs, distributed = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
print("seen", json.dumps(train(lambda: in_memory(folder), epochs, distributed)), flush=True)
"""


def as_programs(count: int, folder: str, options: Any) -> dict[str, float]:
    """The same in `count` processes without Ray, each with its TF_CONFIG."""
    kept = _throughput.program_environment(**KERAS_2)
    kept.pop("TF_CONFIG", None)
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
    began = time.perf_counter()
    started = []
    for rank in range(count):
        told = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        environment = {**kept, "TF_CONFIG": json.dumps(told)} if count > 1 else kept
        command = [sys.executable, "-c", _PROGRAM, folder, str(options.epochs), str(count > 1)]
        started.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    ended = [process.communicate(timeout=600) for process in started]
    whole = time.perf_counter() - began
    seconds = _throughput.told_by(ended[0][0])
    if any(process.returncode for process in started) or seconds is None:
        raise SystemExit("a program failed:\n" + "\n".join(out + error for out, error in ended))
    return _throughput.figures(seconds, whole)


def main() -> None:
    options = _throughput.arguments(__doc__).parse_args()
    os.environ["LABKIT_PANEL"] = "none"
    settings = Settings.from_env()
    folder = _throughput.rows_folder(settings, options.rows)
    found = Found("tf_throughput", ours="ray data, recipe")
    os.environ.update(KERAS_2)
    with cluster.start(settings=settings, preload="tensorflow"):
        from labkit.data import quiet

        quiet()
        ways: dict[str, Callable[[], dict[str, float]]] = {
            "ray data, recipe": lambda: in_ray(folder, options),
            "two scripts": lambda: as_programs(_throughput.WORKERS, folder, options),
            "one process": lambda: as_programs(1, folder, options),
        }
        _throughput.compare(found, ways, "two scripts", options)


if __name__ == "__main__":
    main()
