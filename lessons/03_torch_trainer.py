# %% [markdown]
# # 03 · From one process to many: TorchTrainer
#
# **You will be able to** turn a plain PyTorch loop into a distributed one, line by line; keep a checkpoint of every epoch and test the
# model in it; show that two workers train the same model as one process; go on after a crash; and say from measured seconds
# whether it was worth it. · **Time** 45 min (2 of them waiting) · **Needs** 00, 01; 02 helps
#
# In lesson 00 one process trained on the digits. That is still the fastest way to train a model this small, and by the end of this
# page you will have measured why. So why distribute at all? Because data and models outgrow one machine. When yours do, you should
# not have to write the loop again.

# %%
from labkit import cluster, datasets
from labkit.settings import Settings

settings = Settings.from_env()
lab = cluster.start()
lab

# %% [markdown]
# A cluster on this machine, as in lesson 01. On a real one, with or without GPUs, you run the same cells.
#
# And an object store, as in lesson 02. The images will come from it, and the checkpoints will go to it. Workers may run anywhere, so what they read and
# write must lie where all of them reach it.

# %%
from labkit import storage

store = storage.start()
store

# %%
train = datasets.load(split="train")
test = datasets.load(split="test")
len(train), len(test)

# %% [markdown]
# ## The loop you know
# Nothing in the next three cells is new. Read them once; in a moment you will change four lines.
#
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
# How often is the model right on the images that it never trains on?

# %%
from labkit.models.torch import batches, evaluate


def accuracy(model):
    rows = batches(test.images, test.labels, size=512, shuffle=False)
    return evaluate(model, rows)["accuracy"]


# %% [markdown]
# And the epochs. This time the model is a small convolutional network. It has fewer weights than the one of lesson 00, and it computes more
# with each of them; you will see why that matters here. The loss of an epoch is the mean of the losses of its steps.

# %%
from labkit.panel import Panel
from labkit.models.torch import cnn, mlp, to_input


def train_plain(epochs, batch_size):
    model = cnn(seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for epoch in range(epochs):
        losses = []
        rows = batches(train.images, train.labels, size=batch_size, shuffle=False)
        for x, y in panel.steps(rows, epoch=epoch, epochs=epochs):
            losses.append(train_step(model, optimizer, x, y))
            panel.log(loss=losses[-1])
        panel.report({"loss": torch.stack(losses).mean().item(), "accuracy": accuracy(model)})
    return model


# %%
epochs = 8 if settings.small else 10
torch.set_num_threads(1)

panel = Panel("03-one-process", dataset=train.name, rows=len(train))
with panel:
    train_plain(epochs, batch_size=128)

# %% [markdown]
# This is what the workers have to beat. PyTorch had one thread here, because each worker will have one, too.

# %% [markdown] tags=["prediction"]
# **Before you go on:** two workers, 64 images each per step. Does the model see 64 or 128 images between two updates? Will an epoch
# take half as long? And the whole run? Write the three answers down.

# %% [markdown]
# ## Four changes
# | | one process | many processes |
# |---|---|---|
# | 1 | `cnn(seed=0)` | `prepare_model(cnn(seed=0))` |
# | 2 | the images are in memory | `get_dataset_shard("train")` |
# | 3 | `batches(…)` | `shard.iter_torch_batches(…)` |
# | 4 | `panel.report(…)` | `ray.train.report(…, checkpoint=…)` |
#
# One at a time.
#
# **1 · The model.** Every worker has a copy of the whole model. `prepare_model` moves it to the worker's device, a GPU if the worker has one. With
# more than one worker, it also wraps the model in PyTorch's `DistributedDataParallel`: during each `backward()` the workers average their
# gradients. All of them then make the same update, so all keep the same weights.

# %%
import ray.train
from ray.train.torch import prepare_model

# %% [markdown]
# **2 · The data.** The training images go to the store, once, as four Parquet files, and the test images as one. A Ray dataset reads them from there, again in each epoch. Each worker gets a part of its
# own, its *shard*. All shards are equally long. (`use_datasource_v2` is
# switched off because there are so few files: lesson 02 says why.)

# %%
import ray.data
from labkit.data import DataPanel
from labkit.storage import upload_shards

upload_shards(train, store, "lab-03", prefix="train", rows_per_shard=len(train) // 4 + 1)
upload_shards(test, store, "lab-03", prefix="test")
ray.data.DataContext.get_current().use_datasource_v2 = False

data = ray.data.read_parquet("lab-03/train", filesystem=store.filesystem)
data.schema()

# %% [markdown]
# How long does it take to read all of it once, with nothing else to do? Keep this number: at the end you compare it with the time of the training.

# %%
with DataPanel("03-load") as load:
    data.materialize()

# %% [markdown]
# **3 · The batches.** `iter_torch_batches` turns rows into tensors on the worker's device, one batch at a time. You call it once per epoch. The rows
# come in the same order each time, as in `train_plain`; `local_shuffle_buffer_size=…` would shuffle them (lesson 02).
#
# **4 · The report.** It hands metrics and a checkpoint to Ray. Each worker has a number, its **rank**, from 0 on. Ray keeps the metrics of rank 0 only, and
# all ranks have the same weights. So rank 0 alone tests the model and fills the checkpoint, which is a folder. But *every* rank calls
# `ray.train.report`, also those that have no checkpoint to give.

# %%
import tempfile

from labkit.models.torch import load_state, save_state


def report(model, optimizer, metrics):
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            metrics["accuracy"] = accuracy(model)
            save_state(folder, model, optimizer, metrics["epoch"])
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report(metrics, checkpoint=checkpoint)


# %% [markdown]
# `save_state` writes weights, optimizer and epoch to one file, with `torch.save`. If the model is wrapped, it takes the weights from *inside* the wrapper:
# `model.module.state_dict()`. The wrapper itself would name them `module.1.weight` and so on, and those names don't fit a plain model.
#
# The loss that rank 0 reports is the mean over its own part of the rows: about half of them, if there are two workers. Now the loop, with all four changes:


# %%
def train_loop(config):
    model = prepare_model(cnn(seed=0))  # 1
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    shard = ray.train.get_dataset_shard("train")  # 2
    print("threads:", torch.get_num_threads())
    for epoch in range(config["epochs"]):
        losses = []
        rows = shard.iter_torch_batches(batch_size=config["batch_size"])  # 3
        for batch in panel.steps(rows, epoch=epoch, epochs=config["epochs"]):
            losses.append(train_step(model, optimizer, to_input(batch["image"]), batch["label"]))
            panel.log(loss=losses[-1])
        report(model, optimizer, {"epoch": epoch, "loss": torch.stack(losses).mean().item()})  # 4


# %% [markdown]
# `train_step` and `accuracy` did not change. Ray serializes the loop together with everything it refers to, and that includes the test images. This is
# fine for a few hundred kilobytes. The training images go through Ray Data instead.

# %% [markdown]
# ## First in this process
# Find your mistakes before you start workers. With `num_workers=0` the loop runs here, in the kernel: prints and tracebacks come to the
# cell, `breakpoint()` stops in it, and nothing has to start.
#
# For example, what is in a batch?

# %%
from labkit.train import TrainPanel
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def look(config):
    shard = ray.train.get_dataset_shard("train")
    for batch in shard.iter_torch_batches(batch_size=4):
        print({name: (values.dtype, values.shape) for name, values in batch.items()})
        break


here = ScalingConfig(num_workers=0)
result = TorchTrainer(look, scaling_config=here, datasets={"train": data}).fit()

# %% [markdown]
# A dict of tensors. The pixels are still bytes, as in the data set. The loop therefore calls `to_input`, which makes them floats from 0
# to 1. Now one epoch of the real loop:

# %%
panel = TrainPanel("03-debug", dataset=train.name, rows=len(train))
rehearsal = TorchTrainer(
    train_loop,
    train_loop_config={"epochs": 1, "batch_size": 128},
    scaling_config=here,
    datasets={"train": data},
)
with panel.watch(rehearsal):
    result = rehearsal.fit()
result.metrics

# %% [markdown]
# The loop works. In this mode the checkpoint is not uploaded: its temporary folder was deleted when `report` returned.

# %% [markdown]
# ## Then on the cluster
# Three objects describe the run. `ScalingConfig` sets how many workers there are, and which resources each of them gets.

# %%
scaling = ScalingConfig(num_workers=settings.num_workers, use_gpu=settings.use_gpu)

# %% [markdown]
# `RunConfig` sets the run's name, where checkpoints are saved, how many are kept, and which callbacks are notified. `storage_filesystem` is a `pyarrow`
# filesystem connected to the store; `storage_path` is the bucket and prefix inside it. The two checkpoints with the highest accuracy are kept. If the
# latest one isn't among them, Ray keeps it as well, because a run resumes from it.
#
# Mind the order: `"max"`, the default, keeps the checkpoints with the *highest* score. If the score is a loss or an error, you want `"min"`.

# %%
from ray.train import CheckpointConfig, RunConfig

panel = TrainPanel("03-torch", dataset=train.name, rows=len(train))
run_config = RunConfig(
    name=panel.run_id,
    storage_path=store.storage_path("runs", "03-torch"),
    storage_filesystem=store.filesystem,
    checkpoint_config=CheckpointConfig(
        num_to_keep=2, checkpoint_score_attribute="accuracy", checkpoint_score_order="max"
    ),
    callbacks=[panel.callback()],
)

# %% [markdown]
# `TorchTrainer` takes the loop, its settings, the data, and the two objects above. All workers together process 128 images in a step, the
# **global batch**, and each of them processes an equal part. (With three workers these are 3 × 42 = 126 images.)

# %%
trainer = TorchTrainer(
    train_loop,
    train_loop_config={"epochs": epochs, "batch_size": 128 // settings.num_workers},
    scaling_config=scaling,
    datasets={"train": data},
    run_config=run_config,
)

# %%
with panel.watch(trainer):
    result = trainer.fit()

# %% [markdown]
# Look where the time went. *Start* is the time to launch the run's controller, the worker processes and the data pipeline. With so little data it's as
# long as the training.
#
# On a cluster of your own, *start* takes much longer. There each of these is a new Python process, which imports PyTorch and Ray first. This lab forks
# them from a process that has already done so. On a quiet machine with two cores, a small `fit()` takes 3 s in the lab and 22 s with Ray as pip installs it.
# To see it, set `LABKIT_PRELOAD=0` before you start JupyterLab.
#
# What the workers print appears in the panel, under *printed lines*. Each worker has one thread, because each has one CPU.

# %% [markdown]
# ### Exercise 03-1 · Steps of an epoch
# Three workers, `batch_size=32` in each, and the 1,437 digits. How many images go into one update? How many updates does an epoch have,
# if the last batch may be smaller?

# %%
from labkit.exercises import check, hint

images_per_update = ...  # your answer
updates_per_epoch = ...  # your answer

# %% tags=["solution"]
import math

images_per_update = 3 * 32
updates_per_epoch = math.ceil(1437 // 3 / 32)

# %%
check("03-1", images_per_update, updates_per_epoch)

# %% [markdown]
# ## What came back
# The metrics of the last report. Since Ray Train v2, metrics are kept only if a checkpoint came with them. (`result.metrics_dataframe` has those of
# all reports.)

# %%
result.metrics

# %% [markdown]
# Ray and PyTorch count epochs from 0, the panel counts them from 1. And these are the objects in the store:

# %%
from pyarrow.fs import FileSelector

files = result.filesystem.get_file_info(FileSelector(result.path, recursive=True))
[file.path.removeprefix(result.path) for file in files if file.is_file]

# %% [markdown]
# The panel lists every checkpoint that was saved, and marks those that Ray deleted. What is left are the two best ones, and the latest if it is
# neither of them. Next to them is Ray's own list of checkpoints, which it reads to find them again.
#
# ## Found again, somewhere else
# Everything the run produced is now in the store. Another process, on another day and on another machine, can load the model from there. It
# needs the path of the run, and the path of some images to test the model on:

# %%
path = f"{run_config.storage_path}/{run_config.name}"
path

# %% [markdown]
# The next cell writes a program to a file. The program shares nothing with this notebook: both paths are given to it when it is started. `Result.from_path`
# reads Ray's list of checkpoints, `get_best_checkpoint` picks one of them, and `load_state` loads it into a plain model.

# %%
program = settings.home / "test_checkpoint.py"

# %%
# %%writefile "{program}"
import sys
import time

from labkit import storage
from labkit.datasets import read_rows
from labkit.models.torch import batches, cnn, evaluate, load_state
from ray.train import Result

run, rows = sys.argv[1:]
store = storage.start()  # connects to the server that is already running
begin = time.perf_counter()
result = Result.from_path(run, storage_filesystem=store.filesystem)
best = result.get_best_checkpoint("accuracy", "max")
model = cnn(seed=None)
with best.as_directory() as folder:
    epoch = load_state(folder, model)["epoch"]
print(f"loaded the model of epoch {epoch + 1} in {time.perf_counter() - begin:.2f} s")

images, labels = read_rows(rows, store.filesystem)
accuracy = evaluate(model, batches(images, labels, size=512, shuffle=False))["accuracy"]
print(f"accuracy on {len(labels)} test images: {accuracy:.3f}")

# %%
import subprocess
import sys

command = [sys.executable, program, path, "lab-03/test"]
done = subprocess.run(command, capture_output=True, text=True)
print(done.stdout or done.stderr)
done.check_returncode()

# %% [markdown]
# The workers trained the model, and another process tested it. On the digits you should see at least 0.95. The checkpoint was chosen *because* it does
# well on these images, so expect a little less on new ones.
#
# In this notebook `result` is still at hand, and the rest is the same:

# %%
best = result.get_best_checkpoint("accuracy", "max")
model = cnn(seed=None)
with best.as_directory() as folder:
    print("from epoch", load_state(folder, model)["epoch"] + 1)
accuracy(model)

# %% [markdown] tags=["prediction"]
# **Before you go on:** some test images the model gets wrong. Which classes will it mix up?

# %%
with torch.no_grad():
    answers = model(to_input(test.images)).argmax(dim=1).numpy()

wrong = (answers != test.labels).nonzero()[0][:20]
test.show(wrong, [f"{test.classes[test.labels[k]]}, not {test.classes[answers[k]]}" for k in wrong])

# %% [markdown]
# What they are, and what the model took them for. Some of them would stop a human, too.

# %% [markdown]
# ## Is it the same model?
# `DistributedDataParallel` averages the gradient of 64 images with that of 64 others. One process would take the gradient of all 128. Is that
# the same? First by hand, without a cluster, in single and in double precision:


# %%
def gradient(rows, dtype):
    model = mlp(seed=0).to(dtype)
    x, y = to_input(train.images[rows]).to(dtype), torch.tensor(train.labels[rows])
    torch.nn.functional.cross_entropy(model(x), y).backward()
    return torch.cat([weights.grad.flatten() for weights in model.parameters()])


# %%
for dtype in (torch.float32, torch.float64):
    halves = (gradient(slice(0, 64), dtype) + gradient(slice(64, 128), dtype)) / 2
    gap = (gradient(slice(0, 128), dtype) - halves).abs().max().item()
    print(f"{dtype}: largest difference {gap:.1e}")

# %% [markdown]
# The difference is nearly zero, but not quite. A computer rounds after each addition, so adding the same numbers in another order changes the last
# digit. Double precision has about nine more digits, and the difference shrinks by as many, so it is rounding error and not a bug.
#
# This only works with equal parts. If one worker had 64 images and the other 36, the average would give the 36 too much weight.

# %% [markdown]
# ### Another way to feed a loop: sampler and DataLoader
# Now with real workers. In each step they must have exactly the rows that one process would have. Ray Data is free to hand its rows out
# as it likes. With PyTorch's own `DataLoader` they are fixed: `prepare_data_loader` gives it a `DistributedSampler`, which deals the
# rows out. Here it deals eight rows to two ranks:

# %%
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

[list(DistributedSampler(range(8), num_replicas=2, rank=rank, shuffle=False)) for rank in (0, 1)]

# %% [markdown]
# Like cards, one to each in turn. So the first 64 of both together are the first 128 rows.
#
# In the loop, lines 2 and 3 change. Each worker loads *all* rows and takes its own from them: simple, as long as all fit into the memory of each. The
# rows that do not fill a step of 128 are left out.

# %%
from labkit.datasets import read_rows
from ray.train.torch import prepare_data_loader

full = len(train) // 128 * 128
files = store.filesystem


def make_loader(batch_size, kind=TensorDataset):
    images, labels = read_rows("lab-03/train", files)
    rows = kind(torch.tensor(images[:full]), torch.tensor(labels[:full]))
    return prepare_data_loader(DataLoader(rows, batch_size=batch_size))


# %%
def train_with_loader(config):
    model = prepare_model(mlp(seed=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = make_loader(config["batch_size"], config.get("kind", TensorDataset))  # 2 and 3
    for epoch in range(config["epochs"]):
        for x, y in panel.steps(loader, epoch=epoch, epochs=config["epochs"]):
            panel.log(loss=train_step(model, optimizer, to_input(x), y))
    report(model, optimizer, {"epoch": epoch})


# %% [markdown]
# The model is that of lesson 00, `mlp`, and the optimizer plain `SGD` without momentum. (`Adam` divides by numbers near zero, and that makes small differences
# large.) The rows come in the same order in every epoch. To shuffle them, give the DataLoader `shuffle=True` and call
# `loader.sampler.set_epoch(epoch)` before each epoch, but only if there is more than one worker: with a single one, `prepare_data_loader` adds no
# `DistributedSampler`, and that call would raise an `AttributeError`.
#
# First twenty epochs in this process:


# %%
def train_alone(batch_size):
    model = mlp(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Panel(f"03-mlp-alone-{batch_size}", dataset=train.name, rows=full) as panel:
        for epoch in range(20):
            rows = batches(train.images[:full], train.labels[:full], size=batch_size, shuffle=False)
            for x, y in panel.steps(rows, epoch=epoch, epochs=20):
                panel.log(loss=train_step(model, optimizer, x, y))
    return model


# %%
alone = train_alone(batch_size=128)

# %% [markdown]
# Then twenty epochs in the workers:

# %%
panel = TrainPanel("03-mlp", dataset=train.name, rows=full)
trainer = TorchTrainer(
    train_with_loader,
    train_loop_config={"epochs": 20, "batch_size": 128 // settings.num_workers},
    scaling_config=ScalingConfig(num_workers=settings.num_workers, use_gpu=settings.use_gpu),
    run_config=RunConfig(
        name=panel.run_id,
        storage_path=store.storage_path("runs", "03-mlp"),
        storage_filesystem=store.filesystem,
        callbacks=[panel.callback()],
    ),
)
with panel.watch(trainer):
    result = trainer.fit()

# %% [markdown] tags=["prediction"]
# **Before you go on:** the next cell compares the workers' weights with those of one process that takes 64, 128 or 256 rows in a step.
# Which will be nearest, and how near?

# %%
from labkit.models.torch import parameter_distance

together = mlp(seed=None)
with result.checkpoint.as_directory() as folder:
    load_state(folder, together)

for size, model in ((64, train_alone(64)), (128, alone), (256, train_alone(256))):
    gap = parameter_distance(together, model)
    print(f"{size:3} rows in a step: largest difference of a weight {gap:.1e}")

# %% [markdown]
# With 128, the global batch, you get the same model, up to rounding. (With another seed or data set you may see a difference of up to 0.01: now and then a ReLU switches on in one
# run and stays off in the other, and that amplifies rounding errors.) With 64 or 256 you get a different model. How far did training move the weights at all?

# %%
parameter_distance(mlp(seed=0), together)

# %% [markdown]
# Compared with that, the other two models are clearly different. If you add workers but keep the batch size per worker, the global batch grows: an
# epoch has fewer, larger updates, and you may need a different learning rate.

# %% [markdown]
# ### Exercise 03-2 · Same model, one process
# Four workers train with `batch_size=48` in each. Which batch size must one process take to get the same weights?

# %%
batch_size = ...  # your answer

# %% tags=["solution"]
batch_size = 4 * 48

# %%
check("03-2", batch_size)

# %% [markdown]
# ## Why every rank reports
# `report` is a **barrier**: each worker that reaches it waits for all the others, and then all continue together. So a checkpoint belongs to one moment of the
# training, the same one for all workers.
#
# The price: if one rank never calls `report`, the others wait forever. There is no error, only a warning in Ray's logs once a minute.

# %% [markdown]
# ### Exercise 03-3 · The loop that waits forever
# This function is called at the end of every epoch. With one worker it works. With two, training hangs after the first epoch.
#
# ```python
# def end_of_epoch(rank, report, metrics, checkpoint):
#     if rank == 0:
#         report(metrics, checkpoint=checkpoint)
# ```
#
# Write it so that it works with any number of workers. Only rank 0 has a checkpoint to give.


# %%
def end_of_epoch(rank, report, metrics, checkpoint): ...  # your answer


# %% tags=["solution"]
def end_of_epoch(rank, report, metrics, checkpoint):
    report(metrics, checkpoint=checkpoint if rank == 0 else None)


# %%
check("03-3", end_of_epoch)

# %% [markdown]
# ## When a worker fails
# A long training meets a full disk, a lost machine, a bug in hour nine. That is what checkpoints are for. But the loop must look for one
# when it begins.

# %% [markdown]
# ### Exercise 03-4 · Where to go on
# `load_state` returns a dict. Under `"epoch"` it has the index of the epoch that was finished when the checkpoint was saved. Write the function
# that returns the epoch to begin with. In a new run there is no checkpoint; `state` is then `None`. The next cell uses your function.


# %%
def first_epoch(state): ...  # your answer


# %% tags=["solution"]
def first_epoch(state):
    return 0 if state is None else state["epoch"] + 1


# %%
check("03-4", first_epoch)

# %% [markdown]
# Here is a loop that begins there. The rest you know: it's the loop with the DataLoader, which now reports every epoch and, with `breaks_in`, fails on purpose.


# %%
def train_resumable(config):
    model = prepare_model(mlp(seed=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = None
    checkpoint = ray.train.get_checkpoint() or config.get("checkpoint")
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = load_state(folder, model, optimizer)
    loader = make_loader(config["batch_size"])
    for epoch in range(first_epoch(state) or 0, config["epochs"]):  # your function
        for x, y in panel.steps(loader, epoch=epoch, epochs=config["epochs"]):
            panel.log(loss=train_step(model, optimizer, to_input(x), y))
        if epoch == config.get("breaks_in"):
            raise OSError("the disk is full")
        report(model, optimizer, {"epoch": epoch})


# %% [markdown]
# `get_checkpoint` returns the latest checkpoint *of this run*. If there is none, the loop uses the one in its settings. If there is none there either, it
# starts from epoch 0. The order matters: after a crash you want to resume from this run's latest checkpoint, not from the one it was originally started with.
#
# The trainer is the one that you know. A function saves typing:


# %%
def on_the_cluster(loop, run_name, workers=settings.num_workers, data=None, **config):
    return TorchTrainer(
        loop,
        train_loop_config={"batch_size": 128 // workers, **config},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=settings.use_gpu),
        datasets={"train": data} if data else None,
        run_config=RunConfig(
            name=run_name,
            storage_path=store.storage_path("runs", panel.state.name),
            storage_filesystem=store.filesystem,
            callbacks=[panel.callback()],
        ),
    )


# %% [markdown] tags=["prediction"]
# **Before you go on:** the loop raises in its third epoch, in every worker. What will you see here, and what happens to the workers?

# %% tags=["raises-exception"]
panel = TrainPanel("03-resume", dataset=train.name, rows=full)
run_name = panel.run_id
trainer = on_the_cluster(train_resumable, run_name, epochs=5, breaks_in=2)
with panel.watch(trainer):
    trainer.fit()

# %% [markdown]
# The panel shows the traceback of the worker, cut down to your own lines. The full one is in the logs that the panel lists under *files*. If only one
# worker fails, Ray stops the others, too, because they would wait for its gradients forever. The CPUs are free again:

# %%
ray.available_resources().get("CPU"), lab.cpus

# %% [markdown]
# ## Starting again
# There is room on the disk again. The checkpoints of the first two epochs are in the store, whole: Ray lists one only when all of it has
# arrived. The next cell makes a new trainer, with the *same name* and the same storage.

# %% [markdown] tags=["prediction"]
# **Before you go on:** nothing in the next cell says "resume". Which epochs will it train?

# %%
panel = TrainPanel("03-resume", dataset=train.name, rows=full)
trainer = on_the_cluster(train_resumable, run_name, epochs=5)
with panel.watch(trainer):
    result = trainer.fit()

# %%
[metrics["epoch"] for checkpoint, metrics in result.best_checkpoints]

# %% [markdown]
# All epochs are there, each once: two from the run that failed, the others from this one. Ray found the name in the storage, so
# `get_checkpoint` had something to give.
#
# This is handy after a crash. On other days it's a trap: a new experiment under an old name silently continues the old one. So give each run a
# fresh name. `panel.run_id` is one: the time, and a random number.
#
# Ray can also restart failed workers by itself, without you: `RunConfig(failure_config=FailureConfig(max_failures=1))` allows one restart. The loop then
# finds the latest checkpoint in the same way.
#
# The other way is to pass a checkpoint yourself, in the settings of a new run. One epoch more, in this process:

# %%
panel = TrainPanel("03-continued", dataset=train.name, rows=full)
trainer = TorchTrainer(
    train_resumable,
    train_loop_config={"epochs": 6, "batch_size": 128, "checkpoint": result.checkpoint},
    scaling_config=here,
)
with panel.watch(trainer):
    print(trainer.fit().metrics)

# %% [markdown]
# It trained the sixth epoch only. Older tutorials write `resume_from_checkpoint=` or `Trainer.restore`. Both are gone; these two ways are left.

# %% [markdown]
# ## More workers than CPUs
# Worse than an exception is a run in which nothing happens. Ray starts workers where CPUs are free. If there are too few, it waits for more.

# %% [markdown] tags=["prediction"]
# **Before you go on:** you saw at the top of this page how many CPUs your cluster has. The next cell asks for one worker for each of them, and the
# workers read their data with Ray Data. Will that work?

# %% tags=["raises-exception"]
panel = TrainPanel("03-crowd")
trainer = on_the_cluster(train_loop, panel.run_id, workers=int(lab.cpus), data=data, epochs=epochs)
with panel.watch(trainer):
    trainer.fit()

# %% [markdown]
# No: reading the data is work, too, and Ray Data needs a CPU for it. This message is the lab's: `panel.watch` counts before anything starts. Ray itself
# would wait and retry without end; once a minute it writes a warning (`WorkerGroupStartupTimeoutError`) to the log of the run's controller, which you
# don't see in the notebook. If a run of your own stays in *starting workers*, count CPUs first.

# %% [markdown]
# ## Was it worth it?
# Now the times. One run is missing for a fair comparison: the same loop with *one* worker, which processes all 128 images of a step.

# %%
panel = TrainPanel("03-one-worker", dataset=train.name, rows=len(train))
trainer = on_the_cluster(train_loop, panel.run_id, workers=1, data=data, epochs=epochs)
with panel.watch(trainer):
    trainer.fit()

# %%
from labkit import runs

names = ["03-one-process", "03-one-worker", "03-torch"]
runs.plot(name=names, last=3)

# %% [markdown]
# At the top, what they learned: nearly the same, as it should be. Below, where the seconds went. *Start* is everything before the first step, *data* is
# waiting for batches from the store, *training* the steps themselves, *between epochs* testing, saving and the report, and *rest* what Ray does after the
# last step: it uploads the last checkpoint and stops the workers.

# %%
import pandas

seconds = pandas.DataFrame({name: runs.latest(name).seconds for name in names})
seconds.loc["whole"] = seconds.sum()
seconds.round(2)

# %%
print(f"loading all images once, and nothing else: {load.seconds:.1f} s")

# %% [markdown]
# This is one pass over the data; *data* in the table is all epochs together. While a worker computes, Ray Data reads ahead, so the worker waits only for
# what has not arrived yet.

# %% [markdown]
# ## Feed it faster
# Each epoch read the files again, and each step asked for 64 rows. That's right for data that is larger than all memory. This data is not, so there are three
# simple improvements:
#
# - *Read once.* `materialize` reads all rows into Ray's object store, before the training.
# - *Use large pieces.* Each batch that Ray Data hands out goes through several threads, whatever its size. So ask for 8,192 rows and cut them: a part of a tensor
#   is a view of it, and copies nothing.
# - *Keep them.* If a worker's shard fits into its memory, it can use the pieces of the first epoch in the others, too.

# %%
held = data.materialize()


def cut(pieces, size):
    for piece in pieces:
        yield from zip(piece["image"].split(size), piece["label"].split(size), strict=True)


# %%
def train_fed(config):
    model = prepare_model(cnn(seed=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    shard = ray.train.get_dataset_shard("train")
    pieces = list(shard.iter_torch_batches(batch_size=8192))
    for epoch in range(config["epochs"]):
        rows = cut(pieces, config["batch_size"])
        for x, y in panel.steps(rows, epoch=epoch, epochs=config["epochs"]):
            panel.log(loss=train_step(model, optimizer, to_input(x), y))
    report(model, optimizer, {"epoch": epoch})


# %% [markdown] tags=["prediction"]
# **Before you go on:** divide *data* in the table above by the number of epochs. That is how long a worker of *03-torch* waited in each epoch. How much of
# it will remain?

# %%
panel = TrainPanel("03-fed", dataset=train.name, rows=len(train))
trainer = on_the_cluster(train_fed, panel.run_id, data=held, epochs=3)
with panel.watch(trainer):
    trainer.fit()

# %%
for name in ("03-torch", "03-fed"):
    record = runs.latest(name)
    waited = 1000 * record.seconds["data"] / len(record.seconds_per_epoch)
    print(f"{name:8}: {waited:6.1f} ms of waiting in each epoch")

# %% [markdown]
# Almost none. The workers now load all their rows before the first step, so that time counts as *start* instead of *data*. To see how much each of the
# three changes helps on 60,000 rows, compared with `torchrun` and a `DataLoader`, run `python -m benchmarks torch_throughput`. The last results are in
# `benchmarks/README.md`.
#
# The price: all rows must fit into memory twice, once in the object store and once in the workers. And they come in the same order in each epoch. To shuffle them,
# index the rows of a piece in another order: `piece["image"][torch.randperm(…)]`.

# %% [markdown]
# ## What a second worker brings
# %%
one, many = seconds["03-one-worker"], seconds["03-torch"]
for part in ("training", "whole"):
    print(f"{part:8}: {one[part] / many[part]:.2f} times as fast as one worker")
print(f"whole   : {seconds['03-one-process']['whole'] / many['whole']:.2f} times as fast as this process")

# %% [markdown]
# Now your three answers from the beginning. The model saw 128 images between two updates. The training did not become twice as fast. And
# the whole run gained nothing on the digits: what the second worker saves, the start of a cluster run costs.
#
# A second worker saves half of the images to compute. It costs a longer start and, in every step, an **all-reduce**: the workers send
# each other their gradients, one number for every weight, and wait until all have them. (If your workers had GPUs, compare them with the one worker: this
# process had none.)
#
# So it matters how long a worker computes between two exchanges. In that respect the two models of this page are far apart. Only the *training* of each run counts
# here, without waiting for data, because the `mlp` had its images in memory:

# %%
import math


def milliseconds_per_step(name):
    record = runs.latest(name)
    steps = math.ceil(record.rows / 128) * len(record.seconds_per_epoch)
    return 1000 * record.seconds["training"] / steps


def kilobytes(model):
    return sum(weights.numel() * weights.element_size() for weights in model.parameters()) / 1000


# %%
steps = pandas.DataFrame(index=["cnn", "mlp"])
steps["kB exchanged per step"] = [kilobytes(cnn()), kilobytes(mlp())]
steps["ms per step, one process"] = list(map(milliseconds_per_step, ["03-one-process", "03-mlp-alone-128"]))
steps["ms per step, workers"] = list(map(milliseconds_per_step, ["03-torch", "03-mlp"]))
steps.round(1)

# %% [markdown]
# The `cnn` computes for long and has few weights: much to share, little to send. The `mlp` needs almost no time for a step and sends five times as much.
# On the two cores where this page was written, a step of the `cnn` took 30 ms in one process and 37 with two workers; a step of the `mlp` took
# 1.4 and 4.4. The two cores are busy with Ray's own processes, too, so the workers didn't even have one core each.

# %% [markdown]
# ## A case in which it pays
# Things are different when the workers wait for something other than a core. Often that is their data. Here each row takes a millisecond
# to arrive, as if the store were in another city:

# %%
import time


class FromAfar(TensorDataset):
    def __getitem__(self, place):
        time.sleep(0.001)
        return super().__getitem__(place)


# %% [markdown] tags=["prediction"]
# **Before you go on:** the workers of one run share the rows. How much shorter will an epoch be with two workers than with one?

# %%
for workers in (1, settings.num_workers):
    panel = TrainPanel(f"03-afar-{workers}", dataset=train.name, rows=full)
    trainer = on_the_cluster(train_with_loader, panel.run_id, workers=workers, epochs=3, kind=FromAfar)
    with panel.watch(trainer):
        trainer.fit()

# %%
afar = [f"03-afar-{workers}" for workers in (1, settings.num_workers)]
runs.table(name=afar, last=2)[["run", "workers", "start s", "epoch s", "total s"]]

# %% [markdown]
# With two workers an epoch takes about half as long, since they wait at the same time, each for its own half of the rows.
#
# So a second worker pays when
# - each worker has something that limits it to itself: a GPU, a core, or data to wait for;
# - a step takes long and exchanges little: large images, many of them per worker, a fast network between workers;
# - *and* the run is long, compared with its start.
#
# You need it in any case when the data or the model is too large for one machine. And if all you have is one machine with several cores, try threads first:
# `torch.set_num_threads(…)` costs no start at all.
#
# A training of a few seconds, like this one, is best left to one process. The same loop, for ten hours on ten machines, is what you learned it for.

# %% [markdown]
# ### Exercise 03-5 · After how many epochs does it pay?
# A run takes its start-up time plus the number of epochs times the seconds per epoch. With more workers, start-up usually takes longer and each epoch should be faster.
# Write the function that returns after how many whole epochs the run with many workers has caught up with the run with one. If it is ahead from the
# beginning, the answer is 0. If its epochs are not shorter, it never catches up, and the answer is `math.inf`. Afterwards, try it on the numbers in the table above.


# %%
def epochs_to_pay(start_one, epoch_one, start_many, epoch_many): ...  # your answer


# %% tags=["solution"]
def epochs_to_pay(start_one, epoch_one, start_many, epoch_many):
    saved = epoch_one - epoch_many
    return max(math.ceil((start_many - start_one) / saved), 0) if saved > 0 else math.inf


# %%
check("03-5", epochs_to_pay)

# %% [markdown]
# ## In this notebook
# - you changed four lines of a plain loop, tried it in this process with `num_workers=0`, and ran it on a cluster;
# - the images came from an object store, every epoch left a checkpoint in it, and a fresh process tested the best of them on images that it had
#   not trained on;
# - you showed that the workers and one process with the global batch train the same model, up to rounding;
# - you know why every rank must call `report`, and why a run with too many workers never starts;
# - a run crashed, and went on where it had been: with a reused name unasked, with a checkpoint in its settings on purpose;
# - you measured start, data and training with one worker and with more, saw a case in which more of them pay and one in which they don't;
# - you took the waiting for data out of the loop: read once, in large pieces, kept.
#
# Stop the store and the cluster. The next lesson starts its own. What is in the store stays.

# %%
store.stop()
lab.stop()
