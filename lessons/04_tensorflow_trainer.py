# %% [markdown]
# # 04 · The same in TensorFlow: TensorflowTrainer
#
# **You will be able to** train a Keras model on several workers at once; explain what `TF_CONFIG`, the strategy's scope and the global batch are for, and show that
# the workers train one model; feed data to `fit` in three ways; save a model, load it, and resume after a crash; write the training loop yourself where `fit` isn't
# enough; and compare all of it with lesson 03, in measured seconds. · **Time** 45 min (3 of them waiting) · **Needs** 00, 01; 03 helps
#
# Lesson 03 distributed a PyTorch training. Here you do the same for a Keras model, with the same data and the same network. What differs is who does what. In PyTorch
# you write the loop and wrap the model. In TensorFlow you choose a **strategy**, the object that distributes the training; you build the model inside its scope, and
# call `fit`.
#
# A **worker** in this lesson is a training process of Ray Train. TensorFlow has the same word for its own processes, and here they are the same ones.

# %% [markdown]
# ## Two Kerases
# Many tutorials on this topic no longer run. TensorFlow has come with Keras 3 since version 2.16, and its `model.fit` fails under `MultiWorkerMirroredStrategy` as
# soon as there is a second worker:
#
# ```
# ValueError: Attempt to convert a value (PerReplica: …) with an unsupported type to a Tensor.
# ```
#
# Both projects have an open issue about it ([ray 47464](https://github.com/ray-project/ray/issues/47464),
# [keras 20585](https://github.com/keras-team/keras/issues/20585)). The strategy that Keras 3 documents, `MirroredStrategy`, is for several GPUs in one process, so it
# doesn't help here.
#
# Keras 2 still works. It lives on as the package `tf-keras`, and TensorFlow uses that package if the environment variable `TF_USE_LEGACY_KERAS` is 1. The variable
# must be set *before* TensorFlow is imported, so do that first, before any other cell can import it:

# %%
from labkit.models.keras import backend as keras_settings

keras_settings.prepare()

# %% [markdown]
# That was for this process. The workers are separate processes, perhaps on other machines, so don't count on them to inherit its variables: you pass the same ones
# with each run. The other two make TensorFlow quieter: `TF_CPP_MIN_LOG_LEVEL` hides its log messages, for example about GPUs that it didn't find, and
# `TF_ENABLE_ONEDNN_OPTS=0` switches off optimizations that round differently, and the notice about them.

# %%
keras_settings.KERAS_2

# %% [markdown]
# Ray's trainer sets `TF_USE_LEGACY_KERAS` in its workers, too. In Ray 2.60 that comes too late: by then the worker has already imported TensorFlow and chosen Keras 3.

# %% [markdown]
# ## A cluster whose workers know TensorFlow
# Importing TensorFlow takes seconds. On Linux, the lab therefore does it only once per node, in a process from which the workers are forked. `preload` says what that
# process imports. In lesson 03 it was PyTorch, the default; now it is TensorFlow with Keras 2.

# %%
from labkit import cluster, datasets, storage
from labkit.settings import Settings

settings = Settings.from_env()
lab = cluster.start(preload="tensorflow")
lab

# %%
store = storage.start()
store

# %% [markdown]
# ## Quick start: a line through 200 points
# This example is small enough to read in one go. The points lie on the line y = 3x + 1. `override_num_blocks` asks for one block per worker. By default `from_items`
# would make 200 one-row blocks here, and fetching 200 blocks would take longer than the training (lesson 02).

# %%
import ray.data

points = ray.data.from_items(
    [{"x": k / 100, "y": 3 * k / 100 + 1} for k in range(200)], override_num_blocks=settings.num_workers
)

# %%
import os

import ray.train
import tensorflow as tf
from labkit.models.keras import PanelCallback
from ray.train.tensorflow.keras import ReportCheckpointCallback


def fit_a_line():
    print(os.environ["TF_CONFIG"])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
        model.compile(optimizer=tf.keras.optimizers.SGD(0.15), loss="mse")
    rows = ray.train.get_dataset_shard("train").to_tf("x", "y", batch_size=10)
    model.fit(rows, epochs=5, verbose=0, callbacks=[PanelCallback(panel), ReportCheckpointCallback()])
    slope, start = (weights.item() for weights in model.get_weights())
    print(f"y = {slope:.2f} x + {start:.2f}")


# %% [markdown]
# Four things are new:
# - `MultiWorkerMirroredStrategy` connects the workers. Each has a copy of the model, and the strategy keeps the copies equal.
# - The model is built and compiled inside the strategy's **scope**. That is how the strategy gets to know its variables.
# - `to_tf` makes a `tf.data.Dataset` out of the worker's **shard**, its part of the data set.
# - While `fit` runs its loop, Keras calls **callbacks**, for example after each epoch. `ReportCheckpointCallback` is Ray's: after each epoch it calls
#   `ray.train.report` with the metrics and the model. `PanelCallback` is the lab's: it reports to the panel what `panel.steps` reports in a loop of your own.
#
# The trainer works like the one in lesson 03, under another name. `worker_runtime_env` passes the environment variables to the workers.

# %%
from labkit.train import TrainPanel
from ray.train import RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer


def run_config(panel, run_name=None, environment=keras_settings.KERAS_2):
    return RunConfig(
        name=run_name or panel.run_id,
        storage_path=store.storage_path("runs", panel.state.name),
        storage_filesystem=store.filesystem,
        worker_runtime_env={"env_vars": environment},
        callbacks=[panel.callback()],
    )


# %%
scaling = ScalingConfig(num_workers=settings.num_workers, use_gpu=settings.use_gpu)

panel = TrainPanel("04-line", rows=200)
trainer = TensorflowTrainer(
    fit_a_line, scaling_config=scaling, datasets={"train": points}, run_config=run_config(panel)
)
with panel.watch(trainer):
    result = trainer.fit()

# %% [markdown]
# Look at the printed lines of the panel. All workers found the same line, because they trained one model.
#
# They also printed `TF_CONFIG`. It has the addresses of all workers, the same list for each, and `task` says which of them this worker is. By default,
# `MultiWorkerMirroredStrategy` uses it to find the other workers. Without Ray you would write it by hand on each machine. Ray looks for a free port on every worker
# and sets the variable before your function starts. The class that does this is `TensorflowConfig`. It has no options, so you never need to pass one:
# `tensorflow_config=TensorflowConfig()` is the default.

# %%
result.metrics

# %% [markdown]
# ## The digits, in one process
# The baseline is one process with one thread, because each worker will have one thread, too. TensorFlow accepts this setting only before its first operation.

# %%
tf.config.threading.set_intra_op_parallelism_threads(1)

# %% [markdown]
# The network is the `cnn` from lesson 03: two convolutions with pooling, then one dense layer, in a `tf.keras.Sequential`. Even its initial weights are the same,
# number by number.

# %%
from labkit.models.keras import cnn, mlp, to_input

train = datasets.load(split="train")
test = datasets.load(split="test")
cnn(seed=0).count_params()


# %% [markdown]
# `compile` gives a model its optimizer, its loss and its metrics. `in_batches` makes a `tf.data.Dataset` of batches out of images that are in memory:


# %%
def compiled(model, optimizer):
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    return model


def in_batches(rows, batch_size):
    return tf.data.Dataset.from_tensor_slices((to_input(rows.images), rows.labels)).batch(batch_size)


# %% [markdown]
# Here there is no `ray.train.report`, so `PanelCallback(report=…)` sends each epoch's metrics to the panel itself.

# %%
from labkit.panel import Panel

epochs = 6 if settings.small else 10
metrics = {"loss": "loss", "accuracy": "val_accuracy"}  # the name in the panel, and Keras's name

panel = Panel("04-one-process", dataset=train.name, rows=len(train))
with panel:
    model = compiled(cnn(seed=0), tf.keras.optimizers.Adam(0.005))
    follow = PanelCallback(panel, rows_per_step=128, rows=len(train), report=metrics)
    model.fit(
        in_batches(train, 128),
        epochs=epochs,
        validation_data=in_batches(test, 512),
        verbose=0,
        callbacks=[follow],
    )

# %% [markdown]
# This is the time that the workers have to beat.

# %% [markdown]
# ## On the workers
# The images go to the object store, as in lesson 03, and Ray Data reads them from there.

# %%
from labkit.storage import upload_shards

upload_shards(train, store, "lab-04", prefix="train", rows_per_shard=len(train) // 4 + 1)
ray.data.DataContext.get_current().use_datasource_v2 = False  # few rows: lesson 02 says why

data = ray.data.read_parquet("lab-04/train", filesystem=store.filesystem)
data.schema()


# %% [markdown]
# A worker should use as many threads as it has CPUs: one, unless you ask for more. Ray sets `OMP_NUM_THREADS` to that number, and PyTorch obeys it. TensorFlow
# doesn't, so you have to set the number of threads yourself, before its first operation in the worker.


# %%
def start_strategy():
    print("OMP_NUM_THREADS:", os.environ.get("OMP_NUM_THREADS"))
    tf.config.threading.set_intra_op_parallelism_threads(1)
    return tf.distribute.MultiWorkerMirroredStrategy()


# %% [markdown]
# **The first way to feed it: `to_tf`.** You have to give the shape and the dtype of each column, because for a column of images this version of Ray can't infer them.


# %%
def first_way(shard, batch_size):
    rows = shard.to_tf(
        "image",
        "label",
        batch_size=batch_size,
        feature_type_spec=tf.TensorSpec((None, 28, 28), tf.uint8, name="image"),
        label_type_spec=tf.TensorSpec((None,), tf.int64, name="label"),
    )
    return rows.map(lambda image, label: (to_input(image), label))


# %% [markdown]
# ### Five lines change
# | | one process | many processes |
# |---|---|---|
# | 1 | | `strategy = …MultiWorkerMirroredStrategy()` |
# | 2 | `model = compiled(cnn(seed=0), …)` | the same, `with strategy.scope():` |
# | 3 | the images are in memory | `get_dataset_shard("train")` |
# | 4 | `in_batches(train, 128)` | `to_tf(…, batch_size=…)`, the global batch |
# | 5 | `PanelCallback(…, report=…)` | and a callback that calls `ray.train.report` |
#
# Apart from its arguments, the call to `fit` doesn't change.


# %%
def train_loop(config):
    strategy = start_strategy()
    with strategy.scope():
        model = compiled(cnn(seed=0), tf.keras.optimizers.Adam(0.005))
    shard, workers = ray.train.get_dataset_shard("train"), strategy.num_replicas_in_sync
    follow = PanelCallback(panel, rows_per_step=config["worker_batch"], rows=config["rows"] // workers)
    model.fit(
        first_way(shard, config["worker_batch"] * workers),
        epochs=config["epochs"],
        validation_data=in_batches(test, 512),
        verbose=0,
        callbacks=[follow, ReportCheckpointCallback(metrics=metrics)],
    )
    print("updates:", model.optimizer.iterations.numpy())


# %% [markdown]
# `num_replicas_in_sync` is the number of workers. If the workers have several GPUs each, it is the number of all their GPUs.

# %% [markdown] tags=["prediction"]
# **Before you go on:** with two workers, `to_tf` gets a `batch_size` of `64 * 2 = 128` in *each* of them. The digits have 1,437 images for training, so each of two
# workers has a shard of 718; Ray drops the odd one to make the shards equally long. How many images will a worker use in a step, and how many updates does an epoch
# have? (With another data set or more workers, calculate with your own numbers.)

# %%
panel = TrainPanel("04-tensorflow", dataset=train.name, rows=len(train))
trainer = TensorflowTrainer(
    train_loop,
    train_loop_config={
        "epochs": epochs,
        "worker_batch": 128 // settings.num_workers,
        "rows": len(train),
    },
    scaling_config=scaling,
    datasets={"train": data},
    run_config=run_config(panel),
)
with panel.watch(trainer):
    result = trainer.fit()

# %% [markdown]
# Divide the updates by the epochs. For the digits on two workers that is 12. (One is left over. Keras doesn't know how long a dataset from Ray is, so in the first
# epoch it tries one step too many, and counts it.) With 12 updates for 718 images, a worker used 64 of them in a step, not 128. `fit` treats the batch that it gets as
# the **global batch**: it divides it by the number of workers, and each worker uses one part per step. In lesson 03 it was the other way round: there you gave each
# worker its own part, 64.
#
# If you pass `batch_size=64` here, as you would in PyTorch, nothing complains. You simply run a different training: each worker uses 32 images per step, and an epoch
# has twice as many steps with half the images in each. It is also slower.

# %% [markdown]
# ### Exercise 04-1 · A batch for all of them
# There are four workers and 4,608 rows, so each worker has a shard of 1,152. Each should use 48 rows per step. Which `batch_size` do you pass to `to_tf`?
#
# And if you pass 48 by mistake: how many rows does each worker use per step, and how many updates does an epoch have?

# %%
from labkit.exercises import check, hint

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
# ## What came back
# Each worker saw only a part of the rows, so where do these metrics come from? Every worker has a **rank**, a number from 0 on, and Ray keeps the metrics that rank 0
# reports. That is enough here, because Keras has already combined its metrics over all workers: every rank reports the same ones.

# %%
result.metrics

# %%
from pyarrow.fs import FileSelector

files = result.filesystem.get_file_info(FileSelector(result.path, recursive=True))
sorted({file.base_name for file in files if file.is_file})

# %% [markdown]
# A checkpoint is a folder that contains `model.keras`. With this callback every rank uploads it, and all have the same one. The file holds the layers, the weights and
# the optimizer. So you can load it without `cnn(…)`, and without even knowing that it was one:

# %%
from labkit.models.keras import load_state

with result.checkpoint.as_directory() as folder:
    model, _ = load_state(folder)

_, accuracy = model.evaluate(in_batches(test, 512), verbose=0)
print(f"accuracy on {len(test)} test images: {accuracy:.3f}")

# %% [markdown]
# `load_state` calls `tf.keras.models.load_model`, and says plainly what is wrong if the file is missing or damaged. You should see at least 0.93.
#
# There is a trap if you open the file by other means: in spite of its name, it is in the HDF5 format. Keras 2 remembers for each thread whether `.keras` stands for
# its own format. Outside the main thread it forgets this after the first save or load, and Ray runs your loop in a thread of its own. So a worker's first checkpoint
# is in Keras's format, and all later ones are HDF5. `model.save(path, save_format="keras_v3")` always writes Keras's format.

# %% [markdown]
# ## Shard once
# **The second way to feed it: TensorFlow alone.** Each worker loads *all* rows and passes them to `fit`. TensorFlow then shards them itself, which is called
# **auto-sharding**: of every 128 rows, one of two workers uses the first half and the other the second. The test images went that way above, in `validation_data`.
#
# Ray Data has already given each worker its own part. If TensorFlow shards *again*, each worker uses only a part of its part, and the rest is never seen. There is no
# error; the epochs are just shorter. `to_tf` switches auto-sharding off. For a `tf.data.Dataset` of your own, `prepare_dataset_shard` does it.
#
# **The third way: `iter_tf_batches`** inside a generator. Here you can do whatever you like with a batch before TensorFlow gets it. In return you have to declare the
# shapes and dtypes of what the generator yields: its signature.

# %%
from ray.train.tensorflow import prepare_dataset_shard

SIGNATURE = (tf.TensorSpec((None, 28, 28), tf.float32), tf.TensorSpec((None,), tf.int64))


def third_way(shard, batch_size):
    def generate():
        for batch in shard.iter_tf_batches(batch_size=batch_size):
            yield to_input(batch["image"]), batch["label"]

    return prepare_dataset_shard(tf.data.Dataset.from_generator(generate, output_signature=SIGNATURE))


# %% [markdown]
# What does this dataset yield? With `num_workers=0` the loop runs here, in this process, as in lesson 03:


# %%
def look(config):
    rows = third_way(ray.train.get_dataset_shard("train"), batch_size=4)
    for images, labels in rows.take(1):
        print(images.dtype.name, images.shape, labels.numpy())
    print("auto-sharding:", rows.options().experimental_distribute.auto_shard_policy.name)


here = ScalingConfig(num_workers=0)
result = TensorflowTrainer(look, train_loop_config={}, scaling_config=here, datasets={"train": data}).fit()

# %% [markdown]
# ### Exercise 04-2 · Sharded once
# Write a function that returns how many rows all workers together process in one epoch. A row that two workers process counts twice. `rows` is the size of the data
# set. `by_ray` says whether every worker gets only its shard from Ray; otherwise each worker has all rows. `by_tensorflow` says whether auto-sharding is on. Assume
# that `rows` can be divided without a remainder.


# %%
def rows_seen(rows, workers, by_ray, by_tensorflow): ...  # your answer


# %% tags=["solution"]
def rows_seen(rows, workers, by_ray, by_tensorflow):
    in_each_worker = rows
    for cuts in (by_ray, by_tensorflow):
        if cuts:
            in_each_worker //= workers
    return in_each_worker * workers


# %%
check("04-2", rows_seen)

# %% [markdown]
# ## When a worker fails
# `ReportCheckpointCallback` saves the model and nothing else. To resume, a training must also know which epoch to start from. So this time you report by hand: a
# folder with the model and a small JSON file.
#
# `save_state(folder, model, epoch)` writes both: it calls `model.save` with `save_format="keras_v3"`, and writes the epoch to `state.json`. One thing differs from
# PyTorch: *every* rank must save. Each worker counts its own part of Keras's metrics, and saving the model adds these up over all workers. If rank 0 saves alone, it
# waits for the others. But only rank 0 has to pass its folder to Ray.

# %% [markdown]
# ### Exercise 04-3 · Who saves, who reports
# Write the end of an epoch, for any number of workers. `save` takes the folder. `report` takes the metrics and a checkpoint; to keep it simple, the folder itself is
# the checkpoint here.


# %%
def end_of_epoch(rank, save, folder, report, metrics): ...  # your answer


# %% tags=["solution"]
def end_of_epoch(rank, save, folder, report, metrics):
    save(folder)
    report(metrics, checkpoint=folder if rank == 0 else None)


# %%
check("04-3", end_of_epoch)

# %% [markdown]
# Here is the same logic as a Keras callback. You override only the hooks you need. `breaks_in` is the epoch in which it raises an error on purpose:

# %%
import tempfile

from labkit.models.keras import save_state


class Report(tf.keras.callbacks.Callback):
    def __init__(self, breaks_in):
        super().__init__()
        self.breaks_in = breaks_in

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.breaks_in:
            raise OSError("the disk is full")
        with tempfile.TemporaryDirectory() as folder:
            save_state(folder, self.model, epoch)
            rank = ray.train.get_context().get_world_rank()
            checkpoint = ray.train.Checkpoint.from_directory(folder) if rank == 0 else None
            report = {"epoch": epoch, "loss": logs["loss"], "accuracy": logs["accuracy"]}
            ray.train.report(report, checkpoint=checkpoint)


# %% [markdown]
# When it starts, the loop looks for a checkpoint: first one of this run, then one in its config. `load_state` returns a compiled model with the optimizer's state
# restored. It must be called inside the scope, too. The rows come the second way this time, because that keeps them in a fixed order. You will soon see why this
# matters.

# %%
dataset, full = train.name, len(train) // 128 * 128


def train_resumable(config):
    strategy, first = start_strategy(), 0
    checkpoint = ray.train.get_checkpoint() or config.get("checkpoint")
    with strategy.scope():
        if checkpoint:
            with checkpoint.as_directory() as folder:
                model, state = load_state(folder)
            first = state["epoch"] + 1
        else:
            model = compiled(mlp(seed=0), tf.keras.optimizers.SGD(0.05, momentum=0.9))
    print("first epoch:", first + 1, "· updates so far:", model.optimizer.iterations.numpy())
    rows = in_batches(datasets.load(dataset)[:full], 128)
    worker_batch = 128 // strategy.num_replicas_in_sync
    follow = PanelCallback(panel, rows_per_step=worker_batch, epochs=config["epochs"])
    for epoch in range(first, config["epochs"]):
        callbacks = [follow, Report(config.get("breaks_in"))]
        model.fit(rows, initial_epoch=epoch, epochs=epoch + 1, verbose=0, callbacks=callbacks)


# %%
def resumable(run_name, **config):
    return TensorflowTrainer(
        train_resumable,
        train_loop_config=config,
        scaling_config=scaling,
        run_config=run_config(panel, run_name),
    )


# %% tags=["raises-exception"]
panel = TrainPanel("04-resume", dataset=train.name, rows=full)
run_name = panel.run_id
trainer = resumable(run_name, epochs=4, breaks_in=2)
with panel.watch(trainer):
    trainer.fit()

# %% [markdown]
# The panel shows only the traceback lines from your own code. Check that the crash has released the CPUs:

# %%
ray.available_resources().get("CPU"), lab.cpus

# %% [markdown] tags=["prediction"]
# **Before you go on:** the next cell gives a new trainer the *same name*. Which epoch will it start with? And how many updates will the optimizer have made by then?
# (With the digits, an epoch has 11 of them.)

# %%
panel = TrainPanel("04-resume", dataset=train.name, rows=full)
trainer = resumable(run_name, epochs=4)
with panel.watch(trainer):
    result = trainer.fit()

# %%
[metrics["epoch"] for checkpoint, metrics in result.best_checkpoints]

# %% [markdown]
# It starts with the third epoch. With the digits, the optimizer has made 22 updates by then. Ray found the name in the storage, so `get_checkpoint` returned the run's
# latest checkpoint. Each epoch is in the list once.
#
# The other way to resume is a checkpoint in the config of a new run. The next cell trains one more epoch, in this process, with the same loop and the same strategy:
# where there is no `TF_CONFIG`, the strategy has one worker.

# %%
panel = TrainPanel("04-continued", dataset=train.name, rows=full)
trainer = TensorflowTrainer(
    train_resumable,
    train_loop_config={"epochs": 5, "checkpoint": result.checkpoint},
    scaling_config=here,
)
with panel.watch(trainer):
    print(trainer.fit().metrics)

# %% [markdown]
# `resume_from_checkpoint=`, which older tutorials use, no longer works: the trainer raises a `DeprecationWarning`. Use one of these two ways instead.

# %% [markdown]
# ## Is it the same model?
# Two workers trained two epochs, crashed, and trained two more from a checkpoint. Would the model be any different if all this had never happened? To find out, train
# four epochs in one process without a break, on the same rows, with three batch sizes:


# %%
def train_alone(batch_size):
    model = compiled(mlp(seed=0), tf.keras.optimizers.SGD(0.05, momentum=0.9))
    model.fit(in_batches(train[:full], batch_size), epochs=4, verbose=0)
    return model


alone = {size: train_alone(size) for size in (64, 128, 256)}

# %% [markdown] tags=["prediction"]
# **Before you go on:** which of the three will have the same weights as the workers' model, and how close will they be?

# %%
from labkit.models.keras import weights_distance

with result.checkpoint.as_directory() as folder:
    together, _ = load_state(folder)

for size, model in alone.items():
    print(f"{size:3} rows in a step: largest difference of a weight {weights_distance(together, model):.1e}")

# %% [markdown]
# With 128, the global batch, it is the same model up to rounding, in spite of two workers and a crash. The optimizer's momentum was restored together with the
# weights.

# %% [markdown]
# ### What else goes wrong
# | what you did | what happens |
# |---|---|
# | you built the model outside the scope, and compiled it inside | Keras raises an error: "Variable … was not created in the distribution strategy scope" |
# | you built *and* compiled it outside | TensorFlow raises no error, and every worker trains a model of its own. `PanelCallback` notices, and raises one |
# | you named a column in `to_tf` that doesn't exist | Ray names it, and the columns that exist |
# | `model.keras` is damaged, or missing from the checkpoint | `load_state` names the file; if it is missing, also what the folder contains |
# | you gave `fit` a shard whose length TensorFlow knows, for example `from_tensor_slices` of a part of the rows | Keras counts its batches before they are divided, so with two workers the epoch ends after half of the shard. A dataset from Ray Data has no known length, so it is safe |
# | one rank calls `fit`, `save` or `report` less often than the others | the others wait for it |

# %% [markdown]
# ## The loop, by hand
# `fit` is convenient as long as it does what you want. When it doesn't, you can write the loop yourself. This one runs with Keras 3: only `fit` fails there, while its
# layers and optimizers work.
#
# `strategy.run` calls a function on each worker with that worker's rows. In this function, `tf.GradientTape` records the forward pass, so that `tape.gradient` can
# compute the gradients. Then `apply_gradients` *adds up* the gradients of all workers and makes the same update everywhere. `strategy.reduce("SUM", …, axis=None)`
# adds up the workers' losses.
#
# `tf.function` compiles a step into a graph. If a batch of another shape comes, it has to trace the Python code again; `reduce_retracing=True` makes this happen less
# often.


# %%
def train_raw(config):
    strategy = start_strategy()
    with strategy.scope():
        model, optimizer = cnn(seed=0), tf.keras.optimizers.Adam(0.005)
        optimizer.build(model.trainable_variables)
    loss_of_rows = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def worker_step(x, y, global_batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(loss_of_rows(y, model(x, training=True))) / global_batch
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function(reduce_retracing=True)
    def step(x, y):
        rows = tf.cast(tf.shape(y)[0] * strategy.num_replicas_in_sync, tf.float32)
        return strategy.reduce("SUM", strategy.run(worker_step, args=(x, y, rows)), axis=None)

    shard = ray.train.get_dataset_shard("train")
    for epoch in range(config["epochs"]):
        rows = shard.iter_tf_batches(batch_size=config["worker_batch"])
        for batch in panel.steps(rows, epoch=epoch, epochs=config["epochs"]):
            loss = step(to_input(batch["image"]), batch["label"])
            panel.log(loss=loss)
        right = tf.argmax(model(to_input(test.images)), axis=1) == test.labels
        accuracy = float(tf.reduce_mean(tf.cast(right, tf.float32)))
        ray.train.report({"epoch": epoch, "loss": float(loss), "accuracy": accuracy})
    print(tf.keras.Model.__module__, "· sum of all weights", sum(w.sum() for w in model.get_weights()))


# %%
panel = TrainPanel("04-raw", dataset=train.name, rows=len(train))
trainer = TensorflowTrainer(
    train_raw,
    train_loop_config={"epochs": epochs, "worker_batch": 128 // settings.num_workers},
    scaling_config=scaling,
    datasets={"train": data},
    run_config=run_config(panel, environment=keras_settings.KERAS_3),
)
with panel.watch(trainer):
    trainer.fit()

# %% [markdown]
# All ranks print the same sum, so here, too, they trained one model. (The tests of this lab compare it with one process, weight by weight.)
#
# Three things differ from `fit`. The batch size is that of *one* worker again: the rows go straight to `strategy.run`, so nothing divides a batch. You divide the loss
# yourself. And because the loop is yours, `panel.steps` can measure how long it waits for data.

# %% [markdown]
# ### Exercise 04-4 · What to divide by
# The optimizer adds up the gradients of all workers, so the losses of all workers should add up to the *mean* over all rows of the step. Write what one worker
# contributes. `losses` is an array with the loss of each of its rows; `global_batch` is the number of rows on all workers together.


# %%
def worker_loss(losses, global_batch): ...  # your answer


# %% tags=["solution"]
def worker_loss(losses, global_batch):
    return losses.sum() / global_batch


# %%
check("04-4", worker_loss)

# %% [markdown]
# ## Was it worth it?
# For a fair comparison, run the same loop with one worker:

# %%
panel = TrainPanel("04-one-worker", dataset=train.name, rows=len(train))
trainer = TensorflowTrainer(
    train_loop,
    train_loop_config={"epochs": epochs, "worker_batch": 128, "rows": len(train)},
    scaling_config=ScalingConfig(num_workers=1, use_gpu=settings.use_gpu),
    datasets={"train": data},
    run_config=run_config(panel),
)
with panel.watch(trainer):
    trainer.fit()

# %%
from labkit import runs

names = ["04-one-process", "04-one-worker", "04-tensorflow", "04-raw"]
runs.plot(name=names, last=4)

# %% [markdown]
# With `fit`, waiting for data happens inside the steps, so it counts as training. In the hand-written loop it is measured separately.
#
# If you have run lesson 03 on this machine, you can compare with PyTorch, too:

# %%
import pandas
from labkit.errors import RunError


def times(name):
    try:
        record = runs.latest(name)
    except RunError:
        return {"run": f"{name}: no record, run lesson 03 first"}
    fastest = min(record.seconds_per_epoch)
    return {
        "run": name,
        "epochs": record.epochs,
        "start s": record.seconds.get("start"),
        "fastest epoch s": fastest,
        "rows/s": record.rows / fastest,
        "accuracy": record.metrics.get("accuracy"),
    }


# %%
names = [
    "03-one-process",
    "04-one-process",
    "03-one-worker",
    "04-one-worker",
    "03-torch",
    "04-tensorflow",
    "04-raw",
]
pandas.DataFrame([times(name) for name in names]).round(2)

# %% [markdown]
# On the two cores where this page was written, with `LABKIT_SMALL=1`, the fastest epoch of each run took
#
# | | PyTorch, lesson 03 | Keras, `fit` | the loop by hand |
# |---|---|---|---|
# | one process | 0.38 s | 0.42 s | |
# | two workers | 0.59 s | 1.51 s | 0.81 s |
#
# You can compare your own epochs with these: for the digits, `LABKIT_SMALL=1` changes the number of epochs, but not what is computed in one.
#
# In one process it hardly matters which of the two libraries you use. With two workers, the hand-written loop comes nearer to PyTorch than `fit` does. `fit` on rows
# from Ray Data was slow with one worker (1.33 s) as well as with two, so it isn't the exchange of gradients that it waits for.
#
# Two workers didn't pay off in any of these runs, for the reasons given in lesson 03: a second core saves less than the exchange of gradients costs, and starting
# takes longer than the whole training. Starting took 7 to 14 s here. It took longest for the hand-written loop: its Keras 3 is not the one that was imported ahead, so
# each of its workers imports TensorFlow for itself.
#
# Four lines changed in PyTorch's loop, five around Keras's `fit`. But the number of lines seldom decides:
# - If you have a Keras model, use this trainer, with Keras 2 for `fit`. And study the table *What else goes wrong*: half of those mistakes raise no error at all.
# - If you start from scratch, you will meet fewer such problems with PyTorch. Ray's TensorFlow trainer gets little maintenance: the example in its documentation has
#   been broken since 2024 ([ray 47464](https://github.com/ray-project/ray/issues/47464)).
# - If you want Keras 3, write the loop by hand, as above.
#
# ## In this notebook
# - you ran the same Keras model in one process and on several workers, with Keras 2 where `fit` needs it, and with Keras 3 in a loop of your own;
# - you saw what is in `TF_CONFIG`, and why the batch that `fit` gets is the global one;
# - you fed the workers in three ways, and know why rows should be sharded once and not twice;
# - you showed that the workers and one process with the global batch train the same model, up to rounding;
# - you saved model and epoch in the object store, and resumed from there twice: with the same name, and with a checkpoint in the config;
# - you measured start, speed and accuracy, and compared them with PyTorch in lesson 03.
#
# Stop the store and the cluster. The next lesson starts its own.

# %%
store.stop()
lab.stop()
