# %% [markdown]
# # 07 · The same training on Spark: TorchDistributor
#
# **You will be able to** launch a training function and a training file on Spark with `TorchDistributor`, in this machine's processes and on executors; cure
# what goes wrong with it in notebooks; give each rank its own part of a DataFrame; and say from measured seconds how torchrun, Ray Train and
# TorchDistributor compare on the same work. · **Time** 50 min (4 of them waiting) · **Needs** 03
#
# Many companies keep their data in Spark, and their machines, too. `TorchDistributor` is a part of Spark that lends those machines to PyTorch.
# It is a *launcher*: it starts your function or file in several processes, tells each who it is, and brings one answer back. All that
# happens inside is plain PyTorch.

# %%
from labkit import datasets, spark
from labkit.settings import Settings

settings = Settings.from_env()
lab = spark.session(slots=2)
lab

# %% [markdown]
# Spark runs on Java. If this machine has a Java 17 or newer, the lab takes that one; else the one that came with the lab. The session is
# a single Java process, with two *slots*: two tasks may run at the same time. On a real cluster you would write
# `SparkSession.builder.master("spark://…").getOrCreate()` instead, and the rest of this page stays.

# %%
lab.spark.version, lab.spark.sparkContext.master, lab.spark.sparkContext.defaultParallelism

# %% [markdown]
# ## What a launcher does
# Here is a function that only looks around. The names in capitals are variables of the environment.

# %%
import os


def look():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
    return {name: os.environ.get(name) for name in names}


# %% [markdown] tags=["prediction"]
# **Before you go on:** the next cell runs `look` in two processes. How many answers will come back?

# %%
from labkit.spark import SparkPanel
from pyspark.ml.torch.distributor import TorchDistributor

use_gpu = False  # True where your Spark hands out GPUs, one for each rank
distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=use_gpu)
with SparkPanel("07-look").watch(distributor):
    answer = distributor.run(look)
answer

# %% [markdown]
# One. And whose? Spark's documentation says rank 0's, and on executors it is. In local mode, with the version this was written for, all ranks write their answer to the *same file*, and the last one wins: run
# the cell again, and `RANK` may change. So let every rank return the same. What only one of them knows has to be brought to all before (`all_reduce`, `broadcast`), or written somewhere.
#
# The two ranks are processes of their own. `WORLD_SIZE` says how many there are, `RANK` which one this is, `LOCAL_RANK` which one on its machine
# (with GPUs: which GPU is its), and `MASTER_ADDR` where they meet. These are the variables that `torchrun` sets. In fact it *is* torchrun: `local_mode=True`
# starts it here, and no executor of Spark has a part in it.

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
# **Step 2** puts all of it into *one function*, and makes four changes: meet the other ranks, take a device, wrap the model, deal the rows out.
#
# Nothing in it is Spark's. Ray's `prepare_model` and `prepare_data_loader` did the same for you in lesson 03.


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
# The *backend* is the library that the ranks talk through: `nccl` between GPUs, `gloo` between CPUs. The function uses things that stand above it, `train_step`,
# `train_set`, `panel`, `use_gpu`: they are sent along with it.
#
# **Step 3**: launch it.

# %%
panel = SparkPanel("07-local", epochs=epochs, dataset=train_set.name, rows=len(train_set))
with panel.watch(distributor):
    local = distributor.run(train, epochs, batch_size=64)

parameter_distance(alone, local)

# %% [markdown]
# Two ranks with 64 rows each took the same steps as one process with 128, up to rounding. Everything after the function in `run(…)` is handed to it.

# %% [markdown]
# ### Exercise 07-1 · Who gets which row?
# A `DistributedSampler(range(8), num_replicas=3, rank=2, shuffle=False)` deals eight rows to three ranks. Every rank has to get equally many, else one of them
# would wait for ever in its last step. Which rows does rank 2 get, in which order? Think first. You may try it afterwards.

# %%
from labkit.exercises import check, hint

rows_of_rank_2 = ...  # your answer

# %% tags=["solution"]
rows_of_rank_2 = list(DistributedSampler(range(8), num_replicas=3, rank=2, shuffle=False))

# %%
check("07-1", rows_of_rank_2)

# %% [markdown]
# ### Exercise 07-2 · Backend and device
# Write the function that says, for a rank, which backend and which device it takes: two strings, such as `("gloo", "cpu")`.


# %%
def backend_and_device(use_gpu, local_rank): ...  # your answer


# %% tags=["solution"]
def backend_and_device(use_gpu, local_rank):
    return ("nccl", f"cuda:{local_rank}") if use_gpu else ("gloo", "cpu")


# %%
check("07-2", backend_and_device)

# %% [markdown]
# ## A training file, as it is
# Often the training is there already: a file in another repository, with its own modules beside it and its own arguments. It was written for
# `torchrun`, and knows neither Spark nor this lab.

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
# So one would start it by hand. It takes some seconds, in which it says nothing:

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
# And so with TorchDistributor. The first argument is a *string* now, the path; the others are its command line.

# %%
with SparkPanel("07-file").watch(distributor) as panel:
    answer = distributor.run(str(repository / "train.py"), "--steps=20")
print(answer)

# %% [markdown]
# The same line, under *printed lines*, and the same loss. A file returns nothing: what it has to tell, it must write somewhere. Not even that it failed: in local mode `run` then returns as if all were
# well (pyspark 4.3). The panel looks at what torchrun says, and raises. And the file has to lie under this path on every machine that runs a rank.

# %% [markdown]
# ## On Spark's executors
# So far Spark had no part in it. Now you get a small cluster: two *executors*, each a process of its own, a JVM with one slot. A *master* and two *workers* start them.
# In this session master and workers are inside the driver's process, which Spark calls `local-cluster`. On a real cluster each worker is a machine.

# %%
lab = spark.session(workers=2)
lab

# %% [markdown]
# A process can have one Spark session only, so this one replaced the other. The ranks may be on other machines now, and a checkpoint has to lie where all can reach it: in
# the object store, as in lesson 03.

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
# **Before you go on:** one word changes in the next cell, `local_mode=False`. In local mode, rank 1 had `RANK=1` and `LOCAL_RANK=1`. Which of the two will be another one on executors?

# %%
on_executors = TorchDistributor(num_processes=2, local_mode=False, use_gpu=use_gpu)
panel = SparkPanel("07-executors", epochs=epochs, dataset=train_set.name, rows=len(train_set))
with panel.watch(on_executors):
    spread = on_executors.run(train, epochs, 64, checkpoints=checkpoints)

parameter_distance(alone, spread)

# %% [markdown]
# The same weights again. What changed is the way there: Spark made a job of two tasks that start together (a *barrier stage*), and each task started torchrun with one process. So `LOCAL_RANK` is
# 0 in both: each is alone on its executor. (Do not take it for the number of the machine.)
#
# It took longer to start. Each task is a new Python with Spark's own libraries, before torchrun begins. The panel shows it as *start*.
#
# The checkpoints are in the store. Rank 0's last one, loaded into a plain model:

# %%
newest = mlp(seed=None)
with tempfile.TemporaryDirectory() as folder:
    store.files.get_file(f"{checkpoints}/epoch-{epochs - 1}/state.pt", f"{folder}/state.pt")
    print("from epoch", load_state(folder, newest)["epoch"] + 1)
parameter_distance(newest, spread)

# %% [markdown]
# ## What goes wrong, and its cure
# A notebook and executors are different processes, often on different machines. Most errors come from that. The panel names the cure of those it knows; here they are, one by one.
#
# ### It cannot travel
# The function is *pickled*: turned into bytes, with all that it uses. Some things cannot be turned into bytes: a lock, an open file, a connection. And Spark's own session lives in this process only.

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
# Cures: make the lock *inside* of the function. And data takes another way than the function: more on that below.
#
# ### A module that the executors do not have
# A module of yours, in a file beside the notebook. Python sends only its *name*.

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
# Older advice is `sparkContext.addPyFile(…)`. It does not help here: it reaches Spark's tasks, and the ranks are children of those, with a path of their own. What helps is to send the module's
# code along. (A package from PyPI has to be installed on every node.)

# %%
from pyspark import cloudpickle

cloudpickle.register_pickle_by_value(my_layers)

# %% [markdown]
# ### Set outside of the function
# Imports may stand outside: their names travel. What you *set* on a module outside does not. Here the notebook says that it wants double precision. (It tries both in local mode, where a launch takes
# less time: those ranks are new processes as well, and do not know the notebook's `sys.path`.)

# %%
torch.set_default_dtype(torch.float64)


def look_again():
    return my_layers.doubled(21), torch.get_default_dtype()


with SparkPanel("07-settings").watch(distributor):
    answer = distributor.run(look_again)
torch.set_default_dtype(torch.float32)
answer

# %% [markdown]
# The module was there this time. But the ranks have float32: they are new processes, which imported torch anew. There is no error. So seeds, threads and defaults belong *into* the function.
#
# ### No GPU
# `use_gpu` is `True` unless you say otherwise. It asks Spark for GPUs, and Spark has only those that its settings name (`spark.driver.resource.gpu.amount`, `spark.task.resource.gpu.amount`).

# %% tags=["raises-exception"]
with SparkPanel("07-gpu"):
    TorchDistributor(num_processes=2, local_mode=True)

# %% [markdown]
# ### More processes than slots
# All ranks have to run at the same time, since they wait for one another. There are two slots.

# %% tags=["raises-exception"]
crowd = TorchDistributor(num_processes=3, local_mode=False, use_gpu=False)
with SparkPanel("07-crowd").watch(crowd):
    crowd.run(look)

# %% [markdown]
# The lab told Spark to give up soon. By default Spark asks 40 times, 15 seconds apart, whether there are enough slots by now: ten minutes in which nothing happens.
#
# ### Gloo on the wrong interface
# A machine has several network interfaces: one for itself (`lo`), one for the cable, one for a VPN. Gloo takes the one that the machine's name leads to, or the one that you name in
# `GLOO_SOCKET_IFNAME`. If the others cannot be reached through it, the ranks never meet.


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
# Two ranks met. On a cluster, name the interface of the network that its machines share.

# %% [markdown]
# ## Data for many ranks
# A DataFrame of Spark is not a tensor. The simple way between them: Spark writes it *once*, as Parquet, and each rank reads its own part with `pyarrow`. (Older tutorials do this with
# Petastorm, which is no longer maintained.)

# %%
import pandas

pixels = [image.tobytes() for image in train_set.images]
frame = lab.spark.createDataFrame(pandas.DataFrame({"image": pixels, "label": train_set.labels}))
folder = str(settings.home / "07-digits")
frame.repartition(4).write.mode("overwrite").option("parquet.block.size", 64_000).parquet(folder)

# %% [markdown]
# A Parquet file consists of *row groups*: packets of rows that can be read one by one. How many did Spark write?

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
# Write the function that gives a rank the numbers of its row groups. Every group goes to one rank, and no rank gets more than one more than another.


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
# Open *printed lines*: first each rank read all, then each about half. The halves together are all rows: `all_reduce` has added them up. The ranks may differ by some rows. For steps of equal number, let each take as many rows as the smallest part has. (On a
# cluster the folder is one that all can reach: the object store, with `filesystem=store.filesystem`.)

# %% [markdown]
# ## Side by side
# Now the question that everybody asks, and for which figures are hard to find: which launcher costs what? The lab has the same training as six programs, in its folder `engines/programs`. What has to change in a plain
# script for TorchDistributor?

# %%
import difflib
from pathlib import Path

import engines

plain, distributed = (Path(e.path).read_text().splitlines() for e in (engines.ENGINES[0], engines.ENGINES[4]))
changes = [line for line in difflib.ndiff(plain, distributed) if line[0] in "+-" and line[2:].strip()]
print("\n".join(changes[:12] + ["…"]))

# %% [markdown] tags=["prediction"]
# **Before you go on:** one process; torchrun; Ray Train with a DataLoader, and with Ray Data; TorchDistributor in local mode, and on executors. Which is first to take a step? Which has the most rows per second, with a model as
# small as this one? Order them.

# %% [markdown]
# Each is a fresh process that begins with nothing: it starts its cluster or its JVM, launches the ranks, trains, and stops all. All see the same rows in the same global batches. So all have to come to the same weights, and the comparison looks
# at that before it shows anything. It takes two or three minutes. (Without `LABKIT_SMALL`, one of them is run once more, and a rank of it is killed.)

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
# Read it from left to right. *Engine* is a cluster or a JVM. You pay for it once, and in a notebook it mostly runs already. What is left of *first step* is paid at every launch: new processes, each of which imports torch. The
# *rows/s* of the epochs are what you came for. *Lines* are those that differ from the plain script, and *peak* is the memory of all processes of a launch, those of Ray and Spark too.
#
# One thing is not equal, and the line below the table says so: on Linux the lab's own Ray cluster forks its workers from a process that has imported torch while the cluster started (lesson 01). The ranks of torchrun and Spark import it
# at each launch. To see Ray as pip installs it, run the comparison with `LABKIT_PRELOAD=0`.
#
# One process wins, as in lesson 03: all-reduce costs more than a second core brings to a model of this size. With a DataLoader, torchrun, Ray Train and TorchDistributor do the same in each step. Where their rows/s differ here, look whether a second run
# agrees: the epochs are short, and a machine that does something else meanwhile shows it. What
# differs for good is the start, and what you get for it: Ray Data streams what does not fit into memory; Ray Train keeps checkpoints, goes on after a crash and tells you how far it is; TorchDistributor needs no second cluster beside a Spark
# that you have; torchrun needs nothing at all.
#
# A rank that is killed ends the run in an error, within seconds: its neighbours lose the connection, and the launcher ends them. Nobody goes on from where it was unless you keep checkpoints, and load one when you begin.
# (`python -m benchmarks engines --rows 60000` does the same with more rows, three times in turn, and kills a rank of each.)

# %% [markdown]
# ### Exercise 07-4 · How many rows until it pays?
# Launcher A takes its first step after `start_a` seconds and then goes through `rate_a` rows a second; B starts later and is faster. After how many rows in all have they taken equally long? If B never catches up, the answer is `math.inf`.

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
# What runs under torchrun runs under TorchDistributor. Two libraries that many use, each in one function.
#
# **Lightning** finds the variables that torchrun sets by itself. Tell its `Trainer` how many processes a machine has (`devices`) and how many machines there are (`num_nodes`). In local mode that is all
# processes on one machine; on executors `devices=1` on `num_nodes=2`. `use_distributed_sampler` (on by default) deals the rows out.

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
# Lightning wrapped the model, dealt the rows out and made the steps. Rank 0 alone reports (`is_global_zero`), and all return the same weights.
#
# **A transformer.** The small kit of Hugging Face's `transformers`: a *configuration* says how large the model is, a *tokenizer* turns words into numbers. Both are local here, nothing is downloaded: a BERT of two
# layers, and sentences from lessons 02 and 03 of this lab. From which of the two is a sentence? (To fine-tune a model that somebody else has trained, one line changes: `from_pretrained("its-name")`.)

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
# The loop around it is the one that you know. What is new: `words(…)` turns a list of sentences into a tensor of token numbers, padded to equal length, and the model computes its own loss from the `labels`.


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
# The accuracy is on the fifth of the sentences that it did not train on. With as little text as this it is better than guessing, and no more than that.

# %% [markdown]
# ## In this notebook
# - you launched a function and a file in several processes with `TorchDistributor`, in local mode and on executors, and showed that they train the same model as one process;
# - you know what each rank is told, which backend and device it takes, and whose value comes back;
# - you provoked the errors that people meet in notebooks, and cured them;
# - each rank read its own row groups of what Spark wrote once;
# - you saw torchrun, Ray Train and TorchDistributor side by side, after they had shown that they train the same model;
# - Lightning and a transformer ran under the same launcher.
#
# Stop the store and Spark. What is in the store stays.

# %%
store.stop()
lab.stop()
