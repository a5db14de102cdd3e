# %% [markdown]
# # 12b · Sharding and pipelines by hand
#
# By the end of this lesson you can
# - keep a part of each layer on each rank, and gather a layer only while it computes (exercise 12b-1);
# - count the idle time of a pipeline (12b-2);
# - write the schedule 1F1B, which large models are trained with (12b-3);
# - explain how a single matrix product is divided among ranks, and what a mesh combines.
#
# **Time** about 110 minutes · **Needs** 12
#
# In 2021, a group around NVIDIA ran training steps of a model with a trillion parameters on 3,072 GPUs, and each GPU reached 52 % of its peak
# ([Narayanan et al.](https://arxiv.org/abs/2104.04473)). Weights, gradients and optimizer of such a model take 16 TB, and a GPU had 80 GB. They didn't use one trick but three at once: they divided the rows, the layers and the matrices. You divided the rows in lesson 12. Here you also divide the weights among those
# ranks, you write the pipeline that divides the layers, and you read and run a divided matrix.

# %% [markdown]
# ## Four layers, by hand
# To divide a network you need to know what happens in it. This one has four equal layers, and it learns to reproduce its input. `forward` computes the output of one layer. `backward` gets the slope of the loss with respect to the layer's output (in PyTorch, `y.grad` after `y.retain_grad()`), and returns the gradient of the weights and the slope for the layer before.

# %%
import numpy as np
from course.exercises import check, hint, predict, reveal, solved
from course.schedule import (
    all_gather,
    all_reduce,
    compute,
    on_ranks,
    recv,
    reduce_scatter,
    run,
    send,
    start,
    wait,
)


def forward(weights, x):
    return np.tanh(x @ weights)


def backward(weights, x, y, slope):
    inner = slope * (1 - y**2)
    return x.T @ inner, inner @ weights.T


numbers = np.random.default_rng(0)
layers = [numbers.normal(size=(64, 64)) / 8 for _ in range(4)]  # 33 MB each
batches = [numbers.normal(size=(16, 64)) for _ in range(3)]

# %% [markdown]
# Data parallel training, as in lesson 12. It's the reference for everything that follows:


# %%
def data_parallel(rank, world, layers, batches, lr):
    layers = [weights.copy() for weights in layers]
    for batch in batches:
        outputs = [batch[rank::world]]
        for weights in layers:
            yield compute(1, "F")
            outputs.append(forward(weights, outputs[-1]))
        slope = 2 * (outputs[-1] - outputs[0]) / outputs[0].size
        for number in reversed(range(len(layers))):
            yield compute(2, "B")
            gradient, slope = backward(layers[number], outputs[number], outputs[number + 1], slope)
            total = yield all_reduce(gradient)
            layers[number] -= lr * total / world
            del gradient, total
    return layers


reference = run(data_parallel, 4, layers, batches[:1], 0.5)
reference

# %% [markdown]
# The four layers take 131 MB, and at its peak each rank holds about 210: all weights, one gradient, the sum that arrives, and the outputs of the layers. As in lesson 12, 1,000 bytes count as a megabyte. The line below each lane shows it over time.

# %% [markdown]
# ## Each rank keeps a part
# Most of the time, a rank doesn't need most of the weights: one layer computes, three wait. **FSDP** (fully sharded data parallel) makes use of that. Each rank keeps a **shard** of each layer, here some of its rows. When a layer's turn comes, an **all-gather** joins its
# shards, the layer computes, and the joined array is dropped. The backward pass does the same once more. A **reduce-scatter** then adds up the gradients and leaves each rank with the sum for its own shard, which is all that it needs for its update.

# %% [markdown] tags=["prediction"]
# **Predict.** In data parallel training a rank sends 2 (n − 1)/n of the weights in each step. By what factor does FSDP change that?

# %%
predict("12b-a", ..., choices=["the same", "1.5 times", "2 times", "3 times"])


# %%
def traffic_of_fsdp(rank, world, layers):
    for weights in [*layers, *reversed(layers)]:  # forward, then backward
        yield all_gather(np.split(weights, world)[rank])
    for weights in layers:
        yield reduce_scatter(weights)


factor = run(traffic_of_fsdp, 4, layers).sent[0] / reference.sent[0]
reveal("12b-a", f"{factor:.1f} times")

# %% tags=["claim"]
assert abs(factor - 1.5) < 1e-9
assert 200 < max(reference.memory) < 220

# %% [markdown]
# An all-reduce is a reduce-scatter and an all-gather. FSDP gathers twice, so it's three halves instead of two. You pay half as much again in communication. In return, a rank holds a quarter of the weights, plus the one layer that computes.
#
# ### Exercise 12b-1 ★★★ · FSDP
# Write the training above with shards. `np.split(weights, world)[rank]` are the rows of this rank. Copy them, because the arrays in `layers` belong to the caller and you're going to change your shards. Return the list of this rank's trained shards. With four ranks, a rank may hold at most 100 MB at any `yield`, which is less than the weights of the four layers. An array counts as long as a variable refers to it,
# so `del` what you no longer need. The check runs it on two real ranks, too.


# %%
def fsdp(rank, world, layers, batches, lr):
    yield ...  # your answer


# %% tags=["solution"]
def fsdp(rank, world, layers, batches, lr):
    shards = [np.split(weights, world)[rank].copy() for weights in layers]
    for batch in batches:
        outputs = [batch[rank::world]]
        for shard in shards:
            weights = yield all_gather(shard)
            yield compute(1, "F")
            outputs.append(forward(weights, outputs[-1]))
            del weights
        slope = 2 * (outputs[-1] - outputs[0]) / outputs[0].size
        for number in reversed(range(len(shards))):
            weights = yield all_gather(shards[number])
            yield compute(2, "B")
            gradient, slope = backward(weights, outputs[number], outputs[number + 1], slope)
            del weights
            total = yield reduce_scatter(gradient)
            shards[number] -= lr * total / world
            del gradient, total
    return shards


# %% [markdown]
# If you'd rather fill in blanks, paste this version over it:
#
# ```python
# def fsdp(rank, world, layers, batches, lr):
#     shards = [np.split(weights, world)[rank].copy() for weights in layers]
#     for batch in batches:
#         outputs = [batch[rank::world]]
#         for shard in shards:
#             weights = yield ...
#             yield compute(1, "F")
#             outputs.append(forward(weights, outputs[-1]))
#             del weights
#         slope = 2 * (outputs[-1] - outputs[0]) / outputs[0].size
#         for number in reversed(range(len(shards))):
#             weights = yield ...
#             yield compute(2, "B")
#             gradient, slope = backward(weights, outputs[number], outputs[number + 1], slope)
#             del weights
#             total = yield ...
#             shards[number] -= ...
#             del gradient, total
#     return shards
# ```

# %%
check("12b-1", fsdp)

# %% [markdown]
# If you're stuck, `hint("12b-1")` shows the first of three hints. Once 12b-1 is solved, the next cell draws your `fsdp`; compare its memory lines with the picture of `data_parallel` above.

# %%
ran = run(fsdp if solved("12b-1") else data_parallel, 4, layers, batches[:1], 0.5)
print(f"data parallel holds {max(reference.memory):.0f} MB, the program below {max(ran.memory):.0f} MB")
ran

# %% tags=["claim"]
assert max(ran.memory) < 0.45 * max(reference.memory)
assert abs(max(ran.sent) / max(reference.sent) - 1.5) < 1e-9

# %% [markdown]
# Each peak is one whole layer, its weights or its gradient; between the peaks there are only shards and outputs. The larger the network, the more you save, because one layer becomes a smaller part of it.
#
# PyTorch does this with `fully_shard`, once for each layer and once for the model. Here it trains the same four layers on two real ranks. PyTorch stores the weights of a linear layer transposed, therefore the `.T`.

# %%
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def torchs_fsdp(rank, world, layers, batches, lr):
    linear = [torch.nn.Linear(64, 64, bias=False, dtype=torch.float64) for _ in layers]
    for one, weights in zip(linear, layers, strict=True):
        one.weight.data.copy_(torch.from_numpy(weights.T))
    model = torch.nn.Sequential(*[torch.nn.Sequential(one, torch.nn.Tanh()) for one in linear])
    mesh = init_device_mesh("cpu", (world,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for batch in batches:
        rows = torch.from_numpy(batch[rank::world])
        optimizer.zero_grad()
        (model(rows) - rows).square().mean().backward()
        optimizer.step()
    yield compute()
    return [layer[0].weight.full_tensor().detach().numpy().T for layer in model]


# %%
def difference(some, others):
    return max(float(abs(a - b).max()) for a, b in zip(some, others, strict=True))


by_hand = on_ranks(data_parallel, 2, layers, batches, 0.5).results[0]
by_torch = on_ranks(torchs_fsdp, 2, layers, batches, 0.5).results[0]
print(f"by hand and by FSDP2: {difference(by_hand, by_torch):.1e}")

# %% tags=["claim"]
assert difference(by_hand, by_torch) < 1e-9 < difference(by_hand, layers)
sharded = on_ranks(fsdp, 2, layers, batches, 0.5).results
joined = [np.concatenate(parts) for parts in zip(*sharded, strict=True)]
print(f"FSDP by hand and FSDP2: {difference(joined, by_torch):.1e}")
assert difference(joined, by_torch) < 1e-9

# %% [markdown] tags=["instructor"]
# **"Where do I need `del`?"** Let them look at the memory line. If it rises by 33 MB in each layer, a joined layer or a gradient is still in a variable when the next one arrives.

# %% [markdown]
# ## A pipeline
# FSDP sends every weight twice and every gradient once in each step. That's fine inside a machine and slow between machines. A **pipeline** sends no weights at all: each rank keeps one layer, the **stage**, and passes outputs to the right and slopes to the left, which are small.
#
# The catch: with one batch, one rank works and all others wait. So cut the batch into **micro-batches**. While rank 1 computes the first one, rank 0 computes the second. A plan says in which order a rank does its work: `("F", 2)` is the forward pass of micro-batch 2, `("B", 2)` its backward pass.
#
# The work of a batch stays the same, however you cut it. Here a rank needs 32 units for the forward pass of the whole batch and 64 for its backward pass. With eight micro-batches, each of them takes 4 and 8 units.


# %%
def stage(rank, world, plan, count, layers, batch, lr):
    weights, micro, kept, sent, gradient = layers[rank].copy(), np.split(batch, count), {}, [], 0
    unit = 32 / count  # the work of one micro-batch
    for kind, number in plan(rank, world, count):
        if kind == "F":
            x = micro[number].copy() if rank == 0 else (yield recv(rank - 1))
            yield compute(unit, f"F{number}")
            kept[number] = (x, forward(weights, x))
            if rank < world - 1:
                sent.append((yield start(send(rank + 1, kept[number][1]))))
        else:
            x, y = kept.pop(number)
            slope = 2 * (y - micro[number]) / batch.size if rank == world - 1 else (yield recv(rank + 1))
            yield compute(2 * unit, f"B{number}")
            part, slope = backward(weights, x, y, slope)
            gradient = gradient + part
            if rank > 0:
                sent.append((yield start(send(rank - 1, slope))))
    for one in sent:
        yield wait(one)
    return weights - lr * gradient


# %% [markdown]
# The simplest plan is called GPipe: all forward passes, then all backward passes. With one micro-batch it's the naive pipeline. Look at the **bubble**, the shaded parts in which a rank has nothing to compute:


# %%
def gpipe(rank, world, count):
    return [("F", number) for number in range(count)] + [("B", number) for number in range(count)]


large = numbers.normal(size=(128, 64))  # a batch of 66 MB
run(stage, 4, gpipe, 1, layers, large, 0.5)

# %% [markdown] tags=["prediction"]
# **Predict.** With one micro-batch, each of four ranks is idle for more than three quarters of the time. What share is it with eight?

# %%
predict("12b-b", ..., choices=["about 10 %", "about 30 %", "about 50 %", "about 70 %"])

# %%
eight = run(stage, 4, gpipe, 8, layers, large, 0.5)
reveal("12b-b", f"about {round(100 * eight.bubble, -1):.0f} %")
eight

# %% tags=["claim"]
assert 0.27 < eight.bubble < 0.37
free = run(stage, 4, gpipe, 8, layers, large, 0.5, alpha=0, beta=0)
assert abs(free.bubble - 3 / 11) < 1e-9
single = run(data_parallel, 1, layers, [large], 0.5).results[0]
assert difference(eight.results, single) < 1e-12

# %% [markdown]
# The same work takes about a third of the time. The reason for the rest of the bubble is simple: the last rank can't begin before the first micro-batch has passed p − 1 ranks. If messages were free, a pipeline of p stages with m micro-batches would be idle for (p − 1)/(m + p − 1) of its time, here 27 %. The simulated messages add a little to that.
#
# ### Exercise 12b-2 ★ · How many micro-batches
# Write a function that returns the smallest number of micro-batches with which a pipeline of `stages` ranks is idle for at most the share `idle` of its time, such as 0.1. Use the formula, so messages are free.


# %%
def micro_batches(stages, idle): ...  # your answer


# %% tags=["solution"]
def micro_batches(stages, idle):
    count = 1
    while (stages - 1) / (count + stages - 1) > idle:
        count += 1
    return count


# %%
check("12b-2", micro_batches)

# %% [markdown]
# Shouldn't you always use hundreds of micro-batches, then? Each of them needs enough rows to keep a GPU busy, so many micro-batches need a large batch, and a large batch needs memory. A forward pass leaves its input and its output behind until its backward pass has used them. With GPipe, each rank keeps those of the *whole* batch:
# look at the memory lines above, which rise until the first backward pass.

# %% [markdown]
# ## One forward, one backward
# Why wait with the backward passes until all forward passes are done? The last rank can begin the backward pass of micro-batch 0 as soon as its forward pass is over. That's the schedule **1F1B**, one forward, one backward. For each rank it has three phases:
#
# - *Warm-up*: rank r makes p − r − 1 forward passes, so the last rank makes none.
# - *Steady*: one forward pass, then one backward pass of the oldest micro-batch, in turn, until there are no forward passes left.
# - *Cool-down*: in the end, it makes the backward passes that remain.
#
# Then rank r keeps at most p − r micro-batches, however many there are.

# %% [markdown]
# ### Exercise 12b-3 ★★★ · 1F1B
# Write the plan of one rank, as a list of pairs, like `gpipe` above. With free messages its bubble must not exceed (p − 1)/(m + p − 1), and rank r may keep at most p − r micro-batches. It should also work with fewer micro-batches than ranks. The check trains with your plan on four simulated ranks and on two real ones.


# %%
def one_f_one_b(rank, world, count): ...  # your answer


# %% tags=["solution"]
def one_f_one_b(rank, world, count):
    warm_up = min(world - rank - 1, count)
    plan = [("F", number) for number in range(warm_up)]
    for number in range(count - warm_up):
        plan += [("F", warm_up + number), ("B", number)]
    return plan + [("B", number) for number in range(count - warm_up, count)]


# %% [markdown]
# If you'd rather fill in blanks, paste this version over it:
#
# ```python
# def one_f_one_b(rank, world, count):
#     warm_up = min(..., count)
#     plan = [("F", number) for number in range(warm_up)]
#     for number in range(count - warm_up):
#         plan += [("F", ...), ("B", ...)]
#     return plan + [("B", number) for number in range(..., count)]
# ```

# %%
check("12b-3", one_f_one_b)

# %% [markdown]
# Now compare. The next cell prints how much each rank holds at most, with GPipe and, once 12b-3 is solved, with your plan.

# %%
plans = {"GPipe": gpipe}
if solved("12b-3"):
    plans["1F1B"] = one_f_one_b
for name, plan in plans.items():
    for count in (4, 8, 16):
        ran = run(stage, 4, plan, count, layers, large, 0.5)
        memory = " ".join(f"{mb:4.0f}" for mb in ran.memory)
        print(
            f"{name:5} {count:2} micro-batches: bubble {ran.bubble:3.0%}, MB held by ranks 0 to 3: {memory}"
        )
ran

# %% [markdown]
# 1F1B makes the same bubble as GPipe. What shrinks is the memory: rank r keeps p − r micro-batches instead of all, so rank 0 holds most and the last rank least, and the memory lines stay flat after the warm-up. The smaller the micro-batches are, the more you save. So you can afford more of them, and that shrinks the bubble.
#
# What goes wrong with a wrong plan? This one lets every rank begin in the steady phase, without a warm-up:


# %%
def impatient(rank, world, count):
    return [(kind, number) for number in range(count) for kind in "FB"]


run(stage, 4, impatient, 8, layers, large, 0.5)

# %% [markdown]
# Its result is right, but three of four ranks always wait: rank 0 waits for the backward pass of micro-batch 0 before it begins micro-batch 1. Without the warm-up you pay for four ranks and get one. That's why it's worth looking at a schedule before you run it.
#
# PyTorch has these schedules in `torch.distributed.pipelining`. Here is its 1F1B on two real ranks, compared with our GPipe:

# %%
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def torchs_pipeline(rank, world, layers, batch, lr):
    linear = torch.nn.Linear(64, 64, bias=False, dtype=torch.float64)
    linear.weight.data.copy_(torch.from_numpy(layers[rank].T))
    one = PipelineStage(torch.nn.Sequential(linear, torch.nn.Tanh()), rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(one, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    rows = torch.from_numpy(batch)
    schedule.step(rows) if rank == 0 else schedule.step(target=rows)
    yield compute()
    return linear.weight.detach().numpy().T - lr * linear.weight.grad.numpy().T


# %%
by_torch = on_ranks(torchs_pipeline, 2, layers[:2], batches[0], 0.5).results
by_hand = on_ranks(stage, 2, gpipe, 4, layers[:2], batches[0], 0.5).results
print(f"a pipeline by hand and by PyTorch: {difference(by_hand, by_torch):.1e}")

# %% tags=["claim"]
assert difference(by_hand, by_torch) < 1e-9 < difference(by_hand, layers[:2])
assert run(stage, 4, impatient, 8, layers, large, 0.5).bubble > 0.7
ran = {plan: run(stage, 4, plan, 8, layers, large, 0.5) for plan in (gpipe, one_f_one_b)}
assert max(ran[one_f_one_b].memory) < max(ran[gpipe].memory) - 50
assert ran[one_f_one_b].memory == sorted(ran[one_f_one_b].memory, reverse=True)
assert abs(ran[one_f_one_b].bubble - ran[gpipe].bubble) < 0.05

# %% [markdown]
# ## Divide a matrix
# What if a single layer is too large, or a batch has too few rows to divide? Then divide the matrix product itself: **tensor parallelism**. Take the two matrices of a transformer's MLP. The first is cut by columns, so each rank computes some of the hidden numbers, and the activation function needs no others. The second is cut by rows, so that each rank
# uses exactly the hidden numbers that it has. Each rank gets a full-size result that is only a part of the sum, so one all-reduce completes it.


# %%
def tensor_parallel(rank, world, up, down, x):
    up = np.split(up, world, axis=1)[rank].copy()
    down = np.split(down, world)[rank].copy()
    yield compute(4 / world, "up")
    hidden = np.tanh(x @ up)
    yield compute(4 / world, "down")
    return (yield all_reduce(hidden @ down))


up, down = numbers.normal(size=(64, 256)) / 8, numbers.normal(size=(256, 64)) / 16
x = numbers.normal(size=(16, 64))
divided = run(tensor_parallel, 4, up, down, x)
print(f"{difference(divided.results, [np.tanh(x @ up) @ down] * 4):.1e}")
divided

# %% [markdown]
# Between the two products nothing has to be sent; the all-reduce comes after the second one. The backward pass needs one as well: each rank has only its part of the slope for the layer before. If you cut both matrices by columns instead, each rank would need all hidden numbers for its second product, which takes a collective in the middle. The all-reduce at the end can't be hidden, because the next layer needs its result. Therefore tensor parallelism stays inside one machine, where
# links are fast.

# %% [markdown]
# ## A mesh
# Large training runs combine these methods. Put four ranks in a grid of two by two, a **device mesh**, and give its directions names. In the direction *model*, two ranks share one copy of the model by tensor parallelism. In the direction *data*, two ranks hold the same part of the model and train on different rows of the batch, so they average their gradients. Both
# directions are all-reduces, each in a `group` of its own. A third direction would hold the stages of a pipeline; this mesh has none.


# %%
def in_a_mesh(rank, world, up, down, batches, lr):
    data, model = divmod(rank, 2)  # the place of this rank in both directions
    same_rows, same_part = [2 * data, 2 * data + 1], [model, model + 2]
    up, down = np.split(up, 2, axis=1)[model].copy(), np.split(down, 2)[model].copy()
    for batch in batches:
        x = batch[data::2]
        hidden = np.tanh(x @ up)
        y = yield all_reduce(hidden @ down, group=same_rows)
        slope = 2 * (y - x) / x.size
        down_gradient = hidden.T @ slope
        up_gradient = x.T @ (slope @ down.T * (1 - hidden**2))
        down -= lr * (yield all_reduce(down_gradient, group=same_part)) / 2
        up -= lr * (yield all_reduce(up_gradient, group=same_part)) / 2
    return up, down


meshed = on_ranks(in_a_mesh, 4, up, down, batches, 0.5).results

# %% [markdown]
# PyTorch calls the pieces `ColwiseParallel` and `RowwiseParallel`. `parallelize_module` applies them, and `fully_shard` works along the other direction of the mesh:

# %%
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def torchs_mesh(rank, world, up, down, batches, lr):
    linear = [torch.nn.Linear(*one.shape, bias=False, dtype=torch.float64) for one in (up, down)]
    for one, weights in zip(linear, (up, down), strict=True):
        one.weight.data.copy_(torch.from_numpy(weights.T))
    model = torch.nn.Sequential(linear[0], torch.nn.Tanh(), linear[1])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    parallelize_module(model, mesh["model"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, foreach=False)
    for batch in batches:
        rows = torch.from_numpy(batch[mesh["data"].get_local_rank() :: 2])
        optimizer.zero_grad()
        (model(rows) - rows).square().mean().backward()
        optimizer.step()
    yield compute()
    return [model[number].weight.full_tensor().detach().numpy().T for number in (0, 2)]


# %%
theirs = on_ranks(torchs_mesh, 4, up, down, batches, 0.5).results[0]
ours = [np.concatenate([meshed[0][0], meshed[1][0]], axis=1), np.concatenate([meshed[0][1], meshed[1][1]])]
print(f"a mesh by hand and by PyTorch: {difference(ours, theirs):.1e}")

# %% tags=["claim"]
assert difference(ours, theirs) < 1e-9 < difference(ours, [up, down])
assert difference(divided.results, [np.tanh(x @ up) @ down] * 4) < 1e-12

# %% [markdown]
# ## Key points
# - FSDP keeps a shard of each layer, gathers a layer while it computes, and scatters the gradients. It sends 1.5 times as much as data parallel training.
# - A pipeline of p stages with m micro-batches is idle for (p − 1)/(m + p − 1) of the time, with GPipe and with 1F1B. 1F1B keeps fewer micro-batches in memory.
# - Tensor parallelism cuts the first matrix by columns and the second by rows. It needs one all-reduce after the second product, and one more in the backward pass.
# - A mesh combines these methods. Fast links get what sends most: matrices inside a machine, layers and rows between machines.
#
# **A question to take along.** A pipeline of 4 stages works on 8 micro-batches. For what part of the time is it idle, and what would halve that?
#
# <details><summary>Compare your answer</summary>3/11, which is 27 %. About twice as many micro-batches would halve it: with 19, it's 3/22, or 14 %.</details>
#
# | older tutorials | today |
# |---|---|
# | `torch.distributed.pipeline.sync.Pipe`, PiPPy | `torch.distributed.pipelining` |
# | `FullyShardedDataParallel(model)` | `fully_shard` for each layer, then for the model |
#
# ## Without the lab
# There is no script for this lesson, because PyTorch's own calls are short enough: `fully_shard` in lesson 11, and `torch.distributed.pipelining` in the cell above, which `torchrun` starts like the script of lesson 12.
#
# Before you rent GPUs for any of this, the recipe `notebooks/recipes/plan_before_you_pay.ipynb` shows what one of 64 ranks would hold, on your laptop. Lesson 11 trains a sharded transformer in Ray Train.

# %% [markdown] tags=["links"]
# ## Official pages
# [Pipeline parallelism](https://docs.pytorch.org/docs/stable/distributed.pipelining.html) and [FSDP2](https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html) in PyTorch. [torchtitan](https://github.com/pytorch/torchtitan) puts all of them together for large models.
