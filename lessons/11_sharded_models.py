# %% [markdown]
# # 11 · Models larger than one process
#
# By the end of this lesson you can
# - say what one process holds during training, and plan how many GPUs a model needs (exercise 11-1);
# - divide a model and its optimizer among processes with FSDP2, and check that it learns (11-2);
# - train a large batch in parts (11-4);
# - save a checkpoint from all ranks, and read it, or a part of it, with a different number of ranks (11-3).
#
# **Time** about 90 minutes · **Needs** 00, 03, 03b
#
# A model with 7 billion parameters takes 28 GB in float32. Your GPU has 80 GB, so it should fit, and yet training ends in the first step: out of memory. A second GPU with DDP doesn't help, because with DDP each process holds everything.
#
# In 2022, a group at Meta trained OPT, a language model with 175 billion parameters, on 992 GPUs with 80 GB each ([Zhang et al.](https://arxiv.org/abs/2205.01068)). The group divided everything among the processes, with tensor parallelism (lesson 12b) and the method of this lesson,
# which is called **FSDP**, fully sharded data parallel. You'll do the same with a model that's 50,000 times smaller.

# %%
from course import datasets
from labkit.local import cluster

lab = cluster.start(cpus_per_node=4)  # three for workers

# %% [markdown]
# ## A small transformer
# The model predicts the next character of a text, and each byte is a **token**. A transformer is a stack of equal blocks, and that's what makes it easy to divide. A step trains on 12 rows of 32 tokens, which depend only on the step's number; each worker takes its part of the rows.

# %%
import torch
from torch import nn

text = datasets.shipped("sentences.tsv").read_text(encoding="utf-8")
tokens = torch.tensor(list(text.encode()))


def rows_of(step, rank=0, workers=1, rows=12):
    draw = torch.Generator().manual_seed(step)
    starts = torch.randint(len(tokens) - 33, (rows,), generator=draw)[rank::workers]
    found = torch.stack([tokens[start : start + 33] for start in starts])
    return found[:, :-1], found[:, 1:]  # y is the token that follows each token of x


class Block(nn.TransformerEncoderLayer):
    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return super().forward(x, mask, is_causal=True)


def make_model(width=256, blocks=4):
    torch.manual_seed(0)
    options = {"dropout": 0.0, "batch_first": True, "norm_first": True, "bias": False}
    layers = [Block(width, 4, 4 * width, **options) for _ in range(blocks)]
    return nn.Sequential(nn.Embedding(256, width), *layers, nn.Linear(width, 256))


# %% [markdown] tags=["instructor"]
# **"Does it write sentences?"** No cell lets it write any. A small model that was trained on a few thousand characters would write badly. The lesson is about memory.

# %% [markdown]
# ## Divide it
# The second version of FSDP in PyTorch, FSDP2, is the function `fully_shard`. You call it for each block, and then for the model:

# %%
from torch.distributed.fsdp import fully_shard


def fsdp(model):
    for block in model[1:-1]:
        fully_shard(block)
    fully_shard(model)  # what is in no block: the embedding and the last layer
    return model, torch.optim.Adam(model.parameters(), lr=0.001)


# %% [markdown]
# The loop is the one you know. `config["wrap"]` prepares the model, and `config["look"]` looks at it at the end. This first look counts the parameters that a rank really has:

# %%
import ray.train


def train_loop(config):
    context = ray.train.get_context()
    model, optimizer = config["wrap"](make_model())
    for step in range(config["steps"]):
        x, y = rows_of(step, context.get_world_rank(), context.get_world_size())
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return config["look"](model, optimizer)


def parameters_here(model, optimizer):
    return sum(parameter.to_local().numel() for parameter in model.parameters())


# %%
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

trainer = TorchTrainer(
    train_loop,
    train_loop_config={"wrap": fsdp, "look": parameters_here, "steps": 3},
    scaling_config=ScalingConfig(num_workers=2),
)
here = trainer.fit().return_value
everything = sum(parameter.numel() for parameter in make_model().parameters())
print(f"{here:,} of {everything:,} parameters are on rank 0")

# %% tags=["claim"]
assert 0.48 < here / everything < 0.55

# %% [markdown] tags=["instructor"]
# **Where is the process group?** Ray Train makes it, and `fully_shard` uses it: all ranks, in one row.

# %% [markdown]
# Each worker has half of the model. `fully_shard` changes the model in place. Each parameter becomes a `DTensor`, a tensor that is divided among the ranks; `to_local()` returns the part of this rank. Before a block computes, forward or backward, an **all-gather** brings its parameters together, and afterwards they are dropped again. So a rank
# holds its own parts, a block or two and, during a step, the layers outside of blocks. After the backward pass of a block, a **reduce-scatter** averages its gradients and leaves each rank with its own part.

# %% [markdown] tags=["instructor"]
# **A DTensor looks whole.** `shape` and `numel()` describe the whole tensor. Only `to_local()` shows what is here, and `.item()` of a norm or a sum is a number of that part.

# %% [markdown]
# One surprise belongs to this. `.item()` of a norm, a sum, a mean or `isnan().any()` of such a parameter is the number of *this rank's part*, without a warning. So call `.full_tensor()` first, on every rank: `parameter.norm().full_tensor().item()`.
# What `clip_grad_norm_` returns is whole, but it's a DTensor as well: `f"{norm:.3f}"` raises a `TypeError`, and `f"{norm.item():.3f}"` works.


# %% tags=["claim"]
def norms(model, optimizer):
    weight = model[-1].weight
    total = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    try:
        shown = f"{total:.3f}"
    except TypeError as error:
        shown = str(error)
    numbers = weight.norm().item(), weight.norm().full_tensor().item(), weight.full_tensor().norm().item()
    return *numbers, total.item(), total.full_tensor().item(), shown


trainer = TorchTrainer(
    train_loop,
    train_loop_config={"wrap": fsdp, "look": norms, "steps": 1},
    scaling_config=ScalingConfig(num_workers=2),
)
of_rank_0, finished, whole, total, whole_total, shown = trainer.fit().return_value
assert of_rank_0 < 0.9 * whole and abs(finished - whole) < 1e-3 * whole
assert total == whole_total and "unsupported format string" in shown

# %% [markdown]
# ## What one process holds
# Why doesn't 28 GB fit into 80? Because training needs four things in memory, and the parameters are only the first:
#
# - the **parameters**;
# - a gradient for each of them;
# - the states of the optimizer: Adam keeps two running means for each parameter;
# - the **activations**: what the forward pass keeps for the backward pass.
#
# The first three can be counted after a step:


# %%
def megabytes(tensors):
    here = [one.to_local() if hasattr(one, "to_local") else one for one in tensors if one is not None]
    return sum(one.nbytes for one in here) / 1e6


def held(model, optimizer):
    states = [value for state in optimizer.state.values() for value in state.values()]
    return {
        "parameters": megabytes(model.parameters()),
        "gradients": megabytes(parameter.grad for parameter in model.parameters()),
        "optimizer": megabytes(states),
    }


# %% [markdown] tags=["prediction"]
# **Predict.** The parameters of this model take 13.1 MB. How many megabytes are parameters, gradients and the states of Adam together, after one step?

# %%
from course.exercises import check, hint, predict, reveal

predict("11-a", ...)  # a number

# %%
model = make_model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
x, y = rows_of(0)
nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
optimizer.step()
counted = held(model, optimizer)
reveal("11-a", sum(counted.values()))
counted

# %% tags=["claim"]
assert round(counted["parameters"], 1) == 13.1
assert 3.9 < sum(counted.values()) / counted["parameters"] < 4.1

# %% [markdown] tags=["instructor"]
# **Three times, or four?** Many count parameters, gradients and one state. Say: "Adam keeps two means for each parameter, so it's 1 + 1 + 2."

# %% [markdown]
# Four times the parameters: 16 bytes for each in float32. In practice it's usually 16 with bfloat16, too (2 + 2 + 12), because the optimizer then keeps its two means and a copy of the parameters in float32. So the model with 7 billion parameters needs 112 GB before the first activation.
#
# For the activations, PyTorch calls a hook with each tensor that it keeps for the backward pass. Tensors that share memory count once, parameters not at all.


# %%
def activations(model, x, y):
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    for parameter in model.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(kept.values()) / 1e6


few, many = activations(model, *rows_of(0, rows=12)), activations(model, *rows_of(0, rows=48))
print(f"12 rows keep {few:.1f} MB, 48 rows keep {many:.1f} MB")

# %% tags=["claim"]
assert 3.9 < many / few < 4.1

# %% [markdown]
# Activations are proportional to the rows of a step. That's why a smaller batch is the first thing to try when memory runs out.
#
# ## Plan before you pay
# An hour on a large GPU machine costs more than lunch, so find out beforehand whether your model fits. Two rules of thumb are enough for a transformer like this one. A block of width w has 12 w² parameters: 4 w² in the attention, 8 w² in the two layers after it. And for each token, a block keeps about 12 vectors of length w. The rest is arithmetic:


# %%
def will_it_fit(width, blocks, tokens, gpus=1, precision=4, gpu_gb=80):
    parameters = 12 * width**2 * blocks
    copy = 4 if precision == 2 else 0  # the optimizer's float32 copy of the parameters
    needs = {
        "parameters": precision * parameters / gpus / 1e9,
        "gradients": precision * parameters / gpus / 1e9,
        "optimizer": (8 + copy) * parameters / gpus / 1e9,
        "activations": precision * 12 * tokens * width * blocks / 1e9,
    }
    verdict = "fits" if sum(needs.values()) < gpu_gb else "does not fit"
    print(f"{sum(needs.values()):.1f} GB on each of {gpus} GPUs: {verdict}")
    return needs


will_it_fit(width=4096, blocks=32, tokens=4096, precision=2)  # 6.4 billion parameters
will_it_fit(width=4096, blocks=32, tokens=4096, precision=2, gpus=4)

# %% [markdown]
# `width` and `blocks` describe the model, `tokens` is the number of tokens that one GPU trains on in a step, and `precision` is the number of bytes of a value: 4 for float32, 2 for bfloat16. `gpus` is how many GPUs share the first three parts. The activations aren't shared, because each GPU has its own rows.
#
# Never trust a formula that you haven't checked. Here it is next to what we measured:

# %%
import pandas

planned = will_it_fit(width=256, blocks=4, tokens=12 * 32)
measured = counted | {"activations": few}
table = pandas.DataFrame({"planned": pandas.Series(planned) * 1000, "measured": measured})
table["error"] = (table["planned"] / table["measured"] - 1).map("{:.0%}".format)
table.round(1)

# %% tags=["claim"]
wide = make_model(width=512)
assert all(abs(table["planned"] / table["measured"] - 1) < 0.06)
assert abs(12 * 512**2 * 4 * 4 / 1e6 / megabytes(wide.parameters()) - 1) < 0.06
assert abs(12 * 384 * 512 * 4 * 4 / 1e6 / activations(wide, *rows_of(0)) - 1) < 0.06

# %% [markdown]
# The plan is about 4 % too low in each row, because the rules count only the blocks, and this model also has an embedding and a last layer. What about large models? We ran the same model in float32 on one H100, and compared the plan with the peak of a step, `torch.cuda.max_memory_allocated()`:
#
# | model | tokens in a step | planned | measured peak |
# |---|---|---|---|
# | 1.2 billion parameters (width 2048, 24 blocks) | 8,192 | 38.7 GB | 36.2 GB |
# | 3.2 billion parameters (width 4096, 16 blocks) | 2,048 | 58.0 GB | 64.5 GB |
#
# In the first run, the plan was 7 % too high, because the activations are gone when the last gradients arrive. In the second, it was 10 % too low, because Adam needs temporary copies while it updates, and they are larger than the activations that have just been freed. So don't plan for more than four fifths of a GPU.
#
# ### Exercise 11-1 ★ · How many GPUs
# Now turn the question round, and write a function that returns the smallest number of GPUs for a model. Training takes 16 bytes for each parameter, divided equally among the GPUs. Each GPU has `gpu_gb` gigabytes, all of which may be used here. It needs `activations_gb`, which is less, for the activations of its own rows; a gigabyte has 10⁹ bytes.
# If you're stuck, `hint("11-1")` shows the first of three hints.


# %%
def fewest_gpus(parameters, gpu_gb, activations_gb): ...  # your answer


# %% tags=["solution"]
import math


def fewest_gpus(parameters, gpu_gb, activations_gb):
    return math.ceil(16 * parameters / 1e9 / (gpu_gb - activations_gb))


# %%
check("11-1", fewest_gpus)

# %% [markdown]
# For OPT's 175 billion parameters, 16 bytes each are 2,800 GB. That alone needs 35 GPUs with 80 GB. The group used 992 to be finished in two months, and because activations need memory, too.
#
# ## Three ways to share
# How do you divide what a process holds? There are three answers, and they differ in what each rank holds.
#
# - **DDP** repeats everything on each rank.
# - **ZeRO** (zero redundancy optimizer), here its stage 1, divides the optimizer's states. Each rank updates one part of the parameters and sends it to the others.
# - FSDP divides parameters, gradients and states.
#
# ![What each of two ranks holds: with DDP everything; with ZeRO everything but half of the states; with FSDP2 half of everything](images/sharding.svg)
#
# The other two are a few lines as well:

# %%
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def ddp(model):
    model = DistributedDataParallel(model)
    return model, torch.optim.Adam(model.parameters(), lr=0.001)


def zero(model):
    model = DistributedDataParallel(model)
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.001)


# %% [markdown]
# This look counts what the rank holds, and puts the whole weights together, so that we can compare them.

# %%
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict


def whole(model):
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=options)
    return {name: tensor.numpy() for name, tensor in weights.items()}


def held_and_whole(model, optimizer):
    optimizer = getattr(optimizer, "optim", optimizer)  # ZeRO's has Adam inside
    return held(model, optimizer), whole(model)


# %% [markdown] tags=["prediction"]
# **Predict.** With DDP, a rank holds 52 MB of parameters, gradients and states. How many megabytes does each of two ranks hold with ZeRO?

# %%
predict("11-b", ...)  # a number

# %%
from labkit.train import TrainPanel

ways = {}
for wrap in (ddp, zero, fsdp):
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={"wrap": wrap, "look": held_and_whole, "steps": 3},
        scaling_config=ScalingConfig(num_workers=2),
    )
    with TrainPanel(f"11-{wrap.__name__}").watch(trainer):
        ways[wrap.__name__] = trainer.fit().return_value

# %%
table = pandas.DataFrame({name: found for name, (found, _) in ways.items()}).T
table["together"] = table.sum(axis=1)
reveal("11-b", table["together"]["zero"])
table.round(1)

# %% tags=["claim"]
share = table["together"] / table["together"]["ddp"]
print(share.to_dict())
assert 0.7 < share["zero"] < 0.8 and 0.48 < share["fsdp"] < 0.55

# %% [markdown] tags=["instructor"]
# **"So the memory is a half."** What is *held* is a half. The peak also has the activations, which FSDP2 doesn't divide, and the block that is gathered at the moment.

# %% [markdown]
# ZeRO saves half of the states, a quarter of the total. FSDP2 saves half of all three, as `will_it_fit` plans with `gpus=2`.
#
# ## Is it the same model?
# Dividing a model must not change what it learns. Here is the largest difference of a weight from the one that DDP trained:


# %%
def difference(some, others):
    return max(float(abs(some[name] - others[name]).max()) for name in some)


{name: difference(weights, ways["ddp"][1]) for name, (_, weights) in ways.items()}

# %% tags=["claim"]
assert difference(ways["zero"][1], ways["ddp"][1]) < 1e-5
assert difference(ways["fsdp"][1], ways["ddp"][1]) < 1e-5

# %% [markdown]
# It's the same up to rounding. What you pay is communication: a rank of FSDP2 sends about 1.5 times as much as a rank of DDP, because the parameters are gathered twice in each step. So use DDP as long as the model fits.

# %% [markdown] tags=["instructor"]
# **"FSDP2 is slower here."** Yes: it sends more, in more messages, and two cores have no other work to hide that behind. It's for models that otherwise don't run at all.

# %% [markdown]
# ### Exercise 11-2 ★★ · A model that doesn't learn
# This loop runs without an error, and its loss doesn't fall. It has two mistakes: one keeps the model from learning, the other makes each step gather the whole model at once. `config["model"]()` returns a small model with `model.blocks` and `model.head`. The check runs the loop on two workers.


# %%
def train_sharded(config):  # your answer: fix it
    model = config["model"]()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    fully_shard(model)
    for _ in range(config["steps"]):
        loss = model(torch.rand(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return config["inspect"](model)


# %% tags=["solution"]
def train_sharded(config):
    model = config["model"]()
    for block in model.blocks:
        fully_shard(block)  # so that only one of them is whole at a time
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)  # of the new parameters
    for _ in range(config["steps"]):
        loss = model(torch.rand(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return config["inspect"](model)


# %%
check("11-2", train_sharded)

# %% [markdown]
# ## A batch in parts
# FSDP2 doesn't divide the activations, because each rank has its own rows. If they are the problem, let the batch go through the model in parts, one after the other, so that only one part's activations are in memory. `backward()` *adds* to the gradients, and one `optimizer.step()` at the end uses the sum, which is called **gradient accumulation**.
#
# A sharded model would average its gradients over the ranks in every `backward()`. One exchange is enough: `model.set_requires_gradient_sync(False)` postpones it, but until then each rank holds whole gradients, and before the last part you switch it on again with `True`.
#
# ### Exercise 11-4 ★★ · A batch in parts
# Write the loop of one update. `parts` is a list of pairs `(x, y)`, all with equally many rows, and `loss_of(model, x, y)` is the mean loss of the rows it gets. The model should be updated once, exactly as if all rows were one batch, and its gradients should be exchanged in the last `backward()` only.


# %%
def accumulate(model, optimizer, loss_of, parts): ...  # your answer


# %% tags=["solution"]
def accumulate(model, optimizer, loss_of, parts):
    optimizer.zero_grad()
    for number, (x, y) in enumerate(parts):
        model.set_requires_gradient_sync(number == len(parts) - 1)
        (loss_of(model, x, y) / len(parts)).backward()
    optimizer.step()


# %%
check("11-4", accumulate)

# %% [markdown]
# ## A checkpoint in parts
# In lesson 03b, rank 0 saved the model. Here rank 0 has only its part, and all parts together may not fit into it. With `torch.distributed.checkpoint`, **DCP** for short, every rank writes its own part, and rank 0 adds a table of contents. Then *every* rank reports its folder, and Ray merges them into one checkpoint.

# %%
import tempfile

import torch.distributed.checkpoint as dcp
from ray.train import Checkpoint, RunConfig
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def save(model, optimizer):
    weights, states = get_state_dict(model, optimizer)
    with tempfile.TemporaryDirectory() as folder:
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=folder)
        ray.train.report({}, checkpoint=Checkpoint.from_directory(folder))
    return whole(model)


trainer = TorchTrainer(
    train_loop,
    train_loop_config={"wrap": fsdp, "look": save, "steps": 5},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=tempfile.mkdtemp()),  # on a cluster: the object store, as in lesson 03b
)
with TrainPanel("11-saved").watch(trainer):
    saved = trainer.fit()

# %%
import os

with saved.checkpoint.as_directory() as folder:
    sizes = {entry.name: f"{entry.stat().st_size / 1e6:.1f} MB" for entry in os.scandir(folder)}
sizes

# %% [markdown] tags=["instructor"]
# **Who collects the checkpoint?** No rank does. Each one reports its own folder, and Ray puts all files into one folder of the store.

# %% [markdown]
# Saving and loading are collective operations: all ranks have to take part. Under `if rank == 0:`, they hang. Save after a first step: before it, `get_state_dict` makes one with gradients of zero, and Adam counts it. Tensors that aren't sharded are taken for equal on all ranks, and each is saved by one of them. The running mean and variance of a `BatchNorm` aren't equal, so a checkpoint may have the mean of one rank and the variance of another: average them first, or pass `planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True)`.
#
# ## Read it with three ranks
# Tomorrow you may get three machines, or one. `dcp.load` works the other way round from `torch.load`: you pass a dict with tensors, here the model's own, and it fills them. Each rank reads what it needs, from whichever files contain it, so the number of ranks may change, which is called **resharding**.


# %%
def load(checkpoint, model, optimizer):
    weights, states = get_state_dict(model, optimizer)
    with checkpoint.as_directory() as folder:
        dcp.load({"model": weights, "optimizer": states}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)


def reopen(config):
    model, optimizer = fsdp(make_model())
    load(config["checkpoint"], model, optimizer)
    rows = [None] * ray.train.get_context().get_world_size()
    torch.distributed.all_gather_object(rows, len(model[0].weight.to_local()))
    return rows, whole(model)


# %% [markdown] tags=["instructor"]
# **"What does `dcp.load` return?"** Nothing. It fills the tensors in the dict that you pass. Someone who writes `state = dcp.load(…)`, as with `torch.load`, gets `None`.

# %% [markdown] tags=["instructor"]
# **"Why does my `except Exception` not catch its error?"** A missing key or another shape ends it with `CheckpointException`, which is a `BaseException` as `KeyboardInterrupt` is (torch 2.13). Name it in the `except`.

# %% [markdown] tags=["prediction"]
# **Predict.** The embedding has 256 rows. Saved by two ranks, each had 128 of them. If three ranks load it, the first two get equally many rows, rounded up. How many does the last one get?

# %%
predict("11-c", ...)  # a number

# %%
three = TorchTrainer(
    reopen,
    train_loop_config={"checkpoint": saved.checkpoint},
    scaling_config=ScalingConfig(num_workers=3),
)
rows, by_three = three.fit().return_value
reveal("11-c", rows[-1])
print(rows, difference(by_three, saved.return_value))

# %% tags=["claim"]
assert rows == [86, 86, 84]
assert difference(by_three, saved.return_value) == 0

# %% [markdown]
# Not a single bit differs. And without any process group, as in this notebook, the same function restores an ordinary model.

# %%
opened = make_model()
adam = torch.optim.Adam(opened.parameters(), lr=0.001)
load(saved.checkpoint, opened, adam)
difference(whole(opened), saved.return_value)

# %% tags=["claim"]
assert difference(whole(opened), saved.return_value) == 0
assert {int(state["step"]) for state in adam.state.values()} == {5}

# %% [markdown]
# ### Exercise 11-3 ★★★ · A body without its head
# A classifier should start with the body of a saved model, but its `head` has a different number of outputs, so `load` fails. Write `load_body(model, folder)`, which reads everything but the head from the checkpoint in `folder`, which has the weights below the key `"model"`, and leaves the head of `model` alone. The names of the head's weights begin with
# `head.`. The check calls your function on two workers, with a model that's sharded.


# %%
def load_body(model, folder): ...  # your answer


# %% [markdown]
# If you'd rather fill in blanks, paste this version over it:
#
# ```python
# def load_body(model, folder):
#     weights = get_model_state_dict(...)
#     body = {name: value for name, value in weights.items() if ...}
#     dcp.load(..., checkpoint_id=folder)
# ```


# %% tags=["solution"]
def load_body(model, folder):
    weights = get_model_state_dict(model)
    body = {name: value for name, value in weights.items() if not name.startswith("head.")}
    dcp.load({"model": body}, checkpoint_id=folder)  # into the model's own tensors


# %%
check("11-3", load_body)

# %% [markdown]
# ## Key points
# - Training with Adam takes 16 bytes for each parameter. The activations, which grow with the batch, come on top.
# - Plan with 12 w² parameters for a block and 12 vectors for each of its tokens, check the plan once, and leave a fifth of the memory free.
# - DDP, ZeRO and FSDP2 train the same model. They differ in what a rank holds and in what it sends.
# - Call `fully_shard` for each block, then for the model, and create the optimizer last.
# - With DCP every rank saves its own part, and any number of ranks can load it.
#
# **A question to take along.** A model has one billion parameters and is trained with Adam. How many gigabytes do weights, gradients and optimizer need on each of four ranks with DDP, and how many with FSDP2?
#
# <details><summary>Compare your answer</summary>16 bytes for each parameter: 16 GB on each rank with DDP, and 4 GB with FSDP2, plus the layer that is gathered at the moment. The activations come on top in both.</details>
#
# | what doesn't fit into memory | use |
# |---|---|
# | the activations | a smaller batch, gradient accumulation, activation checkpointing |
# | the optimizer's states | ZeRO, or FSDP2 straight away |
# | parameters, gradients and states | FSDP2 |
#
# | older tutorials | today |
# |---|---|
# | `FullyShardedDataParallel(model)` | `fully_shard` for each block, then for the model |
#
# Two recipes go on from here: `notebooks/recipes/compute_activations_twice.ipynb` (activation checkpointing) trades time for memory, and `notebooks/recipes/fine_tune_with_lora.ipynb` trains a few weights of a large model.
#
# Where to go next: 12. There you build all-reduce, gradient buckets and ZeRO by hand, from send and receive.

# %% [markdown] tags=["plain"]
# ## Without the lab
# A model that is sharded and saved by two ranks and loaded by three, in plain Ray and PyTorch:

# %% [markdown] tags=["links"]
# ## Official pages

# %% [markdown]
# ## Stop

# %%
lab.stop()
