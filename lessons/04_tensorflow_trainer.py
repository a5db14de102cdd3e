# %% [markdown]
# # 04 · The same in TensorFlow: TensorflowTrainer
#
# **You will be able to** train a Keras model on several workers at once; say what `TF_CONFIG`, the strategy's scope and the global batch
# are for, and show that the workers train one model; feed it in three ways; save, load and go on after a crash; write the loop
# yourself where `fit` does not do; and compare all of it, in seconds, with lesson 03. · **Time** 45 min (3 of them waiting) · **Needs** 00, 01; 03 helps
#
# Lesson 03 did this with PyTorch. The data are the same here, and so is the model. What differs is who does what: in PyTorch you write the
# loop and wrap the model. In TensorFlow you name a *strategy*, build the model inside of it, and call `fit`.

# %% [markdown]
# ## Two Kerases
# Most tutorials for this page's topic no longer run. TensorFlow comes with Keras 3 today, and its `model.fit` fails as soon as there is a second worker:
#
# ```
# ValueError: Attempt to convert a value (PerReplica: …) with an unsupported type to a Tensor.
# ```
#
# Both projects know it ([ray 47464](https://github.com/ray-project/ray/issues/47464), [keras 20585](https://github.com/keras-team/keras/issues/20585)), and both issues are open.
# Keras 2 still works. It lives on as the package `tf-keras`, and a variable in the environment makes TensorFlow take it. The variable counts
# only if it is there *before* TensorFlow is imported. So it comes first, before any other cell can import it:

# %%
from labkit.models.keras import backend as keras_settings

keras_settings.prepare()

# %% [markdown]
# That was for this process. The workers are processes of their own, on other machines perhaps, and nothing of this one is known to them. They get the same
# variables with each run. The other two keep TensorFlow from talking about graphics cards that it did not find.

# %%
keras_settings.KERAS_2

# %% [markdown]
# (Ray's trainer sets `TF_USE_LEGACY_KERAS` in its workers by itself. In Ray 2.60 that comes too late: at that moment the worker has already
# imported TensorFlow, and chosen Keras 3.)

# %% [markdown]
# ## A cluster whose workers know TensorFlow
# To import TensorFlow takes seconds. So the lab does it once for each node, in a process from which the workers are forked. `preload` says
# what is imported there. In lesson 03 it was PyTorch, the default; now it is TensorFlow, with the Keras that stands above.

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
# Small enough to read at one go. The points lie on the line 3x + 1. They come in as many blocks as there are workers: else Ray Data would cut such a
# list into a block for every point, and to fetch them would take longer than to train (lesson 02).

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
# Four things are new. `MultiWorkerMirroredStrategy` connects the workers. In its *scope* the model is built and compiled. `to_tf` makes a
# `tf.data.Dataset` of the worker's shard. And while `fit` runs its loop, Keras tells *callbacks* what it does. `ReportCheckpointCallback` is Ray's: after each epoch it calls
# `ray.train.report`, with the metrics and the model. `PanelCallback` is the lab's, and tells the panel, where your own loop would say `panel.steps`.
#
# The trainer itself is the one of lesson 03, with another name. `worker_runtime_env` carries the variables.

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
# Look at the printed lines of the panel. Both workers found the same line: it is one model.
#
# And there is `TF_CONFIG`. It lists the addresses of all workers, the same list for each. `task` says which of them this one is. TensorFlow has no other way to find
# the others, and without Ray you would write it by hand on each machine. Ray looks for a free port on every worker, and sets it before your function begins.
# (The object that does it is `TensorflowConfig`. It has no options, so you need it only to give it a name: `tensorflow_config=TensorflowConfig()` is the default.)

# %%
result.metrics

# %% [markdown]
# ## The digits, in one process
# With one thread, because each worker will have one, too. TensorFlow takes such a setting only before its first operation.

# %%
tf.config.threading.set_intra_op_parallelism_threads(1)

# %% [markdown]
# The same network as in lesson 03, the `cnn`. Even the first weights are the same, number by number.

# %%
from labkit.models.keras import cnn, mlp, to_input

train = datasets.load(split="train")
test = datasets.load(split="test")
cnn(seed=0).count_params()


# %% [markdown]
# A model is compiled once: optimizer, loss, metrics. And rows that are in memory become batches like this:


# %%
def compiled(model, optimizer):
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    return model


def in_batches(rows, batch_size):
    return tf.data.Dataset.from_tensor_slices((to_input(rows.images), rows.labels)).batch(batch_size)


# %% [markdown]
# Without Ray Train, `PanelCallback` reports the metrics of each epoch, too.

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
# This is what the workers have to beat.

# %% [markdown]
# ## On the workers
# The images go to the store, as in lesson 03, and Ray Data reads them from there.

# %%
from labkit.storage import upload_shards

upload_shards(train, store, "lab-04", prefix="train", rows_per_shard=len(train) // 4 + 1)
ray.data.DataContext.get_current().use_datasource_v2 = False  # few rows: lesson 02 says why

data = ray.data.read_parquet("lab-04/train", filesystem=store.filesystem)
data.schema()


# %% [markdown]
# How TensorFlow is to start: with as many threads as the worker has CPUs. Ray sets `OMP_NUM_THREADS` for that, and PyTorch obeys it.
# TensorFlow does not, so it must be told.


# %%
def start_strategy():
    print("OMP_NUM_THREADS:", os.environ.get("OMP_NUM_THREADS"))
    tf.config.threading.set_intra_op_parallelism_threads(1)
    return tf.distribute.MultiWorkerMirroredStrategy()


# %% [markdown]
# **Feeding it, the first way: `to_tf`.** It wants to know shape and type of the columns: for a column of images, this version of Ray does not find them out.


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
# The call of `fit` stays as it is.


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
# `num_replicas_in_sync` is the number of workers (or, if they have several GPUs each, of GPUs).

# %% [markdown] tags=["prediction"]
# **Before you go on:** with two workers, `to_tf` is given `64 * 2 = 128` in *each* of them. A worker's shard has 718 rows. How many of them will it take in a step, and
# how many updates does an epoch have?

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
# Divide the updates by the epochs: 12 in each. (One is left over. Keras does not know how long a data set from Ray is, so in the first epoch it tries one step too many, and counts it.)
# So a worker took 64 rows in a step, not 128. `fit` takes what it is given for the *global* batch, divides it by the number of
# workers, and each worker takes one part in a step. In lesson 03 it was the other way round: there you gave each worker its own part, 64.
#
# Who gives `batch_size=64` there, as in PyTorch, gets no error. Each worker then takes 32 images in a step, and an epoch has twice as many
# steps, each with half the images: another training, and a slower one.

# %% [markdown]
# ### Exercise 04-1 · A batch for all of them
# Four workers, 4,608 rows, so each has a shard of 1,152. Every worker is to take 48 rows in a step. What do you give to `to_tf` as `batch_size`?
#
# And if you give 48 by mistake: how many rows does each worker take in a step, and how many updates does an epoch have?

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
# Where do these figures come from, when each worker saw only a part of the rows? Ray keeps what rank 0 reports. But Keras has added up its metrics over all
# workers before: every rank reports the same.

# %%
result.metrics

# %%
from pyarrow.fs import FileSelector

files = result.filesystem.get_file_info(FileSelector(result.path, recursive=True))
sorted({file.base_name for file in files if file.is_file})

# %% [markdown]
# A checkpoint is a folder with `model.keras` in it, sent by every rank: all of them have the same. The file holds layers, weights and optimizer. So whoever
# loads it needs no `cnn(…)`, and not even to know that it was one:

# %%
from labkit.models.keras import load_state

with result.checkpoint.as_directory() as folder:
    model, _ = load_state(folder)

_, accuracy = model.evaluate(in_batches(test, 512), verbose=0)
print(f"accuracy on {len(test)} test images: {accuracy:.3f}")

# %% [markdown]
# `load_state` is `tf.keras.models.load_model`, and says plainly what is wrong if the file is missing or damaged. You should see at least 0.93.
#
# (A trap for whoever opens the file by other means: with Keras 2 it is in the HDF5 format, whatever its name says. Ray runs the loop in a thread of its own, and
# Keras 2 writes its own format only in a program's main thread, or if it is told so: `model.save(path, save_format="keras_v3")`.)

# %% [markdown]
# ## Shard once
# **The second way to feed it: TensorFlow alone.** Each worker loads *all* rows, and gives them to `fit`. TensorFlow then shards them itself
# (*auto-sharding*): of every 128 rows, this worker takes the first half and that worker the second. The test images went that way above, in `validation_data`.
#
# Ray Data has given each worker its own part already. If TensorFlow shards *again*, each worker takes a part of its part, and the rest is never seen. There is no
# error: the epochs are just short. `to_tf` switches auto-sharding off. In a `tf.data.Dataset` of your own, `prepare_dataset_shard` does.
#
# **The third way: `iter_tf_batches`**, and a generator around it. Here you can do with a batch whatever you like before TensorFlow gets it. You have to say
# what comes out of the generator: its signature.

# %%
from ray.train.tensorflow import prepare_dataset_shard

SIGNATURE = (tf.TensorSpec((None, 28, 28), tf.float32), tf.TensorSpec((None,), tf.int64))


def third_way(shard, batch_size):
    def generate():
        for batch in shard.iter_tf_batches(batch_size=batch_size):
            yield to_input(batch["image"]), batch["label"]

    return prepare_dataset_shard(tf.data.Dataset.from_generator(generate, output_signature=SIGNATURE))


# %% [markdown]
# What comes out? With `num_workers=0` the loop runs here, in this process, as in lesson 03:


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
# Write the function that says how many rows all workers together train on in one epoch. `rows` is the size of the data set. `by_ray` says whether every
# worker gets only its shard from Ray (else it has all rows), `by_tensorflow` whether auto-sharding is on. Take `rows` to be divisible as often as needed.


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
# `ReportCheckpointCallback` keeps the model, and nothing else. A training that is to go on needs to know with which epoch. So now the report by hand: a
# folder with the model and a small JSON file.
#
# `save_state(folder, model, epoch)` writes both. One thing is unlike PyTorch: *every* rank must save. Keras counts its metrics in each worker, and to write them down it
# adds them up over all of them. If rank 0 saves alone, it waits for the others. Only rank 0 has to *give* its folder to Ray.

# %% [markdown]
# ### Exercise 04-3 · Who saves, who reports
# Write the end of an epoch for any number of workers. `save` takes the folder. `report` takes the metrics and a checkpoint; let the folder itself be the checkpoint here.


# %%
def end_of_epoch(rank, save, folder, report, metrics): ...  # your answer


# %% tags=["solution"]
def end_of_epoch(rank, save, folder, report, metrics):
    save(folder)
    report(metrics, checkpoint=folder if rank == 0 else None)


# %%
check("04-3", end_of_epoch)

# %% [markdown]
# And so it looks in a callback of Keras, of which you write only what you need:

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
# At its beginning the loop looks for a checkpoint: one of this run, or else one in its settings. A loaded model has its optimizer with it, as it was, and is compiled.
# It must be loaded in the scope, too. The rows come the second way this time: their order is fixed, and you will soon see what for.

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
# The worker's own lines, and no more. The CPUs are free again:

# %%
ray.available_resources().get("CPU"), lab.cpus

# %% [markdown] tags=["prediction"]
# **Before you go on:** the next cell gives a new trainer the *same name*. With which epoch will it begin? And how many updates will the optimizer have behind it?
# (An epoch has 11 of them.)

# %%
panel = TrainPanel("04-resume", dataset=train.name, rows=full)
trainer = resumable(run_name, epochs=4)
with panel.watch(trainer):
    result = trainer.fit()

# %%
[metrics["epoch"] for checkpoint, metrics in result.best_checkpoints]

# %% [markdown]
# With the third, after 22 updates. Ray found the name in the storage, and `get_checkpoint` had something to give. Each epoch is there once.
#
# The other way is a checkpoint in the settings of a new run. One epoch more, in this process. The same loop, the same strategy: where there is no `TF_CONFIG`, it has one worker.

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
# `resume_from_checkpoint=`, which older tutorials use, is gone. These two ways are left.

# %% [markdown]
# ## Is it the same model?
# Two workers trained two epochs, crashed, and trained two more from a file. And if nothing of all that had happened? Here one process trains four epochs
# without a break, on the same rows, with three sizes of the batch:


# %%
def train_alone(batch_size):
    model = compiled(mlp(seed=0), tf.keras.optimizers.SGD(0.05, momentum=0.9))
    model.fit(in_batches(train[:full], batch_size), epochs=4, verbose=0)
    return model


alone = {size: train_alone(size) for size in (64, 128, 256)}

# %% [markdown] tags=["prediction"]
# **Before you go on:** which of the three will have the weights of the workers, and how nearly?

# %%
from labkit.models.keras import weights_distance

with result.checkpoint.as_directory() as folder:
    together, _ = load_state(folder)

for size, model in alone.items():
    print(f"{size:3} rows in a step: largest difference of a weight {weights_distance(together, model):.1e}")

# %% [markdown]
# With 128, the global batch, it is the same model, up to rounding: in spite of two workers, and in spite of the crash. What the optimizer remembered (its momentum) came back with the weights.

# %% [markdown]
# ### What else goes wrong
# | you did | you get |
# |---|---|
# | the model is built outside of the scope, and compiled in it | Keras says so: "Variable … was not created in the distribution strategy scope" |
# | built *and* compiled outside | TensorFlow says nothing, and every worker trains a model of its own. `PanelCallback` looks, and refuses |
# | a column that does not exist in `to_tf` | Ray names it, and the columns that there are |
# | a damaged `model.keras`, or a checkpoint without one | `load_state` says which file, and what the folder holds |
# | you give `fit` a shard whose length TensorFlow knows, e.g. `from_tensor_slices` of a part of the rows | Keras counts its batches before they are divided: with two workers the epoch ends after half of the shard. What comes from Ray Data has no known length, and is safe |
# | one rank calls `fit`, `save` or `report` less often than the others | they wait for it |

# %% [markdown]
# ## The loop, by hand
# `fit` is comfortable as long as it does what you want. Below it there is a loop, and you can write it yourself. This one runs with Keras 3: what fails
# there is `fit`, not its layers and not its optimizers.
#
# `strategy.run` calls a function on each worker, with that worker's rows. In it, `apply_gradients` first *adds up* the gradients of all workers, and then makes the
# same update everywhere.


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
# Both ranks print the same sum: it is one model here, too. (The tests of this lab compare it with one process, weight by weight.)
#
# Three things are unlike `fit`. The batch is that of *one* worker again: nobody divides it, since the rows go straight to `strategy.run`. The loss is divided by hand. And because the
# loop is yours, `panel.steps` sees how long it waits for data.

# %% [markdown]
# ### Exercise 04-4 · What to divide by
# The optimizer adds up the gradients of all workers, so the losses of all workers should add up to the *mean* over all rows of the step. Write what one worker
# contributes. `losses` is an array with the loss of each of its rows; `global_batch` is the number of rows in all workers.


# %%
def worker_loss(losses, global_batch): ...  # your answer


# %% tags=["solution"]
def worker_loss(losses, global_batch):
    return losses.sum() / global_batch


# %%
check("04-4", worker_loss)

# %% [markdown]
# ## Was it worth it?
# For a fair comparison the same loop with one worker:

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
# With `fit`, waiting for data is inside of the steps, and counts as training. In the loop by hand it stands apart.
#
# And beside lesson 03, if you have run it on this machine:

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
# So in one process it hardly matters which of the two libraries computes. Between workers, with the loop by hand, TensorFlow comes near to
# PyTorch. `fit` on rows from Ray Data was slower, and with one worker nearly as slow as with two (1.33 s). So it is not the exchange of gradients that it waits for.
#
# Two workers did not pay with any of them, for the reasons of lesson 03: a second core saves less than the exchange costs, and the start takes longer than the whole
# training. Here it took 7 to 14 s, longest for the loop by hand: its Keras 3 is not the one that was imported ahead, so each of its workers imports TensorFlow for itself.
#
# Four lines changed in PyTorch's loop, five around Keras's `fit`. What decides is seldom the number of lines:
# - you have a Keras model: take this trainer, with Keras 2 for `fit`, and read the table of what goes wrong twice: half of its lines come without an error;
# - you begin anew: with PyTorch you meet fewer of those. Ray's TensorFlow trainer gets little care. Its own examples have failed since 2024, and its tutorials with them;
# - you want Keras 3: write the loop by hand, as above.
#
# ## In this notebook
# - you ran the same Keras model in one process and in several workers, with Keras 2 where `fit` needs it, and with Keras 3 in a loop of your own;
# - you saw `TF_CONFIG` from inside, and why the batch that `fit` gets is the global one;
# - you fed the workers in three ways, and know why rows are sharded once and not twice;
# - you showed that the workers and one process with the global batch train the same model, up to rounding;
# - you kept model and epoch in the object store, and went on from there twice: with the same name, and with a checkpoint in the settings;
# - you measured start, speed and accuracy beside the PyTorch of lesson 03.
#
# Stop the store and the cluster. The next lesson starts its own.

# %%
store.stop()
lab.stop()
