# %% [markdown]
# # 06 · Validation alongside training
#
# **You will be able to** measure what validation costs inside a training loop; move it out of the loop, so that training doesn't wait for it; validate a
# checkpoint in three ways and choose between them; read every status; and say what happens when a validation fails, hangs or is too slow.
# · **Time** 40 min (3 of them waiting) · **Needs** 00, 01, 03
#
# After each epoch you want to know how good the model is on images that it wasn't trained on. In lesson 03 rank 0 answered that itself, and nothing was trained in the meantime.
# With 360 small images this costs nothing. With a large model and a large validation set it takes minutes per epoch, on machines that you pay for to train.
#
# The API of this lesson is young: Ray marks `ValidationConfig` and its relatives as *alpha*, and older tutorials use `validate_fn=` for what is called `ValidationConfig` today. Expect it to change again.

# %%
from labkit import cluster, datasets, storage
from labkit.settings import Settings

settings = Settings.from_env()
lab = cluster.start()
store = storage.start()
lab

# %% [markdown]
# This time the digits are drawn on the spot, as many as you like. The validation set is large, so that you can see the time it takes. A third
# set, `test`, is kept for the very end.

# %%
train = datasets.load("rendered", "train", n=6000)
held_out = datasets.load("rendered", "test", n=7000)
validation_rows, test = held_out[:5000], held_out[5000:]
train

# %% [markdown]
# Validations will run in processes of their own, perhaps on another machine. That is why their rows go to the object store, where every process can read them.

# %%
from labkit.storage import upload_shards

upload_shards(validation_rows, store, "lab-06", prefix="validation", rows_per_shard=2500)

# %% [markdown]
# ## Validation inside the loop
# Two functions that you know from lesson 03: one epoch of steps, and a checkpoint that only rank 0 writes. Each rank takes its shard of the images, and all shards have the same length.
# `mkdtemp` makes the checkpoint's folder, and this code never removes it. You will soon see why.
#
# `one_epoch` uses the global `train`, so its 4.7 MB are pickled along with the loop. That happens once per run, which is fine. It would not be fine once per checkpoint, as the section
# *The trap* below shows.

# %%
import tempfile

import ray.train
import torch
from labkit.models.torch import cnn
from labkit.models.torch import load_state, save_state
from labkit.models.torch import batches, evaluate, train_epoch


def one_epoch(model, optimizer, epoch, epochs):
    rank, world = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    mine = slice(rank, len(train) // world * world, world)
    rows = batches(train.images[mine], train.labels[mine], size=64, seed=epoch)
    steps = panel.steps(rows, epoch=epoch, epochs=epochs)
    loss_fn = torch.nn.functional.cross_entropy
    return train_epoch(model, steps, loss_fn, optimizer, on_step=panel.log)["loss"]


def checkpoint_of(model, optimizer, epoch):
    if ray.train.get_context().get_world_rank() != 0:
        return None
    folder = tempfile.mkdtemp()
    save_state(folder, model, optimizer, epoch)
    return ray.train.Checkpoint.from_directory(folder)


# %% [markdown]
# This loop validates by itself. `panel.phase` tells the panel what the loop is doing.

# %%
from labkit.datasets import read_rows
from ray.train.torch import prepare_model


def train_inline(config):
    model = prepare_model(cnn(seed=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    images, labels = read_rows("lab-06/validation", store.filesystem)
    for epoch in range(config["epochs"]):
        loss = one_epoch(model, optimizer, epoch, config["epochs"])
        panel.phase("validating")
        found = evaluate(model, batches(images, labels, size=512, shuffle=False))
        panel.phase("saving")
        metrics = {"epoch": epoch, "loss": loss, "val_accuracy": found["accuracy"]}
        ray.train.report(metrics, checkpoint=checkpoint_of(model, optimizer, epoch))


# %% [markdown]
# The trainer is the one from lesson 03. We train with one worker fewer than usual, which leaves a CPU free for the validation. On a cluster with GPUs, all but one of them train.

# %%
from labkit.train import TrainPanel
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

workers = max(1, settings.num_workers - 1)


def on_the_cluster(loop, validation_config=None, **config):
    return TorchTrainer(
        loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=settings.use_gpu),
        validation_config=validation_config,
        run_config=RunConfig(
            name=panel.run_id,
            storage_path=store.storage_path("runs", panel.state.name),
            storage_filesystem=store.filesystem,
            callbacks=[panel.callback()],
        ),
    )


# %% [markdown]
# The argument `validation_config` is new. It stays empty in the first run.

# %%
epochs = 4 if settings.small else 6

# %% [markdown] tags=["prediction"]
# **Before you go on:** the model trains on 6,000 images in each epoch and is validated on 5,000. An image costs a forward and a backward pass in training, and
# only a forward pass in validation. What share of its time will the loop spend on validation: a tenth, a quarter, a half?

# %%
panel = TrainPanel("06-inline", dataset=train.name, rows=len(train))
trainer = on_the_cluster(train_inline, epochs=epochs)
with panel.watch(trainer):
    result = trainer.fit()

# %% [markdown]
# Look at the time axis below the curve. *Training* and *validation* take turns: whenever there is a bar in one row, there is none in the other.

# %%
from labkit import runs


def standing_still(name):
    """Seconds from the last step of an epoch to the first of the next, in the mean."""
    record = runs.latest(name)
    return record.seconds["between epochs"] / (len(record.seconds_per_epoch) - 1)


print(f"after each epoch the loop stood still for {standing_still('06-inline'):.2f} s")

# %% [markdown]
# ## The validator
# To move the validation out of the loop, write it as a function: a checkpoint comes in, metrics go out. Ray calls it in another process, so it has to build its own model, load
# the weights, and read its own rows. It runs on a GPU if the process has one. `evaluate` moves each batch to the model's device and
# switches the model to evaluation mode, which matters as soon as a network has
# dropout or batch normalization.


# %%
def validate(checkpoint):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = cnn(seed=None)
    with checkpoint.as_directory() as folder:
        load_state(folder, model)
    model.to(device)
    images, labels = read_rows("lab-06/validation", store.filesystem)
    found = evaluate(model, batches(images, labels, size=512, shuffle=False))
    return {"val_accuracy": found["accuracy"], "val_loss": found["loss"]}


# %% [markdown]
# It is a plain function, so you can try it right here, on the last checkpoint of the run above:

# %%
validate(result.checkpoint), result.metrics["val_accuracy"]

# %% [markdown]
# The accuracy is the same. Three things change in the loop:
# - it no longer validates;
# - the rank that has the checkpoint reports `validation=True`, which asks Ray to call the validator with it;
# - with `CheckpointUploadMode.ASYNC` a separate thread uploads the checkpoint, and `report` returns at once. That is why your code must not remove the folder: the
#   thread is still reading it. Ray removes the folder after the upload.

# %%
from ray.train import CheckpointUploadMode


def train_async(config):
    model = prepare_model(cnn(seed=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for epoch in range(config["epochs"]):
        loss = one_epoch(model, optimizer, epoch, config["epochs"])
        checkpoint = checkpoint_of(model, optimizer, epoch)
        ray.train.report(
            {"epoch": epoch, "loss": loss},
            checkpoint=checkpoint,
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            validation=checkpoint is not None,
        )


# %% [markdown]
# `ValidationConfig` tells the trainer which function to call. `timeout_s` limits how long one validation may take. Always set it: without a timeout, `fit()` waits forever for a validation that hangs.

# %%
from ray.train import ValidationConfig, ValidationTaskConfig

validating = ValidationConfig(fn=validate, task_config=ValidationTaskConfig(timeout_s=60))

# %% [markdown] tags=["prediction"]
# **Before you go on:** there are two cores; one trains, one validates. Is the whole run shorter than before, and by as much as the validations took? And what will the
# panel show as the accuracy of the last epoch at the moment when training ends?

# %%
panel = TrainPanel("06-async", dataset=train.name, rows=len(train))
trainer = on_the_cluster(train_async, validating, epochs=epochs)
with panel.watch(trainer):
    result = trainer.fit()

# %% [markdown]
# Now the rows overlap: while later epochs train, the checkpoints of earlier ones are validated. A metric arrives late, long after its checkpoint was saved, while a later epoch
# is already being trained. The first metric takes longest, because a process has to start; later validations reuse that process. After the last step, `fit()` waits for the validations
# that are still pending.

# %%
print(f"in the loop: {standing_still('06-inline'):.2f} s after each epoch")
print(f"alongside:   {standing_still('06-async'):.2f} s")

# %% [markdown]
# What remains is the time to save the model to a local folder and to synchronize the ranks. Everything else happens in other threads and processes.

# %% [markdown]
# ### Exercise 06-1 · When is the last metric there?
# A training run has `n` epochs of `t` seconds each. A validation takes `v` seconds. Ray runs one validation at a time, and each can start as soon as its
# checkpoint exists (assume that uploads take no time). Write two functions that return after how many seconds the last metric is known: with the validation inside the loop, and alongside it.

# %%
from labkit.exercises import check, hint


def inside(n, t, v): ...  # your answer


def alongside(n, t, v): ...  # your answer


# %% tags=["solution"]
def inside(n, t, v):
    return n * (t + v)


def alongside(n, t, v):
    return n * t + v if v <= t else t + n * v


# %%
check("06-1", inside, alongside)

# %% [markdown]
# ## The life of a checkpoint's metrics

# %%
from labkit.display import picture

picture("life_of_metrics")

# %% [markdown]
# The loop reports what it knows: here `epoch` and `loss`. The checkpoint is **committed** when its upload is complete. If you asked for a validation, it is **pending** from then on.
# When the validation ends, its metrics are added to those of the loop:

# %%
[metrics for checkpoint, metrics in result.best_checkpoints][-1]

# %% [markdown]
# If both use the same key, the validator's value replaces the loop's. So never give two different things the same name.
#
# The result has the metrics but no statuses. Inside the loop, `ray.train.get_all_reported_checkpoints` returns both; you will call it below. Outside, Ray 2.60 has no public call for them. The lab's `reported_checkpoints`
# reads the file that the controller keeps next to the checkpoints. That file is not a documented format, so this helper may break with a new version of Ray:

# %%
from labkit.train import reported_checkpoints

[(one.metrics["epoch"], one.status.name) for one in reported_checkpoints(result.path, result.filesystem)]

# %% [markdown]
# ## Three validators
# `validate` uses one process. Sometimes that isn't enough. Here are two others; each reads the same rows from the store.
#
# **A trainer that only evaluates.** Its workers share the rows, and `MeanMetric` from torchmetrics combines what they find. Ray Train keeps metrics only if they come with
# a checkpoint, so the worker reports a placeholder: a path to which nothing is written (`NO_UPLOAD`).

# %%
import uuid

from ray.train.torch import get_device
from torchmetrics import MeanMetric


def evaluate_only(config):
    context, device = ray.train.get_context(), get_device()
    model = cnn(seed=None)
    with config["checkpoint"].as_directory() as folder:
        load_state(folder, model)
    model.to(device).eval()
    rank, world = context.get_world_rank(), context.get_world_size()
    images, labels = read_rows("lab-06/validation", store.filesystem, part=rank, parts=world)
    accuracy = MeanMetric().to(device)
    for x, y in batches(images, labels, size=512, shuffle=False):
        with torch.no_grad():
            answers = model(x.to(device)).argmax(dim=1)
        accuracy.update((answers == y.to(device)).float())
    own = context.get_storage()
    name = ray.train.Checkpoint(f"{own.experiment_fs_path}/none", own.storage_filesystem)
    metrics = {"val_accuracy": accuracy.compute().item()}
    ray.train.report(metrics, checkpoint=name, checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD)


# %%
def validate_in_a_trainer(checkpoint):
    trainer = TorchTrainer(
        evaluate_only,
        train_loop_config={"checkpoint": checkpoint},
        scaling_config=ScalingConfig(num_workers=1, use_gpu=settings.use_gpu),
        run_config=RunConfig(
            name=f"validate-{uuid.uuid4().hex}",
            storage_path=store.storage_path("runs", "06-validations"),
            storage_filesystem=store.filesystem,
        ),
    )
    return trainer.fit().metrics


# %% [markdown]
# Give each of these runs a fresh name. If you reuse one, Ray thinks that you want to resume the earlier run, looks for its checkpoint, and fails because there is none.
#
# **Ray Data.** The rows stream through actors. Each actor loads the model once, in `__init__`, and then evaluates one batch after the other. Ray Data computes the mean.

# %%
import ray.data
from labkit.models.torch import to_input


class Judge:
    def __init__(self, checkpoint):
        self.model = cnn(seed=None)
        with checkpoint.as_directory() as folder:
            load_state(folder, self.model)
        self.model.eval()

    def __call__(self, batch):
        with torch.no_grad():
            answers = self.model(to_input(batch["image"])).argmax(dim=1).numpy()
        return {"right": (answers == batch["label"]).astype(float)}


def validate_in_ray_data(checkpoint):
    ray.data.DataContext.get_current().use_datasource_v2 = False
    rows = ray.data.read_parquet("lab-06/validation", filesystem=store.filesystem)
    judged = rows.map_batches(
        Judge,
        fn_constructor_kwargs={"checkpoint": checkpoint},
        batch_size=512,
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=1),
    )
    return {"val_accuracy": judged.mean("right")}


# %% [markdown] tags=["prediction"]
# **Before you go on:** the same checkpoint, the same 5,000 rows, three ways. Which one is fastest, and by how much?

# %%
import time

import ray

task = ray.remote(num_cpus=0)(lambda way, checkpoint: way(checkpoint))

for way in (validate, validate_in_a_trainer, validate_in_ray_data):
    begin = time.perf_counter()
    accuracy = ray.get(task.remote(way, result.checkpoint))["val_accuracy"]
    print(f"{way.__name__:22} {accuracy:.6f} in {time.perf_counter() - begin:5.1f} s")

# %% [markdown]
# Each ran in a task, which is how Ray runs validators alongside training. They agree on the result. They differ in what has to start before the first row is read: one task; a train controller plus its workers; or a data pipeline plus an actor.
#
# | validator | choose it when |
# |---|---|
# | a single task | one process is fast enough. This is nearly always the first choice |
# | a trainer | the model needs several GPUs, or the evaluation needs a process group |
# | Ray Data | the rows don't fit in memory, or you have enough GPUs for several actors |

# %% [markdown]
# ## Slower than an epoch
# With Ray Data, validating these few rows takes longer than an epoch. What happens to the training then? The task of this validator only waits for its pipeline, so `num_cpus: 0` keeps it from
# taking a CPU away from that pipeline.

# %%
slow = ValidationConfig(
    fn=validate_in_ray_data,
    task_config=ValidationTaskConfig(timeout_s=90),
    ray_remote_kwargs={"num_cpus": 0},
)
panel = TrainPanel("06-slow", dataset=train.name, rows=len(train))
trainer = on_the_cluster(train_async, slow, epochs=2 if settings.small else 5)
with panel.watch(trainer):
    result = trainer.fit()

# %% [markdown]
# Training doesn't notice. The checkpoints queue up: each waits longer than the one before (the dashed lines), and `fit()` returns when the last one is done. No validation is lost
# or skipped. If your validations always finish late, validate less often, on fewer rows, or with more resources.

# %% [markdown]
# ### Exercise 06-2 · Not after every epoch
# `report(validation=…)` accepts `False`, `True`, or a `ValidationTaskConfig` with settings for this one checkpoint. Write the function that returns the right one: every third epoch
# (the indices 2, 5, 8, …) is validated with `fn_kwargs={"rows": 1000}` for at most 30 seconds. The last epoch is validated on all rows, `{"rows": None}`, for at most 300 seconds. All other epochs
# are not validated.


# %%
def validation_of(epoch, epochs): ...  # your answer


# %% tags=["solution"]
def validation_of(epoch, epochs):
    if epoch == epochs - 1:
        return ValidationTaskConfig(fn_kwargs={"rows": None}, timeout_s=300)
    if epoch % 3 == 2:
        return ValidationTaskConfig(fn_kwargs={"rows": 1000}, timeout_s=30)
    return False


# %%
check("06-2", validation_of)

# %% [markdown]
# ## Somewhere else
# A validation doesn't have to run where the training runs. `ray_remote_kwargs` says what it needs: CPUs, GPUs, or a **custom resource**, which is just a name with a count. Add a second node
# that offers one unit of `validation`; only nodes that have this resource can run what asks for it.

# %%
lab.add_node(cpus=1, resources={"validation": 1}) if lab.is_ours else None

# %%
elsewhere = {"resources": {"validation": 1}} if lab.is_ours else {}

# %% [markdown]
# On a real cluster you would ask for `{"num_gpus": 1}`, or choose nodes by a label: `{"label_selector": {"ray.io/accelerator-type": "L4"}}`. A small GPU is enough to validate while the
# large ones train. Asking for a GPU only reserves it. The validator must use it, too: `validate` above moves the model to the GPU if there is one, and `evaluate` each batch.
#
# ## When a validation goes wrong
# This validator does what the loop tells it: it works, raises, or hangs. It also returns where it ran. The variable `LABKIT_NODE` holds the name that the lab gave to a node.

# %%
import os


def moody(checkpoint, mood):
    if mood == "raise":
        raise ValueError("the validation set is gone")
    if mood == "hang":
        time.sleep(3600)
    return {**validate(checkpoint), "where": os.environ.get("LABKIT_NODE", "")}


# %% [markdown]
# The loop reports a `where`, too, and gives each validation a `mood` and a timeout of its own: 60 seconds, but only 5 for the one that will hang, so that you don't wait long for it. After the
# last epoch the loop asks Ray what it knows, in two ways: `COMMITTED` returns as soon as the last checkpoint is uploaded; `VALIDATED` waits until no validation is pending.

# %%
from ray.train import CheckpointConsistencyMode


def train_moody(config):
    model = prepare_model(cnn(seed=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for epoch, (mood, seconds) in enumerate(config["moods"]):
        loss = one_epoch(model, optimizer, epoch, len(config["moods"]))
        checkpoint = checkpoint_of(model, optimizer, epoch)
        ray.train.report(
            {"epoch": epoch, "loss": loss, "where": "in the loop"},
            checkpoint=checkpoint,
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            validation=checkpoint and ValidationTaskConfig(fn_kwargs={"mood": mood}, timeout_s=seconds),
        )
    for mode in (CheckpointConsistencyMode.COMMITTED, CheckpointConsistencyMode.VALIDATED):
        known = ray.train.get_all_reported_checkpoints(consistency_mode=mode)
        print(mode.value, [one.status.name for one in known])


# %% [markdown] tags=["prediction"]
# **Before you go on:** the validation of the second epoch raises, and that of the third one hangs. Which epochs will have a `val_accuracy`? What will be in the column `where`? Will `fit()` raise?

# %%
panel = TrainPanel("06-moody", dataset=train.name, rows=len(train))
config = ValidationConfig(fn=moody, ray_remote_kwargs=elsewhere)
trainer = on_the_cluster(train_moody, config, moods=[("well", 60), ("raise", 60), ("hang", 5), ("well", 60)])
with panel.watch(trainer):
    result = trainer.fit()

# %%
import pandas

found = reported_checkpoints(result.path, result.filesystem)
pandas.DataFrame([{**one.metrics, "status": one.status.name} for one in found])

# %% [markdown]
# Where a checkpoint was validated, the validator's `where` replaced the loop's. Where it wasn't, the loop's value is still there, and `val_accuracy` is missing.
#
# `fit()` returned without an error. A failed validation is not a failure of the training: the checkpoint is kept, with the loop's metrics. So look at the statuses before you trust
# a table that has a gap.
#
# The validation that hung was ended after 5 seconds, and the ones behind it had to wait that long. The timeout starts when Ray submits the task, so it includes the time that a process needs to start.
# Under *printed lines*, the panel shows what the loop printed: when it asked for what is `COMMITTED`, some validations were still pending.
#
# One thing does end the run: a validator whose *process* dies, for example because it runs out of memory. Ray retries it three times and then fails the *training*. So leave it some memory.
#
# And if the run is killed while a validation is pending? Ray has recorded which validations are still to be done. If you start a run with the same name, it resumes the training *and* those validations, as
# in lesson 03.

# %% [markdown]
# ### Exercise 06-3 · The best of them
# `found` is a list of reported checkpoints, as `reported_checkpoints` returns it: each has a `checkpoint`, `metrics` and a `status`. Write the function that returns the checkpoint with the highest
# `val_accuracy` among those that *are* validated. If there is none, return `None`.

# %%
from ray.train import ReportedCheckpointStatus


def best_of(found): ...  # your answer


# %% tags=["solution"]
def best_of(found):
    validated = [one for one in found if one.status == ReportedCheckpointStatus.VALIDATED]
    best = max(validated, key=lambda one: one.metrics["val_accuracy"], default=None)
    return best.checkpoint if best else None


# %%
check("06-3", best_of)

# %% [markdown]
# ## The trap: what gets pickled
# `validate` reads its rows from the store. It would be shorter to use the rows that are in memory here:


# %%
def validate_shorter(checkpoint):
    model = cnn(seed=None)
    with checkpoint.as_directory() as folder:
        load_state(folder, model)
    found = evaluate(model, batches(validation_rows.images, validation_rows.labels, size=512, shuffle=False))
    return {"val_accuracy": found["accuracy"]}


# %% [markdown] tags=["prediction"]
# **Before you go on:** what happens to `validation_rows` when this function is sent to another process? And when it is sent again, for the next checkpoint?

# %% tags=["raises-exception"]
panel = TrainPanel("06-trap")
trainer = on_the_cluster(train_async, ValidationConfig(fn=validate_shorter), epochs=1)
with panel.watch(trainer):
    trainer.fit()

# %% [markdown]
# Ray pickles a function together with everything that it uses. This function would carry the whole data set, again for every checkpoint. With 4 MB you wouldn't notice; with 4 GB the run's
# controller runs out of memory. That is why `panel.watch` measures what the pickled function contains, and refuses more than 1 MB. This message comes from the lab. Ray itself would send the function without a word.

# %% [markdown]
# ### Exercise 06-4 · Travel light
# `threshold` returns the share of pixels above the mean of a set of reference images. Pickled, it contains that whole set. Rewrite it so that it contains none of it: the reference is in the
# file `path` (written with `numpy.save`), and `path` is an argument.
#
# ```python
# def threshold(images):
#     return float((images > reference.mean()).mean())
# ```


# %%
def threshold(images, path): ...  # your answer


# %% tags=["solution"]
def threshold(images, path):
    import numpy

    reference = numpy.load(path)
    return float((images > reference.mean()).mean())


# %%
check("06-4", threshold)

# %% [markdown]
# ## Was it worth it?
# In the first run nothing else was going on while the loop trained, so its *training* is that of training alone. Nothing can be faster than that.

# %%
table = pandas.DataFrame(index=["06-inline", "06-async"])
table["training s"] = [runs.latest(name).seconds["training"] for name in table.index]
table["stood still s, per epoch"] = [standing_still(name) for name in table.index]
table["all, after the first step s"] = [
    runs.latest(name).seconds_total - runs.latest(name).seconds["start"] for name in table.index
]
table.round(2)


# %%
def seconds_to_metric(name):
    """From the last step of each epoch until the validated metric of its checkpoint is there."""
    return [round(one["seconds_to_metric"], 1) for one in runs.latest(name).extra["checkpoints"]]


pandas.DataFrame({name: seconds_to_metric(name) for name in table.index}, index=range(1, epochs + 1))

# %% [markdown]
# The loop no longer waits. But each metric arrives later: a process has to start and to load the model and the rows, and Ray checks on its validations about once a second. Now look at *training*: the steps
# themselves take longer alongside a validation. On two cores they share memory bandwidth and caches with it, and the second core wasn't idle before, because Ray's own processes and the store run there.
#
# So the whole run may be no shorter at all. That is the honest answer for a small model on two cores. What you can save is at most the time that the validations took, and only if there are resources that
# would otherwise be idle. With one GPU for both, you gain nothing.
#
# Asynchronous validation pays off when
# - a validation takes long, compared with the time that a process needs to start and to load the model;
# - *and* there is a place for it where nothing trains: other cores, a smaller GPU, a cheaper machine.

# %% [markdown]
# ## The best model
# The best model isn't the last one but the one with the best *validated* metric. Load it, and test it on images that have played no part so far.

# %%
from ray.train import Result

record = runs.latest("06-async")
path = f"{store.storage_path('runs', '06-async')}/{record.run_id}"
result = Result.from_path(path, storage_filesystem=store.filesystem)
model = cnn(seed=None)
with result.get_best_checkpoint("val_accuracy", "max").as_directory() as folder:
    epoch = load_state(folder, model)["epoch"]
accuracy = evaluate(model, batches(test.images, test.labels, size=512, shuffle=False))["accuracy"]
print(f"epoch {epoch + 1}: accuracy on {len(test)} test images: {accuracy:.3f}")

# %% [markdown]
# ## In this notebook
# - you measured how long a loop stops to validate, and moved the validation out of it with `ValidationConfig`, `validation=` and an asynchronous upload;
# - the metrics of a checkpoint came in two parts, and the validator's value won where both used the same key;
# - the same checkpoint was validated by a task, by a trainer and by Ray Data, with the same result, and you can say when to use which;
# - validations raised, hung and queued up; training went on, and each checkpoint's status told you what had happened;
# - you know what is pickled with a function, and why a data set should not be part of it;
# - you chose the best model by its validated metric, and tested it on other images.
#
# Stop the store and the cluster. The next lesson starts its own.

# %%
store.stop()
lab.stop()
