# %% [markdown]
# # Options of TensorflowTrainer
#
# Five things that you can set, or have to know, when a Keras loop runs in workers: the threads of TensorFlow, the back end of the trainer, a `tf.data.Dataset` of your own around Ray's batches, metrics that are averaged already, and several GPUs in one process.
#
# You need lesson 04 and the recipe `keras_from_a_ray_dataset.ipynb`.

# %%
import os

KERAS_2 = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
os.environ.update(KERAS_2)

# %%
import numpy as np
import ray.data
import tensorflow as tf
from course import datasets
from labkit.local import cluster

lab = cluster.start(preload="tensorflow")
digits = datasets.load(split="train")[:1408]
by_label = digits[np.argsort(digits.labels, kind="stable")]
rows = [{"x": x, "y": int(y)} for x, y in zip(by_label.images, by_label.labels, strict=True)]
data = ray.data.from_items(rows, override_num_blocks=2)

# %% [markdown]
# The rows are sorted by label, in two blocks: one worker gets the small digits and the other one the large digits. That will help to see which rows a metric has counted.
#
# **Threads.** Ray sets `OMP_NUM_THREADS` to the number of CPUs that a worker has reserved. TensorFlow has two thread pools of its own, which don't follow that variable: *intra* for the parts of one operation, *inter* for operations that run at the same time. By default each has a thread per core, in every worker.
# With eight workers on a machine of eight cores, that's 64 threads in each kind of pool, which compete. Set both before TensorFlow runs its first operation; later it raises a `RuntimeError`.
#
# **A `tf.data.Dataset` of your own.** `to_tf` covers most cases. When you want to change batches in Python first, iterate with `iter_tf_batches` and wrap the generator. Then `prepare_dataset_shard` switches auto-sharding off, because Ray has divided the rows already, and prefetches.

# %%
import ray.train
from ray.train.tensorflow import TensorflowConfig, TensorflowTrainer, prepare_dataset_shard

SIGNATURE = (
    tf.TensorSpec((None, 28, 28), tf.float32),
    tf.TensorSpec((None,), tf.int64),
)


def feed(shard, batch_size):
    def batches():
        for batch in shard.iter_tf_batches(batch_size=batch_size):
            yield tf.cast(batch["x"], tf.float32) / 255, batch["y"]

    return prepare_dataset_shard(tf.data.Dataset.from_generator(batches, output_signature=SIGNATURE))


# %% [markdown]
# **Metrics.** With `MultiWorkerMirroredStrategy`, Keras adds up its metrics over all workers. So what you report on rank 0 is already the value of all rows, and you don't average it again. To see it, this model has a "metric" that ignores the model: the mean label.


# %%
def mean_label(labels, outputs):
    return tf.cast(labels, tf.float32)


def make_model():
    layers = [tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, kernel_initializer="zeros")]
    model = tf.keras.Sequential([tf.keras.layers.InputLayer((28, 28)), *layers])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss=loss, metrics=[mean_label])
    return model


# %%
def train_loop(config):
    threads = int(os.environ["OMP_NUM_THREADS"])
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = make_model()
    shard = ray.train.get_dataset_shard("train")
    own_labels = np.concatenate([batch["y"] for batch in shard.iter_batches()])
    history = model.fit(feed(shard, batch_size=128), epochs=1, verbose=0).history
    return {
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "labels of this worker": own_labels.mean(),
        "labels in Keras's metric": history["mean_label"][0],
    }


# %% [markdown]
# **The back end.** `TensorflowConfig` is what connects the workers: it writes `TF_CONFIG` into the environment of each. In Ray 2.60 it has no options. You pass it to say which back end you mean, and a class derived from it is the place for a set-up of your own.

# %%
trainer = TensorflowTrainer(
    train_loop,
    tensorflow_config=TensorflowConfig(),
    scaling_config=ray.train.ScalingConfig(num_workers=2),
    datasets={"train": data},
    run_config=ray.train.RunConfig(worker_runtime_env={"env_vars": KERAS_2}),
)
found = trainer.fit().return_value
found

# %% tags=["claim"]
half = by_label.labels[:704].mean(), by_label.labels[704:].mean()
assert found["threads"] == 1
assert min(abs(found["labels of this worker"] - mean) for mean in half) < 0.01
assert abs(found["labels in Keras's metric"] - by_label.labels.mean()) < 0.01

# %% [markdown]
# This worker saw only the labels of its half, and Keras's metric has the mean of all rows. The same is true of `loss` and `accuracy`.
#
# **Several GPUs in one process.** On one machine with several GPUs you need no second worker: `MirroredStrategy` keeps a replica on each GPU of *this* process and divides the global batch among them. On several machines, `MultiWorkerMirroredStrategy` uses all GPUs of each worker, so a worker may reserve
# more than one. Here, two logical CPUs play the part of GPUs, in a process of their own, because they have to be there before TensorFlow starts.


# %%
@ray.remote(num_cpus=1, runtime_env={"env_vars": KERAS_2})
def train_on_two_devices():
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = make_model()
    images = by_label.images.astype("float32") / 255
    model.fit(images, by_label.labels, batch_size=128, shuffle=False, epochs=1, verbose=0)
    return strategy.num_replicas_in_sync, model.get_weights()


replicas, of_two_devices = ray.get(train_on_two_devices.remote())
alone = make_model()
alone.fit(by_label.images.astype("float32") / 255, by_label.labels, batch_size=128, shuffle=False, verbose=0)
difference = max(abs(a - b).max() for a, b in zip(of_two_devices, alone.get_weights(), strict=True))
print(f"{replicas} replicas; largest difference of a weight from one device: {difference:.1e}")

# %% tags=["claim"]
assert replicas == 2 and difference < 1e-5

# %% [markdown]
# Two replicas in one process train the same model as one device, like two workers in lesson 04.

# %%
lab.stop()
