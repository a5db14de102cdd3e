# %% [markdown]
# # 09 · From two cores to a cluster
#
# By the end of this lesson you can
# - predict from two short runs what a step costs with more workers (exercise 09-1);
# - say where such a prediction goes wrong, and why (09-5);
# - measure a speed-up that compares the same work (09-2);
# - find the worker that all others wait for (09-3), and say why a run is slow (09-6);
# - watch a cluster grow and shrink by itself, and count how many workers fit on its nodes (09-4).
#
# **Time** about 100 minutes · **Needs** 00, 01, 03

# %% [markdown]
# Lesson 03 began with a story: with 32 times as many GPUs, ImageNet was trained not 32 times but about 29 times as fast ([Goyal et al.](https://arxiv.org/abs/1706.02677)). So each of the 256 GPUs did about 90 % of the work that it had done in the run with 8. Suppose your run takes many hours on one GPU. Should you rent four of them, eight or 32? You can find out before you pay for the answer, from two runs that take a few seconds each.
#
# One difference has to be named first: in that story each GPU kept its 32 images per step, so the batch grew with the number of GPUs. This is called **weak scaling**. Below, the batch stays the same, so it's the same model, and each worker has less to compute. That's called **strong scaling**, and because it is harder, you should expect less than 29.

# %% [markdown]
# ## What a step costs
# Let `n` workers share a batch of `rows` rows. Each of them computes on `rows / n`, so that part of a step shrinks. Other work stays the same however many workers there are, such as the optimizer's update. This **serial share** limits the
# speed-up, which is **Amdahl's law**: if it is 10 % of the work, no number of workers makes the run more than 10 times as fast.
#
# Then the workers average their gradients, and that part *grows*. In a **ring all-reduce**, each worker sends 2 (n − 1) messages, one in each round, and each message is 1/n of the gradients. Every message costs α seconds, the **latency**, whatever its size. Every megabyte costs β seconds more:
#
# `step = serial + per_row · rows / n + α · 2 (n − 1) + β · megabytes · 2 (n − 1) / n`
#
# ![A step with one, two and four workers: the part for the rows shrinks, the serial part stays, and the all-reduce grows](images/step_cost.svg)

# %% [markdown] tags=["instructor"]
# **Where does 2 (n − 1) come from?** Each worker cuts its gradients into n pieces. In n − 1 rounds the pieces are added up along the ring, and in n
# − 1 more rounds the sums go around. A worker sends one piece in each round.

# %% [markdown]
# ## Two short runs
# Two cores can't show how eight GPUs scale. But a worker with a GPU mostly *waits* for it, and waiting needs no core. So the steps here sleep instead of computing, 10 ms for the serial work and 0.4 ms for each row. The all-reduce is real.

# %%
from labkit.local import cluster

lab = cluster.start(cpus_per_node=4)  # logical CPUs: room for three workers, which mostly sleep
lab

# %%
import statistics
import time

import ray.train
import torch
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def on_a_gpu(rows):
    time.sleep(0.010 + 0.0004 * rows)


def train_loop(config):
    world = ray.train.get_context().get_world_size()
    medians = []
    for rows, megabytes in config["phases"]:
        gradients = torch.zeros(int(250_000 * megabytes))
        seconds = []
        for _ in range(14):
            begin = time.perf_counter()
            config["compute"](rows / world)
            if world > 1:
                dist.all_reduce(gradients)
            seconds.append(time.perf_counter() - begin)
        medians.append(statistics.median(seconds[2:]))
    return medians


# %%
def measure(workers, compute, phases):
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={"compute": compute, "phases": phases},
        scaling_config=ScalingConfig(num_workers=workers),
    )
    return trainer.fit().return_value


# %% [markdown] tags=["instructor"]
# **"Sleeping isn't training."** Right, and the lesson says so. A worker with a GPU mostly waits for it, and waiting needs no core. The all-reduce is a real one, and *When the cores compute* shows the other case.

# %% [markdown]
# A *phase* is a number of rows and a size of the gradients. The loop makes 14 steps of each, and the first two don't count, because that's when connections are made and memory is allocated. The median keeps one slow step from changing the result.
#
# The formula has four unknowns, so we need four measurements. One worker with two batch sizes separates the serial work from the work per row. Two workers that exchange almost nothing, then 32 MB, separate α from β.

# %%
alone = measure(1, on_a_gpu, [(256, 0), (64, 0)])
pair = measure(2, on_a_gpu, [(256, 0.01), (256, 32)])
print("one worker: ", [f"{1000 * seconds:.1f} ms" for seconds in alone])
print("two workers:", [f"{1000 * seconds:.1f} ms" for seconds in pair])

# %% [markdown]
# ## The fit
# In the formula, each of the four costs is multiplied by a number that you know. So every measurement is one linear equation, and NumPy solves four of them:

# %%
import numpy as np

equations = [
    # serial, per_row, α, β
    [1, 256, 0, 0],
    [1, 64, 0, 0],
    [1, 256 / 2, 2, 0.01],
    [1, 256 / 2, 2, 32],
]
costs = np.linalg.solve(equations, [*alone, *pair])
serial, per_row, alpha, beta = costs.clip(min=0)
print(f"serial {1000 * serial:.2f} ms, per row {1000 * per_row:.2f} ms")
print(f"α {1000 * alpha:.2f} ms, β {1000 * beta:.2f} ms per MB")

# %% tags=["claim", "timed"]
assert 0.005 < serial < 0.03 and 0.0002 < per_row < 0.0006

# %% [markdown]
# *serial* and *per row* come out close to the 10 ms and 0.4 ms of the sleep, so the fit found what we put in. α and β belong to this machine.

# %% [markdown]
# ## Predict three
# A prediction is the formula again, with the costs filled in. We know two workers already, because we fitted them. *Three* workers are the test. Each step has 256 rows and 4 MB of gradients, which is a million parameters.


# %%
def step_seconds(computing, workers, megabytes):
    rounds = 2 * (workers - 1)
    return computing + alpha * rounds + beta * megabytes * rounds / workers


predicted = step_seconds(serial + per_row * 256 / 3, workers=3, megabytes=4)
measured = measure(3, on_a_gpu, [(256, 4)])[0]
print(f"three workers: {1000 * predicted:.0f} ms predicted, {1000 * measured:.0f} ms measured")

# %% tags=["claim", "timed"]
assert 0.6 < predicted / measured < 1.2

# %% [markdown]
# Most of these milliseconds are the sleep that we put in. What the formula had to predict is the rest: an exchange among three, from two short runs of one and two.

# %% [markdown]
# ## When the cores compute
# Now the same with workers that really compute, as on any cluster of CPUs. The messages are the same, so α and β stay what they are. Only the computing has to be measured again, with one worker and two batch sizes:

# %%
layer = torch.nn.Linear(1024, 1024)
images = torch.rand(256, 1024)


def on_the_cores(rows):
    for _ in range(3):
        layer(images[: round(rows)]).sum().backward()


many, few = measure(1, on_the_cores, [(256, 0), (64, 0)])
core_per_row = (many - few) / (256 - 64)
core_serial = many - core_per_row * 256
core_computing = core_serial + core_per_row * 256 / 3  # of one of three workers
core_predicted = step_seconds(core_computing, workers=3, megabytes=4)
print(f"one worker: {1000 * many:.0f} ms; three workers: {1000 * core_predicted:.0f} ms predicted")

# %% [markdown] tags=["prediction"]
# **Predict.** How will the measured step of three workers compare with this, on your machine?

# %%
from course.exercises import check, hint, predict, reveal

predict("09-a", ..., choices=["shorter", "within 10 %", "longer"])

# %%
core_measured = measure(3, on_the_cores, [(256, 4)])[0]
print(f"three workers: {1000 * core_predicted:.0f} ms predicted, {1000 * core_measured:.0f} ms measured")

ratio = core_measured / core_predicted
if ratio < 0.9:
    reveal("09-a", "shorter")
elif ratio <= 1.1:
    reveal("09-a", "within 10 %")
else:
    reveal("09-a", "longer")

# %% tags=["claim", "timed"]
import os

if os.cpu_count() == 2:
    assert core_measured / core_predicted > measured / predicted

# %% [markdown] tags=["instructor"]
# **The prediction for three computing workers is too low.** They share two cores, which the model doesn't know. On a machine with more cores it may be right. The class should learn where to trust a model, not that it's exact.

# %% [markdown]
# On two cores, the step takes much longer than predicted. (If you have three cores or more, yours may be right.) The formula hasn't changed, and neither have the messages. What is different? The model assumes that each worker has a processor of its own. Three sleeping workers need none, but three computing ones
# share two cores and take turns.
#
# That's how models of this kind fail in general: not at random, but where one of their assumptions is broken. The next cause may be a slower network between racks, or a batch so small that the GPU is no longer busy. So measure one number of workers that you did *not* fit, before you believe a prediction for 32.
#
# ### Exercise 09-5 ★ · Repair the model
# Write a function that returns by what factor the computing takes longer than the model says, for a number of `workers` on a machine with a number of `cores`. As long as each worker has a core, the factor is 1. Beyond that, the workers share the cores evenly.


# %%
def slowdown(workers, cores): ...  # your answer


# %% tags=["solution"]
def slowdown(workers, cores):
    return max(1, workers / cores)


# %%
check("09-5", slowdown)

# %% [markdown]
# With your function, this cell predicts the three workers again:

# %%
import os

factor = slowdown(3, os.cpu_count())
if factor:
    repaired = step_seconds(factor * core_computing, workers=3, megabytes=4)
    print(f"repaired: {1000 * repaired:.0f} ms, measured: {1000 * core_measured:.0f} ms")

# %% tags=["claim", "timed"]
if os.cpu_count() == 2:
    assert abs(repaired - core_measured) < abs(core_predicted - core_measured)

# %% [markdown]
# On two cores, that's closer, but it can still be less than half of what you measured. Other programs use the cores, too, and whenever one worker waits for a core, all others wait for its message. A factor can't repair that: measure on the machine that you'll use.
#
# ### Exercise 09-1 ★★★ · α and β of a cluster
# `np.linalg.solve` found α and β for you. Now write the loop that measures them on a new cluster. `config["exchange"](megabytes)` makes an all-reduce, and returns how many seconds it took on this rank. The first exchange of a run is much slower, and so is one in five of the later ones. The ranks measure
# different times, because a rank that comes late waits less. Take each rank's median, and then the largest of all ranks (`dist.ReduceOp.MAX`). Every rank returns `(alpha, beta)`. The check runs the loop on three workers.


# %%
def alpha_beta(config): ...  # your answer


# %% [markdown]
# <details><summary>A version with blanks</summary>
#
# ```python
# def alpha_beta(config):
#     workers = ray.train.get_context().get_world_size()
#     medians = []
#     for megabytes in (1, 16):
#         seconds = [config["exchange"](megabytes) for _ in range(12)]
#         medians.append(...)
#     medians = torch.tensor(medians, dtype=torch.float64)
#     dist.all_reduce(...)
#     small, large = medians.tolist()
#     rounds = ...
#     beta = ...
#     alpha = ...
#     return alpha, beta
# ```
# </details>


# %% tags=["solution"]
def alpha_beta(config):
    workers = ray.train.get_context().get_world_size()
    medians = []
    for megabytes in (1, 16):
        seconds = [config["exchange"](megabytes) for _ in range(12)]
        medians.append(statistics.median(seconds))
    medians = torch.tensor(medians, dtype=torch.float64)
    dist.all_reduce(medians, op=dist.ReduceOp.MAX)
    small, large = medians.tolist()
    rounds = 2 * (workers - 1)
    beta = (large - small) / (16 - 1) * workers / rounds
    alpha = small / rounds - beta * 1 / workers
    return alpha, beta


# %%
check("09-1", alpha_beta)

# %% [markdown]
# ## Four, eight or 32?
# Now the question from the start, for a shorter run on workers with a GPU each. It has 256 rows per step, 4 MB of gradients and 20,000 steps. On a cluster it starts 20 seconds later than in one process.

# %% [markdown] tags=["prediction"]
# **Predict.** What speed-up will *eight* workers have over one?

# %%
predict("09-b", ...)  # a number

# %%
import pandas as pd

table = pd.DataFrame({"workers": [1, 2, 4, 8, 32]})
table["step ms"] = [1000 * step_seconds(serial + per_row * 256 / n, n, megabytes=4) for n in table["workers"]]
table["speed-up"] = table["step ms"][0] / table["step ms"]
table["hours"] = 20_000 * table["step ms"] / 1000 / 3600
table["GPU hours"] = table["hours"] * table["workers"]
grown = [step_seconds(serial + per_row * 256, n, megabytes=4) for n in table["workers"]]  # 256 rows each
table["speed-up, weak"] = table["workers"] * grown[0] / grown
saved = (table["step ms"][0] - table["step ms"]) / 1000
table["break-even"] = (20 / saved).where(saved > 0)

reveal("09-b", float(table["speed-up"][3]))
table.round(2)

# %% [markdown] tags=["instructor"]
# **GPU hours always rise.** That's the point: more workers buy time and cost more GPU hours, because all of them wait while they communicate.

# %% tags=["claim", "timed"]
assert (table["GPU hours"].diff().dropna() > 0).all()
assert table["break-even"].isna()[0] and table["break-even"][1] > 0
assert 1 < table["speed-up"][3] < 8 and table["speed-up"][4] < 16

# %% [markdown]
# Eight workers are far from eight times as fast, and 32 may even be slower than eight: the rows that they share become few, and their messages many. With 256 rows for *each* worker, the column *weak*, the speed-up comes close to the story's, if you can train with so large a batch (lesson 03).
#
# Read a row from left to right. *GPU hours* is what you pay for, and it rises with every worker, because each of them repeats the serial work and waits for messages. The **break-even** is the number of steps after which the run has made up for its later start; a shorter run is done
# sooner in one process. In the first row there is nothing to make up for; further down, `NaN` would mean never.
#
# That's how you choose between four, eight and 32: go down the rows until the next one saves too few hours for its price. A real step is somewhat shorter than this sum, because DDP sends most gradients *during* the backward pass. And the table knows only the costs that you measured, so it has no disk
# that all workers read from.
#
# Measure α and β between the machines that you would rent, because here they belong to two processes of one machine. Of the four costs, α is the least certain one, because it is the small difference of two large ones. Run *Two short runs* again, and see how far the row of 32 workers moves.

# %% [markdown]
# ## A fair comparison
# A speed-up means something only if both runs do the same work, and that is easy to get wrong. The next loop makes the two usual mistakes.
#
# ### Exercise 09-2 ★★ · The same work
# This loop should measure runs with different numbers of workers. `config["step"](rows)` does the work of a step on `rows` rows, and returns how many seconds it took. It makes two mistakes. With more workers, more work is done. And every rank returns its own seconds, of which Ray keeps those of rank 0, although a run is as slow as its slowest rank.
#
# Change the loop so that all workers together process exactly `config["rows"]` rows per step, and every rank returns the largest of their totals (`dist.ReduceOp.MAX`). The check runs the loop on two workers with 65 rows.


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
# With 32 machines, one of them is often slow: it is too hot, or another program uses it, too. Such a worker is a **straggler**, and it slows down *all* of them, because every step waits for the last gradient. How do you find it?
#
# This time the workers really compute. The loop averages the gradients by hand, as DDP does in `backward()`, so that it can time the two parts of a step: its own computing, and the all-reduce.

# %%
from torch.utils.data import DataLoader


def train_watched(config):
    workers = ray.train.get_context().get_world_size()
    torch.manual_seed(0)  # the same weights in all ranks, which DDP would see to
    model = torch.nn.Linear(1024, 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(torch.rand(15 * 512, 1024), batch_size=512)
    found = []
    for _ in range(2):
        computing = waiting = 0.0
        for x in loader:
            begin = time.perf_counter()
            model(x).square().mean().backward()
            computed = time.perf_counter()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= workers
            computing += computed - begin
            waiting += time.perf_counter() - computed
            optimizer.step()
        ranks = [None] * workers
        dist.all_gather_object(ranks, (computing, waiting))
        found.append(ranks)
    return found


# %% [markdown]
# From the second epoch on, we let rank 1 run for only 30 % of the time.

# %% [markdown] tags=["prediction"]
# **Predict.** Rank 0 still has a core for itself. By what factor does *its* second epoch take longer than its first?

# %%
predict("09-c", ...)  # a number

# %%
from course import faults
from labkit.train import TrainPanel

panel = TrainPanel("09-straggler")
trainer = TorchTrainer(train_watched, scaling_config=ScalingConfig(num_workers=2))
fault = faults.slow_rank(1, share=0.3, seconds=60).at(panel, epoch=1)
with panel.watch(trainer):
    first, second = trainer.fit().return_value

# %%
reveal("09-c", sum(second[0]) / sum(first[0]))
for epoch, ranks in (("first epoch", first), ("second epoch", second)):
    for rank, (computing, waiting) in enumerate(ranks):
        print(f"{epoch}, rank {rank}: {computing:.2f} s computing, {waiting:.2f} s in the all-reduce")

# %% [markdown] tags=["instructor"]
# **Two blames for one symptom.** In *A straggler*, rank 0 spends its time in the all-reduce, which looks like a slow network. Say: "The slow rank
# is the one that doesn't wait."

# %% tags=["claim"]
assert fault.outcome == "made", fault.did

# %% tags=["claim", "timed"]
assert second[0][1] > 1.5 * second[1][1]

# %% [markdown]
# Rank 0 has nothing wrong with it, and yet its second epoch takes much longer. (Not 1 / 0.3 times as long: only rank 1's own part of a step grows, and while rank 1 is stopped, rank 0 has more of the machine to itself.) The panel shows the same rows per second for *both* ranks, because each step ends for all of them at the same time. Only the seconds show it: rank 0 spends most of the epoch in the all-reduce. That looks like
# a slow network, but rank 0 is only waiting for rank 1. **The slow rank is the one that doesn't wait.**

# %% [markdown]
# The panel has measured the same from outside: each rank's strip shows how the time of its steps divides. Here, rank 0's *exchange* is much longer than rank 1's, and rank 1's *forward* and *backward* are longer than rank 0's. The sentence below the strips says that there is *not enough to say*, because rank 1 was slow for a part of the run only. In a run that is slow from its beginning, the sentence names the rank and predicts an epoch without the delay. [Why is this run slow?](../docs/verdict.md) explains how.
#
# ### Exercise 09-3 ★★ · Find it
# Write a loop that makes `config["steps"]` steps. A step is `config["compute"]()`, then an all-reduce of any tensor. The loop returns the number of the slowest rank, on every rank. The check runs it on two workers, first with one rank slow and then with the other.


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
# ### Exercise 09-6 ★★ · Three slow runs
# Here are three runs on two workers. Each of them loses 30 ms or more in every step, and each for a different reason: one rank gets its batches late, one rank computes longer, or the network between them is slow. With `verdict=False`, the panel draws its strips and leaves out the sentence that says why. What do the strips say?

# %%
from course import slow_runs

for case in ("A", "B", "C"):
    trainer = TorchTrainer(
        slow_runs.train_loop,
        train_loop_config={"case": case},
        scaling_config=ScalingConfig(num_workers=2),
    )
    with TrainPanel(f"09-{case}", verdict=False).watch(trainer):
        trainer.fit()

# %% [markdown]
# Give each run a pair: its cause (`"data"`, `"slow rank"` or `"exchange"`), and the rank that the other one waits for, or None if both ranks are alike. `("data", 1)` means that rank 1 gets its batches late.

# %%
causes = {"A": ..., "B": ..., "C": ...}  # your answer

# %% tags=["solution"]
causes = {"A": ("data", 0), "B": ("slow rank", 1), "C": ("exchange", None)}

# %%
check("09-6", causes)

# %% tags=["claim", "timed"]
from labkit import runs

for case, (cause, _) in causes.items():
    assert cause in [one["name"] for one in runs.latest(f"09-{case}").verdict["causes"]], case

# %% [markdown]
# The records have what the panels left out: in a terminal, `python -m labkit why 09-A` prints the sentence and the strips of the first run.

# %% [markdown] tags=["instructor"]
# **"Rank 1 has the longest exchange, so it's the slow one" (09-6).** It's the other way round: a rank with a long exchange waits for the other. The exchange itself is the cause only if it's long on *both*.

# %% [markdown]
# ## Nodes that come when they are needed
# You know how many workers you want. Will they fit? A cluster with an **autoscaler** starts nodes while more is requested than it has, and stops those that are idle. You can watch that here: Ray's autoscaler runs on your machine, and each of its nodes is only a few processes.
#
# The head has one CPU. Up to two nodes of the type `worker` may join it, with two CPUs each, and a node that was idle for six seconds is stopped. At work, that's some minutes.

# %%
import ray
from course import autoscaling

lab.stop()  # the cluster of the sections above
node_types = {
    "ray.head.default": {"resources": {"CPU": 1}, "max_workers": 0},
    "worker": {"resources": {"CPU": 2}, "max_workers": 2},
}
lab = autoscaling.start(node_types, idle_timeout_minutes=0.1)
lab


# %%
def watch(is_over):
    """Print the number of nodes each time it changes, and return these numbers."""
    begin = time.monotonic()
    counts = []
    over = False
    while not over and time.monotonic() - begin < 300:
        over = is_over()
        nodes = sum(node["Alive"] for node in ray.nodes())
        if counts[-1:] != [nodes]:
            counts.append(nodes)
            print(f"{time.monotonic() - begin:5.1f} s: {nodes} nodes")
        time.sleep(0.3)
    return counts


@ray.remote(num_cpus=2)
def work():
    time.sleep(5)
    return ray.get_runtime_context().get_node_id()


# %% [markdown] tags=["prediction"]
# **Predict.** Three tasks ask for two CPUs each, and then nothing asks for more. How many nodes will the cluster have at most, the head included?

# %%
predict("09-d", ...)  # a number

# %%
assert ray.is_initialized(), "first run the cell above that starts the cluster"
tasks = [work.remote() for _ in range(3)]
print("while there is work")
growing = watch(lambda: len(ray.wait(tasks, num_returns=3, timeout=0)[0]) == 3)
print("afterwards")
shrinking = watch(lambda: len([node for node in ray.nodes() if node["Alive"]]) == 1)
reveal("09-d", max(growing + shrinking))

# %% tags=["claim"]
assert growing[0] == 1 and max(growing + shrinking) == 3
assert sum(node["Alive"] for node in ray.nodes()) == 1
assert ray.get_runtime_context().get_node_id() not in ray.get(tasks)  # not on the head

# %% [markdown]
# It grew because tasks *asked* for CPUs that no node had, and it shrank because nodes were idle. Two nodes are the limit, so the third task waited for one of them. In a file for `ray up`, the same two settings are called `available_node_types` and `idle_timeout_minutes`; [docs/clusters](../docs/clusters/README.md) has such files.
#
# An autoscaler counts whole workers, because a worker needs all its CPUs on one node. If a worker fits on no type of node, the run waits and never begins.
#
# ### Exercise 09-4 ★ · What fits
# A cluster has a head with 8 CPUs, and its autoscaler may start five more nodes with 8 CPUs each. Every worker of your run needs 3 CPUs, because it decodes images. Write the `ScalingConfig`, with `resources_per_worker`, for as many workers as can run at the same time.

# %% [markdown] tags=["instructor"]
# **"48 CPUs divided by 3 is 16."** Draw six boxes of 8 CPUs, one of which is the head, and let the class fill in workers of 3. Say: "A worker can't
# use two CPUs of one box and one of the next."

# %%
scaling = ...  # your answer

# %% tags=["solution"]
scaling = ScalingConfig(num_workers=12, resources_per_worker={"CPU": 3})

# %%
check("09-4", scaling)

# %% [markdown]
# ## Key points
# - Two short runs give four costs: serial, per row, per message and per megabyte. They predict the step of other numbers of workers.
# - Measure one number of workers that you didn't fit. If the prediction is wrong there, find the assumption that is broken.
# - More workers always cost more GPU hours. They buy time, as long as the run is longer than its break-even.
# - Compare the same work: the same global batch, and the time of the slowest rank.
# - The slow rank is the one that doesn't wait.
# - An autoscaler starts nodes for what is requested, and stops idle ones. A worker needs all its CPUs on one node.
#
# **A question to take along.** Two workers are 1.5 times as fast as one. How many GPU hours does the run take now, and is it worth it?
#
# <details><summary>Compare your answer</summary>It takes two thirds of the time on two GPUs, so 1.33 times as many GPU hours. You buy time with them. Whether it's worth it depends on what an hour of waiting costs you.</details>
#
# | older tutorials | today |
# |---|---|
# | `ray submit cluster.yaml train.py` | `ray job submit --address http://… -- python train.py`, with `RAY_AUTH_MODE=token` |
#
# Where to go next: [docs/clusters](../docs/clusters/README.md) has files for Docker, Kubernetes, Slurm, AWS and Google Cloud, with autoscalers, and for each the command that ends it. Lesson 11 trains models that don't fit on one worker.

# %% [markdown] tags=["plain"]
# ## Without the lab
# The same fit and prediction in plain Ray, as the script [09_scaling.py](plain/09_scaling.py):

# %% [markdown] tags=["links"]
# ## Official pages

# %% [markdown]
# ## Stop

# %%
lab.stop()
autoscaling.stop()
