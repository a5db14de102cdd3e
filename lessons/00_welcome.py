# %% [markdown]
# # 00 · Start here
#
# By the end of this lesson you can
# - check whether your machine is ready;
# - run a PyTorch loop on two workers, and count steps (exercise 00-1);
# - read the panel of a run, and tell a slow model from slow data (00-3);
# - stop a run, and find it again later.
#
# **Time** about 35 minutes · **Needs** a first training loop in PyTorch. If `optimizer.step()` is new to you, work through PyTorch's
# [Learn the basics](https://docs.pytorch.org/tutorials/beginner/basics/intro.html) first; it takes an evening.

# %% [markdown]
# Your model trains for a week, and you'd like to have it tomorrow. Then you need several machines, and most of your code can stay
# the way it is. Here, two processes on your own computer play the part of two machines.
#
# ## Is this machine ready?
# The **doctor** checks versions, memory, disk space and the object store. Each line is marked `[OK]`, or `[FIX]` with the command that fixes it.

# %%
from labkit.local.doctor import doctor

doctor()

# %% [markdown]
# ## The shortest distributed training there is
# First, start a **cluster**: one or more machines on which Ray runs work for you. This one has a single machine, yours.

# %%
from labkit.local import cluster

lab = cluster.start()
lab

# %% [markdown]
# Next, some data: 1,437 small images of handwritten digits, as a PyTorch data set.

# %%
import torch
from course import datasets
from torch.utils.data import DataLoader, TensorDataset

digits = datasets.load(split="train")
images = TensorDataset(torch.tensor(digits.images) / 255, torch.tensor(digits.labels))

# %%
import matplotlib.pyplot as plt

_, places = plt.subplots(1, 8, figsize=(8, 1.3))
for place, image, label in zip(places, digits.images, digits.labels, strict=False):
    place.imshow(image, cmap="gray")
    place.set_title(label)
    place.axis("off")

# %% [markdown]
# And the loop. It's the one you know, with three calls of Ray in it:

# %%
import ray.train
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model


def train_loop(config):
    torch.manual_seed(0)  # each run starts with the same weights
    model = prepare_model(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = prepare_data_loader(DataLoader(config["images"], batch_size=32))
    for epoch in range(config["epochs"]):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        ray.train.report({"epoch": epoch, "loss": loss.item()})


# %% [markdown]
# - `prepare_model` copies the weights of worker 0 to the others, and makes all of them average their gradients in each `backward()`. So the models start equal, get the same updates, and stay equal.
# - `prepare_data_loader` gives each worker its own part of the rows, a **shard**.
# - `ray.train.report` sends metrics to Ray.
#
# `TorchTrainer` runs this function in two **workers**, which are separate Python processes. The panel follows the run from outside: your loop doesn't know about it.
#
# Before you run it, guess. You remember a surprise better than a fact. A prediction is for you alone, and you can skip it.

# %% [markdown] tags=["prediction"]
# **Predict.** Each worker uses 32 rows per step. How many rows does one update of the model use?

# %%
from course.exercises import check, hint, predict, predictions, progress_table, reveal

predict("00-a", ...)  # replace the ... by a number

# %%
from labkit.train import TrainPanel
from ray.train import ScalingConfig

panel = TrainPanel("00-first")
trainer = TorchTrainer(
    train_loop,
    train_loop_config={"images": images, "epochs": 20},
    scaling_config=ScalingConfig(num_workers=2),
)
with panel.watch(trainer):
    trainer.fit()

reveal("00-a", 2 * 32)

# %% [markdown]
# That was a distributed training run. Each full step used 32 rows from each worker. Together, these 64 rows are the **global batch**.

# %% [markdown] tags=["instructor"]
# **A prediction with a number that feels silly.** Say: "It isn't graded. You learn from the distance between your guess and the measurement."

# %% [markdown]
# ## What the panel shows
# | in the panel | what it means |
# |---|---|
# | phases | what the run is doing, and for how long: starting workers, training, and so on |
# | between epochs | the time outside of the steps; here it goes into `report` |
# | epoch, loss, rows/s | how far the run is, the latest loss, and how many images all workers process per second |
# | waiting for data | the share of the time in which the model had nothing to do, because the next batch wasn't there yet |
#
# While it runs, the last rows list the workers: their number, called the **rank**, their process and their speed. When the run is over, the panel turns into a summary, which stays in the notebook.

# %% [markdown]
# ### Exercise 00-1 ★ · The steps of an epoch
# An **epoch** is one pass over all rows. Suppose that a single process trains on all 1,437 rows in batches of 64. How many steps does an epoch have, and how many rows does its last step use?

# %%
steps = ...  # your answer
last = ...  # your answer

# %% tags=["solution"]
import math

steps = math.ceil(len(digits) / 64)
last = len(digits) - 64 * (steps - 1)

# %%
check("00-1", steps, last, len(digits))

# %% [markdown]
# *Not attempted* isn't an error; it only means that the `...` is still there. Each exercise has three hints. This call shows the first one, and the same call again shows the next:

# %%
hint("00-1")

# %% [markdown] tags=["instructor"]
# **"Not attempted" looks like an error.** It only says that the `...` is still there. `hint("00-1")` gives the first of three hints, and the same
# call again gives the next one.

# %% [markdown]
# ## Slow data
# Real training is often held up by its data: a disk is slow, or a network is. Here a short sleep for each image plays that part.

# %%
import time


class SlowImages(TensorDataset):
    def __getitem__(self, row):
        time.sleep(0.001)
        return super().__getitem__(row)


# %% [markdown]
# The next run would take minutes. Look at *waiting for data*, and then press **Stop** in the panel. If the button doesn't react, press ■ in the notebook's toolbar.

# %% tags=["raises-exception"]
from labkit.settings import Settings

epochs = 3 if Settings.from_env().small else 500  # 3 in tests, where no one presses Stop
panel = TrainPanel("00-slow-data")
trainer = TorchTrainer(
    train_loop,
    train_loop_config={"images": SlowImages(*images.tensors), "epochs": epochs},
    scaling_config=ScalingConfig(num_workers=2),
)
with panel.watch(trainer):
    trainer.fit()

# %% [markdown]
# The cell ends with one line instead of a traceback, the summary says *stopped by you*, and you can go on with the next cell.

# %% [markdown] tags=["instructor"]
# **Stop doesn't react during a cell.** Say: "Press ■ in the toolbar." Stop during a cell needs ipykernel 7 and JupyterLab 4.4 or newer.

# %% [markdown]
# ## Find a run again
# Each run leaves a record, also one that was stopped.

# %%
from labkit import runs

table = runs.table(last=5)
table[["run", "started", "state", "epochs", "epoch s", "rows/s", "waiting"]]

# %% [markdown]
# ### Exercise 00-3 ★★ · What would fast data bring?
# A record answers *what if* questions. Suppose the slow run had never waited for its data, and everything else had stayed the same. How many rows per second would it have reached? Compute it from the
# two numbers below.

# %%
record = runs.latest("00-slow-data", state=None)
record.rows_per_second, record.waiting_share

# %% tags=["claim", "timed"]
assert record.waiting_share > 0.5
assert record.rows_per_second < 0.7 * runs.latest("00-first").rows_per_second

# %%
without_waiting = ...  # your answer

# %% tags=["solution"]
without_waiting = record.rows_per_second / (1 - record.waiting_share)

# %%
check("00-3", without_waiting, record)

# %% [markdown]
# Your first run had fast data. It waited a little, too, so make the same estimate for it:

# %%
first = runs.latest("00-first")
first.rows_per_second / (1 - first.waiting_share)

# %% [markdown]
# The slow run's estimate is usually a little lower than this one. While one worker waits for data, the other waits for that worker in `backward()`, and the share doesn't count this.
#
# Do this at work before you buy a faster GPU: if a run mostly waits for its data, the new GPU will wait, too.

# %% [markdown]
# ## The map
# | your question | lesson |
# |---|---|
# | What is a cluster made of, and what happens if a part of it dies? | 01 |
# | My data doesn't fit into memory. How do I read it? | 02 |
# | How do I turn *my* loop into a distributed one? | 03 |
# | How do I save, resume, and find out why a run hangs? | 03b |
# | How do I feed it to the workers, in a different order in each epoch? | 03c |
# | Which settings are best, without paying for all of them? | 05 |
# | How does a sweep survive a night of failures? | 05b |
# | Validation takes longer than training. Can it run next to it? | 06 |
# | One validation takes hours. Can several workers share it? | 06b |
# | I use TensorFlow, or Spark | 04, 07 |
# | Machines fail. What does that cost me? | 08 |
# | Are more machines worth it? | 09 |
# | My own data and model | 10 |
# | The model doesn't fit on one GPU | 11 |
# | What happens inside `backward()` and inside a sharded model? | 12, 12b |
#
# Each lesson starts its own cluster, and none needs the answers of an earlier one. What you have solved and predicted so far:

# %%
predictions("00")

# %%
progress_table()

# %% [markdown]
# ## Key points
# - A distributed loop is your own loop with `prepare_model`, `prepare_data_loader` and `report`, run by a `TorchTrainer`.
# - The global batch is the batch of one worker times the number of workers.
# - *Waiting for data* is the share of the time in which the model had nothing to do. Rows/s divided by (1 − that share) estimates the speed with fast data.
#
# **A question to take along.** Your training function sets a global variable. Do you see its new value in the notebook afterwards?
#
# <details><summary>Compare your answer</summary>No. The function ran in worker processes, on a copy of your variables. What you want back has to be reported, or saved as a checkpoint.</details>
#
# | older tutorials | today |
# |---|---|
# | `ray.util.sgd.TorchTrainer` with an operator class | `ray.train.torch.TorchTrainer` with a plain function |

# %% [markdown] tags=["plain"]
# ## Without the lab
# This is `notebooks/plain/00_welcome.py`: the lesson's model and loop in one process, without Ray and without this lab. At the end it measures the accuracy on test images.

# %% [markdown] tags=["links"]
# ## Official pages

# %% [markdown]
# ## Stop
# This ends all processes that the lesson has started.

# %%
lab.stop()
