# %% [markdown]
# # 01 · A cluster on your machine
#
# By the end of this lesson you can
# - start a cluster, and name the programs it consists of;
# - run functions in parallel, and measure what a call costs (exercise 01-1);
# - keep state in an actor (01-2);
# - predict how many tasks run at the same time (01-3);
# - write an actor that survives the loss of its process (01-4).
#
# **Time** … · **Needs** 00

# %% [markdown]
# Suppose one machine needs a week for a training, and you can have eight. Then you need something that starts processes on all of them, hands them work, and goes
# on when a machine fails. That is Ray. A Ray **cluster** is a handful of ordinary programs. Here they all run on your machine, and each **node** behaves as if it were a machine of its own. On real
# machines the same programs run.

# %% [markdown]
# ## Start with Ray alone
# One call starts a small cluster for this notebook. Unset `RAY_ADDRESS` first.

# %%
import ray

ray.init(num_cpus=2, include_dashboard=False)

# %%
ray.cluster_resources()

# %% [markdown]
# The CPUs are what you asked for, whatever your machine has. This cluster has one node. End it:

# %%
ray.shutdown()

# %% [markdown]
# ## The lab's cluster
# For more nodes, you type `ray start` on each machine. The lab does that for you, on this one:

# %%
from labkit import cluster
from labkit.settings import Settings

settings = Settings.from_env()
lab = cluster.start(cpus_per_node=3)
lab

# %%
from labkit.system import overview

overview.processes()

# %% [markdown]
# The **GCS** (`gcs_server`), one per cluster, keeps track of nodes and actors. A **raylet**, one per node, starts worker
# processes, and lends them to those who have work. Worker processes run your code; there may be none yet. Your notebook is the **driver**: it submits work.
#
# ![The notebook is the driver; a head node with GCS, raylet and workers; a second node with raylet and workers](images/nodes.svg)
#
# > **What the lab changes in Ray**
# >
# > - *Forked workers.* Plain Ray starts each worker process as a new Python. If your code needs PyTorch, importing it takes seconds. The lab forks workers from a **forkserver** that has done so.
# >   `LABKIT_PRELOAD=0` switches it off.
# > - *A token.* Every process must know a secret that the lab creates. In Ray 2.60, `ray.init()` does the same; `ray start` uses a token only if there is one.
# > - *Quiet logs.* Ray's progress bars and log lines are off, because the panels show what matters.
# > - *Polling.* Ray Train looks at its workers every 0.2 s instead of every 2 s, so short runs end sooner.

# %% [markdown] tags=["instructor"]
# **`RAY_ADDRESS` is set on a machine of the institute.** Then `cluster.start()` connects to that cluster. Say: "Unset it for this lesson."

# %% [markdown]
# ## Tasks
# `ray.remote` makes a function that can run in a worker process. One such run is a **task**. `.remote(…)` only submits it.


# %%
@ray.remote
def square(x):
    return x * x


reference = square.remote(7)
reference

# %% [markdown]
# You got an **ObjectRef**, a reference to a result that may not exist yet. The cell did not wait. `ray.get` does:

# %%
ray.get(reference)

# %% [markdown]
# ## A CPU is a ticket
# The raylet never looks at your cores. Ray's CPUs are **logical resources**: a number that is set when the node starts. Think of tickets: a task takes one while it runs and
# returns it when it finishes. The next task just sleeps, then returns when and on which node it ran.

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
# **Predict.** Three CPUs, six naps of one second each, all submitted at once. How many seconds from the first begin to the last end?

# %%
from labkit.exercises import check, hint, predict, reveal

predict("01-a", ...)  # seconds

# %%
from labkit.display import Timeline

warm_up = ray.get([nap.remote(1) for _ in range(3)])  # starts the worker processes
naps = Timeline(ray.get([nap.remote(1) for _ in range(6)]))
reveal("01-a", naps.seconds)
naps

# %% [markdown]
# Two seconds: three naps, then three more. Each row is a worker process, each bar a task. A sleeping task uses no core. Now tasks that keep one busy:

# %% tags=["claim"]
assert naps.at_once <= 3 and naps.seconds > 1.9


# %%
@ray.remote
def count_up(number):
    begin = time.time()
    for _ in range(number):
        pass
    return span(begin)


number = 20_000_000 if settings.small else 50_000_000
alone = Timeline([ray.get(count_up.remote(number))])

# %% [markdown] tags=["prediction"]
# **Predict.** Now three such tasks at once. How many times as long will they take as the one alone, on your machine?

# %%
predict("01-b", ...)  # a factor

# %%
together = Timeline(ray.get([count_up.remote(number) for _ in range(3)]))
reveal("01-b", together.seconds / alone.seconds)
together

# %% tags=["claim"]
assert together.at_once <= 3

# %% [markdown]
# With three free cores, the factor is near 1. With two it's about 1.5, because three tasks share them. A CPU of Ray lets a task *start*. It does not give it a core.

# %% [markdown]
# ### Exercise 01-1 · All at once
# Write a function that runs a task for each of many inputs, as many at the same time as the cluster allows, and returns the results in the order of the inputs. `task` is a function with `@ray.remote`, like
# `nap`.


# %%
def in_parallel(task, inputs): ...  # your answer


# %% tags=["solution"]
def in_parallel(task, inputs):
    return ray.get([task.remote(one) for one in inputs])


# %%
check("01-1", in_parallel)

# %% [markdown]
# ## What a call costs
# For a task, a raylet lends your notebook a worker process. The notebook sends that worker the arguments, and gets the result back.

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

# %% tags=["claim"]
assert crowd < task and task > 100

# %% [markdown]
# To keep these costs to a few per cent, give a task work for at least tens of milliseconds: a batch of images, not one pixel.

# %% [markdown]
# ## Actors
# These tasks count rows in a variable of the notebook:

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
# Ray sent each worker process a copy of the function and of `rows`, and each changed its own. (A 20 comes from a process that ran two of the tasks.) Memory that many processes use needs an **actor**: an object of a class, in a process of
# its own, which answers calls one after the other. `@ray.remote` in front of a class makes it one, `Name.remote()` creates it, and `actor.method.remote(…)` calls it.
#
# ![The driver submits tasks to workers and calls an actor; large values are in the object store of a node](images/task_actor.svg)

# %% [markdown] tags=["instructor"]
# **The count in the tasks is sometimes 20.** A worker process that ran two of the tasks kept its own copy of `rows`. The notebook's `rows` stays at
# 0.

# %% [markdown]
# ### Exercise 01-2 · Count together
# Repair the counting: write an actor class `Rows`. `add(number)` adds to a count that begins with 0, and `total()` returns the count. The check lets several tasks use one actor.


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
# Large values that tasks and actors pass to each other go through the **object store**: memory that all processes of a node share. (Arguments and results below about 100 kB are sent
# directly.) `ray.put` stores a value there once, and you pass its reference to as many tasks as you like.

# %%
from labkit import datasets

images_ref = ray.put(datasets.load().images)
images = ray.get(images_ref)
images.flags.writeable

# %% [markdown]
# `ray.get` did not copy the array. It's a view of the shared memory, so it's read-only.

# %% [markdown]
# ## Asking for too much

# %% [markdown] tags=["prediction"]
# **Predict.** A task asks for 64 CPUs, and the cluster has three. What does Ray do?

# %%
predict("01-e", ..., choices=["raises an error", "waits", "runs it anyway"])

# %%
greedy = square.options(num_cpus=64).remote(7)
ready, waiting = ray.wait([greedy], timeout=2)
reveal("01-e", "waits" if waiting else "runs it anyway")

# %% [markdown]
# It would wait forever: a larger node might still be added. You find out with a `timeout`, or with the command `ray status`:

# %%
import sys
from pathlib import Path

ray_command = Path(sys.executable).with_name("ray")
# !{ray_command} status --address {lab.address}

# %% [markdown]
# Under *Pending Demands* you see the task that waits. Take it back:

# %%
ray.cancel(greedy)

# %% [markdown]
# A training with too many workers would wait in the same way. The lab counts first, and refuses:

# %% [markdown] tags=["instructor"]
# **A cell that never ends.** A task may wait for CPUs that no node has. Interrupt the cell, and look at *Pending Demands* in `ray status`.

# %% tags=["raises-exception"]
lab.check_capacity(workers=64)

# %% [markdown]
# ## More nodes
# `add_node` runs `ray start --address=…`, the command that you would type on a second machine.

# %%
node_2, node_3 = lab.add_node(cpus=2), lab.add_node(cpus=2)
lab

# %%
everywhere = [nap.remote(1) for _ in range(int(lab.cpus))]
Timeline(ray.get(everywhere))

# %% [markdown]
# Ray placed the tasks wherever CPUs were free.

# %% [markdown]
# ### Exercise 01-3 · What would change?
# The table below `add_node` shows three nodes with 3, 2 and 2 CPUs. A task may ask for more than one: `nap.options(num_cpus=3)`. How many tasks can run at the same time, if each asks for 1, for 2, for 3?

# %%
at_once = {1: ..., 2: ..., 3: ...}  # your answer

# %% tags=["solution"]
at_once = {1: 7, 2: 3, 3: 1}

# %%
check("01-3", at_once, lab.nodes)

# %% [markdown]
# ## Losing a node
# `remove_node` ends the processes of a node at once, as if you had pulled the plug. A nap that is lost can't say when it began, so these
# naps report to an actor when they begin. The actor takes no CPU from them, and it asks for a resource that only the head node has, so that it can't be lost with node-3.


# %%
@ray.remote(num_cpus=0, resources={"node:__internal_head__": 0.001})
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
# **Predict.** Seven naps of four seconds take all CPUs, and soon after they have begun, one node goes down. What will `ray.get` return?

# %%
predict("01-f", ..., choices=["an error", "fewer than 7 results", "7 results"])

# %%
references = [reported_nap.remote(log, 4) for _ in range(int(lab.cpus))]
while len(ray.get(log.all.remote())) < len(references):  # until all have begun
    time.sleep(0.1)
died = time.time()
lab.remove_node(node_3)

# %%
finished = ray.get(references)
began = {(one["pid"], one["begin"]) for one in finished}
lost = [one for one in ray.get(log.all.remote()) if (one["pid"], one["begin"]) not in began]
reveal("01-f", f"{len(finished)} results")
Timeline([*finished, *({**attempt, "end": died} for attempt in lost)])

# %% tags=["claim"]
assert len(finished) == 7 and 1 <= len(lost) <= 2

# %% [markdown]
# The short bars on node-3 are the attempts that were lost with it. Ray started those naps again, as soon as a CPU was free elsewhere. It tries a lost task three more times by default (`max_retries`), each
# time from its beginning. What a task did before it was lost is done twice.

# %% [markdown]
# ### Exercise 01-4 · An actor that survives
# An actor can be restarted, too: `max_restarts=1` allows it once, and `max_task_retries=-1` repeats the calls that fail meanwhile, without a limit. But its memory is gone, because it was in the process. Write
# an actor class `Saved` that is created with the path of a file, which need not exist yet. `add()` adds 1 and returns the count. After a restart it continues where it was. The check kills its process.


# %%
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
# Training workers are actors, and the weights are in their memory: lesson 03 saves them in checkpoints.

# %% [markdown] tags=["extra"]
# ## Extra: the dashboard and the token
# Most programs of the cluster listen on some port:

# %%
overview.ports()

# %% [markdown]
# Ray's ports, except the dashboard's, are open to the network, because nodes have to find each other. Anyone who is let in can run any program on your machine. The token keeps strangers out:

# %%
from urllib.error import HTTPError
from urllib.request import urlopen

try:
    urlopen(lab.dashboard_url + "/api/v0/nodes")
except HTTPError as error:
    print(error.code, error.read().decode())

# %% [markdown]
# Click **dashboard** in the box that `lab` showed under *The lab's cluster*. The page asks for the token, which is in a file that only you can read. Never print it in a notebook, whose outputs are saved and shared.
# The next cell prints a command. Run it in a terminal (File → New → Terminal), paste its output into the page, and press Submit. Then look for your actors and nodes.

# %%
print("cat", os.environ["RAY_AUTH_TOKEN_PATH"])

# %% [markdown] tags=["extra"]
# ## Extra: the same on real machines
# You can do by hand what `cluster.start` does. `ray start --head` prints the address to give to the others, and how to connect from Python: `ray.init()` on a machine of the cluster finds it.

# %%
print(lab.commands())

# %% [markdown]
# This is what the head's `ray start --head` printed here, without the times in front:

# %%
import re

if lab.is_ours:
    printed = (lab.log_dir.parents[1] / "start-head.log").read_text()
    print(re.sub(r"(?m)^.*? -- |\x1b\[\d+m", "", printed))

# %% [markdown]
# The line to copy is the one with `--address`: run it on each other machine. `ray.init()` in a program on one of these machines connects to the cluster, and `ray status` shows what it has and what waits. Be careful with
# `ray stop`: it ends the Ray processes of *all* clusters on the machine, if you have the permission to end them.
#
# - **Install.** `pip install "ray[default]"` on every machine. `default` adds the dashboard and the job server.
# - **Token.** `RAY_AUTH_MODE=token` has to be in the environment of *every* process before it imports ray, and the same token file on every machine. Otherwise you get an `AuthenticationError`.
# - **Versions.** The same Python and the same Ray on all machines, to the last digit.
# - **Firewall.** Nodes have to reach the head's port 6379 and each other. To open only some ports, give `--min-worker-port` and `--max-worker-port`, always both, and `--node-manager-port` and `--object-manager-port`.
# - **Your code and files.** Functions in a notebook are sent with their tasks. Packages have to be installed on each node, and data belongs where every node can read it (lesson 02).
#
# A script runs on the cluster with `ray job submit`:

# %%
job = settings.home / "job"
job.mkdir(exist_ok=True)
(job / "hello.py").write_text("import ray\n\nray.init()\nprint(ray.cluster_resources()['CPU'], 'CPUs')\n")

# %%
# !{ray_command} job submit --address {lab.dashboard_url} --working-dir {job} -- {sys.executable} hello.py 2>&1 | tail -8

# %% [markdown]
# The job is a driver of its own, which runs on the head. What it prints comes back to you.

# %% [markdown] tags=["extra"]
# ## Extra: when the kernel restarts
# A second `start()` starts nothing. It returns the cluster that runs, also after a restart of the kernel (Kernel → Restart Kernel), in about a second. References and actors of the old kernel are
# gone. If no kernel comes back within a minute, the lab's *watchdog* process stops everything. `python -m labkit stop` in a terminal does so at once.

# %% [markdown] tags=["instructor"]
# **After a kernel restart the cluster is still there.** That's intended: `cluster.start()` returns it. If no kernel comes back within a minute, the
# watchdog stops everything.

# %%
print(cluster.start() is lab)

# %% [markdown]
# ## Key points
# - `.remote(…)` submits and returns an `ObjectRef`; `ray.get` waits. Submit everything first, then wait.
# - Ray's CPUs are counted, not measured. A task that finds none waits, without an error.
# - Tasks and actors run in other processes, on copies of your variables. Shared state belongs in an actor.
# - Lost tasks run again from their beginning. Lost actors forget everything that they didn't save.
#
# | older tutorials | today |
# |---|---|
# | `ray.init("auto")`, `--redis-address`, `--redis-password` | `ray.init()` or `ray.init(address=…)`, and a token |

# %% [markdown] tags=["plain"]
# ## Without the lab
# Tasks, an actor, the object store and a lost process, in plain Ray:

# %% [markdown] tags=["links"]
# ## Reference

# %% [markdown]
# ## Stop

# %%
lab.stop()
lab
