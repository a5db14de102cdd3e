# %% [markdown]
# # 00 · Welcome
#
# By the end of this lesson you can
# - work with the lessons' predictions, exercises and hints (exercise 00-1);
# - train a small model in one process and look at where it is wrong (00-2, 00-4);
# - read the panel of a run, and tell a slow model from slow data (00-3).
#
# **Time** … · **Needs** nothing
#
# In this lab you learn distributed training by doing it: on clusters that you start yourself, with Ray and Spark, PyTorch and TensorFlow.
# Two cores are enough, and you can be offline.
#
# Most lessons train a small model on small images, so that each run takes seconds. Today one process trains it. Its time and its accuracy are a *baseline*. The later lessons
# measure a one-process baseline of their own first, as you do here, because a distributed run has to show what it gains over it, and at what cost.

# %% [markdown]
# ## How these pages work
# Run a cell with Shift+Enter. Where its output needs words, the text below says what to look for.
#
# - **Predict.** A question about the next cells. Put your guess where the `...` is, before you go on; a later cell says how close you were: *right* is within 10 %, *close*
#   within a factor of two. A count has to be exact.
# - **Exercise.** A cell with `...` where your answer goes, and below it a cell that checks it. Each has three hints, from a nudge to nearly the answer.
#
# You may leave any of them out: later cells never need your answers.

# %%
from labkit.exercises import check, hint, predict, predictions, progress_table, reveal

# %% [markdown]
# ## Can this machine run the lab?
# The doctor looks at versions, memory, disk, and at processes that earlier sessions left running.

# %%
from labkit.system import doctor

doctor()

# %% [markdown]
# The verdict is above the table. Each line is marked `[OK]`, or `[FIX]` with the command that fixes it. In a terminal,
# `python -m labkit doctor` says the same.
#
# The lab takes its settings from environment variables, which you set before you start JupyterLab. Three of them:

# %%
from labkit.settings import Settings

settings = Settings.from_env()
print("small:", settings.small, "· data set:", settings.dataset, "· workers:", settings.num_workers)

# %% [markdown]
# `LABKIT_SMALL=1` makes every lesson short, for tests and for slow machines. Wherever a size depends on it, the cell says so in plain
# sight, as in `epochs = 5 if settings.small else 10`, and you may write your own number there. `LABKIT_DATASET` chooses the images, such as
# `digits` or `fashion_mnist`, and `LABKIT_WORKERS` the number of training processes from lesson 03 on.

# %% [markdown]
# ## Look at the data
# `train` is what the model learns from. `test` is held out: images that it never trains on.

# %%
from labkit import datasets

train = datasets.load(split="train")
test = datasets.load(split="test")
train

# %% [markdown]
# Unless you chose another data set, this is real handwriting: digits that people wrote into forms, cut out and scaled to 28×28 pixels.

# %%
train.images.shape, train.images.dtype, train.labels[:10]

# %% [markdown]
# A pixel is a number from 0 (black) to 255 (white). A label is the number of the image's class, from 0 to 9.

# %% [markdown] tags=["prediction"]
# **Predict.** A program answers "3" for every image, without looking. What share of its answers is right?

# %%
predict("00-a", ...)  # a number from 0 to 1

# %% [markdown] tags=["instructor"]
# **A prediction with a number that feels silly.** Say: "It isn't graded. You learn from the distance between your guess and the measurement." *Right*
# means within 10 %, *close* within a factor of two; a count has to be exact.

# %%
reveal("00-a", (test.labels == 3).mean())

# %% [markdown]
# An accuracy of 0.1 is what you get for knowing nothing, because the ten classes are about equally frequent:

# %%
import matplotlib.pyplot as plt
import numpy as np
from labkit.display import figure_style

plt.rcParams.update(figure_style())
figure, axes = plt.subplots(figsize=(6.5, 2.2), layout="constrained")
axes.bar(train.classes, np.bincount(train.labels))
axes.set(title="training images of each class", xlabel="class")
plt.show()

# %% [markdown]
# ## A model
# The model is a small neural network. The 784 pixels go in, 10 numbers come out, one for each class. The largest of them is its answer.

# %%
import torch

torch.set_num_threads(1)


def build_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(28 * 28, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )


sum(weights.numel() for weights in build_model().parameters())

# %% [markdown]
# About 109,000 weights, and training has to find a good value for each of them. They start as random numbers; the seed makes them the same
# random numbers whenever you call `build_model()`. PyTorch gets one thread. With a model this small, a second one doesn't
# help (measured on two cores), and in later lessons, too, each training process has one.
#
# The model takes floats from 0 to 1, not bytes:


# %%
def to_tensors(data):
    return torch.tensor(data.images, dtype=torch.float32) / 255, torch.tensor(data.labels)


x_train, y_train = to_tensors(train)
x_test, y_test = to_tensors(test)

# %% [markdown]
# How good is a model? Let it answer, and count how often it is right.


# %%
@torch.no_grad()
def accuracy(model, x, y):
    answers = model(x).argmax(dim=1)
    return (answers == y).float().mean().item()


# %% [markdown] tags=["prediction"]
# **Predict.** What is the accuracy of a model that was never trained?

# %%
predict("00-b", ...)  # a number from 0 to 1

# %%
untrained = accuracy(build_model(), x_test, y_test)
reveal("00-b", untrained)

# %% tags=["claim"]
assert untrained < 0.25

# %% [markdown]
# It's near 0.1, as good as the fixed answer. It is measured on the test images, and so is every accuracy in this lab:
# on images that it trained on, a model may have learned the answers by heart.

# %% [markdown]
# ## Batches
# Training goes in small steps: take a few images, see how wrong the model is on them, correct its weights a little. The few
# images of a step are a *batch*. One pass over all training images is an *epoch*.


# %%
def batches(x, y, size, seed):
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    for rows in order.split(size):
        yield x[rows], y[rows]


# %%
x, y = next(batches(x_train, y_train, size=64, seed=0))
x.shape, y[:8]

# %% [markdown]
# 64 images and their labels, in random order. Another seed gives another order. Below, each epoch gets a seed of its own.

# %% [markdown]
# ### Exercise 00-1 · The steps of an epoch
# With batches of 64: how many steps are there in an epoch, and how many images are left for its last batch?

# %%
steps = ...  # your answer
last = ...  # your answer

# %% tags=["solution"]
import math

steps = math.ceil(len(train) / 64)
last = len(train) - 64 * (steps - 1)

# %%
check("00-1", steps, last, len(train))

# %% [markdown]
# *Not attempted* is no error. If you want help, this gives the first hint; run it again for the second and the third:

# %%
hint("00-1")

# %% [markdown] tags=["instructor"]
# **"Not attempted" looks like an error.** It only says that the `...` is still there. `hint("00-1")` gives the first of three hints, and the same
# call again gives the next one.

# %% [markdown]
# ## The training loop
# This is all of it. Nothing in it is hidden, and nothing in it knows of clusters. In lesson 03 you will change a few of its
# lines, and it will run on many machines.

# %%
from labkit.panel import Panel

loss_function = torch.nn.CrossEntropyLoss()


def fit(name, model, optimizer, epochs, read=batches):
    with Panel(name, dataset=train.name, rows=len(train)) as panel:
        for epoch in range(epochs):
            total_loss = 0.0
            for x, y in panel.steps(read(x_train, y_train, 64, seed=epoch), epoch=epoch, epochs=epochs):
                optimizer.zero_grad()  # forget the gradient of the step before
                loss = loss_function(model(x), y)  # forward: how wrong is the model on this batch?
                loss.backward()  # backward: which way does each weight make it worse?
                optimizer.step()  # move every weight a little the other way
                panel.log(loss=loss)
                total_loss += loss.item() * len(y)
            panel.report({"loss": total_loss / len(train), "accuracy": accuracy(model, x_test, y_test)})


# %% [markdown]
# The four lines with a comment are the training. The *loss* is a number for how wrong the model is. `SGD`, the optimizer below, is the rule by which the weights move; `lr`, the learning
# rate, is how far.
#
# The panel only looks on: `panel.steps` passes the batches through and counts them, `panel.log` takes numbers
# of this step, `panel.report` those of a whole epoch.

# %% [markdown] tags=["prediction"]
# **Predict.** What accuracy will it reach on the test images?

# %%
predict("00-c", ...)  # a number from 0 to 1

# %%
epochs = 5 if settings.small else 10
model = build_model()
fit("00-baseline", model, torch.optim.SGD(model.parameters(), lr=0.1), epochs)
reveal("00-c", accuracy(model, x_test, y_test))

# %% tags=["claim"]
assert accuracy(model, x_test, y_test) > 3 * untrained

# %% [markdown]
# That is the baseline. The panel turns into a short report: how the run ended, how long each phase took, and the final loss and accuracy.
# The x axis of the curves is the epoch. The solid curve is the mean loss of each epoch. It should fall.
# The dashed curve is the accuracy on the test images, and it should rise. Each has its own scale, the loss on the left and the accuracy on the right.
# The pale line shows the loss of single batches.

# %% [markdown] tags=["instructor"]
# **Two loss values in the panel.** While an epoch runs, the tile shows the loss of the latest batch. The curve shows the mean of each epoch, and the
# pale line shows single batches.

# %% [markdown] tags=["instructor"]
# **The time of their run differs from a neighbour's.** That's expected. No check looks at seconds. With equal settings, the loss should look alike.

# %% [markdown]
# ## Where is it wrong?

# %%
answers = model(x_test).argmax(dim=1)
wrong = (answers != y_test).nonzero().flatten().tolist()
test.show(wrong[:10], [f"{test.classes[y_test[k]]}, not {test.classes[answers[k]]}" for k in wrong[:10]])

# %% [markdown]
# The first test images that it gets wrong. The caption says what the image is, and what the model took it for.

# %% [markdown]
# ### Exercise 00-2 · Which class is the hardest?
# For each of the ten classes: what share of *its* test images does the model get right? Make a list or a tensor of ten numbers. The lowest is the
# hardest class.

# %%
shares = ...  # your answer

# %% tags=["solution"]
shares = [accuracy(model, x_test[y_test == label], y_test[y_test == label]) for label in range(10)]

# %%
check("00-2", shares, answers, y_test)

# %% [markdown]
# ## A run that you can watch
# Now slow it down the way real trainings are slowed down: the data comes late, from a disk or over a network. Here a pause before each batch stands for that.

# %%
import time


def slowly(x, y, size, seed):
    for batch in batches(x, y, size, seed):
        time.sleep(0.04)
        yield batch


# %% [markdown] tags=["prediction"]
# **Predict.** The model and its batches stay the same. How will its accuracy compare with the baseline's?

# %%
predict("00-d", ..., choices=["lower", "the same", "higher"])

# %%
slow_model = build_model()
fit("00-slow-data", slow_model, torch.optim.SGD(slow_model.parameters(), lr=0.1), epochs, read=slowly)

# %%
same = torch.equal(slow_model[1].weight, model[1].weight)
print("the same weights:", same)
before, after = (accuracy(each, x_test, y_test) for each in (model, slow_model))
reveal("00-d", "the same" if before == after else "lower" if after < before else "higher")

# %% tags=["claim"]
assert same

# %% [markdown]
# Both models learned the same, because they saw the same batches in the same order. Only the time differs, and *waiting for data* shows
# where it went.
#
# ### Everything in the panel
# | in the panel | what it says |
# |---|---|
# | title | the run's name, its engine, its data set |
# | ● and ✓ phases | what is being done, and for how long: *preparing*, *loading data*, *training*. With several workers also *starting workers* |
# | epoch, step, time left | how far it is. The time left follows from the pace so far |
# | bar | the share of all steps. It is striped while the number of steps is unknown: the batches come from a generator here, so the panel learns their number in the first epoch |
# | loss, accuracy | the latest values that the loop reported; the names above the curves show the same ones. While an epoch runs, the loss is that of its latest batch |
# | rows/s | images that went through the model per second, all workers together |
# | waiting for data | the share of an epoch in which the model had nothing to do |
# | curves | loss and accuracy of each epoch, each with its own scale; the pale line is the loss of single batches |
# | rank, node, pid, step, rows/s, waiting, memory | one line for each worker: its number, its machine, its process, how far it is, how fast, the share of its time that it waited for data, and its memory; *slow* marks one that holds up the others |
# | output, files | buttons that show what workers print, and where logs are. Your own `print` in one process appears in the cell, as always |
# | run record | in the report, under *files*: the same numbers as a small JSON file |
#
# **Stop** ends the run. Try it: run the cell with `fit("00-slow-data", …)` once more and press Stop, before its few seconds are over. If it doesn't react while a cell runs, press ■ in the notebook's toolbar.
# The cell ends with one line instead of a traceback, the report says *stopped by you*, and you go on with the next cell. Then run it again to its end: later cells use its record.

# %% [markdown] tags=["instructor"]
# **Stop doesn't react during a cell.** Say: "Press ■ in the toolbar." Stop during a cell needs ipykernel 7 and JupyterLab 4.4 or newer.

# %% [markdown]
# ## Past runs
# Every run leaves its record, so you can compare runs of today with those of last week.

# %%
from labkit import runs

runs.table(last=5)

# %% [markdown]
# The newest run comes first. `epoch s` is the median epoch in seconds; `start s` is the time before the first step. One process has nearly
# none of that. Remember it when you see a cluster start. `id` is unique to a run, and `runs.latest("00-baseline")` returns the record of the newest run
# of that name that finished.

# %%
runs.plot(last=3)

# %% [markdown]
# At the top is what they learned: the curves of finished runs are the same. Below is the time it took. During *data* a run waits, during *training* it computes.

# %% [markdown]
# ### Exercise 00-3 · What would fast data bring?
# A record also answers *what if* questions. Suppose the slow run had never waited for its data, with everything else unchanged. How many rows per
# second would it have reached? Compute it from the two numbers below.

# %%
record = runs.latest("00-slow-data")
record.rows_per_second, record.waiting_share

# %% tags=["claim"]
assert record.waiting_share > 0.5
assert record.rows_per_second < 0.7 * runs.latest("00-baseline").rows_per_second

# %%
without_waiting = ...  # your answer

# %% tags=["solution"]
without_waiting = record.rows_per_second / (1 - record.waiting_share)

# %%
check("00-3", without_waiting, record)

# %% [markdown]
# This estimates what faster loading can bring, if the steps themselves take as long as before. Compare it with the baseline's rows/s in the table. It may be
# a little more, because the baseline waits for its batches, too. If it is less, look at *training* in the plot: after a pause the model's own steps may take longer.

# %% [markdown]
# ### Exercise 00-4 · Do better
# Train a model, `best`, with `fit("00-better", best, …)`, to an accuracy of at least 0.95 on the test images. Change what you like: `lr`, `momentum`
# (an option of `SGD`: keep part of the last move), the number of epochs, the model.
#
# (For `fashion_mnist` 0.85 will do: clothes are harder than digits.)

# %%
best = ...  # your answer: a trained model

# %% tags=["solution"]
best = build_model()
fit("00-better", best, torch.optim.SGD(best.parameters(), lr=0.1, momentum=0.9), epochs=20)

# %%
check("00-4", best, x_test, test)

# %% [markdown]
# One caution: if you try many settings and keep the one with the best test accuracy, you have fitted the test set by hand. Where it matters,
# a third set of images is kept back for the last measurement.

# %% [markdown]
# ## Where things are kept
# All that the lab keeps is in one folder.

# %%
print(settings.home)
sorted(path.name for path in settings.home.iterdir() if not path.name.startswith("."))

# %% [markdown]
# - `runs` has the records and, later, checkpoints. `exercises.json` is the list of what you solved. Logs and sockets of clusters come with lesson 01.
# - **Fresh notebooks:** run `python tools/build.py` in a terminal. Those that you changed are kept next to the new ones, with `mine` in their names.
# - **All exercises open again:** delete `exercises.json`.
# - **All as on the first day:** `python -m labkit stop`, then delete the folder printed above.
#
# The solved notebooks are in `notebooks/solutions`, or with your teacher. Compare them with yours after your own try.
#
# Your predictions, and the exercises that you solved so far:

# %%
predictions("00")

# %%
progress_table()

# %% [markdown]
# ## Key points
# - An accuracy means something only on images that the model didn't train on, and only compared with guessing: here 0.1.
# - A training step is forward, loss, backward, update. All later lessons distribute exactly this loop.
# - *Waiting for data* is the share of an epoch in which the model had nothing to do. Rows/s divided by (1 − that share) estimates the speed without waiting.
# - One process is the baseline. A distributed run has to beat it, start-up included. For a job this small that is hard; lesson 09 says when it pays.
#
# | older tutorials | today |
# |---|---|
# | `torch.autograd.Variable(x)` | tensors record gradients themselves |
# | `torch.load(path)` of a file from anywhere | `weights_only=True`, the default since PyTorch 2.6, is designed not to run code from the file |
#
# There is nothing to clean up, because the notebook's kernel did all the work. From lesson 01 on there are other processes, and each lesson ends by stopping them.

# %% [markdown] tags=["plain"]
# ## Without the lab
# The same kind of job as one script, `notebooks/plain/00_welcome.py`, with momentum and without the second layer. It takes two seconds on two cores and prints an accuracy of about 0.96. Only the images come from the lab's folder.

# %% [markdown] tags=["links"]
# ## Official pages
# The [PyTorch tutorial](https://docs.pytorch.org/tutorials/beginner/basics/intro.html) explains the loop in more depth. From this lesson's code:
