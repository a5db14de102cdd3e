# %% [markdown]
# # 04 · The same in TensorFlow: TensorflowTrainer
#
# By the end of this lesson you can
# - say how many rows each worker uses in a step, and what a wrong batch size changes (exercise 04-1);
# - fix a Keras loop that trains the wrong thing without an error (04-2);
# - save a model and its epoch, and write a loop that resumes after a crash (04-3);
# - say with which batch size one process trains the same model as two workers (04-c).
#
# **Time** … · **Needs** 00, 01, 03

# %% [markdown]
# You have a Keras model, and an epoch takes an hour on the one GPU that you use. Three more machines stand idle. In PyTorch you would wrap the model and keep your loop (lesson 03). In TensorFlow you
# choose a **strategy**, the object that distributes the training; you build the model inside its scope, and call `fit`.
#
# ## Two Kerases
# TensorFlow has come with Keras 3 since version 2.16, and the `model.fit` of Keras 3 fails as soon as there is a second worker (`PerReplica … unsupported type`; [ray
# 47464](https://github.com/ray-project/ray/issues/47464) and [keras 20585](https://github.com/keras-team/keras/issues/20585) are open). Keras 2 still works. It lives on as the package `tf-keras`, and
# TensorFlow uses it if an environment variable is set *before* TensorFlow is imported. Ray marks its `TensorflowTrainer` as beta: with PyTorch you will meet fewer problems.

# %%
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

# %% [markdown]
# This sets it in the kernel. The workers are other processes, perhaps on other machines, so each run passes the variables to them. Ray's trainer sets `TF_USE_LEGACY_KERAS`, too, but in Ray 2.60 only
# after the worker has chosen Keras 3. The lab has a dict with this variable and two that quiet TensorFlow. `prepare` sets them here, and imports TensorFlow:

# %%
from labkit.models.keras import backend

print(backend.KERAS_2)
backend.prepare()

# %% [markdown] tags=["instructor"]
# **"TensorFlow was imported before, and took Keras 3".** Another cell was run first. Restart the kernel and run the cells from the top.

# %%
from labkit import cluster, datasets, storage
from labkit.exercises import check, hint, predict, reveal
from labkit.settings import Settings

settings = Settings.from_env()
lab = cluster.start(preload="tensorflow")  # workers are forked from a process that has imported it
store = storage.start()
lab

# %% [markdown]
# ## The model
# The network is the one of lesson 03: two convolutions with pooling, then one dense layer.


# %%
import tensorflow as tf


def network():
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((28, 28)),
            layers.Reshape((28, 28, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


# %% [markdown]
# The lab's `cnn(seed=0)` is the same network with fixed initial weights; `mlp` is a smaller one for the exercises. `to_input` scales pixels to 0–1. `compile` sets a model's optimizer, loss and metrics, and `in_batches` makes a `tf.data.Dataset` of images in memory.

# %%
from labkit.models.keras import cnn, mlp, to_input


def compiled(model, optimizer):
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    return model


def in_batches(rows, batch_size):
    return tf.data.Dataset.from_tensor_slices((to_input(rows.images), rows.labels)).batch(batch_size)


# %% [markdown]
# ## A strategy in one process
# `MirroredStrategy` is for several GPUs in *one* process. Each GPU gets a **replica**, a copy of the model, and the strategy keeps the copies equal. You don't need GPUs to see it work: split the CPU
# into two logical devices. TensorFlow accepts this, and the number of threads, only before its first operation.

# %%
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.config.threading.set_intra_op_parallelism_threads(1)

train, test = datasets.load(split="train"), datasets.load(split="test")
mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with mirrored.scope():
    model = compiled(network(), tf.keras.optimizers.Adam(0.005))
mirrored.num_replicas_in_sync, model.count_params(), cnn(seed=0).count_params()

# %% [markdown] tags=["instructor"]
# **"Virtual devices cannot be modified after being initialized".** The kernel had already computed something with TensorFlow, and building a model is
# enough. Restart the kernel and run the cells in order. The cell that asks for two devices may run twice.

# %% [markdown]
# The model is built inside the strategy's **scope**. That is how the strategy gets to know its variables.

# %% [markdown] tags=["prediction"]
# **Predict.** The strategy gets batches of 128 images. How many of them does each of the two replicas get?

# %%
predict("04-a", ...)  # a number

# %%
images, labels = next(iter(mirrored.experimental_distribute_dataset(in_batches(train, 128))))
sizes = [len(part) for part in labels.values]
reveal("04-a", sizes[0])
sizes

# %% tags=["claim"]
assert sizes == [64, 64]
assert network().count_params() == cnn(seed=0).count_params()

# %% [markdown]
# ![A global batch of 128 is cut into 64 for each of two replicas; their gradients are summed, and all copies are updated alike](images/strategy.svg)
#
# A strategy treats the batch that it gets as the **global batch** and divides it. PyTorch does the opposite: there you give each worker its own batch, 64, and the global batch is 128.
#
# `MultiWorkerMirroredStrategy` does the same for workers in several processes, which Ray's trainer starts.
#
# ## One process
# The baseline is one process with one thread, because each worker will have one thread, too. `PanelCallback` is the lab's: Keras calls it after each batch and epoch, and it sends the progress to the panel. It counts `rows_per_step` rows for each batch.

# %%
from labkit.models.keras import PanelCallback
from labkit.panel import Panel

epochs = 5 if settings.small else 10
metrics = {"loss": "loss", "accuracy": "val_accuracy"}  # the name in the panel, and Keras's name

panel = Panel("04-one-process", dataset=train.name, rows=len(train))
with panel:
    model = compiled(cnn(seed=0), tf.keras.optimizers.Adam(0.005))
    follow = PanelCallback(panel, rows_per_step=128, rows=len(train), report=metrics)
    for_test = in_batches(test, 512)
    model.fit(in_batches(train, 128), epochs=epochs, validation_data=for_test, verbose=0, callbacks=[follow])

# %% [markdown]
# ## On the workers
# Ray Data reads the images from the object store.

# %%
import ray.data
from labkit.storage import upload_shards

upload_shards(train, store, "lab-04", prefix="train", rows_per_shard=len(train) // 4 + 1)
ray.data.DataContext.get_current().use_datasource_v2 = False  # few rows: lesson 02 says why
data = ray.data.read_parquet("lab-04/train", filesystem=store.filesystem)
data.schema()

# %% [markdown]
# `to_tf` makes a `tf.data.Dataset` out of a worker's shard. You have to give shape and dtype of each column, because for images this version of Ray can't infer them.


# %%
def feed(shard, batch_size):
    image = tf.TensorSpec((None, 28, 28), tf.uint8, name="image")
    label = tf.TensorSpec((None,), tf.int64, name="label")
    rows = shard.to_tf(
        "image", "label", batch_size=batch_size, feature_type_spec=image, label_type_spec=label
    )
    return rows.map(lambda image, label: (to_input(image), label))


# %% [markdown]
# Four things change: a strategy, its scope, `get_dataset_shard`, and Ray's callback, which calls `ray.train.report`. The callback's options say when it reports, and under which names. The global batch
# stays 128.

# %%
import ray.train
from ray.train.tensorflow.keras import ReportCheckpointCallback


def train_loop(config):
    print(os.environ["TF_CONFIG"])
    tf.config.threading.set_intra_op_parallelism_threads(1)  # TensorFlow ignores Ray's OMP_NUM_THREADS
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = compiled(cnn(seed=0), tf.keras.optimizers.Adam(0.005))
    size, workers = config["global_batch"], strategy.num_replicas_in_sync
    rows = feed(ray.train.get_dataset_shard("train"), batch_size=size)
    follow = PanelCallback(config["panel"], rows_per_step=size // workers, rows=len(train) // workers)
    report = ReportCheckpointCallback(
        checkpoint_on="epoch_end", report_metrics_on="epoch_end", metrics=metrics
    )
    options = {"epochs": config["epochs"], "validation_data": in_batches(test, 512), "verbose": 0}
    model.fit(rows, callbacks=[follow, report], **options)
    return int(model.optimizer.iterations.numpy())


# %% [markdown] tags=["instructor"]
# **`batch_size` has the opposite meaning of lesson 03.** There it was the batch of one worker; here `to_tf` gets the *global* batch, and TensorFlow
# divides it. Nothing complains if you mix them up.

# %% [markdown]
# The trainer works as in lesson 03. `worker_runtime_env` passes the environment variables.

# %%
from labkit.train import TrainPanel
from ray.train import RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer

scaling = ScalingConfig(num_workers=settings.num_workers, use_gpu=settings.use_gpu)


def run_config(panel, environment=backend.KERAS_2):
    return RunConfig(
        name=panel.run_id,
        storage_path=store.storage_path("runs", panel.state.name),
        storage_filesystem=store.filesystem,
        worker_runtime_env={"env_vars": environment},
        callbacks=[panel.callback()],
    )


# %% [markdown] tags=["prediction"]
# **Predict.** With the digits and two workers, each worker has a shard of 718 images, and `to_tf` gets `batch_size=128`. How many updates does an epoch have?

# %%
predict("04-b", ...)  # a number

# %%
panel = TrainPanel("04-tensorflow", dataset=train.name, rows=len(train))
config = {"panel": panel, "global_batch": 128, "epochs": epochs}
trainer = TensorflowTrainer(
    train_loop,
    train_loop_config=config,
    scaling_config=scaling,
    datasets={"train": data},
    run_config=run_config(panel),
)
with panel.watch(trainer):
    result = trainer.fit()
reveal("04-b", result.return_value // epochs)

# %% [markdown] tags=["instructor"]
# **12 updates for 718 rows with batches of 128 (04-b).** Each batch of 128 is cut into two steps of the same worker, 64 rows each, so no row of a shard is lost. A reader of an earlier
# version stumbled here most, so work it out on the board: 718 / 64, rounded up.

# %% tags=["claim"]
if settings.num_workers == 2:
    assert result.return_value // epochs == 12

# %% [markdown]
# 718 images in 12 updates: a worker used 64 of them in a step, not 128. No row of a shard is lost, because the other 64 of its batch are the same worker's next step. If you pass `batch_size=64`, as in PyTorch, nothing complains, but each
# worker uses 32 images per step, and an epoch has twice as many steps.
#
# Open *printed lines* in the panel's summary. It shows `TF_CONFIG`: the addresses of all workers, and which of them this one is. Without Ray you would write it by hand.

# %% [markdown]
# ### Exercise 04-1 · A batch for all of them
# There are four workers and 4,608 rows, so each worker has a shard of 1,152. Each should use 48 rows per step. Which `batch_size` do you pass to `to_tf`? And if you passed 48: how many rows
# would each worker use per step, and how many updates would an epoch have?

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
# ### Exercise 04-2 · Fix this loop
# This loop should train *one* model on two workers, and each worker should use 64 rows per step. It runs without an error, but it does something else. Find the two mistakes. The check runs the loop
# on your cluster.


# %%
def fixed_loop(config):  # your answer: fix it
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    model = compiled(mlp(seed=0), tf.keras.optimizers.SGD(0.05))
    rows = feed(ray.train.get_dataset_shard("train"), batch_size=64)
    model.fit(rows, epochs=1, verbose=0)
    replicas = model.distribute_strategy.num_replicas_in_sync
    return {"updates": int(model.optimizer.iterations.numpy()), "replicas": replicas}


# %% tags=["solution"]
def fixed_loop(config):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = compiled(mlp(seed=0), tf.keras.optimizers.SGD(0.05))
    workers = strategy.num_replicas_in_sync
    rows = feed(ray.train.get_dataset_shard("train"), batch_size=64 * workers)
    model.fit(rows, epochs=1, verbose=0)
    replicas = model.distribute_strategy.num_replicas_in_sync
    return {"updates": int(model.optimizer.iterations.numpy()), "replicas": replicas}


# %%
check("04-2", fixed_loop, data)

# %% [markdown] tags=["instructor"]
# **"The loop ran, so what is wrong with it?" (04-2)** That's the point: TensorFlow reports neither mistake. Say: "Count the models, then the rows of a
# step." Elsewhere in this lesson `PanelCallback` refuses a model from outside the scope, but this loop has no callback.

# %% [markdown]
# ## What came back
# Keras has combined its metrics over all workers, so every rank reports the same ones, and Ray keeps those of rank 0.

# %%
result.metrics

# %% [markdown]
# The checkpoint is a folder with the file `model.keras`: layers, weights and optimizer. You can load it without `cnn(…)`:

# %%
with result.checkpoint.as_directory() as folder:
    print(os.listdir(folder))
    model = tf.keras.models.load_model(f"{folder}/model.keras")

_, accuracy = model.evaluate(in_batches(test, 512), verbose=0)
print(f"accuracy on {len(test)} test images: {accuracy:.3f}")

# %% tags=["claim"]
assert accuracy >= 0.9

# %% [markdown]
# One trap: Ray runs your loop in a side thread. There, from the second save on, Keras 2 writes HDF5 under the name `.keras`, also when Ray's callback saves: the printed lines warn. Keras 2 loads it, Keras 3 doesn't.
# When you save by hand, pass `save_format="keras_v3"`.
#
# ## Save by hand, to resume
# Ray's callback saves the model and nothing else. To resume, a training must also know which epoch comes next, so this time you report by hand: the model, and a small JSON file. Keras calls this callback
# at the end of each epoch. `breaks_in` is an epoch in which it fails on purpose.

# %%
import json
import tempfile


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
            report_folder(folder, {"epoch": epoch, "loss": logs["loss"]})


# %% [markdown]
# One thing differs from PyTorch: *every* rank must save, because saving is a collective operation. It adds up Keras's metrics over all workers, so a rank that saves alone waits for the others. Only rank 0
# passes its folder to Ray, and `report` is a barrier, as in lesson 03.


# %%
def report_folder(folder, metrics):
    first = ray.train.get_context().get_world_rank() == 0
    checkpoint = ray.train.Checkpoint.from_directory(folder) if first else None
    ray.train.report(metrics, checkpoint=checkpoint)


# %% [markdown] tags=["instructor"]
# **Who saves?** In Keras *every* rank saves, because saving adds up metrics over all workers. In PyTorch only rank 0 did.

# %% [markdown]
# ### Exercise 04-3 · A loop that resumes
# Fill in the four `...`. `ray.train.get_checkpoint()` returns the run's latest checkpoint, or `None` in a new run. Load the model *inside the scope*, and start with the epoch that comes next. In the check, the
# second of three epochs fails on both workers, and Ray starts the loop again.


# %%
def train_resumable(config):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    checkpoint = ...  # your answer
    with strategy.scope():
        if checkpoint is None:
            model, first = compiled(mlp(seed=0), tf.keras.optimizers.SGD(0.05, momentum=0.9)), 0
        else:
            with checkpoint.as_directory() as folder:
                model = ...  # your answer
                with open(f"{folder}/state.json") as file:
                    state = json.load(file)
            first = ...  # your answer
    report = Report(breaks_in=1 if first == 0 else None)
    rows = in_batches(train[:512], 128)
    model.fit(rows, initial_epoch=..., epochs=3, verbose=0, callbacks=[report])  # your answer
    return {"first": first, "updates": int(model.optimizer.iterations.numpy())}


# %% tags=["solution"]
def train_resumable(config):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    checkpoint = ray.train.get_checkpoint()
    with strategy.scope():
        if checkpoint is None:
            model, first = compiled(mlp(seed=0), tf.keras.optimizers.SGD(0.05, momentum=0.9)), 0
        else:
            with checkpoint.as_directory() as folder:
                model = tf.keras.models.load_model(f"{folder}/model.keras")
                with open(f"{folder}/state.json") as file:
                    state = json.load(file)
            first = state["epoch"] + 1
    report = Report(breaks_in=1 if first == 0 else None)
    rows = in_batches(train[:512], 128)
    model.fit(rows, initial_epoch=first, epochs=3, verbose=0, callbacks=[report])
    return {"first": first, "updates": int(model.optimizer.iterations.numpy())}


# %%
check("04-3", train_resumable)

# %% [markdown]
# Ray restarted the loop because the check asked for it, with `FailureConfig(max_failures=1)`. If a run has ended with an error, a new trainer with the *same name* resumes it in the same way.
#
# ## Is it the same model?
# This loop gives every worker *all* rows, in a fixed order. TensorFlow then shards them itself, which is called **auto-sharding**.

# %%
full = len(train) // 128 * 128


def train_in_order(config):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = compiled(mlp(seed=0), tf.keras.optimizers.SGD(0.05, momentum=0.9))
    follow = PanelCallback(config["panel"], rows_per_step=128 // strategy.num_replicas_in_sync)
    model.fit(in_batches(train[:full], 128), epochs=2, verbose=0, callbacks=[follow, Report()])


panel = TrainPanel("04-in-order", dataset=train.name, rows=full)
trainer = TensorflowTrainer(
    train_in_order,
    train_loop_config={"panel": panel},
    scaling_config=scaling,
    run_config=run_config(panel),
)
with panel.watch(trainer):
    result = trainer.fit()

# %% [markdown] tags=["prediction"]
# **Predict.** One process trains on the same rows, with batches of 64, 128 and 256. With which of them does it end with the weights of the workers?

# %%
predict("04-c", ..., choices=["64", "128", "256"])

# %% [markdown] tags=["instructor"]
# **12 updates in an epoch at first, and 11 in *Is it the same model?*** With `to_tf` each worker had its own 718 rows. Now each worker reads all 1,408
# rows, and its half of every 128 is one step. In both cases a step uses 128 rows on two workers together, 64 on each.

# %%
from labkit.models.keras import weights_distance

with result.checkpoint.as_directory() as folder:
    together = tf.keras.models.load_model(f"{folder}/model.keras")


def distance(batch_size):
    alone = compiled(mlp(seed=0), tf.keras.optimizers.SGD(0.05, momentum=0.9))
    alone.fit(in_batches(train[:full], batch_size), epochs=2, verbose=0)
    return weights_distance(together, alone)


distances = {str(size): distance(size) for size in (64, 128, 256)}
reveal("04-c", min(distances, key=distances.get))
distances

# %% tags=["claim"]
assert distances["128"] < 1e-5 and min(distances["64"], distances["256"]) > 1e-3

# %% [markdown]
# With 128 it is the same model, up to rounding: of every 128 rows, each of two workers uses its half.
#
# ## Was it worth it?

# %%
from labkit import runs

runs.plot(name=["04-one-process", "04-tensorflow"], last=2)

# %% [markdown] tags=["instructor"]
# **"We have two workers and it's slower?"** On two cores that is the honest result: a step of this network is short, and after each one the workers
# add up their gradients. Say: "Distribute when a step is long."

# %% tags=["claim"]
fastest = [min(runs.latest(name).seconds_per_epoch) for name in ("04-one-process", "04-tensorflow")]
assert fastest[1] > fastest[0] / 2  # two workers on two cores don't halve it

# %% [markdown]
# The bars show where each run spent its seconds. On the two cores where this page was written, the fastest epoch took 0.42 s in one process and 1.5 s on two workers,
# so it wasn't worth it. It pays off if a step is long, as on GPUs with a large model.

# %% [markdown] tags=["extra"]
# ## Extra: what else goes wrong
# | what you did | what happens |
# |---|---|
# | you built the model outside the scope, and compiled it inside | Keras raises "Variable … was not created in the distribution strategy scope" |
# | you built *and* compiled it outside | no error; every worker trains a model of its own. The lab's `PanelCallback` refuses that |
# | you named a column in `to_tf` that doesn't exist | Ray names it, and the columns that exist |
# | you gave each worker a dataset of its own rows, whose number of batches TensorFlow knows | Keras makes one step for each batch, and a batch is enough for two steps of two workers; so the epoch ends after half of the rows |
# | one rank calls `fit`, `save` or `report` less often than the others | the others wait for it |

# %% [markdown] tags=["extra"]
# ## Extra: shard once
# If Ray has given each worker its part and TensorFlow shards *again*, each worker uses only a part of its part. There is no error; the epochs are just shorter. `to_tf` switches auto-sharding off. For a
# `tf.data.Dataset` of your own, such as this generator around `iter_tf_batches`, `prepare_dataset_shard` does it. With `num_workers=0` the loop runs in this process:

# %%
from ray.train.tensorflow import prepare_dataset_shard


def from_generator(shard, batch_size):
    def generate():
        for batch in shard.iter_tf_batches(
            batch_size=batch_size, dtypes={"image": tf.uint8, "label": tf.int64}
        ):
            yield to_input(batch["image"]), batch["label"]

    signature = (tf.TensorSpec((None, 28, 28), tf.float32), tf.TensorSpec((None,), tf.int64))
    return prepare_dataset_shard(tf.data.Dataset.from_generator(generate, output_signature=signature))


def look(config):
    rows = from_generator(ray.train.get_dataset_shard("train"), batch_size=4)
    print(rows.options().experimental_distribute.auto_shard_policy.name, next(iter(rows))[1].numpy())


TensorflowTrainer(look, scaling_config=ScalingConfig(num_workers=0), datasets={"train": data}).fit().error

# %% [markdown]
# ### Exercise 04-4 · Sharded once
# Write a function that returns how many rows all workers together process in one epoch. A row that two workers process counts twice. `by_ray` says whether every worker gets only its shard from Ray;
# otherwise each worker has all rows. `by_tensorflow` says whether auto-sharding is on. Assume that `rows` can be divided without a remainder.


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
check("04-4", rows_seen)

# %% [markdown] tags=["extra"]
# ## Extra: the loop, by hand
# When `fit` doesn't do what you want, write the loop yourself. This one runs with Keras 3: only `fit` fails there, while its layers and optimizers work. `strategy.run` calls a function on each worker
# with that worker's rows. In it, `tf.GradientTape` records the forward pass, so that `tape.gradient` can compute the gradients. `apply_gradients` *adds up* the gradients of all workers and makes the same
# update everywhere. Their sum should be the gradient that one process would compute from all rows of the step. (DDP *averages* the gradients instead.)

# %% [markdown]
# ### Exercise 04-5 · What one worker contributes
# One process computes the mean loss of its rows. Write the loss that one of several workers computes: `losses` is an array with the loss of each of its rows, and `global_batch` is the number of
# rows on all workers together.


# %%
def worker_loss(losses, global_batch): ...  # your answer


# %% tags=["solution"]
def worker_loss(losses, global_batch):
    return losses.sum() / global_batch


# %%
check("04-5", worker_loss)

# %% [markdown]
# ### The step
# `tf.nn.compute_average_loss` computes just that, so the step can call it.


# %%
def make_step(strategy, model, optimizer):
    losses = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def worker_step(x, y, global_batch):
        with tf.GradientTape() as tape:
            each = losses(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(each, global_batch_size=global_batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return tf.function(lambda *batch: strategy.run(worker_step, args=batch), reduce_retracing=True)


# %% [markdown]
# `tf.function` compiles the step into a graph; with `reduce_retracing` it doesn't make another one for the shorter last batch. The batch is that of *one* worker again, because the rows go straight to `strategy.run`, so nothing divides them.


# %%
def train_raw(config):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model, optimizer = cnn(seed=0), tf.keras.optimizers.Adam(0.005)
        optimizer.build(model.trainable_variables)
    step, shard = make_step(strategy, model, optimizer), ray.train.get_dataset_shard("train")
    for epoch in range(config["epochs"]):
        rows = shard.iter_tf_batches(batch_size=config["worker_batch"])
        for batch in config["panel"].steps(rows, epoch=epoch, epochs=config["epochs"]):
            size = len(batch["label"]) * strategy.num_replicas_in_sync
            step(to_input(batch["image"]), batch["label"], size)
        right = tf.argmax(model(to_input(test.images)), axis=1) == test.labels
        ray.train.report({"epoch": epoch, "accuracy": float(tf.reduce_mean(tf.cast(right, tf.float32)))})
    print(tf.keras.Model.__module__, "· sum of all weights", sum(w.sum() for w in model.get_weights()))


# %%
panel = TrainPanel("04-raw", dataset=train.name, rows=len(train))
trainer = TensorflowTrainer(
    train_raw,
    train_loop_config={"panel": panel, "epochs": 2, "worker_batch": 128 // settings.num_workers},
    scaling_config=scaling,
    datasets={"train": data},
    run_config=run_config(panel, environment=backend.KERAS_3),
)
with panel.watch(trainer):
    trainer.fit()

# %% [markdown]
# All ranks print the same sum, so they trained one model. Starting takes longest here: the lab's preloaded process has Keras 2, so each of these workers imports TensorFlow for itself. To train a GAN, build two
# models and two optimizers inside the scope, and apply both in `worker_step`.

# %% [markdown]
# ## Key points
# - A strategy gets the *global* batch and divides it; in PyTorch you give each worker its own batch.
# - Build and compile the model inside the scope. Outside of it, every worker trains a model of its own, without an error.
# - Shard once: `to_tf` rows are sharded by Ray, and auto-sharding is switched off for them. Rows in memory are sharded by TensorFlow.
# - Every rank saves and every rank reports; only rank 0 passes a folder. Save the epoch with the model.
# - `fit` on several workers needs Keras 2.
#
# | older tutorials | today |
# |---|---|
# | `TensorflowTrainer(…, tensorflow_config=TensorflowConfig())`, `tensorflow_backend` | nothing: it has no options |
# | `resume_from_checkpoint=…` | raises. Use the same run name, or pass a checkpoint in `train_loop_config` |
# | `batch_size = 64 * world_size` | `64 * strategy.num_replicas_in_sync`, which also counts several GPUs per worker |
# | `model.save("model.h5")` | `model.save("model.keras", save_format="keras_v3")` (Keras 2); `model.save("model.keras")` (Keras 3) |

# %% [markdown] tags=["plain"]
# ## Without the lab
# The same job in plain Ray and TensorFlow, as the script [04_tensorflow_trainer.py](plain/04_tensorflow_trainer.py):

# %% [markdown] tags=["links"]
# ## Reference

# %% [markdown]
# ## Stop

# %%
store.stop()
lab.stop()
