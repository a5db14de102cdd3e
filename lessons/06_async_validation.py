# %% [markdown]
# # 06 · Asynchronous validation
#
# By the end of this lesson you can
# - move validation out of the training loop and measure the gain, and compute when the last metric is known (exercise 06-1);
# - write a loop that decides which checkpoints are validated (06-2);
# - fix a validator that returns wrong numbers and carries a data set with it (06-3);
# - choose the best model among those that were really validated (06-4).
#
# **Time** about 90 minutes · **Needs** 00, 01, 03b

# %% [markdown]
# Search engines that use neural networks have an expensive habit. To validate one checkpoint of such a model, you encode the whole collection with it, for example the 8.8 million passages of MS MARCO, before you can send the first query.
# In 2022, Shengyao Zhuang and Guido Zuccon published a tool for this, Asyncval: the training loop doesn't wait, and another GPU validates each checkpoint while the training goes on
# ([Zhuang & Zuccon](https://arxiv.org/abs/2202.12510)).
#
# The waiting has a price in every field. If an epoch takes 20 minutes on eight GPUs and its validation 5, your GPUs spend a fifth of every paid hour not training. Ray Train offers the same for any model: **asynchronous validation**. The API is young, and
# Ray marks it as *alpha*, so names may still change.

# %%
import torch
from course import datasets
from labkit.local import cluster, storage

lab = cluster.start()
store = storage.start()

# %% [markdown]
# ## Validation inside the loop
# There are images to train with, images to validate with, and 2,000 test images that wait until everything is decided. The lab ships fewer digits, so each of them appears several times, moved by up to a pixel. At work, the rows come over a network, and a GPU computes while the CPU waits for it. Here, half a millisecond of sleep for each row stands for both waits.

# %%
import time

import numpy as np
from torch.utils.data import TensorDataset


class SlowRows(TensorDataset):
    def __getitem__(self, row):
        time.sleep(0.0005)
        return super().__getitem__(row)


def moved(digits, count):  # each image several times, moved by up to a pixel
    numbers = np.random.default_rng(0)
    rows, shifts = numbers.integers(len(digits), size=count), numbers.integers(-1, 2, size=(count, 2))
    images = [np.roll(digits.images[rows[i]], shifts[i], axis=(0, 1)) for i in range(count)]
    return SlowRows(torch.tensor(np.stack(images)).unsqueeze(1) / 255, torch.tensor(digits.labels[rows]))


train, held_out = datasets.load("digits", "train"), datasets.load("digits", "test")
train, valid, test = moved(train, 3000), moved(held_out[:180], 2000), moved(held_out[180:], 2000)


# %%
def make_model():
    torch.manual_seed(0)
    layers = [
        torch.nn.Conv2d(1, 16, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(2304, 10),
    ]
    return torch.nn.Sequential(*layers)


# %% [markdown]
# The loop is `my_loop.py` from lesson 03b, unchanged. After each epoch it measures the accuracy on `config["test"]`, here the validation images, and the training waits for that. One worker is enough: this lesson is about *when* validation runs, and not about DDP.

# %%
import my_loop
from labkit.train import TrainPanel
from ray import cloudpickle
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

cloudpickle.register_pickle_by_value(my_loop)
saved_in = {"storage_path": store.storage_path("runs", "06"), "storage_filesystem": store.filesystem}
config = {"make_model": make_model, "train": train, "test": valid, "epochs": 4, "batch_size": 64, "lr": 0.05}

# %% [markdown] tags=["prediction"]
# **Predict.** An epoch trains on 3,000 rows, and its validation reads 2,000. What share of its time does this loop spend on validation?

# %%
from course.exercises import check, hint, predict, reveal

predict("06-a", ..., choices=["less than a fifth", "a fifth to a half", "more than half"])

# %%
trainer = TorchTrainer(
    my_loop.train_loop,
    train_loop_config=config,
    scaling_config=ScalingConfig(num_workers=1),
    run_config=RunConfig(**saved_in),
)
with TrainPanel("06-inline").watch(trainer):
    result = trainer.fit()

# %% [markdown]
# The run's record has the seconds of waiting for data and of training, and those between epochs. Between epochs, this loop validates and then calls `report`, which is short compared with 2,000 rows:

# %%
from labkit import runs

inline = runs.latest("06-inline").seconds
share = inline["between epochs"] / (inline["data"] + inline["training"] + inline["between epochs"])
print(f"{share:.0%} of the loop's time is between epochs: validation and report")
if share < 0.2:
    reveal("06-a", "less than a fifth")
elif share < 0.5:
    reveal("06-a", "a fifth to a half")
else:
    reveal("06-a", "more than half")

# %% tags=["claim"]
assert inline["between epochs"] > 4 * 2000 * 0.0005

# %% tags=["claim", "timed"]
assert 0.2 < share < 0.6

# %% [markdown]
# For all that time, no worker trains.
#
# ## The validator
# To move validation out of the loop, write it as a function: a checkpoint comes in, metrics go out. Ray calls it in another process, perhaps on another machine. So it has to build its own model, load the weights, and read its own rows, which we put into the store as one file.
# Call `eval()` on the model, which matters as soon as it has dropout or batch normalization.

# %%
import io

filesystem, path = store.filesystem, f"{store.storage_path('lab-06')}/validation.pt"
with filesystem.open_output_stream(path) as file:
    torch.save(valid.tensors, file)


def validation_rows():
    with filesystem.open_input_stream(path) as file:
        return torch.load(io.BytesIO(file.read()), weights_only=True)


# %%
def validate(checkpoint):
    model = make_model().eval()
    with checkpoint.as_directory() as folder:
        state = torch.load(f"{folder}/state.pt", weights_only=True)
    model.load_state_dict(state["model"])
    return {"val_accuracy": my_loop.accuracy(model, SlowRows(*validation_rows()))}


# %% [markdown]
# Try this plain function right here, on the last checkpoint of the run above:

# %%
tried = validate(result.checkpoint)
print(tried["val_accuracy"], result.metrics["accuracy"])

# %% tags=["claim"]
assert abs(tried["val_accuracy"] - result.metrics["accuracy"]) < 1e-3

# %% [markdown]
# ## Validate while the training goes on
# ![Validation inside the loop stops the training; asynchronously, a task validates each checkpoint during the next epoch](images/lanes.svg)
#
# These things change in the loop.
#
# - It counts epochs from 1, as the panel and the pictures do. So an epoch has one number in this lesson, wherever you read it.
# - It no longer validates. To stay short, it can't resume, either.
# - Rank 0, which has the checkpoint, reports `validation=True`, and Ray then calls the validator with it.
# - With `CheckpointUploadMode.ASYNC`, `report` doesn't wait for the upload, which a separate thread does. When the upload is done, Ray deletes the folder. Don't use a `TemporaryDirectory`: the upload may still be reading from it.
#
# As in lesson 03b, the checkpoint has the weights *without* the wrapper; otherwise a validator with a plain model couldn't load them.

# %%
import tempfile

import ray.train
from ray.train import CheckpointUploadMode
from ray.train.torch import prepare_data_loader, prepare_model
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


def checkpoint_of(model, epoch):
    if ray.train.get_context().get_world_rank() != 0:
        return None
    folder = tempfile.mkdtemp()
    torch.save({"model": getattr(model, "module", model).state_dict(), "epoch": epoch}, f"{folder}/state.pt")
    return ray.train.Checkpoint.from_directory(folder)


# %%
def train_async(config):
    model = prepare_model(config["make_model"]())
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    loader = prepare_data_loader(DataLoader(config["train"], batch_size=config["batch_size"], shuffle=True))
    for epoch in range(1, config["epochs"] + 1):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        checkpoint = checkpoint_of(model, epoch)
        ray.train.report(
            {"epoch": epoch, "loss": loss.item()},
            checkpoint=checkpoint,
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            validation=checkpoint is not None,
        )


# %% [markdown] tags=["instructor"]
# **Why isn't the checkpoint's folder removed?** With `ASYNC` the upload happens later, in another thread. Ray removes the folder when it's done.

# %% [markdown]
# `ValidationConfig` tells the trainer which function to call. Set a `timeout_s`, because without one `fit()` waits forever for a validation that hangs.

# %%
from ray.train import ValidationConfig, ValidationTaskConfig


def run(name, loop, validation_config):
    trainer = TorchTrainer(
        loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(**saved_in),
        validation_config=validation_config,
    )
    with TrainPanel(name).watch(trainer):
        return trainer.fit()


validation = ValidationConfig(fn=validate, task_config=ValidationTaskConfig(timeout_s=60))
result = run("06-async", train_async, validation)

# %% [markdown]
# In the panel's last figure, the bars of training and validation overlap: while the second epoch trains, the checkpoint of the first is validated. What is the gain? We measure both runs in the same way, from the first step until `fit()` returned. (They differ in a second point: `my_loop` saves the optimizer, too, so its checkpoints are twice as large. On this machine that costs a few milliseconds.)

# %%
import pandas

table = {}
for name in ("06-inline", "06-async"):
    record = runs.latest(name)
    after_start = record.seconds_total - record.seconds["start"]
    table[name] = {"after the start": after_start, "between epochs": record.seconds["between epochs"]}
pandas.DataFrame(table).round(1)

# %% tags=["claim", "timed"]
once, alongside_it = runs.latest("06-inline").seconds, runs.latest("06-async").seconds
assert alongside_it["between epochs"] < once["between epochs"] / 2
assert table["06-async"]["after the start"] < table["06-inline"]["after the start"]

# %% tags=["claim"]
assert [metrics["epoch"] for _, metrics in result.best_checkpoints] == [1, 2, 3, 4]
assert all("val_accuracy" in metrics for _, metrics in result.best_checkpoints)

# %% [markdown] tags=["instructor"]
# **The last metrics come after the last step.** `fit()` waits for validations that are still pending. Point to the last bar in the panel.

# %% [markdown]
# The loop hardly waits between epochs any more, and so the whole run is shorter. But not waiting has a price. A validation is a task in another process, which has to start, load the model and read the rows, and Ray looks for finished validations only now and then, after the last step once a second. So a metric arrives later than it would in the loop. And our
# gain depends on a CPU that is idle while the "GPU" trains. If validation and training compete for the same processor, both get slower, and you gain nothing: give validation another core, a smaller GPU, or a cheaper machine.
#
# After a crash, asynchronous uploads can cost more, too. Ray restarts from the latest checkpoint whose upload is complete, so epochs that were trained while older checkpoints were still on their way are trained again. When we crashed a run with very short epochs in its fourth epoch, it restarted with the second: two finished
# epochs were lost. With synchronous uploads, only an epoch whose `report` hasn't returned is lost.
#
# ## When validations are slower than epochs
# In the panel above a validation fits into an epoch. If it doesn't, the checkpoints form a queue, because Ray runs one validation at a time:
#
# ![four epochs of one minute and validations of two: each checkpoint waits longer than the one before, and fit() returns when the last one is validated](images/queue.svg)
#
# No checkpoint is lost or skipped, but each waits longer than the one before, and `fit()` returns when the last validation is done. That can be long after the last step, while your workers have nothing to do.
#
# ### Exercise 06-1 ★★ · When is the last metric there?
# A run has `n` epochs of `t` seconds each, and a validation takes `v` seconds. Ray runs one validation at a time, and each can start as soon as its
# checkpoint exists; assume that uploads take no time. Write two functions that return after how many seconds the last metric is known: with validation inside the loop, and asynchronously, alongside it.
# If you're stuck, `hint("06-1")` shows the first of three hints.


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
# **One formula for both cases (06-1).** Put the two pictures next to each other. Long validations queue from
# the first checkpoint on, so the length of the training no longer matters, only that of the first epoch.

# %% [markdown]
# Take the epochs of 20 minutes and the validations of 5 from the beginning, and let the run have 30 epochs. Then your functions return 750 minutes inside the loop, and 605 asynchronously. If your validations always finish late, validate less often, on fewer rows, or with more resources.
#
# ## What a validation needs
# By default, Ray reserves one CPU and no GPU for a validation. Two things follow from that.
#
# - It needs a *free* CPU. If the workers hold all of them, the validation waits, and its timeout runs: the clock starts when Ray submits the task. While the workers hold all CPUs, every validation times out. So leave one CPU free.
# - A GPU has to be asked for, with `ValidationConfig(ray_remote_kwargs={"num_gpus": 1})`, and used: the validator has to move the model and each batch there.
#
# ## When a validation fails
# What happens to the training if the validator raises an error, or hangs? Let's try it. This validator does what the loop tells it. `fn_kwargs` in a `ValidationTaskConfig` are the arguments of one validation, and it has its own timeout: two seconds are enough for the one that hangs.


# %%
def moody(checkpoint, mood):
    if mood == "raise":
        raise ValueError("the validation set is gone")
    if mood == "hang":
        time.sleep(3600)
    return validate(checkpoint) | {"from": "validator"}


def train_moody(config):
    model = make_model()
    for epoch, mood in enumerate(["well", "hang", "raise"], 1):
        ray.train.report(
            {"epoch": epoch, "from": "loop"},
            checkpoint=checkpoint_of(model, epoch),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            validation=ValidationTaskConfig(fn_kwargs={"mood": mood}, timeout_s=2 if mood == "hang" else 60),
        )
    return ray.train.get_all_reported_checkpoints()


# %% [markdown] tags=["prediction"]
# **Predict.** One validation hangs, and another one raises an error. What will `fit()` do?

# %%
predict("06-d", ..., choices=["raise an error", "hang", "return a result"])

# %%
moody_run = run("06-moody", train_moody, ValidationConfig(fn=moody))
reveal("06-d", "return a result" if moody_run.error is None else "raise an error")

# %%
known = moody_run.return_value
pandas.DataFrame([{**reported.metrics, "status": reported.status.name} for reported in known])

# %% tags=["claim"]
assert [one.status.name for one in known] == ["VALIDATED", "VALIDATION_TIMEOUT", "VALIDATION_FAILED"]
assert [one.metrics["from"] for one in known] == ["validator", "loop", "loop"]
assert ["val_accuracy" in one.metrics for one in known] == [True, False, False]

# %% [markdown]
# It returned, without an error! A failed validation isn't a failed training run: the checkpoint is kept, with the metrics of the loop, and only `val_accuracy` is missing. The lab's panel shows both failures in red. Without it, they are only in the log, so look for gaps.
#
# ![the loop reports epoch 0 and trains epoch 1; meanwhile a thread uploads the checkpoint, and then a validation task has its turn; the checkpoint ends validated, failed or timed out](images/life_of_metrics.svg)
#
# A checkpoint is **committed** when its upload is complete, and stays so if no validation was requested. Otherwise it's **pending** until its validation ends: *validated*, *failed* or *timed out*. The validator's metrics are added to those of the loop, and replace those with the
# same name, such as `from` in the table.
#
# The statuses aren't in the `Result`, so the loop's last line asks Ray for them: `ray.train.get_all_reported_checkpoints` waits until no validation is pending. What the loop returns is the result's `return_value`, which the cell above calls `known`. Why a validation failed is in the log of the
# run's controller, the process that drives the run; the panel shows it.
#
# There's one exception, and it's the dangerous one: a validator whose *process* dies, for example because memory runs out, does end the run. Ray tries it three more times, and then the *training* fails. So leave it some memory. If the run itself is killed while validations are pending, a run with the same
# name resumes those validations. It resumes the training as well, if the loop loads the latest checkpoint, as in lesson 03b. The loops of this lesson don't; the script under *Without the lab* does both.

# %% [markdown]
# ### Exercise 06-2 ★★★ · Not after every epoch
# Write a loop for *two* workers that reports `{"epoch": epoch}` with a checkpoint after each epoch, and asks for validations by this table:
#
# | epoch, counted from 1 | `validation` |
# |---|---|
# | the last one, whatever its number | on all rows: a `ValidationTaskConfig` with `fn_kwargs={"rows": None}` |
# | epochs 3, 6, 9, …, unless they are the last | on a sample: `fn_kwargs={"rows": 1000}` |
# | all others | `False` |
#
# - A rank that passes no checkpoint passes `validation=False`.
# - Give each `ValidationTaskConfig` a `timeout_s`, because it doesn't inherit the trainer's.
# - The rest is as in `train_async`: the training, the keys in `config` (`batch_size` counts the rows of *one* worker in a step), `checkpoint_of`, and a `report` that doesn't wait for the upload. If your loader shuffles, each epoch needs an order of its own.
#
# The check runs the loop on the cluster, for seven epochs and for three, with a model, rows and a validator of its own, and compares the weights with those of one process.


# %%
def train_sparsely(config): ...  # your answer


# %% [markdown]
# If you'd rather fill in blanks, paste this version over it:
#
# ```python
# def train_sparsely(config):
#     model = prepare_model(config["make_model"]())
#     optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
#     loader = prepare_data_loader(DataLoader(config["train"], batch_size=config["batch_size"], shuffle=True))
#     for epoch in range(1, config["epochs"] + 1):
#         loader.sampler.set_epoch(epoch)
#         for x, y in loader:
#             loss = cross_entropy(model(x), y)
#             optimizer.zero_grad()
#             loss.backward()
#             optimizer.step()
#         checkpoint = checkpoint_of(model, epoch)
#         validation = False
#         if ...:
#             validation = ValidationTaskConfig(fn_kwargs={"rows": None}, timeout_s=60)
#         elif ...:
#             validation = ValidationTaskConfig(fn_kwargs={"rows": 1000}, timeout_s=60)
#         ray.train.report(
#             {"epoch": epoch}, checkpoint=checkpoint, checkpoint_upload_mode=..., validation=...
#         )
# ```


# %% tags=["solution"]
def train_sparsely(config):
    model = prepare_model(config["make_model"]())
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    loader = prepare_data_loader(DataLoader(config["train"], batch_size=config["batch_size"], shuffle=True))
    for epoch in range(1, config["epochs"] + 1):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        checkpoint = checkpoint_of(model, epoch)
        validation = False
        if epoch == config["epochs"]:
            validation = ValidationTaskConfig(fn_kwargs={"rows": None}, timeout_s=60)
        elif epoch % 3 == 0:
            validation = ValidationTaskConfig(fn_kwargs={"rows": 1000}, timeout_s=60)
        ray.train.report(
            {"epoch": epoch},
            checkpoint=checkpoint,
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            validation=validation if checkpoint else False,
        )


# %%
check("06-2", train_sparsely)

# %% [markdown]
# ## What gets pickled
# `validate` reads its rows from the store. Wouldn't it be simpler to use the images that are in memory right here?


# %%
def validate_shorter(checkpoint):
    model = make_model().eval()
    with checkpoint.as_directory() as folder:
        model.load_state_dict(torch.load(f"{folder}/state.pt", weights_only=True)["model"])
    return {"val_accuracy": my_loop.accuracy(model, valid)}


# %% [markdown] tags=["prediction"]
# **Predict.** Ray pickles the function and sends it to another process, again for every checkpoint. How large is it, compared with `validate`?

# %%
predict("06-b", ..., choices=["about as large", "about 10 times", "more than 100 times"])

# %%
from ray import cloudpickle

size, light = len(cloudpickle.dumps(validate_shorter)), len(cloudpickle.dumps(validate))
print(f"validate: {light:,} bytes, validate_shorter: {size:,} bytes")
if size > 100 * light:
    reveal("06-b", "more than 100 times")
elif size > 3 * light:
    reveal("06-b", "about 10 times")
else:
    reveal("06-b", "about as large")

# %% tags=["claim"]
assert size > 3e6 and light < 20_000

# %% [markdown]
# A function takes along whatever it names and doesn't create: here all 2,000 images. (`validate` takes `make_model`, `filesystem` and `path` along, which are small.) You wouldn't notice 6 MB. With 6 GB, the run's controller runs out of memory, and Ray gives you no warning. The lab's panel refuses more than 1 MB, so the next cell
# raises an error and starts nothing:

# %% tags=["raises-exception"]
run("06-trap", train_async, ValidationConfig(fn=validate_shorter))

# %% [markdown] tags=["instructor"]
# **A red error in *What gets pickled*.** It's intended: `panel.watch` refuses a validator of more than 1 MB.

# %% [markdown]
# Could you pass the images in `fn_kwargs` instead? No: they may hold only JSON values, such as numbers, strings, lists and dicts. Ray writes them into a file of the run, so that pending validations survive a restart. With a tensor or a Ray dataset in them, the report ends the run. If
# you validate with a Ray dataset, name it in the function: a dataset is only a plan until it's read, and the plan is small.


# %% tags=["claim"]
def train_wrongly(config):
    task = ValidationTaskConfig(fn_kwargs={"rows": valid.tensors[0][:2]}, timeout_s=60)
    ray.train.report({}, checkpoint=checkpoint_of(make_model(), 0), validation=task)


try:
    run("06-no-json", train_wrongly, ValidationConfig(fn=lambda checkpoint, rows: {}))
except Exception as error:
    assert "serialize" in repr([error, error.__cause__]), repr([error, error.__cause__])
else:
    raise AssertionError("fn_kwargs took a tensor")

# %% [markdown]
# ### Exercise 06-3 ★★ · Fix this validator
# Here is a validator for a network with dropout. It's too large to send, the accuracy that it finds is far below what `validate` found for the same checkpoint, and Ray can't use what it returns. Find the three causes, and return a plain number, from `.item()`, as
# `{"val_accuracy": …}`. The dropout layer stays in the network. The check runs your function in Ray tasks, on two checkpoints of `result`.


# %%
def fixed_validator(checkpoint):  # your answer: fix it
    net = make_model()
    with checkpoint.as_directory() as folder:
        net.load_state_dict(torch.load(f"{folder}/state.pt", weights_only=True)["model"])
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), net)
    x, y = valid.tensors
    return (model(x).argmax(dim=1) == y).float().mean()


# %% tags=["solution"]
def fixed_validator(checkpoint):
    net = make_model()
    with checkpoint.as_directory() as folder:
        net.load_state_dict(torch.load(f"{folder}/state.pt", weights_only=True)["model"])
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), net).eval()
    x, y = validation_rows()
    return {"val_accuracy": (model(x).argmax(dim=1) == y).float().mean().item()}


# %%
check("06-3", fixed_validator, result)

# %% tags=["claim"]
with result.checkpoint.as_directory() as folder:
    net = make_model()
    net.load_state_dict(torch.load(f"{folder}/state.pt", weights_only=True)["model"])
x, y = valid.tensors
with_dropout = (torch.nn.Sequential(torch.nn.Dropout(0.5), net)(x).argmax(dim=1) == y).float().mean().item()
assert with_dropout < result.metrics["val_accuracy"] - 0.05

# %% [markdown] tags=["instructor"]
# **Each fix of 06-3 brings a new message.** The check looks at the size first, then at what the function returns, then at whether the dropout layer was switched off, and last at the number, for two checkpoints.

# %% [markdown]
# ## The best model
# The best model is often the last one, but not always. `get_best_checkpoint` finds it by a metric. Load it, and test it on the images that have played no part so far.

# %%
with result.get_best_checkpoint("val_accuracy", "max").as_directory() as folder:
    state = torch.load(f"{folder}/state.pt", weights_only=True)
model = make_model().eval()
model.load_state_dict(state["model"])
tested = my_loop.accuracy(model, test)
print(f"epoch {state['epoch']}: accuracy on {len(test)} test images: {tested:.3f}")

# %% tags=["claim"]
assert tested >= 0.88

# %% [markdown]
# `get_best_checkpoint` can be wrong. Here is one case: many loops report a rough `val_accuracy` of their own, on a few hundred rows. The validator's value replaces it later. If the validation fails, the rough value stays, and a lucky one can win.
#
# ### Exercise 06-4 ★ · The best of them
# `known` is a list of reported checkpoints, like the one that `train_moody` returned: each has a `checkpoint`, `metrics` and a `status`. Write the function that returns the checkpoint of the entry
# with the highest `val_accuracy` among those that *are* validated. If there is none, return `None`.

# %%
from ray.train import ReportedCheckpointStatus


def best_of(known): ...  # your answer


# %% tags=["solution"]
def best_of(known):
    validated = [one for one in known if one.status == ReportedCheckpointStatus.VALIDATED]
    best = max(validated, key=lambda one: one.metrics["val_accuracy"], default=None)
    return best.checkpoint if best else None


# %%
check("06-4", best_of)

# %% [markdown]
# ## Key points
# - A validator is a function of a checkpoint. It builds its own model, reads its own rows, and calls `eval()`.
# - With `validation=True` and asynchronous uploads the loop doesn't wait. With a `timeout_s`, `fit()` doesn't wait forever.
# - You gain time if something would otherwise be idle. If validations are slower than epochs, they form a queue, and its length decides when the run is over.
# - A validation reserves one CPU and no GPU, unless you ask for more. The time that it waits for a free place counts toward its timeout.
# - After a crash, epochs whose checkpoints weren't uploaded yet are trained again.
# - A validator that raises or hangs doesn't fail the training, but one whose process dies does. Look at the statuses before you trust a table with gaps.
# - Whatever the validator names and doesn't create is pickled with it, and `fn_kwargs` may hold only JSON values.
#
# **A question to take along.** A validation takes three times as long as an epoch. What happens to the training, and when is the run over?
#
# <details><summary>Compare your answer</summary>The training goes on, and validations form a queue. The run is over when the queue is empty, so its length decides the time, and not the last epoch.</details>
#
# | older tutorials | today |
# |---|---|
# | `report(…, validate_fn=validate, validate_config={…})` | `TorchTrainer(…, validation_config=ValidationConfig(fn=validate))`, and `validation=` in the report |
#
# If one validation takes too long for one process, lesson [06b](06b_validation_on_several_workers.ipynb) shares it among several workers. The recipe `notebooks/recipes/validate_on_another_machine.ipynb` sends validations to a node of their own. Lesson 08 is about machines that fail, which happens to validators, too.

# %% [markdown] tags=["plain"]
# ## Without the lab
# The same kind of run as a script in plain Ray and PyTorch, for any number of workers. It combines this lesson with 03b: it validates asynchronously *and* resumes, so this is the one to start your own project from. It's the file `notebooks/plain/06_async_validation.py`; to run it elsewhere, copy `datasets/digits.parquet`, too, and change the line that begins with `DIGITS`.

# %% [markdown] tags=["links"]
# ## Official pages
# Ray's guide to [validating checkpoints asynchronously](https://docs.ray.io/en/latest/train/user-guides/asynchronous-validation.html). From this lesson's code:

# %% [markdown]
# ## Stop

# %%
store.stop()
lab.stop()
