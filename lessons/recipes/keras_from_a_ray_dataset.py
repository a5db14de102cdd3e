# %% [markdown]
# # Feed Keras from a Ray dataset
#
# If your rows don't fit into memory, let Ray Data read them (lesson 02) and give each worker its shard. Two details differ from PyTorch: `to_tf` gets the *global* batch, and TensorFlow must not divide the rows a second time.
#
# You need lessons 02 and 04.

# %%
import os

KERAS_2 = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
os.environ.update(KERAS_2)

# %%
import ray.data
import tensorflow as tf
from course import datasets
from labkit.local import cluster

lab = cluster.start(preload="tensorflow")
digits = datasets.load(split="train")
data = ray.data.from_items(
    [{"image": image, "label": int(label)} for image, label in zip(digits.images, digits.labels, strict=True)]
)

# %% [markdown]
# `to_tf` makes a `tf.data.Dataset` out of a worker's shard. You have to give the shape and dtype of each column, because Ray can't infer them for images. It also switches auto-sharding off, so the rows are divided only once.

# %%
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer


def feed(shard, batch_size):
    image = tf.TensorSpec((None, 28, 28), tf.uint8, name="image")
    label = tf.TensorSpec((None,), tf.int64, name="label")
    rows = shard.to_tf(
        "image", "label", batch_size=batch_size, feature_type_spec=image, label_type_spec=label
    )
    return rows.map(lambda image, label: (tf.cast(image, tf.float32) / 255, label))


# %%
def train_loop(config):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        layers = [tf.keras.Input((28, 28)), tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)]
        model = tf.keras.Sequential(layers)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss=loss)
    rows = feed(ray.train.get_dataset_shard("train"), batch_size=128)
    model.fit(rows, epochs=4, verbose=0)
    policy = rows.options().experimental_distribute.auto_shard_policy
    return {"updates": int(model.optimizer.iterations.numpy()), "auto-sharding": policy.name}


trainer = TensorflowTrainer(
    train_loop,
    scaling_config=ScalingConfig(num_workers=2),
    datasets={"train": data},
    run_config=RunConfig(worker_runtime_env={"env_vars": KERAS_2}),
)
found = trainer.fit().return_value
found

# %% tags=["claim"]
assert found["auto-sharding"] == "OFF"
assert found["updates"] // 4 == 12

# %% [markdown]
# Each worker's shard has 718 rows, and an epoch has 12 updates: 64 rows of this worker in each. The other 64 rows of a batch aren't lost; they are this worker's next step. For a `tf.data.Dataset` that you build from a shard yourself, `ray.train.tensorflow.prepare_dataset_shard` switches auto-sharding off.

# %%
lab.stop()
