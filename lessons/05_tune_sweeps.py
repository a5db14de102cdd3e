# %% [markdown]
# # 05 · From one training to many: Tune
#
# **You will be able to** wrap a training so that others can start, stop, save and reuse it; say how many trials a search space gives before you start it; stop
# bad trials early; find a model with a sweep, and prove that its checkpoint is the model; let a sweep survive a failing trial and a killed
# notebook; and sweep a training that is itself distributed. · **Time** 60 min (2 of them waiting) · **Needs** 00, 01; 03 for the last part
#
# So far you chose the learning rate, and that was that. A *sweep* tries many configurations. Each one is a *trial*. Most of the art is in not
# wasting time: on processes that start, and on trials that will come to nothing.

# %%
from labkit import cluster, datasets
from labkit.settings import Settings

settings = Settings.from_env()
lab = cluster.start()
lab

# %% [markdown]
# A sweep compares trials, so it needs images to compare them by. Those must not be the test images: whoever tries 32 models and keeps the best one has
# *chosen* by these images, and the number looks better than the model is. So a fifth of the training images is put aside, for *validation*.

# %%
everything, test = datasets.load(split="train"), datasets.load(split="test")
cut = len(everything) * 4 // 5
data = {
    "train": (everything.images[:cut], everything.labels[:cut]),
    "valid": (everything.images[cut:], everything.labels[cut:]),
}
len(data["train"][1]), len(data["valid"][1]), len(test)

# %% [markdown]
# ## A training that others can drive: `Trainable`
# In lesson 03 the loop was in charge. In a sweep somebody else is: Tune says *one step*, *save yourself*, *load this*, *begin anew with that configuration*.
# A class with these methods is a `Trainable`. A step is whatever you call one; here it is an epoch.

# %%
import torch
from labkit.models.torch import mlp
from labkit.models.torch import load_state, save_state
from labkit.models.torch import batches, evaluate, train_epoch
from ray import tune


# %%
class Digits(tune.Trainable):
    def setup(self, config, data):
        self.data = data
        torch.set_num_threads(1)
        self.reset_config(config)

    def reset_config(self, config):
        self.model = mlp((32,), seed=0)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=config["lr"], momentum=config["momentum"]
        )
        self.epoch = 0
        return True

    def step(self):
        rows = batches(*self.data["train"], size=64, seed=self.epoch)
        train_epoch(self.model, rows, torch.nn.functional.cross_entropy, self.optimizer)
        self.epoch += 1
        return {"mean_accuracy": self.accuracy(*self.data["valid"])}

    def accuracy(self, images, labels):
        return evaluate(self.model, batches(images, labels, size=512, shuffle=False))["accuracy"]

    def save_checkpoint(self, folder):
        save_state(folder, self.model, self.optimizer, self.epoch)

    def load_checkpoint(self, folder):
        self.epoch = load_state(folder, self.model, self.optimizer)["epoch"]


# %% [markdown]
# | method | Tune calls it |
# |---|---|
# | `setup` | once in each process |
# | `step` | again and again; it returns the metrics |
# | `save_checkpoint`, `load_checkpoint` | with the path of a folder: fill it, read it. Model *and* optimizer |
# | `reset_config` | to give the process its next trial. `True` says: I have begun anew |
#
# ## First in this process
# A class is easy to try. No cluster, no process, no trial: call its methods as Tune would.

# %%
one = Digits.__new__(Digits)  # without Tune's own beginnings: folders, loggers
one.setup({"lr": 0.05, "momentum": 0.9}, data)
[round(one.step()["mean_accuracy"], 3) for _ in range(3)]

# %% [markdown]
# Three epochs. Now save it, load it into a second one, and let both take one more step.

# %% [markdown] tags=["prediction"]
# **Before you go on:** will the two agree to the last digit? And if the second one had loaded the model, but not the optimizer?

# %%
import tempfile

other, forgetful = Digits.__new__(Digits), Digits.__new__(Digits)
for copy in (other, forgetful):
    copy.setup({"lr": 0.05, "momentum": 0.9}, data)
with tempfile.TemporaryDirectory() as folder:
    one.save_checkpoint(folder)
    other.load_checkpoint(folder)
    forgetful.epoch = load_state(folder, forgetful.model)["epoch"]

# %%
from labkit.models.torch import parameter_distance

for each in (one, other, forgetful):
    each.step()
parameter_distance(one.model, other.model), parameter_distance(one.model, forgetful.model)

# %% [markdown]
# The first difference is zero: not small, zero. The second is not. *Momentum* is a memory of the last steps, it lives in the optimizer, and without it the next
# epoch goes another way. A checkpoint is model *and* optimizer.

# %% [markdown]
# ### Exercise 05-1 · Begin anew
# A process that has finished one trial is handed the next. Here is a `reset_config` that was written in a hurry. The second trial starts with the first one's
# weights, so it looks brilliant from the beginning, and Tune does not even believe that it was reset. Write it so that it is right.
#
# ```python
# def reset_config(self, config):
#     self.optimizer = self.make_optimizer(self.model, config["lr"])
# ```
#
# `self.make_model()` builds a fresh model, and `self.epoch` counts from 0.

# %%
from labkit.exercises import check, hint


def reset_config(self, config): ...  # your answer


# %% tags=["solution"]
def reset_config(self, config):
    self.model = self.make_model()
    self.optimizer = self.make_optimizer(self.model, config["lr"])
    self.epoch = 0
    return True


# %%
check("05-1", reset_config)

# %% [markdown]
# ## How many trials?
# A training is too dear to count with. Here is a function that costs nothing: a hill, with its top at 3 and 20. A function reports with
# `tune.report`. That is all that it needs to be a trainable.


# %%
def hill(config):
    tune.report(
        {"height": -((config["a"] - 3) ** 2) - (config["b"] - 20) ** 2 / 100 + config.get("noise", 0)}
    )


# %% [markdown]
# The *search space* says which configurations there are. `grid_search` means: every one of these. Others, such as `uniform`, draw one value at random.

# %%
space = {"a": tune.grid_search([1, 2, 3]), "b": tune.grid_search([10, 20, 30])}

# %% [markdown]
# A `Tuner` brings trainable, space and settings together. Results and checkpoints go to a folder: all nodes of this lab are on one machine. Most of it will be the same for all
# sweeps of this page, so a function saves typing. The panel goes in as a *callback*: Tune calls it at each event.

# %%
from labkit.tune import SweepPanel

storage_path, filesystem = str(settings.home / "runs" / "05-tune"), None
if settings.ray_address:  # nodes on other machines do not see this folder: the store of lesson 03
    from labkit import storage

    store = storage.start()
    storage_path, filesystem = store.storage_path("runs", "05-tune"), store.filesystem


def tuner_of(trainable, space, *, stop=None, checkpoints=None, metric="mean_accuracy", **options):
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(metric=metric, mode="max", **options),
        run_config=tune.RunConfig(
            name=panel.run_id,
            storage_path=storage_path,
            storage_filesystem=filesystem,
            stop=stop,
            checkpoint_config=checkpoints,
            callbacks=[panel.callback()],
        ),
    )


# %% [markdown] tags=["prediction"]
# **Before you go on:** two grids of three values, and `num_samples` is 1 if nobody says otherwise. How many trials?

# %%
panel = SweepPanel("05-grid")
tuner = tuner_of(hill, space, metric="height", reuse_actors=True)
with panel.watch(tuner):
    results = tuner.fit()
len(results)

# %% [markdown]
# All pairs. (`reuse_actors=True` comes up below.) Now a parameter that is drawn at random joins them, and `num_samples=2`.

# %% [markdown] tags=["prediction"]
# **Before you go on:** how many trials now? And how many different values will `noise` have?

# %%
space["noise"] = tune.uniform(0, 0.1)
panel = SweepPanel("05-grid-twice")
tuner = tuner_of(hill, space, metric="height", reuse_actors=True, num_samples=2)
with panel.watch(tuner):
    results = tuner.fit()
len(results), len({result.config["noise"] for result in results})

# %% [markdown]
# `num_samples` repeats the *whole grid*. Each trial draws its own random values. So grids multiply, and samples multiply them once more:

# %%
rows = results.get_dataframe()[["config/a", "config/b", "config/noise", "height"]]
rows.sort_values("height").tail(4).round(3)

# %% [markdown]
# ### Exercise 05-2 · Count before you pay
# ```python
# param_space = {
#     "optimizer": tune.grid_search(["sgd", "adam"]),
#     "width": tune.grid_search([32, 64, 128, 256]),
#     "lr": tune.loguniform(1e-4, 1),
#     "seed": 7,
# }
# ```
# With `num_samples=5`: how many trials? And if every one takes a minute, four of them at a time, how many minutes does the sweep take?

# %%
trials = ...  # your answer
minutes = ...  # your answer

# %% tags=["solution"]
trials = 2 * 4 * 5
minutes = trials / 4

# %%
check("05-2", trials, minutes)

# %% [markdown]
# ## Stop the bad ones early
# Most configurations are bad, and most of those look bad after one epoch. `ASHAScheduler` acts on that. It has *rungs*, here after 1, 3, 9 and 27 iterations.
# A trial that comes to a rung is compared with all that were there before it. The best third goes on, the others are stopped.
#
# - `grace_period`: iterations that every trial gets. The first rung.
# - `reduction_factor`: one in so many goes on, and each rung is so many times as high as the one below it.
# - `max_t`: here it ends, however good it is.
#
# It does not wait until all trials are at a rung (that is the *asynchronous* in its name). So nobody stands idle, and early comers are judged by few.

# %%
from ray.tune.schedulers import ASHAScheduler

asha = ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3)

# %% [markdown]
# A trial may also end by itself: `stop` takes the first that comes true. And four lines make the sweep fast. You will measure below how much they bring.
#
# 1. `tune.with_parameters` puts the images into the object store *once*. A process fetches them from there; nothing is pickled with each trial.
# 2. `tune.with_resources` says what a trial takes. So many run at one time as fit into the cluster. Fractions are fine: with `{"CPU": 0.5}` two trials share a core, and with
#    `{"CPU": 1, "GPU": 0.25}` four of them a GPU. It is bookkeeping: nobody is held back who uses more.
# 3. `reuse_actors`: a process that has finished a trial takes the next one, by `reset_config`.
# 4. `max_concurrent_trials`: no more processes than there are cores. Each has to start before it trains.

# %%
space = {"lr": tune.loguniform(1e-3, 1), "momentum": tune.uniform(0, 0.95)}
trainable = tune.with_parameters(Digits, data=data)  # 1
trainable = tune.with_resources(trainable, {"CPU": 1})  # 2

# %% [markdown] tags=["prediction"]
# **Before you go on:** 32 trials, and a third goes on at each rung. About how many will see all 27 epochs? How many epochs is that in all, next to the 864 of a sweep that
# stops nobody?

# %%
panel = SweepPanel("05-asha", dataset=test.name)
tuner = tuner_of(
    trainable,
    space,
    num_samples=32,
    scheduler=asha,
    stop={"mean_accuracy": 0.995, "training_iteration": 27},
    checkpoints=tune.CheckpointConfig(checkpoint_at_end=True),
    reuse_actors=True,  # 3
    max_concurrent_trials=settings.num_workers,  # 4
)
with panel.watch(tuner):
    results = tuner.fit()

# %% [markdown]
# Each grey line is a trial; the dotted ones are the rungs. How many ended where?

# %%
table = results.get_dataframe()
print(int(table["training_iteration"].sum()), "epochs in all")
table.groupby("training_iteration").size().rename("trials that ended here")

# %% [markdown]
# If every rung let exactly a third through, one trial would be left at the end. There are more: the first that comes to a rung has nobody to be compared with, and goes on. That is the price of not waiting.
# It is still less than half of the 864 epochs, and most of what was saved are epochs of bad trials.

# %% [markdown]
# ### Exercise 05-3 · Rungs
# `ASHAScheduler(max_t=64, grace_period=2, reduction_factor=4)`, and 64 trials. At which iterations are the rungs? If each rung lets exactly one in four through,
# how many trials are left after the last of the rungs?

# %%
rungs = [...]  # your answer
left = ...  # your answer

# %% tags=["solution"]
rungs = [2, 8, 32]
left = 64 // 4**3

# %%
check("05-3", rungs, left)

# %% [markdown]
# ## What came back
# `results` is a list of all trials, whatever became of them. It can be kept as a file that any spreadsheet opens:

# %%
table.to_csv(settings.home / "05-asha.csv", index=False)

best = results.get_best_result()
best.config, best.metrics["mean_accuracy"], best.metrics["training_iteration"]

# %% [markdown]
# The curves of the best six, and all configurations at once. In the second picture each line is a trial, and each axis a parameter. A line's colour is the trial's
# accuracy, from blue (worst) to orange (best). Follow the orange lines back from the right: which values do they have in common?

# %%
from labkit.tune import plot_curves, plot_parallel

plot_curves(results, "mean_accuracy")

# %%
plot_parallel(results, ["lr", "momentum"], "mean_accuracy", log=["lr"])

# %% [markdown]
# The learning rate decides most of it: too small does not get anywhere in time, too large falls apart.
#
# ## Is the checkpoint the model?
# Every trial left a checkpoint at its end. Load each of them into a fresh `Digits`, and look at the same validation images again.

# %%
again = Digits.__new__(Digits)
again.setup({"lr": 0.1, "momentum": 0.9}, data)
same = 0
for result in results:
    again.reset_config(result.config)
    with result.checkpoint.as_directory() as folder:
        again.load_checkpoint(folder)
    same += again.accuracy(*data["valid"]) == result.metrics["mean_accuracy"]
print(f"{same} of {len(results)} checkpoints give the very number that was reported")

# %% [markdown]
# With `==`, not "nearly". Now the best one, on the test images, which had no say in any of this:

# %%
again.reset_config(best.config)
with best.checkpoint.as_directory() as folder:
    again.load_checkpoint(folder)
print(f"accuracy on {len(test)} test images: {again.accuracy(test.images, test.labels):.3f}")

# %% [markdown]
# ## What the four lines bring
# A process costs before it trains anything: it starts, imports Ray, PyTorch and the rest, and fetches the images. That is seconds of a core, for a training of tenths of a second.
# (This lab pays a part of it in advance. A trial lives in an actor, also one that is a function, and the lab's actors are forked from the *forkserver* of lesson 01, which has
# PyTorch imported already. On a cluster without it, processes cost more than you measure here.) How many of them did the 32 trials need?

# %%
table["pid"].nunique()

# %% [markdown]
# And without the four lines? Six trials are enough to see it.

# %%
panel = SweepPanel("05-defaults", dataset=test.name)
tuner = tuner_of(
    tune.with_parameters(Digits, data=data),
    space,
    num_samples=6,
    scheduler=ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3),
)
with panel.watch(tuner):
    slow = tuner.fit()

# %%
from labkit import runs

for name, count in (("05-asha", 32), ("05-defaults", 6)):
    seconds = runs.latest(name).seconds_total
    print(f"{name}: {count} trials in {seconds:.0f} s, {seconds / count:.1f} s for each")

# %% [markdown]
# Every trial paid for a process of its own. The longer one trial takes, the less this matters: for trials of an hour the defaults are fine. (One more thing can be had: Tune
# writes each result three times, as JSON, as CSV and for TensorBoard. `TUNE_DISABLE_AUTO_CALLBACK_LOGGERS=1` in the environment stops that, and with it the learning curves above.)

# %% [markdown]
# ## A searcher that learns, and the same training as a function
# ASHA stops trials; what they try is drawn blindly. A *searcher* looks at what came out and proposes the next configuration. `OptunaSearch` does. It can learn only from trials
# that are over, so do not run too many at once: `ConcurrencyLimiter` holds it back.
#
# As a function, the training looks like this. It is in charge again: it looks for a checkpoint when it begins, and gives one with each report.


# %%
def train_digits(config, data):
    model = Digits.__new__(Digits)
    model.setup(config, data)
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            model.load_checkpoint(folder)
    while model.epoch < config["epochs"]:
        metrics = model.step()
        with tempfile.TemporaryDirectory() as folder:
            model.save_checkpoint(folder)
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


# %%
import optuna
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch

optuna.logging.set_verbosity(optuna.logging.WARNING)
searcher = ConcurrencyLimiter(OptunaSearch(seed=0), max_concurrent=2)

panel = SweepPanel("05-optuna", dataset=test.name)
tuner = tuner_of(
    tune.with_parameters(train_digits, data=data),
    {**space, "epochs": 3},
    num_samples=8 if settings.small else 16,
    search_alg=searcher,
    reuse_actors=True,
)
with panel.watch(tuner):
    results = tuner.fit()

# %% [markdown]
# Look at the learning rates in the order of the trials: the first are spread out, the later ones come together where it went well. (With so few trials, not always.)

# %%
[f"{result.config['lr']:.3f} → {result.metrics['mean_accuracy']:.2f}" for result in results]

# %% [markdown]
# ## Change the configuration under way
# *Population-based training* runs a few trials side by side. Every few iterations the worst take over the weights of the best, and go on from there with a configuration
# that is changed a little. So the learning rate need not stay the same from beginning to end. It needs all that `Digits` can do: save, load, reset.
#
# The four need not live at the same time. Each asks for two CPUs here, and the lab has three: so they take turns in one process. Who has made three steps is put aside, and the
# next one goes on.

# %%
from ray.tune.schedulers import PopulationBasedTraining

pbt = PopulationBasedTraining(
    time_attr="training_iteration",  # what is counted; if nobody says, it is seconds
    perturbation_interval=3,
    hyperparam_mutations={"lr": tune.loguniform(1e-3, 1)},
    quantile_fraction=0.5,
)
panel = SweepPanel("05-pbt", dataset=test.name)
tuner = tuner_of(
    tune.with_resources(trainable, {"CPU": 2}),
    {"lr": tune.grid_search([0.001, 0.003, 0.03, 0.1]), "momentum": 0.5},
    scheduler=pbt,
    stop={"training_iteration": 12},
    reuse_actors=True,
)
with panel.watch(tuner):
    results = tuner.fit()

# %% [markdown]
# *Changed* in the table counts how often a trial was overtaken in this way. There is no longer one best learning rate: the best trial had a history of them.

# %% [markdown]
# ## Mistakes that cost nothing
# A sweep with a slip in it fails 32 times, or waits for ever. `panel.watch` looks before anything starts. Five slips that everybody makes, one per cell.
#
# A name that the training never reads:

# %% tags=["raises-exception"]
panel = SweepPanel("05-slip")
panel.watch(tuner_of(trainable, {"learning_rate": tune.uniform(0, 1), "momentum": 0.9}))

# %% [markdown]
# A space with nothing to search in:

# %% tags=["raises-exception"]
panel.watch(tuner_of(trainable, {"lr": [0.1, 0.2], "momentum": 0.9}, num_samples=8))

# %% [markdown]
# Trials that no node has room for. Tune would wait, and say so in a log:

# %% tags=["raises-exception"]
panel.watch(tuner_of(tune.with_resources(trainable, {"CPU": 64}), space))

# %% [markdown]
# Actors to be reused, of a class that cannot begin anew:


# %% tags=["raises-exception"]
class OnlyOnce(tune.Trainable):
    def step(self):
        return {"mean_accuracy": self.config["lr"]}


panel.watch(tuner_of(OnlyOnce, {"lr": tune.uniform(0, 1)}, reuse_actors=True))

# %% [markdown]
# The fifth shows only with the first report, and then the sweep ends at once: a metric that nobody reports.

# %% tags=["raises-exception"]
panel = SweepPanel("05-slip")
tuner = tuner_of(hill, {"a": tune.grid_search([1, 2]), "b": 20}, metric="hieght", reuse_actors=True)
with panel.watch(tuner):
    tuner.fit()

# %% [markdown]
# ## When a trial fails
# One configuration divides by zero, another asks for more memory than the process may have. (Here the trial sets that limit itself, 1 GB above what it uses. On a full
# machine the kernel would end the whole process: the panel then says that it is gone.)


# %%
def risky(config):
    if config["x"] == 0:
        1 / config["x"]
    if config["x"] == 1:
        too_much_memory()
    tune.report({"height": config["x"]})


def too_much_memory():
    import resource

    import psutil

    limit = psutil.Process().memory_info().vms + 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    torch.ones(2**32)  # 16 GB


# %% [markdown] tags=["prediction"]
# **Before you go on:** five trials, two of them fail. Does the sweep? And what is in `results`?

# %%
panel = SweepPanel("05-failures")
tuner = tuner_of(risky, {"x": tune.grid_search([0, 1, 2, 3, 4])}, metric="height", reuse_actors=True)
with panel.watch(tuner):
    results = tuner.fit()
len(results), results.num_errors, results.get_best_result().config

# %% [markdown]
# The others went on, and the sweep has what they found. The tracebacks stand in the panel, each with its trial. (Each failure also cost its process: the next trial
# waits for a new one.)

# %% [markdown]
# ## When the notebook is killed
# A sweep runs overnight, and in the morning the kernel is gone. Tune saves the state of the sweep while it runs, so a new process can restore it and continue. How much a
# kill costs depends on two things.
#
# - **How often Tune saves**: every ten seconds by default, or less often. Trials that finish in between run again. With `TUNE_GLOBAL_CHECKPOINT_S=0` in the environment, Tune saves
#   after each event.
# - **What the kill leaves behind.** The state is several files, for example the list of trials and what the searcher knows. Tune copies them to the sweep's folder one by one, while it may
#   already be writing the next state. After a kill, a file can be cut off, or two files can be of different moments. Two things protect you. The panel also saves all of the state as
#   a single file, and `panel.watch` puts it back when you restore. And the folder of this sweep is in the object store of lesson 03, which stores a file completely or not at all; on a plain
#   disk, even the results of finished trials can be cut off.
#
# Here is a sweep in a process of its own, so that it can be killed without hurting this page. Each trial counts to ten. It writes a line for each step to a file, so that we
# can see later what ran twice, and it saves its count with each report.

# %%
import time


def count(config):
    done = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder, open(f"{folder}/count") as file:
            done = int(file.read())
    for number in range(done + 1, 11):
        time.sleep(0.2)
        with open(config["log"], "a") as log, tempfile.TemporaryDirectory() as folder:
            log.write(f"{config['x']} {number}\n")
            with open(f"{folder}/count", "w") as file:
                file.write(str(number))
            tune.report({"count": number}, checkpoint=tune.Checkpoint.from_directory(folder))


# %% [markdown]
# The program: this function, and a sweep over eight trials.

# %%
import inspect

program = f"""
import os, sys, tempfile, time
os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = "0"
from labkit import cluster, storage
from labkit.tune import SweepPanel
from ray import tune

{inspect.getsource(count)}

folder, name, log = sys.argv[1:]
lab, store = cluster.start(), storage.start()  # those that run already
panel = SweepPanel("05-killed")
tuner = tune.Tuner(
    count,
    param_space={{"x": tune.grid_search(list(range(8))), "log": log}},
    tune_config=tune.TuneConfig(metric="count", mode="max", reuse_actors=True, max_concurrent_trials=2),
    run_config=tune.RunConfig(
        name=name,
        storage_path=folder,
        storage_filesystem=store.filesystem,
        callbacks=[panel.callback()],
    ),
)
with panel.watch(tuner):
    tuner.fit()
"""

# %% [markdown]
# Start it, wait until some trials have counted to ten, and kill it as the system does: `SIGKILL`, no goodbye.

# %%
import subprocess
import sys

from labkit import storage

store = storage.start()
name = SweepPanel("05-killed").run_id
log = settings.home / f"{name}.txt"
log.touch()


def steps():
    return [tuple(line.split()) for line in log.read_text().splitlines()]


folder = store.storage_path("runs")
command = [sys.executable, "-c", program, folder, name, str(log)]
process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while len(done := {x for x, number in steps() if number == "10"}) < 3 and process.poll() is None:
    time.sleep(0.1)
time.sleep(0.5)
process.kill()
process.wait(), sorted(done)

# %% [markdown]
# To continue, a new process needs the path with its filesystem, and *the same trainable*. Everything else is in the folder: the trials, how far they got, and the state of the search.
# `can_restore` tells you whether a folder has a sweep.

# %%
path = f"{folder}/{name}"
[tune.Tuner.can_restore(one, storage_filesystem=store.filesystem) for one in (path, f"{folder}/another")]

# %% [markdown]
# Where that says `False`, `restore` raises a `FileNotFoundError` about a file named `tuner.pkl`. It is the most asked-about error of Tune, and it means just this: wrong path. (It has to be
# the folder of the *sweep*, not that of a trial, and not the one above.)

# %%
before = len(steps())
panel = SweepPanel("05-killed")
tuner = tune.Tuner.restore(path, trainable=count, storage_filesystem=store.filesystem)
with panel.watch(tuner):
    results = tuner.fit()

# %% [markdown] tags=["prediction"]
# **Before you go on:** eight trials were to count to ten each. How many lines will the file have, if no trial ran twice and none was lost?

# %%
print(f"{len(results)} trials, all of them at { ({result.metrics['count'] for result in results}) }")
again = [x for x, number in steps()[before:] if x in done]
print(f"{len(steps())} steps in all, {len(again)} of them by trials that were done before")

# %% [markdown]
# Finished trials were not touched. Those that were cut off went on from their last checkpoint. A step or two may stand there twice: what ran in the moment of the kill, and was not yet saved.
#
# The other way round is a trap. A *new* sweep under an *old* name writes into the same folder, and the results of both are mixed. Nobody tells you, except here:

# %% tags=["raises-exception"]
tuner = tune.Tuner(
    hill,
    param_space={"a": tune.grid_search([1, 2]), "b": 20},
    run_config=tune.RunConfig(
        name=name,
        storage_path=folder,
        storage_filesystem=store.filesystem,
        callbacks=[panel.callback()],
    ),
)
panel.watch(tuner)

# %% [markdown]
# ## A sweep of distributed trainings
# Older tutorials handed a trainer to Tune, with `as_trainable` or a `TrainingOperator`. Both are gone. What replaces them is plainer: the trial is a small function, the *driver*, that builds a `TorchTrainer` and
# calls `fit()`. The trainer's workers are processes of their own, beside the trial's.
#
# The loop first. What the operator's `train_epoch` and `validate` did are two functions. With `torch.autocast` the model computes in a shorter kind of number, *mixed precision*: half the memory,
# and on many GPUs twice the speed or more. `bfloat16` works on CPUs too. `float16` needs a `GradScaler`, since its smallest numbers are not small enough for gradients.


# %%
from labkit.models.torch import cnn


def train_one_epoch(model, optimizer, scaler, rows, precision, device):
    model.train()
    for x, y in rows:
        with torch.autocast(device, dtype=precision, enabled=precision != torch.float32):
            loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def validate(model, images, labels):
    return evaluate(model, batches(images, labels, size=512, shuffle=False))


# %%
import ray.train
from ray.train.torch import get_device, prepare_model


def train_loop(config):
    rank, world_size = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    share = slice(rank, len(data["train"][1]) // world_size * world_size, world_size)  # equally many for each
    images, labels = (part[share] for part in data["train"])
    model = prepare_model(cnn(seed=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    device, precision = get_device().type, getattr(torch, config["precision"])
    scaler = torch.amp.GradScaler(device, enabled=precision == torch.float16)
    for epoch in range(config["epochs"]):
        rows = batches(images, labels, size=128 // world_size, seed=epoch)
        train_one_epoch(model, optimizer, scaler, rows, precision, device)
        metrics = {**validate(model, *data["valid"]), "epoch": epoch}
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if rank == 0:
                save_state(folder, model, optimizer, epoch)
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint)


# %% [markdown]
# The driver. `TuneReportCallback` hands each report of rank 0 on to Tune, so that the panel sees it, and a scheduler can stop it.

# %%
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.tune.integration.ray_train import TuneReportCallback


def driver(config):
    trainer = TorchTrainer(
        train_loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=settings.num_workers, use_gpu=settings.use_gpu),
        run_config=RunConfig(
            name=tune.get_context().get_trial_id(),
            storage_path=storage_path + "/trainers",
            storage_filesystem=filesystem,
            callbacks=[TuneReportCallback()],
        ),
    )
    trainer.fit()


# %% [markdown]
# Now count. A driver holds its CPU for as long as its trainer runs, and the workers need theirs at the same time. If the drivers take all CPUs, every one of them
# waits for workers that can never start: *starvation*, and nothing says so. Two numbers prevent it: what a driver takes, and how many of them there are.

# %% [markdown]
# ### Exercise 05-4 · Drivers and workers
# Write the function that says how many trials may run at one time. Each has one driver and some workers.


# %%
def trials_at_once(cpus, workers, cpus_per_worker, cpus_per_driver): ...  # your answer


# %% tags=["solution"]
def trials_at_once(cpus, workers, cpus_per_worker, cpus_per_driver):
    return int(cpus // (workers * cpus_per_worker + cpus_per_driver))


# %%
check("05-4", trials_at_once)

# %% [markdown]
# A driver computes nothing. Tune does not accept that something takes no CPU at all, so it gets a tenth.

# %%
at_once = max(1, int(lab.cpus // (settings.num_workers + 0.1)))
panel = SweepPanel("05-distributed", dataset=test.name)
tuner = tuner_of(
    tune.with_resources(driver, {"CPU": 0.1}),
    {
        "precision": tune.grid_search(["float32", "bfloat16"]),
        "lr": 0.005,
        "epochs": 3 if settings.small else 6,
    },
    metric="accuracy",
    reuse_actors=True,
    max_concurrent_trials=at_once,
)
with panel.watch(tuner):
    results = tuner.fit()

# %%
columns = ["config/precision", "accuracy", "loss", "training_iteration", "time_total_s"]
results.get_dataframe()[columns].round(3)

# %% [markdown]
# The same accuracy, nearly, in numbers of half the length. Whether it is faster depends on the machine: a CPU without instructions for `bfloat16` is slower with it, most GPUs are faster. The seconds are
# mostly the start of the workers; lesson 03 took them apart.
#
# The checkpoint of each trainer lies with the trainer. Its path travels with the report:

# %%
best = results.get_best_result()
checkpoint = tune.Checkpoint(best.metrics["checkpoint_path"], filesystem=filesystem)
model = cnn(seed=None)
with checkpoint.as_directory() as place:
    print("epoch", load_state(place, model)["epoch"] + 1)
validate(model, *data["valid"])["accuracy"], best.metrics["accuracy"]

# %% [markdown]
# (Two models, or two optimizers, as a GAN has? It is your loop: build both, step both, and hand both to the checkpoint. The operator needed a special form for that.)
#
# | older tutorials write | today |
# |---|---|
# | `tune.run(Digits, config=…, num_samples=…)` | `tune.Tuner(Digits, param_space=…, tune_config=…).fit()` |
# | `tune.report(mean_accuracy=…)`, `with tune.checkpoint_dir(…)` | `tune.report({…}, checkpoint=…)` |
# | `_setup`, `_train`, `_save`, `_restore` | `setup`, `step`, `save_checkpoint`, `load_checkpoint` |
# | `progress_reporter=JupyterNotebookReporter(…)` | a `tune.Callback`: reporters are passed over in some places, callbacks never |
# | `Tuner(TorchTrainer(…))`, `as_trainable`, `TrainingOperator` | a driver function, as above |
# | `tune.run(…, resume=True)` | `tune.Tuner.restore(path, trainable=…)` |

# %% [markdown]
# ### Exercise 05-5 · Which tool?
# Four situations. For each, choose `"grid"`, `"asha"`, `"optuna"` or `"pbt"`.
#
# 1. Two optimizers and three widths, and a report must list every pair.
# 2. 200 random configurations of a training that shows in its first minutes whether it is any good.
# 3. One training takes an hour and says nothing before its end; you can afford 20 of them, one after the other.
# 4. A long training whose learning rate should change on the way.

# %%
tools = [..., ..., ..., ...]  # your answer

# %% tags=["solution"]
tools = ["grid", "asha", "optuna", "pbt"]

# %%
check("05-5", tools)

# %% [markdown]
# ## In this notebook
# - you wrapped a training as a class and as a function, and saw that a checkpoint without the optimizer is another training;
# - you counted trials before you paid for them: grids multiply, and `num_samples` multiplies them once more;
# - ASHA stopped most of 32 trials at its rungs, and every checkpoint gave the very number that its trial had reported;
# - you measured what a process costs, and saved most of them with four lines;
# - a searcher proposed, population-based training changed configurations under way;
# - slips were told before they cost anything, failing trials did not stop the others, and a killed sweep went on where it was;
# - each trial was a distributed training, and you know how to count its CPUs.

# %%
store.stop()
lab.stop()
