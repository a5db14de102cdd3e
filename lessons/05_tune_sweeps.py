# %% [markdown]
# # 05 · From one training to many: Tune
#
# **You will be able to** wrap a training so that Tune can start, stop, save and reuse it; work out how many trials a search space gives before you start it; stop bad
# trials early; find a model with a sweep, and prove that its checkpoint is the model; let a sweep survive a failing trial and a killed notebook; and sweep a training
# that is itself distributed. · **Time** 60 min (2 of them waiting) · **Needs** 00, 01; 03 for the last part
#
# So far you picked a learning rate and left it at that. A **sweep** tries many configurations, and each of them is a **trial**. The skill is in not wasting time,
# neither on starting processes nor on trials that will never be good.

# %%
from labkit import cluster, datasets
from labkit.settings import Settings

settings = Settings.from_env()
lab = cluster.start()
lab

# %% [markdown]
# A sweep compares trials, so it needs images to compare them on. Don't use the test images for this: if you try 32 models and keep the one with the best test score,
# you have fitted the *choice* to the test set, and its score is too optimistic. So we set a fifth of the training images aside, for **validation**.

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
# In lesson 03 your loop was in charge. In a sweep Tune is in charge: it tells your training to do one step, to save its state, to load a state, or to start over with
# another configuration. You write a class that derives from `tune.Trainable` and has a method for each of these. Anything that Tune can drive like this is called a
# **trainable**. You decide what a step is; here it is one epoch.

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
# | method | when Tune calls it |
# |---|---|
# | `setup` | once in each process |
# | `step` | again and again; it returns the metrics |
# | `save_checkpoint`, `load_checkpoint` | with the path of a folder, to write to or to read from. Save the model *and* the optimizer |
# | `reset_config` | to give the process its next trial. Return `True` to confirm that nothing of the old trial is left |
#
# `Digits` trains on the CPU, even on a cluster with GPUs. To use a GPU, you would move the model there in `reset_config` and ask for a GPU per trial. The batches
# follow the model, because `train_epoch` and `evaluate` move them to its device.
#
# ## First in this process
# A class is easy to try. You don't need a cluster, another process or a trial for that: call its methods as Tune would.

# %%
one = Digits.__new__(Digits)  # skips Trainable.__init__, which sets up folders and logs
one.setup({"lr": 0.05, "momentum": 0.9}, data)
[round(one.step()["mean_accuracy"], 3) for _ in range(3)]

# %% [markdown]
# That was three epochs. Now save the state, load it into a second object, and let both take one more step. A third object gets the model, but not the optimizer.

# %% [markdown] tags=["prediction"]
# **Before you go on:** will the first two agree to the last digit? And the third, which has the model without the optimizer's state?

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
# The first difference isn't just small, it is exactly zero. The second is not. With *momentum*, each update also depends on the updates before it. The optimizer
# stores that, and without it the next epoch leads to different weights. A checkpoint is model *and* optimizer.

# %% [markdown]
# ### Exercise 05-1 · Start from scratch
# When a process has finished one trial, Tune hands it the next. Here is a `reset_config` that was written in a hurry. The second trial starts with the weights of the
# first, so it looks brilliant from the start. And because the method returns `None`, Tune treats the reset as failed. Write a correct one.
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
# Real training is too slow for learning to count trials, so here is a stand-in that costs nothing: a hill whose top is at a = 3, b = 20. This trainable is a function,
# not a class. All it has to do is call `tune.report`.


# %%
def hill(config):
    tune.report(
        {"height": -((config["a"] - 3) ** 2) - (config["b"] - 20) ** 2 / 100 + config.get("noise", 0)}
    )


# %% [markdown]
# The **search space** defines which configurations are possible. `grid_search` tries every value of its list. Others, such as `uniform`, draw one value at random for
# each trial.

# %%
space = {"a": tune.grid_search([1, 2, 3]), "b": tune.grid_search([10, 20, 30])}

# %% [markdown]
# A `Tuner` brings trainable, search space and settings together. Results and checkpoints go to a local folder, because all nodes of this lab are on one machine. Most
# settings are the same for all sweeps in this lesson, so a function saves you some typing. The panel is passed as a *callback*: Tune calls it at each event of the
# sweep.

# %%
from labkit.tune import SweepPanel

storage_path, filesystem = str(settings.home / "runs" / "05-tune"), None
if settings.ray_address:  # other machines don't see this folder: use the store of lesson 03
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
# **Before you go on:** there are two grids of three values, and `num_samples` is 1 by default. How many trials is that?

# %%
panel = SweepPanel("05-grid")
tuner = tuner_of(hill, space, metric="height", reuse_actors=True)
with panel.watch(tuner):
    results = tuner.fit()
len(results)

# %% [markdown]
# Tune tried every pair. `reuse_actors=True` is explained further down. Now add a parameter that is drawn at random, and set `num_samples=2`.

# %% [markdown] tags=["prediction"]
# **Before you go on:** how many trials are there now? And how many different values will `noise` have?

# %%
space["noise"] = tune.uniform(0, 0.1)
panel = SweepPanel("05-grid-twice")
tuner = tuner_of(hill, space, metric="height", reuse_actors=True, num_samples=2)
with panel.watch(tuner):
    results = tuner.fit()
len(results), len({result.config["noise"] for result in results})

# %% [markdown]
# `num_samples` repeats the *whole grid*, and each trial draws its own random values. So you multiply the lengths of the grids, and then multiply by `num_samples`. The
# four best trials:

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
# How many trials do you get with `num_samples=5`? And if each trial takes a minute and four run at a time, how many minutes does the sweep take?

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
# Most configurations are bad, and most of the bad ones look bad after one epoch. `ASHAScheduler` makes use of that. Tune counts steps as **iterations**; in `Digits`
# an iteration is an epoch. ASHA compares trials after certain numbers of iterations, the **rungs**, which are 1, 3 and 9 here. When a trial reaches a rung, it is
# compared with all trials that reached it before. If it is among the best third, it continues; if not, it is stopped.
#
# - `grace_period=1`: no trial is stopped before this many iterations. This is the first rung.
# - `reduction_factor=3`: at each rung the best third continues, and the next rung comes after three times as many iterations.
# - `max_t=27`: after this many iterations a trial ends, however good it is. Trials that stop at `max_t` are not compared there.
#
# ASHA doesn't wait until all trials have reached a rung; that is the *asynchronous* in its name. So no CPU idles, but the first trials at a rung are compared with
# only a few others.

# %%
from ray.tune.schedulers import ASHAScheduler

asha = ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3)

# %% [markdown]
# A trial can also end for another reason: `stop` ends it as soon as one of its conditions is met. Both `stop` and `max_t` limit the trials of this sweep to 27 epochs;
# either would do.
#
# Four more lines make the sweep fast. Further down you will measure how much they save.
#
# 1. `tune.with_parameters` puts the images into Ray's object store *once*. Each process reads them from there, so they aren't pickled again for every trial.
# 2. `tune.with_resources` sets what a trial asks for. Tune runs as many trials at a time as fit into the cluster. Fractions work, too: with `{"CPU": 0.5}` two trials
#    share a CPU, and with `{"CPU": 1, "GPU": 0.25}` four trials share a GPU. These numbers are only used for scheduling. Ray does not stop a trial that uses more than
#    it asked for.
# 3. `reuse_actors`: every trial runs in an actor, a process of its own. With this option a process that has finished a trial takes the next one, by `reset_config`.
# 4. `max_concurrent_trials` limits how many trials run at a time, and therefore how many processes have to start. Here it is `settings.num_workers`, which is 2 unless
#    you have changed it. On a machine with more cores, set it to their number.

# %%
space = {"lr": tune.loguniform(1e-3, 1), "momentum": tune.uniform(0, 0.95)}
trainable = tune.with_parameters(Digits, data=data)  # 1
trainable = tune.with_resources(trainable, {"CPU": 1})  # 2

# %% [markdown] tags=["prediction"]
# **Before you go on:** there are 32 trials, and a third of them continues at each rung. About how many will train for all 27 epochs? And how many epochs is that in
# total? A sweep that stops no trial early takes 32 × 27 = 864.

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
# Each grey line is a trial, and the dotted lines are the rungs. The panel draws one at 27, too, because Ray lists `max_t` as a rung; but every trial ends there before
# it would be compared. How many trials ended where?

# %%
table = results.get_dataframe()
print(int(table["training_iteration"].sum()), "epochs in all")
table.groupby("training_iteration").size().rename("trials that ended here")

# %% [markdown]
# If every rung let exactly a third through, one trial would be left after the last rung, and the sweep would take about 32 × 1 + 11 × 2 + 4 × 6 + 1 × 18 = 96 epochs.
# In fact more trials get through: the first one at a rung has no other trial to be compared with, so it continues, and the next ones are compared with only a few.
# That is the price of not waiting. Even so, the sweep took less than half of the 864 epochs, and most of the epochs that were saved would have gone into bad trials.

# %% [markdown]
# ### Exercise 05-3 · Rungs
# Take `ASHAScheduler(max_t=64, grace_period=2, reduction_factor=4)` and 64 trials. At which iterations are trials compared? If each of these rungs lets exactly one
# trial in four through, how many trials are left after the last one?

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
# `results` has one entry for each trial, including those that were stopped or failed. You can save it as a CSV file, which any spreadsheet opens. `get_best_result`
# compares the *last* value that each trial reported:

# %%
table.to_csv(settings.home / "05-asha.csv", index=False)

best = results.get_best_result()
best.config, best.metrics["mean_accuracy"], best.metrics["training_iteration"]

# %% [markdown]
# Next, the learning curves of the best six trials, and then all configurations in one picture. In the second picture each line is a trial and each axis a parameter.
# The colour of a line is the trial's accuracy, from blue (worst) to orange (best). Follow the orange lines from right to left: which values do they have in common?

# %%
from labkit.tune import plot_curves, plot_parallel

plot_curves(results, "mean_accuracy")

# %%
plot_parallel(results, ["lr", "momentum"], "mean_accuracy", log=["lr"])

# %% [markdown]
# The learning rate matters most: if it is too small, the model learns too slowly; if it is too large, training diverges.
#
# ## Is the checkpoint the model?
# Every trial saved a checkpoint at its end. Load each of them into a fresh `Digits` and evaluate it on the same validation images.

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
# These are compared with `==`, so "nearly the same" would not count. Now evaluate the best model on the test images, which have played no part so far:

# %%
again.reset_config(best.config)
with best.checkpoint.as_directory() as folder:
    again.load_checkpoint(folder)
print(f"accuracy on {len(test)} test images: {again.accuracy(test.images, test.labels):.3f}")

# %% [markdown]
# ## What the four lines bring
# A process costs time before it trains anything: it starts, imports Ray, PyTorch and other packages, and fetches the images. That takes seconds of CPU time, for a
# training that takes tenths of a second.
#
# This lab pays part of that cost in advance. Every trial runs in an actor, whether its trainable is a class or a function, and the lab's actors are forked from the
# *forkserver* of lesson 01, which has imported PyTorch already. On a cluster without it, a process costs more than you measure here. How many processes did the 32
# trials need?

# %%
table["pid"].nunique()

# %% [markdown]
# And without these lines? Line 1 stays, and line 2 changes nothing here, since one CPU is the default for a trial. So this sweep shows what lines 3 and 4 save. Six
# trials are enough to see it.

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
# Here every trial had to start a process of its own. The longer a trial takes, the less this matters; for trials that take an hour the defaults are fine.
#
# You can save a little more: Tune writes each result three times, as JSON, as CSV and for TensorBoard. `TUNE_DISABLE_AUTO_CALLBACK_LOGGERS=1` in the environment turns
# that off, but then you also lose the learning curves above, which are read from these files.

# %% [markdown]
# ## A searcher that learns, and the same training as a function
# ASHA only stops trials; their configurations are drawn at random, without learning from earlier trials. A **searcher** looks at the results so far and proposes the
# next configuration. `OptunaSearch` is one. It can learn only from trials that have finished, so don't run too many at once: `ConcurrencyLimiter` limits their number.
#
# This time the training is a function. Now your loop is in charge again: it looks for a checkpoint when it starts, and passes one along with each report.


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
# Look at the learning rates in the order of the trials. The first ten trials are always drawn at random, because Optuna's default sampler waits for ten finished
# trials before it starts to model them (its `n_startup_trials`). Only the proposals after that can move towards good values. With 16 trials you see just a few of
# these; the small size (`LABKIT_SMALL=1`) has 8 trials, so all of them are random.

# %%
[f"{result.config['lr']:.3f} → {result.metrics['mean_accuracy']:.2f}" for result in results]

# %% [markdown]
# ## Change the configuration under way
# **Population based training** runs a few trials together. Every few iterations the worst trials take over the weights of the best ones, and continue with a
# configuration that is changed a little. So the learning rate can change in the course of a training. For this, Tune uses everything that `Digits` can do: save, load
# and reset. With `quantile_fraction=0.5`, the worse half copies from the better half.
#
# The four trials need not run at the same time. Each asks for two CPUs here. On a machine with two cores this lab has three CPUs, so one trial runs at a time: after
# three steps a trial is paused, with its checkpoint saved, and the next one takes over the process. On a larger machine, several trials run together.

# %%
from ray.tune.schedulers import PopulationBasedTraining

pbt = PopulationBasedTraining(
    time_attr="training_iteration",  # what the interval counts; the default is seconds
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
# *changed 2 ×* in the last column of the table means that a trial was replaced twice by a perturbed copy of a better one: it took over the weights and continued with
# another learning rate. Such a trial was trained with several learning rates, so no single value in the table explains its result. But a trial that was always in the
# better half has kept its learning rate from the beginning to the end, and the best trial may be one of those.

# %% [markdown]
# ## Mistakes that cost nothing
# A sweep with a mistake in it fails 32 times, or waits forever. `panel.watch` checks the sweep before anything starts. Here are five common mistakes, one per cell.
# The messages are the lab's. The text before each cell says what would happen without the check.
#
# The first is a name that the training never reads. Every trial would fail with `KeyError: 'lr'`:

# %% tags=["raises-exception"]
panel = SweepPanel("05-slip")
panel.watch(tuner_of(trainable, {"learning_rate": tune.uniform(0, 1), "momentum": 0.9}))

# %% [markdown]
# The second is a search space in which nothing is searched. Every trial would get the whole list as its learning rate:

# %% tags=["raises-exception"]
panel.watch(tuner_of(trainable, {"lr": [0.1, 0.2], "momentum": 0.9}, num_samples=8))

# %% [markdown]
# The third is a trial that fits on no node, here because it asks for 64 CPUs. If one of your nodes has that many, this cell raises nothing. Without the check, Tune
# would wait and only log a warning:

# %% tags=["raises-exception"]
panel.watch(tuner_of(tune.with_resources(trainable, {"CPU": 64}), space))

# %% [markdown]
# The fourth is reusing actors with a class that has no `reset_config`. The first trial of each process would work, and all later ones would fail:


# %% tags=["raises-exception"]
class OnlyOnce(tune.Trainable):
    def step(self):
        return {"mean_accuracy": self.config["lr"]}


panel.watch(tuner_of(OnlyOnce, {"lr": tune.uniform(0, 1)}, reuse_actors=True))

# %% [markdown]
# The fifth can't be seen before the first report: comparing trials by a metric that the trainable never reports. The sweep stops as soon as the first report arrives.

# %% tags=["raises-exception"]
panel = SweepPanel("05-slip")
tuner = tuner_of(hill, {"a": tune.grid_search([1, 2]), "b": 20}, metric="hieght", reuse_actors=True)
with panel.watch(tuner):
    tuner.fit()

# %% [markdown]
# ## When a trial fails
# In this sweep, one configuration divides by zero and another needs more memory than its process is allowed to use. The trial sets that limit itself, to 1 GB more
# than it uses already. If the whole machine ran out of memory, the kernel would kill the process, and the panel would report that the process is gone.


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
# **Before you go on:** there are five trials, and two of them fail. Does the whole sweep fail? And what is in `results`?

# %%
panel = SweepPanel("05-failures")
tuner = tuner_of(risky, {"x": tune.grid_search([0, 1, 2, 3, 4])}, metric="height", reuse_actors=True)
with panel.watch(tuner):
    results = tuner.fit()
len(results), results.num_errors, results.get_best_result().config

# %% [markdown]
# The other trials continued, and the sweep has their results. The panel shows each traceback with the number of its trial. Each failure also cost a process, so the
# next trial had to wait for a new one.

# %% [markdown]
# ## When the notebook is killed
# A sweep runs overnight, and in the morning the kernel is gone. Tune saves the state of the sweep while it runs, so a new process can restore it and continue. How
# much work is lost depends on two things.
#
# - **How often Tune saves.** By default it saves every ten seconds, or less often if saving takes long. Trials that finish in between run again. With
#   `TUNE_GLOBAL_CHECKPOINT_S=0` in the environment, Tune saves after each event.
# - **What the kill leaves behind.** The state consists of several files, for example the list of trials and the state of the searcher. Tune copies them to the sweep's
#   folder one by one, and while it does, it may already be writing the next state. After a kill, a file can be cut off, or two files can come from different moments.
#   Two things protect you. The panel also saves the whole state as a single file, and `panel.watch` puts it back when you restore. And the folder of this sweep is in
#   the object store of lesson 03, which stores a file completely or not at all; on a plain disk, even the results of finished trials can be cut off.
#
# The next sweep runs in a process of its own, so that you can kill it without losing this notebook. Each trial counts to ten. For each step it appends a line to a
# file, so that you can see later what ran twice, and it saves its count with each report.

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
# The program consists of this function and a sweep over eight trials.

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
lab, store = cluster.start(), storage.start()  # connects to those that are running
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
# Start it, wait until some trials have counted to ten, and kill it with `SIGKILL`, which gives a process no chance to clean up. This is also what the kernel does when
# memory runs out.

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
# To continue, a new process needs the sweep's path with its filesystem, and *the same trainable*. Everything else is in the folder: the trials, how far they got, and
# the state of the search. `can_restore` checks whether a folder has a sweep.

# %%
path = f"{folder}/{name}"
[tune.Tuner.can_restore(one, storage_filesystem=store.filesystem) for one in (path, f"{folder}/another")]

# %% [markdown]
# Where `can_restore` returns `False`, `restore` raises a `FileNotFoundError` for a file named `tuner.pkl`. That means the path is wrong: it has to be the folder of
# the *sweep*, not the folder of a trial, and not the one above. But `can_restore` only checks that this file exists. If a kill has cut it off, `restore` fails with an
# `EOFError` or an `UnpicklingError`, and then the path is right and the file is broken.

# %%
before = len(steps())
panel = SweepPanel("05-killed")
tuner = tune.Tuner.restore(path, trainable=count, storage_filesystem=store.filesystem)
with panel.watch(tuner):
    results = tuner.fit()

# %% [markdown] tags=["prediction"]
# **Before you go on:** each of eight trials had to count to ten. How many lines will the file have, if no trial ran twice and no step was lost?

# %%
print(f"{len(results)} trials, all of them at { ({result.metrics['count'] for result in results}) }")
again = [x for x, number in steps()[before:] if x in done]
print(f"{len(steps())} steps in all, {len(again)} of them by trials that were done before")

# %% [markdown]
# Trials that had finished were not run again. Trials that were cut off continued from their last checkpoint. A step or two may be in the file twice: they ran just
# before the kill, and were not saved yet.
#
# The opposite mistake is a trap: if you start a *new* sweep under an *old* name, it writes into the same folder, and the results of both are mixed. Tune doesn't
# refuse that. The panel does:

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
# Older tutorials passed a trainer to Tune, with `as_trainable` or a `TrainingOperator`. Both are gone. What replaces them is simpler: the trial is a small function,
# the **driver**, which builds a `TorchTrainer` and calls `fit()`. The trainer's workers are processes of their own, separate from the driver's. Ray also uses the word
# for the process that connects to a cluster, such as your notebook; here it is always the trial's function.
#
# We start with the loop. `train_one_epoch` and `validate` do what the methods `train_epoch` and `validate` of a `TrainingOperator` did. With `torch.autocast` the
# model computes in **mixed precision**: matrix products and convolutions use a 16-bit dtype. That roughly halves the memory for activations, and many GPUs are at
# least twice as fast with it. The parameters, the gradients and the optimizer's state stay in `float32`. `bfloat16` works on CPUs, too. `float16` needs a
# `GradScaler`, because small gradients would otherwise be rounded to zero.
#
# `train_loop` uses the global `data`, so the images are pickled along with it, once for each trial. For the digits, which are about a megabyte, that is fine. Keep a
# large data set in the store instead and let each worker read its part, as in lesson 03.


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
    share = slice(rank, len(data["train"][1]) // world_size * world_size, world_size)  # equal shards
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
# Now the driver. `TuneReportCallback` passes each report of rank 0 on to Tune, so that the panel shows it and a scheduler could stop the trial. Mind the names:
# `ray.train.RunConfig` configures the run of the trainer, and `tune.RunConfig` configures the sweep. They are two classes. In the same way, the workers call
# `ray.train.report`, not `tune.report`.

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
# Now count CPUs. A driver holds its CPU for as long as its trainer runs, and the workers need theirs at the same time. If the drivers take all CPUs, each of them
# waits for workers that can never start. This is a **deadlock**. After 60 seconds Ray Train stops waiting, logs a `WorkerGroupStartupTimeoutError`, and tries again,
# without end. In this lab you wouldn't even see that, because the message only goes to a log file. Two numbers prevent the deadlock: the CPUs that a driver asks for,
# and how many drivers run at a time.

# %% [markdown]
# ### Exercise 05-4 · Drivers and workers
# Write a function that returns how many trials can run at a time. Each trial has one driver and some workers.


# %%
def trials_at_once(cpus, workers, cpus_per_worker, cpus_per_driver): ...  # your answer


# %% tags=["solution"]
def trials_at_once(cpus, workers, cpus_per_worker, cpus_per_driver):
    return int(cpus // (workers * cpus_per_worker + cpus_per_driver))


# %%
check("05-4", trials_at_once)

# %% [markdown]
# A driver computes nothing. Tune rejects a trial that asks for no resources at all, so the driver asks for a tenth of a CPU.
#
# The next cell counts CPUs only. On a cluster with GPUs, count those instead: with `use_gpu=True` a worker asks for one GPU and no CPU, so at most `gpus // workers`
# trials run at a time. In both cases each worker has to fit on *one* node.

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
# The accuracy is nearly the same, although the matrix products were computed in 16 bits. Whether that is faster depends on the machine: most GPUs are faster with it,
# and a CPU without instructions for `bfloat16` is slower. Most of the seconds in the table are the start of the workers, which you measured in lesson 03.
#
# Each checkpoint is in the storage of its own `TorchTrainer` run. Tune only gets its path, as the metric `checkpoint_path`:

# %%
best = results.get_best_result()
checkpoint = tune.Checkpoint(best.metrics["checkpoint_path"], filesystem=filesystem)
model = cnn(seed=None)
with checkpoint.as_directory() as place:
    print("epoch", load_state(place, model)["epoch"] + 1)
validate(model, *data["valid"])["accuracy"], best.metrics["accuracy"]

# %% [markdown]
# And if you have two models and two optimizers, as in a GAN? The loop is yours: build both, step both, and save both in the checkpoint. A `TrainingOperator` needed a
# special form for that.
#
# | older tutorials write | today |
# |---|---|
# | `tune.run(Digits, config=…, num_samples=…)` | `tune.Tuner(Digits, param_space=…, tune_config=…).fit()` |
# | `tune.report(mean_accuracy=…)`, `with tune.checkpoint_dir(…)` | `tune.report({…}, checkpoint=…)` |
# | `_setup`, `_train`, `_save`, `_restore` | `setup`, `step`, `save_checkpoint`, `load_checkpoint` |
# | `progress_reporter=JupyterNotebookReporter(…)` | a `tune.Callback`, which always runs. `progress_reporter=` works in a notebook, but a script ignores it unless `RAY_AIR_NEW_OUTPUT=0` is set |
# | `Tuner(TorchTrainer(…))`, `as_trainable`, `TrainingOperator` | a driver function, as above |
# | `tune.run(…, resume=True)` | `tune.Tuner.restore(path, trainable=…)` |

# %% [markdown]
# ### Exercise 05-5 · Which tool?
# Here are four situations. For each, choose `"grid"`, `"asha"`, `"optuna"` or `"pbt"`.
#
# 1. You have two optimizers and three widths, and your report must list every pair.
# 2. You want to try 200 random configurations of a training that shows within its first minutes whether it is any good.
# 3. One training takes an hour and tells you nothing before its end. You can afford 20 of them, one after the other.
# 4. In a long training, the learning rate should change along the way.

# %%
tools = [..., ..., ..., ...]  # your answer

# %% tags=["solution"]
tools = ["grid", "asha", "optuna", "pbt"]

# %%
check("05-5", tools)

# %% [markdown]
# ## In this notebook
# - you wrapped a training as a class and as a function, and saw that a training resumed without the optimizer's state ends up with different weights;
# - you counted trials before you paid for them: multiply the lengths of the grids, then multiply by `num_samples`;
# - ASHA stopped most of 32 trials at its rungs, and every checkpoint gave exactly the accuracy that its trial had reported;
# - you measured what starting a process costs, and reused processes to avoid most of that cost;
# - a searcher proposed configurations, and population based training changed them during a training;
# - the panel caught mistakes before they cost anything, failing trials did not stop the others, and a killed sweep continued where it had stopped;
# - each trial was a distributed training, and you can count the CPUs that it needs.

# %%
store.stop()
lab.stop()
