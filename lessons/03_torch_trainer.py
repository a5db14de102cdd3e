# %% [markdown]
# # 03 · Your loop on two workers
#
# By the end of this lesson you can
# - choose the batch size and the learning rate for more workers (exercise 03-4);
# - measure a model on all workers together (03-5);
# - say when two workers are faster than one process;
# - turn a plain PyTorch loop into a distributed one (03-1).
#
# **Time** about 75 minutes · **Needs** 00, 01
#
# In 2017, a group at Facebook trained ResNet-50 on ImageNet in one hour instead of 29, with 256 GPUs instead of 8, and with the same accuracy
# ([Goyal et al.](https://arxiv.org/abs/1706.02677)). They used the method of this lesson: averaged gradients. Here, two processes on your machine stand in for 256 GPUs.

# %%
from course import datasets
from labkit.local import cluster

lab = cluster.start()

# %% [markdown]
# ## The loop you have
# This is a training loop the way you'd write it for one machine, and what changes in it for many.
#
# ```diff
#  def train_loop(config):
# -    model = make_model()
# +    model = prepare_model(make_model())                                             # 1
#      optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
# -    loader = DataLoader(images, batch_size=config["batch_size"])
# +    loader = prepare_data_loader(DataLoader(images, batch_size=config["batch_size"]))  # 2
#      for epoch in range(config["epochs"]):
#          for x, y in loader:
#              loss = cross_entropy(model(x), y)
#              optimizer.zero_grad()
#              loss.backward()
#              optimizer.step()
# -        print({"epoch": epoch, "loss": loss.item()})
# +        ray.train.report({"epoch": epoch, "loss": loss.item()})                     # 3
#
# -train_loop({"epochs": 8, "batch_size": 128, "lr": 0.05})
# +TorchTrainer(train_loop, train_loop_config=…, scaling_config=ScalingConfig(num_workers=2)).fit()  # 4
# ```
#
# Below are the data, the network and the loop with the first three changes; the fourth starts it on two workers.

# %%
import ray.train
import torch
from ray.train.torch import prepare_data_loader, prepare_model
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

digits = datasets.load(split="train")
images = TensorDataset(
    torch.tensor(digits.images[:1408]).unsqueeze(1) / 255, torch.tensor(digits.labels[:1408])
)


def make_model():
    torch.manual_seed(0)
    layers = [
        torch.nn.Conv2d(1, 16, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(2304, 10),
    ]
    return torch.nn.Sequential(*layers)


# %%
def train_loop(config):
    model = prepare_model(make_model())  # 1
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    rows = config.get("images", images)
    loader = prepare_data_loader(DataLoader(rows, batch_size=config["batch_size"]))  # 2
    for epoch in range(config["epochs"]):
        for x, y in loader:
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        ray.train.report({"epoch": epoch, "loss": loss.item()})  # 3
    weights = getattr(model, "module", model).state_dict()  # the model without its wrapper
    return {name: tensor.numpy() for name, tensor in weights.items()}


# %% [markdown]
# Two things aren't in the diff. `config.get` is there because the lesson later passes other images to the same loop. The last two lines return the weights, which we'll compare.
#
# Before you start any worker, run the loop in this notebook. With `num_workers=0`, Ray calls your function right here: a `print` appears in the cell, a traceback points at your line,
# and `breakpoint()` works. Find your mistakes here, before you start workers. (It's only for trying things out: Ray keeps no checkpoints of such a run.)

# %%
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

torch.set_num_threads(1)
config = {"epochs": 8, "batch_size": 128, "lr": 0.05}
alone = TorchTrainer(train_loop, train_loop_config=config, scaling_config=ScalingConfig(num_workers=0)).fit()
sorted(alone.return_value)

# %% [markdown]
# `return_value` is what your function returned: here the weights, by name. Now the same function on two workers. The panel follows from outside.

# %% [markdown] tags=["prediction"]
# **Predict.** What **speed-up** do you expect from two workers, that is, the time of one process divided by the time of two workers? Below 1, two workers are slower. Count the whole run, start-up included.

# %%
from course.exercises import check, hint, predict, reveal

predict("03-a", ...)

# %%
from labkit.train import TrainPanel

panel = TrainPanel("03-two-workers")
trainer = TorchTrainer(
    train_loop,
    train_loop_config={"epochs": 8, "batch_size": 64, "lr": 0.05},
    scaling_config=ScalingConfig(num_workers=2),
)
with panel.watch(trainer):
    together = trainer.fit()

# %% [markdown]
# Panels count epochs and steps from 1. Code counts them from 0: the loop, the metrics that it reports, and the pictures. So the panel's `epoch 8` is the loop's epoch 7.
#
# For comparison, one process under a panel, so that both are measured in the same way:

# %%
from labkit import runs

panel = TrainPanel("03-one-process")
trainer = TorchTrainer(
    train_loop,
    train_loop_config=config,
    scaling_config=ScalingConfig(num_workers=0),
)
with panel.watch(trainer):
    trainer.fit()

one, two = runs.latest("03-one-process"), runs.latest("03-two-workers")
reveal("03-a", one.seconds_total / two.seconds_total)

# %% tags=["claim", "timed"]
assert one.seconds["start"] < two.seconds["start"]
assert one.seconds_total < two.seconds_total

# %% [markdown]
# Slower! With two workers! That's the normal result for a small model, and it surprises everybody once. Where did the time go?

# %%
import pandas

pandas.DataFrame({record.name: record.seconds for record in (one, two)}).round(2)

# %% [markdown] tags=["instructor"]
# **"We have two workers and it's slower?"** Ask in which row of the table the time is. A start has to be paid once, and an all-reduce in every step; the section *When two workers win* shows a case where that is worth it.

# %% [markdown]
# - *start* is the time until the first step: processes start, import PyTorch and connect. You pay it once, whether the run takes ten seconds or ten days.
# - *data* is the time that the loop waits for batches. Here they come from memory, so it waits only briefly.
# - *training* is the steps. Each of the two workers computes only half of the images, so without any exchange you'd expect half of the time that one process takes. What comes on top is the exchange of gradients. Divide the two numbers of this row: that's the speed-up without the start. It's still below 1, because for a model this small the exchange takes longer than the computation that is saved.
# - *between epochs* is what the loop does outside of its steps. Here it calls `report`, and with two workers it waits there until both have arrived.
# - *rest* comes after the last step. Ray takes in the last report and ends the workers. You pay this once, too.

# %% [markdown]
# ## What happens in a step
# Every worker has a number from 0 on, its **rank**.
#
# **1 · `prepare_model`** moves the model to the worker's device, a GPU if the worker has one, and wraps it in PyTorch's `DistributedDataParallel` (**DDP**). Every worker has a copy of the whole model. In `backward()` the
# workers average their gradients, which is an **all-reduce**. Then all of them make the same update, so their weights stay equal.
#
# ![Two workers compute gradients on their own 64 images, all-reduce averages them, both make the same update](images/all_reduce.svg)
#
# **2 · `prepare_data_loader`** adds a `DistributedSampler` to your loader. It deals the rows to the workers like cards, so each worker has its own part, the **shard**. It also moves each batch to the worker's device, so you don't call `.to(device)`. Three details matter in your own project:
#
# - If the rows can't be divided evenly, some are used twice, so that all workers have equally many. This lesson uses 1,408 images to avoid that. In training it hardly matters, but a test that counts some rows twice is slightly wrong.
# - If your loader shuffles, call `loader.sampler.set_epoch(epoch)` at the start of each epoch, or every epoch uses the same order. With one worker there is no such sampler, so ask first whether the sampler has the method.
# - With two or more workers it builds the loader again, and not all of your settings survive. The panel has a note on each one that is lost:
#
# | your loader has | what the workers get | what to write |
# |---|---|---|
# | a sampler of your own, such as `SubsetRandomSampler` | all rows, also those that you kept for validation | `torch.utils.data.Subset`, with `shuffle=True` |
# | `batch_sampler=` | single rows | `batch_size=` |
# | `prefetch_factor`, `persistent_workers` | the defaults | a `DistributedSampler` of your own |
# | rows that you have divided yourself | your loader divided once more | `prepare_data_loader(loader, add_dist_sampler=False)` |
#
# **3 · `report`** sends metrics, and Ray keeps those of rank 0, but only together with a checkpoint (lesson 03b). Here there is none, so the `metrics` of a result are `None`. The lab's record has every report: `two.history`. All ranks have to call it equally often; lesson 03b shows what happens otherwise.
#
# **4 · `TorchTrainer`** starts the workers, gives each of them one CPU (or, with `use_gpu=True`, one GPU), and connects them into a **process group**.
#
# ## A GPU for each worker
# `ScalingConfig(num_workers=2, use_gpu=True)` reserves a GPU for each worker, and nothing in your loop changes: `get_device()` returns the worker's GPU, and `prepare_model` moves the model there. In these workers Ray sets `CUDA_VISIBLE_DEVICES`, a list of the GPUs that a process may see, to those of all workers on the same machine.
#
# Forget `use_gpu=True`, and nothing fails. So ask the workers what they have:

# %%
import os

from labkit.settings import Settings
from ray.train.torch import get_device


def where(config):
    model = torch.nn.Linear(2, 1).to(get_device())  # what `prepare_model` does first
    return {
        "reserved": ray.get_runtime_context().get_accelerator_ids()["GPU"],
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "a GPU is available": torch.cuda.is_available(),
        "the model is on": str(model.weight.device),
    }


scaling = ScalingConfig(num_workers=2, use_gpu=Settings.from_env().use_gpu)  # False without GPUs
placed = TorchTrainer(where, scaling_config=scaling).fit().return_value
placed

# %% tags=["claim"]
if not torch.cuda.is_available():
    assert placed["reserved"] == [] and not placed["a GPU is available"]
    assert placed["the model is on"] == "cpu"

# %% [markdown]
# Without a GPU, nothing is reserved, and the variable isn't set. (Start JupyterLab with `LABKIT_GPU=1` on a machine with GPUs to see the other case.) Older versions of Ray set it to an empty text in a worker that had reserved no GPU, so that it saw none. Ray 2.60 doesn't touch it
# ([issue 54868](https://github.com/ray-project/ray/issues/54868)): on a machine with GPUs, such a worker sees all of them, and may use one that belongs to another run. `torch.cuda.is_available()` doesn't tell you that a GPU is yours; what is *reserved* does.
#
# ## Is it the same model?
# Each worker used 64 images per step, and the one process used 128. The images of all workers in one step are the **global batch**, and here it was 128 both times.

# %% [markdown] tags=["prediction"]
# **Predict.** How do the weights of the two runs compare?

# %%
predict("03-b", ..., choices=["exactly equal", "equal up to rounding", "different models"])


# %%
def largest_difference(a, b):
    return max(abs(a[name] - b[name]).max() for name in a)


def after_one_epoch(batch_size, workers):
    config = {"epochs": 1, "batch_size": batch_size, "lr": 0.05}
    scaling = ScalingConfig(num_workers=workers)
    return TorchTrainer(train_loop, train_loop_config=config, scaling_config=scaling).fit().return_value


early = largest_difference(after_one_epoch(128, 0), after_one_epoch(64, 2))
late = largest_difference(alone.return_value, together.return_value)
print(f"after one epoch {early:.1e}, after eight {late:.1e}")
if early == 0:
    reveal("03-b", "exactly equal")
else:
    reveal("03-b", "equal up to rounding" if early < 1e-5 else "different models")

# %% tags=["claim"]
assert 0 < early < 1e-5 and early < late < 1e-2

# %% [markdown]
# The average of two gradients over 64 images each is the gradient over all 128. Floats are rounded after each addition, and the two runs add in a different order. After one epoch, eleven steps, only the last digits differ. The difference grows with each step, because each step starts from weights that already differ a little. This is worth checking in your own project. Train one epoch with one
# process and the global batch, and one with your workers, both with `shuffle=False`. If the weights differ by more than rounding, a worker sees the wrong rows, or the gradients aren't averaged. With shuffling, dropout, batch normalization or unequal seeds they differ anyway.
#
# The panels show different losses for the same model: each is the loss of the last batch on rank 0, which had 64 images in one run and 128 in the other.
#
# ## More workers: batch size and learning rate
# With four workers you have a choice.
#
# - **Keep the global batch.** Divide `batch_size` by the number of workers. You train the same model, in the same number of steps.
# - **Let it grow.** Keep `batch_size`. Each update uses more images, so an epoch has fewer updates, and each update can be bolder. The **linear scaling rule** says: if the global batch is k times larger, use a learning rate that is k times
#   larger. At the start of a run such a rate is too high, so increase it gradually over the first epochs, the **warm-up**. Goyal et al. did this up to a global batch of 8,192; beyond that, accuracy dropped.
#
# If the global batch grows and nothing else changes, you're training a different model, and usually a worse one.

# %% [markdown]
# ### Exercise 03-4 ★ · Four workers
# A run with one process uses `batch_size=128` and `lr=0.05` on 50,000 images. You move it to four workers. Fill in both dicts; `batch_size` is per worker. The loader has `drop_last=True`, so an epoch has as many steps as full global batches fit into it.

# %%
same_model = {"batch_size": ..., "steps per epoch": ..., "lr": ...}  # your answer: keep the global batch
scaled = {"batch_size": 128, "steps per epoch": ..., "lr": ...}  # your answer: let the global batch grow

# %% tags=["solution"]
same_model = {"batch_size": 32, "steps per epoch": 50_000 // 128, "lr": 0.05}
scaled = {"batch_size": 128, "steps per epoch": 50_000 // 512, "lr": 0.2}

# %%
check("03-4", same_model, scaled)

# %% [markdown]
# ## Exchange while you compute
# DDP doesn't wait for the end of `backward()`. It collects gradients in **buckets** of 25 MB (the first has 1 MB, so that the exchange starts early), and sends a bucket as soon as all its gradients are there, while `backward()` computes the next one. With a large model and a fast network, most of
# the exchange is hidden this way.
#
# ![gradients of the last layers are ready first: their bucket is exchanged while backward computes the layers before](images/buckets.svg)
#
# An exchange needs all ranks. So under DDP `backward()` is a synchronization point: it can't finish until every rank has sent its gradients. Without DDP, for example with one worker, it never waits.

# %% [markdown]
# ## Batch normalization
# Three things go wrong with `BatchNorm` on several workers.
#
# - Each worker computes the mean and the variance of *its* images. With 8 images per worker these are noisy. On GPUs, `torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)`, called before `prepare_model`, computes them over all workers.
# - The running mean and variance are *buffers* of the model. If a single rank evaluates the model, let it use the model inside the wrapper, `model.module`. Each forward pass through the wrapper starts with an exchange: DDP copies rank 0's buffers to
#   the other ranks. It does this in evaluation, too, so if rank 0 calls the wrapper alone, the run hangs or a worker dies.
# - So each rank has a running mean of its own rows, and a checkpoint that rank 0 saves has rank 0's. The distributed checkpoints of lesson 11 may take the mean of one rank and the variance of another.

# %% [markdown]
# ## Measure on all workers
# Rank 0 could test the model by itself while the others wait. With many test images it's better to share the work: each rank counts on its own part, and an all-reduce adds up the counts.
#
# ### Exercise 03-5 ★★ · Accuracy over all ranks
# `model` is a plain model, without a wrapper, and in evaluation mode. Each rank has its own list of batches `(x, y)`, and the lists don't have equally many rows. Return the accuracy over the rows of *all* ranks, as a float, on every rank. The check runs your function on two workers.
# `torch.distributed.all_reduce(tensor)` replaces the values of a tensor by their sum over all ranks. It changes the tensor in place and returns nothing. Pass a whole tensor: of a column such as `totals[:, 0]`, Gloo adds up other elements and raises no error (torch 2.13, [issue 192920](https://github.com/pytorch/pytorch/issues/192920)).


# %%
def accuracy_on_all_ranks(model, batches): ...  # your answer


# %% tags=["solution"]
@torch.no_grad()
def accuracy_on_all_ranks(model, batches):
    counts = torch.zeros(2)
    for x, y in batches:
        counts += torch.tensor([(model(x).argmax(dim=1) == y).sum(), len(y)])
    torch.distributed.all_reduce(counts)
    return (counts[0] / counts[1]).item()


# %%
check("03-5", accuracy_on_all_ranks)

# %% [markdown]
# ## When two workers win
# Two workers are worth it when each of them brings something: a GPU, a core, or time that it spends waiting while the other one waits, too. And a step has to take much longer than the exchange. Here each row takes a millisecond to arrive, as if it came from another city. (If that were your only problem, loader processes would help as well: lesson 03c compares.)

# %%
import time


class FromAfar(TensorDataset):
    def __getitem__(self, row):
        time.sleep(0.001)
        return super().__getitem__(row)


afar = FromAfar(*images[:512])

# %% [markdown] tags=["prediction"]
# **Predict.** What speed-up do two workers bring now? Count the epochs only, without the start.

# %%
predict("03-c", ...)

# %%
for workers in (1, 2):
    panel = TrainPanel(f"03-afar-{workers}")
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={"images": afar, "epochs": 3, "batch_size": 128 // workers, "lr": 0.05},
        scaling_config=ScalingConfig(num_workers=workers),
    )
    with panel.watch(trainer):
        trainer.fit()

one, two = (min(runs.latest(f"03-afar-{workers}").seconds_per_epoch) for workers in (1, 2))
print(f"an epoch takes {one:.2f} s with one worker, {two:.2f} s with two")
reveal("03-c", one / two)

# %% tags=["claim", "timed"]
assert one / two > 1.3

# %% [markdown]
# An epoch is nearly twice as fast, because the workers wait at the same time, each for its own half of the rows. With GPUs it's similar: the two GPUs compute at the same time, each on its own half. For the whole run, the panels show how little that matters here: the start takes about as long as all three epochs together. Lesson 09 predicts the speed-up from two short runs.

# %% [markdown]
# Look at the strips below the curves, one for each rank. They divide the time between the first step and the last into six parts: data, forward, backward, exchange, optimizer and rest. Nearly all of it is *data*: waiting for the next batch. A second worker doesn't make a row arrive earlier. It waits for other rows at the same time. [Why is this run slow?](../docs/verdict.md) explains the six parts, and the sentence that a longer run gets.

# %% [markdown]
# ### Exercise 03-1 ★★ · Make this loop distributed
# This loop trains on one process and saves its weights. Change it so that it runs with any number of workers. `global_batch` is the number of rows in an update, on all workers together. The check runs your loop in this process and on two workers, and compares
# the weights in the file. The file must load into a plain `cnn()`, without a wrapper, and the rows must keep their order. `global_batch` can be divided by the number of workers, and all ranks have to call `report`.
#
# `cnn` is a small network that comes with the lab. `ray.train.get_context()` has `get_world_rank()` and `get_world_size()`, the number of workers.

# %%
import tempfile

from course.models.torch import cnn


def train_blanks(config):
    model = cnn(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(config["rows"], batch_size=config["global_batch"])
    for x, y in loader:
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), f"{folder}/weights.pt")
        checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({}, checkpoint=checkpoint)  # change this, too: only rank 0 attaches one

    ...  # your answer: change what is above, and remove this line


# %% tags=["solution"]
def train_blanks(config):
    model = prepare_model(cnn(seed=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    size = config["global_batch"] // ray.train.get_context().get_world_size()
    loader = prepare_data_loader(DataLoader(config["rows"], batch_size=size))
    for x, y in loader:
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            torch.save(getattr(model, "module", model).state_dict(), f"{folder}/weights.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({}, checkpoint=checkpoint)


# %%
check("03-1", train_blanks)

# %% [markdown] tags=["instructor"]
# **"model" or "model.module"?** With more than one worker, `prepare_model` returns a wrapper; with one worker it doesn't. `getattr(model, "module", model)` works for both.

# %% [markdown]
# ## Key points
# - Four lines change: `prepare_model`, `prepare_data_loader`, `report`, and `TorchTrainer(...).fit()` around it.
# - DDP averages gradients in `backward()`, so two workers with 64 rows train the model that one process trains with 128.
# - `use_gpu=True` reserves a GPU for each worker. Only what is reserved is yours, whatever the process sees.
# - If the global batch grows, so should the learning rate, after a warm-up.
# - Two workers are worth it if each has a core or GPU, and steps and run are long.
#
# **A question to take along.** You go from two to four workers. What happens to the global batch and to the steps, and what should you change?
#
# <details><summary>Compare your answer</summary>The global batch doubles, and an epoch has half as many steps. Either halve the batch of each worker, or raise the learning rate, after a warm-up.</details>
#
# Tutorials before Ray 2 use a class, `TrainingOperator` of `ray.util.sgd`. Its methods became lines of your loop:
#
# | older tutorials | today |
# |---|---|
# | `setup(config)` | the first lines of the training function |
# | `register(models=model, optimizers=optimizer)` | `prepare_model(model)`; the optimizer as in one process |
# | `register(schedulers=…)`, which stepped by itself | your loop calls `scheduler.step()` |
# | `register_data(train_loader=loader)` | `prepare_data_loader(loader)` |
# | `train_epoch(iterator, info)`, `train_batch(batch, info)` | your own two `for` loops |
# | `validate(iterator, info)` | a loop with an all-reduce (03-5), or a validator (lesson 06) |
# | `ddp_args={"find_unused_parameters": True}` | `prepare_model(model, parallel_strategy_kwargs={…})` |
# | `use_fp16=True`, `apex_args` | `torch.autocast` |
# | `TorchTrainer(training_operator_cls=…, num_workers=2, use_gpu=True)` | `TorchTrainer(train_loop, scaling_config=ScalingConfig(…))` |
# | `trainer.train()` and `trainer.validate()`, an epoch each | one `fit()`; the loop has the epochs and reports each |
# | `trainer.get_model()`, `trainer.save(file)` | `return_value`, or a checkpoint (lesson 03b) |
#
# Five recipes go on from here, each with one idea: `notebooks/recipes/where_a_step_goes.ipynb` draws how computing hides the exchange, `notebooks/recipes/compute_in_bfloat16.ipynb` uses 16 bits, `notebooks/recipes/feed_it_faster.ipynb` reads data that fits into memory, `notebooks/recipes/two_models_in_one_loop.ipynb` trains a GAN, and `notebooks/recipes/unused_weights.ipynb` a model with several heads.

# %% [markdown] tags=["plain"]
# ## Without the lab
# The same kind of training as a script in plain Ray and PyTorch, with checkpoints, which lesson 03b explains. It's the file `notebooks/plain/03_torch_trainer.py`; to run it elsewhere, copy `datasets/digits.parquet`, too, and change the line that begins with `DIGITS`. Is your data larger than memory? Lesson 03c replaces the loader by a Ray dataset.

# %% [markdown] tags=["links"]
# ## Official pages
# PyTorch's own [DDP tutorial](https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html) shows what `prepare_model` does for you. From this lesson's code:

# %% [markdown]
# ## Stop

# %%
lab.stop()
