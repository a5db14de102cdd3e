# %% [markdown]
# # 05 · Sweeps with Tune
#
# By the end of this lesson you can
# - say how many trials a search space has before you start it (exercise 05-1);
# - turn a training loop into a function that Tune can watch, stop and save;
# - stop bad trials early, and say what the settings of ASHA change (05-3);
# - write a sweep of your own (05-6);
# - recognize a sweep that would fail or wait forever, and fix it (05-4).
#
# **Time** about 90 minutes · **Needs** 00, 01

# %% [markdown]
# Suppose you're looking for a good learning rate. One run takes ten minutes on a GPU, and you want to try 200 configurations. That takes 33 hours. With eight GPUs it's four hours, and if you stop
# the bad configurations early, it's perhaps one. Such a search is called a **sweep**, each configuration that it tries is a **trial**, and Ray's library for it is Tune.

# %%
from course import datasets
from labkit.local import cluster
from labkit.settings import Settings

lab = cluster.start()
folder = str(Settings.from_env().home / "runs" / "05-tune")

# %% [markdown]
# ## A sweep in one call
# Real training is too slow for learning to count trials, so here is a replacement that costs nothing: a hill whose top is at a = 3 and b = 20. What Tune runs is called a **trainable**. In its simplest
# form it's a function: it receives a configuration and calls `tune.report` with a dict of metrics.

# %%
from ray import tune


def hill(config):
    height = -((config["a"] - 3) ** 2) - (config["b"] - 20) ** 2 / 1000
    tune.report({"height": height + config["noise"]})


# %% [markdown]
# The **search space** describes which configurations are possible:
#
# - `tune.grid_search` tries every value of its list.
# - `tune.uniform` draws one value at random for each trial, and `tune.choice` draws it from a list.
# - `tune.loguniform` is the right one for a learning rate: it draws from 0.001 to 0.01 as often as from 0.01 to 0.1.
# - Any other value is passed to every trial unchanged. That includes a plain list: without `grid_search`, `[0.1, 1]` is *one* value.
#
# And `num_samples=2`, an option of the sweep below, runs all of this twice.

# %%
space = {
    "a": tune.grid_search([1, 2, 3]),
    "b": tune.grid_search([10, 20]),
    "noise": tune.uniform(0, 0.1),
}

# %% [markdown] tags=["prediction"]
# **Predict.** How many trials will the next cell run?

# %%
from course.exercises import check, hint, predict, reveal

predict("05-a", ...)  # a number

# %%
tuner = tune.Tuner(
    hill,
    param_space=space,
    tune_config=tune.TuneConfig(metric="height", mode="max", num_samples=2),
    run_config=tune.RunConfig(storage_path=folder),
)
results = tuner.fit()
reveal("05-a", len(results))

# %% [markdown] tags=["instructor"]
# **What multiplies the number of trials?** Only grids and `num_samples`. A random value, such as `uniform` or `choice`, multiplies nothing.

# %% [markdown]
# Multiply the lengths of the grids, then multiply by `num_samples`: 3 × 2 × 2. The random value multiplies nothing, because each trial draws its own.
#
# Above is Tune's own report. *Using FIFO* (first in, first out) means that no trial is stopped early, and a line such as *2.0/3 CPUs* says how many CPUs trials had reserved when it was printed. With `verbose=0`, as in the next sweep, there is no
# report. What trials save is below `storage_path`; without that option it's in `~/ray_results`.
#
# `fit()` returns a list of results, one for each trial, with its configuration, its last metrics and, if it saved one, its checkpoint. `get_best_result` compares them by `metric` and `mode`:

# %%
best = results.get_best_result()
print(best.config)
print(best.metrics["height"])

# %% tags=["claim"]
assert len(results) == 3 * 2 * 2 == len({result.config["noise"] for result in results})
assert (best.config["a"], best.config["b"]) == (3, 20)

# %% [markdown]
# ### Exercise 05-1 ★ · Count before you pay
# ```python
# param_space = {
#     "optimizer": tune.grid_search(["sgd", "adam"]),
#     "width": tune.grid_search([32, 64, 128, 256]),
#     "lr": tune.loguniform(1e-4, 1),
#     "seed": 7,
# }
# ```
# How many trials do you get with `num_samples=5`? How many if the width were `tune.choice([32, 64, 128, 256])` instead?

# %%
trials = ...  # your answer
with_choice = ...  # your answer

# %% tags=["solution"]
trials = 2 * 4 * 5
with_choice = 2 * 5

# %%
check("05-1", trials, with_choice)

# %% [markdown]
# ## Grid or random?
# A grid looks thorough: it tries every combination of its values. Does it find more than configurations that are drawn at random? Let both search the hill, where `a` matters far more than `b`.

# %% [markdown] tags=["prediction"]
# **Predict.** Which of them will find the higher point, with nine trials each?

# %%
predict("05-b", ..., choices=["the grid", "random search"])

# %%
tuner = tune.Tuner(
    hill,
    param_space={"a": tune.uniform(0, 8), "b": tune.uniform(0, 40), "noise": 0},
    tune_config=tune.TuneConfig(metric="height", mode="max", num_samples=9),
    run_config=tune.RunConfig(storage_path=folder, verbose=0),
)
at_random = tuner.fit().get_dataframe()

# %%
import pandas

# the middles of three equal parts of each range
on_grid = pandas.DataFrame([{"config/a": a, "config/b": b} for a in (1.3, 4, 6.7) for b in (7, 20, 33)])
on_grid["height"] = -((on_grid["config/a"] - 3) ** 2) - (on_grid["config/b"] - 20) ** 2 / 1000
won = at_random["height"].max() > on_grid["height"].max()
reveal("05-b", "random search" if won else "the grid")

# %% [markdown]
# The grid's heights are computed here. In the drawing, each number is the height that a trial found:

# %%
import matplotlib.pyplot as plt

figure, both = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
for axes, (name, tried) in zip(both, {"grid": on_grid, "random": at_random}.items(), strict=True):
    for a, b, height in tried[["config/a", "config/b", "height"]].to_numpy():
        axes.text(a, b, f"{height:.1f}", ha="center", va="center")
    axes.axvline(3, linestyle=":", color="grey")
    axes.set(title=f"{name}: best {tried['height'].max():.2f}", xlabel="a", xlim=(-0.5, 8.5), ylim=(-2, 42))
_ = both[0].set_ylabel("b")

# %% tags=["claim"]
import numpy as np

assert at_random["config/a"].nunique() == len(at_random) == 9
a, b = np.random.default_rng(0).uniform((0, 0), (8, 40), (10_000, 9, 2)).transpose(2, 0, 1)
assert 0.85 < np.mean((-((a - 3) ** 2) - (b - 20) ** 2 / 1000).max(axis=1) > on_grid["height"].max()) < 0.95

# %% [markdown]
# Was it luck? A little: on this hill, nine random trials beat this grid nine times out of ten. The grid tries three values of `a`, the one that matters, three times each. At random, every trial tries a new one.
#
# In 2012, James Bergstra and Yoshua Bengio compared both on neural networks, and random search found models that were as good or better in a small fraction of the computing time ([Bergstra & Bengio](https://www.jmlr.org/papers/v13/bergstra12a.html)). Usually
# only a few of the hyperparameters matter, and you don't know in advance which.
#
# Use a grid when a report has to list every combination. Otherwise draw at random, over a range that's wide enough: if the winner is at the edge of its range, the range was too narrow.
#
# ## A training loop that Tune can watch
# Now for a real one, with the loop that you have at work. The last six lines of the loop are new: after each epoch they save a folder as a checkpoint, and `tune.report` sends it to Tune together with the accuracy. The report is inside the `with` block, while the folder is
# there, and after every epoch, because Tune can stop a bad trial only if it hears from it on the way.
#
# The checkpoint has the weights and the number of the epoch. That's enough to use the model; to resume a trial, you'd save the optimizer's state, too (05b). The function returns nothing: if it returned the model, the trial would fail, because Tune accepts only a
# number or a dict.

# %%
import tempfile

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def make_model():
    torch.manual_seed(0)
    layers = [torch.nn.Flatten(), torch.nn.Linear(784, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)]
    return torch.nn.Sequential(*layers)


@torch.no_grad()
def accuracy(model, rows):
    device = next(model.parameters()).device
    x, y = (tensor.to(device) for tensor in rows.tensors)
    return (model(x).argmax(dim=1) == y).float().mean().item()


# %%
def train_digits(config, train, valid):
    torch.set_num_threads(1)  # a trial reserves one CPU
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
    for epoch in range(config["epochs"]):
        for x, y in DataLoader(train, batch_size=64, shuffle=True):
            loss = cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as place:
            torch.save({"model": model.state_dict(), "epoch": epoch}, f"{place}/state.pt")
            checkpoint = tune.Checkpoint.from_directory(place)
            tune.report({"accuracy": accuracy(model, valid)}, checkpoint=checkpoint)


# %% [markdown]
# The sweep compares trials by their accuracy, but on which images? If you try many models and keep the one with the best test score, you've fitted your *choice* to the test set, and
# its score is too optimistic. So a fifth of the training images is set aside for **validation**, and the test images wait for the one model that wins.

# %%
digits, held_out = datasets.load(split="train"), datasets.load(split="test")


def as_rows(images, labels):
    return TensorDataset(torch.tensor(images) / 255, torch.tensor(labels))


cut = len(digits) * 4 // 5
train = as_rows(digits.images[:cut], digits.labels[:cut])
valid = as_rows(digits.images[cut:], digits.labels[cut:])
test = as_rows(held_out.images, held_out.labels)

# %% [markdown] tags=["instructor"]
# **Why a third data set?** If you choose among 27 models by their test score, the score of the chosen one is too optimistic. Choose by validation
# images, and test once.

# %% [markdown]
# Before you start any trial, call the function right here. Outside of a sweep `tune.report` only prints a warning, so a mistake shows up in seconds, with a traceback at your own line.

# %%
train_digits({"lr": 0.05, "momentum": 0.9, "epochs": 2}, train, valid)

# %% [markdown]
# ## What a trial gets
# Each trial runs in a process of its own, an **actor**, perhaps on another machine. Two functions prepare your trainable for that:
#
# - `tune.with_parameters` puts the images into Ray's object store once. Every trial on a machine reads them from there, instead of receiving its own copy inside the pickled function.
# - `tune.with_resources` sets what a trial reserves. Tune runs as many trials at a time as fit into the cluster. Fractions work, too: with `{"GPU": 0.25}`, four trials share a GPU.
#
# A GPU that is reserved isn't used yet: the lines with `.to(device)` move the model and each batch there. And reserve what you use, because in Ray 2.60 a trial that reserves no GPU sees all of them.

# %%
gpus = 0.5 if Settings.from_env().use_gpu else 0
trainable = tune.with_resources(
    tune.with_parameters(train_digits, train=train, valid=valid), {"CPU": 1, "GPU": gpus}
)

# %% [markdown] tags=["instructor"]
# **A sweep waits and no trial starts.** Its trials want more CPUs than one node has. `panel.watch(tuner)` counts, and says what fits. If the numbers
# fit, another notebook or an actor holds the CPUs.

# %% [markdown]
# ## Stop the bad ones early
# Most bad configurations look bad after a single epoch. In Tune, a **scheduler** decides which trials stop. `ASHAScheduler` compares them at a few milestones, called **rungs**. Below they come after 1, 3
# and 9 **iterations**. An iteration is one report, here one epoch. A trial continues if it is among the best third of those that have reached the rung so far; otherwise it is stopped.
#
# ![Of 27 trials, 18 stop at the rung after 1 iteration, 6 after 3, 2 after 9, and one reaches 27](images/rungs.svg)
#
# - `grace_period=1`: the first rung comes after one iteration, and no trial is stopped before.
# - `reduction_factor=3`: the best third continues, and each rung comes three times later than the one before.
# - `max_t=27` isn't a rung: trials end there without being compared, although Tune's own report lists it with the rungs.
#
# The picture shows the ideal, in which trials wait for each other at every rung. ASHA doesn't wait: a trial is compared with those that got there *earlier*, and the first one always continues. That's the *asynchronous* in its name. No CPU idles, and the price is
# that early trials have few others to lose against, so more of them continue.
#
# In a grid, the early trials are those with the first values of the lists. They continue because they are early, and not because they are good. So draw at random when you use ASHA.

# %%
from labkit.tune import SweepPanel
from ray.tune.schedulers import ASHAScheduler

tuner = tune.Tuner(
    trainable,
    param_space={"lr": tune.loguniform(1e-3, 1), "momentum": tune.uniform(0, 0.95), "epochs": 27},
    tune_config=tune.TuneConfig(
        metric="accuracy",
        mode="max",
        num_samples=27,
        scheduler=ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3),
        reuse_actors=True,  # a process runs one trial after another: lesson 05b
        max_concurrent_trials=2,  # without it, as many as fit
    ),
    run_config=tune.RunConfig(storage_path=folder),
)

# %% [markdown] tags=["prediction"]
# **Predict.** 27 trials of 27 epochs each would be 729 epochs. How many will this sweep train? (Tune counts a trial's reports for you, as `training_iteration`. Here a report is an epoch.)

# %%
predict("05-c", ...)  # a number

# %%
panel = SweepPanel("05-asha")
with panel.watch(tuner):
    results = tuner.fit()
table = results.get_dataframe()
reveal("05-c", float(table["training_iteration"].sum()))

# %% [markdown] tags=["instructor"]
# **ASHA trains more epochs than the formula says.** The first trials at a rung have few others to lose against, because nothing waits. The table
# after the sweep shows where trials ended.

# %% [markdown]
# In the panel's curves each grey line is a trial, and the dotted lines are the rungs. If every rung let exactly a third through, as in the picture, the sweep would train 18·1 + 6·3 + 2·9 + 1·27 = 81 epochs. It usually trains one to four times as many,
# depending on whether a good trial comes early: later ones then have to beat it. At worst, when each trial is better than all before it, none is stopped. Where did the trials end? Expect fewer than in the picture to end at the middle rungs, and more at 27: while few trials have reached a rung, the first that gets there is the best third by itself, and so goes on to the end.

# %%
print(f"{table['training_iteration'].sum() / 81:.1f} times 81 epochs")
table.groupby("training_iteration").size().rename("trials that ended here")

# %% tags=["claim"]
assert 27 + 26 <= table["training_iteration"].sum() < 729
assert set(table["training_iteration"]) <= {1, 3, 9, 27}
assert table["pid"].nunique() < len(table)

# %% [markdown]
# ### Exercise 05-3 ★ · Other rungs
# You run 64 trials with `ASHAScheduler(max_t=64, grace_period=2, reduction_factor=4)`. At which iterations are trials compared? If each of these rungs lets exactly one trial in four
# through, how many trials are left after the last rung?

# %%
rungs = [...]  # your answer
left = ...  # your answer

# %% tags=["solution"]
rungs = [2, 8, 32]
left = 64 // 4**3

# %%
check("05-3", rungs, left)

# %% [markdown]
# ## Stop at a metric, and other schedulers
# ASHA stops what is worse. `stop` ends what is *good enough*: a trial ends when one of these metrics reaches its value.


# %%
def climb(config):
    for step in range(1, 21):
        tune.report({"height": config["slope"] * step})


tuner = tune.Tuner(
    climb,
    param_space={"slope": tune.grid_search([1, 2, 4])},
    run_config=tune.RunConfig(storage_path=folder, verbose=0, stop={"height": 20, "training_iteration": 15}),
)
ends = sorted(result.metrics["training_iteration"] for result in tuner.fit())
ends

# %% tags=["claim"]
assert ends == [5, 10, 15]

# %% [markdown]
# "Reaches" means *at least*, so for a loss, report its negative. A name that no trial reports is never reached, without an error.
#
# | other schedulers | a trial stops | use it if |
# |---|---|---|
# | HyperBand | as with ASHA, but trials wait at a rung for each other | you don't know a good `grace_period`: it tries several |
# | median stopping | if its best result so far is worse than the median of what the other trials had reached, on average, by the same iteration | you know no `max_t` |
#
# ### Exercise 05-6 ★★★ · A sweep of your own
# `descend` looks for the x at which (x − 3)² is smallest. It reports once, when everything is over, so no scheduler could stop it. Let it report after each of its `config["steps"]` steps, with a checkpoint: a folder in which
# the file `x.txt` contains x, as text. Then write `search(folder)`, which returns a `Tuner`:
#
# - it keeps its results below `folder`;
# - it runs nine trials of nine steps;
# - their learning rate is random: from 0.001 to 0.01 as often as from 0.01 to 0.1 and from 0.1 to 1;
# - ASHA compares them after 1 and 3 steps;
# - the best third continues, by the smallest `loss`.
#
# The check runs your sweep.
#
# <details><summary>A version with blanks</summary>
#
# ```python
# def descend(config):
#     x = 0.0
#     for _ in range(config["steps"]):
#         x -= config["lr"] * 2 * (x - 3)
#         with tempfile.TemporaryDirectory() as place:
#             with open(f"{place}/x.txt", "w") as file:
#                 file.write(...)
#             tune.report(..., checkpoint=...)
#
#
# def search(folder):
#     asha = ASHAScheduler(max_t=..., grace_period=..., reduction_factor=...)
#     return tune.Tuner(
#         descend,
#         param_space={"lr": ..., "steps": 9},
#         tune_config=tune.TuneConfig(metric=..., mode=..., num_samples=..., scheduler=asha),
#         run_config=tune.RunConfig(storage_path=folder),
#     )
# ```
# </details>


# %%
def descend(config):  # your answer: change it
    x = 0.0
    for _ in range(config["steps"]):
        x -= config["lr"] * 2 * (x - 3)
    tune.report({"loss": (x - 3) ** 2})


def search(folder): ...  # your answer


# %% tags=["solution"]
def descend(config):
    x = 0.0
    for _ in range(config["steps"]):
        x -= config["lr"] * 2 * (x - 3)
        with tempfile.TemporaryDirectory() as place:
            with open(f"{place}/x.txt", "w") as file:
                file.write(repr(x))
            tune.report({"loss": (x - 3) ** 2}, checkpoint=tune.Checkpoint.from_directory(place))


def search(folder):
    asha = ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)
    return tune.Tuner(
        descend,
        param_space={"lr": tune.loguniform(0.001, 1), "steps": 9},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=9, scheduler=asha),
        run_config=tune.RunConfig(storage_path=folder),
    )


# %%
check("05-6", descend, search)

# %% [markdown]
# ## The best model, tested once
# `get_best_result()` compares the *last* reports, so it may find less than the best accuracy that the panel has shown. With `scope="all"` it compares each trial's best report, unless the trial has ever reported `nan`, which takes it out of this comparison. The result's `checkpoint` is still the last one;
# `get_best_checkpoint("accuracy", "max")` finds the best one. Load the last one, and let it meet the test images, which have played no part so far:

# %%
best = results.get_best_result()
with best.checkpoint.as_directory() as place:
    state = torch.load(f"{place}/state.pt", weights_only=True, map_location="cpu")
model = make_model()
model.load_state_dict(state["model"])
print(
    f"lr {best.config['lr']:.3f}, momentum {best.config['momentum']:.2f}, validation {best.metrics['accuracy']:.3f}"
)
print(f"accuracy on {len(test)} test images: {accuracy(model, test):.3f}")


# %% tags=["claim"]
def report_all(config):
    for loss in config["losses"]:
        tune.report({"loss": loss})


losses = [[0.1, float("nan"), 5.0], [1.0, 0.9, 0.8]]
diverged = tune.Tuner(
    report_all,
    param_space={"losses": tune.grid_search(losses)},
    tune_config=tune.TuneConfig(metric="loss", mode="min"),
    run_config=tune.RunConfig(storage_path=folder, verbose=0),
).fit()
assert diverged.get_best_result(scope="all").config["losses"] == losses[1]
assert min(diverged.get_dataframe(filter_metric="loss", filter_mode="min")["loss"]) == 0.1

# %% tags=["claim"]
assert accuracy(model, valid) == best.metrics["accuracy"]
assert accuracy(model, test) >= 0.95

# %% [markdown]
# Don't read too much into the winner. In the picture below a dot is a trial: its colour is the accuracy when it ended, and its size is the number of epochs. Most were stopped after one epoch. Several bright dots have nearly
# the same accuracy, and with a different seed, a different one might have won. What you can trust is the *region*: if the learning rate is too small, the model learns too slowly, and if it's too large, training diverges.
#
# If you compare trials by a loss, a diverged one reports `nan`, and because every comparison with `nan` is false, ASHA never stops it, and `scope="all"` doesn't find what it reported before. Report a large number instead, also for a loss that has exploded: `loss if loss < 1e9 else 1e9`. To claim that
# one configuration beats another, run both with several seeds; lesson 10 shows how many.

# %%
sizes = 10 * table["training_iteration"]
axes = table.plot.scatter("config/lr", "config/momentum", c="accuracy", s=sizes, logx=True, edgecolors="grey")

# %% [markdown] tags=["instructor"]
# **Another learning rate won on the neighbour's machine.** That's expected: the 27 configurations are drawn at random, without a seed. Say: "Compare
# the regions of bright dots, and not the winners."

# %% [markdown]
# ## A sweep that cannot work
# One mistake can cost a whole night: a sweep whose trials all fail, while `fit()` returns as if nothing had happened. `hill` reads `config["a"]`, and this space calls it `alpha`. Expect two long tracebacks; only the last line
# of the output matters.

# %%
wrong = {"alpha": tune.grid_search([1, 2]), "b": 20, "noise": 0}
tuner = tune.Tuner(hill, param_space=wrong, run_config=tune.RunConfig(storage_path=folder, verbose=0))
failed = tuner.fit()
print(failed.num_errors, "errors:", str(failed.errors[0]).splitlines()[-1])

# %% [markdown] tags=["instructor"]
# **Two long tracebacks in *A sweep that cannot work*.** They're intended, and the text announces them. Say: "Read the last line only."

# %% tags=["claim"]
assert failed.num_errors == 2 and "KeyError" in str(failed.errors[0])

# %% [markdown]
# Each failed trial is simply a result with an error, so look at `num_errors` before you look at the best result. There's a second trap: if trials reserve more than any node has, Tune waits forever. The panel
# compares the two before the start, so the next cell raises an error and starts nothing:

# %% tags=["raises-exception"]
greedy = tune.Tuner(tune.with_resources(hill, {"CPU": 64}), param_space=space)
SweepPanel("05-slip").watch(greedy)

# %% [markdown]
# Three kinds of mistakes end in three different ways, and a fourth one doesn't end:
#
# | the mistake | what happens |
# |---|---|
# | a trial raises | `fit()` returns, and the result has an error: look at `num_errors` |
# | `metric` names what no trial reports | `fit()` raises after the first report |
# | `stop` names what no trial reports | nothing: the trials run to their end |
# | a trial reserves more than any node has | `fit()` waits forever; the panel refuses to start |
#
# ### Exercise 05-4 ★★ · Fix this sweep
# Five things are wrong in the cell below. (A single report at the end isn't one of them, since there is no scheduler.) They make trials fail, make `fit()` itself raise an error, let the sweep wait forever, and return the *worst* trial as the best.


# %%
def descend_once(config):
    x = 0.0
    for _ in range(10):
        x -= config["lr"] * 2 * (x - 3)
    tune.report({"loss": (x - 3) ** 2})


def fixed_sweep():  # your answer: fix it
    return tune.Tuner(
        tune.with_resources(descend_once, {"CPU": 64}),
        param_space={"learning_rate": [0.01, 0.1, 0.5]},
        tune_config=tune.TuneConfig(metric="lost", mode="max"),
        run_config=tune.RunConfig(storage_path=folder),
    )


# %% tags=["solution"]
def fixed_sweep():
    return tune.Tuner(
        tune.with_resources(descend_once, {"CPU": 1}),
        param_space={"lr": tune.grid_search([0.01, 0.1, 0.5])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(storage_path=folder),
    )


# %%
check("05-4", fixed_sweep)

# %% [markdown] tags=["instructor"]
# **"I fixed it, and now it complains about something else." (05-4)** The check stops at the first mistake that it finds: CPUs, the plain list, the
# name, the metric, then the mode. Say: "Five mistakes, up to five messages."

# %% [markdown]
# ## Key points
# - Multiply the lengths of the grids, then multiply by `num_samples`. A random value multiplies nothing.
# - If you don't know which hyperparameters matter, draw at random instead of using a grid.
# - A trainable is your loop, with a report after each epoch. Report a checkpoint with it, or there's no model to load afterwards.
# - Choose by validation images, and keep the test images for the one model that you chose.
# - ASHA compares trials at its rungs and doesn't wait. Here it usually saves more than half of the epochs.
# - `fit()` raises no exception when trials fail: look at `num_errors`.
#
# **A question to take along.** A search space has a grid of three values, a grid of four, and one random value. How many trials does `num_samples=5` start?
#
# <details><summary>Compare your answer</summary>3 · 4 · 5 = 60. The random value is drawn for each of them and multiplies nothing.</details>
#
# | older tutorials | today |
# |---|---|
# | `tune.run(train, config=…, num_samples=…)`, `tune.report(accuracy=…)` | `tune.Tuner(train, param_space=…, tune_config=…).fit()`, `tune.report({…})` |
# | `progress_reporter=JupyterNotebookReporter()` or `CLIReporter()` | ignored, with a warning: `verbose` controls Tune's own table; for your own lines, a `tune.Callback` |
#
# Lesson 05b is about sweeps that run for a night. Trials that download the same file need a lock: `notebooks/recipes/several_trials_one_download.ipynb`. The recipe `notebooks/recipes/a_searcher_that_learns.ipynb` lets Optuna
# propose the configurations.

# %% [markdown] tags=["plain"]
# ## Without the lab
# A sweep of 16 trials as a script in plain Ray and PyTorch:

# %% [markdown] tags=["links"]
# ## Official pages
# Ray's [key concepts of Tune](https://docs.ray.io/en/latest/tune/key-concepts.html) explain why the function API comes first. From this lesson's code:

# %% [markdown]
# ## Stop

# %%
lab.stop()
