# %% [markdown]
# # 07 · The same training on Spark: TorchDistributor
#
# By the end of this lesson you can
# - launch a PyTorch function on Spark, and say what a launcher does;
# - say which rows each rank gets (exercise 07-1), and fix a function that can't be launched (07-2);
# - prepare a DataFrame with Spark and train from it, each rank on its own files (07-3);
# - resume in a second launch, on executors;
# - compute after how many rows a faster launcher has won (07-4).
#
# **Time** about 85 minutes · **Needs** 03, 03b
#
# Your company has 2 TB of data in Spark and forty machines that run Spark. Copying the data to a different cluster takes a day, so you want to train where it is. `TorchDistributor` is the part of Spark that lends its machines to PyTorch.
#
# Not every training run needs this. Databricks, which Spark's authors founded, writes in its documentation: if possible, train on a single machine, because distributed code is more complex and pays for communication
# ([*Distributed training*](https://docs.databricks.com/en/machine-learning/train-model/distributed-training/index.html)). The same page recommends `TorchDistributor` in place of Horovod, for years the usual way on Spark.

# %%
from labkit.local import spark

spark.prepare()

# %% [markdown]
# On a cluster, the platform has configured Spark. Here `prepare` finds a Java, lets Spark listen on 127.0.0.1 only, and draws a secret. If another tutorial has set a variable that is in the way, the error names it. The rest is Spark's own API:

# %%
import os
from pathlib import Path

from labkit.settings import Settings
from pyspark.sql import SparkSession

home = Settings.from_env().make_home()
session = SparkSession.builder.master("local[2]").appName("lesson-07").getOrCreate()
session.version

# %% [markdown] tags=["instructor"]
# **Variables from elsewhere.** Spark needs Java 17 or newer. If `JAVA_HOME` names an older one, or `SPARK_REMOTE`, `SPARK_API_MODE` or `PYSPARK_SUBMIT_ARGS` leads elsewhere, `spark.prepare()` says so. Its fix is a line to paste; where the variable is set in a shell's profile, remove it there.

# %% [markdown]
# The **driver** is the program that plans the work: this notebook, together with a Java process. Spark divides the work into **tasks**. With the master `local[2]`, the same Java process also runs the tasks, two at a time. On a real cluster you write
# `spark://…` there, or leave the line out, because the platform has set it.
#
# ## What a launcher does
# Why does PyTorch need a launcher at all? Because the processes of a run have to find each other. A **launcher** starts your function in several processes and tells each of them who it is, through environment variables. Let's read them:

# %%
from labkit.spark import SparkPanel
from pyspark.ml.torch.distributor import TorchDistributor


def look():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
    return {name: os.environ.get(name) for name in names}


distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)

# %% [markdown] tags=["prediction"]
# **Predict.** The next cell runs `look` in two processes. What will come back?

# %%
from course.exercises import check, hint, predict, reveal

predict("07-a", ..., choices=["two dicts, in a list", "one dict"])

# %%
with SparkPanel("07-look").watch(distributor):
    found = distributor.run(look)

reveal("07-a", "one dict" if isinstance(found, dict) else "two dicts, in a list")
found

# %% tags=["claim"]
assert found["WORLD_SIZE"] == "2" and found["RANK"] == found["LOCAL_RANK"]

# %% [markdown] tags=["instructor"]
# **One return value from two processes.** In local mode all ranks write to the same file, and the last one wins. Let all ranks return the same value.

# %% [markdown]
# You get one dict back, from one of the processes. Spark's documentation promises rank 0's, and on executors that's true. In local mode, with pyspark 4.3, all ranks write to the *same file*, and the last one wins. This surprises everybody once, so
# let every rank return the same value.
#
# - `RANK` is the number of the process, counted from 0, and `WORLD_SIZE` is how many there are.
# - `LOCAL_RANK` is its number on its machine. With GPUs, it's also the number of the GPU to use.
# - `MASTER_ADDR` is the address where they meet.
#
# With `local_mode=True`, everything happens on the driver's machine, and Spark's executors do nothing: pyspark calls `torchrun`, PyTorch's own launcher. What happens inside the processes is plain PyTorch.
#
# ## Prepare the data with Spark
# This is why people train on Spark: the data is there, and it has to be cleaned before it becomes tensors. Here is a Parquet file of 1,797 handwritten digits. Each has 784 pixels from 0 to 255.

# %%
from course import datasets
from pyspark.sql import functions as F

raw = session.read.parquet(str(datasets.shipped("digits.parquet")))
digits = raw.withColumn("ink", F.aggregate("image", F.lit(0), lambda total, pixel: total + pixel))
digits.select("label", "ink").show(3)

# %% [markdown]
# Nothing was computed until the last line asked for three rows: a DataFrame is a plan. Let's extend the plan. Faint images go, pixels become floats from 0 to 1, and the columns get the names and the types that the training function expects.
# `write` makes Spark run the plan, on all its machines, and store the result *once*, as Parquet.

# %%
clean = digits.filter("ink > 27000").select(
    F.transform("image", lambda pixel: (pixel / 255).cast("float")).alias("x"),
    F.col("label").cast("long").alias("y"),
)
folder = str(home / "07-digits")
clean.limit(1536).repartition(5).write.mode("overwrite").parquet(folder)
session.read.parquet(folder).groupBy("y").count().orderBy("y").show(3)

# %% tags=["claim"]
written = session.read.parquet(folder)
assert written.count() == 1536 < clean.count() < raw.count()
assert written.select(F.max(F.array_max("x"))).first()[0] == 1

# %% [markdown]
# `repartition(5)` divides the rows into five **partitions**, and Spark writes a file for each. You'll see in exercise 07-3 why the number of files matters. From here on, PyTorch reads the files with `pyarrow`, and Spark isn't involved.
#
# ## From one process to many, in three steps
# **Step 1** is the loop you know, in this process. If it doesn't work here, it won't work on forty machines.

# %%
import pyarrow.parquet as parquet
import torch
from torch.utils.data import DataLoader, TensorDataset


def read(files):
    table = parquet.read_table(files)
    x = torch.tensor(table["x"].combine_chunks().flatten().to_numpy()).reshape(-1, 784)
    return TensorDataset(x, torch.tensor(table["y"].to_numpy()))


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


# %%
def train_plain(folder, epochs, batch_size):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(read(folder), batch_size)
    for _ in range(epochs):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.state_dict()


torch.set_num_threads(1)
alone = train_plain(folder, epochs=4, batch_size=128)

# %% [markdown]
# **Step 2** makes four changes: join the process group, choose a device, wrap the model, and give each rank its own rows. None of them is specific to Spark. In lesson 03, `TorchTrainer` did the first; `prepare_model` and `prepare_data_loader` did the others.

# %%
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler


def train(folder, epochs, batch_size):
    use_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if use_gpu else "gloo")  # 1
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if use_gpu else "cpu")  # 2
    model = DistributedDataParallel(make_model().to(device))  # 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rows = read(folder)
    loader = DataLoader(rows, batch_size, sampler=DistributedSampler(rows, shuffle=False))  # 4
    for epoch in range(epochs):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"rank {dist.get_rank()}, epoch {epoch}: loss {loss.item():.3f}")
    weights = model.module.cpu().state_dict()
    del model  # before its process group goes
    dist.destroy_process_group()
    return weights


# %% [markdown]
# The **backend** is the library through which the ranks communicate: `nccl` between GPUs, `gloo` between CPUs. If your loop shuffles, use `shuffle=True` and call `sampler.set_epoch(epoch)` at the start of each epoch, or all epochs have the same order.
#
# Why `del model` at the end? With PyTorch 2.13 and `gloo`, a rank can hang forever if the DDP wrapper is deleted *after* the process group: a loop of short runs on our machine hung after the 18th; with `del model`, all 150 ended.
#
# **Step 3** launches it. `run` passes the arguments after the function on to the function. The panel shows what the ranks print.

# %%
with SparkPanel("07-local").watch(distributor):
    local = distributor.run(train, folder, epochs=4, batch_size=64)


def largest_difference(a, b):
    return max((a[name] - b[name]).abs().max().item() for name in a)


print(f"{largest_difference(alone, local):.1e}")

# %% tags=["claim"]
assert largest_difference(alone, local) < 1e-5

# %% [markdown] tags=["instructor"]
# **"Why 64 rows here, and 128 in one process?"** Here `batch_size` is the batch of one rank, and two ranks make an update together. With 128 rows for each of them, the global batch would be 256, and that would be a different training run.

# %% [markdown]
# The difference is mere rounding: two ranks with 64 rows each made the same updates as one process with 128.
#
# ### Exercise 07-1 ★ · Who gets which row?
# All ranks have to make equally many steps, because otherwise one of them would wait forever in its last step. What if the rows can't be divided equally? `DistributedSampler(range(10), num_replicas=4, shuffle=False)` deals ten rows to four ranks like cards, and when it runs out, it
# starts again at row 0. Which rows are trained on *twice* in an epoch? With `drop_last=True` it leaves out rows instead. Which rows does *no* rank train on then? If you're stuck, `hint("07-1")` shows the first of three hints.

# %%
twice = ...  # your answer: a list of rows
left_out = ...  # your answer: a list of rows

# %% tags=["solution"]
twice = [0, 1]
left_out = [8, 9]

# %%
check("07-1", twice, left_out)

# %% [markdown]
# ## What a rank can't use
# A notebook and its ranks are different processes, and most errors on Spark come from that. The function is **pickled**: it's turned into bytes, together with everything that it uses and doesn't define, such as `make_model`.
#
# - Some objects can't be pickled: a lock, an open file, a connection.
# - Spark's session exists in the driver only.
# - Settings that you made in the notebook, such as `torch.set_num_threads(1)`, aren't there: each rank imports torch for itself. Set seeds, threads and defaults inside the function.
# - Modules are imported again, by their names. Put imports at the top of the function and of each helper, so that each brings along what it needs.
# - Your own modules aren't there, but `pyspark.cloudpickle.register_pickle_by_value(module)` sends a single file (Ray's `cloudpickle` has no effect here); *A package of your own*, below, sends a package.
#
# The next cell fails on purpose. Spark explains it in many lines of its own; the panel's error, the last line, names the fix.

# %% [markdown] tags=["instructor"]
# **Long red outputs.** The cell tagged `raises-exception` raises on purpose, and Spark prints many lines of its own before the line that matters.


# %% tags=["raises-exception"]
def count_rows():
    return session.range(100).count()


with SparkPanel("07-session").watch(distributor):
    distributor.run(count_rows)

# %% [markdown] tags=["instructor"]
# **"It worked in the notebook!"** The function runs in a different process. Whatever it uses is pickled; a lock, an open file or Spark's session can't be. The panel's error, the last line, names the fix.

# %% [markdown]
# ### Exercise 07-2 ★★ · Fix this function
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
# ## Each rank its own files
# So far each rank has read *all* rows and used a part of them. With 2 TB, it should read only what it needs. The files are already there: Spark wrote five. Deal them to the ranks. Now the shares differ, because five files can't be divided by two, so the ranks have to agree on a number of steps.
# (At work, write many more files than you have ranks, so that the shares differ little.)
#
# Older tutorials use Petastorm to write Parquet and read it in the ranks. Spark also has a loader of its own, private so far, for the partitions of a DataFrame: see the recipe `notebooks/recipes/rows_of_a_dataframe.ipynb`.
#
# ### Exercise 07-3 ★★★ · Each rank its own part
# Write the function. Each rank takes its own files from `folder`, reads them with `read`, and trains on batches of 32 rows. All ranks make the *same number of steps*: as many whole batches as the smallest share allows. The rest of the rows isn't used. `dist.all_reduce(tensor, op=…)` combines one tensor from each
# rank; by default it adds, and [`dist.ReduceOp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.ReduceOp) has other ways. With Gloo, `MAX` and `MIN` lose a NaN
# that isn't rank 0's (torch 2.13), so a loop that stops when any rank's loss is NaN has to add the losses up.
#
# The function returns a dict, the same on all ranks: `rows` is how many rows all ranks read together, `smallest` is how many rows the smallest share has, and `steps` is the number of steps in an epoch. The check runs it in two processes.


# %%
def train_from_parquet(folder, epochs): ...  # your answer


# %% [markdown]
# If you'd rather fill in blanks, paste this version over it:
#
# ```python
# def train_from_parquet(folder, epochs):
#     dist.init_process_group("gloo")
#     files = sorted(str(file) for file in Path(folder).glob("*.parquet"))
#     rows = read(...)
#     together = torch.tensor(len(rows))
#     dist.all_reduce(together)
#     smallest = torch.tensor(len(rows))
#     dist.all_reduce(smallest, op=...)
#     steps = ...
#     model = DistributedDataParallel(make_model())
#     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
#     for _ in range(epochs):
#         for step, (x, y) in enumerate(DataLoader(rows, batch_size=32)):
#             if step == steps:
#                 break
#             loss = torch.nn.functional.cross_entropy(model(x), y)
#             optimizer.zero_grad()
#             loss.backward()
#             optimizer.step()
#     del model
#     dist.destroy_process_group()
#     return {"rows": int(together), "smallest": int(smallest), "steps": steps}
# ```


# %% tags=["solution"]
def train_from_parquet(folder, epochs):
    dist.init_process_group("gloo")
    files = sorted(str(file) for file in Path(folder).glob("*.parquet"))
    rows = read(files[dist.get_rank() :: dist.get_world_size()])
    together = torch.tensor(len(rows))
    dist.all_reduce(together)
    smallest = torch.tensor(len(rows))
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    steps = int(smallest) // 32
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for step, (x, y) in enumerate(DataLoader(rows, batch_size=32)):
            if step == steps:
                break
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    del model  # before its process group goes
    dist.destroy_process_group()
    return {"rows": int(together), "smallest": int(smallest), "steps": steps}


# %% [markdown] tags=["instructor"]
# **Exercise 07-3 is still running.** Let them write down the rows of both shares, and how many steps of 32 rows each share allows. Ask: "Who waits for whom in the step that only one rank makes?" The check stops after 120 seconds.

# %%
check("07-3", train_from_parquet, folder, 1536)

# %% [markdown]
# ## A file, and failures that hide
# Often the training already exists as a file with its own arguments, written for `torchrun`. `TorchDistributor` launches that, too: pass the path instead of a function, and then the command line. Here is such a file:

# %%
program = home / "train_line.py"

# %%
# %%writefile "{program}"
import argparse

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
lr = parser.parse_args().lr
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
x = torch.randn(64, 8)[dist.get_rank() :: dist.get_world_size()]
for _ in range(50):
    loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"lr {lr}: loss {loss.item():.4f}")
dist.destroy_process_group()

# %%
with SparkPanel("07-file").watch(distributor) as panel:
    distributor.run(str(program), "--lr=0.05")

# %% tags=["claim"]
assert len(panel.state.prints) == 2 and all("lr 0.05: loss 0.0" in line for line in panel.state.prints)

# %% [markdown] tags=["prediction"]
# **Predict.** Now we forget the argument, so the file ends in line 8, with an error. What will `run` do?

# %%
predict("07-c", ..., choices=["raise an error", "return normally"])

# %%
try:
    distributor.run(str(program))
    outcome = "return normally"
except Exception:
    outcome = "raise an error"
reveal("07-c", outcome)

# %% tags=["claim"]
assert outcome == "return normally"

# %% [markdown]
# It returned normally! The message is somewhere in the output, but a program would have gone on, and that's easy to miss in a nightly pipeline. pyspark 4.3 starts torchrun through a wrapper that drops its exit status.
#
# Functions hide failures, too: in local mode, `run` returns normally as long as *one* rank has returned. If rank 0 fails in its last lines, or is killed, you get rank 1's value.
#
# Three things help. End a function with a collective call, such as `dist.barrier()`: a rank that fails earlier makes it fail in all others. Let a file write its result, and check that it's there. Or use the lab's panel: each rank reports to it how it ended, and it raises an error.

# %% [markdown]
# ## Resume
# Spark resumes nothing for you. If a rank dies after ten hours, the ten hours are gone, unless you wrote checkpoints. The rules from lesson 03b apply: rank 0 saves model, optimizer and epoch to a place that all machines can reach, and every rank loads the file when it starts. Here the place is a folder of this machine.

# %%
newest = f"{folder}-{os.getpid()}.pt"


# %%
def train_and_keep(folder, epochs):
    dist.init_process_group("gloo")
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = 0
    if os.path.exists(newest):
        state = torch.load(newest, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    rows = read(folder)
    loader = DataLoader(rows, 64, sampler=DistributedSampler(rows, shuffle=False))
    for epoch in range(first, epochs):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, f"{newest}.part")
            os.replace(f"{newest}.part", newest)  # a crash while it writes leaves the old file
    places = [None] * dist.get_world_size()
    dist.all_gather_object(places, (int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])))
    weights = model.module.state_dict()
    del model
    dist.destroy_process_group()
    return first, places, weights


# %% [markdown]
# The loop also returns `RANK` and `LOCAL_RANK` of all ranks, for the next section. The first launch trains two epochs in local mode:

# %%
with SparkPanel("07-first-half").watch(distributor):
    distributor.run(train_and_keep, folder, epochs=2)

# %% [markdown]
# ## On Spark's executors
# Local mode uses one machine. With `local_mode=False`, the ranks run on Spark's **executors**, Java processes on the cluster's machines that run tasks. The master `local-cluster[2,1,1024]` starts a small cluster on your machine: two executors with one core and 1,024 MB each. With `spark.cores.max`, the session is ready when both have started. One process can drive one Spark application at a time, so stop the first one.
#
# ![The driver starts one barrier stage of two tasks; each starts a Python process with a rank](images/spark.svg)

# %% [markdown] tags=["instructor"]
# **"Worker" means something else here.** Spark's workers start executors and train nothing. The ranks train.

# %%
session.stop()
builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.cores.max", 2)
session = builder.getOrCreate()
on_executors = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
session.sparkContext.defaultParallelism

# %% [markdown]
# The second launch runs there, and asks for four epochs:

# %%
with SparkPanel("07-second-half").watch(on_executors):
    first, places, resumed = on_executors.run(train_and_keep, folder, epochs=4)
print(places)
print(f"starts with epoch {first}; {largest_difference(alone, resumed):.1e} from one process without a break")

# %% tags=["claim"]
from unittest import mock

assert places == [(0, 0), (1, 0)]
assert first == 2 and largest_difference(alone, resumed) < 1e-5
of_a_task = {"MASTER_ADDR": "", "MASTER_PORT": "", "RANK": "0", "PYSPARK_TORCH_DISTRIBUTOR_RDZV_ID": "one"}
for devices, ranks in (("0", 1), ("0,1,2,3", 4)):
    with mock.patch.dict(os.environ, of_a_task | {"CUDA_VISIBLE_DEVICES": devices}):
        assert TorchDistributor._get_torchrun_args(False, 4)[1] == ranks

# %% [markdown]
# The second launch picked up where the first left off, in a different kind of process, and it ended with the same weights as one process that trained without a break.
#
# Rank 1 has `LOCAL_RANK=0` now; in local mode it was 1. Spark made a job with two tasks that start together, a **barrier stage**, and each task started a torchrun with one process. A task that has several GPUs starts one rank for each: with
# `spark.task.resource.gpu.amount` set to 4, there is one task for every four ranks, and `LOCAL_RANK` goes from 0 to 3. (`use_gpu` is `True` by default; this notebook sets it to `False`.)
#
# All tasks of a barrier stage have to start together. If the cluster has fewer **slots** than the stage has tasks, Spark checks 40 times, 15 seconds apart, whether there are more, and after ten minutes the job fails. Slots that are only busy are waited for.
#
# ## A package of your own
# At work, `make_model` is in a package next to your notebook. Executors on other machines don't see your folder, so send the package, as a zip file or a wheel:

# %%
import zipfile

package = home / "my_layers.zip"
with zipfile.ZipFile(package, "w") as file:
    file.writestr("my_layers/__init__.py", "def double(x):\n    return 2 * x\n")
session.sparkContext.addPyFile(str(package))


def use_package(x):
    import sys

    sys.path.insert(0, "my_layers.zip")
    from my_layers import double

    return double(x)


doubled = on_executors.run(use_package, 21)
doubled

# %% tags=["claim"]
assert doubled == 42

# %% [markdown]
# `addPyFile` copies the file into every executor's working folder. Spark's own tasks can import it at once; a rank is a new process, so it needs the `sys.path` line. For an environment with compiled packages, the setting `spark.archives` unpacks an archive there.
#
# ## Which launcher?
# What does a launcher cost? Here is the same training with 60,000 rows, on two cores, each program started from nothing. All of them end with the same weights.
#
# | launched by | first step after | rows per second, last epoch |
# |---|---|---|
# | one process, no launcher | 2.0 s | 158,400 |
# | torchrun | 3.6 s | 49,900 |
# | Ray Train | 7.0 s | 52,500 |
# | TorchDistributor, local mode | 7.8 s | 44,600 |
# | TorchDistributor, two executors | 16.2 s | 45,100 |
#
# One process wins, because the model is small and the cores are two (lesson 03). The launchers differ most in their start, and in what you get for it. Ray Train keeps checkpoints and restarts, and `TorchDistributor` needs no second cluster next to your Spark.
# torchrun needs only PyTorch, but you start it yourself on each machine.
#
# ### Exercise 07-4 ★★ · When has the faster launcher won?
# Launcher A makes its first step after `start_a` seconds and then processes `rate_a` rows per second; B starts later. For how many rows do both take the same time, start included? If B isn't faster, the answer is `math.inf`.

# %%
import math


def rows_to_pay(start_a, rate_a, start_b, rate_b): ...  # your answer


# %% tags=["solution"]
def rows_to_pay(start_a, rate_a, start_b, rate_b):
    if rate_b <= rate_a:
        return math.inf
    return (start_b - start_a) / (1 / rate_a - 1 / rate_b)


# %%
check("07-4", rows_to_pay)

# %% [markdown]
# ## Key points
# - `TorchDistributor` is a launcher. Inside the ranks you have plain PyTorch.
# - Prepare data with Spark, write it once as Parquet in many files, and let each rank read its own.
# - A function is pickled with everything it uses. Locks, sessions and notebook settings don't come along.
# - In local mode, the rank that ends last supplies the return value. A file that fails raises nothing, and a function raises only if every rank failed. Check your results.
# - Spark doesn't resume. Save checkpoints, and load one at the start.
#
# **A question to take along.** The result of `run` looks right. Which failure could still be hidden in it in local mode, and how would you notice?
#
# <details><summary>Compare your answer</summary>Some ranks may have failed, since a function raises only if every rank failed. Return something that all ranks contributed to, such as a sum over the ranks, and check it.</details>
#
# | older tutorials | today |
# |---|---|
# | `HorovodRunner` | `TorchDistributor`, in pyspark since 3.4 |
#
# Where to go next: lesson 09 measures when more machines are worth it. Three recipes in `notebooks/recipes` launch something else in the same way: `lightning_on_spark.ipynb` a Lightning module, `hugging_face_on_spark.ipynb` a Hugging Face model with Accelerate, and `rows_of_a_dataframe.ipynb` the rows of a DataFrame.

# %% [markdown] tags=["plain"]
# ## Without the lab
# A similar training run as a script in plain Spark and PyTorch:

# %% [markdown] tags=["links"]
# ## Official pages

# %% [markdown]
# ## Stop

# %%
session.stop()
