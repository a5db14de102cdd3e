# %% [markdown]
# # 01 · A cluster on your machine
#
# **You will be able to** start a head and further nodes, find them on the dashboard, use tasks, actors and the object store and say what they
# cost, add and lose a node, and start the same cluster on real machines. · **Time** 35 min (1 of it waiting) · **Needs** 00
#
# A Ray cluster is a handful of ordinary programs. On real machines each machine runs some of them. Here they all run on yours, and each
# *node* takes itself for a machine of its own. Nothing is simulated: the programs are the same, and they talk over the network.
#
# (If `RAY_ADDRESS` names a cluster of yours, `start()` connects to that one. Then adding and removing nodes is refused: unset it for this lesson.)

# %% [markdown]
# ## Start
# This takes about ten seconds on two cores.

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
# Remember the first three. The `gcs_server` exists once. A `raylet` runs on every node: it starts *workers*, the processes that will run
# your code, and decides what runs in them. (The `forkserver` is no part of Ray but the lab's: it has imported PyTorch and the like, and workers are forked from it, so that
# not each of them has to import it again.) The last line is what a cluster costs before it has done anything.

# %% [markdown]
# ## The dashboard
# Click **dashboard** in the box above. The page opens in a new tab and says *Authentication Token Required*: this cluster talks to nobody who
# does not have its token.
#
# The token lies in a file that only you can read. Never print it in a notebook, whose outputs are saved and passed on.
# The next cell prints a command. Run that in a terminal (File → New → Terminal), paste what it says into the page, and press Submit.

# %%
import os

print("cat", os.environ["RAY_AUTH_TOKEN_PATH"])

# %% [markdown]
# The browser remembers the token for 30 days, and the lab keeps it, so this happens once. (The page suggests `ray get-auth-token`. That shows the
# token in `~/.ray`, for clusters of your own; the lab's is another one.)
#
# Leave the page open on **Cluster**, where the nodes and their processes are, and come back to it in every section. The charts on **Overview**
# want two more programs, Prometheus and Grafana. You will not miss them.
#
# Does this JupyterLab run on another machine? The page is served to that machine alone. `ssh -L PORT:127.0.0.1:PORT that-machine` brings
# it to yours; the port is the one in the link.

# %% [markdown]
# ## Tasks
# `ray.remote` makes a function into one that can run in a worker. Calling it with `.remote(…)` only hands it in.

# %%
import ray


@ray.remote
def square(x):
    return x * x


reference = square.remote(7)
reference

# %% [markdown]
# You got no 49, but a *reference*: a promise of a result. The cell did not wait. `ray.get` does:

# %%
ray.get(reference)

# %%
ray.get([square.remote(x) for x in range(8)])

# %% [markdown]
# Eight tasks were handed in before the first was waited for. That is the whole trick of parallel work: first all `.remote`, then `ray.get`.

# %% [markdown]
# ## A CPU is a ticket
# Each task needs a CPU of the cluster, unless you say otherwise. These are the cluster's resources:

# %%
{name: amount for name, amount in ray.cluster_resources().items() if ":" not in name}

# %% [markdown]
# The raylet never looks at your cores. It has so many *tickets*, as many as it was told at its start; a task takes one and gives it back when it is done.
# The next task only sleeps, and tells when and where it did so.

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
# Each row is a worker process, each bar a task. As many slept at once as there are tickets. The number of cores does not matter, since
# who sleeps needs none. Now tasks that keep a core busy:


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
# **Before you go on:** the same work as often as there are tickets, all at once. Will each task be as fast as the one alone?

# %%
together = Timeline(ray.get([count_up.remote(number) for _ in range(tickets)]))
print(
    f"{os.cpu_count()} cores, {tickets} tickets: {together.seconds / alone.seconds:.1f} × as long as one alone"
)
together

# %% [markdown]
# Where there are at least as many cores as tickets, the factor is near 1. With two cores and three tickets it is 1.5 or more: three tasks
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
# What tasks and actors pass to each other lies in the *object store*: memory that all processes of a node share. `ray.put` places a value there
# by hand.

# %%
from labkit import datasets

train = datasets.load()
labels_ref = ray.put(train.labels)
labels_ref

# %%
labels = ray.get(labels_ref)
labels.flags.writeable

# %% [markdown]
# `ray.get` did not copy the array. It looks into the shared memory, and so can every worker of the node. That is why nobody may write into it:
# `writeable` is False.
#
# Hand a reference to a task, and the task gets the value. Its bytes travel only if the task runs on another node.

# %% [markdown]
# ### Exercise 01-1 · Count in parallel
# `count` says how often each class stands in one part of the labels. Start three of these tasks, one for each third of `labels_ref`,
# so that they may run at the same time. Keep their references in the list `parts`, and add up their results in `total`.

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
# A task travels: to the raylet, to a worker, and its result back. So does a call of an actor, but without the search for a worker.

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
# These are medians on this machine, now. A task costs as much as thousands of function calls. So give it work for at least tens of milliseconds:
# a batch of images, not one pixel. Tasks that are handed in together cost less each, since one travels while another runs.

# %% [markdown]
# ## Asking for too much
# A task may ask for more than one CPU.

# %% [markdown] tags=["prediction"]
# **Before you go on:** a task asks for more CPUs than the whole cluster has. What does Ray do?

# %%
greedy = square.options(num_cpus=tickets + 61).remote(7)
ready, waiting = ray.wait([greedy], timeout=2)
len(ready), len(waiting)

# %% [markdown]
# It waits, without a word. It would wait for ever: somebody might still add a node that is large enough. `ray.wait` with a `timeout` is how
# you find out, and the dashboard: **Overview** lists it under *Pending Demands*.

# %%
ray.cancel(greedy)

# %% [markdown]
# A training with too many workers would wait in the same way. The lab asks first, and says no with the numbers:

# %% tags=["raises-exception"]
lab.check_capacity(workers=tickets + 61)

# %% [markdown]
# So read an error in this lab: what was attempted, the fact that stopped it, and how to mend it.

# %% [markdown]
# ## More nodes
# `add_node` runs `ray start --address=…`, the command that you would type on a second machine. It takes some seconds for each.

# %%
node_2 = lab.add_node(cpus=2)
node_3 = lab.add_node(cpus=2)
lab

# %%
inventory.processes("node-2")

# %% [markdown]
# A further node is less than a head: no register, no dashboard. Now more naps than one node has tickets:

# %%
tickets = int(lab.cpus)
Timeline(ray.get([nap.remote(1) for _ in range(tickets)]))

# %% [markdown]
# You said nothing about nodes. The tasks went where tickets were. If the bars on the new nodes begin late, it is because their first workers had to be
# started. Now they exist, so once more:

# %%
Timeline(ray.get([nap.remote(1) for _ in range(tickets)]))

# %% [markdown]
# ### Exercise 01-2 · Big tasks
# A task may ask for three CPUs. How many such tasks can run at the same time on the cluster as it is now? Look at the table of nodes.

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
# Machines fail. `remove_node` ends the processes of a node at once, as if its plug were pulled.

# %% [markdown] tags=["prediction"]
# **Before you go on:** every ticket is taken by a nap, and one node goes down in the middle. Will `ray.get` raise an error? Will results be missing?

# %%
references = [nap.remote(4) for _ in range(tickets)]
time.sleep(1.5)
lab.remove_node(node_3)
lab

# %%
Timeline(ray.get(references))

# %% [markdown]
# All naps are there, none of them from node-3. Those that it lost were started again, from the moment when another node had a ticket free.
# (The line that begins with `(raylet)` is Ray's own word about it.)
#
# Ray tries a lost task three more times by default (`max_retries`), each time from its beginning: what it had done is
# lost, and what it had written somewhere is written twice.

# %% [markdown]
# ### Exercise 01-3 · What an actor remembers
# An actor can be started again too, if you allow it. This one may be started once more, and calls that failed may be repeated:

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
# A new process, a new memory. For training workers that means: whatever must not be lost has to be written down. That is what the checkpoints of lesson 03 are for.
#
# Ray cannot know who killed a worker, so its long message lists what it may have been. In a real training, look at the memory first.

# %% [markdown]
# ## Who may come in
# Every program of the cluster listens on some port:

# %%
inventory.ports()

# %% [markdown]
# The dashboard's page is open to this machine alone. Ray's other ports are open to the network, since nodes have to find each other. Whoever is let in
# there can run any program on your machine. What keeps strangers out is the token. Try to come in without it:

# %%
from urllib.error import HTTPError
from urllib.request import Request, urlopen

address = lab.dashboard_url + "/api/v0/nodes"
try:
    urlopen(address)
except HTTPError as error:
    print(error.code, error.read().decode())

# %% [markdown]
# 401: refused, for lack of a token. A node or a notebook without it is refused in the same way. The lab makes the token at its first start and sets
# `RAY_AUTH_MODE=token` for all that it runs. In your own clusters both are up to you.

# %% [markdown]
# ### Exercise 01-4 · With the token
# Ask the same address so that it answers 200, which means *fine*. The token travels in a header `Authorization: Bearer …`.
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
# - **Token.** `RAY_AUTH_MODE=token` has to stand in the environment of *every* process before it imports ray: heads, nodes, notebooks. Otherwise `InvalidAuthToken`.
#   The file `~/.ray/auth_token` is the same on all machines, and readable by its owner alone (`chmod 600`).
# - **Versions.** The same Python and the same Ray on all machines, to the last digit. `pip install -c constraints.txt` sees to it.
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
# - you opened the dashboard with the token, and saw that nobody gets in without it;
# - you used tasks, actors and the object store, measured what a call costs, and know that a CPU is a ticket and not a core;
# - you added two nodes, lost one, and saw its tasks run again, while an actor came back without its memory;
# - you have the commands for real machines, and what goes wrong with them.

# %%
lab.stop()
lab
