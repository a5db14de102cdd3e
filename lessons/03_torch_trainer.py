# %% [markdown]
# # 03 · From one process to many: TorchTrainer
#
# By the end of this lesson you can
# - turn a plain PyTorch loop into a distributed one (exercise 03-1);
# - find out why a distributed run hangs, and fix it (03-2);
# - resume a training after a crash (03-3);
# - say what changes when you add workers (03-4).
#
# **Time** … · **Needs** 00, 01; 02 helps

# %% [markdown]
# Suppose you have 40 GB of images, a machine with 16 GB of memory, and an epoch that takes a day. Then you want several machines, and
# the loop that you already have. Here, two processes stand in for two machines.

# %%
from labkit import cluster, datasets, storage
from labkit.settings import Settings

settings = Settings.from_env()
lab = cluster.start()
lab

# %% [markdown]
# Images come from an object store (lesson 02) and checkpoints go to it, because workers on any machine can reach it.

# %%
store = storage.start()
train = datasets.load(split="train")
test = datasets.load(split="test")
len(train), len(test)

# %% [markdown]
# ## The loop you know
# One step: compute the loss, compute its gradient with respect to every weight, and move each weight a little against its gradient.

# %%
import torch


def train_step(model, optimizer, x, y):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


# %% [markdown]
# The model, `cnn`, is a small convolutional network.

# %%
from labkit.models.torch import batches, cnn, evaluate


def accuracy(model):
    return evaluate(model, batches(test.images, test.labels, size=512, shuffle=False))["accuracy"]


# %%
def train_plain(panel, epochs, batch_size):
    model = cnn(seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for epoch in range(epochs):
        losses = []
        rows = batches(train.images, train.labels, size=batch_size, seed=epoch)
        for x, y in panel.steps(rows, epoch=epoch, epochs=epochs):
            losses.append(train_step(model, optimizer, x, y))
        panel.report({"loss": torch.stack(losses).mean().item(), "accuracy": accuracy(model)})


# %%
from labkit.panel import Panel

epochs = 8 if settings.small else 10
torch.set_num_threads(1)
with Panel("03-one-process", dataset=train.name, rows=len(train)) as panel:
    train_plain(panel, epochs, batch_size=128)

# %% [markdown]
# ## Four changes
# | | one process | many workers |
# |---|---|---|
# | 1 | `model = cnn(seed=0)` | `model = prepare_model(cnn(seed=0))` |
# | 2 | `train.images`, `train.labels` | `shard = ray.train.get_dataset_shard("train")` |
# | 3 | `batches(…)` | `shard.iter_torch_batches(…)` |
# | 4 | `panel.report(…)` | `ray.train.report(…, checkpoint=…)` |
#
# **1 · The model.** Every worker has a copy of the whole model. `prepare_model` moves it to the worker's device, a GPU if the worker has one. With
# more than one worker it also wraps the model in PyTorch's `DistributedDataParallel` (**DDP**): during `backward()` the workers average their gradients, an **all-reduce**.
# All of them then make the same update, so all keep the same weights.
#
# ![Two workers compute gradients on their own 64 images, all-reduce averages them, both make the same update](images/all_reduce.svg)

# %% [markdown]
# **2 · The data.** `upload_shards` writes the images to the store as four Parquet files. A Ray dataset is a plan (lesson 02): reading and `scale` run on the cluster *while* the workers train.
# Each worker gets a part of the rows, its **shard**. All shards are equally long, so with `n` workers up to `n - 1` rows are left out.

# %%
import ray.data
from labkit.storage import upload_shards

upload_shards(train, store, "lab-03", prefix="train", rows_per_shard=len(train) // 4 + 1)
ray.data.DataContext.get_current().use_datasource_v2 = False  # faster with few files (lesson 02)


def scale(batch):
    return {"x": batch["image"].astype("float32") / 255, "y": batch["label"]}


data = ray.data.read_parquet("lab-03/train", filesystem=store.filesystem).map_batches(scale)

# %% [markdown]
# **3 · The batches.** `iter_torch_batches` turns rows into tensors on the worker's device. You call it once per epoch. `local_shuffle_buffer_size` mixes the rows in the worker.
#
# **4 · The report.** Each worker has a number from 0 on, its **rank**. Ray keeps the metrics of rank 0, and all ranks have the same weights. So rank 0 alone
# tests the model and fills the checkpoint, which is a folder. But *every* rank calls `ray.train.report`.

# %% [markdown] tags=["instructor"]
# **Only rank 0 saves, but all report.** `report` is a barrier. A rank that doesn't call it leaves the others waiting.

# %%
import tempfile

import ray.train


def report(model, optimizer, metrics):
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            plain = getattr(model, "module", model)  # the model inside the wrapper, if there is one
            metrics["accuracy"] = accuracy(plain)
            state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), **metrics}
            torch.save(state, f"{folder}/state.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report(metrics, checkpoint=checkpoint)


# %% [markdown]
# Rank 0 tests and saves `plain`, not the wrapper. A forward pass through the wrapper may wait for the other ranks, and its weights have names such as `module.1.weight`, which don't fit a plain model.
# Now the loop, with all four changes:

# %% [markdown] tags=["instructor"]
# **"model" or "model.module"?** With more than one worker, `prepare_model` returns a wrapper; with one worker it doesn't. `getattr(model, "module",
# model)` works for both.

# %%
from ray.train.torch import prepare_model


def train_loop(config):
    panel, epochs = config["panel"], config["epochs"]
    model = prepare_model(cnn(seed=0))  # 1
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    shard = ray.train.get_dataset_shard("train")  # 2
    for epoch in range(epochs):
        losses = []
        rows = shard.iter_torch_batches(batch_size=config["batch_size"], local_shuffle_buffer_size=512)  # 3
        for batch in panel.steps(rows, epoch=epoch, epochs=epochs):
            losses.append(train_step(model, optimizer, batch["x"], batch["y"]))
        report(model, optimizer, {"epoch": epoch, "loss": torch.stack(losses).mean().item()})  # 4


# %% [markdown]
# Ray pickles the loop once per run, with everything it refers to, such as the test images. A few megabytes are fine; load more than that inside the loop. Only
# `panel`, `cnn`, `batches` and `evaluate` come from the lab.

# %% [markdown]
# ## First in this process
# Find your mistakes before you start workers. With `num_workers=0` the loop runs in the kernel: prints and tracebacks come to the
# cell, and `breakpoint()` works.

# %%
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

here = ScalingConfig(num_workers=0)
with Panel("03-debug") as panel:
    loop = {"epochs": 1, "batch_size": 128, "panel": panel}
    trainer = TorchTrainer(train_loop, train_loop_config=loop, scaling_config=here, datasets={"train": data})
    print(trainer.fit().metrics)

# %% [markdown]
# ## Then on the cluster
# `ScalingConfig` sets how many workers there are and what each of them gets: one CPU or, with `use_gpu=True`, one GPU and no CPU.
#
# `RunConfig` sets the run's name, where checkpoints are saved, how many are kept, and which callbacks are notified. `storage_filesystem` is a `pyarrow`
# filesystem connected to the store; `storage_path` is the bucket and prefix inside it. The two checkpoints with the highest accuracy are kept, and the latest one. For a loss you want
# `checkpoint_score_order="min"`.

# %%
from labkit.train import TrainPanel
from ray.train import CheckpointConfig, RunConfig

panel = TrainPanel("03-torch", dataset=train.name, rows=len(train))
run_config = RunConfig(
    name=panel.run_id,
    storage_path=store.storage_path("runs", "03-torch"),
    storage_filesystem=store.filesystem,
    checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy"),
    callbacks=[panel.callback()],
)

# %% [markdown] tags=["instructor"]
# **`batch_size` halves when workers double.** In this lesson it's the batch of *one* worker. The global batch stays at 128, so the model stays the
# same.

# %%
workers = settings.num_workers
scaling = ScalingConfig(num_workers=workers, use_gpu=settings.use_gpu)
trainer = TorchTrainer(
    train_loop,
    train_loop_config={"epochs": epochs, "batch_size": 128 // workers, "panel": panel},
    scaling_config=scaling,
    run_config=run_config,
    datasets={"train": data},
)

# %% [markdown] tags=["prediction"]
# **Predict.** `03-one-process` used 128 images in a step; now the workers use 128 together. How many times as fast as the one process will the whole run be, start included? (0.5: half as fast; 1:
# equally fast; 2: twice as fast.)

# %%
from labkit.exercises import check, hint, predict, reveal

predict("03-a", ...)

# %%
with panel.watch(trainer):
    result = trainer.fit()

# %% [markdown] tags=["instructor"]
# **A run stays in *starting workers*.** There are too few CPUs: another notebook or an actor holds them. `ray.available_resources()` shows what is
# free.

# %%
from labkit import runs

alone, together = runs.latest("03-one-process"), runs.latest("03-torch")
reveal("03-a", alone.seconds_total / together.seconds_total)

# %% tags=["claim"]
assert alone.seconds["start"] < together.seconds["start"]
assert alone.seconds_total < 1.3 * together.seconds_total
assert abs(alone.metrics["accuracy"] - together.metrics["accuracy"]) < 0.05

# %% [markdown]
# Below 1, the workers were slower, as is usual on two cores. Where did the time go?

# %% [markdown] tags=["instructor"]
# **"We have two workers and it's slower?"** That is the honest result on two cores: a start, a data pipeline and an all-reduce are paid, and there is
# no second machine. Ask in which row of the table the time is, and point to *Extra: rows that arrive slowly*.

# %%
import pandas

pandas.DataFrame({record.name: record.seconds for record in (alone, together)}).round(2)

# %% [markdown]
# *Start* is the time to launch the run's **controller**, the workers and the data pipeline. In one process it's all that comes before the first batch. *Data* is waiting for batches, *training* the steps themselves, *between epochs* testing,
# saving and the report. *Rest* comes after the last step: the last test and report, and stopping the workers.
#
# Most of the difference is *start* and *data*: each batch now comes through Ray Data's threads. *Training* needn't be shorter either, because the workers share the cores with Ray Data.
#
# ![A run in time: start, data, steps, and report as a barrier at which rank 1 waits for rank 0's upload](images/timeline.svg)
#
# In plain Ray, each process is a new Python that imports PyTorch and Ray first; the lab forks it from a process that has imported them (lesson 01). On a quiet
# machine with two cores, a small `fit()` takes 3 s in the lab and 22 s without (`LABKIT_PRELOAD=0`).

# %% [markdown]
# ### Exercise 03-1 · Four blanks
# This loop reads its rows with PyTorch's `DataLoader` instead of Ray Data. Every worker has all rows there;
# `prepare_data_loader` gives each of them its own part. `global_batch` is the number of rows in an update, on all workers together;
# `ray.train.get_context().get_world_size()` is the number of workers.
# The check runs your loop in this process and on two workers, and compares the weights. If you are stuck: `hint("03-1")`.
#
# This loader doesn't shuffle. If yours has `shuffle=True`, call `loader.sampler.set_epoch(epoch)` before each epoch whenever there is more than one worker. Without it, every epoch has the same order, and nothing
# warns you. (With one worker there is no such sampler, and `DataLoader` shuffles by itself.)

# %%
from ray.train.torch import prepare_data_loader
from torch.utils.data import DataLoader


def train_blanks(config):
    model = ...  # your answer: cnn(seed=0), for any number of workers
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(config["rows"], batch_size=...)  # your answer: its part of config["global_batch"]
    loader = ...  # your answer: a part of the rows for each worker
    for x, y in loader:
        train_step(model, optimizer, x, y)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            torch.save(..., f"{folder}/weights.pt")  # your answer: weights for a plain cnn(seed=0)
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({}, checkpoint=checkpoint)


# %% tags=["solution"]
def train_blanks(config):
    model = prepare_model(cnn(seed=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    size = config["global_batch"] // ray.train.get_context().get_world_size()
    loader = DataLoader(config["rows"], batch_size=size)
    loader = prepare_data_loader(loader)
    for x, y in loader:
        train_step(model, optimizer, x, y)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            torch.save(getattr(model, "module", model).state_dict(), f"{folder}/weights.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({}, checkpoint=checkpoint)


# %%
check("03-1", train_blanks, store)


# %% tags=["claim"]
def orders(config):
    loader = prepare_data_loader(DataLoader(range(32), batch_size=16, shuffle=True))
    found = []
    for epoch in (0, 1, 0, 1):
        if len(found) >= 2:
            loader.sampler.set_epoch(epoch)
        found.append([number for batch in loader for number in batch.tolist()])
    return found


loaders = TorchTrainer(orders, scaling_config=ScalingConfig(num_workers=2)).fit()
first, second, with_epoch_0, with_epoch_1 = loaders.return_value
assert first == second == with_epoch_0 != with_epoch_1

# %% [markdown]
# ## What came back
# Everything the run produced is in the store. Another process, on another machine, finds it by its path. (Metrics are kept only if a checkpoint came with them.)

# %%
from ray.train import Result

path = f"{run_config.storage_path}/{run_config.name}"
found = Result.from_path(path, storage_filesystem=store.filesystem)
best = found.get_best_checkpoint("accuracy", "max")
model = cnn()
with best.as_directory() as folder:
    state = torch.load(f"{folder}/state.pt", weights_only=True)
model.load_state_dict(state["model"])
print(f"epoch {state['epoch']}: accuracy on {len(test)} test images: {accuracy(model):.3f}")

# %% tags=["claim"]
kept = [metrics["epoch"] for _, metrics in found.best_checkpoints]
assert 2 <= len(kept) <= 3 and epochs - 1 in kept
assert state["accuracy"] == max(metrics["accuracy"] for _, metrics in found.best_checkpoints)
assert accuracy(model) == state["accuracy"] >= 0.95

# %% [markdown]
# ## A loop that stops early
# Here is a loop that saves time: rank 0 stops it as soon as the model is good enough.

# %%
from ray.train.torch import TorchConfig


def train_until(config):
    model = prepare_model(cnn(seed=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    rank = ray.train.get_context().get_world_rank()
    mine = slice(rank, None, ray.train.get_context().get_world_size())  # every n-th row, with n workers
    for epoch in range(10):
        for x, y in batches(train.images[mine], train.labels[mine], size=64):
            train_step(model, optimizer, x, y)
        if rank == 0 and accuracy(model) > 0.8:
            return epoch + 1
    return 10


# %% [markdown] tags=["prediction"]
# **Predict.** With `num_workers=0` this loop works. What will rank 1 do after rank 0 has left the loop?

# %%
predict("03-b", ..., choices=["it stops, too", "it trains on", "it waits"])

# %%
patience, two = TorchConfig(timeout_s=5), ScalingConfig(num_workers=2)
try:
    TorchTrainer(train_until, torch_config=patience, scaling_config=two).fit()
except ray.train.TrainingFailedError as error:
    print(error)
    reveal("03-b", "it waits")

# %% [markdown]
# `report` is a **barrier**: each worker that reaches it waits for all the others, and then all continue. The start of an epoch with `iter_torch_batches` is one, too. Under DDP, `backward()` also synchronizes the workers:
# it can't finish until every rank has sent its gradients. A model that `prepare_model` hasn't wrapped, for example with one worker, never waits there.
#
# Rank 1 waited in `backward()` for gradients that never came, until its process group gave up. Ray sets this timeout to 30 minutes; `timeout_s` made it 5 s. On GPUs you wouldn't see this traceback: there NCCL ends the
# waiting *process*, so Ray reports a lost worker. `report` waits forever, unless the
# environment variable `RAY_TRAIN_COLLECTIVE_TIMEOUT_S` is set in the process that calls `fit()`. If a run of yours hangs, set both: the traceback then shows which rank waits where.

# %% [markdown] tags=["instructor"]
# **The hanging run in *A loop that stops early*.** It ends after five seconds, because the cell sets `timeout_s=5`. Ray's default is 30 minutes.

# %% tags=["claim"]
assert TorchConfig().timeout_s == 30 * 60
one_worker = TorchTrainer(train_until, scaling_config=ScalingConfig(num_workers=1)).fit()
assert one_worker.return_value < 10  # no wrapper, so nothing waits in backward()

# %% [markdown]
# ### Exercise 03-2 · Stop together
# Fix the loop: with any number of workers, it should still stop early, and all ranks should stop after the same epoch, whatever rows each of them has.
# Return the number of epochs trained, as above.


# %%
def train_together(config): ...  # your answer


# %% tags=["solution"]
def train_together(config):
    model = prepare_model(cnn(seed=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    mine = slice(ray.train.get_context().get_world_rank(), None, ray.train.get_context().get_world_size())
    for epoch in range(10):
        for x, y in batches(train.images[mine], train.labels[mine], size=64):
            train_step(model, optimizer, x, y)
        if accuracy(model) > 0.8:  # every rank has the same weights, so all decide alike
            return epoch + 1
    return 10


# %%
check("03-2", train_together)

# %% [markdown]
# ## When a worker fails
# `FailureConfig(max_failures=1)` lets Ray restart the workers once. The loop then starts from its first line, and it's your
# code that has to look for a checkpoint: `ray.train.get_checkpoint()` returns the latest one of this run, or None.

# %% [markdown]
# A run also resumes when you call `fit()` again with the same name and storage. After a crash that's handy: `runs.latest("03-torch", state=None).storage_path` ends with the name. Otherwise it's a trap: a new experiment
# silently continues the old one. So give each run a fresh name, such as `panel.run_id`.

# %% [markdown]
# ### Exercise 03-3 · Resume
# Write the function that a loop calls before its first epoch. If there is a checkpoint, as `report` wrote it, load it into model and optimizer, and return the epoch to
# start with. Otherwise return 0. The check lets a training on the cluster fail once.


# %%
def resume(model, optimizer): ...  # your answer


# %% tags=["solution"]
def resume(model, optimizer):
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(f"{folder}/state.pt", weights_only=True)
    getattr(model, "module", model).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1


# %%
check("03-3", resume, store)

# %% [markdown]
# ## More workers, another model
# The images of all workers in one step are the **global batch**: with two workers and 64 images each, 128. DDP averages two gradients of 64 images, which is the gradient of all 128, up to
# rounding. So these workers train the model that one process trains with 128, and not the one it trains with 64.

# %% [markdown]
# ### Exercise 03-4 · What would change?
# You go from one worker to four, with `batch_size=128` in each of them before and after. Data and number of epochs stay. Write "less", "same" or "more" for each.

# %%
change = {
    "images per update": ...,  # your answer
    "updates per epoch": ...,  # your answer
    "weights in each worker": ...,  # your answer
    "rows that each worker reads per epoch": ...,  # your answer
}

# %% tags=["solution"]
change = {
    "images per update": "more",
    "updates per epoch": "less",
    "weights in each worker": "same",
    "rows that each worker reads per epoch": "less",
}

# %%
check("03-4", change)

# %% [markdown] tags=["extra"]
# ## Extra: a crash, watched
# This loop uses your `resume`, and fails once on purpose. Without an answer to 03-3 it starts from epoch 0 again.

# %%
from ray.train import FailureConfig


def train_safely(config):
    model = prepare_model(cnn(seed=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    first, fails = resume(model, optimizer) or 0, ray.train.get_checkpoint() is None
    shard = ray.train.get_dataset_shard("train")
    for epoch in range(first, 4):
        rows = shard.iter_torch_batches(batch_size=64)
        for batch in config["panel"].steps(rows, epoch=epoch, epochs=4):
            train_step(model, optimizer, batch["x"], batch["y"])
        if fails and epoch == 1:
            raise OSError("the disk is full")
        report(model, optimizer, {"epoch": epoch})
    return first


# %% [markdown] tags=["prediction"]
# **Predict.** The first attempt fails at the end of its second epoch, before the report. How many epochs do both attempts train in total, counting the lost one?

# %%
predict("03-c", ...)

# %%
panel = TrainPanel("03-crash", dataset=train.name)
run_config = RunConfig(
    name=panel.run_id,
    storage_path=store.storage_path("runs", "03-crash"),
    storage_filesystem=store.filesystem,
    failure_config=FailureConfig(max_failures=1),
    callbacks=[panel.callback()],
)

# %%
trainer = TorchTrainer(
    train_safely,
    train_loop_config={"panel": panel},
    scaling_config=scaling,
    run_config=run_config,
    datasets={"train": data},
)
with panel.watch(trainer):
    safe = trainer.fit()

reveal("03-c", 2 + 4 - safe.return_value)

# %% tags=["claim"]
assert safe.return_value == 1
assert sorted(metrics["epoch"] for _, metrics in safe.best_checkpoints) == [0, 1, 2, 3]

# %% [markdown]
# While it ran, the panel showed which rank failed, and with which error. Now it shows how long the restart took and how many steps were trained twice. If one worker fails, Ray restarts all of them. The second epoch was trained twice, because its
# checkpoint was missing. The checkpoints that were kept are in a table, with their metrics:

# %%
safe.metrics_dataframe[["epoch", "accuracy"]]

# %% tags=["claim"]
assert list(safe.metrics_dataframe["epoch"]) == [0, 1, 2, 3]

# %% [markdown] tags=["extra"]
# ## Extra: the same weights
# DDP averages the gradient of 64 images with that of 64 others. One process would compute the gradient of all 128.


# %%
from labkit.models.torch import to_input


def gradient(rows, dtype):
    model = cnn(seed=0).to(dtype)
    x, y = to_input(train.images[rows]).to(dtype), torch.tensor(train.labels[rows])
    torch.nn.functional.cross_entropy(model(x), y).backward()
    return torch.cat([weights.grad.flatten() for weights in model.parameters()])


def gap(dtype):
    average = (gradient(slice(0, 64), dtype) + gradient(slice(64, 128), dtype)) / 2
    return (gradient(slice(0, 128), dtype) - average).abs().max().item()


# %% [markdown] tags=["prediction"]
# **Predict.** Is the average of the two gradients equal to the gradient of all 128 images?

# %%
predict("03-d", ..., choices=["exactly", "up to rounding", "no"])

# %%
print(f"largest difference: {gap(torch.float32):.1e} in single precision, {gap(torch.float64):.1e} in double")
reveal("03-d", "up to rounding")

# %% tags=["claim"]
assert 0 < gap(torch.float64) < gap(torch.float32) / 1e6 < 1e-10

# %% [markdown]
# The difference shrinks with the precision, so it's rounding error: adding the same numbers in another order changes the last digit.
#
# One gradient was the same. Is a whole training? For that, each step must see the very rows that one process would see. A `DistributedSampler`, which
# `prepare_data_loader` adds, guarantees it: it deals the rows to the ranks like cards.

# %%
import time

from torch.utils.data import TensorDataset

full = len(train) // 128 * 128
rows = TensorDataset(to_input(train.images[:full]), torch.tensor(train.labels[:full]))


def train_with_loader(config):
    model = prepare_model(cnn(seed=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = prepare_data_loader(DataLoader(config["rows"], batch_size=config["batch_size"]))
    for _ in range(config["epochs"]):
        begin = time.perf_counter()
        for x, y in loader:
            train_step(model, optimizer, x, y)
    plain = getattr(model, "module", model)
    return time.perf_counter() - begin, {name: w.detach().numpy() for name, w in plain.named_parameters()}


# %%
def run(workers, batch_size, rows=rows, epochs=2):
    loop = {"rows": rows, "batch_size": batch_size, "epochs": epochs}
    many = ScalingConfig(num_workers=workers)
    return TorchTrainer(train_with_loader, train_loop_config=loop, scaling_config=many).fit().return_value


_, weights = run(workers=2, batch_size=64)
gaps = {}
for size in (64, 128, 256):
    _, others = run(workers=0, batch_size=size)
    gaps[size] = max(abs(weights[name] - others[name]).max() for name in weights)
    print(f"one process, batches of {size:3}: largest difference of a weight {gaps[size]:.1e}")

# %% tags=["claim"]
assert gaps[128] < gaps[64] / 20 and gaps[128] < gaps[256] / 20

# %% [markdown]
# With 128, the global batch, you get the same model up to rounding. With 64 or 256 you get another one. `return_value` is what the loop of rank 0 returned.

# %% [markdown] tags=["extra"]
# ## Extra: rows that arrive slowly
# Here each row takes a millisecond to arrive, as if the store were in another city. The code uses `run` and `rows` from *the same weights*.


# %%
class FromAfar(TensorDataset):
    def __getitem__(self, place):
        time.sleep(0.001)
        return super().__getitem__(place)


# %% [markdown] tags=["prediction"]
# **Predict.** How many times as fast will an epoch be with two workers as with one?

# %%
predict("03-e", ...)

# %%
afar = FromAfar(*rows[:512])
one, _ = run(workers=1, batch_size=128, rows=afar)
two, _ = run(workers=2, batch_size=64, rows=afar)
print(f"an epoch takes {one:.2f} s with one worker, {two:.2f} s with two")
reveal("03-e", one / two)

# %% tags=["claim"]
assert one / two > 1.1

# %% [markdown]
# The workers wait at the same time, each for its own half of the rows. Workers that wait for something other than a core don't get in each other's way, so here two of them pay.

# %% [markdown] tags=["extra"]
# ## Extra: feed it faster
# Each epoch reads the files again, and each step asks for 64 rows. That's right for data that is larger than all memory. If it is not, read it once with `materialize`, ask for large pieces,
# because each batch of Ray Data goes through several threads whatever its size, and keep the pieces. A part of a tensor is a view of it, and copies nothing.


# %%
import time


def cut(pieces, size):
    for piece in pieces:
        yield from zip(piece["x"].split(size), piece["y"].split(size), strict=True)


def milliseconds(batches):
    begin = time.perf_counter()
    for _ in batches:
        pass
    return 1000 * (time.perf_counter() - begin)


# %% [markdown] tags=["prediction"]
# **Predict.** How many times as fast is an epoch of reading, once the pieces are there?

# %%
ways = ["up to twice", "2 to 10 times", "more than 10 times"]
predict("03-f", ..., choices=ways)

# %%
small = milliseconds(data.iter_torch_batches(batch_size=64))  # starts the pipeline, as each epoch does
pieces = list(data.materialize().iter_torch_batches(batch_size=8192))
large = milliseconds(cut(pieces, 64))
print(f"{small:.0f} ms and {large:.1f} ms")
reveal("03-f", ways[(small > 2 * large) + (small > 10 * large)])

# %% tags=["claim"]
assert small > 10 * large

# %% [markdown]
# In a training loop, `pieces` comes before the first epoch. `python -m benchmarks torch_throughput` measures what this brings with 60,000 rows.

# %% [markdown] tags=["extra"]
# ## Extra: names, metrics of all ranks, a schedule
# This dataset starts from the *names* of images. Ray Data downloads and decodes them while the workers train. The test images are a dataset, too, and each worker tests on its own
# shard.

# %%
import io

import numpy as np
import PIL.Image
from labkit.storage import upload
from pyarrow.fs import FileSelector

upload(test, store, "lab-03", prefix=f"images/{test.name}")
files = store.filesystem
found = files.get_file_info(FileSelector(f"lab-03/images/{test.name}", recursive=True))
names = [file.path for file in found if file.is_file]


# %%
def fetch(row):
    with files.open_input_stream(row["item"]) as stream:
        image = np.asarray(PIL.Image.open(io.BytesIO(stream.read())).convert("L"))
    return {"image": image, "label": int(row["item"].split("/")[-2])}


images = ray.data.from_items(names, override_num_blocks=4).map(fetch).map_batches(scale)
few_train, few_test = images.train_test_split(0.25, shuffle=True, seed=0)

# %% [markdown]
# Each rank counts its own right answers and rows. `all_reduce` adds both over all ranks, so the quotient is the accuracy on all rows that were tested. The mean of the ranks' accuracies is the same only
# if all ranks have equally many rows. Ray Data sees to that; a slice of your own may not.


# %% tags=["long"]
from ray.train.torch import get_device


def train_and_test(config):
    model = prepare_model(cnn(seed=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
    for _ in range(config["epochs"]):
        for batch in ray.train.get_dataset_shard("train").iter_torch_batches(batch_size=32):
            train_step(model, optimizer, batch["x"], batch["y"])
        scheduler.step()  # once per epoch, on every rank
    sums = torch.zeros(2, device=get_device())  # on a GPU, all_reduce needs it there
    model.eval()
    with torch.no_grad():
        for batch in ray.train.get_dataset_shard("test").iter_torch_batches(batch_size=256):
            sums[0] += (model(batch["x"]).argmax(dim=1) == batch["y"]).sum()
            sums[1] += len(batch["y"])
    torch.distributed.all_reduce(sums)
    return {
        "accuracy": (sums[0] / sums[1]).item(),
        "rows": int(sums[1]),
        "lr": optimizer.param_groups[0]["lr"],
    }


tested = TorchTrainer(
    train_and_test,
    train_loop_config={"epochs": 5},
    scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
    datasets={"train": few_train, "test": few_test},
).fit()
tested.return_value

# %% tags=["claim"]
assert tested.return_value["rows"] == few_test.count() // 2 * 2 and tested.return_value["accuracy"] > 0.5

# %% [markdown]
# `resources_per_worker={"CPU": 2}` would reserve two CPUs for each worker, and PyTorch would use two threads there. To split the training rows alone and give every worker all test rows, pass
# `dataset_config=ray.train.DataConfig(datasets_to_split=["train"])`.

# %% [markdown] tags=["extra"]
# ## Extra: two models in one loop
# A **GAN** trains a generator and a discriminator against each other. Both are wrapped, each has its own optimizer, and each `backward()` averages the gradients of all models that it reaches.


# %%
def networks():
    torch.manual_seed(0)
    nn = torch.nn
    maker = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 784), nn.Sigmoid())
    judge = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
    return prepare_model(maker), prepare_model(judge)


def step(optimizer, answers, wanted):
    loss = torch.nn.functional.binary_cross_entropy_with_logits(answers.flatten(), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# %%
def train_gan(config):
    maker, judge = networks()
    makers, judges = (torch.optim.Adam(model.parameters(), lr=0.001) for model in (maker, judge))
    torch.manual_seed(ray.train.get_context().get_world_rank())  # other noise on each rank
    for _ in range(config["epochs"]):
        for batch in ray.train.get_dataset_shard("train").iter_torch_batches(batch_size=64):
            real, ones = batch["x"].flatten(1), torch.ones(len(batch["x"]))
            fake = maker(torch.randn(len(real), 16))
            step(judges, judge(torch.cat([real, fake.detach()])), torch.cat([ones, 0 * ones]))
            step(makers, judge(fake), ones)
    with torch.no_grad():
        return maker(torch.randn(10, 16)).reshape(10, 28, 28).numpy()


# %%
loop = {"epochs": 4 if settings.small else 60}
gan = TorchTrainer(
    train_gan, train_loop_config=loop, scaling_config=ScalingConfig(num_workers=2), datasets={"train": data}
)
drawn = (255 * gan.fit().return_value).astype("uint8")

# %%
from IPython.display import HTML
from labkit.display import gallery

HTML(gallery(drawn, [str(number) for number in range(10)]))

# %% [markdown]
# Images that the generator made up, after a short training. `"epochs": 200` gives better ones.

# %% [markdown] tags=["extra"]
# ## Extra: weights that a step doesn't use
# DDP waits in `backward()` for the gradient of *every* weight. This model has two heads, and each step uses only one of them.


# %%
class TwoHeads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(784, 32)
        self.heads = torch.nn.ModuleList([torch.nn.Linear(32, 10), torch.nn.Linear(32, 2)])

    def forward(self, x, head):
        return self.heads[head](self.body(x).relu())


def train_heads(config):
    model = prepare_model(TwoHeads(), parallel_strategy_kwargs=config["ddp"])
    for step in range(4):
        model(torch.rand(8, 784), head=step % 2).square().mean().backward()
    return step + 1


# %%
def steps_made(**ddp):
    loop, two = {"ddp": ddp}, ScalingConfig(num_workers=2)
    return TorchTrainer(train_heads, train_loop_config=loop, scaling_config=two).fit().return_value


try:
    steps_made()
except ray.train.TrainingFailedError as error:
    print([line for line in str(error).splitlines() if "Parameter indices" in line])

# %% [markdown]
# Weights 4 and 5, those of the second head, got no gradient, so the next step failed. With `find_unused_parameters`, DDP looks in each step which weights were used. That costs some time, so it is off by
# default. In older tutorials, `parallel_strategy_kwargs` is called `ddp_args`.

# %%
found = steps_made(find_unused_parameters=True)
found

# %% tags=["claim"]
assert found == 4

# %% [markdown] tags=["extra"]
# ## Extra: more workers than CPUs
# Ray starts workers where CPUs are free. If there are too few, it stops waiting after 60 seconds and tries again, without end. Each time it logs a `WorkerGroupStartupTimeoutError` in the run's controller, which
# you don't see in the notebook. The lab's panel counts first, so the next cell raises an error and starts nothing:

# %% tags=["raises-exception"]
panel = TrainPanel("03-crowd")
crowd = TorchTrainer(
    train_loop,
    scaling_config=ScalingConfig(num_workers=int(lab.cpus)),
    run_config=RunConfig(callbacks=[panel.callback()]),
    datasets={"train": data},
)
with panel.watch(crowd):
    crowd.fit()

# %% [markdown]
# One worker for each CPU is too many, because reading the data needs a CPU, too. If a run of your own stays in *starting workers*, count CPUs first.

# %% [markdown]
# ## Key points
# - Each `report` is a barrier, and under DDP each `backward()` waits for all ranks, too. Whatever decides how often they are called must be equal on all ranks.
# - Save the weights of the model *inside* the wrapper, and look for a checkpoint at the start of the loop. Then a crash costs at most one epoch, if `max_failures` allows a restart.
# - The global batch is the batch per worker times the number of workers. Change it, and you train another model.
# - Two workers pay when each has something to itself (a GPU, a core, data to wait for), and when the run is long compared with its start.
#
# | older tutorials | today |
# |---|---|
# | `resume_from_checkpoint=`, `Trainer.restore` | the same name and storage, or a checkpoint in `train_loop_config` |
# | `session.report`, `train.report` of metrics alone | `ray.train.report(metrics, checkpoint=…)`, on every rank |
# | `ray.util.sgd`, `TrainingOperator`, `register(models=…, schedulers=…)` | a training function and `TorchTrainer` |

# %% [markdown] tags=["plain"]
# ## Without the lab
# The same kind of training, with a smaller model, in plain Ray and PyTorch:

# %% [markdown] tags=["links"]
# ## Reference

# %% [markdown]
# ## Stop
# What is in the store stays.

# %%
store.stop()
lab.stop()
