# %% [markdown]
# # 07 · The same training on Spark: TorchDistributor
#
# By the end of this lesson you can
# - say which rows each rank gets, and what `drop_last` changes (exercise 07-1);
# - fix a function that fails when it is launched from a notebook (07-2);
# - train from a Spark DataFrame, each rank on its own part (07-3);
# - launch a function on executors, continue it in a second launch, and launch a file;
# - compute after how many rows a faster launcher pays off (extra, 07-4).
#
# **Time** … · **Needs** 03

# %% [markdown]
# Your company has 2 TB of data in Spark and forty machines that run Spark. Copying the data to another cluster takes a day, so you want to train where it is. `TorchDistributor` is the part of Spark that
# lends those machines to PyTorch. It is a **launcher**: it starts your function or file in several processes, gives each of them its **rank**, a number from 0 on, and can return a value. What
# happens inside those processes is plain PyTorch.

# %%
from labkit import datasets, spark, storage
from labkit.exercises import check, hint, predict, reveal
from labkit.settings import Settings

settings = Settings.from_env()
lab = spark.session(slots=2)
store = storage.start()
lab

# %% [markdown] tags=["instructor"]
# **An old Java.** Spark needs Java 17 or newer. If `JAVA_HOME` names an older one: `unset JAVA_HOME`, and the lab uses its own.

# %% [markdown]
# Spark runs on Java, and the lab brings one along. Spark's own call is `SparkSession.builder`. On a real cluster you add `.master("spark://…")`; here it finds the running session:

# %%
from pyspark.sql import SparkSession

session = SparkSession.builder.appName("lesson-07").getOrCreate()
session.version, session.sparkContext.master, session.sparkContext.defaultParallelism

# %% [markdown]
# The **driver** is the program that plans the work: this notebook, together with a Java process. Spark divides the work into **tasks**, and here the same Java process runs them. It has two **slots**, so two
# tasks can run at once.
#
# ## What a launcher does
# This function reads environment variables:

# %%
import os


def look():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
    return {name: os.environ.get(name) for name in names}


# %% [markdown] tags=["prediction"]
# **Predict.** The next cell runs `look` in two processes. How many return values will come back?

# %%
predict("07-a", ...)  # a number

# %%
from labkit.spark import SparkPanel
from pyspark.ml.torch.distributor import TorchDistributor

use_gpu = False  # True where your Spark hands out GPUs, one for each rank
distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=use_gpu)
with SparkPanel("07-look").watch(distributor):
    found = distributor.run(look)
reveal("07-a", 1 if isinstance(found, dict) else len(found))
found

# %% tags=["claim"]
assert found["WORLD_SIZE"] == "2" and found["RANK"] == found["LOCAL_RANK"]

# %% [markdown] tags=["instructor"]
# **One return value from two processes.** In local mode all ranks write to the same file, and the last one wins. Let all ranks return the same
# value.

# %% [markdown]
# One: a dict, of one rank. Spark's documentation says that it is rank 0's, and on executors that is true. In local mode, with pyspark 4.3, all ranks write their return value to the *same file*, and the last one
# wins. So let every rank return the same value.
#
# `WORLD_SIZE` says how many ranks there are, `RANK` which one this is, and `LOCAL_RANK` which one it is on its machine; with GPUs, also which GPU to use. `MASTER_ADDR` is where they meet. `torchrun` sets
# these variables, and `local_mode=True` is nothing but torchrun on this machine.
#
# ## From one process to many, in three steps
# **Step 1** is the loop you know, in this process. `to_input` scales pixels to 0–1.

# %%
import torch
from labkit.models.torch import batches, evaluate, mlp, parameter_distance, to_input
from labkit.panel import Panel

torch.set_num_threads(1)
train_set, test_set = datasets.load(split="train"), datasets.load(split="test")
train_set = train_set[: len(train_set) // 128 * 128]  # whole batches
epochs = 4 if settings.small else 10


def train_step(model, optimizer, x, y):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


# %%
def train_plain(panel, epochs):
    model = mlp(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        rows = batches(train_set.images, train_set.labels, size=128, shuffle=False)
        for x, y in panel.steps(rows, epoch=epoch, epochs=epochs):
            panel.log(loss=train_step(model, optimizer, x, y))
    return model


panel = Panel("07-plain", dataset=train_set.name, rows=len(train_set))
with panel:
    alone = train_plain(panel, epochs)

# %% [markdown]
# **Step 2** puts all of it into *one function* and makes four changes: join the process group, choose a device, wrap the model, and give each rank its own rows. None of this is specific to Spark. In lesson
# 03, Ray's `prepare_model` and `prepare_data_loader` did it for you.

# %%
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(panel, epochs, batch_size):
    dist.init_process_group("nccl" if use_gpu else "gloo")  # 1
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if use_gpu else "cpu")  # 2
    model = DistributedDataParallel(mlp(seed=0).to(device))  # 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = TensorDataset(torch.tensor(train_set.images), torch.tensor(train_set.labels))
    loader = DataLoader(rows, batch_size, sampler=DistributedSampler(rows, shuffle=False))  # 4
    for epoch in range(epochs):
        for x, y in panel.steps(loader, epoch=epoch, epochs=epochs):
            panel.log(loss=train_step(model, optimizer, to_input(x).to(device), y.to(device)))
    dist.destroy_process_group()
    return model.module.cpu().state_dict()


# %% [markdown]
# The **backend** is the library that the ranks communicate through: `nccl` between GPUs, `gloo` between CPUs. The function is **pickled**: turned into bytes, together with all names that it
# uses and doesn't define, such as `train_step` and `train_set`. Read a large data set inside the function. Imports can stay outside, because each rank imports the modules again by their names. If you put
# them inside, the notebook doesn't need the packages. (If you shuffle, call `sampler.set_epoch(epoch)`, or all epochs have the same order.)
#
# **Step 3**: launch it. `run` passes the arguments after the function on to it.

# %%
panel = SparkPanel("07-local", epochs=epochs, dataset=train_set.name, rows=len(train_set))
with panel.watch(distributor):
    local = distributor.run(train, panel, epochs, batch_size=64)
parameter_distance(alone, local)

# %% tags=["claim"]
assert parameter_distance(alone, local) < 1e-5

# %% [markdown] tags=["instructor"]
# **"Why 64 rows here, and 128 in one process?"** Here `batch_size` is the batch of one rank, and two ranks make an update together. With 128 rows
# for each of them, the global batch would be 256: another training.

# %% [markdown]
# `parameter_distance` is the largest difference of two weights, here below 1e-7, mere rounding: two ranks with 64 rows made the same updates as one process with 128.

# %% [markdown]
# ### Exercise 07-1 · Who gets which row?
# A `DistributedSampler(range(8), num_replicas=3, rank=2, shuffle=False)` gives eight rows to three ranks, one to each in turn. Every rank must get the same number of rows, because otherwise one of them would wait
# forever in its last step. So the sampler starts again at row 0 when it runs out. Which rows does rank 2 get, in their order? And which with `drop_last=True`, which leaves out rows instead?

# %%
rows_of_rank_2 = ...  # your answer
with_drop_last = ...  # your answer

# %% tags=["solution"]
rows_of_rank_2 = list(DistributedSampler(range(8), num_replicas=3, rank=2, shuffle=False))
with_drop_last = list(DistributedSampler(range(8), num_replicas=3, rank=2, shuffle=False, drop_last=True))

# %%
check("07-1", rows_of_rank_2, with_drop_last)

# %% [markdown]
# ## What goes wrong
# A notebook and its ranks are different processes, and most errors come from that. Some objects can't be pickled: a lock, an open file, a connection. And Spark's session exists in the driver only. The next
# cell fails on purpose. Spark says why in many lines of its own; the panel's error, the last line, names the fix:


# %% [markdown] tags=["instructor"]
# **Long red outputs.** The cells tagged `raises-exception` raise on purpose, and Spark prints many lines of its own before the line that matters.


# %% tags=["raises-exception"]
def count_rows():
    return session.range(100).count()


with SparkPanel("07-session").watch(distributor):
    distributor.run(count_rows)

# %% [markdown] tags=["instructor"]
# **"It worked in the notebook!"** The function runs in another process. Whatever it uses is pickled; a lock, an open file or Spark's session can't
# be. The panel's error, the last line, names the fix.

# %% [markdown]
# ### Exercise 07-2 · Fix this function
# Each rank should add its number plus one to a sum over all ranks, and return the total: 3 for two ranks. Three things are wrong. The check launches three processes, without GPUs.

# %%
import threading

lock = threading.Lock()


def fixed_total():  # your answer: fix it
    dist.init_process_group("nccl")
    total = torch.tensor(dist.get_rank() + 1.0)
    with lock:
        if dist.get_rank() == 0:
            dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item()


# %% tags=["solution"]
def fixed_total():
    dist.init_process_group("gloo")
    total = torch.tensor(dist.get_rank() + 1.0)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item()


# %%
check("07-2", fixed_total)

# %% [markdown]
# ## Train from a DataFrame
# A Spark DataFrame is not a tensor. Spark writes it *once*, as Parquet, and each rank reads its own part with `pyarrow`. `repartition(4)` divides the rows into four **partitions**, and Spark writes a file for
# each. A Parquet file consists of **row groups**, blocks of rows that can be read one by one.

# %%
import pandas
import pyarrow.parquet as parquet

pixels = [image.tobytes() for image in train_set.images]
frame = session.createDataFrame(pandas.DataFrame({"image": pixels, "label": train_set.labels}))
folder = str(settings.home / "07-digits")
frame.repartition(4).write.mode("overwrite").option("parquet.block.size", 64_000).parquet(folder)


def row_groups(folder):
    names = sorted(name for name in os.listdir(folder) if name.endswith(".parquet"))
    files = [parquet.ParquetFile(os.path.join(folder, name)) for name in names]
    return [(file, number) for file in files for number in range(file.num_row_groups)]


[file.metadata.row_group(number).num_rows for file, number in row_groups(folder)]

# %% [markdown]
# ### Exercise 07-3 · Each rank its own part
# Fill in the three blanks. The list above shows the rows of each row group. `mine` has the row groups of this rank; deal them like cards. The ranks' shares may differ, so let all ranks make the *same number of steps*, of 32 rows each: as many whole
# steps as the smallest share allows. The rest of the rows isn't used. (`all_reduce` adds, unless `op=` names another
# [`dist.ReduceOp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.ReduceOp).) The check runs the loop in two processes.


# %%
def train_from_parquet(folder, epochs):
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = ...  # your answer
    table = pandas.concat(file.read_row_group(number).to_pandas() for file, number in mine)
    images = torch.tensor([list(image) for image in table["image"]], dtype=torch.uint8)
    x, y = to_input(images.reshape(-1, 28, 28)), torch.tensor(table["label"].to_numpy())
    smallest = torch.tensor(len(y))
    dist.all_reduce(smallest, op=...)  # your answer
    model = DistributedDataParallel(mlp(seed=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for step in range(...):  # your answer
            rows = slice(32 * step, 32 * step + 32)
            train_step(model, optimizer, x[rows], y[rows])
    rows_in_all = torch.tensor(len(y))
    dist.all_reduce(rows_in_all)
    dist.destroy_process_group()
    return {"rows": int(rows_in_all), "smallest": int(smallest), "steps": step + 1}


# %% tags=["solution"]
def train_from_parquet(folder, epochs):
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = row_groups(folder)[rank::world_size]
    table = pandas.concat(file.read_row_group(number).to_pandas() for file, number in mine)
    images = torch.tensor([list(image) for image in table["image"]], dtype=torch.uint8)
    x, y = to_input(images.reshape(-1, 28, 28)), torch.tensor(table["label"].to_numpy())
    smallest = torch.tensor(len(y))
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    model = DistributedDataParallel(mlp(seed=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for step in range(int(smallest) // 32):
            rows = slice(32 * step, 32 * step + 32)
            train_step(model, optimizer, x[rows], y[rows])
    rows_in_all = torch.tensor(len(y))
    dist.all_reduce(rows_in_all)
    dist.destroy_process_group()
    return {"rows": int(rows_in_all), "smallest": int(smallest), "steps": step + 1}


# %% [markdown] tags=["instructor"]
# **Exercise 07-3 is still running.** Let them write down the rows of both shares, and how many steps of 32 rows each share allows. Ask: "Who waits
# for whom in the step that only one rank makes?" The check stops after 120 seconds.

# %%
check("07-3", train_from_parquet, folder, len(train_set))

# %% [markdown]
# On a cluster, write the files to the object store, with `filesystem=store.filesystem`.
#
# ## On Spark's executors
# Now you get a cluster with two **executors**, Java processes that run tasks. A **master** and two Spark **workers**, one per machine, start the executors. These workers train nothing, unlike Ray Train's. A
# process can be the driver of one Spark application at a time, so this one replaces the first, and `session` can't be used any more. `distributor` can: in local mode it only starts torchrun.
#
# ![The driver starts one barrier stage of two tasks; each starts a Python process with a rank](images/spark.svg)

# %% [markdown] tags=["instructor"]
# **"Worker" means something else here.** Spark's workers start executors and train nothing. The ranks train.

# %%
lab = spark.session(workers=2)
on_executors = TorchDistributor(num_processes=2, local_mode=False, use_gpu=use_gpu)
lab

# %% [markdown] tags=["instructor"]
# **`session` is unusable after the second `spark.session`.** A process is the driver of one Spark application at a time, and the new one replaces the old one.

# %% [markdown] tags=["prediction"]
# **Predict.** In local mode, rank 1 had `RANK=1` and `LOCAL_RANK=1`. Which of the two will be different on executors?

# %%
predict("07-b", ..., choices=["RANK", "LOCAL_RANK", "both", "neither"])


# %%
def look_at_all():
    dist.init_process_group("gloo")
    numbers = [None] * dist.get_world_size()
    dist.all_gather_object(numbers, (int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])))
    dist.destroy_process_group()
    return numbers


with SparkPanel("07-ranks").watch(on_executors):
    numbers = on_executors.run(look_at_all)
differs = [name for name, now in zip(("RANK", "LOCAL_RANK"), numbers[1], strict=True) if now != 1]
reveal("07-b", {0: "neither", 1: differs[0] if differs else "", 2: "both"}[len(differs)])
numbers

# %% tags=["claim"]
from unittest import mock

assert numbers == [(0, 0), (1, 0)]
of_a_task = {"MASTER_ADDR": "", "MASTER_PORT": "", "RANK": "0", "PYSPARK_TORCH_DISTRIBUTOR_RDZV_ID": "one"}
for devices, ranks in (("0", 1), ("0,1,2,3", 4)):
    with mock.patch.dict(os.environ, of_a_task | {"CUDA_VISIBLE_DEVICES": devices}):
        assert TorchDistributor._get_torchrun_args(False, 4)[1] == ranks

# %% [markdown]
# `LOCAL_RANK` is 0 in both ranks. Spark made a **job** with two tasks that start together, a **barrier stage**. Each task started a torchrun with one process. So it is with one GPU per task: each task sees only
# its own, as number 0. If `spark.task.resource.gpu.amount` is 4, there are a quarter as many tasks, and each starts four ranks with `LOCAL_RANK` 0 to 3. Starting took longer, because each task is a new Python process.
#
# ## Resume
# Spark resumes nothing by itself. Rank 0 saves a checkpoint after each epoch, to a place that all ranks can reach, and every rank loads the newest one when it starts. `save_state` and `load_state` call
# `torch.save` and `torch.load`. `store` can be pickled: it holds an address, and each rank connects for itself.

# %%
import tempfile

from labkit.models.torch import load_state, save_state

newest = store.storage_path("runs", "07-resume", SparkPanel("07-resume").run_id) + "/state.pt"


def keep(model, optimizer, epoch):
    with tempfile.TemporaryDirectory() as place:
        store.files.put_file(str(save_state(place, model, optimizer, epoch)), newest)


def first_epoch(model, optimizer):
    if not store.files.exists(newest):
        return 0
    with tempfile.TemporaryDirectory() as place:
        store.files.get_file(newest, f"{place}/state.pt")
        return load_state(place, model, optimizer)["epoch"] + 1


# %%
def train_and_keep(epochs):
    dist.init_process_group("gloo")
    model = DistributedDataParallel(mlp(seed=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = first_epoch(model, optimizer)
    rows = TensorDataset(torch.tensor(train_set.images), torch.tensor(train_set.labels))
    loader = DataLoader(rows, 64, sampler=DistributedSampler(rows, shuffle=False))
    for epoch in range(first, epochs):
        for x, y in loader:
            train_step(model, optimizer, to_input(x), y)
        if dist.get_rank() == 0:
            keep(model, optimizer, epoch)
    dist.destroy_process_group()
    return first, model.module.state_dict()


# %% [markdown]
# The first launch trains half of the epochs, in local mode. The second one, on executors, asks for all of them.

# %%
for launcher, last in ((distributor, epochs // 2), (on_executors, epochs)):
    with SparkPanel("07-resume").watch(launcher):
        first, spread = launcher.run(train_and_keep, last)
    print(f"epochs {first + 1} to {last}")
parameter_distance(alone, spread)

# %% tags=["claim"]
assert first == epochs // 2 and parameter_distance(alone, spread) < 1e-5

# %% [markdown]
# The second launch went on where the first had stopped, and the weights are those of one process without a break.
#
# ## A training file, unchanged
# Often the training already exists, as a file with its own arguments, written for `torchrun`. Here is one:

# %%
program = settings.home / "train_line.py"

# %% tags=["long"]
# %%writefile "{program}"
import argparse

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
steps = parser.parse_args().steps

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.randn(64, 8)[dist.get_rank() :: dist.get_world_size()]
for _ in range(steps):
    loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if dist.get_rank() == 0:
    print(f"{dist.get_world_size()} ranks, {steps} steps: loss {loss.item():.4f}")
dist.destroy_process_group()

# %% [markdown]
# The first argument is now a *string*, the path; the others are its command line. By hand you would write `torchrun --nproc_per_node=2 train_line.py --steps=20`. The file must exist under this path on every
# machine that runs a rank.

# %%
with SparkPanel("07-file").watch(distributor):
    distributor.run(str(program), "--steps=20")

# %% [markdown]
# Its line is under *printed lines*. A file returns nothing, so it has to write its results somewhere. You don't even learn that it failed: in local mode and on executors, `run` returns normally, because pyspark 4.3 drops
# torchrun's exit status. The panel reads what torchrun prints, and raises an error.

# %% tags=["claim"]
failing = settings.home / "fails.py"
failing.write_text("raise SystemExit('no data')")
for launcher in (distributor, on_executors):
    assert launcher.run(str(failing)) is None
    try:
        with SparkPanel("07-fails").watch(launcher):
            launcher.run(str(failing))
    except Exception as error:
        print(error)
    else:
        raise AssertionError("the panel didn't notice")

# %% [markdown] tags=["extra"]
# ## Extra: more that goes wrong
# ### A module that the executors don't have
# This module is your own, in a file that only the notebook can find. Python pickles only a module's *name*, not its code.

# %%
import sys

(settings.home / "mine").mkdir(exist_ok=True)
(settings.home / "mine" / "my_layers.py").write_text("def doubled(x):\n    return 2 * x\n")
sys.path.append(str(settings.home / "mine"))

import my_layers


def use_it():
    return my_layers.doubled(21)


# %% tags=["raises-exception"]
with SparkPanel("07-module").watch(distributor):
    distributor.run(use_it)

# %% [markdown]
# Older advice is `sparkContext.addPyFile(…)`. It doesn't help here: it changes the path of Spark's tasks, but the ranks are child processes of the tasks, with a path
# of their own. What helps is to pickle the module's code with the function. A package from PyPI has to be installed on every node.

# %%
from pyspark import cloudpickle

cloudpickle.register_pickle_by_value(my_layers)

# %% [markdown]
# ### Set outside the function
# The next launch tests that fix, and something else: a default that is set *outside* the function.

# %% [markdown] tags=["prediction"]
# **Predict.** The notebook asks torch for double precision. Which precision do the ranks use?

# %%
predict("07-c", ..., choices=["float32", "float64"])

# %%
torch.set_default_dtype(torch.float64)


def look_again():
    return my_layers.doubled(21), str(torch.get_default_dtype()).removeprefix("torch.")


with SparkPanel("07-settings").watch(distributor):
    answer = distributor.run(look_again)
torch.set_default_dtype(torch.float32)
reveal("07-c", answer[1])
answer

# %% tags=["claim"]
assert answer == (42, "float32")

# %% [markdown]
# The module was found. But the ranks are new processes that imported torch for themselves, and nothing complains. So set seeds, threads and defaults *inside* the function.
#
# ### No GPU
# `use_gpu` is `True` unless you say otherwise. It asks Spark for GPUs, and Spark has only those that its settings declare: `spark.driver.resource.gpu.amount` for
# local mode, `spark.task.resource.gpu.amount` for executors.

# %% tags=["raises-exception"]
with SparkPanel("07-gpu"):
    TorchDistributor(num_processes=2, local_mode=True)

# %% [markdown]
# ### More processes than slots
# All ranks have to run at the same time, because they wait for one another. This cluster has two slots.

# %% tags=["raises-exception"]
crowd = TorchDistributor(num_processes=3, local_mode=False, use_gpu=False)
with SparkPanel("07-crowd").watch(crowd):
    crowd.run(look)

# %% [markdown]
# Spark checks again and again whether there are enough slots by now. The lab makes it give up after three repeats, one second apart. By default Spark repeats the
# check 40 times, 15 seconds apart, so for ten minutes nothing happens. The settings are `spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures` and
# `spark.scheduler.barrier.maxConcurrentTasksCheck.interval`. Spark also repeats a failed barrier stage, by default up to four times in all; the lab sets `spark.stage.maxConsecutiveAttempts` and
# `spark.task.maxFailures` to 1.
#
# ### Gloo on the wrong interface
# A machine has several network interfaces: one for itself (loopback, `lo`), one for the cable, one for a VPN. Gloo uses the interface that the machine's hostname belongs to, or the one that you name in
# `GLOO_SOCKET_IFNAME`; here the lab names loopback. If the other ranks can't be reached through that interface, the ranks never meet. On a cluster, name the interface of the network that its machines share.

# %% [markdown] tags=["extra"]
# ## Extra: two recipes
# What runs under torchrun runs under TorchDistributor. Here are two widely used libraries, each in one function.
#
# **Lightning** reads the variables of torchrun without being asked. Tell its `Trainer` how many processes a machine has (`devices`) and how many machines there are
# (`num_nodes`). In local mode all processes are on one machine; on executors it is `devices=1` and `num_nodes=2`. `use_distributed_sampler` (on by default) gives each
# rank its own rows.

# %%
recipe_epochs = 2 if settings.small else 6


# %%
def train_with_lightning(panel, epochs):
    import lightning

    class Digits(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = mlp(seed=0)

        def training_step(self, batch, _):
            loss = torch.nn.functional.cross_entropy(self.model(to_input(batch[0])), batch[1])
            panel.log(loss=loss.detach())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    rows = TensorDataset(torch.tensor(train_set.images), torch.tensor(train_set.labels))
    trainer = lightning.Trainer(
        max_epochs=epochs, devices=2, num_nodes=1, strategy="ddp", logger=False,
        accelerator="gpu" if use_gpu else "cpu",
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = Digits()
    trainer.fit(module, DataLoader(rows, batch_size=64))
    rows_of_test = batches(test_set.images, test_set.labels, size=512, shuffle=False)
    if trainer.is_global_zero:
        panel.report({"accuracy": evaluate(module.model, rows_of_test)["accuracy"]}, epoch=epochs - 1)
    return module.model.state_dict()


# %%
panel = SparkPanel("07-lightning", epochs=recipe_epochs, dataset=train_set.name, rows=len(train_set))
with panel.watch(distributor):
    lightning_weights = distributor.run(train_with_lightning, panel, recipe_epochs)
panel.state.metrics()

# %% [markdown]
# Lightning wrapped the model, gave each rank its rows and made the steps. Only rank 0 reports (`is_global_zero`), and all ranks return the same weights.
#
# **A transformer.** In Hugging Face's `transformers`, a **configuration** says how large the model is, and a **tokenizer** turns words into numbers. Both are local
# here, so nothing is downloaded: a BERT of two layers, and sentences from lessons 02 and 03 of this lab. The task: given a sentence, say which of the two lessons it
# comes from. To fine-tune a pretrained model instead, load it and *its* tokenizer with
# `from_pretrained`, and lower the learning rate.

# %%
lines = datasets.shipped("sentences.tsv").read_text().splitlines()
sentences = [(int(label), text) for label, text in (line.split("\t") for line in lines)]
tokenizer_file = str(datasets.shipped("tokenizer.json"))
len(sentences), sentences[0], sentences[-1]


# %%
def small_bert(tokenizer_file):
    import transformers

    torch.manual_seed(0)
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_file=tokenizer_file, pad_token="[PAD]", unk_token="[UNK]"
    )
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=128, max_position_embeddings=64, num_labels=2,
    )  # fmt: skip
    return words, transformers.BertForSequenceClassification(config)


# %% [markdown]
# The loop around it is the one you know, with three differences. `words(…)`, the tokenizer, turns a list of sentences into a tensor of token numbers, padded to equal
# length. The model computes its own loss from the `labels`. And this loop shuffles, so it calls `set_epoch`.


# %%
def train_transformer(panel, epochs, sentences, tokenizer_file):
    dist.init_process_group("gloo")
    words, model = small_bert(tokenizer_file)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)
    for_training = [row for number, row in enumerate(sentences) if number % 5]
    sampler = DistributedSampler(for_training)
    loader = DataLoader(for_training, batch_size=16, sampler=sampler, collate_fn=list)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for rows in panel.steps(loader, epoch=epoch, epochs=epochs):
            labels, texts = zip(*rows, strict=True)
            tokens = words(list(texts), padding=True, return_tensors="pt", return_token_type_ids=False)
            loss = model(**tokens, labels=torch.tensor(labels)).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            panel.log(loss=loss)
    if dist.get_rank() == 0:
        labels, texts = zip(*sentences[::5], strict=True)
        tokens = words(list(texts), padding=True, return_tensors="pt", return_token_type_ids=False)
        with torch.no_grad():
            guesses = model.module.eval()(**tokens).logits.argmax(dim=1)
        panel.report({"accuracy": (guesses == torch.tensor(labels)).float().mean().item()}, epoch=epochs - 1)
    dist.destroy_process_group()


# %%
panel = SparkPanel("07-transformer", epochs=2 * recipe_epochs, dataset="sentences", rows=len(sentences))
with panel.watch(distributor):
    distributor.run(train_transformer, panel, 2 * recipe_epochs, sentences, tokenizer_file)
panel.state.metrics()

# %% [markdown]
# The accuracy was measured on the fifth of the sentences that the model was not trained on. If you always answer with the more frequent lesson, you reach 0.58.

# %% [markdown] tags=["extra"]
# ## Extra: all launchers side by side
# What does each launcher cost? The lab has the same training as six programs, in the folder `engines/programs`: one process (`plain.py`), torchrun, Ray Train with a DataLoader and with Ray Data, and
# TorchDistributor in local mode and on executors. Each is a fresh process that starts from nothing. All of them see the same rows in the same global batches, and the comparison checks that all end with the
# same weights. It takes two or three minutes. With `LABKIT_SMALL`, the two longest launches are left out: Ray Data, and executors.

# %% [markdown] tags=["prediction"]
# **Predict.** The model is small. Divide the rows per second of one process by those of torchrun's two ranks: what do you get?

# %%
predict("07-d", ...)  # a number

# %%
import engines

LONGEST = ("Ray Train, Ray Data", "TorchDistributor, executors")
result = engines.run(
    rows=2_560 if settings.small else 12_800,
    epochs=2 if settings.small else 3,
    engines=[one for one in engines.ENGINES if not (settings.small and one.name in LONGEST)],
    kill_rank_of=[] if settings.small else ["TorchDistributor, local"],
)
rates = {one.engine: one.rows_per_second[-1] for one in result.results}
names = list(rates)
reveal("07-d", rates[names[0]] / rates[names[1]])
result

# %%
result.figure()

# %% [markdown]
# Read it from left to right. *Engine* is the start of a cluster or a JVM. You pay for it once, and in a notebook it is usually running already. The rest of *first
# step* is paid at every launch: new processes, each of which imports torch. The *rows/s* of the epochs are what you came for. *Lines* counts the lines that differ
# from the plain script, and *peak* is the memory of all processes of a launch, including those of Ray and Spark.
#
# One thing is not equal, and the line below the table says so: on Linux, the lab's own Ray cluster forks its workers from a process that imported torch while the
# cluster started (lesson 01). The ranks of torchrun and Spark import it at each launch. To see Ray as pip installs it, run the comparison with `LABKIT_PRELOAD=0`.
#
# One process wins, as in lesson 03: for a model of this size, all-reduce costs more than a second core saves. With a DataLoader, torchrun, Ray Train and
# TorchDistributor do the same work in each step. If their rows/s differ here, check whether a second run agrees: the epochs are short, so anything else that the
# machine does meanwhile shows in them. What really differs is the start, and what you get for it:
# - Ray Data streams data that doesn't fit into memory;
# - Ray Train keeps checkpoints, resumes after a crash and reports progress;
# - TorchDistributor needs no second cluster next to a Spark that you have;
# - torchrun needs nothing at all.
#
# Without `LABKIT_SMALL`, the last column says what a killed rank does. It ends the run with an error, within seconds, because the other ranks lose the connection. No run resumes unless you save checkpoints,
# and load one when you start. (`python -m benchmarks engines --rows 60000` runs the same comparison with more rows, three times in turn, and kills a rank
# of each program.)

# %% [markdown]
# ### Exercise 07-4 · How many rows until it pays?
# Launcher A makes its first step after `start_a` seconds and then processes `rate_a` rows per second; B starts later. For how many rows do
# both take the same time, start included? If B isn't faster, the answer is `math.inf`.

# %%
import math


def rows_to_pay(start_a, rate_a, start_b, rate_b): ...  # your answer


# %% tags=["solution"]
def rows_to_pay(start_a, rate_a, start_b, rate_b):
    saved = 1 / rate_a - 1 / rate_b  # seconds for each row
    return (start_b - start_a) / saved if saved > 0 else math.inf


# %%
check("07-4", rows_to_pay)

# %% [markdown]
# ## Key points
# - TorchDistributor only launches. Process group, device, wrapper and each rank's rows are plain PyTorch.
# - Every rank must make the same number of steps, and take part in every `all_reduce`. Let all ranks return the same value.
# - Names that the function uses are pickled with it: no locks, no sessions, no large data. Set seeds and defaults inside.
# - `local_mode=True` is torchrun on the driver. On executors with one CPU or one GPU per task, `LOCAL_RANK` is 0 in every rank.
# - Spark resumes nothing: save in the store, load at the start.
#
# | older tutorials | today |
# |---|---|
# | Horovod on Spark, `HorovodRunner` | `TorchDistributor` (since Spark 3.4) |
# | Petastorm, to read a DataFrame | Parquet, and each rank reads its row groups with `pyarrow` |
# | `sparkContext.addPyFile(…)` for your own module | `cloudpickle.register_pickle_by_value(module)`, or install the package on every node |
# | `python -m torch.distributed.launch` | `torchrun` |

# %% [markdown] tags=["plain"]
# ## Without the lab
# The same job in plain Spark, as the script [07_torch_distributor.py](plain/07_torch_distributor.py):

# %% [markdown] tags=["links"]
# ## Reference

# %% [markdown]
# ## Stop

# %%
store.stop()
lab.stop()
