# %% [markdown]
# # 01 · A cluster on your machine
#
# **You will be able to** start a head and further nodes, find them on the dashboard, use tasks, actors and the object store and say what they
# cost, add and lose a node, and start the same cluster on real machines. · **Time** 35 min (1 of it waiting) · **Needs** 00
#
# A Ray cluster is a handful of ordinary programs. On real machines each machine runs some of them. Here they all run on yours, and each
# *node* acts like a separate machine. Nothing is simulated: the programs are the same, and they talk over the network.
#
# If `RAY_ADDRESS` names a cluster of yours, `start()` connects to that one, and adding and removing nodes is refused. Unset it for this lesson.

# %% [markdown]
# ## Start
# This takes 10 to 25 seconds on two cores.

# %%
from labkit import cluster
from labkit.settings import Settings

settings = Settings.from_env()
lab = cluster.start(cpus_per_node=3)
lab

# %% [markdown]
# One node, the *head*, with three CPUs, whatever your machine has. What that means comes soon. First see what was started:

# %%
from labkit.system import overview as inventory

inventory.processes()

# %% [markdown]
# Three kinds of programs matter most. The **GCS** (`gcs_server`), one per cluster, keeps track of nodes and actors. A **raylet**, one per node, starts *worker
# processes* and decides which task each of them runs. And the worker processes run your code; there may be none yet. (`forkserver` belongs to the lab, not to Ray: it imports
# PyTorch once, and workers are forked from it so that they start faster.) The last line is what an idle cluster costs in processes and memory.

# %% [markdown]
# ## The dashboard
# Click **dashboard** in the box above. The page opens in a new tab and says *Authentication Token Required*: without the token, this cluster
# refuses every request.
#
# The token is in a file that only you can read. Never print it in a notebook, whose outputs are saved and shared.
# The next cell prints a command. Run it in a terminal (File → New → Terminal), paste its output into the page, and press Submit.

# %%
import os

print("cat", os.environ["RAY_AUTH_TOKEN_PATH"])

# %% [markdown]
# The browser remembers the token for 30 days, and the lab keeps it, so you do this once. Ignore the page's suggestion to run `ray get-auth-token`: it prints the token of
# clusters that you start yourself. The lab has its own.
#
# Leave the page open on **Cluster**, where the nodes and their processes are, and come back to it in every section. The charts on **Overview**
# want two more programs, Prometheus and Grafana. You will not miss them.
#
# Does this JupyterLab run on another machine? The page is served to that machine alone. `ssh -L PORT:127.0.0.1:PORT that-machine` brings
# it to yours; the port is the one in the link.

# %% [markdown]
# ## Tasks
# `ray.remote` turns a function into one that can run in a worker process, a **task**. Calling it with `.remote(…)` only submits it.

# %%
import ray


@ray.remote
def square(x):
    return x * x


reference = square.remote(7)
reference

# %% [markdown]
# You did not get 49. You got an `ObjectRef`, a *reference* to a result that may not exist yet. The cell did not wait. `ray.get` does:

# %%
ray.get(reference)

# %%
ray.get([square.remote(x) for x in range(8)])

# %% [markdown]
# All eight tasks were submitted before we waited for the first. That is the whole trick of parallel work: first all `.remote`, then `ray.get`.

# %% [markdown]
# ## A CPU is a ticket
# Each task needs a CPU of the cluster, unless you say otherwise. These are the cluster's resources (names with a colon mark single nodes, and are left out):

# %%
{name: amount for name, amount in ray.cluster_resources().items() if ":" not in name}

# %% [markdown]
# The raylet never looks at your cores. Ray's CPUs are **logical resources**: a number that is set when the node starts. Think of tickets: a task takes one while it runs and
# returns it when it finishes. The next task just sleeps, then returns when and on which node it ran. (The lab puts the node's name into the environment variable `LABKIT_NODE`.)

# %%
import time


@ray.remote
def nap(seconds):
    begin = time.time()
    time.sleep(seconds)
    return {"node": os.environ["LABKIT_NODE"], "pid": os.getpid(), "begin": begin, "end": time.time()}


# %% [markdown] tags=["prediction"]
# **Before you go on:** three tickets, six naps of one second each. How long will it take on your machine? What if it had only one core?

# %%
from labkit.display import Timeline

tickets = int(lab.cpus)
Timeline(ray.get([nap.remote(1) for _ in range(2 * tickets)]))

# %% [markdown]
# Each row is a worker process, each bar a task. As many tasks slept at once as there are tickets. It would take as long on a single core, because a sleeping
# task uses none. Now tasks that keep a core busy:


# %%
@ray.remote
def count_up(number):
    begin = time.time()
    for _ in range(number):
        pass
    return {"node": os.environ["LABKIT_NODE"], "pid": os.getpid(), "begin": begin, "end": time.time()}


number = 20_000_000 if settings.small else 50_000_000
alone = Timeline([ray.get(count_up.remote(number))])
alone

# %% [markdown] tags=["prediction"]
# **Before you go on:** now one such task per ticket, all at once. Will each task be as fast as the one alone?

# %%
together = Timeline(ray.get([count_up.remote(number) for _ in range(tickets)]))
print(
    f"{os.cpu_count()} cores, {tickets} tickets: {together.seconds / alone.seconds:.1f} × as long as one alone"
)
together

# %% [markdown]
# With at least as many free cores as tickets, the factor is near 1. With two cores and three tickets it is about 1.5: three tasks
# share two cores, and each of them is slower. A ticket lets a task *start*. It does not give it a core.
#
# So why three on two cores? Later lessons train with two workers and read data with one more task, which mostly waits.

# %% [markdown]
# ## Actors
# A task forgets everything when it is done. An *actor* is a worker process with a memory: an object of a class, which lives on the cluster
# and answers calls one after the other.


# %%
@ray.remote
class Counter:
    def __init__(self):
        self.count = 0

    def add(self):
        self.count += 1
        return self.count

    def pid(self):
        return os.getpid()


counter = Counter.remote()
ray.get([counter.add.remote() for _ in range(5)])

# %% [markdown]
# Five calls, one memory. Training workers are actors: the network's weights stay in them from step to step.

# %%
ray.get(counter.pid.remote())

# %% [markdown]
# The process in which it lives. Look at **Actors** on the dashboard: there is your `Counter`, with this number.

# %% [markdown]
# ## The object store
# What tasks and actors pass to each other is in the **object store**: memory that all processes of a node share. (Values below about 100 kB are sent
# directly.) `ray.put` stores a value there explicitly.

# %%
from labkit import datasets

train = datasets.load()
labels_ref = ray.put(train.labels)
labels_ref

# %%
labels = ray.get(labels_ref)
labels.flags.writeable

# %% [markdown]
# `ray.get` did not copy the array. It's a view of the shared memory, which every worker process of the node can see. That's why it's read-only:
# `writeable` is False.
#
# Hand a reference to a task, and the task gets the value. Its bytes travel only if the task runs on another node.

# %% [markdown]
# ### Exercise 01-1 · Count in parallel
# `count` returns how often each class occurs in one part of the labels. Start three of these tasks, one for each third of `labels_ref`,
# so that they can run at the same time. Keep their references in the list `parts`, and add up their results in `total`.

# %%
import numpy as np


@ray.remote
def count(labels, start, stop):
    return np.bincount(labels[start:stop], minlength=10)


third = len(train) // 3

# %%
parts = ...  # your answer: three references
total = ...  # your answer: ten numbers

# %% tags=["solution"]
borders = [0, third, 2 * third, len(train)]
parts = [count.remote(labels_ref, borders[k], borders[k + 1]) for k in range(3)]
total = sum(ray.get(parts))

# %%
from labkit.exercises import check, hint

check("01-1", parts, total, train.labels)

# %% [markdown]
# ## What a call costs
# For a task, your notebook asks the raylet for a worker process, sends it the function and its arguments, and gets the result back. For an actor call it already has the process.

# %% [markdown] tags=["prediction"]
# **Before you go on:** calling a Python function that squares a number takes about 0.1 µs. How long does `ray.get(square.remote(7))` take?

# %%
from statistics import median


def plain_square(x):
    return x * x


def median_microseconds(call, *arguments, times=200):
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        call(*arguments)
        seconds.append(time.perf_counter() - begin)
    return median(seconds) * 1e6


# %%
function = median_microseconds(plain_square, 7)
actor = median_microseconds(lambda: ray.get(counter.add.remote()))
task = median_microseconds(lambda: ray.get(square.remote(7)))
crowd = median_microseconds(lambda: ray.get([square.remote(7) for _ in range(100)]), times=5) / 100

print(f"function call    {function:8.1f} µs")
print(f"actor call       {actor:8.1f} µs")
print(f"task             {task:8.1f} µs, {task / function:,.0f} function calls")
print(f"task, one of 100 {crowd:8.1f} µs")

# %% [markdown]
# These are medians on this machine, now. A task costs as much as ten thousand function calls or so. So give it work for at least tens of milliseconds:
# a batch of images, not one pixel. Tasks that are submitted together cost less each, because they share workers: Ray leases one from the raylet and sends it one task after the other.

# %% [markdown]
# ## Asking for too much
# A task may ask for more than one CPU.

# %% [markdown] tags=["prediction"]
# **Before you go on:** a task asks for more CPUs than the whole cluster has. What does Ray do?

# %%
greedy = square.options(num_cpus=tickets + 61).remote(7)
ready, waiting = ray.wait([greedy], timeout=2)
print(f"{len(ready)} ready, {len(waiting)} still waiting")

# %% [markdown]
# The task waits, and there is no error. It would wait forever, because a node that is large enough might still be added. You find out with `ray.wait` and a `timeout`, or on
# the dashboard: **Overview** lists it under *Pending Demands*.

# %%
ray.cancel(greedy)

# %% [markdown]
# A training with too many workers would wait in the same way. The lab asks first, and says no with the numbers:

# %% tags=["raises-exception"]
lab.check_capacity(workers=tickets + 61)

# %% [markdown]
# Every error of the lab has these three parts: what it tried to do, why that failed, and how to fix it.

# %% [markdown]
# ## More nodes
# `add_node` runs `ray start --address=…`, the command that you would type on a second machine. It takes some seconds per node.

# %%
node_2 = lab.add_node(cpus=2)
node_3 = lab.add_node(cpus=2)
lab

# %%
inventory.processes("node-2")

# %% [markdown]
# A worker node runs fewer programs than the head: no GCS, no dashboard. Now submit more naps than any single node has tickets for:

# %%
tickets = int(lab.cpus)
Timeline(ray.get([nap.remote(1) for _ in range(tickets)]))

# %% [markdown]
# You said nothing about nodes. Ray placed the tasks wherever tickets were free. If the bars on the new nodes begin late, that's because their first worker processes had to be
# started. Now they exist, so once more:

# %%
Timeline(ray.get([nap.remote(1) for _ in range(tickets)]))

# %% [markdown]
# ### Exercise 01-2 · Big tasks
# A task may ask for three CPUs. How many such tasks can run at the same time on your cluster now? Look at the table of nodes.

# %%
at_once = ...  # your answer

# %% tags=["solution"]
at_once = sum(int(node.cpus // 3) for node in lab.nodes)

# %%
check("01-2", at_once, lab.nodes)

# %% [markdown]
# Here is the proof: three such tasks.

# %%
Timeline(ray.get([nap.options(num_cpus=3).remote(0.5) for _ in range(3)]))

# %% [markdown]
# ## Losing a node
# Machines fail. `remove_node` ends the processes of a node at once, as if you had pulled the plug. A nap that is lost with its node cannot tell about itself. So these
# naps report to an actor when they begin. It needs no CPU, and it asks for `node:__internal_head__`, a resource that only the head has, because it must not be lost itself.


# %%
@ray.remote(num_cpus=0, resources={"node:__internal_head__": 0.001})
class Log:
    def __init__(self):
        self.begun = []

    def add(self, attempt):
        self.begun.append(attempt)

    def all(self):
        return self.begun


@ray.remote
def reported_nap(log, seconds):
    attempt = {"node": os.environ["LABKIT_NODE"], "pid": os.getpid(), "begin": time.time()}
    ray.get(log.add.remote(attempt))
    time.sleep(seconds)
    return {**attempt, "end": time.time()}


log = Log.remote()
warm_up = ray.get([nap.remote(1) for _ in range(tickets)])  # so that there is a process for each ticket

# %% [markdown] tags=["prediction"]
# **Before you go on:** every ticket is taken by a nap, and one node goes down in the middle. Will `ray.get` raise an error? Will results be missing?

# %%
references = [reported_nap.remote(log, 4) for _ in range(tickets)]
limit = time.time() + 30
while len(ray.get(log.all.remote())) < tickets and time.time() < limit:  # until all have begun
    time.sleep(0.1)
died = time.time()
lab.remove_node(node_3)
lab

# %%
finished = ray.get(references)
began = {(span["pid"], span["begin"]) for span in finished}
lost = [attempt for attempt in ray.get(log.all.remote()) if (attempt["pid"], attempt["begin"]) not in began]
print(f"{len(finished)} naps finished, {len(lost)} attempts were lost")
Timeline([*finished, *({**attempt, "end": died} for attempt in lost)])

# %% [markdown]
# No error, and no result is missing. The short bars on node-3 are the attempts that were lost with it. Ray started those naps again on other nodes, as soon as
# a ticket was free there. (The line that begins with `(raylet)` is Ray's own log message about it.)
#
# Ray tries a lost task three more times by default (`max_retries`), each time from its beginning: what it had done is
# lost, and what it had written somewhere is written twice.

# %% [markdown]
# ### Exercise 01-3 · What an actor remembers
# An actor can be restarted too, if you allow it. This one may be restarted once (`max_restarts=1`), and calls that fail meanwhile are repeated as often as needed (`max_task_retries=-1`):

# %%
counter = Counter.options(max_restarts=1, max_task_retries=-1).remote()
ray.get([counter.add.remote() for _ in range(5)])

# %% [markdown]
# In a moment you kill its process, and Ray starts it again. What will the next `add` return?

# %%
after_restart = ...  # your answer

# %% tags=["solution"]
after_restart = 1

# %%
check("01-3", after_restart)

# %%
import signal

os.kill(ray.get(counter.pid.remote()), signal.SIGKILL)
ray.get(counter.add.remote())

# %% [markdown]
# A new process, a new memory. For training workers that means: whatever must not be lost has to be saved. That's what the checkpoints of lesson 03 are for.
#
# Ray cannot know what killed a worker, so its long message lists possible causes. In real training runs, the most common one is running out of memory.

# %% [markdown]
# ## Who may come in
# Every program of the cluster listens on some port:

# %%
inventory.ports()

# %% [markdown]
# The dashboard's page can be reached from this machine only. Ray's other ports are open to the network, because nodes have to find each other. Anyone who is let in
# there can run any program on your machine. The token keeps strangers out. Try to connect without it:

# %%
from urllib.error import HTTPError
from urllib.request import Request, urlopen

address = lab.dashboard_url + "/api/v0/nodes"
try:
    urlopen(address)
except HTTPError as error:
    print(error.code, error.read().decode())

# %% [markdown]
# 401: refused, because the token is missing. A node or a notebook without it is refused in the same way. The lab creates the token at its first start and sets
# `RAY_AUTH_MODE=token` for every process that it starts. In Ray 2.60, a `ray.init()` that starts a cluster on your machine creates and uses a token by itself. `ray start` uses one only if it exists.

# %% [markdown]
# ### Exercise 01-4 · With the token
# Send a request to the same address so that its status is 200, which means *OK*. The token is sent in a header `Authorization: Bearer …`.
# Read it from its file inside your code, and print neither the token nor the request.

# %%
status = ...  # your answer: the status of the response

# %% tags=["solution"]
with open(os.environ["RAY_AUTH_TOKEN_PATH"]) as file:
    request = Request(address, headers={"Authorization": f"Bearer {file.read()}"})
status = urlopen(request).status

# %%
check("01-4", status)

# %% [markdown]
# ## The same on real machines
# What `cluster.start` does, you can type:

# %%
print(lab.commands())

# %% [markdown]
# Where it goes wrong in practice:
#
# - **Token.** `RAY_AUTH_MODE=token` has to be in the environment of *every* process before it imports ray: heads, nodes, notebooks. Otherwise you get an
#   `AuthenticationError`. The file `~/.ray/auth_token` is the same on all machines, and only its owner can read it (`chmod 600`).
# - **Versions.** The same Python and the same Ray on all machines, to the last digit. `pip install -c constraints.txt` takes care of that.
# - **Firewall.** Nodes have to reach the head's port 6379 and each other. Workers take any free ports; to open only some of them, give `--min-worker-port`
#   and `--max-worker-port`, always both.
# - **The dashboard** stays on the head's 127.0.0.1. Reach it with `ssh -L`.
# - **Your code.** Functions in a notebook travel with their tasks. `cluster.connect()` also sends the package labkit along; other packages have to be installed on each node.
# - **Your files** do not travel. Data and checkpoints belong where every node can read them: lesson 02.

# %% [markdown]
# ## When the kernel restarts
# A second `start()` starts nothing. It gives back the cluster that runs:

# %%
print(cluster.start() is lab)

# %% [markdown]
# The same holds after a restart of the kernel: `start()` finds the cluster and is done in about a second. References and actors of the old kernel are gone.
# Try it: Kernel → Restart Kernel, then the first code cell again. If no kernel comes back within a minute, the lab's *watchdog* process
# stops everything, so nothing outlives a closed notebook.
#
# At any time, `python -m labkit stop` in a terminal stops what the lab started, and nothing else.

# %% [markdown]
# ## In this notebook
# - you started a head and further nodes, and know which processes they are;
# - you opened the dashboard with the token, and saw that a request without it is refused;
# - you used tasks, actors and the object store, measured what a call costs, and know that a CPU is a ticket and not a core;
# - you added two nodes, lost one, and saw its tasks run again, while an actor restarted without its memory;
# - you have the commands for real machines, and what goes wrong with them.

# %%
lab.stop()
lab
