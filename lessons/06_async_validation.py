# %% [markdown]
# # 06 · Validation beside the training
#
# **You will be able to** measure what validation costs inside a loop; move it beside the training, where the loop does not wait for it; validate a
# checkpoint in three ways and choose one; read every status; and know what happens when a validation fails, hangs or is too slow.
# · **Time** 40 min (3 of them waiting) · **Needs** 00, 01, 03
#
# After each epoch a training asks: how good is the model on images that it does not train on? In lesson 03 rank 0 answered that itself, and meanwhile
# nobody trained. With 360 small images this is nothing. With a large model and a large validation set it is minutes in each epoch, on machines that are paid
# for training.

# %%
from labkit import cluster, datasets, storage
from labkit.settings import Settings

settings = Settings.from_env()
lab = cluster.start()
store = storage.start()
lab

# %% [markdown]
# The digits are drawn on the spot this time, as many as we want. The validation set is large, so that you can see the time it takes. A third
# set is kept for the very end.

# %%
train = datasets.load("rendered", "train", n=6000)
held_out = datasets.load("rendered", "test", n=7000)
validation_rows, test = held_out[:5000], held_out[5000:]
train

# %% [markdown]
# Validations will run in processes of their own, perhaps on another machine. So their rows go to the store, where everybody can read them.

# %%
from labkit.storage import upload_shards

upload_shards(validation_rows, store, "lab-06", prefix="validation", rows_per_shard=2500)

# %% [markdown]
# ## Validation inside the loop
# You know these two: one epoch of steps, and a checkpoint, which rank 0 alone has. Each rank takes its part of the images, all parts equally long. The folder of the
# checkpoint is made with `mkdtemp`, and nobody removes it here. You will see why.

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
# The loop that validates by itself. `panel.phase` tells the panel what it is doing.

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
# The trainer is that of lesson 03. One worker trains, and leaves a core to what comes. On a cluster with GPUs, all but one of them train.

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
# (`validation_config` is new, and empty for now.)

# %%
epochs = 4 if settings.small else 6

# %% [markdown] tags=["prediction"]
# **Before you go on:** the model trains on 6,000 images in each epoch and is validated on 5,000. An image costs a forward and a backward pass in training, and
# a forward pass in validation. Which part of the time will the loop spend on validation? A tenth, a quarter, a half?

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
# To move it out of the loop, write it as a function: a checkpoint comes in, metrics go out. It runs in another process. So it makes its own model, loads
# the weights, and reads its own rows.


# %%
def validate(checkpoint):
    model = cnn(seed=None)
    with checkpoint.as_directory() as folder:
        load_state(folder, model)
    images, labels = read_rows("lab-06/validation", store.filesystem)
    found = evaluate(model, batches(images, labels, size=512, shuffle=False))
    return {"val_accuracy": found["accuracy"], "val_loss": found["loss"]}


# %% [markdown]
# It is a plain function, so try it right here, on the last checkpoint of the run above:

# %%
validate(result.checkpoint), result.metrics["val_accuracy"]

# %% [markdown]
# The same accuracy. In the loop, three things change:
# - no validation;
# - `validation=True` from the rank that has the checkpoint: Ray is to call the validator with it;
# - `CheckpointUploadMode.ASYNC`: the checkpoint is uploaded by a thread of its own, and `report` returns at once. That is why nobody may remove the folder: the
#   thread still reads it. Ray removes it when it is uploaded.

# %%
from ray.train import CheckpointUploadMode


def train_beside(config):
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
# `ValidationConfig` tells the trainer which function that is. `timeout_s` is how long one validation may take. Always give it: without it, a validation that
# hangs is waited for, for ever.

# %%
from ray.train import ValidationConfig, ValidationTaskConfig

validating = ValidationConfig(fn=validate, task_config=ValidationTaskConfig(timeout_s=60))

# %% [markdown] tags=["prediction"]
# **Before you go on:** two cores, one trains, one validates. Is the whole run shorter than before? By as much as the validations took? And what will the
# panel show as the accuracy of the last epoch at the moment when the training ends?

# %%
panel = TrainPanel("06-beside", dataset=train.name, rows=len(train))
trainer = on_the_cluster(train_beside, validating, epochs=epochs)
with panel.watch(trainer):
    result = trainer.fit()

# %% [markdown]
# Now the rows overlap: while later epochs train, the checkpoints of earlier ones are validated. A metric arrives late, when its checkpoint is long saved and the training
# somewhere else. The first one waits longest, because a process has to start; the next ones find it there. After the last step `fit()` waits for the validations
# that are still to come.

# %%
print(f"in the loop: {standing_still('06-inline'):.2f} s after each epoch")
print(f"beside it:   {standing_still('06-beside'):.2f} s")

# %% [markdown]
# What is left is saving the model to a local folder, and telling the other ranks. The rest is somebody else's time.

# %% [markdown]
# ### Exercise 06-1 · When is the last metric there?
# A training has `n` epochs of `t` seconds. A validation takes `v` seconds. Ray runs one validation at a time, and each can begin when its
# checkpoint is there (uploads take no time here). Write two functions: after how many seconds is the last metric there, with the validation inside the loop, and beside it?

# %%
from labkit.exercises import check, hint


def inside(n, t, v): ...  # your answer


def beside(n, t, v): ...  # your answer


# %% tags=["solution"]
def inside(n, t, v):
    return n * (t + v)


def beside(n, t, v):
    return n * t + v if v <= t else t + n * v


# %%
check("06-1", inside, beside)

# %% [markdown]
# ## The life of a checkpoint's metrics

# %%
from labkit.display import picture

picture("life_of_metrics")

# %% [markdown]
# The loop reports what it knows: here `epoch` and `loss`. The checkpoint is *committed* when it is uploaded. If a validation was asked for, it is *pending* from then on.
# At the end its metrics are added to those of the loop:

# %%
[metrics for checkpoint, metrics in result.best_checkpoints][-1]

# %% [markdown]
# If both have the same key, the validator's value replaces the loop's. So never call two different things by one name.
#
# The result has the metrics, and no statuses. Ray keeps them in the store, beside the checkpoints, and `reported` reads them there:

# %%
from labkit.train import reported

[(one.metrics["epoch"], one.status.name) for one in reported(result.path, result.filesystem)]

# %% [markdown]
# ## Three validators
# `validate` uses one process. Sometimes that is not enough. Here are two others; each gets the same rows from the store.
#
# **A trainer that only evaluates.** Its workers share the rows, and `MeanMetric` of torchmetrics adds up what they find. Ray Train keeps metrics only with
# a checkpoint, so the worker reports one that is a mere name: with `NO_UPLOAD` nothing is stored under it.

# %%
import uuid

from ray.train.torch import get_device
from torchmetrics import MeanMetric


def evaluate_only(config):
    context, device = ray.train.get_context(), get_device()
    model = cnn(seed=None)
    with config["checkpoint"].as_directory() as folder:
        load_state(folder, model)
    model.to(device)
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
# Its run needs a name of its own, a new one for each checkpoint. Under a used name Ray would take it for the old run, and look for the checkpoint of that one, which does not exist.
#
# **Ray Data.** The rows stream through actors. Each loads the model once, in `__init__`, and then judges one batch after the other. Ray Data computes the mean.

# %%
import ray.data
from labkit.models.torch import to_input


class Judge:
    def __init__(self, checkpoint):
        self.model = cnn(seed=None)
        with checkpoint.as_directory() as folder:
            load_state(folder, self.model)

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
# **Before you go on:** the same checkpoint, the same 5,000 rows, three ways. Which is fastest, and by how much?

# %%
import time

import ray

task = ray.remote(num_cpus=0)(lambda way, checkpoint: way(checkpoint))

for way in (validate, validate_in_a_trainer, validate_in_ray_data):
    begin = time.perf_counter()
    accuracy = ray.get(task.remote(way, result.checkpoint))["val_accuracy"]
    print(f"{way.__name__:22} {accuracy:.6f} in {time.perf_counter() - begin:5.1f} s")

# %% [markdown]
# Each ran in a task, as Ray runs them beside a training. They agree. What differs is what has to start before the first row: no more than the task; a controller and workers; a pipeline and an actor.
#
# | | choose it when |
# |---|---|
# | a single task | one process is fast enough. Nearly always the first choice |
# | a trainer | the model needs several GPUs, or the evaluation a process group |
# | Ray Data | the rows do not fit in memory, or there are GPUs enough for several actors |
#
# You need not write them again: `labkit.train.validation` has all three (`in_a_task`, `in_a_trainer`, `in_ray_data`), with loss and accuracy in double precision.

# %% [markdown]
# ## Slower than an epoch
# With Ray Data, a validation of these few rows takes longer than an epoch. What will become of the training? The task of this validator only waits for its pipeline. With
# `num_cpus: 0` it takes no CPU away from it.

# %%
slow = ValidationConfig(
    fn=validate_in_ray_data,
    task_config=ValidationTaskConfig(timeout_s=90),
    ray_remote_kwargs={"num_cpus": 0},
)
panel = TrainPanel("06-slow", dataset=train.name, rows=len(train))
trainer = on_the_cluster(train_beside, slow, epochs=2 if settings.small else 5)
with panel.watch(trainer):
    result = trainer.fit()

# %% [markdown]
# The training does not notice. The checkpoints queue: each waits longer than the one before (the dashed lines), and `fit()` returns when the last one is done. Nothing is lost, and
# nothing is skipped. If your validations always end late, validate less often, on fewer rows, or with more resources.

# %% [markdown]
# ### Exercise 06-2 · Not after every epoch
# `report(validation=…)` takes `False`, `True`, or a `ValidationTaskConfig` with settings for this one checkpoint. Write the function that gives the right one: every third epoch
# (with the indices 2, 5, 8, …) is validated with `fn_kwargs={"rows": 1000}`, for at most 30 seconds. The last epoch is validated on all rows: `{"rows": None}`, at most 300 seconds. All others
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
# Whoever validates need not have the resources of those who train. `ray_remote_kwargs` says what a validation wants: CPUs, GPUs, or a resource that you made up. Here a second node
# joins, with one such: only nodes that have `validation` can run what asks for it.

# %%
lab.add_node(cpus=1, resources={"validation": 1}) if lab.is_ours else None

# %%
elsewhere = {"resources": {"validation": 1}} if lab.is_ours else {}

# %% [markdown]
# On a real cluster you would rather write `{"num_gpus": 1}`, or pick nodes by a label: `{"label_selector": {"ray.io/accelerator-type": "L4"}}`. A small GPU is enough to validate, while the
# large ones train.
#
# ## When a validation goes wrong
# This validator obeys the loop: it works, raises, or hangs. It also says where it ran. (`LABKIT_NODE` is the name that the lab gave to a node.)

# %%
import os


def moody(checkpoint, mood):
    if mood == "raise":
        raise ValueError("the validation set is gone")
    if mood == "hang":
        time.sleep(3600)
    return {**validate(checkpoint), "where": os.environ.get("LABKIT_NODE", "")}


# %% [markdown]
# The loop reports a `where`, too, and gives each validation a `mood` and a limit of its own: 60 seconds, and 5 to the one that will hang, so that you need not wait long for it. When all is trained it asks Ray what it knows, in two ways: `COMMITTED` answers as soon as the last
# checkpoint is uploaded; `VALIDATED` waits until no validation is pending.

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
# **Before you go on:** the validation of the second epoch raises, that of the third hangs. Which epochs will have a `val_accuracy`? What will stand under `where`? Will `fit()` raise?

# %%
panel = TrainPanel("06-moody", dataset=train.name, rows=len(train))
config = ValidationConfig(fn=moody, ray_remote_kwargs=elsewhere)
trainer = on_the_cluster(train_moody, config, moods=[("well", 60), ("raise", 60), ("hang", 5), ("well", 60)])
with panel.watch(trainer):
    result = trainer.fit()

# %%
import pandas

found = reported(result.path, result.filesystem)
pandas.DataFrame([{**one.metrics, "status": one.status.name} for one in found])

# %% [markdown]
# Where a checkpoint was validated, the validator's `where` replaced that of the loop. Where not, what the loop said is still there, and `val_accuracy` is missing.
#
# `fit()` returned, and said nothing. A failed validation is no failure of the training: its checkpoint is kept, with the metrics of the loop. So look at the statuses before you trust
# a table with a gap in it. The one that hung was ended after its 5 seconds; those after it had to wait that long. These seconds count from the moment when Ray wants to start the task, so the start of a process is among them. (Under *printed lines* the panel has what the loop was told: when it asked for what is
# `COMMITTED`, some were still pending.)
#
# (One thing does end the run: a validator that takes its whole process down, for want of memory for example. Ray tries it three times more, and then gives up the *training*. Leave it some room.)
#
# And if the run is killed while a validation is pending? Ray has written down what is still to be done. A run with the same name goes on with the training *and* with the validations: lesson 03 showed how.

# %% [markdown]
# ### Exercise 06-3 · The best of them
# `found` is a list of reported checkpoints, as `reported` returns it: each has `checkpoint`, `metrics` and `status`. Write the function that returns the checkpoint with the highest
# `val_accuracy` among those that *are* validated. If there is none, the answer is `None`.

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
# ## The trap: what travels along
# `validate` reads its rows from the store. It would be shorter to use the ones that lie here in memory:


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
trainer = on_the_cluster(train_beside, ValidationConfig(fn=validate_shorter), epochs=1)
with panel.watch(trainer):
    trainer.fit()

# %% [markdown]
# Ray pickles a function with all that it uses. This one would take the whole data set along, for every checkpoint anew. With 4 MB you would not even notice; with 4 GB the controller of the
# run has no memory left. So `panel.watch` measures what the function takes along, and refuses it above 1 MB. This message is the lab's. Ray itself would say nothing, and send it.

# %% [markdown]
# ### Exercise 06-4 · Travel light
# `threshold` gives the share of pixels above the mean of a reference image set. It takes all of that set along. Write it so that it takes nothing: the reference lies in the file `path` (made
# with `numpy.save`), and `path` comes as an argument.
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
# In the first run nothing else was going on while the loop trained. So its *training* is that of a training alone. Nothing can be faster than that.

# %%
table = pandas.DataFrame(index=["06-inline", "06-beside"])
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
# The loop no longer stands still. But each metric comes later: a process has to start, load the model and the rows, and Ray looks after its validations about once a second. And look at *training*: the steps
# themselves take longer beside a validation. On two cores it shares memory and caches with them, and the second core was not idle before, either: Ray's own processes and the store live there.
#
# So the whole may be no shorter at all. That is the honest answer for a small model on two cores. What you can save is at most the time that the validations took, and only if there are resources that
# would otherwise lie idle. With one GPU for both, nothing is won.
#
# Validation beside the training pays when
# - a validation takes long, compared with the seconds that a process needs to start and to load the model;
# - *and* there is a place for it that does not train: other cores, a smaller GPU, a cheaper machine.

# %% [markdown]
# ## The best model
# Not the last one: the one with the best *validated* metric. It is loaded, and tested on images that took part in nothing so far.

# %%
from ray.train import Result

record = runs.latest("06-beside")
path = f"{store.storage_path('runs', '06-beside')}/{record.run_id}"
result = Result.from_path(path, storage_filesystem=store.filesystem)
model = cnn(seed=None)
with result.get_best_checkpoint("val_accuracy", "max").as_directory() as folder:
    epoch = load_state(folder, model)["epoch"]
accuracy = evaluate(model, batches(test.images, test.labels, size=512, shuffle=False))["accuracy"]
print(f"epoch {epoch + 1}: accuracy on {len(test)} test images: {accuracy:.3f}")

# %% [markdown]
# ## In this notebook
# - you measured how long a loop stands still to validate, and moved the validation beside it with `ValidationConfig`, `validation=` and an asynchronous upload;
# - the metrics of a checkpoint came in two parts, and the validator's value won where both had a key;
# - the same checkpoint was validated by a task, by a trainer and by Ray Data, with the same result, and you can say when to take which;
# - validations raised, hung and queued; the training went on, and the statuses told;
# - you know what a function takes along, and why a data set should not be in it;
# - the best model was chosen by its validated metric, and tested on other images.
#
# Stop the store and the cluster. The next lesson starts its own.

# %%
store.stop()
lab.stop()
