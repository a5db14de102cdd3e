# %% [markdown]
# # 06 · Validation alongside training
#
# By the end of this lesson you can
# - move validation out of the training loop, and say when its last metric is known (exercise 06-1);
# - write a loop that decides which checkpoints are validated (06-2);
# - fix a validator that returns wrong numbers and carries a data set with it (06-3);
# - read every checkpoint's status, and choose the best model that was really validated (06-4).
#
# **Time** … · **Needs** 00, 01, 03

# %% [markdown]
# A model trains for 20 minutes per epoch on eight GPUs, and its validation set takes another 5 minutes. If the loop validates, no GPU trains for a fifth of the time that you pay
# for. Ray can validate each checkpoint somewhere else while the training goes on.
#
# ![Validation inside the loop stops the training; alongside, a task validates each checkpoint during the next epoch](images/lanes.svg)
#
# This API is young: Ray marks `ValidationConfig` and its relatives as *alpha*.

# %%
from labkit import cluster, datasets, storage
from labkit.exercises import check, hint, predict, reveal
from labkit.settings import Settings

settings = Settings.from_env()
lab = cluster.start()
store = storage.start()
lab

# %% [markdown]
# The validation set is large, so that you can see the time it takes; a third set, `test`, is kept for the very end. Validations run in other processes, perhaps on
# another machine, so their rows go to the store.

# %%
from labkit.storage import upload_shards

train = datasets.load("rendered", "train", n=3000 if settings.small else 6000)
held_out = datasets.load("rendered", "test", n=7000)
validation_rows, test = held_out[:5000], held_out[5000:]
upload_shards(validation_rows, store, "lab-06", prefix="validation", rows_per_shard=2500)

# %% [markdown]
# ## Validation inside the loop
# Two functions for both loops: one epoch of steps, and a checkpoint that only rank 0 writes.

# %%
import tempfile

import ray.train
import torch
from labkit.models.torch import batches, cnn, evaluate, load_state, save_state, train_epoch


def one_epoch(model, optimizer, epoch, config):
    rank, world = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    mine = slice(rank, len(train) // world * world, world)
    rows = batches(train.images[mine], train.labels[mine], size=64, seed=epoch)
    panel, loss_fn = config["panel"], torch.nn.functional.cross_entropy
    steps = panel.steps(rows, epoch=epoch, epochs=config["epochs"])
    return train_epoch(model, steps, loss_fn, optimizer, on_step=panel.log)["loss"]


def checkpoint_of(model, optimizer, epoch):
    if ray.train.get_context().get_world_rank() != 0:
        return None
    folder = tempfile.mkdtemp()
    save_state(folder, model, optimizer, epoch)
    return ray.train.Checkpoint.from_directory(folder)


# %% [markdown]
# This loop validates by itself. `panel.phase` tells the panel what the loop is doing. After the upload, Ray removes the checkpoint's folder.

# %%
from labkit.datasets import read_rows
from ray.train.torch import prepare_model


def train_inline(config):
    model = prepare_model(cnn(seed=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    images, labels = read_rows("lab-06/validation", store.filesystem)
    for epoch in range(config["epochs"]):
        loss = one_epoch(model, optimizer, epoch, config)
        config["panel"].phase("validating")
        found = evaluate(model, batches(images, labels, size=512, shuffle=False))
        config["panel"].phase("saving")
        metrics = {"epoch": epoch, "loss": loss, "val_accuracy": found["accuracy"]}
        checkpoint = checkpoint_of(model, optimizer, epoch)
        ray.train.report(metrics, checkpoint=checkpoint, delete_local_checkpoint_after_upload=True)


# %% [markdown]
# The trainer is the one from lesson 03, with one worker fewer than usual, because a validation needs a CPU of its own. By default that leaves *one* worker: this lesson is about when validation runs, and not about
# DDP. The argument `validation_config` is new; it stays empty in the first run.

# %%
from labkit.train import TrainPanel
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

epochs = 3 if settings.small else 6
workers = max(1, settings.num_workers - 1)


def run(name, loop, validation_config=None, **config):
    panel = TrainPanel(name, dataset=train.name, rows=len(train))
    trainer = TorchTrainer(
        loop,
        train_loop_config={"panel": panel, "epochs": epochs, **config},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=settings.use_gpu),
        validation_config=validation_config,
        run_config=RunConfig(
            name=panel.run_id,
            storage_path=store.storage_path("runs", name),
            storage_filesystem=store.filesystem,
            callbacks=[panel.callback()],
        ),
    )
    with panel.watch(trainer):
        return trainer.fit()


# %% [markdown] tags=["instructor"]
# **One worker fewer than in lesson 03.** A validation needs a CPU that no worker holds. Otherwise a checkpoint stays at *waits for validation*.

# %% [markdown] tags=["prediction"]
# **Predict.** An epoch trains on 6,000 images (3,000 in small mode), forward and backward, and validates 5,000, forward only. What percentage of its time does the loop spend between two epochs?

# %%
predict("06-a", ...)  # a number, in percent

# %%
from labkit import runs


def standing_still(name):
    """Seconds from the last step of an epoch to the first of the next, on average."""
    record = runs.latest(name)
    return record.seconds["between epochs"] / (len(record.seconds_per_epoch) - 1)


result = run("06-inline", train_inline)
still, epoch_s = standing_still("06-inline"), runs.latest("06-inline").seconds["training"] / epochs
reveal("06-a", round(100 * still / (still + epoch_s)))

# %% [markdown]
# For that share of the time, nothing trained: the loop validated, and it also saved and uploaded the checkpoint. On the time axis below the curve, *training* and *validation* take turns.
#
# ## The validator
# To move the validation out of the loop, write it as a function: a checkpoint comes in, metrics go out. Ray calls it in another process, so it has to build its own model, load the weights, and read its
# own rows. By default Ray reserves one CPU and no GPU for this process; the last section shows how to ask for a GPU, and `validate` uses one if there is one. `evaluate` moves each batch to the model's device and calls `model.eval()`, which matters as soon as a network has dropout or batch normalization.


# %%
def validate(checkpoint):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = cnn()
    with checkpoint.as_directory() as folder:
        load_state(folder, model)
    model.to(device)
    images, labels = read_rows("lab-06/validation", store.filesystem)
    found = evaluate(model, batches(images, labels, size=512, shuffle=False))
    return {"val_accuracy": found["accuracy"], "val_loss": found["loss"]}


# %% [markdown]
# It is a plain function, so you can try it right here, on the last checkpoint of the run above. It should find the accuracy that the loop has reported:

# %%
found = validate(result.checkpoint)
found, result.metrics["val_accuracy"]

# %% tags=["claim"]
assert abs(found["val_accuracy"] - result.metrics["val_accuracy"]) < 1e-3

# %% [markdown]
# Three things change in the loop:
# - it no longer validates;
# - rank 0, which has the checkpoint, reports `validation=True`, which asks Ray to call the validator with it (on a rank without a checkpoint, `True` is an error);
# - with `CheckpointUploadMode.ASYNC` a separate thread uploads the checkpoint, and `report` returns at once. Ray then removes the folder by default. Your code must not, because it would come too early.

# %%
from ray.train import CheckpointUploadMode


def train_async(config):
    model = prepare_model(cnn(seed=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for epoch in range(config["epochs"]):
        loss = one_epoch(model, optimizer, epoch, config)
        checkpoint = checkpoint_of(model, optimizer, epoch)
        ray.train.report(
            {"epoch": epoch, "loss": loss},
            checkpoint=checkpoint,
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            validation=checkpoint is not None,
        )


# %% [markdown] tags=["instructor"]
# **Why isn't the checkpoint's folder removed?** With `ASYNC` the upload happens later, in another thread. Ray removes the folder when it's done.

# %% [markdown]
# `ValidationConfig` tells the trainer which function to call. Set `timeout_s`: without it, `fit()` waits forever for a validation that hangs. The clock starts when Ray submits the task, so it also runs while
# the task waits for a free CPU. If the workers hold all CPUs, every validation times out until the training has ended.

# %%
from ray.train import ValidationConfig, ValidationTaskConfig

validating = ValidationConfig(fn=validate, task_config=ValidationTaskConfig(timeout_s=60))

# %%
result = run("06-async", train_async, validating)
[round(standing_still(name), 2) for name in ("06-inline", "06-async")]

# %% [markdown] tags=["instructor"]
# **The last metrics come after the last step.** `fit()` waits for validations that are still pending. Point to the two lines of the panel's time
# axis.

# %% tags=["claim"]
assert standing_still("06-inline") > 1.5 * standing_still("06-async")

# %% [markdown]
# These are the seconds between two epochs: `report` no longer waits. Now the bars of the two lines overlap: while later epochs train, the checkpoints of earlier ones are validated, one at a time. So a
# metric arrives late, and the first takes longest, because a process has to start. After the last step, `fit()` waits for the validations that are still
# pending.

# %% [markdown]
# ### Exercise 06-1 · When is the last metric there?
# A training run has `n` epochs of `t` seconds each. A validation takes `v` seconds. Ray runs one validation at a time, and each can start as soon as its
# checkpoint exists (assume that uploads take no time). Write two functions that return after how many seconds the last metric is known: with the validation inside the loop, and alongside it.
# If you are stuck: `hint("06-1")`.


# %%
def inside(n, t, v): ...  # your answer


def alongside(n, t, v): ...  # your answer


# %% tags=["solution"]
def inside(n, t, v):
    return n * (t + v)


def alongside(n, t, v):
    return n * t + v if v <= t else t + n * v


# %%
check("06-1", inside, alongside)

# %% [markdown] tags=["instructor"]
# **One formula for both cases (06-1).** Draw three epochs on the board, once with short validations and once with long ones. The long ones queue from
# the first checkpoint on, so the length of the training no longer matters, only that of the first epoch.

# %% [markdown]
# ## The life of a checkpoint's metrics
#
# ![the loop reports epoch 1 and trains epoch 2; meanwhile a thread uploads the checkpoint, and then a validation task has its turn; the checkpoint ends validated, failed or timed out](images/life_of_metrics.svg)
#
# The loop reports what it knows. The checkpoint is **committed** when its upload is complete, and stays so if no validation was requested. Otherwise it is **pending** until its validation ends as `VALIDATED`,
# `VALIDATION_FAILED` or `VALIDATION_TIMEOUT`. The validator's metrics are added to those of the loop. If both use the same key, the validator's value replaces the loop's.

# %%
from labkit.train import reported_checkpoints

found = reported_checkpoints(result.path, result.filesystem)
[(one.metrics["epoch"], one.status.name, one.metrics.get("val_accuracy")) for one in found]

# %% tags=["claim"]
assert [one.status.name for one in found] == ["VALIDATED"] * epochs

# %% [markdown]
# Inside a loop, `ray.train.get_all_reported_checkpoints` returns these; unlike `report`, it doesn't wait for the other ranks. A `Result` has no statuses, so the lab's `reported_checkpoints` reads an undocumented file that the run's controller keeps next to
# the checkpoints. Without the lab, let the loop call `get_all_reported_checkpoints` as its last line and return what it gets, as the last section does. The workers then stay until the last validation has ended.

# %% [markdown]
# ### Exercise 06-2 · Not after every epoch
# `report(validation=…)` accepts `False`, `True`, or a `ValidationTaskConfig` with settings for this one checkpoint. Replace the blank, by several lines if you like: every third epoch (the indices 2, 5, …) is validated with
# `fn_kwargs={"rows": 1000}`, but the last epoch, whatever its index, on all rows, `{"rows": None}`. No other epoch is validated. Give each of them a `timeout_s`, because a `ValidationTaskConfig` in a report
# doesn't inherit the trainer's. The check runs the loop on the cluster, for five epochs and for three, and calls a validator of the check instead of yours.


# %%
def train_sparsely(config):
    for epoch in range(config["epochs"]):
        folder = tempfile.mkdtemp()
        torch.save({"epoch": epoch}, f"{folder}/state.pt")
        validation = ...  # your answer
        ray.train.report(
            {"epoch": epoch},
            checkpoint=ray.train.Checkpoint.from_directory(folder),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            validation=validation,
        )


# %% tags=["solution"]
def train_sparsely(config):
    for epoch in range(config["epochs"]):
        folder = tempfile.mkdtemp()
        torch.save({"epoch": epoch}, f"{folder}/state.pt")
        validation = False
        if epoch == config["epochs"] - 1:
            validation = ValidationTaskConfig(fn_kwargs={"rows": None}, timeout_s=60)
        elif epoch % 3 == 2:
            validation = ValidationTaskConfig(fn_kwargs={"rows": 1000}, timeout_s=60)
        ray.train.report(
            {"epoch": epoch},
            checkpoint=ray.train.Checkpoint.from_directory(folder),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            validation=validation,
        )


# %%
check("06-2", train_sparsely)

# %% [markdown]
# ## What gets pickled
# `validate` reads its rows from the store. It would be shorter to use the rows that are in memory here:


# %%
def validate_shorter(checkpoint):
    model = cnn()
    with checkpoint.as_directory() as folder:
        load_state(folder, model)
    rows = batches(validation_rows.images, validation_rows.labels, size=512, shuffle=False)
    return {"val_accuracy": evaluate(model, rows)["accuracy"]}


# %% [markdown] tags=["prediction"]
# **Predict.** Ray pickles the function and sends it to another process, again for every checkpoint. How large is it, compared with `validate`?

# %%
sizes = ["about as large", "about 10 times", "more than 100 times"]
predict("06-b", ..., choices=sizes)

# %%
from ray import cloudpickle

size, light = (len(cloudpickle.dumps(function)) for function in (validate_shorter, validate))
reveal("06-b", sizes[(size > 3 * light) + (size > 100 * light)])
size, light

# %% tags=["claim"]
assert size > 3.9e6 and light < 20_000

# %% [markdown]
# The function takes the whole data set along. With 4 MB you wouldn't notice; with 4 GB the run's controller runs out of memory. Ray says nothing. `panel.watch` refuses more than 1 MB, so the next cell
# raises and starts nothing:

# %% tags=["raises-exception"]
run("06-trap", train_async, ValidationConfig(fn=validate_shorter))

# %% [markdown] tags=["instructor"]
# **A red error in *What gets pickled*.** It's intended: `panel.watch` refuses a validator of more than 1 MB.

# %% [markdown]
# `one_epoch` takes the training images along, too. That happens once per run and not once per checkpoint, so a few megabytes are fine.

# %% [markdown]
# ### Exercise 06-3 · Fix this validator
# Here is a validator for a network with dropout. It is too large to send, it gives another number each time, and Ray can't use what it returns. Find the three causes, and return a plain number (`.item()`) as
# `{"val_accuracy": …}`. The check runs it twice, in a Ray task on your last checkpoint.


# %%
def fixed_validator(checkpoint):  # your answer: fix it
    net = cnn()
    with checkpoint.as_directory() as folder:
        load_state(folder, net)
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), net)
    right = 0
    for x, y in batches(validation_rows.images, validation_rows.labels, size=512, shuffle=False):
        right += (model(x).argmax(dim=1) == y).sum()
    return right / len(validation_rows.labels)


# %% tags=["solution"]
def fixed_validator(checkpoint):
    net = cnn()
    with checkpoint.as_directory() as folder:
        load_state(folder, net)
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), net).eval()
    images, labels = read_rows("lab-06/validation", store.filesystem)
    right = 0
    with torch.no_grad():
        for x, y in batches(images, labels, size=512, shuffle=False):
            right += (model(x).argmax(dim=1) == y).sum().item()
    return {"val_accuracy": right / len(labels)}


# %%
check("06-3", fixed_validator, result)

# %% [markdown] tags=["instructor"]
# **Each fix of 06-3 brings a new message.** The check looks at the size first, then at what the function returns, then at whether two runs agree.
# `torch.no_grad()` isn't one of the three: without it the numbers are the same.

# %% [markdown]
# ## Was it worth it?

# %%
import pandas

table = pandas.DataFrame(index=["06-inline", "06-async"])
records = [runs.latest(name) for name in table.index]
table["training s"] = [record.seconds["training"] for record in records]
table["stood still s, per epoch"] = [standing_still(name) for name in table.index]
table["total s, without the start"] = [record.seconds_total - record.seconds["start"] for record in records]
table.round(2)

# %% [markdown] tags=["instructor"]
# **"The whole run isn't faster."** On two cores the second core wasn't idle before. It pays where validation takes long *and* has a place of its own:
# other cores, a smaller GPU, a cheaper machine.

# %% [markdown]
# The loop no longer waits. But each metric arrives later, because a process has to load the model and the rows, and Ray looks at its validations about once a second. And *training* may take longer, because
# the second core wasn't idle before. So on two cores the whole run is usually not much shorter. It pays off when a validation takes long compared with the start of a process, *and* there is a place for it where nothing trains: other cores, a smaller GPU, a cheaper machine.
#
# ## The best model
# The best model, not always the last one, has the best *validated* metric. Load it, and test it on images that have played no part so far.

# %%
model = cnn()
with result.get_best_checkpoint("val_accuracy", "max").as_directory() as folder:
    epoch = load_state(folder, model)["epoch"]
accuracy = evaluate(model, batches(test.images, test.labels, size=512, shuffle=False))["accuracy"]
print(f"epoch {epoch + 1}: accuracy on {len(test)} test images: {accuracy:.3f}")

# %% tags=["claim"]
assert accuracy >= 0.95

# %% [markdown]
# ### Exercise 06-4 · The best of them
# `found` is a list of reported checkpoints, as `reported_checkpoints` returns it: each has a `checkpoint`, `metrics` and a `status`. Write the function that returns the `checkpoint` of the entry
# with the highest `val_accuracy` among those that *are* validated. If there is none, return `None`.

# %%
from ray.train import ReportedCheckpointStatus


def best_of(found): ...  # your answer


# %% tags=["solution"]
def best_of(found):
    validated = [one for one in found if one.status == ReportedCheckpointStatus.VALIDATED]
    best = max(validated, key=lambda one: one.metrics["val_accuracy"], default=None)
    return best.checkpoint if best else None


# %%
check("06-4", best_of)

# %% [markdown] tags=["extra"]
# ## Extra: two more validators
# **A trainer that only evaluates.** Its workers share the rows, and `MeanMetric` from torchmetrics combines what they find. What rank 0 returns comes back as `return_value`. `read_rows` gives each worker
# its part, without dropping any row; Ray Data would drop some to make all shards equally long.

# %%
from ray.train.torch import get_device
from torchmetrics import MeanMetric


def evaluate_only(config):
    context, device = ray.train.get_context(), get_device()
    model = cnn()
    with config["checkpoint"].as_directory() as folder:
        load_state(folder, model)
    model.to(device).eval()
    rank, world = context.get_world_rank(), context.get_world_size()
    images, labels = read_rows("lab-06/validation", store.filesystem, part=rank, parts=world)
    accuracy = MeanMetric().to(device)
    with torch.no_grad():
        for x, y in batches(images, labels, size=512, shuffle=False):
            accuracy.update((model(x.to(device)).argmax(dim=1) == y.to(device)).float())
    return {"val_accuracy": accuracy.compute().item()}


# %%
def validate_in_a_trainer(checkpoint):
    trainer = TorchTrainer(
        evaluate_only,
        train_loop_config={"checkpoint": checkpoint},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=settings.use_gpu),
        run_config=RunConfig(
            storage_path=store.storage_path("runs", "06-validations"), storage_filesystem=store.filesystem
        ),
    )
    return trainer.fit().return_value


# %% [markdown]
# **A Ray dataset.** A validator may name one. Only the dataset's plan is pickled with the function, not its rows, and `iter_torch_batches` streams them, so the rows needn't fit in memory.
#
# Don't pass a dataset in `fn_kwargs`. They may hold only JSON values (numbers, strings, lists, dicts), because Ray writes them into a file of the run, so that pending validations survive a restart. With
# anything else in them, the report ends the run.

# %%
import ray.data
from labkit.models.torch import to_input

ray.data.DataContext.get_current().use_datasource_v2 = False  # few rows: lesson 02 says why
dataset = ray.data.read_parquet("lab-06/validation", filesystem=store.filesystem)


def validate_dataset(checkpoint):
    model = cnn().eval()
    with checkpoint.as_directory() as folder:
        load_state(folder, model)
    right = rows = 0
    with torch.no_grad():
        for batch in dataset.iter_torch_batches(batch_size=512):
            guesses = model(to_input(batch["image"])).argmax(dim=1)
            right, rows = right + (guesses == batch["label"]).sum().item(), rows + len(guesses)
    return {"val_accuracy": right / rows}


# %% [markdown] tags=["prediction"]
# **Predict.** The same checkpoint and the same rows. How many times as long as `validate` does the trainer take?

# %%
predict("06-c", ...)  # a number

# %%
import time

import ray

task = ray.remote(num_cpus=0)(lambda way, checkpoint: way(checkpoint))
seconds = {}
for way in (validate, validate_in_a_trainer, validate_dataset):
    begin = time.perf_counter()
    accuracy = ray.get(task.remote(way, result.checkpoint))["val_accuracy"]
    seconds[way] = time.perf_counter() - begin
    print(f"{way.__name__:22} {accuracy:.6f} in {seconds[way]:5.1f} s")
reveal("06-c", seconds[validate_in_a_trainer] / seconds[validate])

# %% tags=["claim"]
assert seconds[validate_in_a_trainer] > seconds[validate]

# %% [markdown]
# They agree. They differ in what has to start before the first row is read. A single task is nearly always the first choice. Use a trainer if the evaluation needs a process group or several GPUs, and a Ray
# dataset if the rows don't fit in memory.
#
# Inside a training run it works in the same way. This task only waits for Ray Data's own tasks, so it needs no CPU of its own:

# %%
streaming = ValidationConfig(
    fn=validate_dataset, task_config=ValidationTaskConfig(timeout_s=60), ray_remote_kwargs={"num_cpus": 0}
)
streamed = run("06-dataset", train_async, streaming, epochs=2)
[(metrics["epoch"], metrics["val_accuracy"]) for _, metrics in streamed.best_checkpoints]


# %% tags=["claim"]
def train_wrongly(config):
    model = cnn()
    checkpoint = checkpoint_of(model, torch.optim.Adam(model.parameters()), 0)
    ray.train.report(
        {}, checkpoint=checkpoint, validation=ValidationTaskConfig(fn_kwargs={"dataset": dataset})
    )


found = reported_checkpoints(streamed.path, streamed.filesystem)
assert [one.status.name for one in found] == ["VALIDATED"] * 2
assert len(cloudpickle.dumps(validate_dataset)) < 100_000
try:
    run("06-no-json", train_wrongly, ValidationConfig(fn=lambda checkpoint, dataset: {}))
except Exception as error:
    assert "serialize" in repr([error, error.__cause__]), repr([error, error.__cause__])
else:
    raise AssertionError("fn_kwargs took a dataset")

# %% [markdown] tags=["extra"]
# ## Extra: somewhere else, and when it goes wrong
# A validation doesn't have to run where the training runs. `ray_remote_kwargs` says what it needs: CPUs, GPUs, or a **custom resource**, which is just a name with a count. Add a second node
# that offers one unit of `validation`; only nodes that have this resource can run what asks for it.

# %%
elsewhere = {}
if lab.is_ours:
    lab.add_node(cpus=1, resources={"validation": 1})
    elsewhere = {"resources": {"validation": 1}}

# %% [markdown]
# On a real cluster you would ask for `{"num_gpus": 1}`, or choose nodes by a label: `{"label_selector": {"ray.io/accelerator-type": "L4"}}`. A small GPU is enough to validate while the
# large ones train. Asking for a GPU only reserves it. The validator must use it, too: `validate` above moves the model to the GPU if there is one, and `evaluate` each batch.

# %% [markdown] tags=["extra"]
# This validator does what the loop tells it: it works, raises, or hangs. It also returns where it ran. The variable `LABKIT_NODE` holds the name that the lab gave to a node.

# %%
import os
import time


def moody(checkpoint, mood):
    if mood == "raise":
        raise ValueError("the validation set is gone")
    if mood == "hang":
        time.sleep(3600)
    return {**validate(checkpoint), "where": os.environ.get("LABKIT_NODE", "")}


# %% [markdown]
# The loop reports a `where`, too, and gives each validation a `mood` and a timeout of its own: 60 seconds, but only 2 for the one that will hang, so that you don't wait long for it. After the
# last epoch the loop asks Ray what it knows, in two ways: `COMMITTED` returns as soon as the last checkpoint is uploaded; `VALIDATED`, the default, waits until no validation is pending. The loop returns the second answer.

# %%
from ray.train import CheckpointConsistencyMode


def train_moody(config):
    model = prepare_model(cnn(seed=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for epoch, (mood, seconds) in enumerate(config["moods"]):
        loss = one_epoch(model, optimizer, epoch, config)
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
    return known


# %% [markdown] tags=["prediction"]
# **Predict.** The validation of the second epoch hangs, and that of the third one raises. What will `fit()` do?

# %%
predict("06-d", ..., choices=["raise an error", "hang", "return a result"])

# %%
moods = [("well", 60), ("hang", 2), ("raise", 60)]
moody_run = run(
    "06-moody", train_moody, ValidationConfig(fn=moody, ray_remote_kwargs=elsewhere), epochs=3, moods=moods
)
known = moody_run.return_value
moody_table = pandas.DataFrame([{**one.metrics, "status": one.status.name} for one in known])
reveal("06-d", "return a result")
moody_table

# %% tags=["claim"]
assert list(moody_table["status"]) == ["VALIDATED", "VALIDATION_TIMEOUT", "VALIDATION_FAILED"]
read = reported_checkpoints(moody_run.path, moody_run.filesystem)
assert [one.status for one in known] == [one.status for one in read]

# %% [markdown]
# Where a checkpoint was validated, the validator's `where` replaced the loop's. Where it wasn't, the loop's value is still there, and `val_accuracy` is missing.
#
# `fit()` returned without an error. A failed validation is not a failure of the training: the checkpoint is kept, with the loop's metrics. So look at the statuses before you trust
# a table that has a gap.
#
# The validation that hung was ended after 2 seconds, and the one behind it had to wait that long. The timeout includes the time that a process needs to start.
# Under *printed lines*, the panel shows what the loop printed: when it asked for what is `COMMITTED`, some validations were still pending.
#
# Exception: a validator whose *process* dies, for example because it runs out of memory, does end the run. Ray retries it three times and then fails the *training*. So leave it some memory.
#
# And if the run is killed while a validation is pending? Ray has recorded which validations are still to be done. If you start a run with the same name, it resumes the training *and* those validations, as
# in lesson 03.

# %% [markdown]
# And if validations take longer than an epoch? The checkpoints queue up, each waits longer than the one before, and `fit()` returns when the last one is done. No validation is lost or skipped. If yours
# always finish late, validate less often, on fewer rows, or with more resources.

# %% [markdown]
# ## Key points
# - A validator is a function of a checkpoint. It builds its own model, reads its own rows, and calls `eval()`.
# - With `validation=True` in `report` and `ASYNC` uploads the loop doesn't wait. With a `timeout_s`, `fit()` doesn't wait forever.
# - Whatever the validator names and doesn't create is pickled with it, for every checkpoint.
# - A validator that raises or takes too long doesn't fail the training, but one whose process dies does. Look at the statuses before you trust a table with gaps.
# - By default a validation asks for one CPU and no GPU. Leave it a free place: the time that it waits counts toward `timeout_s`.
# - `fn_kwargs` may hold only JSON values. Everything else that the validator needs, it names or loads.
# - It pays off only where something is idle.
#
# | older tutorials | today |
# |---|---|
# | `report(…, validate_fn=validate, validate_config={…})` | `TorchTrainer(validation_config=ValidationConfig(fn=validate))` and `report(…, validation=ValidationTaskConfig(fn_kwargs={…}))` |
# | validation on the GPUs that train | `ray_remote_kwargs={"label_selector": {"ray.io/accelerator-type": "L4"}}`, on smaller ones |

# %% [markdown] tags=["plain"]
# ## Without the lab
# The same job in plain Ray, as the script [06_async_validation.py](plain/06_async_validation.py):

# %% [markdown] tags=["links"]
# ## Reference

# %%
store.stop()
lab.stop()
