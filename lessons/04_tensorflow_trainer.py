# %% [markdown]
# # 04 · The same in TensorFlow: TensorflowTrainer
#
# By the end of this lesson you can
# - choose the batch size for several workers, and say what a wrong one changes (exercise 04-1);
# - fix a Keras loop that trains the wrong thing without an error (04-2);
# - write a loop that resumes after a crash (04-3);
# - make sure that rows are divided among the workers exactly once (04-4).
#
# **Time** about 60 minutes · **Needs** 00, 01, 03, 03b

# %% [markdown]
# You have a Keras model, an epoch takes an hour on one GPU, and three more machines are idle. In PyTorch you wrap the model and keep your loop (lesson 03). In TensorFlow you choose a **strategy**, the object that distributes the training, build the model inside
# its scope, and call `fit` as always.
#
# Before that, one trap. In 2024 a maintainer of Ray tried [TensorFlow's own tutorial](https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras) on several workers, and it failed: since version 2.16, TensorFlow comes with Keras 3, whose `fit` doesn't work with
# a second worker ([keras 20585](https://github.com/keras-team/keras/issues/20585), still open). Keras 2 does. It is the package `tf-keras`, and TensorFlow uses it if an environment variable is set *before* TensorFlow is imported:

# %%
import os

KERAS_2 = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
os.environ.update(KERAS_2)  # the others: fewer log lines; no oneDNN kernels, which round differently

# %%
import tensorflow as tf
from course import datasets
from labkit.local import cluster

lab = cluster.start(preload="tensorflow")

# %% tags=["claim"]
assert tf.keras.Model.__module__.startswith("tf_keras.")

# %% [markdown] tags=["instructor"]
# **"PerReplica … unsupported type".** TensorFlow was imported before the variable was set, and took Keras 3. Restart the kernel and run the cells from the top.

# %% [markdown]
# `tf.keras` is now Keras 2: `tf.keras.Model.__module__` begins with `tf_keras`. If TensorFlow was imported before the variable was set, restart the kernel. Ray marks its `TensorflowTrainer` as beta.
#
# ## The loop you have
# This is a Keras loop for one machine, and the four changes that make it one for many:
#
# ```diff
#  def train_loop(config):
# -    model = make_model()
# +    strategy = tf.distribute.MultiWorkerMirroredStrategy()                    # 1
# +    with strategy.scope():                                                    # 2
# +        model = make_model()
#      rows = in_batches(train, config["batch_size"])
# -    model.fit(rows, epochs=config["epochs"])
# +    model.fit(rows, epochs=config["epochs"], callbacks=[ReportCheckpointCallback()])   # 3
#
# -train_loop({"batch_size": 128, "epochs": 8})
# +TensorflowTrainer(train_loop, train_loop_config=…, scaling_config=…, run_config=…).fit()   # 4
# ```
#
# The model and the data are ordinary Keras. A linear model can start with zeros, so we can compare separate runs later:

# %%
train = datasets.load(split="train")[:1408]  # eleven full batches of 128


def in_batches(digits, batch_size):
    images = digits.images.astype("float32") / 255
    return tf.data.Dataset.from_tensor_slices((images, digits.labels)).batch(batch_size)


def make_model():
    flat = tf.keras.layers.Flatten(input_shape=(28, 28))
    model = tf.keras.Sequential([flat, tf.keras.layers.Dense(10, kernel_initializer="zeros")])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=tf.keras.optimizers.SGD(0.1, momentum=0.9), loss=loss, metrics=["accuracy"])
    return model


# %% [markdown]
# And the loop, with the first three changes. Keras calls a **callback** at certain moments of `fit`. Ray's `ReportCheckpointCallback` reports the metrics after each epoch, together with a checkpoint of the model. What the loop returns, rank 0's value, becomes `result.return_value`: here the number of updates.

# %%
from ray.train import RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer
from ray.train.tensorflow.keras import ReportCheckpointCallback


def train_loop(config):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # 1
    with strategy.scope():  # 2
        model = make_model()
    rows = in_batches(train, config["batch_size"])
    model.fit(rows, epochs=config["epochs"], verbose=0, callbacks=[ReportCheckpointCallback()])  # 3
    return int(model.optimizer.iterations.numpy())


# %% [markdown] tags=["prediction"]
# **Predict.** The 1,408 rows are cut into batches of 128, and there are two workers. How many rows does *each worker* use in one step?

# %%
from course.exercises import check, hint, predict, reveal

predict("04-a", ...)  # a number

# %%
from labkit.train import TrainPanel

panel = TrainPanel("04-tensorflow")
trainer = TensorflowTrainer(  # 4
    train_loop,
    train_loop_config={"batch_size": 128, "epochs": 8},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(worker_runtime_env={"env_vars": KERAS_2}),
)
with panel.watch(trainer):
    result = trainer.fit()

reveal("04-a", 128 // 2)  # the comparison below proves it

# %% tags=["claim"]
assert result.return_value == 8 * 11  # 1408 / 128: a step uses 128 rows of both workers together

# %% [markdown] tags=["instructor"]
# **`batch_size` has the opposite meaning of lesson 03.** There it was the batch of one worker; here it's the *global* batch, and TensorFlow divides it. Nothing complains if you mix them up.

# %% [markdown]
# That was a distributed Keras run. (The printed lines warn that the model is saved as HDF5. The next section says what that means.) Each worker needs the environment variables, too, because it's a different process and perhaps on a different machine: that is what `worker_runtime_env` is for. Ray also set the variable `TF_CONFIG`, the list of all workers and this worker's index, which you would otherwise write by hand on each machine. (Keras makes the steps inside `fit`, where the panel doesn't see them; it follows the workers and what they report. If your epochs take minutes, add `labkit.keras.PanelCallback` to the callbacks, and the panel counts the steps, too.)
#
# ## What happens in a step
# **1 · `MultiWorkerMirroredStrategy`** connects the workers. Each of them has a **replica**, a copy of the whole model, and in each step the strategy adds up the gradients of all replicas and updates all copies alike. Keras divides each replica's mean loss by the number of replicas, so that this sum is a mean.
#
# **2 · The scope** is how the strategy gets to know the variables. A model that is built and compiled outside belongs to no strategy: each worker then trains a model of its own, and no error tells you.
#
# ![A global batch of 128 is cut into 64 for each of two replicas; their gradients are summed, and all copies are updated alike](images/strategy.svg)
#
# **The batch** is where PyTorch users make mistakes. A strategy treats the batch that it gets as the **global batch** and divides it. PyTorch does the opposite: there you give each worker its own batch of 64, and the global batch is 128.
#
# ### Exercise 04-1 ★ · A batch for all of them
# There are four workers and 4,608 rows, so each worker trains on 1,152 of them. Each should use 48 rows per step. Which `batch_size` do you choose? And if you choose 48 by mistake: how many rows does each worker use per step, and how many updates does an epoch have?

# %%
batch_size = ...  # your answer
rows_by_mistake = ...  # your answer
updates_by_mistake = ...  # your answer

# %% tags=["solution"]
batch_size = 4 * 48
rows_by_mistake = 48 // 4
updates_by_mistake = 1152 // rows_by_mistake

# %%
check("04-1", batch_size, rows_by_mistake, updates_by_mistake)

# %% [markdown]
# ## Is it the same model?
# You can check all of this with one comparison. Load the model from the checkpoint, which is a folder with the file `model.keras`, and train in this process with three different batch sizes. Keras 2 wrote this file, and Keras 2 reads it. Keras 3 doesn't: outside of the main thread, where Ray runs your loop, Keras 2 writes the older format HDF5, whatever the file's name says. That's what the printed warnings meant. For a model that Keras 3 should read, save it yourself with `save_format="keras_v3"`, as the callback below does, leave out `input_shape`, and read it with `load_model(…, compile=False)`.

# %% [markdown] tags=["prediction"]
# **Predict.** With which batch size does one process end with the weights of the two workers?

# %%
predict("04-c", ..., choices=["64", "128", "256"])


# %%
with result.checkpoint.as_directory() as folder:
    together = tf.keras.models.load_model(f"{folder}/model.keras")


def distance(batch_size):
    alone = make_model()
    alone.fit(in_batches(train, batch_size), epochs=8, verbose=0)
    return max(abs(a - b).max() for a, b in zip(alone.get_weights(), together.get_weights(), strict=True))


distances = {size: float(distance(int(size))) for size in ("64", "128", "256")}
print({size: f"{value:.1e}" for size, value in distances.items()})
reveal("04-c", min(distances, key=distances.get))

# %% tags=["claim"]
assert distances["128"] < 1e-3 < 1e-2 < min(distances["64"], distances["256"])

# %% [markdown]
# With 128 it's the same model, up to rounding. That's why this lesson uses 1,408 rows, which are full batches: a smaller last batch may not be divided evenly, and then some of its rows count more than others. All workers also have to make equally many steps. If you divide the rows yourself and one worker has more, both fail within seconds, with an error that doesn't name the cause. When you move a Keras script from one GPU to two, you keep the batch size to train the same model, or you double it to keep each GPU as busy as before. In the second case the learning rate should grow, too (lesson 03).

# %%
test = datasets.load(split="test")
loss, accuracy = together.evaluate(in_batches(test, 360), verbose=0)
print(f"accuracy on {len(test)} test images: {accuracy:.3f}")

# %% tags=["claim"]
assert accuracy >= 0.9

# %% [markdown]
# ### Exercise 04-2 ★★ · Fix this loop
# This loop should train *one* model on two workers, and each worker should use 64 rows per step. It runs without an error, but it does something else. Find the two mistakes. The check runs the loop on your cluster.


# %%
def fixed_loop(config):  # your answer: fix it
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    model = make_model()
    model.fit(in_batches(train, 64), epochs=1, verbose=0)
    replicas = model.distribute_strategy.num_replicas_in_sync
    return {"updates": int(model.optimizer.iterations.numpy()), "replicas": replicas}


# %% tags=["solution"]
def fixed_loop(config):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = make_model()
    model.fit(in_batches(train, 64 * strategy.num_replicas_in_sync), epochs=1, verbose=0)
    replicas = model.distribute_strategy.num_replicas_in_sync
    return {"updates": int(model.optimizer.iterations.numpy()), "replicas": replicas}


# %%
check("04-2", fixed_loop, len(train))

# %% [markdown] tags=["instructor"]
# **"The loop ran, so what is wrong with it?" (04-2)** That's the point: TensorFlow reports neither mistake. Say: "Count the models, then the rows of a
# step."

# %% [markdown]
# ## Divided once
# Every worker called `in_batches(train, …)` with *all* rows, and still no row was used twice. That's because TensorFlow divides a `tf.data.Dataset` among the workers by itself, which is called **auto-sharding**. It saves you a line, and it does harm when something else has divided the rows already: each worker
# then uses only a part of its part, and the only sign is short epochs. A Ray data set is such a case, because it gives each worker its own shard (lesson 03c). Its method `to_tf` therefore switches auto-sharding off.
#
# ### Exercise 04-4 ★ · Sharded once
# Write a function that returns how many rows all workers together process in one epoch. A row that two workers process counts twice. `by_ray` says whether Ray has already divided the rows, so that every worker gets only its part;
# otherwise each worker has all rows. `by_tensorflow` says whether auto-sharding is on. Assume that `rows` can be divided without a remainder.


# %%
def rows_seen(rows, workers, by_ray, by_tensorflow): ...  # your answer


# %% tags=["solution"]
def rows_seen(rows, workers, by_ray, by_tensorflow):
    in_each_worker = rows
    if by_ray:
        in_each_worker = in_each_worker // workers
    if by_tensorflow:
        in_each_worker = in_each_worker // workers
    return in_each_worker * workers


# %%
check("04-4", rows_seen)

# %% [markdown]
# ## Save by hand, to resume
# What if a worker dies in the last hour of a long run? Ray's callback saves the model and nothing else. To resume, a loop must also know which epoch comes next. So write your own callback: it saves the model, and the epoch in a small JSON file. `breaks_in` is an epoch in which it fails on purpose.

# %%
import json
import tempfile

import ray.train


class Report(tf.keras.callbacks.Callback):
    def __init__(self, breaks_in=None):
        super().__init__()
        self.breaks_in = breaks_in

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.breaks_in:
            raise OSError("the disk is full")
        with tempfile.TemporaryDirectory() as folder:
            self.model.save(f"{folder}/model.keras", save_format="keras_v3")
            with open(f"{folder}/state.json", "w") as file:
                json.dump({"epoch": epoch}, file)
            checkpoint = None
            if ray.train.get_context().get_world_rank() == 0:
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"epoch": epoch, "loss": logs["loss"]}, checkpoint=checkpoint)


# %% [markdown] tags=["instructor"]
# **Who saves?** In Keras *every* rank saves, because saving adds up metrics over all workers. In PyTorch only rank 0 did.

# %% [markdown]
# One thing differs from PyTorch, and it surprises everybody once: *every* rank must save. Saving adds up Keras's metrics over all workers, so a rank that saves alone waits for the others. Only rank 0 passes its folder to Ray, and `report` is a barrier, as in lesson 03b. And `save_format` makes it the format that the name `.keras` promises.
#
# A loop that starts again asks `ray.train.get_checkpoint()` for the latest checkpoint of its run. In the first attempt there is none, and it returns `None`. The saved model contains the optimizer, and the optimizer counts its updates, so `iterations` continues where it was.
#
# ### Exercise 04-3 ★★★ · A loop that resumes
# Write the loop. It trains `make_model()` on `in_batches(train[:512], 128)` until three epochs are done in all, under a strategy, with the callback `Report(breaks_in=1 if first == 0 else None)`. `first` is the epoch to start with: 0 in a new run, and otherwise the one after the saved epoch. Load the model *inside the scope*, and pass `initial_epoch` to `fit`.
# Return `{"first": …, "updates": …, "replicas": …}`, where `updates` is `int(model.optimizer.iterations.numpy())` and `replicas` is `model.distribute_strategy.num_replicas_in_sync`. In the check, the second epoch fails on both workers, and Ray starts the loop again.
#
# <details><summary>A version with blanks</summary>
#
# ```python
# def train_resumable(config):
#     strategy = tf.distribute.MultiWorkerMirroredStrategy()
#     checkpoint = ___
#     with strategy.scope():
#         if checkpoint is None:
#             model, first = make_model(), 0
#         else:
#             with checkpoint.as_directory() as folder:
#                 model = ___
#                 with open(f"{folder}/state.json") as file:
#                     first = ___
#     report = Report(breaks_in=1 if first == 0 else None)
#     model.fit(in_batches(train[:512], 128), initial_epoch=___, epochs=3, verbose=0, callbacks=[report])
#     replicas = model.distribute_strategy.num_replicas_in_sync
#     return {"first": first, "updates": int(model.optimizer.iterations.numpy()), "replicas": replicas}
# ```
# </details>


# %%
def train_resumable(config): ...  # your answer


# %% tags=["solution"]
def train_resumable(config):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    checkpoint = ray.train.get_checkpoint()
    with strategy.scope():
        if checkpoint is None:
            model, first = make_model(), 0
        else:
            with checkpoint.as_directory() as folder:
                model = tf.keras.models.load_model(f"{folder}/model.keras")
                with open(f"{folder}/state.json") as file:
                    first = json.load(file)["epoch"] + 1
    report = Report(breaks_in=1 if first == 0 else None)
    model.fit(in_batches(train[:512], 128), initial_epoch=first, epochs=3, verbose=0, callbacks=[report])
    replicas = model.distribute_strategy.num_replicas_in_sync
    return {"first": first, "updates": int(model.optimizer.iterations.numpy()), "replicas": replicas}


# %%
check("04-3", train_resumable)

# %% [markdown]
# The check asked for the restart with `FailureConfig(max_failures=1)`. If a run has ended with an error, a new trainer with the *same name* and storage resumes it in the same way.
#
# ## Start from an old run
# That was one run which continues. Often you want a *new* run that begins where an old one ended: two more epochs, other rows, a smaller learning rate. Older tutorials gave the old checkpoint to the trainer, as `resume_from_checkpoint=`. Today it's a value like any other: it goes into `train_loop_config`, and the loop loads it, inside the scope.


# %%
def train_on(config):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope(), config["checkpoint"].as_directory() as folder:
        model = tf.keras.models.load_model(f"{folder}/model.keras")
    model.fit(in_batches(train, 128), epochs=2, verbose=0, callbacks=[ReportCheckpointCallback()])
    return int(model.optimizer.iterations.numpy())


trainer = TensorflowTrainer(
    train_on,
    train_loop_config={"checkpoint": result.checkpoint},  # of the run at the beginning
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(worker_runtime_env={"env_vars": KERAS_2}),
)
continued = trainer.fit()
continued.return_value

# %% tags=["claim"]
assert continued.return_value == (8 + 2) * 11
assert continued.checkpoint.path != result.checkpoint.path

# %% [markdown]
# 88 updates of the old run and 22 new ones: the file has the optimizer, too. The new run has a name and checkpoints of its own, and the old one is unchanged.
#
# ## Key points
# - A strategy gets the *global* batch and divides it; in PyTorch you give each worker its own batch.
# - Build and compile the model inside the scope. Outside of it, every worker trains a model of its own, without an error.
# - Rows have to be divided once: by TensorFlow's auto-sharding, or by Ray.
# - Every rank saves and every rank reports; only rank 0 passes a folder. Save the epoch with the model.
# - A new run starts from an old checkpoint that you put into `train_loop_config`.
# - On several workers, `fit` needs Keras 2, chosen before TensorFlow is imported, in the workers, too.
#
# **A question to take along.** A colleague reports that two workers need half as many steps per epoch as one, that the loss falls as it should, and that the saved model is only as accurate as one worker's model after *half* of the epochs. Which two lines of the loop do you look at first?
#
# <details><summary>Compare your answer</summary>The line that builds the model: outside of the scope, each worker trains a model of its own on its part of the rows, and no error tells you. And the line that makes the data set: if Ray has divided the rows already, TensorFlow divides them again, and the only sign is a short epoch.</details>
#
# | older tutorials | today |
# |---|---|
# | `batch_size = 64 * world_size` | `64 * strategy.num_replicas_in_sync`, which also counts several GPUs per worker |
# | `TensorflowTrainer(…, resume_from_checkpoint=…)` | the checkpoint in `train_loop_config`, loaded inside the scope |
#
# Ray sets `OMP_NUM_THREADS` in each worker, but it doesn't limit TensorFlow's own threads. `notebooks/recipes/options_of_tensorflow_trainer.ipynb` shows how, and also `MirroredStrategy` for several GPUs in one process.
#
# Two more recipes go on from here: `notebooks/recipes/keras_from_a_ray_dataset.ipynb` for rows that don't fit into memory, and `notebooks/recipes/keras_3_step_by_hand.ipynb` for Keras 3.

# %% [markdown] tags=["plain"]
# ## Without the lab
# A similar job in plain Ray and TensorFlow, as the script [04_tensorflow_trainer.py](plain/04_tensorflow_trainer.py):

# %% [markdown] tags=["links"]
# ## Official pages

# %% [markdown]
# ## Stop

# %%
lab.stop()
