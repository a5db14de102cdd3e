# %% [markdown]
# # 05 · From one training to many: Tune
#
# By the end of this lesson you can
# - say how many trials a search space has before you start it (exercise 05-1);
# - write a trainable that Tune can start, stop, save and reuse (05-2);
# - stop bad trials early with ASHA, and say what its settings change (05-3);
# - fix a sweep that would fail or wait forever (05-4);
# - count how many distributed trainings run at a time (05-5, extra).
#
# **Time** … · **Needs** 00, 01; 02 and 03 for two extra sections

# %% [markdown]
# Suppose you have to find a learning rate, a training takes ten minutes on a GPU, and you want to try 200 configurations. That is 33 hours. With eight GPUs it is four
# hours, and two if stopping bad configurations early saves half of the epochs. Such a search is called a **sweep**, and each configuration that it tries is a **trial**. Ray's library for it is Tune.

# %%
from labkit import cluster, datasets
from labkit.exercises import check, hint, predict, reveal
from labkit.settings import Settings

settings = Settings.from_env()
lab = cluster.start()
lab

# %% [markdown]
# ## A sweep in one call
# What Tune runs is called a **trainable**. The first one is a function that costs nothing: a hill whose top is at a = 3, b = 20. It reports its result with `tune.report`.

# %%
from ray import tune


def hill(config):
    height = -((config["a"] - 3) ** 2) - (config["b"] - 20) ** 2 / 100
    tune.report({"height": height + config["noise"]})


# %% [markdown]
# The **search space** says which configurations are possible. `grid_search` tries every value of its list. Others draw one value at random for each trial: `uniform` in a range, `loguniform` with each
# power of ten equally often. A plain value, even a list, is passed to every trial. `num_samples=2` runs the whole grid twice.

# %%
space = {
    "a": tune.grid_search([1, 2, 3]),
    "b": tune.grid_search([10, 20]),
    "noise": tune.uniform(0, 0.1),
}

# %% [markdown] tags=["prediction"]
# **Predict.** How many trials will the next cell run?

# %%
predict("05-a", ...)  # a number

# %%
folder = str(settings.home / "runs" / "05-tune")
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
# Multiply the lengths of the grids, then multiply by `num_samples`: 3 × 2 × 2. A random value multiplies nothing. The results go into the
# folder `storage_path`, and `get_best_result` compares the trials by `metric`:

# %%
best = results.get_best_result()
best.config

# %% tags=["claim"]
assert len(results) == 3 * 2 * 2 == len({result.config["noise"] for result in results})
assert (best.config["a"], best.config["b"]) == (3, 20)

# %% [markdown]
# ### Exercise 05-1 · Count before you pay
# ```python
# param_space = {
#     "optimizer": tune.grid_search(["sgd", "adam"]),
#     "width": tune.grid_search([32, 64, 128, 256]),
#     "lr": tune.loguniform(1e-4, 1),
#     "seed": 7,
# }
# ```
# How many trials do you get with `num_samples=5`? How many if the width were `tune.choice([32, 64, 128, 256])`, which draws one of the four at random? If you are stuck: `hint("05-1")`.

# %%
trials = ...  # your answer
with_choice = ...  # your answer

# %% tags=["solution"]
trials = 2 * 4 * 5
with_choice = 2 * 5

# %%
check("05-1", trials, with_choice)

# %% [markdown]
# ## A training that Tune can drive
# To pause a trial, or to hand its process to the next trial, Tune needs a training that can make one step, save, load, and start over with another configuration. Here is one for the digits.

# %% tags=["long"]
import torch
from labkit.models.torch import batches, evaluate, load_state, mlp, save_state, train_epoch


class Training:
    def __init__(self, config, data):
        self.data, self.epoch = data, 0
        self.model = mlp((32,), seed=0)
        weights = self.model.parameters()
        self.optimizer = torch.optim.SGD(weights, lr=config["lr"], momentum=config["momentum"])

    def train_one_epoch(self):
        rows = batches(*self.data["train"], size=64, seed=self.epoch)
        train_epoch(self.model, rows, torch.nn.functional.cross_entropy, self.optimizer)
        self.epoch += 1
        return {"accuracy": self.accuracy(*self.data["valid"])}

    def accuracy(self, images, labels):
        return evaluate(self.model, batches(images, labels, size=512, shuffle=False))["accuracy"]

    def save(self, folder):
        save_state(folder, self.model, self.optimizer, self.epoch)

    def load(self, folder):
        self.epoch = load_state(folder, self.model, self.optimizer)["epoch"]


# %% [markdown]
# A sweep compares trials on images. Don't use the test images for that: if you try 32 models and keep the one with the best test score, you have fitted the *choice* to the test set, and its score is
# too optimistic. So a fifth of the training images is for **validation**.

# %%
everything, test = datasets.load(split="train"), datasets.load(split="test")
cut = len(everything) * 4 // 5
data = {
    "train": (everything.images[:cut], everything.labels[:cut]),
    "valid": (everything.images[cut:], everything.labels[cut:]),
}
one = Training({"lr": 0.05, "momentum": 0.9}, data)
[round(one.train_one_epoch()["accuracy"], 3) for _ in range(3)]

# %% [markdown] tags=["instructor"]
# **Why a third data set?** If you choose among 32 models by their test score, the score of the chosen one is too optimistic. Choose by validation
# images, and test once.

# %% [markdown]
# Now save it, load the checkpoint into a second training, and let both train one more epoch. A third training gets the model, but not the state of the optimizer.

# %%
import tempfile

other, forgetful = (Training({"lr": 0.05, "momentum": 0.9}, data) for _ in range(2))
with tempfile.TemporaryDirectory() as place:
    one.save(place)
    other.load(place)
    forgetful.epoch = load_state(place, forgetful.model)["epoch"]

# %% [markdown] tags=["prediction"]
# **Predict.** Which of the two copies will have exactly the weights of the first training after this epoch?

# %%
predict("05-b", ..., choices=["both", "the complete copy", "neither"])

# %%
from labkit.models.torch import parameter_distance

for each in (one, other, forgetful):
    each.train_one_epoch()
distances = [parameter_distance(one.model, copy.model) for copy in (other, forgetful)]
equal = [distance == 0 for distance in distances]
reveal("05-b", "both" if all(equal) else "the complete copy" if equal[0] else "neither")
distances

# %% tags=["claim"]
assert distances[0] == 0 < 1e-3 < distances[1]

# %% [markdown]
# The first difference is exactly zero. The second is not, because with *momentum* each update also depends on the updates before it, and the optimizer stores those. A checkpoint is model *and*
# optimizer.
#
# ## The adapter: `tune.Trainable`
# Tune doesn't know these methods, so a class that derives from `tune.Trainable` passes each call on:


# %%
class Digits(tune.Trainable):
    def setup(self, config, data):
        torch.set_num_threads(1)
        self.data = data
        self.training = Training(config, data)

    def reset_config(self, config):
        self.training = Training(config, self.data)
        return True

    def step(self):
        return self.training.train_one_epoch()

    def save_checkpoint(self, folder):
        self.training.save(folder)

    def load_checkpoint(self, folder):
        self.training.load(folder)


# %% [markdown]
# Tune calls `setup` once in each process and `step` again and again. It calls `reset_config` to give a process its next trial; return `True` to confirm that nothing of the old trial is left. The
# other two get the path of a folder.

# %% [markdown]
# ### Exercise 05-2 · A trainable of your own
# Write gradient descent on (x − 3)² as a trainable. `x` starts at 0. A step computes `x -= config["lr"] * 2 * (x - 3)` and returns `{"loss": (x - 3) ** 2}`. Keep in `self` whatever `step` needs. The check calls
# the five methods here, then sweeps three learning rates on your cluster.


# %%
class Descent(tune.Trainable):
    def setup(self, config): ...  # your answer

    def reset_config(self, config): ...

    def step(self): ...

    def save_checkpoint(self, folder): ...

    def load_checkpoint(self, folder): ...


# %% tags=["solution"]
class Descent(tune.Trainable):
    def setup(self, config):
        self.reset_config(config)

    def reset_config(self, config):
        self.x, self.lr = 0.0, config["lr"]
        return True

    def step(self):
        self.x -= self.lr * 2 * (self.x - 3)
        return {"loss": (self.x - 3) ** 2}

    def save_checkpoint(self, folder):
        with open(f"{folder}/x.txt", "w") as file:
            file.write(repr(self.x))

    def load_checkpoint(self, folder):
        with open(f"{folder}/x.txt") as file:
            self.x = float(file.read())


# %%
check("05-2", Descent)

# %% [markdown] tags=["instructor"]
# **What is `reset_config` for?** It gives a process its next trial. It must return `True`, and nothing of the old trial may be left.

# %% [markdown]
# ## What a trial gets
# Each trial runs in an actor, a process of its own. Two functions say what it gets. `with_parameters` puts the images into Ray's object store once, and each process reads them from there.
# `with_resources` says what the trial asks for, and Tune runs as many trials at a time as fit into the cluster. Fractions work: with `{"GPU": 0.25}` four trials share a GPU.

# %%
gpus = 1 if settings.use_gpu else 0
trainable = tune.with_resources(tune.with_parameters(Digits, data=data), {"CPU": 1, "GPU": gpus})

# %% [markdown] tags=["instructor"]
# **A sweep waits and no trial starts.** Its trials want more CPUs than one node has. `panel.watch(tuner)` counts, and says what fits. If the numbers
# fit, another notebook or an actor holds the CPUs.

# %% [markdown]
# ## Stop the bad ones early
# Most configurations are bad, and most of the bad ones look bad after one epoch. `ASHAScheduler` compares trials after certain numbers of steps, which Tune calls **iterations**. These numbers are the
# **rungs**, here 1, 3 and 9. A trial that reaches a rung is compared with all trials that reached it before (the first one always continues). If it is among the best third, it continues; otherwise it is stopped.
#
# ![A smaller sweep with rungs 1 and 3 and max_t=9. Of nine trials, six stop at the first rung, two at the second, and one reaches max_t](images/rungs.svg)
#
# - `grace_period=1`: no trial is stopped before the first rung.
# - `reduction_factor=3`: at each rung the best third continues, and each rung is at three times the iterations of the one before.
# - `max_t=27` (9 in the picture): after this many iterations a trial ends, however good it is. No trial is compared there.
#
# ASHA doesn't wait until all trials have reached a rung; that is the *asynchronous* in its name. So no CPU idles, but the first trials at a rung are compared with only a few others.

# %%
from ray.tune.schedulers import ASHAScheduler

asha = ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3)

# %% [markdown]
# Two options save processes. With `reuse_actors` a process that has finished a trial takes the next one, by `reset_config`. `max_concurrent_trials` limits how many trials run at a time.

# %%
from labkit.tune import SweepPanel

panel = SweepPanel("05-asha", dataset=test.name)
tuner = tune.Tuner(
    trainable,
    param_space={"lr": tune.loguniform(1e-3, 1), "momentum": tune.uniform(0, 0.95)},
    tune_config=tune.TuneConfig(
        metric="accuracy", mode="max", num_samples=32, scheduler=asha,
        reuse_actors=True, max_concurrent_trials=settings.num_workers,
    ),
    run_config=tune.RunConfig(
        name=panel.run_id, storage_path=folder, callbacks=[panel.callback()],
        checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
    ),
)  # fmt: skip

# %% [markdown] tags=["prediction"]
# **Predict.** 32 trials of 27 epochs each would be 864 epochs. How many will this sweep train?

# %%
predict("05-c", ...)  # a number

# %%
with panel.watch(tuner):
    results = tuner.fit()
table = results.get_dataframe()
reveal("05-c", int(table["training_iteration"].sum()))

# %% [markdown] tags=["instructor"]
# **ASHA trains more epochs than the formula says.** The first trials at a rung have few others to lose against, because nothing waits. The table
# after the sweep shows where trials ended.

# %% [markdown]
# Each grey line is a trial, and the dotted lines are the rungs. If every rung let exactly a third through, the sweep would take about 32 × 1 + 11 × 2 + 4 × 6 + 1 × 18 = 96 epochs. It often takes twice as many.

# %%
table.groupby("training_iteration").size().rename("trials that ended here")

# %% tags=["claim"]
assert 96 <= table["training_iteration"].sum() < 864 / 2
assert set(table["training_iteration"]) <= {1, 3, 9, 27}
assert table["pid"].nunique() <= settings.num_workers

# %% [markdown]
# ### Exercise 05-3 · Other rungs
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
# ## Is the checkpoint the model?
# Every trial saved a checkpoint at its end. Load each of them into a fresh `Training`, evaluate it on the same validation images, and compare with `==`.


# %%
def trained(result):
    training = Training(result.config, data)
    with result.checkpoint.as_directory() as place:
        training.load(place)
    return training


same = sum(trained(one).accuracy(*data["valid"]) == one.metrics["accuracy"] for one in results)
print(f"{same} of {len(results)} checkpoints give the very number that was reported")

# %% [markdown]
# Now evaluate the best model on the test images, which have played no part so far. In the picture a dot is a trial; brighter is better. If the learning rate is too small,
# the model learns too slowly; if it is too large, training diverges.

# %%
import matplotlib.pyplot as plt
from labkit.display import figure_style

accuracy = trained(results.get_best_result()).accuracy(test.images, test.labels)
print(f"accuracy on {len(test)} test images: {accuracy:.3f}")
plt.rcParams.update(figure_style())
axes = table.plot.scatter("config/lr", "config/momentum", c="accuracy", logx=True, edgecolors="grey")

# %% [markdown] tags=["instructor"]
# **Another learning rate won on the neighbour's machine.** That's expected: the 32 configurations are drawn at random, without a seed. Say: "Compare
# the regions of bright dots, and not the winners."

# %% tags=["claim"]
assert same == len(results) == 32 and accuracy >= 0.95

# %% [markdown]
# ## A sweep that cannot work
# `hill` reads `config["a"]`. The space of this sweep names it `alpha`. Expect two long tracebacks; the last line of the output matters.

# %%
run = tune.RunConfig(storage_path=folder, verbose=0)
wrong = {"alpha": tune.grid_search([1, 2]), "b": 20, "noise": 0}
tuner = tune.Tuner(hill, param_space=wrong, run_config=run)
results = tuner.fit()
results.num_errors, str(results.errors[0]).splitlines()[-1]

# %% [markdown] tags=["instructor"]
# **Two long tracebacks in *A sweep that cannot work*.** They're intended, and the text announces them. Say: "Read the last line only."

# %% [markdown]
# Tune logs every traceback. `fit()` raises nothing: each of its results has an error. If trials ask for more than any node has, Tune raises nothing either, and waits forever. `panel.watch` compares
# the two, so the next cell raises and starts nothing:

# %% tags=["claim"]
assert results.num_errors == 2 and "KeyError" in str(results.errors[0])

# %% tags=["raises-exception"]
greedy = tune.with_resources(hill, {"CPU": 64})
SweepPanel("05-slip").watch(tune.Tuner(greedy, param_space=space, run_config=run))

# %% [markdown]
# ### Exercise 05-4 · Fix this sweep
# Five things are wrong in the cell below. Some of them raise an error, one lets the sweep wait forever, and one returns the *worst* trial as the best. Fix them. The check looks at the `Tuner` first, as
# `panel.watch` did, and then runs it.


# %%
def descend(config):
    x = 0.0
    for _ in range(10):
        x -= config["lr"] * 2 * (x - 3)
    tune.report({"loss": (x - 3) ** 2})


def fixed_sweep():  # your answer: fix it
    return tune.Tuner(
        tune.with_resources(descend, {"CPU": 64}),
        param_space={"learning_rate": [0.01, 0.1, 0.5]},
        tune_config=tune.TuneConfig(metric="lost", mode="max", reuse_actors=True),
        run_config=tune.RunConfig(storage_path=folder),
    )


# %% tags=["solution"]
def fixed_sweep():
    return tune.Tuner(
        tune.with_resources(descend, {"CPU": 1}),
        param_space={"lr": tune.grid_search([0.01, 0.1, 0.5])},
        tune_config=tune.TuneConfig(metric="loss", mode="min", reuse_actors=True),
        run_config=tune.RunConfig(storage_path=folder),
    )


# %%
check("05-4", fixed_sweep)

# %% [markdown] tags=["instructor"]
# **"I fixed it, and now it complains about something else." (05-4)** The check stops at the first mistake that it finds: CPUs, the plain list, the
# name, the metric, then the mode. Say: "Five mistakes, up to five messages."

# %% [markdown] tags=["extra"]
# ## Extra: which GPU a trial gets
# A trial that asks for a GPU gets its number in the environment variable `CUDA_VISIBLE_DEVICES`, and CUDA then hides all other GPUs from the process. Ask a trial what it sees:


# %%
def look(config):
    import os

    tune.report({"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "not set")})


run = tune.RunConfig(storage_path=folder, verbose=0)
tuner = tune.Tuner(tune.with_resources(look, {"CPU": 1, "GPU": gpus}), run_config=run)
tuner.fit()[0].metrics["CUDA_VISIBLE_DEVICES"]

# %% [markdown]
# Without a GPU in the request, Ray 2.60 leaves the variable alone, so such a trial sees every GPU of its machine. Older versions set it to an empty text, which hid them all. And a reserved GPU
# computes nothing by itself: the model has to be moved there, `self.model.to("cuda")`. `train_epoch` and `evaluate` then move each batch to the model's device.

# %% [markdown] tags=["extra"]
# ## Extra: what reusing processes saves
# A process costs time before it trains anything: it starts, imports PyTorch and fetches the images. This lab pays part of that in advance, because its actors are forked from a process that has
# imported PyTorch already (lesson 01). On a cluster without it, a process costs more than you measure here. How many processes did the 32 trials need, and what do four trials cost without
# `reuse_actors`? They train six epochs each, about as many as ASHA's trials on average, so compare the seconds per epoch.

# %%
panel = SweepPanel("05-no-reuse", dataset=test.name)
tuner = tune.Tuner(
    tune.with_parameters(Digits, data=data),
    param_space={"lr": tune.loguniform(1e-3, 1), "momentum": tune.uniform(0, 0.95)},
    tune_config=tune.TuneConfig(
        metric="accuracy", mode="max", num_samples=4, max_concurrent_trials=settings.num_workers
    ),
    run_config=tune.RunConfig(
        name=panel.run_id,
        storage_path=folder,
        stop={"training_iteration": 6},
        callbacks=[panel.callback()],
    ),
)
with panel.watch(tuner):
    slow = tuner.fit()

# %%
from labkit import runs

for name, found in (("05-asha", table), ("05-no-reuse", slow.get_dataframe())):
    seconds = runs.latest(name).seconds_total / found["training_iteration"].sum()
    print(f"{name}: {len(found)} trials in {found['pid'].nunique()} processes, {seconds:.2f} s per epoch")

# %% tags=["claim"]
assert slow.get_dataframe()["pid"].nunique() == 4

# %% [markdown]
# Here every trial started a process of its own. The longer a trial takes, the less this matters; for trials that take an hour the defaults are fine.

# %% [markdown] tags=["extra"]
# ## Extra: when a trial fails
# In this sweep, one configuration divides by zero and another needs more memory than its process may use. Before it allocates, the trial limits its own memory to 1 GB more than it uses.


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


# %% [markdown]
# The sweeps of the extra sections differ little, so a function saves some typing:


# %%
def sweep(name, trainable, space, *, metric="accuracy", stop=None, **options):
    panel = SweepPanel(name, dataset=test.name)
    run = tune.RunConfig(name=panel.run_id, storage_path=folder, stop=stop, callbacks=[panel.callback()])
    options = tune.TuneConfig(metric=metric, mode="max", reuse_actors=True, **options)
    tuner = tune.Tuner(trainable, param_space=space, tune_config=options, run_config=run)
    with panel.watch(tuner):
        return tuner.fit()


# %% [markdown] tags=["prediction"]
# **Predict.** The first two of five trials fail. What happens to the other three?

# %%
predict("05-d", ..., choices=["they run", "they are stopped", "they never start"])

# %%
results = sweep("05-failures", risky, {"x": tune.grid_search([0, 1, 2, 3, 4])}, metric="height")
reveal("05-d", "they run" if len(results) - results.num_errors == 3 else "they are stopped")

# %% tags=["claim"]
assert (len(results), results.num_errors) == (5, 2)

# %% [markdown]
# The others ran, and the sweep has their results. Each failure also cost a process, so the next trial had to wait for a new one.

# %% [markdown] tags=["extra"]
# ## Extra: when the notebook is killed
# A sweep runs overnight, and in the morning the kernel is gone. Tune saves the state of the sweep while it runs, so a new process can restore it. How much work is lost depends on two things.
#
# - **How often Tune saves.** By default every ten seconds, or less often if saving takes long. With `TUNE_GLOBAL_CHECKPOINT_S=0` in the environment, Tune saves after each event.
# - **What the kill leaves behind.** The state consists of several files, and Tune copies them one by one. After a kill, a file can be cut off, or two files can come from different moments. So the panel
#   also saves the whole state as a single file, and `panel.watch` puts it back when you restore. Without the lab, at least keep the sweep in an object store (lesson 02), as here: it stores a file completely or not at all.
#
# The sweep runs in a process of its own, so that you can kill it without losing this notebook. Each of its six trials counts to ten. For each step it adds a line to a file, so that you can see later
# what ran twice.

# %%
import time
from pathlib import Path


def count(config):
    done, checkpoint = 0, tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as place:
            done = int(Path(place, "count").read_text())
    for number in range(done + 1, 11):
        time.sleep(0.1)
        with open(config["log"], "a") as log:
            log.write(f"{config['x']} {number}\n")
        with tempfile.TemporaryDirectory() as place:
            Path(place, "count").write_text(str(number))
            tune.report({"count": number}, checkpoint=tune.Checkpoint.from_directory(place))


# %% [markdown]
# The next two cells write two files: this function, and a program that sweeps over it. `register_pickle_by_value` sends the function's code to the trials, because they can't import a file of yours.

# %%
import inspect

imports = "import tempfile\nimport time\nfrom pathlib import Path\n\nfrom ray import tune\n\n\n"
(settings.home / "counting.py").write_text(imports + inspect.getsource(count))
program = settings.home / "killed_sweep.py"

# %% tags=["long"]
# %%writefile "{program}"
import os
import sys

os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = "0"

import counting
from labkit import cluster, storage
from labkit.tune import SweepPanel
from ray import cloudpickle, tune

cloudpickle.register_pickle_by_value(counting)
path, name, log = sys.argv[1:]
lab, store = cluster.start(), storage.start()  # connects to those that are running
panel = SweepPanel("05-killed")
tuner = tune.Tuner(
    counting.count,
    param_space={"x": tune.grid_search(list(range(6))), "log": log},
    tune_config=tune.TuneConfig(metric="count", mode="max", reuse_actors=True, max_concurrent_trials=2),
    run_config=tune.RunConfig(
        name=name, storage_path=path, storage_filesystem=store.filesystem, callbacks=[panel.callback()]
    ),
)
with panel.watch(tuner):
    tuner.fit()

# %% [markdown]
# Start the program, wait until three trials have counted to ten, and kill it with `SIGKILL`, which gives a process no chance to clean up.

# %%
from labkit import storage

store = storage.start()
path, name = store.storage_path("runs"), SweepPanel("05-killed").run_id
log = settings.home / f"{name}.txt"
log.touch()


def steps():
    return [line.split() for line in log.read_text().splitlines()]


def finished_trials():
    return {x for x, number in steps() if number == "10"}


# %%
import subprocess
import sys

command = [sys.executable, program, path, name, log]
process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while len(finished_trials()) < 3 and process.poll() is None:
    time.sleep(0.1)
done = finished_trials()
time.sleep(1)  # until Tune has saved that they are over
process.kill()
status, before = process.wait(), len(steps())
status, sorted(done)

# %% [markdown]
# To restore the sweep, a new process needs its path with the filesystem, and *the same trainable*. Everything else is in the folder. `can_restore` checks whether a folder has a sweep. If it returns
# `False`, look at the path: it has to be the folder of the *sweep*, neither that of a trial nor the one above.

# %%
sweeps = (f"{path}/{name}", f"{path}/another")
[tune.Tuner.can_restore(one, storage_filesystem=store.filesystem) for one in sweeps]

# %% [markdown] tags=["prediction"]
# **Predict.** Six trials have to count to ten. How many lines will the file have after the restored sweep?

# %%
predict("05-e", ..., choices=["fewer than 60", "60 to 70", "more than 70"])

# %%
panel = SweepPanel("05-killed")
tuner = tune.Tuner.restore(f"{path}/{name}", trainable=count, storage_filesystem=store.filesystem)
with panel.watch(tuner):
    results = tuner.fit()
lines = len(steps())
reveal("05-e", "fewer than 60" if lines < 60 else "60 to 70" if lines <= 70 else "more than 70")

# %%
print(f"{len(results)} trials, all of them at", {result.metrics["count"] for result in results})
again = [x for x, number in steps()[before:] if x in done]
print(f"{len(steps())} steps in all, {len(again)} of them by trials that were done before")

# %% tags=["claim"]
assert 60 <= len(steps()) <= 70 and not again, (len(steps()), again)
assert [result.metrics["count"] for result in results] == [10] * 6

# %% [markdown]
# No finished trial ran again. Trials that were cut off continued from their last checkpoint. A step or two may be in the file twice: they ran just before the kill, and were not saved yet. Don't start a
# *new* sweep under an *old* name: Tune writes both into the same folder and mixes their results. `panel.watch` refuses that.

# %%
store.stop()

# %% [markdown] tags=["extra"]
# ## Extra: a searcher that learns, and the training as a function
# ASHA only stops trials; their configurations are drawn at random. A **searcher** looks at the results so far and proposes the next configuration. `OptunaSearch` is one. Its default sampler draws the
# first ten trials at random; `n_startup_trials=4` lets it learn sooner. It learns only from trials that have finished, so `ConcurrencyLimiter` limits how many run at a time.
#
# This time the training is a function, around the same `Training`. Your loop is in charge again: it looks for a checkpoint when it starts, and passes one along with each report. The function `sweep` is
# that of *when a trial fails*.


# %%
def train_digits(config, data):
    training, checkpoint = Training(config, data), tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as place:
            training.load(place)
    while training.epoch < 3:
        metrics = training.train_one_epoch()
        with tempfile.TemporaryDirectory() as place:
            training.save(place)
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(place))


# %%
import optuna
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch

optuna.logging.set_verbosity(optuna.logging.ERROR)
sampler = optuna.samplers.TPESampler(n_startup_trials=4, seed=0)
results = sweep(
    "05-optuna",
    tune.with_parameters(train_digits, data=data),
    {"lr": tune.loguniform(1e-3, 1), "momentum": tune.uniform(0, 0.95)},
    num_samples=6 if settings.small else 16,
    search_alg=ConcurrencyLimiter(OptunaSearch(sampler=sampler), max_concurrent=2),
)
[f"{one.config['lr']:.3f} → {one.metrics['accuracy']:.2f}" for one in results]

# %% [markdown]
# The first four are random, the later ones are proposals. Some of them explore, so with as few trials as here a searcher is not reliably better than chance. It pays off with several dozen trials, each of
# them expensive.

# %% [markdown] tags=["extra"]
# ## Extra: change the configuration during a training
# **Population based training** runs a few trials together. Every few iterations the worst trials take over the weights of the best ones, and continue with a configuration that is changed a little. For
# this, Tune uses everything that `Digits` can do: save, load and reset. With `quantile_fraction=0.5` the worse half copies from the better half. Each trial asks for two CPUs. If your cluster has
# room for only one trial at a time, the four take turns: a trial is paused, with its checkpoint saved, and the next one takes over the process. The function `sweep` is that of *when a trial fails*.

# %%
from ray.tune.schedulers import PopulationBasedTraining

pbt = PopulationBasedTraining(
    time_attr="training_iteration",  # what the interval counts; the default is seconds
    perturbation_interval=3,
    hyperparam_mutations={"lr": tune.loguniform(1e-3, 1)},
    quantile_fraction=0.5,
)
space = {"lr": tune.grid_search([0.001, 0.003, 0.03, 0.1]), "momentum": 0.5}
two_cpus = tune.with_resources(trainable, {"CPU": 2, "GPU": gpus})
results = sweep("05-pbt", two_cpus, space, scheduler=pbt, stop={"training_iteration": 9})

# %% [markdown]
# *changed 2 ×* in the last column of the table means that a trial was replaced twice by a changed copy of a better one. Such a trial was trained with several learning rates, so no single value in the
# table explains its result. A trial that was always in the better half has kept its learning rate, and the best trial may be one of those.

# %% [markdown] tags=["extra"]
# ## Extra: a sweep of distributed trainings
# If each trial is itself distributed, the trial is a small function that builds a `TorchTrainer` and calls `fit()`. It is called the *trial's driver* here. The workers are processes of their own.
# `data` is pickled along with the loop, once per trial, which is fine for a few megabytes. The function `sweep` is that of *when a trial fails*.
#
# What the sweep compares is **mixed precision**. With `torch.autocast`, matrix products and convolutions use a 16-bit dtype, which roughly halves the memory for activations. Parameters, gradients and the
# optimizer's state stay in `float32`. (`float16` also needs a `GradScaler`, because small gradients would be rounded to zero.)

# %%
import ray.train
from labkit import storage
from labkit.models.torch import cnn
from ray.train.torch import get_device, prepare_model

store = storage.start()


def one_epoch(model, optimizer, rows, precision, device):
    model.train()
    for x, y in rows:
        with torch.autocast(device, dtype=precision, enabled=precision != torch.float32):
            loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# %%
def train_loop(config):
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    images, labels = (part[: len(part) // workers * workers][rank::workers] for part in data["train"])
    model = prepare_model(cnn(seed=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for epoch in range(config["epochs"]):
        rows = batches(images, labels, size=128 // workers, seed=epoch)
        one_epoch(model, optimizer, rows, getattr(torch, config["precision"]), get_device().type)
        found = evaluate(model, batches(*data["valid"], size=512, shuffle=False))
        with tempfile.TemporaryDirectory() as place:
            save_state(place, model, optimizer, epoch)
            ray.train.report(
                found, checkpoint=ray.train.Checkpoint.from_directory(place) if rank == 0 else None
            )


# %% [markdown]
# `TuneReportCallback` passes each report of rank 0 on to Tune. Mind the names: `ray.train.RunConfig` configures the run of the trainer and `tune.RunConfig` the sweep, and the workers call
# `ray.train.report`, not `tune.report`.

# %%
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.tune.integration.ray_train import TuneReportCallback


def driver(config):
    run = RunConfig(
        name=tune.get_context().get_trial_id(),
        storage_path=store.storage_path("runs", "05-trainers"),
        storage_filesystem=store.filesystem,
        callbacks=[TuneReportCallback()],
    )
    scaling = ScalingConfig(num_workers=settings.num_workers, use_gpu=settings.use_gpu)
    TorchTrainer(train_loop, train_loop_config=config, scaling_config=scaling, run_config=run).fit()


# %% [markdown]
# Now count. A trial's driver keeps its CPU for as long as its trainer runs, and the workers need theirs at the same time. If the drivers take all CPUs, each of them waits for workers that can never start. This
# is a **deadlock**. After 60 seconds Ray Train stops waiting, logs a `WorkerGroupStartupTimeoutError`, and tries again, without end. So limit how many drivers run at a time.
#
# For example, a cluster with 8 CPUs has room for 3 trials of two workers, which ask for one CPU each, and a driver that asks for half a CPU: 8 // 2.5. Tune rejects a trial that asks for no resources at
# all, so a driver asks for a small part of a CPU: a quarter or a half, because a tenth isn't exact in binary, and `11 // 1.1` is 9. A worker that uses a GPU asks for no CPU.

# %% [markdown]
# ### Exercise 05-5 · Drivers and workers
# Write a function that returns how many trials can run at a time. A trial has one driver and some workers. `cpus` and `gpus` are the totals of the cluster. Each worker
# asks for `worker_cpus` and `worker_gpus` (one of them may be 0), and a driver asks for `driver_cpus`.


# %%
def trials_at_once(cpus, gpus, workers, worker_cpus, worker_gpus, driver_cpus): ...  # your answer


# %% tags=["solution"]
def trials_at_once(cpus, gpus, workers, worker_cpus, worker_gpus, driver_cpus):
    by_cpus = int(cpus // (workers * worker_cpus + driver_cpus))
    if worker_gpus == 0:
        return by_cpus
    return min(by_cpus, int(gpus // (workers * worker_gpus)))


# %%
check("05-5", trials_at_once)

# %% [markdown]
# The sweep uses your function. What the function doesn't know: each worker has to fit on *one* node.

# %%
have = ray.cluster_resources()
each = (0, 1) if settings.use_gpu else (1, 0)
at_once = trials_at_once(have["CPU"], have.get("GPU", 0), settings.num_workers, *each, 0.25)
if at_once == 0:
    raise RuntimeError(f"not one trial fits into {have}: its driver would wait for workers without end")
results = sweep(
    "05-distributed",
    tune.with_resources(driver, {"CPU": 0.25}),
    {"precision": tune.grid_search(["float32", "bfloat16"]), "epochs": 2 if settings.small else 6},
    max_concurrent_trials=at_once or 1,  # 1 while the exercise is open
)
results.get_dataframe()[["config/precision", "accuracy", "loss", "time_total_s"]].round(3)

# %% tags=["claim"]
assert results.get_dataframe()["accuracy"].agg(lambda column: column.max() - column.min()) < 0.05

# %% [markdown]
# The accuracy is nearly the same, although the matrix products were computed in 16 bits. `time_total_s` includes the time that the workers needed to start, so it doesn't show which precision is faster.
# That depends on the machine: most GPUs are faster with it, and a CPU without instructions for
# `bfloat16` is slower. Each checkpoint is in the storage of its own trainer; Tune only gets its path, as the metric `checkpoint_path`. And with two models and two optimizers, as in a GAN, nothing
# changes: the loop is yours, so build both, step both, and save both.

# %%
store.stop()

# %% [markdown]
# ## Key points
# - Multiply the lengths of the grids, then multiply by `num_samples`. Random values multiply nothing.
# - A trainable makes a step, saves, loads and resets. A checkpoint is model *and* optimizer.
# - Choose by validation images. The test images are for the one model that you chose.
# - ASHA compares trials at its rungs and doesn't wait. Here it saved more than half of the epochs.
# - Use a *grid* if a report must list every pair, *ASHA* if bad trials show early, a *searcher* if each trial is expensive, and *population based training* if the configuration should change on the way.
#
# | older tutorials | today |
# |---|---|
# | `tune.run(Digits, config=…, num_samples=…)` | `tune.Tuner(Digits, param_space=…, tune_config=…).fit()` |
# | `resources_per_trial={"gpu": 1}` | `tune.with_resources(Digits, {"GPU": 1})` |
# | `analysis.results_df`, `get_best_config` | `results.get_dataframe()`, `get_best_result().config` |
# | `tune.report(accuracy=…)`, `with tune.checkpoint_dir(…)` | `tune.report({…}, checkpoint=…)` |
# | `progress_reporter=JupyterNotebookReporter(…)` | a `tune.Callback`; a script ignores the reporter |
# | `Tuner(TorchTrainer(…))`, `as_trainable`, `TrainingOperator` | a driver function (last extra section) |
# | `tune.run(…, resume=True)` | `tune.Tuner.restore(path, trainable=…)` |

# %% [markdown] tags=["plain"]
# ## Without the lab
# The same job in plain Ray, as the script [05_tune_sweeps.py](plain/05_tune_sweeps.py):

# %% [markdown] tags=["links"]
# ## Reference

# %%
lab.stop()
