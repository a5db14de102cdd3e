# %% [markdown]
# # A Keras 3 step by hand, on two workers
#
# With several workers, only the `fit` of Keras 3 fails. Its layers and optimizers work, so you can write the step yourself. You'll see it, and check that two workers train the model that one process trains.
#
# You need lesson 04.

# %%
import os

KERAS_3 = {"TF_USE_LEGACY_KERAS": "0", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
os.environ.update(KERAS_3)

# %%
import tensorflow as tf
from course import datasets
from labkit.local import cluster

lab = cluster.start(preload=[])
digits = datasets.load(split="train")
x, y = digits.images.astype("float32") / 255, digits.labels
tf.keras.__version__

# %% [markdown]
# `tf.GradientTape` records the forward pass, and `apply_gradients` *adds up* the gradients of all workers. (DDP averages them.) So each worker divides the sum of its losses by the *global* batch; then the sum over the workers is the gradient of the mean loss.

# %%
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer


def make_model():
    start = tf.keras.initializers.GlorotUniform(seed=0)
    layers = [tf.keras.Input((28, 28)), tf.keras.layers.Flatten()]
    return tf.keras.Sequential([*layers, tf.keras.layers.Dense(10, kernel_initializer=start)])


# %%
def train_by_hand(strategy, rank, workers):
    with strategy.scope():
        model, optimizer = make_model(), tf.keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    losses = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def worker_step(images, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(losses(labels, model(images, training=True))) / 128
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    step = tf.function(lambda *batch: strategy.run(worker_step, args=batch))
    for first in range(0, 1408, 128):
        part = slice(first + rank, first + 128, workers)
        step(tf.constant(x[part]), tf.constant(y[part]))
    return [weights.tolist() for weights in model.get_weights()]


def train_loop(config):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    context = ray.train.get_context()
    return train_by_hand(strategy, context.get_world_rank(), context.get_world_size())


# %%
import numpy as np

trainer = TensorflowTrainer(
    train_loop,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(worker_runtime_env={"env_vars": KERAS_3}),
)
together = trainer.fit().return_value
alone = train_by_hand(tf.distribute.get_strategy(), rank=0, workers=1)
difference = max(np.abs(np.array(a) - np.array(b)).max() for a, b in zip(alone, together, strict=True))
print(f"{difference:.1e}")

# %% tags=["claim"]
assert difference < 1e-4

# %% [markdown]
# It is the same model, up to rounding. To train two models, such as a GAN, build both models and both optimizers inside the scope, and apply both in `worker_step`.

# %%
lab.stop()
