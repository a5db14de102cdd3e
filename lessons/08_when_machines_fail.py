# %% [markdown]
# # 08 · When machines fail
#
# By the end of this lesson you can
# - resume a run at the step of its last checkpoint, to exactly the same weights (exercise 08-1);
# - compute how often to save (08-4);
# - find out from the ranks' stacks why a run hangs, and fix it (08-2);
# - read in the panel which rank slows down the others;
# - save just in time when a machine announces that it goes away;
# - let a run continue with fewer workers, and keep its global batch (08-3).
#
# **Time** about 85 minutes · **Needs** 00, 01, 03, 03b

# %% [markdown]
# If each machine fails once in three years, one of 1,000 fails about every day. Llama 3 was trained on 16,384 GPUs, and in 54 days 419 unexpected interruptions stopped the run, one every three hours
# ([The Llama 3 Herd of Models](https://arxiv.org/abs/2407.21783), section 3.3.4). You can't prevent that. What you can decide is how much work each failure costs, and in this lesson you'll count it: you kill workers and whole nodes, and see which
# steps are trained twice.

# %% [markdown]
# ## A worker dies
# This cluster has two nodes. The second one, `node-2`, is there to be lost.

# %%
from course import datasets, faults
from labkit.local import cluster, storage
from labkit.train import TrainPanel

lab = cluster.start(nodes=2, cpus_per_node=2)
store = storage.start()
lab

# %%
import torch
from torch.utils.data import DataLoader, TensorDataset

digits = datasets.load(split="train")
train = TensorDataset(torch.tensor(digits.images).flatten(1) / 255, torch.tensor(digits.labels))


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


# %% [markdown]
# This is the loop from lesson 03. It pauses for a tenth of a second in each step, as if the model were larger, so that there is time to break something.

# %%
import time

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model


def one_epoch(config):
    model = prepare_model(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in prepare_data_loader(DataLoader(train, batch_size=48)):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.1)


trainer = TorchTrainer(one_epoch, scaling_config=ScalingConfig(num_workers=2))

# %% [markdown]
# The module `course.faults` breaks things on purpose. Here it sends SIGKILL to the process of rank 1, as Linux does when memory runs out:

# %%
panel = TrainPanel("08-killed")
fault = faults.kill_rank(1).at(panel, step=8)
try:
    with panel.watch(trainer):
        trainer.fit()
except Exception as error:
    print(error)

# %% tags=["claim"]
assert fault.outcome == "made", fault.did
assert panel.state.status == "failed"

# %% [markdown]
# One process out of two died, and the whole run is over. Rank 0 was fine, but it was waiting for rank 1's gradients, and by default Ray allows no failure at all. In lesson 03b, `FailureConfig(max_failures=1)` let Ray restart *both* workers once, and the loop loaded
# its last checkpoint. That checkpoint was saved at the end of an epoch. An epoch of a large model takes days, so large runs save in the middle of one, and that is harder than it looks.

# %% [markdown] tags=["instructor"]
# **"Why does the whole run end if one rank dies?"** The others wait in an all-reduce for its gradients. `FailureConfig(max_failures=1)` starts
# *all* ranks again.

# %% [markdown]
# ## A loop that can resume at any step
# Suppose the run resumes with some step. Which rows does that step use? A shuffling `DataLoader` has no answer, because after a restart it begins with its first batch again: some rows of the epoch would be used twice, and others never. So we compute the
# rows from the number of the step. A `DataLoader` accepts a *batch sampler*, which tells it the rows of each batch. A list of lists of row numbers is enough. If too few rows for a step are left at the end of an epoch, they are skipped:

# %%
BATCH = 96  # rows of one step, all workers together
PER_EPOCH = len(train) // BATCH


def batches(first, last, rank, workers):
    for step in range(first, last):
        epoch, place = divmod(step, PER_EPOCH)
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(epoch))
        rows = order[place * BATCH : (place + 1) * BATCH]
        yield rows[rank::workers].tolist()


# %% [markdown] tags=["instructor"]
# **"Why not a DataLoader that shuffles?"** After a crash it starts again with its first batch, perhaps in a different order. Some rows of the epoch are
# then used twice, and others not at all. Here the step's number is enough to find its rows again, with any number of workers.

# %% [markdown]
# Each worker gets every second row of the global batch, or every fourth if there are four workers. There is no `prepare_data_loader`, so on GPUs you would move `x` and `y` yourself. Saving and resuming work as in `my_loop.py`, except that they count steps:

# %%
import tempfile

import ray.train


def save(model, optimizer, step):
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            weights = getattr(model, "module", model).state_dict()
            state = {"model": weights, "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, f"{folder}/state.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"step": step}, checkpoint=checkpoint)


def resume(model, optimizer):
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(f"{folder}/state.pt", weights_only=True)
    getattr(model, "module", model).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


# %% [markdown]
# In the loop, `step` is the number of steps that are done, and `config["save_after"]` decides after which of them to save. The loop returns where it started, with how many workers, and the final weights.


# %%
def train_loop(config):
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    model = prepare_model(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = resume(model, optimizer)
    sampler = list(batches(first, config["steps"], rank, workers))
    for step, (x, y) in enumerate(DataLoader(train, batch_sampler=sampler), start=first + 1):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(config["pause"])
        if config["save_after"](step):
            save(model, optimizer, step)
    weights = torch.nn.utils.parameters_to_vector(model.parameters())
    return {"first": first, "workers": workers, "weights": weights.detach().numpy()}


# %% [markdown] tags=["instructor"]
# **A loop without a pause would be over.** The pause of a tenth of a second stands in for a larger model, so that there is time to break something.

# %% [markdown]
# ## What a failure costs
# Does this loop end with the same weights after a failure? And how much time does it lose? To find out, we need runs that save at different moments. When to save is a *policy*, a function of the step. The first two are simple:


# %%
def no_checkpoints(step):
    return False


def every_10_steps(step):
    return step % 10 == 0


# %% [markdown]
# First, one process makes the same 30 steps without pauses. With `num_workers=0` the loop runs in this notebook. Its weights are what every later run should arrive at:

# %%
config = {"steps": 30, "pause": 0, "save_after": no_checkpoints}
alone = TorchTrainer(train_loop, train_loop_config=config, scaling_config=ScalingConfig(num_workers=0))
wanted = alone.fit().return_value["weights"]


def difference(result):
    return abs(result.return_value["weights"] - wanted).max()


# %% [markdown]
# And now two workers. `placement_strategy="SPREAD"` asks Ray to put them on different nodes if it can. We'll start several runs, so the trainer is built by a function:


# %%
def make_trainer(save_after, workers=2, max_failures=0, steps=30, pause=0.1):
    return TorchTrainer(
        train_loop,
        train_loop_config={"steps": steps, "pause": pause, "save_after": save_after},
        scaling_config=ScalingConfig(num_workers=workers, placement_strategy="SPREAD"),
        run_config=RunConfig(
            storage_path=store.storage_path("runs", "08"),
            storage_filesystem=store.filesystem,
            failure_config=FailureConfig(max_failures=max_failures),
        ),
    )


# %% [markdown] tags=["prediction"]
# **Predict.** The loop saves after every 10 steps, and rank 1 dies at step 17 of 30. About how many steps will be trained twice?

# %%
from course.exercises import check, hint, predict, reveal

predict("08-a", ...)  # a number

# %%
panel = TrainPanel("08-restarted")
fault = faults.kill_rank(1).at(panel, step=17)
trainer = make_trainer(every_10_steps, max_failures=1)
with panel.watch(trainer):
    restarted = trainer.fit()

if fault.wait().repeated is not None:
    reveal("08-a", float(fault.repeated))
print("the last attempt went on after step", restarted.return_value["first"])
print(f"largest difference from the weights of one process: {difference(restarted):.1e}")
fault

# %% tags=["claim"]
assert fault.noticed <= fault.standstill and difference(restarted) < 1e-5

# %% tags=["claim", "timed"]
assert 1 <= fault.repeated <= 10 and restarted.return_value["first"] in (10, 20)

# %% [markdown]
# The steps after the last checkpoint were trained twice. The rank dies a moment after its step, so your count may differ by one or two. *Noticed after* is how long it took until the failure was detected. *No step for* is how long the training stalled: Ray stopped the
# old workers, started new ones, and they loaded the checkpoint.
#
# ![a run saves after every 10 steps, and a rank dies at step 17: the second attempt goes on after step 10, so steps 11 to 17 are trained twice](images/failure.svg)
#
# The weights agree up to rounding, although the run was interrupted. That's because the rows depend only on the step, and because the checkpoint contains everything else that changes.

# %% [markdown] tags=["instructor"]
# **"Ray resumes for me."** It starts the loop from its first line. The loop itself has to call `get_checkpoint()` and load what it finds.

# %% [markdown]
# ### Exercise 08-1 ★★★ · Resume to the same weights
# A loop trains with momentum, a learning-rate schedule and dropout, which draws random numbers in each step. Write three functions for it; `step` is the number of steps that are done. `save_state` writes everything that changes into `state.pt` in `folder`, and `load_state` reads it and returns the step.
# `before_step` is called before each step, and makes the random numbers of that step depend only on the step and the rank: no other step and no other rank may draw the same ones. The check lets two workers fail after five steps, and compares the resumed run with an undisturbed one.


# %%
def save_state(model, optimizer, scheduler, step, folder): ...  # your answer


def load_state(model, optimizer, scheduler, folder): ...


def before_step(step, rank): ...


# %% [markdown]
# If you'd rather fill in blanks, paste this version over it:
#
# ```python
# def save_state(model, optimizer, scheduler, step, folder):
#     state = {"model": ..., "optimizer": ..., "scheduler": ..., "step": ...}
#     torch.save(state, f"{folder}/state.pt")
#
#
# def load_state(model, optimizer, scheduler, folder):
#     state = torch.load(f"{folder}/state.pt", weights_only=True)
#     model.load_state_dict(...)
#     ...
#     return ...
#
#
# def before_step(step, rank):
#     torch.manual_seed(...)
# ```


# %% tags=["solution"]
def save_state(model, optimizer, scheduler, step, folder):
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    state = {name: part.state_dict() for name, part in parts.items()}
    torch.save(state | {"step": step}, f"{folder}/state.pt")


def load_state(model, optimizer, scheduler, folder):
    state = torch.load(f"{folder}/state.pt", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    return state["step"]


def before_step(step, rank):
    torch.manual_seed(100_000 * step + rank)  # room for 100,000 ranks


# %%
check("08-1", save_state, load_state, before_step)

# %% [markdown]
# ## How often should you save?
# A save costs time, because the workers wait until the model is written. A failure costs the time since the last save. If you save all the time, you never train, and if you hardly ever save, one failure throws away a day. Somewhere between the two is the best interval.

# %% [markdown] tags=["prediction"]
# **Predict.** A run is interrupted once every three hours, as Llama 3's was. Suppose that a save takes 30 seconds. After how many minutes of training would you save?

# %%
predict("08-b", ...)  # minutes

# %% [markdown]
# Let a save take *s* seconds, and let a failure come every *m* seconds on average. With a save after every *t* seconds, saving costs the share *s / t* of the time. A failure comes somewhere in an interval, so on average it costs half of one, which is *t / (2 · m)* of the time.
# The sum of both has its minimum at
#
# `t = √(2 · s · m)`
#
# John Young published this formula in 1974 ([doi:10.1145/361147.361115](https://doi.org/10.1145/361147.361115)), and John Daly refined it in 2006 for runs in which a save isn't short compared with the time between failures ([doi:10.1016/j.future.2004.11.016](https://doi.org/10.1016/j.future.2004.11.016)).
# It is still in use, as the Young/Daly formula ([an overview](https://doi.org/10.1145/3549206.3549328)). You can test it. This cell computes the curve, and next to it simulates 10,000 failures for each interval:

# %%
import numpy as np

save_takes = 30  # seconds
failure_every = 3 * 3600
interval = np.geomspace(60, 4 * 3600, 40)
lost = save_takes / interval + interval / (2 * failure_every)
best = np.sqrt(2 * save_takes * failure_every)

failures = np.random.default_rng(0).exponential(failure_every, size=10_000)


def simulate(interval):
    saves, since = np.divmod(failures, interval + save_takes)
    return np.mean(saves * save_takes + since) / failure_every


simulated = [simulate(one) for one in interval]
reveal("08-b", best / 60)

# %%
from labkit.display import figure_style
from matplotlib import pyplot

with pyplot.rc_context(figure_style()):
    figure, axes = pyplot.subplots(figsize=(7, 3))
    axes.plot(interval / 60, 100 * lost, label="the formula")
    axes.plot(interval / 60, 100 * np.array(simulated), "o", label="simulated failures")
    axes.axvline(best / 60, color="grey", linestyle=":", label=f"best: {best / 60:.0f} minutes")
    axes.set(xscale="log", xlabel="minutes between two saves", ylabel="% of the time lost", ylim=(0, 60))
    axes.set_xticks([1, 3, 10, 30, 100], [1, 3, 10, 30, 100])
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
pyplot.close(figure)
figure

# %% tags=["claim"]
assert 13 < best / 60 < 14 and abs(simulate(best) - 2 * save_takes / best) < 0.01
assert np.argmin(simulated) in range(np.argmin(lost) - 3, np.argmin(lost) + 4)
assert np.mean(failures % interval[-1] < interval[-1] / 2) > 0.6
assert 1.2 < (save_takes / best / 2 + best / failure_every) / (2 * save_takes / best) < 1.3

# %% [markdown]
# The curve is a flat U. At its lowest point, after about 13 minutes, saving and repeating cost equally much, and together about 7 % of the time. If your interval is twice the best one, you lose only a quarter more, so a rough estimate of *s* and *m* is good enough. At both ends the
# simulation loses less than the formula says. With a very short interval, the formula counts more saves than an hour has room for. In a very long interval, most failures come in its first half, so on average they cost less than half of it.
#
# ### Exercise 08-4 ★ · Your interval
# Write the function that returns the best interval in *steps*, rounded to a whole number, and at least 1. A machine fails every `machine_hours` hours on average, and the run uses `machines` of them. What counts is how often *any* of them fails.


# %%
def best_interval(step_seconds, save_seconds, machine_hours, machines): ...  # your answer


# %% tags=["solution"]
def best_interval(step_seconds, save_seconds, machine_hours, machines):
    failure_every = machine_hours * 3600 / machines
    seconds = (2 * save_seconds * failure_every) ** 0.5
    return max(1, round(seconds / step_seconds))


# %%
check("08-4", best_interval)

# %% [markdown]
# ## A run that hangs
# The worst failures raise no error. The run simply stops moving, and you pay for every machine while it waits. Usually one rank is stuck, or has taken a different branch, and all others wait for it.

# %% [markdown] tags=["prediction"]
# **Predict.** We freeze rank 1 for four seconds. What does Ray do about it?

# %%
predict("08-c", ..., choices=["it ends the run", "it restarts the run", "nothing"])

# %%
from dataclasses import replace

panel = TrainPanel("08-frozen", settings=replace(panel.settings, hang_after=1))
fault = faults.freeze_rank(1, seconds=4).at(panel, step=8)
trainer = make_trainer(no_checkpoints, steps=24)
with panel.watch(trainer):
    trainer.fit()

if fault.wait().outcome == "made":
    reveal("08-c", "nothing" if fault.noticed is None else "it restarts the run")
fault

# %% tags=["claim"]
assert fault.outcome == "made" and fault.noticed is None and fault.repeated is None
assert fault.standstill > 2

# %% [markdown] tags=["instructor"]
# **The panel says that py-spy cannot read a stack.** This machine doesn't let one process look into another, which is the default on Ubuntu.
# The run isn't affected, and the frozen rank is named all the same. If a permission is missing, the panel's line has the command that gives it.

# %% [markdown]
# Ray did nothing. Rank 1 was frozen, but its process existed, so Ray considered it alive. If it stays frozen, Ray gives up on it after `RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S`, by default ten minutes.
#
# If no rank makes a step for a while, the panel collects every rank's stack and shows which ranks are waiting, and where: here rank 0 waited in `backward()`, and rank 1 didn't wait at all. By default the panel does so after 30 seconds; here `hang_after` is one. (The summary
# leaves it out, because the run went on.)
#
# Outside the lab, `py-spy dump --pid …` prints the same stacks, as in lesson 03b. Compare the ranks: the one to look at isn't waiting, or it waits in a different call than the others.
#
# ### Exercise 08-2 ★★ · A save that hangs
# A loop calls this function after each step, with the loss of the rank's own rows, and saves when it returns True. Sooner or later the run hangs. These are the stacks of its ranks, with the innermost call on top:
#
# ```text
# $ py-spy dump --pid 18454    # rank 0
# …
#     TrainContext._sync_checkpoint_dir_name_across_ranks (ray/train/v2/_internal/execution/context.py:254)
#     TrainContext.report (ray/train/v2/_internal/execution/context.py:474)
#     …
#     train_and_save (1240127741.py:18)
#
# $ py-spy dump --pid 18455    # rank 1
# …
#     _engine_run_backward (torch/autograd/graph.py:979)
#     backward (torch/autograd/__init__.py:395)
#     Tensor.backward (torch/_tensor.py:623)
#     train_and_save (1240127741.py:15)
# ```
#
# Where does each rank wait, and what did they disagree about? Let the *mean* loss of all ranks decide. `dist.all_reduce(tensor)` replaces a tensor by its sum over all ranks, and `dist.get_world_size()` is their number. The check runs it on two workers and on one. If nothing is changed, it waits for 40 seconds, and then stops.


# %%
import torch.distributed as dist


def good_enough(loss):  # a float
    return loss < 0.5


# %% tags=["solution"]
def good_enough(loss):
    total = torch.tensor(loss)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size() < 0.5


# %% [markdown] tags=["instructor"]
# **The unfixed loop of 08-2 takes 40 seconds.** The check stops it then. That wait is the lesson: nothing raises an error.

# %%
check("08-2", good_enough)

# %% [markdown]
# ## A rank that is slow
# A machine doesn't have to fail to cost you time. Some are just slow, because they are too hot or because another program uses them, too. Then nothing hangs and nothing raises an error; the whole run takes longer, because each step waits for the slowest rank. `faults.slow_rank` lets rank 1 run for only 30 % of the time:

# %%
panel = TrainPanel("08-slow")
fault = faults.slow_rank(1, share=0.3, seconds=60).at(panel)
trainer = make_trainer(no_checkpoints, steps=100, pause=0.01)
with panel.watch(trainer):
    trainer.fit()

# %% tags=["claim"]
assert fault.wait().outcome == "made", fault.did

# %% tags=["claim", "timed"]
from labkit import runs

(cause,) = (cause for cause in runs.latest("08-slow").verdict["causes"] if cause["name"] != "start")
assert (cause["name"], cause["rank"]) == ("slow rank", 1)

# %% [markdown]
# Look at the strips below the curves. They show how the time of each rank's steps divides. Rank 0 spends most of its time in the *exchange*, where it waits for rank 1's gradients. Rank 1, which causes the delay, waits least. The sentence below the strips draws that conclusion for you: it names the rank, and what an
# epoch would take without the delay. Is it worth replacing the machine? Compare the two numbers. [Why is this run slow?](../docs/verdict.md) explains the six parts.

# %% [markdown]
# ## A machine that says goodbye
# A crash comes without warning, but the loss of a machine is often announced. Cheap *spot* machines, for example, are taken back when the cloud has a better use for them, with a notice of seconds or minutes. This is a **preemption**. Ray passes the notice on to the workers, and then `ray.train.get_preemption_info()` stops returning
# None. So you save when it matters:


# %%
def on_notice(step):
    return step % 5 == 0 and ray.train.get_preemption_info() is not None


# %% [markdown]
# `get_preemption_info()` is a barrier: all ranks must call it after the same steps, and it waits for the slowest rank. Here every fifth step is enough.
#
# And where does the run continue? Our two nodes have two CPUs each. For two workers the remaining node is enough, but a run with four would have to wait for a new machine. **Elastic training** solves that. `num_workers=(1, 4)` lets Ray start as many workers as there is room for, at least one and at most four.
#
# `faults.drain_node` announces that a node goes away, as the command `ray drain-node` does. The notice for `node-2` comes at step 5, and two seconds later the node is gone. Until then the run keeps training, and a step takes a little more than 0.1 seconds. So
# the cell works once: to run it again, call `lab.add_node(cpus=2)`, and put the new node's name into it.

# %% [markdown] tags=["prediction"]
# **Predict.** How many steps would a run *without any checkpoint* have to train twice?

# %%
predict("08-d", ...)  # a number

# %%
import os

os.environ["RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S"] = "0.5"  # by default, Ray asks every 5 seconds
os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = "8"  # to wait for workers; by default 60
panel = TrainPanel("08-on-notice")
fault = faults.drain_node("node-2", deadline=2).at(panel, step=5)
trainer = make_trainer(on_notice, workers=(1, 4))
with panel.watch(trainer):
    warned = trainer.fit()

repeated = fault.wait().repeated or 0
reached = warned.return_value["first"] + repeated
if fault.outcome == "made":
    reveal("08-d", float(reached))
fault

# %% [markdown] tags=["instructor"]
# **"The lab has started no such node" in the cell with `drain_node`.** It ran before, and that node is gone. Call `lab.add_node(cpus=2)`, wait 20 seconds, and put the name of the new node into the cell.

# %% [markdown]
# *Noticed after* is long in this card, because it ends when the old workers were replaced. Ray had passed on the notice long before, and the run saved because of it. Why the run stalled for so long comes in the next section.
#
# The old workers got as far as step `reached`, and the new ones started with the last checkpoint. From `reached` you can also compute what other policies would have cost: `every 10 steps` loses the steps since its last save.

# %%
twice = {
    "no checkpoints": reached,
    "every 10 steps": reached % 10,
    "on notice": repeated,
}
with pyplot.rc_context(figure_style()):
    figure, axes = pyplot.subplots(figsize=(6, 1.6))
    axes.bar_label(axes.barh(list(twice), list(twice.values())), padding=3)
    axes.set(xlabel="steps trained twice")
    axes.xaxis.get_major_locator().set_params(integer=True)
pyplot.close(figure)
figure

# %% tags=["claim"]
assert fault.outcome == "made", fault.did

# %% tags=["claim", "timed"]
assert 8 <= reached <= 30, (fault, reached)
assert repeated <= 10 and len(warned.best_checkpoints) >= 1

# %% [markdown]
# With `on_notice` the run saved after every fifth step once the notice had come, so it loses a few steps at most; with `every 10 steps` it's up to nine, or fewer if the machine happens to go soon after a save. And `on_notice` paid for no save before the
# notice. Without a notice it would have saved nothing at all. Some machines die without one, so a real run combines `on_notice` with an interval.
#
# You didn't set `max_failures` this time, and the run still survived. Ray counts announced losses separately, and by default it allows any number of them: `FailureConfig(max_preemption_failures=-1)`. This part of Ray is *alpha*, so it may change.

# %% [markdown] tags=["instructor"]
# **A preemption needs no `max_failures`.** It has a budget of its own, `max_preemption_failures`, which is unlimited by default.

# %% tags=["claim"]
assert FailureConfig().max_preemption_failures == -1 and FailureConfig().max_failures == 0

# %% [markdown]
# ## Fewer workers, the same model
# Two workers finished what four had started. Is it still the model that one undisturbed process would have trained?

# %%
print("workers at the end:", warned.return_value["workers"])
print(f"largest difference from the weights of one process: {difference(warned):.1e}")

# %% tags=["claim"]
assert warned.return_value["workers"] == 2
assert difference(warned) < 1e-3

# %% [markdown]
# It is, up to rounding. That works because `batches` divides the *global* batch of 96 rows among however many workers there are. With a fixed batch of 24 rows per worker, the global batch would have shrunk to 48, and that is a different training run. If it has to shrink, reduce the learning rate with it.
#
# Why did the run stall for so long? Ray looks at the list of nodes only every 20 seconds. Until the next look, it believes that the lost node is still there and tries to start four workers on both. After `RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S` it gives up and tries again, with as many workers as it believes in by then.
#
# An elastic run also grows when a machine comes back. Ray restarts all workers for that, without a notice, so growing costs as much as a failure.

# %% [markdown]
# ### Exercise 08-3 ★ · The rank that isn't there
# This function worked for hours on four workers. Then a machine died, and the two workers that were left saved nothing more, without an error. And the last file can't be loaded into a plain model, because its names begin with `module.`. Fix both. The check runs the function with one worker and with two.


# %%
def save_model(model, step):
    rank = ray.train.get_context().get_world_rank()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if rank == 3:  # rank 0 has enough to do
            torch.save(model.state_dict(), f"{folder}/model.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"step": step}, checkpoint=checkpoint)


# %% tags=["solution"]
def save_model(model, step):
    rank = ray.train.get_context().get_world_rank()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if rank == 0:  # the only rank that every run has
            plain = getattr(model, "module", model)
            torch.save(plain.state_dict(), f"{folder}/model.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"step": step}, checkpoint=checkpoint)


# %%
check("08-3", save_model)

# %% [markdown]
# ## Key points
# - A failure of one rank stops all of them. `FailureConfig(max_failures=…)` starts them again, and your loop must load the checkpoint.
# - To resume in the middle of an epoch, compute the rows of a step from its number.
# - The best interval between two saves is √(2 · time of a save · time between failures). The curve around it is flat.
# - A preemption is announced, so you can save just in time. Ray counts preemptions in a budget of their own.
# - When a run hangs, compare the stacks of all ranks. Look at the one that doesn't wait, or waits in a different call.
# - Every rank must reach `backward`, `report` and `get_preemption_info` equally often.
# - In an elastic run, divide the *global* batch, and never rely on a rank other than 0.
#
# **A question to take along.** A save takes 10 seconds, and a machine fails about every 5,000 seconds. How often would you save?
#
# <details><summary>Compare your answer</summary>About every √(2 · 10 · 5,000) ≈ 316 seconds. The curve is flat there, so five minutes is as good.</details>
#
# | older tutorials | today |
# |---|---|
# | `TorchTrainer.restore(path)`, `max_retries=3` | a trainer with the same `RunConfig(name=…)`, and `FailureConfig(max_failures=3)` |
#
# Where to go next: the recipe `notebooks/recipes/when_the_controller_dies.ipynb` kills the process that directs the workers. Lesson 09 predicts what more machines would bring.

# %% [markdown] tags=["plain"]
# ## Without the lab
# A small job in plain Ray, as the script [08_when_machines_fail.py](plain/08_when_machines_fail.py):

# %% [markdown] tags=["links"]
# ## Official pages

# %% [markdown]
# ## Stop

# %%
store.stop()
lab.stop()
