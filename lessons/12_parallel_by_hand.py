# %% [markdown]
# # 12 · Data parallel by hand
#
# By the end of this lesson you can
# - explain a deadlock between ranks, and repair it (exercise 12-1);
# - write an all-reduce from messages (12-2);
# - exchange gradients while the backward pass still computes (12-3);
# - divide an optimizer among ranks (12-4);
# - predict what a schedule costs before you run it.
#
# **Time** about 120 minutes · **Needs** 03
#
# In 2017, Baidu's Silicon Valley AI Lab published how it trained speech models on dozens of GPUs
# ([Bringing HPC techniques to deep learning](http://research.baidu.com/bringing-hpc-techniques-deep-learning/)). Until then, many programs sent all gradients to one GPU, and each further GPU made every step slower. Their answer was an algorithm that
# supercomputers had used for years, the ring all-reduce. In this lesson you write it yourself, and then data parallelism on top of it.

# %% [markdown]
# ## A rank is a generator
# In lesson 03 the communication was hidden inside `prepare_model`. Here it's your code that sends. A **generator** plays one rank: whatever it wants from the outside, it yields. `send` and `recv` pass a real array from one rank to another. This program
# lets two ranks exchange their arrays:

# %%
import numpy as np
from course.schedule import recv, run, send


def swap(rank, world, values):
    yield send(1 - rank, values[rank])
    other = yield recv(1 - rank)
    return other


# %% [markdown]
# `run` simulates the ranks in this process. All of them are generators that take turns, so a whole cluster costs you milliseconds. Let's see what two ranks do.

# %%
values = [np.zeros(3), np.ones(3)]
try:
    run(swap, 2, values)
except Exception as error:
    print(error)

# %% [markdown]
# Read the line that begins with *because*. A `send` waits until the other rank receives, both ranks send first, so both wait forever: a **deadlock**. The simulator notices it, because no rank can continue.
#
# Real processes see only their own side. `on_ranks` runs the same generator in real processes, connected by Gloo, the library that PyTorch uses between CPUs. There `torch.distributed` answers each `yield`.

# %% [markdown] tags=["prediction"]
# **Predict.** What happens if two real processes run `swap`? The array has three numbers.

# %%
from course.exercises import check, hint, predict, reveal, solved

choices = ["they swap", "an error at once", "they wait until a timeout"]
predict("12-a", ..., choices=choices)

# %% [markdown]
# The next cell starts two processes. That takes some seconds, on a busy machine up to half a minute.

# %%
from course.schedule import on_ranks

try:
    on_ranks(swap, 2, values, limit=3)
except Exception as error:
    message = str(error)
    print(message)
    reveal("12-a", "they wait until a timeout" if "Timed out" in message else "an error at once")
else:
    reveal("12-a", "they swap")

# %% tags=["claim"]
assert "Timed out" in message

# %% [markdown]
# Each rank waited for three seconds, because the cell sets `limit=3`. PyTorch's default for Gloo is 30 minutes, and the message says who waited, not why. So find such mistakes in the simulator, before you rent anything.
#
# Two things repair it. One rank can receive first. Or a rank can start its message, receive, and wait for its own message afterwards. `start` returns at once; `wait` makes sure that the message has left, and until then its array must not change:
#
# ```python
# sending = yield start(send(1 - rank, values[rank]))
# other = yield recv(1 - rank)
# yield wait(sending)
# ```

# %% [markdown] tags=["instructor"]
# **"My MPI program sends first on all ranks, and it works."** Many MPI libraries copy a short message into a buffer and return, so it works until the arrays grow. Gloo waits for the receiver whatever the size, and the simulator does the same.

# %% [markdown]
# ### Exercise 12-1 ★ · Pass it on
# Any number of ranks form a ring. Each sends `values[rank]` to its right neighbour, `(rank + 1) % world`, and returns what it gets from its left neighbour. No rank may wait for another in a circle, and all messages should be under way at the same time.

# %%
from course.schedule import start, wait


def pass_on(rank, world, values):
    yield ...  # your answer


# %% tags=["solution"]
def pass_on(rank, world, values):
    sending = yield start(send((rank + 1) % world, values[rank]))
    other = yield recv((rank - 1) % world)
    yield wait(sending)
    return other


# %%
check("12-1", pass_on)

# %% [markdown]
# If you're stuck, `hint("12-1")` shows the first of three hints.

# %% [markdown]
# ## What a message costs
# Why does it matter who sends to whom? Because messages take time, and you can count it. A message takes a **latency** α, however short it is, and β for each megabyte. The simulator uses α = 0.1 and β = 0.05, in units in which one step of
# computing takes 1. To keep arrays small, 1,000 bytes count as a megabyte. Each rank can send one message and receive one at the same time.
#
# The obvious **all-reduce** sends everything to rank 0, which adds it up and sends the sum back:


# %%
def naive(rank, world, values):
    total = values[rank].copy()
    for other in range(1, world):
        if rank == 0:
            total += yield recv(other)
        elif rank == other:
            yield send(0, total)
    for other in range(1, world):
        if rank == 0:
            yield send(other, total)
        elif rank == other:
            total = yield recv(0)
    return total


gradients = [np.full(5000, float(rank)) for rank in range(8)]  # 40 MB on each rank
run(naive, 4, gradients)

# %% [markdown]
# Each lane is a rank, and simulated time goes from left to right. Arrows are messages. The shaded parts are time in which a rank doesn't compute, called the **bubble**; here no rank computes at all, so the bubble is 100 %. The thin line shows how many megabytes of NumPy arrays a rank's variables hold. What `run` got as an argument isn't counted.
#
# At every moment an arrow begins or ends at rank 0, and all others wait for it. A **tree all-reduce** does better: ranks add up in pairs, then pairs of pairs, and the sum goes back the same way.


# %%
def tree(rank, world, values):
    total, distance = values[rank].copy(), 1
    while distance < world and rank % (2 * distance) == 0:
        if rank + distance < world:
            total += yield recv(rank + distance)
        distance *= 2
    if rank:
        yield send(rank - distance, total)
        total = yield recv(rank - distance)
    while distance > 1:
        distance //= 2
        if rank + distance < world:
            yield send(rank + distance, total)
    return total


run(tree, 4, gradients)

# %% [markdown] tags=["prediction"]
# **Predict.** With 8 ranks, `naive` makes 14 messages one after the other. How many of the tree's messages follow one after the other?

# %%
predict("12-b", ...)

# %%
message = 0.1 + 0.05 * 40
times = {program.__name__: run(program, 8, gradients).time for program in (naive, tree)}
print(times)
reveal("12-b", round(times["tree"] / message))

# %% tags=["claim"]
assert round(times["naive"] / message) == 14 and round(times["tree"] / message) == 6
for program in (naive, tree):
    for world in range(2, 9):
        assert all(
            (found == sum(gradients[:world])).all() for found in run(program, world, gradients).results
        )

# %% [markdown]
# The tree takes 2 · log₂ n rounds, so it stays fast with many ranks. But each message is still the whole array, and in the last round before the sum is complete, only two ranks do anything.

# %% [markdown]
# ## The ring
# Here is Baidu's idea. Cut the array into as many pieces as there are ranks, and let all links work all the time. In each round, every rank sends one piece to its right neighbour. A rank adds what it gets from the left to its own piece, and passes that on in the next round. After n − 1
# rounds each rank has one piece that is complete. In n − 1 more rounds the complete pieces go around, and replace what the ranks had. Each message is only 1/n of the array.
#
# ![Three ranks and three pieces: in each round every rank passes one piece to the right; after two rounds each rank has one complete piece, and after four rounds all of them](images/ring.svg)

# %% [markdown]
# ### Exercise 12-2 ★★★ · Ring all-reduce
# Write it. `values[rank]` is this rank's array, and its length can be divided by `world`. It belongs to the caller, so copy it before you change it. Return the sum over all ranks as one array. It should take 2 (n − 1) messages of 1/n of the array, and the check runs it on two real ranks, too. `np.split` cuts an array into equal pieces.


# %%
def ring(rank, world, values):
    pieces = np.split(values[rank].copy(), world)
    yield ...  # your answer


# %% tags=["solution"]
def ring(rank, world, values):
    pieces = np.split(values[rank].copy(), world)
    right, left = (rank + 1) % world, (rank - 1) % world
    for step in range(2 * (world - 1)):
        sending = yield start(send(right, pieces[(rank - step) % world]))
        got = yield recv(left)
        yield wait(sending)
        into = (rank - step - 1) % world
        pieces[into] = pieces[into] + got if step < world - 1 else got
    return np.concatenate(pieces)


# %% [markdown]
# If you'd rather fill in blanks, paste this version over it:
#
# ```python
# def ring(rank, world, values):
#     pieces = np.split(values[rank].copy(), world)
#     right, left = (rank + 1) % world, (rank - 1) % world
#     for step in range(...):
#         sending = yield start(send(right, pieces[...]))
#         got = yield recv(left)
#         yield wait(sending)
#         into = ...
#         pieces[into] = pieces[into] + got if ... else got
#     return np.concatenate(pieces)
# ```

# %%
check("12-2", ring)

# %% [markdown] tags=["instructor"]
# **"Which piece do I send?"** Let them draw three ranks and three pieces on paper. In round 0 rank r sends piece r; what it receives is piece r − 1, and that is what it sends next. So in round s it sends piece r − s.

# %% [markdown]
# Compare your ring with the picture of `naive` above. From here on you can also yield `all_reduce(array)`, which is a ring that the simulator counts for you; the cell draws that one until exercise 12-2 is solved.

# %%
from course.schedule import all_reduce


def ring_of_the_lab(rank, world, values):
    return (yield all_reduce(values[rank]))


mine = ring if solved("12-2") else ring_of_the_lab
run(mine, 4, gradients)

# %% [markdown]
# Every link works in every round. Which of the three algorithms should a library choose? Look at a short and at a long array on 8 ranks:

# %%
import pandas as pd

short = [one[:8] for one in gradients]
algorithms = {"naive": naive, "tree": tree, "ring": mine}
pd.DataFrame(
    {
        "64 kB": {name: run(program, 8, short).time for name, program in algorithms.items()},
        "40 MB": {name: run(program, 8, gradients).time for name, program in algorithms.items()},
    }
).round(2)

# %% tags=["claim"]
times = {name: [run(p, 8, v).time for v in (short, gradients)] for name, p in algorithms.items()}
assert times["tree"][0] < times["ring"][0] < times["naive"][0] * 1.01
assert times["ring"][1] < times["tree"][1] / 2
assert abs(run(ring, 8, gradients).time - run(ring_of_the_lab, 8, gradients).time) < 1e-9

# %% [markdown]
# For the long array the ring wins clearly, because each rank sends less than twice its array, however many ranks there are. For the short one the latency decides, and the tree wins. That's why NCCL, the library for GPUs, has both and picks one by size.

# %% [markdown]
# ## Data parallel in eight lines
# Now train something. This is the network of lesson 03 with its data. Each rank takes its share of each global batch, and where `prepare_model` did something unseen, there are now three lines: sum the gradients of all ranks, divide by the number of ranks, continue.

# %%
import torch
from course import datasets
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

digits = datasets.load(split="train")
images = TensorDataset(
    torch.tensor(digits.images[:1408]).unsqueeze(1) / 255, torch.tensor(digits.labels[:1408])
)


def make_model():
    torch.manual_seed(0)
    conv, head = torch.nn.Conv2d(1, 16, 5, stride=2), torch.nn.Linear(2304, 10)
    return torch.nn.Sequential(conv, torch.nn.ReLU(), torch.nn.Flatten(), head)


# %%
from course.schedule import compute


def ddp(rank, world, images, epochs):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, y in list(DataLoader(images, batch_size=128)) * epochs:
        loss = cross_entropy(model(x[rank::world]), y[rank::world])
        optimizer.zero_grad()
        loss.backward()
        yield compute(3, "step")
        for weight in model.parameters():
            total = yield all_reduce(weight.grad.numpy())
            weight.grad = torch.from_numpy(total / world)
        optimizer.step()
    return [weight.detach().numpy() for weight in model.parameters()]


run(ddp, 2, images, 1)

# %% [markdown]
# `compute(3, "step")` tells the simulator what the computing costs; it can't know. The bars below the steps are the all-reduces. There are four in each step, one for each tensor of weights, but next to the 92 MB of the last layer you can hardly see the others. The line of memory is near zero in between, because only NumPy arrays in variables count, and the
# model, its gradients and its momentum are PyTorch's. Is it the same model as the one that lesson 03 trains in one process?

# %%
torch.set_num_threads(1)


def one_process(epochs):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, y in list(DataLoader(images, batch_size=128)) * epochs:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return [weight.detach().numpy() for weight in model.parameters()]


def difference(some, others):
    return max(float(abs(a - b).max()) for a, b in zip(some, others, strict=True))


alone = one_process(4)
simulated = run(ddp, 2, images, 4)
measured = on_ranks(ddp, 2, images, 4)
print(f"simulated ranks: {difference(simulated.results[0], alone):.1e}")
print(f"real ranks:      {difference(measured.results[0], alone):.1e}")

# %% [markdown]
# The same, up to rounding. `on_ranks` has opened a process group in each process, so PyTorch's own wrapper works there as well. Here it is, for comparison:

# %%
from torch.nn.parallel import DistributedDataParallel


def torchs_ddp(rank, world, images, epochs):
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, y in list(DataLoader(images, batch_size=128)) * epochs:
        optimizer.zero_grad()
        cross_entropy(model(x[rank::world]), y[rank::world]).backward()
        optimizer.step()
        yield compute(3, "step")
    return [weight.detach().numpy() for weight in model.parameters()]


theirs = on_ranks(torchs_ddp, 2, images, 4).results[0]
print(f"by hand and by DDP: {difference(measured.results[0], theirs):.1e}")

# %% tags=["claim"]
assert difference(simulated.results[0], alone) < 1e-4
assert difference(measured.results[0], alone) < 1e-4 and difference(measured.results[0], theirs) < 1e-4
assert difference(measured.results[0], measured.results[1]) == 0
assert difference(alone, [weight.detach().numpy() for weight in make_model().parameters()]) > 1e-2

# %% [markdown]
# ## Send while you compute
# In the picture above, computing and sending take turns. But the gradient of the last layer is ready long before the first layer's, because the backward pass goes from the last layer to the first. Here is a model of six layers whose backward pass
# takes one unit for each layer. `grads[layer]` is zero until `backward` has finished that layer.


# %%
def backward(layer, grads, source):
    yield compute(1, f"B{layer}")
    grads[layer] += source[layer]


layers = 6
source = [[np.full(500, 10.0 * layer + rank) for layer in range(layers)] for rank in range(4)]


# %% [markdown]
# The simple way sends everything at the end:


# %%
def at_the_end(rank, world, source):
    grads = [np.zeros_like(one) for one in source[rank]]
    for layer in reversed(range(len(grads))):
        yield from backward(layer, grads, source[rank])
    total = yield all_reduce(np.concatenate(grads))
    return np.split(total / world, len(grads))


slow = run(at_the_end, 4, source)
slow

# %% [markdown] tags=["prediction"]
# **Predict.** If each layer's gradients are sent while the next layer computes, how many units does the step take? The backward pass of six layers takes 6, and the all-reduce of one layer takes 0.9.

# %%
predict("12-c", ..., choices=["6.0", "6.9", "8.4", "11.4"])


# %%
def each_layer(rank, world, source):
    grads, started = [np.zeros_like(one) for one in source[rank]], {}
    for layer in reversed(range(len(grads))):
        yield from backward(layer, grads, source[rank])
        started[layer] = yield start(all_reduce(grads[layer]))
    for layer, one in started.items():
        grads[layer] = (yield wait(one)) / world
    return grads


fast = run(each_layer, 4, source)
reveal("12-c", f"{fast.time:.1f}")
fast

# %% tags=["claim"]
assert abs(fast.time - 6.9) < 1e-6 and slow.time > 8
assert all((a == b).all() for a, b in zip(fast.results[0], slow.results[0], strict=True))

# %% [markdown]
# Only the all-reduce of the first layer can't be hidden: there is nothing left to compute. This is what DDP does in `loss.backward()`, with one refinement. A real network has hundreds of small tensors, and each all-reduce costs its latency. So DDP collects gradients in **buckets** of 25 MB
# and sends a bucket when it's full. Its authors report nearly linear scaling to 256 GPUs, and name overlapping and buckets as two of the reasons ([Li et al., 2020](https://arxiv.org/abs/2006.15704)).

# %% [markdown]
# ### Exercise 12-3 ★★★ · Buckets
# Change the function below, which sends at the end. Collect the gradients of neighbouring layers, from the last to the first, and start an all-reduce as soon as a bucket has at least `size` numbers. What is left after the first layer is the last bucket. Layers may have different lengths.
# Return the averages as a list, in the order of the layers.


# %%
def bucketed(rank, world, source, size):
    grads = [np.zeros_like(one) for one in source[rank]]
    for layer in reversed(range(len(grads))):
        yield from backward(layer, grads, source[rank])
        started = ...  # your answer, here and below
    total = yield all_reduce(np.concatenate(grads))
    return np.split(total / world, len(grads))


# %% tags=["solution"]
def bucketed(rank, world, source, size):
    grads = [np.zeros_like(one) for one in source[rank]]
    bucket, started = [], []
    for layer in reversed(range(len(grads))):
        yield from backward(layer, grads, source[rank])
        bucket.append(layer)
        if layer == 0 or sum(len(grads[one]) for one in bucket) >= size:
            flat = np.concatenate([grads[one] for one in bucket])
            started.append((bucket, (yield start(all_reduce(flat)))))
            bucket = []
    for bucket, one in started:
        total = (yield wait(one)) / world
        ends = np.cumsum([len(grads[layer]) for layer in bucket])
        for layer, average in zip(bucket, np.split(total, ends[:-1]), strict=True):
            grads[layer] = average
    return grads


# %% [markdown]
# If you'd rather fill in blanks, paste this version over it:
#
# ```python
# def bucketed(rank, world, source, size):
#     grads = [np.zeros_like(one) for one in source[rank]]
#     bucket, started = [], []
#     for layer in reversed(range(len(grads))):
#         yield from backward(layer, grads, source[rank])
#         bucket.append(layer)
#         if layer == 0 or ... >= size:
#             flat = np.concatenate([grads[one] for one in bucket])
#             started.append((bucket, (yield ...)))
#             bucket = []
#     for bucket, one in started:
#         total = (yield wait(one)) / ...
#         ends = np.cumsum([len(grads[layer]) for layer in bucket])
#         for layer, average in zip(bucket, np.split(total, ends[:-1]), strict=True):
#             grads[layer] = average
#     return grads
# ```

# %%
check("12-3", bucketed)

# %% [markdown]
# How large should a bucket be? The next cell runs your function with a latency of 0.3 instead of 0.1, and with buckets of one, two, three and six layers. It prints the time of a step, and stays empty until 12-3 is solved:

# %%
if solved("12-3"):
    for size in (500, 1000, 1500, 3000):
        print(f"buckets of {size} numbers: {run(bucketed, 4, source, size, alpha=0.3).time:.1f} units")

# %% tags=["claim"]
steps = [run(bucketed, 4, source, size, alpha=0.3).time for size in (500, 1000, 1500, 3000)]
assert min(steps) == steps[2] < steps[3] < steps[0]

# %% [markdown]
# Small buckets pay the latency more often, and a bucket of everything can't overlap with anything. The best size is between them, and DDP has an argument for it, `bucket_cap_mb`. How does DDP know that a layer is done? PyTorch calls a function of yours as soon as a weight's gradient is complete if you pass it to
# `register_post_accumulate_grad_hook`. The script at the end of this notebook sends from there, with each weight as a bucket of its own.

# %% [markdown]
# ## How good is the simulation?
# Simulated time is worth something if it predicts what real ranks do. So measure α and β on this machine, as in lesson 09: two real ranks and three sizes. Whatever else the machine does can only make a message slower, so the fastest of nine tries is the one to keep.

# %%
import time


def megabytes(size, world):
    return [np.ones(int(20_833 * size) * 6)] * world  # a length that 2 and 3 divide


def timed(rank, world, program, sizes):
    least = dict.fromkeys(sizes, np.inf)
    for _ in range(9):
        for size in sizes:
            values = megabytes(size, world)
            yield all_reduce(np.zeros(1))  # so that all ranks begin together
            begin = time.perf_counter()
            yield from program(rank, world, values)
            least[size] = min(least[size], time.perf_counter() - begin)
    return least


def real(program, world, sizes):
    ranks = on_ranks(timed, world, program, sizes).results
    return {size: max(one[size] for one in ranks) for size in sizes}


# %% [markdown]
# Two ranks make two rounds, each of half of the array. So an all-reduce of s megabytes takes 2 α + β s: a line. `polyfit` draws it through three sizes; the weights make an error of 10 % count the same for each of them.

# %%
sizes = [0.1, 1, 16]
two = real(ring_of_the_lab, 2, sizes)
seconds = np.array(list(two.values()))
beta, latency = np.polyfit(sizes, seconds, 1, w=1 / seconds)
alpha = max(latency, 0) / 2
print(f"α = {1e3 * alpha:.2f} ms, β = {1e3 * beta:.2f} ms per MB")

# %% [markdown]
# With these costs the simulator predicts what isn't in the fit: three ranks, two other sizes, and a different algorithm.

# %%
rows = []
for program in (ring_of_the_lab, naive):
    for size, measured in real(program, 3, [2, 8]).items():
        predicted = run(program, 3, megabytes(size, 3), alpha=alpha, beta=beta, megabyte=1e6).time
        rows.append([program.__name__, size, 1e3 * predicted, 1e3 * measured])
table = pd.DataFrame(rows, columns=["program", "MB", "simulated ms", "measured ms"])
table["error %"] = 100 * (table["simulated ms"] / table["measured ms"] - 1)
table.round(1)

# %% tags=["claim", "timed"]
large = table[table["MB"] == 8].set_index("program")
for kind in ("simulated ms", "measured ms"):
    assert large[kind]["ring_of_the_lab"] < large[kind]["naive"]
print(table)

# %% [markdown]
# First look at the order: with 8 MB the ring is faster than `naive`, as the simulator says. That held each of the eleven times that a reader ran this on a busy machine. To choose an algorithm you only need to know which one is faster.
#
# A single figure is less reliable. In the reader's runs, some predictions were a third of the measured time and others twice as long. There are two reasons. On a machine that does something else, the same message takes a different time in each run, and α and β were fitted to such times. And the model leaves things out: it gives each rank a link of its own and doesn't
# count the additions, while here a few cores copy the bytes and add the numbers for all ranks. So if you need a figure and not an order, measure α and β on the machines that you'll use, while they're quiet.

# %% [markdown] tags=["instructor"]
# **"My errors are much larger."** On a busy machine they are. What should be stable is the order: which program is faster, and that more megabytes take longer. Run the cells again when the machine is quiet.

# %% [markdown]
# ## Each rank updates a part
# Look at what a rank holds in data parallel training: all weights, all gradients, and the states of the optimizer for all weights. With Adam the states are the largest part. But every rank computes exactly the same update! **ZeRO** (zero redundancy optimizer) removes that repetition. In its first
# stage each rank updates 1/n of the weights, needs the states of that part only, and sends the result to the others.
#
# It costs no extra communication. A ring all-reduce consists of two halves, and both exist as operations of their own. A **reduce-scatter** leaves each rank with one piece of the sum. An **all-gather** joins the pieces of all ranks. ZeRO updates the weights between the two halves.
#
# Here is training with momentum the usual way, where every rank keeps the whole `velocity`:


# %%
def replicated(rank, world, weights, gradients, lr):
    weights = weights.copy()
    velocity = np.zeros_like(weights)
    for gradient in gradients[rank]:
        yield compute(3, "step")
        average = (yield all_reduce(gradient)) / world
        velocity = 0.9 * velocity + average
        weights -= lr * velocity
        del average
    return weights


numbers = np.random.default_rng(0)
weights = numbers.normal(size=1024)
steps = [[numbers.normal(size=1024) for _ in range(3)] for _ in range(8)]
run(replicated, 8, weights, steps, 0.1)

# %% [markdown]
# ### Exercise 12-4 ★★★ · ZeRO, stage 1
# Write the same training so that each rank has the velocity of its own part only. `reduce_scatter(array)` returns part number `rank` of the sum, and `all_gather(part)` returns all parts as one array. The weights must come out as above, and they must be complete on each rank after each step, because the next forward pass needs all of them. The weights take 8.2 MB. On eight ranks, all arrays of a rank together may take at most 2.5 times that, and it
# may send no more than `replicated` does. `weights` belongs to the caller, so copy it before you change it. The check runs it on two real ranks, too.

# %%
from course.schedule import all_gather, reduce_scatter


def zero(rank, world, weights, gradients, lr):
    yield ...  # your answer


# %% tags=["solution"]
def zero(rank, world, weights, gradients, lr):
    weights = weights.copy()
    size = len(weights) // world
    mine = slice(rank * size, (rank + 1) * size)
    velocity = np.zeros(size)
    for gradient in gradients[rank]:
        yield compute(3, "step")
        average = (yield reduce_scatter(gradient)) / world
        velocity = 0.9 * velocity + average
        part = weights[mine] - lr * velocity
        weights = yield all_gather(part)
    return weights


# %% [markdown]
# If you'd rather fill in blanks, paste this version over it:
#
# ```python
# def zero(rank, world, weights, gradients, lr):
#     weights = weights.copy()
#     size = len(weights) // world
#     mine = slice(..., ...)
#     velocity = np.zeros(...)
#     for gradient in gradients[rank]:
#         yield compute(3, "step")
#         average = (yield ...) / world
#         velocity = 0.9 * velocity + average
#         part = weights[mine] - lr * velocity
#         weights = yield ...
#     return weights
# ```

# %%
check("12-4", zero)

# %% [markdown]
# What did it cost, and what did it save? The table has your `zero` next to `replicated` once 12-4 is solved:

# %%
both = [replicated, zero] if solved("12-4") else [replicated]
ran = {program.__name__: run(program, 8, weights, steps, 0.1) for program in both}
pd.DataFrame(
    {name: [one.time, max(one.sent), max(one.memory)] for name, one in ran.items()},
    index=["units of time", "MB sent by a rank", "MB held by a rank"],
).round(1)

# %% tags=["claim"]
assert abs(ran["zero"].time - ran["replicated"].time) < 1e-9
assert abs(max(ran["zero"].sent) - max(ran["replicated"].sent)) < 1e-9
assert max(ran["zero"].memory) < 0.8 * max(ran["replicated"].memory)

# %% [markdown]
# The same time, the same traffic, and a fifth less memory than `replicated`. With Adam, which has two states for each weight, and with more ranks you save more. Lesson 11's `ZeroRedundancyOptimizer` divides the same states, but it sends the weights on top of DDP's all-reduce. Lesson 12b goes on: it divides the gradients and the weights as well, which is FSDP, and then the layers themselves.
#
# ## Key points
# - A send waits for its receiver here and in Gloo, so ranks that all send first hang. Other libraries copy short messages first, and then it depends on the size.
# - A ring all-reduce takes 2 (n − 1) messages of 1/n of the array. So each rank sends less than twice its array, whatever n is. For short arrays a tree is faster.
# - Data parallel training is: sum the gradients, divide by the number of ranks, update. Gradients can be sent in buckets while the backward pass computes.
# - A reduce-scatter followed by an all-gather is an all-reduce. ZeRO updates the weights in between, so each rank keeps 1/n of the optimizer's states.
#
# **A question to take along.** Eight ranks reduce an array of 80 MB in a ring. How much does each rank send, and how much with eighty ranks?
#
# <details><summary>Compare your answer</summary>2 · 7 messages of 10 MB: 140 MB. With eighty ranks, 2 · 79 messages of 1 MB: 158 MB. It's always less than twice the array, but there are many more messages.</details>
#
# | older tutorials | today |
# |---|---|
# | `torch.distributed.send` and `recv` in pairs, one after the other | `torch.distributed.batch_isend_irecv`, which starts all of them together |
# | parameter servers | an all-reduce among the workers |

# %% [markdown] tags=["plain"]
# ## Without the lab
# The ring, and data parallel training that sends during the backward pass, on two real processes in plain PyTorch. The script starts itself with `torchrun` and compares both with what PyTorch does:

# %% [markdown] tags=["links"]
# ## Official pages
# [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html) describes all collectives. [LLM Training Puzzles](https://github.com/srush/LLM-Training-Puzzles) has more exercises of this kind.
