# %% [markdown]
# # 09 · From two cores to a cluster
#
# By the end of this lesson you can
# - predict from two short runs what a step costs with more workers, and compute what its messages cost (exercise 09-1);
# - measure a speed-up that compares the same work (09-2);
# - find the worker that all others wait for (09-3);
# - ask an autoscaler for resources that its nodes can have (09-4).
#
# **Time** … · **Needs** 00, 01, 03

# %% [markdown]
# A training takes 40 hours on one GPU. Should you rent 4 of them, 8 or 32? If the work were divided perfectly, each choice would cost the same 40 GPU hours. It never is, so
# each choice takes longer and costs more. Two short runs, on one and on two of these GPUs, tell you how much before you rent the rest.

# %%
from labkit import cluster
from labkit.exercises import check, hint, predict, reveal
from labkit.settings import Settings

settings = Settings.from_env()
lab = cluster.start(cpus_per_node=5)  # logical CPUs: room for four workers, which mostly sleep here
lab

# %% [markdown]
# ## What a step costs
# `n` workers share a batch of `rows` rows, so each computes on `rows / n`. Some work stays the same however many there are, such as the optimizer's update. This **serial share** limits the speed-up
# (**Amdahl's law**): with a serial share of 10 %, no number of workers is more than 10 times as fast.
#
# Then the workers average their gradients. In a **ring all-reduce** each worker sends 2 (n − 1) messages, and each message is 1/n of the gradients. A message costs α seconds, the **latency**,
# whatever its size, and β seconds for each megabyte:
#
# `step = serial + per_row · rows / n + α · 2 (n − 1) + β · megabytes · 2 (n − 1) / n`
#
# ![A step with one, two and four workers: the part for the rows shrinks, the serial part stays, and the all-reduce grows](images/step_cost.svg)

# %% [markdown] tags=["instructor"]
# **Where does 2 (n − 1) come from?** Each worker cuts its gradients into n pieces. In n − 1 rounds the pieces are added up along the ring, and in n
# − 1 more rounds the sums go around. A worker sends one piece in each round.

# %% [markdown]
# ## Two short runs
# Two cores can't show how eight GPUs scale. But a worker with a GPU mostly *waits* for it, and waiting needs no core. So the steps here sleep instead of computing: 10 ms of serial work, and 0.4 ms
# per row. The all-reduce is real. Remember that these steps are emulated; further down, the cores compute.

# %%
import time


def on_a_gpu(rows):  # emulated
    time.sleep(0.010 + 0.0004 * rows)


# %% [markdown] tags=["instructor"]
# **"Sleeping isn't training."** Right, and the lesson says so. A worker with a GPU mostly waits for it, and waiting needs no core. *When the cores
# compute* shows the other case.

# %% [markdown]
# The loop measures each step for several phases, that is, several combinations of rows per worker and megabytes. The first two steps of a phase don't count, because that's when connections are made and
# memory is allocated.

# %%
import ray.train
import torch
import torch.distributed as dist


def train_loop(config):
    world, found = ray.train.get_context().get_world_size(), []
    for rows, megabytes in config["phases"]:
        gradients, seconds = torch.zeros(int(250_000 * megabytes)), []
        for _ in range(config["steps"]):
            begin = time.perf_counter()
            config["compute"](rows)
            if world > 1:
                dist.all_reduce(gradients)
            seconds.append(time.perf_counter() - begin)
        found.append((world, rows, megabytes, seconds[2:]))
    return found


# %%
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def measure(workers, compute, *phases):
    loop = {"compute": compute, "phases": phases, "steps": 14 if settings.small else 32}
    scaling = ScalingConfig(num_workers=workers)
    return TorchTrainer(train_loop, train_loop_config=loop, scaling_config=scaling).fit().return_value


# %% [markdown]
# Four unknowns need four measurements. One worker with two numbers of rows tells `serial` and `per_row` apart. Two workers with a small and a large all-reduce tell α and β apart.

# %%
alone = measure(1, on_a_gpu, (256, 0), (64, 0))
pair = measure(2, on_a_gpu, (64, 1), (64, 32))

# %% [markdown]
# ## The fit
# In the formula above, a step is the sum of the four costs, each multiplied by a number that you know. `terms` returns these numbers, so each measurement is a linear equation, and NumPy solves the four of them. The median keeps a single slow step from
# changing the result. A cost can't be negative, but a measured value close to zero can, so `clip` ends it there.

# %%
import numpy as np
import pandas as pd


def terms(workers, rows, megabytes):  # of serial, per_row, alpha and beta
    rounds = 2 * (workers - 1)
    return [1, rows, rounds, megabytes * rounds / workers]


def fit(measured):
    equations = [terms(workers, rows, megabytes) for workers, rows, megabytes, _ in measured]
    return np.linalg.solve(equations, [np.median(seconds) for *_, seconds in measured]).clip(min=0)


costs = fit(alone + pair)
pd.Series(1000 * costs, ["serial ms", "per row ms", "α ms", "β ms per MB"]).round(2)

# %% [markdown]
# *serial* and *per row* are close to the 10 ms and 0.4 ms that `on_a_gpu` sleeps.
#
# The training that you want to predict has 256 rows per step, 4 MB of gradients (a million parameters) and 20,000 steps. A run on a cluster starts 20 seconds later than one process. A prediction is the same sum again:


# %%
def predict_run(costs, rows=256, megabytes=4, steps=20_000, start=20):
    table = pd.DataFrame(index=pd.Index([1, 2, 3, 4, 8, 32], name="workers"))
    table["step ms"] = [1000 * np.dot(terms(n, rows / n, megabytes), costs) for n in table.index]
    table["speed-up"] = table["step ms"][1] / table["step ms"]
    late = start * (table.index > 1)
    table["hours"] = (late + steps * table["step ms"] / 1000) / 3600
    table["core-hours"] = table.index * table["hours"]
    saved = (table["step ms"][1] - table["step ms"]) / 1000  # seconds in each step
    table["pays after"] = (late / saved).where(saved > 0)
    return table


predict_run(costs).round(3)

# %% [markdown] tags=["instructor"]
# **Core-hours always rise.** That's the point: more workers buy time and cost more core-hours, because all of them wait while they communicate.

# %% tags=["claim"]
table = predict_run(costs)
assert 0 < costs[0] < 0.03 and 0.0002 < costs[1] < 0.0006
assert (table["core-hours"].diff().dropna() > 0).all()
assert table["pays after"].isna()[1] and table["pays after"][4] > 0

# %% [markdown]
# Read a row from left to right:
# - *speed-up*: one worker's step divided by this one.
# - *core-hours*: hours times workers, which is what you pay for. They rise with every worker, because each one adds serial work and communication.
# - *pays after*: the **break-even**, the number of steps after which the run has made up for its later start. A shorter run is done sooner in one process. `NaN` means never.
#
# That is how to choose between 4, 8 and 32: go down the rows until the next one saves too few hours for its core-hours.

# %% [markdown] tags=["prediction"]
# **Predict.** Now the same steps run on your cores, with 1, 2, 3 and 4 workers. What speed-up will four workers have over one?

# %%
predict("09-a", ...)  # a number


# %%
def compare(costs, compute):
    table = predict_run(costs).loc[1:4, ["step ms"]].rename(columns={"step ms": "predicted ms"})
    runs = {n: measure(n, compute, (256 // n, 4 if n > 1 else 0))[0] for n in table.index}
    table["measured ms"] = [1000 * np.median(seconds) for *_, seconds in runs.values()]
    table["error %"] = 100 * (table["predicted ms"] / table["measured ms"] - 1)
    table["speed-up"] = table["measured ms"][1] / table["measured ms"]
    return table


waiting = compare(costs, on_a_gpu)
reveal("09-a", waiting["speed-up"][4])
waiting.round(1)

# %% [markdown] tags=["instructor"]
# **The prediction is wrong for three and four workers.** All messages are copied by the same two cores, which the model doesn't know. The
# benchmarks of this repository show errors of that kind, too. The class should learn where to trust a model, not that it's exact.

# %% tags=["claim"]
assert waiting["speed-up"][2] > 1.1 and waiting["speed-up"][4] > 1.2

# %% [markdown]
# You fitted steps of one and of two workers, so the first two errors only show how much a measurement varies. **Three workers are the test.** If their steps take longer than predicted, and those of four workers even more, it's because the model gives each worker a link of its own,
# while the same two cores copy all messages here. On a real cluster each node copies its own. If the machine was busy, run the cells from *Two short runs* on again.

# %% [markdown]
# ### Exercise 09-1 · α and β
# `np.linalg.solve` found α and β for you. Now do it by hand: write a function that gets a number of workers and two measurements of an all-reduce alone, each as `(megabytes, seconds)`, and returns `(alpha, beta)`.


# %%
def alpha_beta(workers, small, large): ...  # your answer


# %% tags=["solution"]
def alpha_beta(workers, small, large):
    rounds = 2 * (workers - 1)
    beta = (large[1] - small[1]) / (large[0] - small[0]) * workers / rounds
    alpha = small[1] / rounds - beta * small[0] / workers
    return alpha, beta


# %%
check("09-1", alpha_beta)

# %% [markdown]
# ## When the cores compute
# Now the workers need the cores themselves, as on any CPU cluster that has more workers than cores.

# %%
layer, images = torch.nn.Linear(1024, 1024), torch.rand(256, 1024)


def on_the_cores(rows):
    for _ in range(4):
        layer(images[:rows]).sum().backward()


measured = measure(1, on_the_cores, (256, 0), (64, 0)) + measure(2, on_the_cores, (64, 1), (64, 32))
costs_on_cores = fit(measured)
predict_run(costs_on_cores).loc[:4].round(3)

# %% [markdown] tags=["prediction"]
# **Predict.** What speed-up will four workers have this time?

# %%
predict("09-b", ...)  # a number

# %%
computing = compare(costs_on_cores, on_the_cores)
reveal("09-b", computing["speed-up"][4])
computing.round(1)

# %% tags=["claim"]
assert computing["speed-up"][4] < waiting["speed-up"][4]

# %% [markdown]
# The third and the fourth worker have no core of their own, so they take turns with the others. The model assumes a core for each worker; where that is wrong, so is the prediction. It also knows no cost
# that you didn't measure: a slower network between racks, a disk that everyone reads from, a batch so small that a GPU is no longer busy. And it adds the all-reduce to the computing, while DDP sends most gradients during
# the backward pass, so a real step is shorter.

# %% [markdown]
# ### Exercise 09-2 · The same work
# This loop is meant to compare runs with different numbers of workers. `config["step"](rows)` does the work of a step on `rows` rows, and returns how many seconds it took. Two things are wrong: more
# workers do more work, and the seconds are those of rank 0, although a run is as slow as its slowest rank. All workers together should process exactly `config["rows"]` rows per step, and every rank should return the
# largest of their totals (`dist.ReduceOp.MAX`). The check runs the loop on two workers with 65 rows.


# %%
def train_fairly(config):  # your answer: fix it
    seconds = 0.0
    for _ in range(config["steps"]):
        seconds += config["step"](config["rows"])
    return seconds


# %% tags=["solution"]
def train_fairly(config):
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    rows = config["rows"] // world + (rank < config["rows"] % world)
    seconds = torch.zeros(1, dtype=torch.float64)
    for _ in range(config["steps"]):
        seconds += config["step"](rows)
    if world > 1:
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item()


# %%
check("09-2", train_fairly)

# %% [markdown]
# ## A straggler
# With 32 machines, one of them is always slow: it is too hot, or another program uses it, too. Such a worker is a **straggler**. `faults.slow_rank` makes one: from the second epoch on, rank 1 runs for only 30 % of
# the time. The loop adds up, for each epoch, the seconds that a rank computes and those that it spends in the all-reduce.


# %%
def train_watched(config):
    gradients, found = torch.zeros(1_000_000), []
    on_the_cores(128)  # the first time takes longer
    for epoch in range(2):
        computing = waiting = 0.0
        for _ in config["panel"].steps(range(40), epoch=epoch, epochs=2):
            begin = time.perf_counter()
            on_the_cores(128)
            computed = time.perf_counter()
            dist.all_reduce(gradients)
            computing, waiting = computing + computed - begin, waiting + time.perf_counter() - computed
        ranks = [None] * ray.train.get_context().get_world_size()
        dist.all_gather_object(ranks, {"epoch": epoch, "computing s": computing, "waiting s": waiting})
        found += ranks
    return found


# %% [markdown] tags=["prediction"]
# **Predict.** Rank 0 still has a core for itself. How many times as long as its first epoch does its second one take?

# %%
predict("09-c", ...)  # a number

# %%
from labkit import faults
from labkit.train import TrainPanel
from ray.train import RunConfig

panel = TrainPanel("09-straggler")
trainer = TorchTrainer(
    train_watched,
    train_loop_config={"panel": panel},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(callbacks=[panel.callback()]),
)
fault = faults.slow_rank(1, share=0.3, seconds=60).at(panel, epoch=1)
with panel.watch(trainer):
    ranks = pd.DataFrame(trainer.fit().return_value, index=["rank 0", "rank 1"] * 2)

# %%
first, second = ranks.loc["rank 0", ["computing s", "waiting s"]].sum(axis=1)
reveal("09-c", second / first)
ranks.round(2)

# %% [markdown] tags=["instructor"]
# **Two blames for one symptom.** In *A straggler*, rank 0 spends its time in the all-reduce, which looks like a slow network. Say: "The slow rank
# is the one that doesn't wait."

# %% tags=["claim"]
assert fault.outcome == "made", fault.did
slowed = ranks[ranks["epoch"] == 1]
assert slowed["waiting s"]["rank 0"] > 1.5 * slowed["waiting s"]["rank 1"]

# %% [markdown]
# The panel shows the same rows/s for *both* ranks, because each step ends for all at the same time, so it can't mark one as *slow*. The seconds tell: rank 0 spends most of the epoch in the all-reduce, which looks
# like a slow network, but it is waiting for rank 1. **The slow rank is the one that doesn't wait.**

# %% [markdown]
# ### Exercise 09-3 · Find it
# Write a loop that makes `config["steps"]` steps. A step is `config["compute"]()`, then an all-reduce of any tensor. The loop returns the number of the slowest rank, on every rank. The check runs it on two workers, first with
# one rank slow and then with the other.


# %%
def slowest(config): ...  # your answer


# %% tags=["solution"]
def slowest(config):
    seconds = 0.0
    for _ in range(config["steps"]):
        begin = time.perf_counter()
        config["compute"]()
        seconds += time.perf_counter() - begin
        dist.all_reduce(torch.zeros(1))
    ranks = [None] * ray.train.get_context().get_world_size()
    dist.all_gather_object(ranks, seconds)
    return ranks.index(max(ranks))


# %% [markdown] tags=["instructor"]
# **A loop that finds the slow rank only sometimes.** It measures whole steps, and these take all ranks equally long, so the largest number is a
# matter of chance. The check runs the loop four times for that reason.

# %%
check("09-3", slowest)

# %% [markdown]
# ## Nodes that come when they are needed
# A cluster with an **autoscaler** starts nodes while more is asked for than there is, and stops those that are idle. You tell it which kinds of nodes it may start, and how many of each. It counts whole workers: a
# worker needs all its CPUs on one node.

# %% [markdown]
# ### Exercise 09-4 · What fits
# A cluster has a head with 8 CPUs. Its autoscaler may start five nodes with 8 CPUs each. Every worker of your training needs 3 CPUs, because it decodes images. Write the `ScalingConfig`, with `resources_per_worker`,
# for as many workers as can run. With one worker more, the training would never begin.

# %% [markdown] tags=["instructor"]
# **"48 CPUs divided by 3 is 16."** Draw six boxes of 8 CPUs, one of which is the head, and let the class fill in workers of 3. Say: "A worker can't
# use two CPUs of one box and one of the next."

# %%
scaling = ...  # your answer

# %% tags=["solution"]
scaling = ScalingConfig(num_workers=12, resources_per_worker={"CPU": 3})

# %%
check("09-4", scaling)

# %% [markdown] tags=["extra"]
# ## Extra: an autoscaler at work
# `ray start --head` takes a file that says which nodes it may start. On a cloud, the *provider* rents machines. Ray has one for tests, `fake_multinode`, which starts real Ray nodes on this machine. In the file, which has
# the format of `ray up`, read `available_node_types`: there may be three nodes with two CPUs.

# %%
import yaml
from labkit.machine import free_port

head_id, port, dashboard = "f" * 51 + "00000", free_port(), free_port()
address = f"{lab.address.split(':')[0]}:{port}"
two_cpus = {"resources": {"CPU": 2}, "node_config": {}, "min_workers": 0}
config = {
    "cluster_name": "fake",
    "max_workers": 3,
    "idle_timeout_minutes": 5,
    "upscaling_speed": 1.0,
    "provider": {"type": "fake_multinode", "gcs_address": address, "head_node_id": head_id},
    "available_node_types": {"ray.head.default": two_cpus, "two-cpus": two_cpus | {"max_workers": 3}},
    "head_node_type": "ray.head.default",
}

# %% [markdown]
# The rest, which the provider wants, says that nothing has to be installed on a node.

# %%
config["provider"] |= {"disable_node_updaters": True, "disable_launch_config_check": True}
config |= {name: {} for name in ("auth", "docker", "file_mounts")} | {"file_mounts_sync_continuously": False}
steps = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
config |= {f"{step}_commands": [] for step in steps}
config |= {name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")}
file = settings.home / "autoscaler.yaml"
_ = file.write_text(yaml.safe_dump(config))

# %% [markdown]
# Now `ray start`, with the lab's token. `--autoscaling-config` is new; the other options keep this cluster apart from the lab's. The lab's registry records what it starts, so `labkit stop` stops it. (Never use `ray stop` or `AutoscalingCluster` for that: they end *every* Ray on the
# machine.)

# %%
import os
import sys
from pathlib import Path

from labkit.cluster.nodes import temp_dir
from labkit.system.process_registry import ProcessRegistry

ray_command = str(Path(sys.executable).with_name("ray"))
command = [ray_command, "start", "--head", f"--port={port}", f"--dashboard-port={dashboard}", "--num-cpus=2"]
command += [f"--autoscaling-config={file}", f"--temp-dir={temp_dir(settings).with_name('a')}"]
command += ["--min-worker-port=0", "--max-worker-port=0", "--object-store-memory=100000000"]
command += [f"--dashboard-agent-listen-port={free_port()}", f"--ray-client-server-port={free_port()}"]
fake = {
    "RAY_FAKE_CLUSTER": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": head_id,
}

# %%
registry = ProcessRegistry(settings.home)
registry.start_watchdog("autoscaling", seconds=60)
recorded = {"group_id": "autoscaling", "log": settings.home / "autoscaling.log"}
head = registry.start(command, role="ray start", env=os.environ | fake, **recorded)
assert head.wait() == 0, recorded["log"].read_text()
[record.role for record in registry.record_session(head, role="head", group_id="autoscaling")]

# %% [markdown]
# A **job** is a script that runs on the cluster and not in your notebook, so it goes on when you close the notebook. `ray job submit` sends one. It needs the dashboard's address, and the token, which is in the environment already.
# This job is the script at the end of this lesson: the predictions from above in plain Ray, for four workers of one CPU each.

# %% [markdown] tags=["prediction"]
# **Predict.** The head has 2 CPUs, and each new node would bring 2. How many nodes will the autoscaler start?

# %%
predict("09-d", ...)  # a number

# %%
import json
import subprocess

import labkit

environment = os.environ | {"RAY_ADDRESS": address, "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}"}


def ray_cli(*words):
    return subprocess.run([ray_command, *words], env=environment, capture_output=True, text=True).stdout


script = Path(labkit.__file__).parents[1] / "notebooks" / "plain" / "09_scaling.py"
ray_cli("job", "submit", "--no-wait", "--submission-id=scaling", "--", sys.executable, str(script))
for _ in range(30):
    status = ray_cli("status")
    if "two-cpus" in status:
        break
    time.sleep(1)
print(status)

# %% [markdown]
# *Pending* is what the autoscaler has asked for, and *Demands* or *From request_resources* is what it was asked for. A real provider removes a node from *Pending* once it has started, and stops it when it's idle; the fake
# one does neither. The job runs as soon as there are enough nodes:

# %%
log = ray_cli("job", "logs", "--follow", "scaling")
print("\n".join(line for line in log.splitlines() if "predicted" in line))
alive = [node for node in json.loads(ray_cli("list", "nodes", "--format=json")) if node["state"] == "ALIVE"]
reveal("09-d", len(alive) - 1)

# %% tags=["claim"]
assert len(alive) == 2, alive
assert log.count("predicted") == 4, log

# %% [markdown] tags=["instructor"]
# **Nothing is stopped after the autoscaler's section.** The cell before the key points stops that cluster. Never use `ray stop` in class: it ends
# every Ray on the machine.

# %%
print(len(registry.stop("autoscaling")), "processes stopped")

# %% [markdown]
# ## Key points
# - Two short runs give four costs: serial, per row, per message, per megabyte. They predict the step of other numbers of workers. Measure one of those before you trust the others.
# - Compare the same work: the same global batch, and the time of the slowest rank.
# - More workers always cost more core-hours. They buy time, as long as the run is longer than its break-even.
# - The model assumes a core or a GPU for each worker. Where workers share one, measure.
# - The slow rank is the one that doesn't wait.
# - An autoscaler starts whole nodes, and a worker needs all its CPUs on one of them.
#
# | older tutorials | today |
# |---|---|
# | `ray submit cluster.yaml train.py` | `ray job submit --address http://… -- python train.py`, with `RAY_AUTH_MODE=token` |
# | `ray.autoscaler.sdk.request_resources` before a training | the trainer asks by itself |
# | `ray.cluster_utils.AutoscalingCluster` for a trial | `ray start --head --autoscaling-config=…`; the class runs `ray stop --force` |
#
# To do the same on machines that you rent or share, go to [docs/clusters](../docs/clusters/README.md). It has files for Docker, Kubernetes, Slurm, AWS and Google Cloud, each with the command that ends it.

# %% [markdown] tags=["plain"]
# ## Without the lab
# The script that you submitted: it needs no labkit, and runs on any Ray cluster.

# %% [markdown] tags=["links"]
# ## Reference

# %% [markdown]
# ## Stop

# %%
lab.stop()
