# %% [markdown]
# # 03b · Checkpoints, hangs, restarts
#
# By the end of this lesson you can
# - save a checkpoint from which a run really resumes, and find it again later;
# - explain why a distributed run hangs, and fix it (exercise 03-2);
# - resume after a crash (03-3).
#
# **Time** about 65 minutes · **Needs** 03

# %% [markdown]
# Meta trained OPT-175B on 992 GPUs. In two months, hardware failures caused at least 35 manual restarts and, by the authors' estimate, more than 70 automatic ones
# ([Zhang et al.](https://arxiv.org/abs/2205.01068), section 2.5). Each time the run continued from its latest checkpoint. At that scale a run *will* be
# interrupted, and the only question is how much work is lost each time.
#
# ## A place for checkpoints
# A restarted worker may run on another machine, so a checkpoint on a local disk may be out of reach. An **object store** such as S3 can be reached from everywhere. This cell starts a small one on your machine:

# %%
from course import datasets
from labkit.local import cluster, storage

lab = cluster.start()
store = storage.start()
store

# %% [markdown]
# We use the digits and the network from lesson 03 again, this time with all 1,437 training images, and with test images.

# %%
import torch
from torch.utils.data import DataLoader, TensorDataset


def as_rows(digits):
    return TensorDataset(torch.tensor(digits.images).unsqueeze(1) / 255, torch.tensor(digits.labels))


train = as_rows(datasets.load(split="train"))
test = as_rows(datasets.load(split="test"))


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
# ## What has to be in a checkpoint?
# The weights, obviously. What else? Let's try it in plain PyTorch, without any worker. We train for six epochs in one go, and compare that with three epochs, a checkpoint, and three more.


# %%
def train_epochs(model, optimizer, epochs):
    for _ in range(epochs):
        for x, y in DataLoader(train, batch_size=128):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def new():
    model = make_model()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def difference(a, b):
    return max((p - q).abs().max().item() for p, q in zip(a.parameters(), b.parameters(), strict=True))


# %%
import tempfile

torch.set_num_threads(1)
uninterrupted, optimizer = new()
train_epochs(uninterrupted, optimizer, 6)

model, optimizer = new()
train_epochs(model, optimizer, 3)
file = f"{tempfile.mkdtemp()}/state.pt"
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 2}, file)

# %% [markdown] tags=["prediction"]
# **Predict.** One run loads only the weights, the other the optimizer, too. Which ends with the same weights as the uninterrupted run?

# %%
from course.exercises import check, hint, predict, reveal

predict(
    "03b-a",
    ...,
    choices=["only the one with weights", "only the one with weights and optimizer", "both runs", "neither"],
)

# %%
state = torch.load(file, weights_only=True)

model, optimizer = new()
model.load_state_dict(state["model"])
train_epochs(model, optimizer, 3)
weights_only = difference(model, uninterrupted)

model, optimizer = new()
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
train_epochs(model, optimizer, 3)
with_optimizer = difference(model, uninterrupted)

print(f"difference with the weights only: {weights_only:.1e}, with the optimizer, too: {with_optimizer:.1e}")
if weights_only == 0:
    reveal("03b-a", "only the one with weights" if with_optimizer else "both runs")
else:
    reveal("03b-a", "neither" if with_optimizer else "only the one with weights and optimizer")

# %% tags=["claim"]
assert with_optimizer == 0 and weights_only > 1e-4

# %% [markdown]
# An optimizer with momentum remembers earlier gradients, and Adam remembers even more. Without that memory the run starts to drift the moment it resumes, and no error tells you. So a checkpoint contains everything that changes while you
# train: weights, optimizer, the epoch, and the learning-rate schedule if there is one.
#
# The argument `weights_only=True` asks PyTorch to accept tensors and plain values only. It's designed not to run code from the file, which matters when you didn't write the file yourself.
#
# ## The loop, in a file
# Here is the loop from lesson 03, now with shuffling, and three functions that it calls. Run this cell: it writes the file `my_loop.py`, which later lessons use again. (The file comes with the notebooks, so the cell overwrites it with the same text.)

# %% tags=["long"]
# %%writefile my_loop.py
"""A training loop that saves checkpoints and resumes: lesson 03b writes this file and explains it."""

import tempfile

import ray.train
import torch
from ray.train.torch import prepare_data_loader, prepare_model
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


def save(model, optimizer, epoch, metrics):
    """Rank 0 writes a checkpoint, and every rank reports."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            weights = getattr(model, "module", model).state_dict()
            state = {"model": weights, "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, f"{folder}/state.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"epoch": epoch, **metrics}, checkpoint=checkpoint)


def resume(model, optimizer):
    """Load the latest checkpoint of this run, if there is one. Returns the epoch to start with."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(f"{folder}/state.pt", weights_only=True)
    getattr(model, "module", model).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1


@torch.no_grad()
def accuracy(model, rows):
    """The share of `rows` that the plain `model` gets right, in the mode (train or eval) that it is in."""
    device, right = next(model.parameters()).device, 0
    for x, y in DataLoader(rows, batch_size=256):
        right += (model(x.to(device)).argmax(dim=1).cpu() == y).sum().item()
    return right / len(rows)


def train_loop(config):
    """Train config["make_model"]() on config["train"]. Returns the epoch that it started with."""
    model = prepare_model(config["make_model"]())
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    loader = prepare_data_loader(DataLoader(config["train"], batch_size=config["batch_size"], shuffle=True))
    first = resume(model, optimizer)
    for epoch in range(first, config["epochs"]):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)  # otherwise all epochs have the same order
        for x, y in loader:
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = accuracy(getattr(model, "module", model), config["test"])
        save(model, optimizer, epoch, {"loss": loss.item(), "accuracy": right})
    return first


# %% [markdown]
# Look at `save` first. All ranks have the same weights, so one of them, rank 0, writes the file. It saves the model *inside* the wrapper; otherwise each name in the file would start with `module.`, and no plain model could load it.
# The folder becomes a `Checkpoint`, and Ray uploads it to the store. The metrics are saved with it as JSON, so they must be Python's own numbers: `loss.item()`, or `float(value)` for one that you computed with NumPy. A `numpy.float32` ends the run.
#
# *Every* rank calls `report`, although only rank 0 has something to upload. That's because `report` is a **barrier**: each worker that reaches it waits until all the others are there, and then all of them continue.
#
# ![A run in time: start, data, steps, and report as a barrier; then rank 0 uploads, and rank 1 waits for it in the next epoch](images/timeline.svg)

# %% [markdown] tags=["instructor"]
# **Only rank 0 saves, but all report.** `report` is a barrier. A rank that doesn't call it leaves the others waiting.

# %% [markdown]
# Now import the file. The cell reloads it, so you can change the text in the cell above and run both cells again. The last line makes Ray send the *code* of this module to the workers, because a worker on another machine doesn't have your file.

# %%
import importlib

import my_loop
from ray import cloudpickle

importlib.reload(my_loop)
cloudpickle.register_pickle_by_value(my_loop)

# %% [markdown]
# `RunConfig` sets where checkpoints are saved and how many are kept: here the two with the highest accuracy, and the latest one, too.

# %%
from labkit.train import TrainPanel
from ray.train import CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

panel = TrainPanel("03b-first")
trainer = TorchTrainer(
    my_loop.train_loop,
    train_loop_config={
        "make_model": make_model, "train": train, "test": test, "epochs": 6, "batch_size": 64, "lr": 0.05,
    },
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(
        name=panel.run_id,
        storage_path=store.storage_path("runs", "03b"),
        storage_filesystem=store.filesystem,
        checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy"),
    ),
)  # fmt: skip
with panel.watch(trainer):
    result = trainer.fit()

# %% tags=["claim"]
import numpy
import ray.train


def reports_numpy(config):
    with tempfile.TemporaryDirectory() as folder:
        value = numpy.float32(0.5)
        ray.train.report(
            {"loss": config["as"](value)}, checkpoint=ray.train.Checkpoint.from_directory(folder)
        )


def reported(convert):
    where = RunConfig(storage_path=store.storage_path("runs", "03b"), storage_filesystem=store.filesystem)
    options = {"scaling_config": ScalingConfig(num_workers=1), "run_config": where}
    return TorchTrainer(reports_numpy, train_loop_config={"as": convert}, **options).fit().metrics


assert reported(float) == {"loss": 0.5}
try:
    reported(numpy.float32)
except Exception as error:
    assert "Unable to serialize unknown type: <class 'numpy.float32'>" in str(error)
else:
    raise AssertionError("a NumPy number was saved")

# %% [markdown]
# The loss in the panel jumps although the accuracy rises. Each point is the loss of *one* batch on rank 0, and the last batch of an epoch has only a few images.
#
# ## What came back
# The checkpoints that were kept are in the store, with their metrics. Another process, on another machine and a week later, finds them by the path of the run:

# %%
found = Result.from_path(
    f"{store.storage_path('runs', '03b')}/{panel.run_id}", storage_filesystem=store.filesystem
)
best = found.get_best_checkpoint("accuracy", "max")
with best.as_directory() as folder:
    state = torch.load(f"{folder}/state.pt", weights_only=True)
model = make_model()
model.load_state_dict(state["model"])
print(
    f"epoch {state['epoch']}, counted from 0: accuracy on {len(test)} test images: {my_loop.accuracy(model, test):.3f}"
)

# %% tags=["claim"]
kept = [metrics["epoch"] for _, metrics in found.best_checkpoints]
assert 2 <= len(kept) <= 3 and 5 in kept
assert my_loop.accuracy(model, test) == max(metrics["accuracy"] for _, metrics in found.best_checkpoints)
assert my_loop.accuracy(model, test) >= 0.93

# %% [markdown]
# One more thing about `report`: Ray stores its metrics only if a checkpoint came with them.
#
# ## A loop that stops early, and hangs
# Why should you care about barriers? Because this innocent loop never ends. It saves time: as soon as the model is good enough, rank 0 stops.

# %%
import ray.train
from ray.train.torch import prepare_data_loader, prepare_model


def train_until(config):
    model = prepare_model(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = prepare_data_loader(DataLoader(train, batch_size=64))
    for epoch in range(10):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        plain = getattr(model, "module", model)
        if ray.train.get_context().get_world_rank() == 0 and my_loop.accuracy(plain, test) > 0.8:
            return epoch + 1
    return 10


# %% [markdown] tags=["prediction"]
# **Predict.** With one process this loop works. What will rank 1 do after rank 0 has left the loop?

# %%
predict("03b-b", ..., choices=["it stops, too", "it keeps training", "it waits"])

# %%
try:
    TorchTrainer(
        train_until,
        torch_config=TorchConfig(timeout_s=3),
        scaling_config=ScalingConfig(num_workers=2),
    ).fit()
except ray.train.TrainingFailedError as error:
    print(error)
    reveal("03b-b", "it waits")

# %% [markdown]
# Rank 1 started its next epoch and got as far as `backward()`. As lesson 03 said, it can't finish until every rank has sent its gradients, and rank 0 will never send any.
#
# ![Rank 0 leaves the loop after epoch 1; rank 1 waits in the backward of epoch 2 until the process group gives up](images/hang.svg)
#
# Here the wait ended after 3 seconds because of `timeout_s`. Ray's default is 30 minutes. On GPUs, NCCL ends the waiting process instead of raising an error, so you see a lost worker. A rank that waits in `report` waits forever,
# unless the environment variable `RAY_TRAIN_COLLECTIVE_TIMEOUT_S` is set in the process that calls `fit()`.

# %% [markdown] tags=["instructor"]
# **The hanging run in *A loop that stops early, and hangs*.** It ends after three seconds, because the cell sets `timeout_s=3`. Ray's default is 30 minutes.

# %% tags=["claim"]
assert TorchConfig().timeout_s == 30 * 60
one_process = TorchTrainer(train_until, scaling_config=ScalingConfig(num_workers=0)).fit()
assert one_process.return_value < 10  # no wrapper, so nothing waits in backward()

# %% [markdown]
# What if a run of yours hangs *now*? Find the workers, and ask one of them where it is:
#
# ```text
# $ pgrep -f ray::RayTrainWorker
# 48213
# 48214
# $ py-spy dump --pid 48214
# …
# Thread 48290 (idle): "TrainingThread(train_fn_with_final_checkpoint_flush)"
#     _engine_run_backward (torch/autograd/graph.py:979)
#     backward (torch/autograd/__init__.py:395)
#     backward (torch/_tensor.py:623)
#     train_until (1240127741.py:13)
#     …
# ```
#
# Look for your own function in the thread called `TrainingThread`: the loop is in line 13 of its cell, `loss.backward()`, and waits inside PyTorch. Then compare the ranks: the one that is *somewhere else* caused the hang. Here the process of rank 0 has no `TrainingThread` any more,
# because its loop has returned. If you train under a panel, it compares the ranks for you, half a minute after a run has stalled.

# %% [markdown]
# ### Exercise 03-2 ★★ · Stop together
# Fix the loop. With any number of workers it should still stop early, and all ranks should stop after the same epoch, so don't decide by a rank's own rows. Return the number of epochs trained, as above. *Any number* includes 0: in this notebook, with `num_workers=0`, there's no process group for calls such as `all_reduce`.


# %%
def train_together(config): ...  # your answer


# %% tags=["solution"]
def train_together(config):
    model = prepare_model(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = prepare_data_loader(DataLoader(train, batch_size=64))
    for epoch in range(10):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if my_loop.accuracy(getattr(model, "module", model), test) > 0.8:  # equal weights, equal decisions
            return epoch + 1
    return 10


# %%
check("03-2", train_together)

# %% [markdown]
# If you're stuck, `hint("03-2")` shows the first of three hints.
#
# ## A worker is killed
# Now we kill a worker, the way Linux does when memory runs out. `max_failures=1` lets Ray restart the run once. Both workers are replaced by new processes, and your loop starts from its first line. Ray can't know
# what your variables were, so your code has to ask for the latest checkpoint. That is the call of `resume` in `my_loop.py`.
#
# So far an epoch took a tenth of a second. A real one takes longer, so here each image takes a millisecond to arrive.

# %%
import time

from course import faults


class SlowRows(TensorDataset):
    def __getitem__(self, row):
        time.sleep(0.001)
        return super().__getitem__(row)


panel = TrainPanel("03b-crash")
fault = faults.kill_rank(1).at(panel, epoch=2, step=3)
config = trainer.train_loop_config | {"epochs": 4, "train": SlowRows(*train.tensors)}
crashed = TorchTrainer(
    my_loop.train_loop,
    train_loop_config=config,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(
        name=panel.run_id,
        storage_path=store.storage_path("runs", "03b"),
        storage_filesystem=store.filesystem,
        failure_config=FailureConfig(max_failures=1),
    ),
)

# %% [markdown] tags=["prediction"]
# **Predict.** The loop counts epochs from 0, and the worker dies in the middle of epoch 2. With which epoch does the second attempt start?

# %%
predict("03b-c", ...)

# %%
with panel.watch(crashed):
    safe = crashed.fit()

print(fault)
reveal("03b-c", safe.return_value)

# %% tags=["claim"]
assert safe.return_value == 2
assert sorted(metrics["epoch"] for _, metrics in safe.best_checkpoints) == [0, 1, 2, 3]

# %% [markdown]
# One worker died, and Ray restarted both, because the process group can't continue without one of its members. The steps of epoch 2 were lost and trained again. The printed line counts from 1, as panels do: its epoch 3 is the loop's epoch 2.
#
# With a checkpoint per epoch, a crash costs up to an epoch and a start. There's one exception. Ray's controller takes in a checkpoint a moment *after* `report` has returned. If the crash comes in that moment, the checkpoint doesn't count, and the crash costs one more epoch.
#
# ### Exercise 03-3 ★ · Resume with a schedule
# A loop of yours also has a learning-rate schedule, and its checkpoint contains `{"model": …, "optimizer": …, "scheduler": …, "epoch": …}` in `state.pt`. Write the function that it calls before its first epoch. If there is a checkpoint, load
# the model (saved without its wrapper), the optimizer and the schedule, and return the epoch to start with; otherwise return 0. The check makes a run on the cluster fail once.


# %%
def resume(model, optimizer, scheduler): ...  # your answer


# %% tags=["solution"]
def resume(model, optimizer, scheduler):
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(f"{folder}/state.pt", weights_only=True)
    getattr(model, "module", model).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    return state["epoch"] + 1


# %%
check("03-3", resume, store)

# %% [markdown]
# In your own loop, make the scheduler *before* you load the optimizer. Making one sets the learning rate to that of the first step. If that comes after the load, a schedule with a warm-up stays too low until the end of the run, without a word.
#
# ## The trap of a reused name
# A run also resumes when you call `fit()` again with the same name and storage. After a crash, or to add epochs, that's what you want. Otherwise it's a trap. Watch what happens to an experiment with a new learning rate
# and an old name:

# %%
again = TorchTrainer(
    my_loop.train_loop,
    train_loop_config=config | {"lr": 0.001},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=crashed.run_config,
)
started = again.fit().return_value
print(f"would start with epoch {started}; the last is {config['epochs'] - 1}")

# %% tags=["claim"]
assert started == 4

# %% [markdown]
# It "finished" at once and trained nothing, because the old run had done all four epochs. The new learning rate was never used, and nothing warned you. So give each experiment a fresh name, such as `panel.run_id`.
#
# ## Key points
# - A checkpoint contains everything that changes during training. Without the optimizer's state a run resumes without an error and drifts away.
# - Save the weights of the model inside the wrapper, and look for a checkpoint at the start of the loop.
# - `report` is a barrier, and under DDP `backward()` synchronizes the ranks, too. Whatever decides how often they are called must be equal on all ranks.
# - If you reuse the name of a run, you resume it.
#
# **A question to take along.** A run saves in every tenth epoch, and an epoch takes two minutes. A worker dies in the middle of epoch 18, counted from 0. What is lost?
#
# <details><summary>Compare your answer</summary>The last checkpoint was saved at the end of epoch 9, so the run resumes in epoch 10. More than eight epochs, about 17 minutes, are computed again, and the restart comes on top.</details>
#
# | older tutorials | today |
# |---|---|
# | `resume_from_checkpoint=`, `Trainer.restore` | the same name and storage, or a checkpoint in `train_loop_config` |

# %% [markdown] tags=["plain"]
# ## Without the lab
# `my_loop.py` needs nothing of the lab. To take it with you, copy it next to a script of your own. This one is `notebooks/plain/03b_checkpoints.py`. If you copy it, too, copy `datasets/digits.parquet` with it, and change the lines that begin with `DIGITS` and `sys.path`:

# %% [markdown] tags=["links"]
# ## Official pages

# %% [markdown]
# ## Stop
# What is in the store stays.

# %%
store.stop()
lab.stop()
