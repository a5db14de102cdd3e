# %% [markdown]
# # 01 · A cluster on your machine
#
# By the end of this lesson you can
# - start a cluster, and name the programs it consists of;
# - run functions in parallel, and use each result as soon as it's ready (exercise 01-1);
# - keep state in an actor (01-2);
# - predict how many tasks run at the same time (01-3);
# - write an actor that survives the loss of its process (01-4).
#
# **Time** about 70 minutes · **Needs** 00

# %% [markdown]
# Your job needs a week on one machine, and you can have eight. Then you need something that starts processes on all of them, hands them work, and continues when a machine fails. Ray was built for this. The paper that introduced it
# ([Moritz et al., 2018](https://www.usenix.org/conference/osdi18/presentation/nishihara)) reports more than 1.8 million tasks per second. Here you'll start a much smaller cluster.
#
# A Ray **cluster** is a handful of ordinary programs. Here they all run on your machine, where each **node** plays the part of a machine.

# %% [markdown]
# ## Start with plain Ray
# One call starts a small cluster for this notebook. Without `"local"`, it would first look for a running one to join:

# %%
import ray

ray.init("local", num_cpus=2, include_dashboard=False)

# %%
ray.cluster_resources()

# %% [markdown]
# The two CPUs are what you asked for, whatever your machine has. This cluster has one node, and it ends with this call:

# %%
ray.shutdown()

# %% [markdown]
# ## Several machines
# On real machines, you type one command on each of them. The first one becomes the **head** of the cluster, and the others join it by its address:
#
# ```text
# machine 1 $ ray start --head --port=6379
# machine 2 $ ray start --address=192.168.0.5:6379
# machine 3 $ ray start --address=192.168.0.5:6379
#
# machine 1 $ python
# >>> import ray
# >>> ray.init()          # connects to the cluster that runs here
# ```
#
# You only have one machine, so the lab runs these commands for you, as many times as you want nodes, and connects this notebook:

# %%
from labkit.local import cluster

lab = cluster.start(cpus_per_node=3)
lab

# %% [markdown]
# Which processes did that start? `psutil` lists all processes of this machine, and these belong to Ray:

# %%
import psutil

for process in psutil.process_iter(["name"]):
    if process.info["name"].startswith(("gcs_server", "raylet", "ray::")):
        print(process.pid, process.info["name"])

# %% [markdown]
# You'll meet these names in Ray's logs and error messages.
#
# - The Global Control Service or **GCS** (`gcs_server`), one per cluster, keeps track of nodes and actors.
# - A **raylet**, one per node, starts worker processes and assigns them to tasks.
# - **Worker processes** run your code. Ray calls them `ray::` and then what they are doing, for example `ray::IDLE`; none may have started yet. (`ray::DashboardAgent` and `ray::RuntimeEnvAgent` help the raylet.)
# - Your notebook is the **driver**: it submits work.
#
# ![The notebook is the driver; a head node with GCS, raylet and workers; a second node with raylet and workers](images/nodes.svg)
#
# > **What the lab changes in Ray.** Worker processes are forked from one that has imported PyTorch, and Ray's own programs from one that has imported Ray, so they start in a fraction of a second (`LABKIT_PRELOAD=0` switches it off). Most of Ray's log lines are off, because the panels show what matters. Every process must know a secret, the token; Ray announced that 2.61 will require one in all clusters, and warned of it above.

# %% [markdown] tags=["instructor"]
# **`RAY_ADDRESS` is set on a machine of the institute.** Then `cluster.start()` connects to that cluster. Say: "Unset it for this lesson."

# %% [markdown]
# ## Tasks
# A task is the smallest piece of work that you can give away. `ray.remote` makes a function that can run in a worker process, and one such run is a **task**. `.remote(…)` only submits it.


# %%
@ray.remote
def square(x):
    return x * x


reference = square.remote(7)
reference

# %% [markdown]
# The cell didn't wait. You got an **ObjectRef**, a reference to a result that may not exist yet, and `ray.get` waits for it:

# %%
ray.get(reference)

# %% [markdown]
# ## A CPU is a ticket
# How many tasks run at the same time? The raylet never looks at your cores. Ray's CPUs are **logical resources**: a number that is set when the node starts, by default its number of cores. Think of tickets: a task takes one while it runs and
# returns it when it finishes. `nap`, below, sleeps, and then returns its node, its begin and its end.

# %% [markdown] tags=["instructor"]
# **"Five CPUs on a laptop with two cores?"** `ray.init(num_cpus=2)` and `cpus_per_node=3` set a number. Say: "The raylet never looks at your cores. A
# CPU lets a task start; it doesn't give it a core."

# %%
import os
import time


def span(begin):
    node = os.environ.get("LABKIT_NODE", "a node")  # the name that the lab gave it
    return {"node": node, "pid": os.getpid(), "begin": begin, "end": time.time()}


@ray.remote
def nap(seconds):
    begin = time.time()
    time.sleep(seconds)
    return span(begin)


# %% [markdown] tags=["prediction"]
# **Predict.** The node has three CPUs, and you submit six naps of one second each at once. How many seconds will pass between the first begin and the last end?

# %%
from course.exercises import check, hint, predict, reveal

predict("01-a", ...)  # seconds

# %%
import matplotlib.pyplot as plt


def duration(spans):  # from the first begin to the last end
    return max(one["end"] for one in spans) - min(one["begin"] for one in spans)


def draw(spans):
    spans = sorted(spans, key=lambda one: (one["node"], one["pid"]))
    first = min(one["begin"] for one in spans)
    workers = [f"{one['node']} · {one['pid']}" for one in spans]
    seconds = [one["end"] - one["begin"] for one in spans]
    plt.figure(figsize=(7, 1 + len(set(workers)) / 3), layout="constrained")
    plt.barh(workers, seconds, left=[one["begin"] - first for one in spans], edgecolor="white")
    plt.xlabel("seconds")


# %%
warm_up = ray.get([nap.remote(1) for _ in range(3)])  # starts the worker processes
naps = ray.get([nap.remote(1) for _ in range(6)])
reveal("01-a", duration(naps))
draw(naps)

# %% [markdown]
# It took two seconds: three naps, then three more. Each row is a worker process, and each bar is a task. A sleeping task uses no core, so try tasks that keep one busy:


# %% tags=["claim"]
def at_once(spans):
    return max(sum(one["begin"] <= other["begin"] < one["end"] for one in spans) for other in spans)


assert at_once(naps) <= 3 and duration(naps) > 1.9


# %%
@ray.remote
def count_up(number):
    begin = time.time()
    for _ in range(number):
        pass
    return span(begin)


number = 20_000_000
alone = ray.get([count_up.remote(number)])

# %% [markdown] tags=["prediction"]
# **Predict.** Now three such tasks run at once. By what factor will they take longer than a single one, on your machine?

# %%
predict("01-b", ...)  # a factor

# %%
together = ray.get([count_up.remote(number) for _ in range(3)])
reveal("01-b", duration(together) / duration(alone))
draw(together)

# %% tags=["claim"]
assert at_once(together) <= 3

# %% [markdown]
# With three free cores, the factor is near 1. With two it's about 1.5, because three tasks share them, and more if other programs use them, too. So a CPU of Ray lets a task *start*, but reserves no core for it.

# %% [markdown]
# ### Exercise 01-1 ★★ · First come, first served
# `ray.get` with a list waits until *all* results are there. Often you want to use each one as soon as it's ready. Write a function that submits one task for each input, all before it waits, and returns a list of the results in the order in which the tasks *finish*. `task` is a function with `@ray.remote`, like
# `nap`. You need one more call: `ray.wait(references)` waits until one of them is ready, and returns two lists, the references that are ready and the others.


# %%
def as_they_finish(task, inputs): ...  # your answer


# %% tags=["solution"]
def as_they_finish(task, inputs):
    waiting = [task.remote(one) for one in inputs]
    results = []
    while waiting:
        ready, waiting = ray.wait(waiting)
        results.extend(ray.get(ready))
    return results


# %%
check("01-1", as_they_finish)

# %% [markdown]
# ## What a call costs
# How small may a task be? For each one, the raylet finds a worker process, your notebook sends it the arguments, and the result comes back. All of that takes time.

# %% [markdown] tags=["prediction"]
# **Predict.** Calling a Python function that squares a number takes about 0.1 µs. How many µs does `ray.get(square.remote(7))` take?

# %%
predict("01-c", ...)  # µs

# %%
from statistics import median


def microseconds(call, times=200):
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return median(seconds) * 1e6


# %%
task = microseconds(lambda: ray.get(square.remote(7)))
crowd = microseconds(lambda: ray.get([square.remote(7) for _ in range(100)]), times=5) / 100
print(f"a task {task:.0f} µs, one of a hundred tasks {crowd:.0f} µs")
reveal("01-c", task)

# %% tags=["claim", "timed"]
assert crowd < task and task > 100

# %% [markdown]
# To keep these costs to a few per cent, give a task a hundred milliseconds of work: a batch of images, not one pixel. (The 1.8 million tasks per second were reached by many notebooks and nodes at once. One driver submits some hundreds or thousands.)

# %% [markdown]
# ## Actors
# Sooner or later, tasks have to share something: a counter, a queue, a model. Try it with a variable of the notebook, which four tasks change:

# %%
rows = {"count": 0}


@ray.remote
def count_rows(number):
    rows["count"] += number
    return rows["count"]


# %% [markdown] tags=["prediction"]
# **Predict.** Each of four tasks adds 10. What will `rows["count"]` be here, afterwards?

# %%
predict("01-d", ...)  # a number

# %%
print("in the tasks:", ray.get([count_rows.remote(10) for _ in range(4)]))
reveal("01-d", rows["count"])

# %% tags=["claim"]
assert rows["count"] == 0

# %% [markdown]
# Your count is still 0, because Ray sent each worker process a copy of the function and of `rows`, and each changed its own. (A 20 among the results means that one process ran two of the tasks.) Memory that many processes use needs an **actor**: an object of a class, in a process of
# its own, which answers calls one after the other. `@ray.remote` in front of a class makes it one, `Name.remote()` creates it, and `actor.method.remote(…)` calls it.
#
# ![The driver submits tasks to workers and calls an actor](images/task_actor.svg)

# %% [markdown] tags=["instructor"]
# **The count in the tasks is sometimes 20.** A worker process that ran two of the tasks kept its own copy of `rows`. The notebook's `rows` stays at
# 0.

# %% [markdown]
# ### Exercise 01-2 ★★ · Count together
# Repair the counting. Write an actor class `Rows`, with `@ray.remote`. `add(number)` adds to a count that begins with 0, and `total()` returns the count. The check lets several tasks use one actor.


# %%
class Rows: ...  # your answer


# %% tags=["solution"]
@ray.remote
class Rows:
    def __init__(self):
        self.count = 0

    def add(self, number):
        self.count += number

    def total(self):
        return self.count


# %%
check("01-2", Rows)

# %% [markdown]
# ## The object store
# If a hundred tasks need the same images, you don't want to send them a hundred times. Large values go through the **object store**: memory that all processes of a node share. `ray.put` stores a value there once, and you pass its reference to as many tasks as you like.

# %%
from course import datasets

images_ref = ray.put(datasets.load().images)
images = ray.get(images_ref)
images.flags.writeable

# %% [markdown]
# `ray.get` did not copy the array. It's a view of the shared memory, so it's read-only.

# %% [markdown]
# ## Who uses the CPUs?
# A colleague's job waits on your cluster. Which task has the CPUs, and did anything fail? The dashboard shows it in the browser. Its source is Ray's *state API*, which you can ask from a notebook. Here is one task that holds two CPUs, and two that compute:


# %%
@ray.remote
def seconds_per_row(seconds, rows):
    return seconds / rows


long_nap = nap.options(num_cpus=2).remote(20)  # this one holds two CPUs
both = [seconds_per_row.remote(6, rows) for rows in (3, 0)]
ready, waiting = ray.wait(both, num_returns=2)

# %% [markdown] tags=["prediction"]
# **Predict.** One of them divided by zero, and the cell showed no error, because it didn't call `ray.get`. What does the cluster know about that task?

# %%
predict("01-g", ..., choices=["nothing", "that it finished", "that it failed, and why"])

# %%
from ray.util.state import list_tasks


def tasks(name, state):
    wanted = [("name", "=", name), ("state", "=", state)]
    return list_tasks(address=lab.address, filters=wanted, detail=True)


while not tasks("seconds_per_row", "FAILED"):
    time.sleep(0.5)  # processes report their tasks once a second

# %%
for task in tasks("nap", "RUNNING") + tasks("seconds_per_row", "FAILED"):
    print(task.name, task.state, task.required_resources, "process", task.worker_pid)

failed = tasks("seconds_per_row", "FAILED")
print(failed[0].error_message)
reveal("01-g", "that it failed, and why" if failed[0].error_message else "nothing")
ray.cancel(long_nap, force=True)  # ends its process: nothing else interrupts `time.sleep`

# %% tags=["claim"]
assert len(failed) == 1 and "ZeroDivisionError" in failed[0].error_message
assert len(tasks("seconds_per_row", "FINISHED")) == 1

# %% [markdown]
# `nap` holds the two CPUs, and you have the number of its process, for `py-spy` or `kill`. Give `list_tasks` the address of your cluster: without it, Ray looks for one on this machine, and may find a colleague's. `list_actors` and `list_nodes` work in the same way.
#
# ## Asking for too much
# If a Ray job does nothing, it may be waiting for something that the cluster doesn't have.

# %% [markdown] tags=["prediction"]
# **Predict.** A task asks for 64 CPUs, and the cluster has three. What does Ray do?

# %%
predict("01-e", ..., choices=["raises an error", "waits", "runs it anyway"])

# %%
greedy = square.options(num_cpus=64).remote(7)
ready, waiting = ray.wait([greedy], timeout=6)  # seconds
reveal("01-e", "waits" if waiting else "runs it anyway")

# %% [markdown]
# It would wait forever, as a larger node might still join. You find out with a `timeout`, or with the command `ray status`, whose report Ray renews every five seconds:

# %%
import sys
from pathlib import Path

ray_command = Path(sys.executable).with_name("ray")
# !{ray_command} status --address {lab.address}

# %% [markdown]
# Under *Pending Demands* you see what waits for a resource: `{'CPU': 64.0}`. Cancel it:

# %%
ray.cancel(greedy)

# %% [markdown]
# A training run with too many workers would wait in the same way. The lab counts first, and refuses:

# %% [markdown] tags=["instructor"]
# **A cell that never ends.** A task may wait for CPUs that no node has. Interrupt the cell, and look at *Pending Demands* in `ray status`.

# %% tags=["raises-exception"]
lab.check_capacity(workers=64)

# %% [markdown]
# ## More nodes
# `add_node` runs `ray start --address=…`, the command that you'd type on a second machine:

# %%
node_2 = lab.add_node(cpus=3)
lab

# %%
everywhere = [nap.remote(1) for _ in range(int(lab.cpus))]
draw(ray.get(everywhere))

# %% [markdown]
# ### Exercise 01-3 ★ · What would change?
# The table below `add_node` shows two nodes with 3 CPUs each. A task may ask for more than one: `nap.options(num_cpus=3)`. How many tasks can run at the same time, if each asks for 1, for 2, for 3?

# %%
at_once = {1: ..., 2: ..., 3: ...}  # your answer

# %% tags=["solution"]
at_once = {1: 6, 2: 2, 3: 2}

# %%
check("01-3", at_once, lab.nodes)

# %% [markdown]
# ## Losing a node
# This is what you need Ray for: with eight machines, one of them will fail. `remove_node` ends the processes of a node at once, as if you had pulled the plug. A lost nap returns nothing, so these
# naps first report their begin to an actor. The actor needs no CPU, and it asks for a resource that only the head node has, so that it can't be lost with node-2.


# %%
@ray.remote(num_cpus=0, resources={"node:__internal_head__": 0.001})  # the head has 1 of it
class Log:
    def __init__(self):
        self.begun = []

    def add(self, attempt):
        self.begun.append(attempt)

    def all(self):
        return self.begun


# %%
@ray.remote
def reported_nap(log, seconds):
    begin = time.time()
    ray.get(log.add.remote(span(begin)))
    time.sleep(seconds)
    return span(begin)


log = Log.remote()
warm_up = ray.get([nap.remote(1) for _ in range(int(lab.cpus))])

# %% [markdown] tags=["prediction"]
# **Predict.** Six naps of three seconds take all CPUs, and soon after they have begun, one node goes down. What will `ray.get` return?

# %%
predict("01-f", ..., choices=["an error", "fewer than 6 results", "6 results"])

# %%
references = [reported_nap.remote(log, 3) for _ in range(int(lab.cpus))]
while len(ray.get(log.all.remote())) < len(references):  # until all have begun
    time.sleep(0.1)
died = time.time()
lab.remove_node(node_2)

# %%
finished = ray.get(references)
began = {(one["pid"], one["begin"]) for one in finished}
lost = [one for one in ray.get(log.all.remote()) if (one["pid"], one["begin"]) not in began]
reveal("01-f", f"{len(finished)} results")
draw(finished + [{**attempt, "end": died} for attempt in lost])

# %% tags=["claim"]
assert len(finished) == 6

# %% tags=["claim", "timed"]
assert 1 <= len(lost) <= 3

# %% [markdown]
# The short bars on node-2 are the attempts that were lost with it. Ray started those naps again, as soon as a CPU was free elsewhere. By default it tries a lost task three more times, each time from its beginning. So whatever a task did before it was lost, such as writing a file, is done twice. That also holds for an actor's call which is repeated.
#
# ### Exercise 01-4 ★★★ · An actor that survives
# An actor can be restarted, too: `max_restarts=1` allows it once, and `max_task_retries=-1` repeats the calls that fail meanwhile, without a limit. But its memory is gone, because it was in the process. Write
# an actor class `Saved`, with `@ray.remote`, that is created with the path of a file as a text; the file need not exist yet. `add()` adds 1 and returns the count. After a restart it continues where it was. The check kills its process between two calls.
# (On several machines, the file has to be in a place that all of them reach, such as the object store of lesson 02.)
#
# <details><summary>A version with blanks</summary>
#
# ```python
# @ray.remote(max_restarts=___, max_task_retries=___)
# class Saved:
#     def __init__(self, path):
#         self.path = Path(path)
#         self.count = ___ if self.path.exists() else 0
#
#     def add(self):
#         self.count += 1
#         self.path.write_text(___)
#         return self.count
# ```
# </details>


# %%
from pathlib import Path


class Saved: ...  # your answer


# %% tags=["solution"]
@ray.remote(max_restarts=1, max_task_retries=-1)
class Saved:
    def __init__(self, path):
        self.path = Path(path)
        self.count = int(self.path.read_text()) if self.path.exists() else 0

    def add(self):
        self.count += 1
        self.path.write_text(str(self.count))
        return self.count


# %%
check("01-4", Saved)

# %% [markdown]
# Training workers are actors, and the weights are in their memory. That's why lesson 03b saves them in checkpoints.
#
# ## Key points
# - `.remote(…)` submits and returns an `ObjectRef`; `ray.get` waits. Submit everything first, then wait.
# - Ray's CPUs are counted, not measured. A task that finds none waits, without an error.
# - Tasks and actors run in other processes, on copies of your variables. Shared state belongs in an actor.
# - Lost tasks run again from their beginning. Lost actors forget everything that they didn't save.
# - `list_tasks` shows which tasks hold CPUs, and why one failed, as the dashboard does.
#
# **A question to take along.** All CPUs of the cluster are taken, and you submit a task. What happens to it, and what would you see if no node could ever run it?
#
# <details><summary>Compare your answer</summary>It waits until a CPU is free, without an error. A task that fits on no node waits in the same way, for as long as you let it. So compare what a task asks for with what a node has.</details>
#
# | older tutorials | today |
# |---|---|
# | `ray.init("auto")`, `--redis-address`, `--redis-password` | `ray.init()` or `ray.init(address=…)`, and a token |
#
# The cluster's ports and its dashboard are the subject of the recipe `notebooks/recipes/dashboard_and_token.ipynb`. How to start a cluster on rented machines is described in [docs/clusters](../docs/clusters/README.md).

# %% [markdown] tags=["plain"]
# ## Without the lab
# Tasks, an actor, the object store and a lost process, in plain Ray:

# %% [markdown] tags=["links"]
# ## Official pages

# %% [markdown]
# ## Stop

# %%
lab.stop()
lab
