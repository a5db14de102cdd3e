# %% [markdown]
# # 05b · Sweeps that survive
#
# By the end of this lesson you can
# - make a trial resume after it has failed (exercise 05b-1), and restore a sweep after its notebook was killed;
# - write a trainable class, so that Tune can reuse processes (05-2);
# - change the learning rate during a run with population based training, and check that it really changed (05b-2);
# - count how many distributed trials fit on a cluster (05-5).
#
# **Time** about 95 minutes · **Needs** 05, 03b

# %% [markdown]
# A sweep of 200 trials runs all night. Two of its configurations need more memory than the machine has, at three o'clock the notebook server restarts, and in the morning you want results. This lesson is about what Tune does in such a night,
# and about what your code has to do for it.

# %%
from labkit.local import cluster, storage
from labkit.settings import Settings
from labkit.tune import SweepPanel

lab = cluster.start(cpus_per_node=4)  # one for each trial of the population below
store = storage.start()
home = Settings.from_env().home
folder = str(home / "runs" / "05b-tune")

# %% [markdown]
# ## When a trial fails
# In this sweep, one configuration divides by zero. Another one ends like a process that has used up all memory: it's killed, so no exception handler can help.

# %%
import os
import signal

from ray import tune


def risky(config):
    if config["x"] == 0:
        print(1 / config["x"])
    if config["x"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tune.report({"height": config["x"]})


tuner = tune.Tuner(
    risky,
    param_space={"x": tune.grid_search([0, 1, 2, 3, 4])},
    tune_config=tune.TuneConfig(metric="height", mode="max", max_concurrent_trials=2),
    run_config=tune.RunConfig(storage_path=folder),
)

# %% [markdown] tags=["prediction"]
# **Predict.** The first two of five trials fail. What happens to the other three?

# %%
from course.exercises import check, hint, predict, reveal

predict("05-d", ..., choices=["they run", "they are stopped", "they never start"])

# %%
with SweepPanel("05b-failures").watch(tuner):
    results = tuner.fit()
if results.num_errors == 2 and len(results) == 5:
    reveal("05-d", "they run")
else:
    reveal("05-d", "they are stopped")

# %% tags=["claim"]
assert (len(results), results.num_errors) == (5, 2)
assert results.get_best_result().config["x"] == 4

# %% [markdown]
# The others ran. A trial is a process of its own, so what happens in one doesn't touch the rest.
#
# Some failures pass by themselves: a network that was gone for a minute, a machine that was taken away. For these, `FailureConfig(max_failures=1)` starts a failed trial once more. But where does it start? Tune calls your function again from its first line, in
# a new process. Only your code can pick up the work: `tune.get_checkpoint` returns the last checkpoint that this trial has reported, if there is one.

# %% [markdown]
# ### Exercise 05b-1 ★★★ · Pick up the work
# This is gradient descent on (x − 3)² with a momentum. If its process is killed, it starts again with x = 0. Change it so that it reports the loss with a checkpoint after each step, and resumes from there. After a failure no step runs twice, and there are `config["steps"]` steps overall, with the
# same losses as in a trial that never failed. What has to be in the checkpoint? `once_more` is a `FailureConfig` that restarts a failed trial once. The check lets a trial fail after its second report, on your cluster.

# %%
import json
import tempfile
from pathlib import Path


def descend(config):  # your answer: change it
    x, velocity = 0.0, 0.0
    for _ in range(config["steps"]):
        velocity = 0.5 * velocity - config["lr"] * 2 * (x - 3)
        x += velocity
    tune.report({"loss": (x - 3) ** 2})


once_more = ...  # your answer

# %% [markdown]
# If you'd rather fill in blanks, paste this version over it:
#
# ```python
# def descend(config):
#     state = {"x": 0.0, "velocity": 0.0, "steps": 0}
#     if checkpoint := ...:
#         with checkpoint.as_directory() as place:
#             state = json.loads(Path(place, "state.json").read_text())
#     for step in range(..., config["steps"]):
#         state["velocity"] = 0.5 * state["velocity"] - config["lr"] * 2 * (state["x"] - 3)
#         state["x"] += state["velocity"]
#         state["steps"] = ...
#         with tempfile.TemporaryDirectory() as place:
#             Path(place, "state.json").write_text(json.dumps(state))
#             tune.report(..., checkpoint=...)
#
#
# once_more = tune.FailureConfig(...)
# ```


# %% tags=["solution"]
def descend(config):
    state = {"x": 0.0, "velocity": 0.0, "steps": 0}
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as place:
            state = json.loads(Path(place, "state.json").read_text())
    for step in range(state["steps"], config["steps"]):
        state["velocity"] = 0.5 * state["velocity"] - config["lr"] * 2 * (state["x"] - 3)
        state["x"] += state["velocity"]
        state["steps"] = step + 1
        with tempfile.TemporaryDirectory() as place:
            Path(place, "state.json").write_text(json.dumps(state))
            tune.report({"loss": (state["x"] - 3) ** 2}, checkpoint=tune.Checkpoint.from_directory(place))


once_more = tune.FailureConfig(max_failures=1)

# %%
check("05b-1", descend, once_more)

# %% [markdown] tags=["instructor"]
# **"It resumes, and still makes too many steps." (05b-1)** x alone isn't enough: the velocity and the number of steps that are done have to be in the checkpoint, too.

# %% [markdown]
# If you're stuck, `hint("05b-1")` shows the first of three hints.
#
# ## When the notebook is killed
# It's morning, and the kernel is gone. How much of the night is lost? Tune saves the state of the sweep while it runs: which trials there are, what they reported, where their checkpoints are. A new process can restore
# the sweep from that.
#
# To try it, we need a sweep that we can kill without losing this notebook. So this cell writes a program. Each of its four trials counts to twelve, and appends a line to a log for every step, so that we can see later what ran twice.

# %%
program = home / "killed_sweep.py"

# %% tags=["long"]
# %%writefile "{program}"
import sys
import tempfile
import time
from pathlib import Path

from ray import tune


def count(config):
    done = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as place:
            done = int(Path(place, "count").read_text())
    for number in range(done + 1, 13):
        time.sleep(0.1)
        with open(config["log"], "a") as log:
            log.write(f"{config['x']} {number}\n")
        with tempfile.TemporaryDirectory() as place:
            Path(place, "count").write_text(str(number))
            tune.report({"count": number}, checkpoint=tune.Checkpoint.from_directory(place))


def main(path, name, log):
    from labkit.local import cluster, storage
    from labkit.tune import SweepPanel

    cluster.start()  # connects to the cluster and the store that are running
    tuner = tune.Tuner(
        count,
        param_space={"x": tune.grid_search([0, 1, 2, 3]), "log": log},
        tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=2),
        run_config=tune.RunConfig(
            name=name, storage_path=path, storage_filesystem=storage.start().filesystem
        ),
    )
    with SweepPanel("05b-killed").watch(tuner):
        tuner.fit()


if __name__ == "__main__":
    main(*sys.argv[1:])

# %% [markdown]
# The environment variable `TUNE_GLOBAL_CHECKPOINT_S=0` makes Tune save its state after every event. By default it does so every ten seconds, which is fine for a night but too rare for this lesson. The next cell starts the program, and waits until two trials have
# counted to twelve and the other two have made a second step. By then Tune has saved that the first two are over. Then the cell kills the program with `SIGKILL`, which leaves it no chance to clean up.

# %%
import subprocess
import sys
import time

path, name = store.storage_path("runs"), f"05b-killed-{int(time.time())}"
log = home / f"{name}.txt"
log.touch()


def steps():
    return [tuple(line.split()) for line in log.read_text().splitlines()]


def trials_at(count):
    return [x for x, number in steps() if number == count]


# %%
process = subprocess.Popen(
    [sys.executable, program, path, name, log],
    env=os.environ | {"TUNE_GLOBAL_CHECKPOINT_S": "0"},
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
)
while len(trials_at("2")) < 4 and process.poll() is None:
    time.sleep(0.02)
done = trials_at("12")[:2]
process.kill()
print("exit status", process.wait(), "after", len(steps()), "steps")

# %% [markdown]
# The folder of the sweep has everything but your code. So `tune.Tuner.restore` needs the path, the filesystem, and *the same trainable*. The path has to be the sweep's, not that of a trial in it: `tune.Tuner.can_restore`
# checks that. The trials can't import a file from your disk, so `register_pickle_by_value` sends them the code of this module, as in lesson 03b.

# %%
from pyarrow.fs import FileSelector, FileType
from ray import cloudpickle

sys.path.insert(0, str(home))
import killed_sweep

cloudpickle.register_pickle_by_value(killed_sweep)
sweep = f"{path}/{name}"
inside = store.filesystem.get_file_info(FileSelector(sweep))
trial = next(info.path for info in inside if info.type == FileType.Directory)
for folder_in_store in (sweep, trial):
    can_restore = tune.Tuner.can_restore(folder_in_store, storage_filesystem=store.filesystem)
    print(can_restore, folder_in_store)

# %% tags=["claim"]
assert tune.Tuner.can_restore(sweep, storage_filesystem=store.filesystem) and not can_restore

# %% [markdown] tags=["prediction"]
# **Predict.** Four trials have to count to twelve. How many lines will the log have after the restored sweep?

# %%
predict("05-e", ..., choices=["fewer than 48", "48 to 54", "more than 54"])

# %%
tuner = tune.Tuner.restore(sweep, trainable=killed_sweep.count, storage_filesystem=store.filesystem)
before = len(steps())
with SweepPanel("05b-killed").watch(tuner):
    results = tuner.fit()

lines = len(steps())
if lines < 48:
    reveal("05-e", "fewer than 48")
elif lines <= 54:
    reveal("05-e", "48 to 54")
else:
    reveal("05-e", "more than 54")

# %%
print(f"{len(results)} trials, all of them at", {result.metrics["count"] for result in results})
again = [x for x, number in steps()[before:] if x in done]
print(f"{lines} steps overall, {len(again)} of them by trials that were done before the kill")

# %% tags=["claim", "timed"]
assert 48 <= lines <= 54 and not again, (lines, again)

# %% tags=["claim"]
assert [result.metrics["count"] for result in results] == [12] * 4

# %% [markdown]
# No finished trial ran again, and the trials that were cut off continued from their last checkpoint. A step or two may be in the log twice: they ran just before the kill, and their report wasn't saved yet.
#
# Two things can still spoil it.
#
# - **A state that is cut off.** The state consists of several files, which Tune copies one after the other, and a kill can hit in between. The lab's panel therefore keeps a copy of it in one file and puts it back. Without the lab, at least keep the sweep in
#   an object store, as here. On a disk a kill can leave half a file, but the store replaces a file only once it has the new one completely.
# - **Another trainable.** Tune doesn't notice if you've changed the function in the meantime. The rest of the sweep is then a different experiment.

# %% [markdown]
# ## One process, many trials
# Starting a process, importing PyTorch and fetching the data costs seconds per trial. With 200 short trials that's many minutes of nothing. With `reuse_actors=True` a process that has finished one trial takes the next. A function is
# then called from its first line for each trial, new or resumed. A class separates what's done once in each process from what's done for each trial. And because Tune is in charge of the loop, it can *pause* a trial after any step, save it, and give its process to another one.
#
# Such a class derives from `tune.Trainable`. It has no loop, but a method for each thing that Tune may want. `save_checkpoint` isn't optional: Tune saves such a trial when it ends, and without the method each trial ends as an error after its last step. (`CheckpointConfig(checkpoint_at_end=False)` turns that off.)

# %%
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def make_model():
    torch.manual_seed(0)
    layers = [torch.nn.Flatten(), torch.nn.Linear(784, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)]
    return torch.nn.Sequential(*layers)


# %%
class Digits(tune.Trainable):
    def setup(self, config, train, valid):
        torch.set_num_threads(1)
        self.train_rows, self.valid_rows = train, valid
        self.reset_config(config)

    def reset_config(self, config):
        self.model = make_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config["lr"], momentum=0.5)
        return True

    def step(self):
        for x, y in DataLoader(self.train_rows, batch_size=64, shuffle=True):
            loss = cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        x, y = self.valid_rows.tensors
        right = (self.model(x).argmax(dim=1) == y).float().mean().item()
        return {"accuracy": right, "lr": self.optimizer.param_groups[0]["lr"]}

    def save_checkpoint(self, place):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, f"{place}/state.pt")

    def load_checkpoint(self, place):
        state = torch.load(f"{place}/state.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


# %% [markdown]
# - `setup` is called once in each process, and `step` again and again. What `step` returns is reported; here that's one epoch.
# - `reset_config` gives the process its next trial. Return `True` to confirm that nothing of the old trial is left.
# - `save_checkpoint` and `load_checkpoint` get the path of a folder. The checkpoint has the model *and* the optimizer, as in lesson 03b.
#
# And who ends a trial, if there's no loop? A scheduler, or `stop` in `RunConfig`.

# %%
from course import datasets

digits = datasets.load(split="train")
images, labels = torch.tensor(digits.images) / 255, torch.tensor(digits.labels)
cut = len(digits) * 4 // 5
train, valid = TensorDataset(images[:cut], labels[:cut]), TensorDataset(images[cut:], labels[cut:])
trainable = tune.with_parameters(Digits, train=train, valid=valid)

# %% tags=["claim"]
import tempfile


class NeverSaved(tune.Trainable):
    def step(self):
        return {"done": True}


for at_end in (True, False):
    with tempfile.TemporaryDirectory() as place:
        kept = tune.CheckpointConfig(checkpoint_at_end=at_end)
        run_config = tune.RunConfig(storage_path=place, verbose=0, checkpoint_config=kept)
        assert tune.Tuner(NeverSaved, run_config=run_config).fit().num_errors == at_end

# %% [markdown] tags=["prediction"]
# **Predict.** Six trials, two at a time. How many processes does the sweep need, with `reuse_actors=True`?

# %%
predict("05b-a", ..., choices=["6", "3 to 5", "1 or 2"])

# %%
tuner = tune.Tuner(
    trainable,
    param_space={"lr": tune.loguniform(1e-3, 1)},
    tune_config=tune.TuneConfig(
        metric="accuracy", mode="max", num_samples=6, reuse_actors=True, max_concurrent_trials=2
    ),
    run_config=tune.RunConfig(storage_path=folder, stop={"training_iteration": 3}),
)
with SweepPanel("05b-reuse").watch(tuner):
    table = tuner.fit().get_dataframe()
processes = table["pid"].nunique()
if processes <= 2:
    reveal("05b-a", "1 or 2")
else:
    reveal("05b-a", "3 to 5" if processes < 6 else "6")

# %% tags=["claim"]
assert len(table) == 6 and table["pid"].nunique() < 6

# %% [markdown]
# Two processes are enough for six trials, and with trials as short as these, one of them may even run all six. For trials that take an hour it makes no difference, and then a function is the simpler choice.
#
# ### Exercise 05-2 ★★ · A trainable class of your own
# Write gradient descent on (x − 3)² once more, this time as a class. It starts at x = 0. A step computes `x -= lr * 2 * (x - 3)`, with the learning rate of the configuration, and returns `{"loss": (x - 3) ** 2}`. Keep in the object whatever a step
# needs. A checkpoint may come from a trial with another learning rate; the trial that loads it keeps its own. The check calls the five methods here, then sweeps three learning rates on your cluster, all in one process.


# %%
class Descent(tune.Trainable):
    def setup(self, config): ...  # your answer

    def reset_config(self, config): ...

    def step(self): ...

    def save_checkpoint(self, place): ...

    def load_checkpoint(self, place): ...


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

    def save_checkpoint(self, place):
        Path(place, "x.txt").write_text(repr(self.x))

    def load_checkpoint(self, place):
        self.x = float(Path(place, "x.txt").read_text())


# %%
check("05-2", Descent)

# %% [markdown] tags=["instructor"]
# **What is `reset_config` for?** It gives a process its next trial. It must return `True`, and nothing of the old trial may be left.

# %% [markdown]
# ## Change the learning rate on the way
# Every sweep so far kept a configuration from the first epoch to the last. But the best learning rate at the start is rarely the best one later. **Population based training** runs a few trials together. Every few
# iterations the worst ones take over the weights of the best ones, and continue with a changed configuration: usually the learning rate times 0.8 or 1.2, and in one case out of four a rate drawn at random.
# Only what is drawn stays within the space: a rate that is multiplied may leave it, and of sizes in `tune.choice([16, 32, 64])`, 32 becomes 38 or 26. Write sizes as a plain list, and they change to a neighbour.
#
# ![four trials; at iterations 3 and 6 the worse two load the checkpoint of a better one and continue with a changed learning rate](images/population.svg)
#
# In 2019, Waymo and DeepMind trained the network that finds pedestrians and cyclists around a Waymo car in this way. It raised 24 % fewer false alarms, with half of the time and computing that their earlier search had needed
# ([TechCrunch](https://techcrunch.com/2019/07/25/waymo-and-deepmind-mimic-evolution-to-develop-a-new-better-way-to-train-self-driving-ai/)).
#
# Trials must save and load and, to be used again, reset: `Digits` can do that. With `quantile_fraction=0.5`, the worse half copies from the better half, and with `synch=True` the trials wait for one another before they are compared.

# %%
from ray.tune.schedulers import PopulationBasedTraining


def population(cls):
    pbt = PopulationBasedTraining(
        time_attr="training_iteration",  # what the interval counts; the default is seconds
        perturbation_interval=3,
        hyperparam_mutations={"lr": tune.loguniform(1e-3, 1)},
        quantile_fraction=0.5,
        synch=True,  # all trials are compared after the same iterations
    )
    return tune.Tuner(
        tune.with_parameters(cls, train=train, valid=valid),
        param_space={"lr": tune.grid_search([0.001, 0.003, 0.03, 0.1])},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", scheduler=pbt, reuse_actors=True),
        run_config=tune.RunConfig(storage_path=folder, stop={"training_iteration": 9}),
    )


tuner = population(Digits)
with SweepPanel("05b-population").watch(tuner):
    table = tuner.fit().get_dataframe()

# %% [markdown]
# *changed 2 ×* in the panel's table means that a trial was twice replaced by a changed copy of a better one. All four reach a good accuracy, including those that started with a learning rate that's far too small. Isn't that a success? But `Digits` also reports the
# learning rate that its optimizer *uses*. Compare it with the one in the configuration:

# %%
table[["config/lr", "lr", "accuracy"]].round(4)

# %% tags=["claim"]
assert ((table["config/lr"] - table["lr"]).abs() > 1e-6).any()

# %% [markdown]
# They differ in each trial that was changed. And trials with the same `lr` have exactly the same accuracy, whatever their configurations say. The configuration was changed, and the training never noticed. Here is what happened: Tune calls `reset_config` with the new learning rate first,
# and `load_checkpoint` afterwards. A PyTorch optimizer's state includes its learning rate, so the rate of the copied trial is loaded, too.
#
# ### Exercise 05b-2 ★ · Make the change count
# Write a class that does the same as `Digits`, except that after `load_checkpoint` the optimizer uses the learning rate of this trial's configuration. Tune keeps the configuration in `self.config`. Weights and momentum
# should still come from the checkpoint.


# %%
class Changing(Digits):
    def load_checkpoint(self, place): ...  # your answer


# %% tags=["solution"]
class Changing(Digits):
    def load_checkpoint(self, place):
        super().load_checkpoint(place)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config["lr"]


# %%
check("05b-2", Changing, train, valid)

# %% [markdown]
# Now run the same sweep with your class. Do the two columns agree?

# %%
tuner = population(Changing)
with SweepPanel("05b-repaired").watch(tuner):
    table = tuner.fit().get_dataframe()
table[["config/lr", "lr", "accuracy"]].round(4)

# %% tags=["claim"]
assert ((table["config/lr"] - table["lr"]).abs() < 1e-9).all()

# %% [markdown] tags=["instructor"]
# **Why does `load_checkpoint` bring back the old learning rate?** It's part of the optimizer's state. Tune calls `reset_config` first and `load_checkpoint` second, so the checkpoint wins.

# %% [markdown]
# ## Trials that are distributed runs
# What if each trial is itself too large for one process? Then the trial is a small function that builds a `TorchTrainer`, as in lesson 03, and calls `fit()`. We call it the trial's **driver**. The workers are processes of their own. `TuneReportCallback` passes
# each report of rank 0 on to Tune.
#
# The loop is `my_loop.py` from lesson 03b. Mind the names: the trainer has a `ray.train.RunConfig`, the sweep has a `tune.RunConfig`, and the workers call `ray.train.report`.

# %%
import my_loop
import ray.train
from ray.train.torch import TorchTrainer
from ray.tune.integration.ray_train import TuneReportCallback

cloudpickle.register_pickle_by_value(my_loop)


def driver(config, train, valid):
    settings = {"make_model": make_model, "train": train, "test": valid, "epochs": 3, "batch_size": 32}
    trainer = TorchTrainer(
        my_loop.train_loop,
        train_loop_config=settings | {"lr": config["lr"]},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            name=tune.get_context().get_trial_id(),
            storage_path=store.storage_path("runs", "05b-trainers"),
            storage_filesystem=store.filesystem,
            callbacks=[TuneReportCallback()],
        ),
    )
    trainer.fit()


# %% [markdown]
# Now count. A driver keeps its CPU for as long as its trainer runs, and the workers need theirs at the same time. If the drivers take all CPUs, each of them waits for workers that can never start, and no driver gives its CPU back. This is a **deadlock**. After
# 60 seconds Ray Train gives up on the workers, logs an error, and tries again, forever. So limit how many drivers run at a time.
#
# For example, a cluster with 8 CPUs has room for 3 trials of two workers with one CPU each and a driver with half a CPU: 8 divided by 2.5. Drivers hardly compute, so a small part of a CPU is enough for one, but Tune doesn't accept zero.

# %% [markdown]
# ### Exercise 05-5 ★★ · Drivers and workers
# Write a function that returns how many trials can run at a time, as an `int`. A trial has one driver and some workers. The first two arguments are the totals of the cluster. The last three are
# what each worker and the driver reserve; a worker reserves CPUs, GPUs, or both.


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
# A trial of the sweep below needs two CPUs for its workers and a quarter of one for its driver. On four CPUs there's room for one such trial at a time. On a larger cluster, use your function for `max_concurrent_trials`, and remember what it doesn't know: each worker has to fit on *one* node.

# %%
print(f"this cluster has {lab.cpus:g} CPUs")
tuner = tune.Tuner(
    tune.with_resources(tune.with_parameters(driver, train=train, valid=valid), {"CPU": 0.25}),
    param_space={"lr": tune.grid_search([0.005, 0.05])},
    tune_config=tune.TuneConfig(metric="accuracy", mode="max", max_concurrent_trials=1),
    run_config=tune.RunConfig(storage_path=folder),
)
with SweepPanel("05b-distributed").watch(tuner):
    results = tuner.fit()
results.get_dataframe()[["config/lr", "epoch", "accuracy"]].round(3)

# %% tags=["claim"]
assert results.num_errors == 0 and results.get_best_result().config["lr"] == 0.05
assert list(results.get_dataframe()["epoch"]) == [2, 2]

# %% [markdown]
# The checkpoints are in the storage of each trainer; Tune only gets their paths, as the metric `checkpoint_path`.
#
# ## Key points
# - A failed trial doesn't touch the others. With `max_failures` it starts again, and your code has to ask for its checkpoint.
# - After a kill, `tune.Tuner.restore` needs the path of the sweep and the same trainable. Finished trials don't run again.
# - A class lets Tune be in charge of the loop: it can pause a trial, save it, and give its process to another one.
# - An optimizer's state includes its learning rate. After loading it, set the one that the configuration asks for, and report the value that's really used.
# - A distributed trial needs CPUs for its driver *and* its workers. Count both, or the sweep waits forever.
#
# **A question to take along.** The kernel dies in the middle of a sweep. What do you need to continue it, and what runs a second time?
#
# <details><summary>Compare your answer</summary>The path of the sweep and the same trainable. Finished trials don't run again. Those that were running start from their last checkpoint, if the trainable loads it.</details>
#
# | older tutorials | today |
# |---|---|
# | `tune.run(…, resume=True)`, `Tuner(TorchTrainer(…))` | `tune.Tuner.restore(path, trainable=…)`, a driver function |
#
# The program of *When the notebook is killed* runs without a notebook. Without the panel, and with `ray.init()` and your own filesystem instead of the lab's cluster and store, it needs nothing of the lab.

# %% [markdown] tags=["links"]
# ## Official pages

# %% [markdown]
# ## Stop

# %%
store.stop()
lab.stop()
