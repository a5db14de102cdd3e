# %% [markdown]
# # 07 · The same training on Spark: TorchDistributor
#
# **You will be able to** launch a training function and a training file on Spark with `TorchDistributor`, in processes of this machine and on executors; fix what goes
# wrong with it in notebooks; give each rank its own part of a DataFrame; and compare torchrun, Ray Train and TorchDistributor on the same work, in measured seconds. ·
# **Time** 50 min (4 of them waiting) · **Needs** 03
#
# Many companies keep their data in Spark, and their machines run Spark, too. `TorchDistributor` is the part of Spark that lends those machines to PyTorch. It is a
# **launcher**: it starts your function or file in several processes, gives each of them its **rank**, a number from 0 on, and returns one result. Everything that
# happens inside those processes is plain PyTorch.

# %%
from labkit import datasets, spark
from labkit.settings import Settings

settings = Settings.from_env()
lab = spark.session(slots=2)
lab

# %% [markdown]
# Spark runs on Java. If this machine has Java 17 or newer, the lab uses it; otherwise it uses the Java that came with the lab. `lab.spark` is a `SparkSession`, your
# program's access to Spark. The **driver** is the program that plans the work: this notebook, together with a Java process (a JVM). Spark divides the work into
# **tasks**, and here the same JVM runs them. It has two **slots**, so two tasks can run at the same time.
#
# On a real cluster you would write `session = SparkSession.builder.master("spark://…").getOrCreate()` instead, use `session` where this page has `lab.spark`, and end
# with `session.stop()`. `TorchDistributor` finds the active session by itself. Every machine then needs the packages that your function imports, and an object store
# that it can reach. The lab also switches off Spark's web UI.

# %%
lab.spark.version, lab.spark.sparkContext.master, lab.spark.sparkContext.defaultParallelism

# %% [markdown]
# ## What a launcher does
# This function only looks around. The names in capitals are environment variables.

# %%
import os


def look():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
    return {name: os.environ.get(name) for name in names}


# %% [markdown] tags=["prediction"]
# **Before you go on:** the next cell runs `look` in two processes. How many return values will come back?

# %%
from labkit.spark import SparkPanel
from pyspark.ml.torch.distributor import TorchDistributor

use_gpu = False  # True where your Spark hands out GPUs, one for each rank
distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=use_gpu)
with SparkPanel("07-look").watch(distributor):
    answer = distributor.run(look)
answer

# %% [markdown]
# One. But whose? Spark's documentation says rank 0's, and on executors that is true. In local mode, with pyspark 4.3, all ranks write their return value to the *same
# file*, and the last one wins: run the cell again, and `RANK` may change. So let every rank return the same value. If only one rank knows the answer, share it first
# (`all_reduce`, `broadcast`) or write it to storage.
#
# The two ranks are separate processes. `WORLD_SIZE` says how many there are, `RANK` which one this is, and `LOCAL_RANK` which one it is on its machine. With GPUs,
# `LOCAL_RANK` also says which GPU to use. `MASTER_ADDR` is the address where the ranks meet. `torchrun` sets these four variables. In fact it *is* torchrun:
# `local_mode=True` starts it on this machine, and Spark's executors take no part.
#
# `OMP_NUM_THREADS` is the number of threads per rank. The lab's panel set it to 1, unless you had set it before. Without the lab, torchrun sets it to 1 when it starts
# several processes.

# %% [markdown]
# ## From one process to many, in three steps
# **Step 1** is the loop you know, in this process.

# %%
import torch

from labkit.panel import Panel
from labkit.models.torch import mlp, to_input
from labkit.models.torch import parameter_distance
from labkit.models.torch import batches, evaluate

torch.set_num_threads(1)
train_set, test_set = datasets.load(split="train"), datasets.load(split="test")
train_set = train_set[: len(train_set) // 128 * 128]
epochs = 5 if settings.small else 10


def train_step(model, optimizer, x, y):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


# %%
def train_plain(epochs):
    model = mlp(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        rows = batches(train_set.images, train_set.labels, size=128, shuffle=False)
        for x, y in panel.steps(rows, epoch=epoch, epochs=epochs):
            panel.log(loss=train_step(model, optimizer, x, y))
    return model


panel = Panel("07-plain", dataset=train_set.name, rows=len(train_set))
with panel:
    alone = train_plain(epochs)

# %% [markdown]
# **Step 2** puts all of it into *one function* and makes four changes: join the process group, choose a device, wrap the model, and give each rank its own rows.
#
# None of this is specific to Spark. In lesson 03, Ray's `prepare_model` and `prepare_data_loader` did it for you. Neither loop shuffles, so that you can compare the
# weights afterwards. `keep` will save a checkpoint; you define it further down, and it is called only if you pass `checkpoints`.


# %%
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(epochs, batch_size, checkpoints=None):
    dist.init_process_group("nccl" if use_gpu else "gloo")  # 1
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if use_gpu else "cpu")  # 2
    model = DistributedDataParallel(mlp(seed=0).to(device))  # 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = TensorDataset(torch.tensor(train_set.images), torch.tensor(train_set.labels))
    sampler = DistributedSampler(rows, shuffle=False)  # 4
    loader = DataLoader(rows, batch_size=batch_size, sampler=sampler)
    for epoch in range(epochs):
        for x, y in panel.steps(loader, epoch=epoch, epochs=epochs):
            panel.log(loss=train_step(model, optimizer, to_input(x).to(device), y.to(device)))
        if dist.get_rank() == 0:
            rows_of_test = batches(test_set.images, test_set.labels, size=512, shuffle=False)
            metrics = {"epoch": epoch, "accuracy": evaluate(model, rows_of_test)["accuracy"]}
            if checkpoints:
                keep(model, optimizer, metrics, checkpoints)
            panel.report(metrics, epoch=epoch)
    dist.destroy_process_group()
    return model.module.cpu().state_dict()


# %% [markdown]
# The **backend** is the library that the ranks communicate through: `nccl` between GPUs, `gloo` between CPUs. The function uses names that are defined outside it,
# such as `train_step`, `train_set`, `panel` and `use_gpu`. They are pickled with it. For the digits, the two data sets add 1.4 MB to each launch, which is fine. A
# large data set should be read inside the function, as *Data for many ranks* shows below.
#
# **Step 3**: launch it.

# %%
panel = SparkPanel("07-local", epochs=epochs, dataset=train_set.name, rows=len(train_set))
with panel.watch(distributor):
    local = distributor.run(train, epochs, batch_size=64)

parameter_distance(alone, local)

# %% [markdown]
# Two ranks with 64 rows each made the same updates as one process with 128, up to rounding. `run` passes the arguments after the function on to it.

# %% [markdown]
# ### Exercise 07-1 · Who gets which row?
# A `DistributedSampler(range(8), num_replicas=3, rank=2, shuffle=False)` deals eight rows to three ranks. Every rank must get the same number of rows, because
# otherwise one of them would wait forever in its last step. Which rows does rank 2 get, and in which order? Think first; you can try it afterwards.

# %%
from labkit.exercises import check, hint

rows_of_rank_2 = ...  # your answer

# %% tags=["solution"]
rows_of_rank_2 = list(DistributedSampler(range(8), num_replicas=3, rank=2, shuffle=False))

# %%
check("07-1", rows_of_rank_2)

# %% [markdown]
# ### Exercise 07-2 · Backend and device
# Write a function that returns which backend and which device a rank should use: two strings, such as `("gloo", "cpu")`.


# %%
def backend_and_device(use_gpu, local_rank): ...  # your answer


# %% tags=["solution"]
def backend_and_device(use_gpu, local_rank):
    return ("nccl", f"cuda:{local_rank}") if use_gpu else ("gloo", "cpu")


# %%
check("07-2", backend_and_device)

# %% [markdown]
# ## A training file, unchanged
# Often the training already exists, as a file in another repository, with its own modules next to it and its own arguments. It was written for `torchrun` and knows
# neither Spark nor this lab.

# %%
repository = settings.home / "other-repository"
repository.mkdir(parents=True, exist_ok=True)

networks = """
import torch

def network(width):
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Linear(width, 1))
"""

# %%
program = """
import argparse
import torch
import torch.distributed as dist
from networks import network

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--width", type=int, default=4)
options = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(network(options.width))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.randn(64, 8)[dist.get_rank() :: dist.get_world_size()]
for _ in range(options.steps):
    loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if dist.get_rank() == 0:
    print(f"{dist.get_world_size()} ranks, {options.steps} steps: loss {loss.item():.4f}")
dist.destroy_process_group()
"""
for name, text in {"networks.py": networks, "train.py": program}.items():
    (repository / name).write_text(text)

# %% [markdown]
# By hand you would start it like this. It runs for some seconds before it prints anything:

# %%
import subprocess
import sys

torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
done = subprocess.run(
    [*torchrun, repository / "train.py", "--steps=20"],
    env={**os.environ, "OMP_NUM_THREADS": "1"},
    capture_output=True,
    text=True,
)
print(done.stdout or done.stderr)

# %% [markdown]
# With TorchDistributor it looks like this. The first argument is now a *string*, the path; the others are its command line.

# %%
with SparkPanel("07-file").watch(distributor) as panel:
    answer = distributor.run(str(repository / "train.py"), "--steps=20")
print(answer)

# %% [markdown]
# Under *printed lines* you find the same line, with the same loss. A training *file* has no return value, so write its results somewhere. Worse, you don't even learn
# that it failed: `run` returns normally, because pyspark 4.3 drops torchrun's exit status. That is why the panel reads what torchrun prints, and raises an error if a
# rank failed. The file must exist under this path on every machine that runs a rank.

# %% [markdown]
# ## On Spark's executors
# So far Spark's part was small. Now you get a cluster with two **executors**. An executor is a process that runs tasks, here a JVM with one slot. A **master** and two
# Spark **workers**, one per machine, start the executors. These workers train nothing, unlike Ray Train's. In this session, master and workers are inside the driver's
# JVM, which Spark calls `local-cluster`. On a real cluster each has a machine of its own.

# %%
lab = spark.session(workers=2)
lab

# %% [markdown]
# A process can have only one Spark context at a time, so this session replaced the first one. The ranks may be on other machines now, so a checkpoint has to go where
# all of them can reach it: to the object store, as in lesson 03.

# %%
import tempfile

from labkit import storage
from labkit.models.torch import load_state, save_state

store = storage.start()
checkpoints = store.storage_path("runs", "07-executors")


def keep(model, optimizer, metrics, checkpoints):
    with tempfile.TemporaryDirectory() as folder:
        state = save_state(folder, model, optimizer, **metrics)
        path = f"{checkpoints}/epoch-{metrics['epoch']}/state.pt"
        storage.start().files.put_file(str(state), path)
        panel.checkpoint(path, size=state.stat().st_size, metrics=metrics)


# %% [markdown] tags=["prediction"]
# **Before you go on:** one word changes in the next cell: `local_mode=False`. In local mode, rank 1 had `RANK=1` and `LOCAL_RANK=1`. Which of the two will have a
# different value on the executors?

# %%
on_executors = TorchDistributor(num_processes=2, local_mode=False, use_gpu=use_gpu)
panel = SparkPanel("07-executors", epochs=epochs, dataset=train_set.name, rows=len(train_set))
with panel.watch(on_executors):
    spread = on_executors.run(train, epochs, 64, checkpoints=checkpoints)

parameter_distance(alone, spread)

# %% [markdown]
# The weights are the same again. What differs is how the ranks were started. Spark made a **job** with two tasks that start together, a **barrier stage**, and each
# task started torchrun with one process. So `RANK` is still 0 and 1, but `LOCAL_RANK` is 0 in both, because each rank is the only one that its torchrun started. Don't
# use it as the number of a machine.
#
# Starting took longer. Each task is a new Python process that first imports Spark's own libraries; only then does torchrun start. The panel shows this time as
# *start*.
#
# The checkpoints are in the store. Load the last one, which rank 0 saved, into a plain model:

# %%
newest = mlp(seed=None)
with tempfile.TemporaryDirectory() as folder:
    store.files.get_file(f"{checkpoints}/epoch-{epochs - 1}/state.pt", f"{folder}/state.pt")
    print("from epoch", load_state(folder, newest)["epoch"] + 1)
parameter_distance(newest, spread)

# %% [markdown]
# ## What goes wrong, and how to fix it
# A notebook and its executors are different processes, often on different machines, and most errors come from that. For those that it knows, the panel raises a short
# error that names the fix. Spark's own words are in the log files that the panel lists.
#
# On a real cluster one thing is different: when a rank fails, Spark runs the whole barrier stage again, by default up to four times in all. The lab sets
# `spark.stage.maxConsecutiveAttempts` and `spark.task.maxFailures` to 1, so that you see the first failure at once.
#
# ### It can't be pickled
# The function is **pickled**: serialized into bytes, together with everything that it uses. Some objects can't be pickled: a lock, an open file, a connection. And
# Spark's session exists in this process only.

# %% tags=["raises-exception"]
import threading

lock = threading.Lock()


def count_safely():
    with lock:
        return 1


with SparkPanel("07-lock").watch(on_executors):
    on_executors.run(count_safely)

# %% tags=["raises-exception"]
session = lab.spark


def count_rows():
    return session.range(100).count()


with SparkPanel("07-session").watch(on_executors):
    on_executors.run(count_rows)

# %% [markdown]
# To fix the first error, create the lock *inside* the function. To fix the second, write the DataFrame to files and let the ranks read them; *Data for many ranks*
# shows how.
#
# ### A module that the executors don't have
# This module is your own, in a file that only the notebook can find. Python pickles only a module's *name*, not its code.

# %%
(settings.home / "mine").mkdir(exist_ok=True)
(settings.home / "mine" / "my_layers.py").write_text("def doubled(x):\n    return 2 * x\n")
sys.path.append(str(settings.home / "mine"))

import my_layers


def use_it():
    return my_layers.doubled(21)


# %% tags=["raises-exception"]
with SparkPanel("07-module").watch(on_executors):
    on_executors.run(use_it)

# %% [markdown]
# Older advice is `sparkContext.addPyFile(…)`. It doesn't help here: it changes the path of Spark's tasks, but the ranks are child processes of the tasks, with a path
# of their own. What helps is to pickle the module's code with the function. A package from PyPI has to be installed on every node.

# %%
from pyspark import cloudpickle

cloudpickle.register_pickle_by_value(my_layers)

# %% [markdown]
# ### Set outside the function
# Imports can stay outside the function, because each rank imports the modules again by their names. Many guides put them inside. That works, too, and the two recipes
# below do it, so that this notebook need not import their libraries.
#
# But what you *set* on a module outside is lost. In the next cell the notebook asks for double precision. It uses the module again, too. This time the launch is in
# local mode, because that is faster, and those ranks are new processes as well, which don't know the notebook's `sys.path`.

# %%
torch.set_default_dtype(torch.float64)


def look_again():
    return my_layers.doubled(21), torch.get_default_dtype()


with SparkPanel("07-settings").watch(distributor):
    answer = distributor.run(look_again)
torch.set_default_dtype(torch.float32)
answer

# %% [markdown]
# This time the module was found. But the ranks use float32, because they are new processes that imported torch for themselves. There is no error. So set seeds,
# threads and defaults *inside* the function.
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
# `spark.scheduler.barrier.maxConcurrentTasksCheck.interval`.
#
# ### Gloo on the wrong interface
# A machine has several network interfaces: one for itself (loopback, `lo`), one for the cable, one for a VPN. Gloo uses the interface that the machine's hostname
# belongs to, or the one that you name in `GLOO_SOCKET_IFNAME`. So far the lab has set it to loopback for you. If the other ranks can't be reached through that
# interface, the ranks never meet. Here the function names an interface that doesn't exist:


# %% tags=["raises-exception"]
def meet(interface):
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item()


with SparkPanel("07-gloo").watch(distributor):
    distributor.run(meet, "nosuch0")

# %%
from labkit.spark import LOOPBACK

with SparkPanel("07-gloo-cured").watch(distributor):
    together = distributor.run(meet, LOOPBACK)
together

# %% [markdown]
# Two ranks met, and the sum of their ones is 2. On a cluster, name the interface of the network that its machines share.

# %% [markdown]
# ## Data for many ranks
# A Spark DataFrame is not a tensor. Here is a simple way from one to the other: Spark writes the DataFrame *once*, as Parquet, and each rank reads its own part with
# `pyarrow`. (Older tutorials use Petastorm for this, which is no longer maintained.) `repartition(4)` divides the rows into four **partitions**, and Spark writes a
# file for each.

# %%
import pandas

pixels = [image.tobytes() for image in train_set.images]
frame = lab.spark.createDataFrame(pandas.DataFrame({"image": pixels, "label": train_set.labels}))
folder = str(settings.home / "07-digits")
frame.repartition(4).write.mode("overwrite").option("parquet.block.size", 64_000).parquet(folder)

# %% [markdown]
# A Parquet file consists of **row groups**: blocks of rows that can be read one by one. How many did Spark write?

# %%
import pyarrow.parquet as parquet


def row_groups(folder):
    names = sorted(name for name in os.listdir(folder) if name.endswith(".parquet"))
    files = [parquet.ParquetFile(os.path.join(folder, name)) for name in names]
    return [(file, number) for file in files for number in range(file.num_row_groups)]


groups = row_groups(folder)
[file.metadata.row_group(number).num_rows for file, number in groups]

# %% [markdown]
# ### Exercise 07-3 · Which row groups are mine?
# Write a function that returns the numbers of a rank's row groups. Every group goes to one rank, and the ranks' shares differ by at most one group.


# %%
def my_groups(rank, world_size, number_of_groups): ...  # your answer


# %% tags=["solution"]
def my_groups(rank, world_size, number_of_groups):
    return range(rank, number_of_groups, world_size)


# %%
check("07-3", my_groups)


# %%
def read(folder):
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    groups = row_groups(folder)
    panel.phase("loading")
    for what, mine in (("all", groups), ("its own", groups[rank::world_size])):
        tables = [file.read_row_group(number) for file, number in mine]
        megabytes = sum(table.nbytes for table in tables) / 1e6
        print(f"reads {what}: {sum(map(len, tables))} rows, {megabytes:.2f} MB")
    dist.init_process_group("gloo")
    rows = torch.tensor(sum(map(len, tables)))
    dist.all_reduce(rows)
    dist.destroy_process_group()
    return rows.item()


# %%
panel = SparkPanel("07-read")
with panel.watch(distributor):
    together = distributor.run(read, folder)
together, len(train_set)

# %% [markdown]
# Open *printed lines*: each rank first read all rows, then about half of them. The two halves together are all rows, as `all_reduce` shows, which added up their
# sizes. The shares may differ by some rows. If you train on them, let each rank use only as many rows as the smallest share has, so that all ranks make the same
# number of steps. On a cluster the files must be where all ranks can reach them: in the object store, with `filesystem=store.filesystem`.
#
# `read` always uses `gloo`, and so does `train_transformer` below, because their tensors stay on the CPU.

# %% [markdown]
# ## Side by side
# What does each launcher cost? Many people ask, and figures are hard to find. The lab has the same training as six programs, in the folder `engines/programs`. What
# has to change in a plain script for TorchDistributor? (The step and the measuring are in helpers that all six share, so you see only what the launcher needs.)

# %%
import difflib
from pathlib import Path

import engines

plain, distributed = (Path(e.path).read_text().splitlines() for e in (engines.ENGINES[0], engines.ENGINES[4]))
changes = [line for line in difflib.ndiff(plain, distributed) if line[0] in "+-" and line[2:].strip()]
print("\n".join(changes[:12] + ["…"]))

# %% [markdown] tags=["prediction"]
# **Before you go on:** one process; torchrun; Ray Train with a DataLoader, and with Ray Data; TorchDistributor in local mode, and on executors. Which of them makes
# its first step first? Which has the most rows per second, with a model as small as this one? Order them.

# %% [markdown]
# Each is a fresh process that starts from nothing: it starts its cluster or its JVM, launches the ranks, trains, and stops everything. All of them see the same rows
# in the same global batches. So all must end with the same weights, and the comparison checks this before it shows any figures. It takes two or three minutes.
# (Without `LABKIT_SMALL`, one of the programs runs once more, and one of its ranks is killed.)

# %%
result = engines.run(
    rows=2_560 if settings.small else 12_800,
    epochs=2 if settings.small else 3,
    kill_rank_of=[] if settings.small else ["TorchDistributor, local"],
)
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
# A rank that is killed ends the run with an error, within seconds: the other ranks lose the connection, and the launcher ends them. No run resumes unless you save
# checkpoints, and load one when you start. (`python -m benchmarks engines --rows 60000` runs the same comparison with more rows, three times in turn, and kills a rank
# of each program.)

# %% [markdown]
# ### Exercise 07-4 · How many rows until it pays?
# Launcher A makes its first step after `start_a` seconds and then processes `rate_a` rows per second; B starts later and is faster. After how many rows in all have
# both needed the same time? If B never catches up, the answer is `math.inf`.

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
# ## Two recipes
# What runs under torchrun runs under TorchDistributor. Here are two widely used libraries, each in one function.
#
# **Lightning** finds the variables that torchrun sets by itself. Tell its `Trainer` how many processes a machine has (`devices`) and how many machines there are
# (`num_nodes`). In local mode all processes are on one machine; on executors it is `devices=1` and `num_nodes=2`. `use_distributed_sampler` (on by default) gives each
# rank its own rows.

# %%
recipe_epochs = 2 if settings.small else 6


# %%
def train_with_lightning(epochs):
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
    lightning_weights = distributor.run(train_with_lightning, recipe_epochs)
panel.state.metrics()

# %% [markdown]
# Lightning wrapped the model, gave each rank its rows and made the steps. Only rank 0 reports (`is_global_zero`), and all ranks return the same weights.
#
# **A transformer.** In Hugging Face's `transformers`, a **configuration** says how large the model is, and a **tokenizer** turns words into numbers. Both are local
# here, so nothing is downloaded: a BERT of two layers, and sentences from lessons 02 and 03 of this lab. The task: given a sentence, say which of the two lessons it
# comes from. To fine-tune a pretrained model instead, change one line: `from_pretrained("its-name")`.

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
# length. The model computes its own loss from the `labels`. And this loop shuffles: `sampler.set_epoch(epoch)` gives every epoch an order of its own. Without it, all
# epochs would have the same order.


# %%
def train_transformer(epochs, sentences, tokenizer_file):
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
    distributor.run(train_transformer, 2 * recipe_epochs, sentences, tokenizer_file)
panel.state.metrics()

# %% [markdown]
# The accuracy was measured on the fifth of the sentences that the model was not trained on. With as little text as this, it is better than guessing, and no more than
# that.

# %% [markdown]
# ## In this notebook
# - you launched a function and a file in several processes with `TorchDistributor`, in local mode and on executors, and showed that they train the same model as one
#   process;
# - you know which variables each rank gets, which backend and device it should use, and whose return value comes back;
# - you provoked the errors that people meet in notebooks, and fixed them;
# - each rank read its own row groups of what Spark wrote once;
# - you saw torchrun, Ray Train and TorchDistributor side by side, after a check that they train the same model;
# - you ran Lightning and a transformer under the same launcher.
#
# Stop the store and Spark. What is in the store stays.

# %%
store.stop()
lab.stop()
