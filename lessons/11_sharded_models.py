# %% [markdown]
# # 11 · Models larger than one process
#
# By the end of this lesson you can
# - say what one process holds during training, and how many GPUs a model needs (exercise 11-1);
# - divide a model and its optimizer among processes with FSDP2, and check that it learns (11-2);
# - save a checkpoint from all ranks, and read it, or a part of it, with another number of ranks (11-3);
# - train a large batch in parts, and fine-tune a model with little memory (extra, 11-4).
#
# **Time** … · **Needs** 00, 01, 03

# %% [markdown]
# A model with 7 billion parameters takes 28 GB in float32. Your GPU has 80 GB, so it should fit, and yet its training ends in the first step: out of memory. A second GPU with DDP doesn't help, because
# each holds everything. So divide what a process holds.

# %%
from labkit import cluster, datasets, storage
from labkit.exercises import check, hint, predict, reveal
from labkit.settings import Settings

settings = Settings.from_env()
lab = cluster.start(cpus_per_node=4)  # three for workers
store = storage.start()

# %% [markdown]
# ## A small transformer
# The model predicts the next character of a text. The text is the sentences of lesson 02, with the label 0; those of lesson 03, with the label 1, are for later. Each byte is a **token**.

# %%
import torch

lines = [line.split("\t") for line in datasets.shipped("sentences.tsv").read_text().splitlines()]
texts = ["\n".join(text for label, text in lines if label == wanted) for wanted in "01"]
tokens, others = (torch.tensor(list(text.encode())) for text in texts)
print(len(tokens), "tokens:", texts[0][:70])

# %% [markdown] tags=["instructor"]
# **"Does it write sentences?"** No cell lets it write any. A small model that was trained on nine thousand characters would write badly. The lesson
# is about memory.

# %% [markdown]
# A step trains on 12 rows of 32 tokens, which follow from the step's number alone. Each worker takes its part: 12 can be divided by one, two or three. `y` is the token that follows each token of `x`.


# %%
def rows_of(step, rank=0, workers=1, rows=12, tokens=tokens):
    draw = torch.Generator().manual_seed(step)
    starts = torch.randint(len(tokens) - 33, (rows,), generator=draw)[rank::workers]
    found = torch.stack([tokens[start : start + 33] for start in starts])
    return found[:, :-1], found[:, 1:]


# %% [markdown]
# A transformer is a stack of equal blocks. The model will be divided block by block.

# %%
from torch import nn


class Transformer(nn.Module):
    def __init__(self, width=256, blocks=4, length=32):
        super().__init__()
        options = {"dropout": 0.0, "batch_first": True, "norm_first": True, "bias": False}
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            [nn.TransformerEncoderLayer(width, 4, 4 * width, **options) for _ in range(blocks)]
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        x = self.tokens(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        return self.head(self.norm(x).flatten(0, 1))  # [rows · tokens, 256]


# %% [markdown]
# ## What one process holds
# Training needs four things in memory:
# - the **parameters**;
# - a gradient for each of them;
# - the states of the optimizer: Adam keeps two running means for each parameter;
# - the **activations**: what the forward pass keeps for the backward pass.
#
# All but the activations can be counted between two steps. A `DTensor` is a tensor that is divided among processes; `to_local()` returns the part of this process.

# %%
from torch.distributed.tensor import DTensor


def megabytes(tensors):
    here = [one.to_local() if isinstance(one, DTensor) else one for one in tensors if one is not None]
    return sum(one.nbytes for one in here) / 1e6


def held(model, optimizer):
    optimizer = getattr(optimizer, "optim", optimizer)  # one that wraps another has it inside
    return {
        "parameters": megabytes(model.parameters()),
        "gradients": megabytes(parameter.grad for parameter in model.parameters()),
        "optimizer": megabytes(value for one in optimizer.state.values() for value in one.values()),
    }


# %% [markdown]
# For the activations, PyTorch calls a hook with each tensor that it saves. Tensors that share memory count once, parameters not at all.


# %%
def activations(model, x, y):
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = nn.functional.cross_entropy(model(x), y.flatten())
    for parameter in model.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    loss.backward()
    return {"activations": sum(kept.values()) / 1e6}


# %% [markdown] tags=["prediction"]
# **Predict.** The parameters of this model take 13.2 MB. How many megabytes are parameters, gradients and the states of Adam together, after one step?

# %%
predict("11-a", ...)  # a number

# %%
model = Transformer()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
activations(model, *rows_of(0))  # forward and backward
optimizer.step()
reveal("11-a", sum(held(model, optimizer).values()))

# %% [markdown] tags=["instructor"]
# **Three times, or four?** Many count parameters, gradients and one state. Say: "Adam keeps two means for each parameter, so it's 1 + 1 + 2."

# %%
import pandas
from labkit.display import figure_style
from matplotlib import pyplot


def bars(table):
    with pyplot.rc_context(figure_style()):
        axes = table.iloc[::-1].plot.barh(stacked=True, figsize=(8, 2.2), xlabel="MB in one process")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    pyplot.close(axes.figure)
    return axes.figure


alone = {rows: held(model, optimizer) | activations(model, *rows_of(0, rows=rows)) for rows in (12, 48)}
alone = pandas.DataFrame(alone).T.rename_axis("rows")
bars(alone)

# %% tags=["claim"]
fixed = alone[["parameters", "gradients", "optimizer"]].sum(axis=1)
assert 3.9 < fixed.iloc[0] / alone["parameters"].iloc[0] < 4.1
assert 3.5 < alone["activations"].iloc[1] / alone["activations"].iloc[0] < 4.5

# %% [markdown]
# Without the activations, training takes four times the memory of the parameters: 16 bytes for each in float32. With bfloat16 it's usually 16, too (2 + 2 + 12): the optimizer keeps two means and a float32 copy of the parameters.
# The activations are proportional to the rows, so a smaller batch is the first thing to try.

# %% [markdown]
# ### Exercise 11-1 · How many GPUs
# Write a function that returns the smallest number of GPUs for a model, if all but the activations are divided equally among them. They have `gpu_gb` gigabytes each, training takes 16 bytes for each
# parameter, and every GPU needs `activations_gb`, which is less, for the activations of its own rows. A gigabyte has 10⁹ bytes. If you are stuck: `hint("11-1")`.


# %%
def fewest_gpus(parameters, gpu_gb, activations_gb): ...  # your answer


# %% tags=["solution"]
import math


def fewest_gpus(parameters, gpu_gb, activations_gb):
    return math.ceil(16 * parameters / 1e9 / (gpu_gb - activations_gb))


# %%
check("11-1", fewest_gpus)

# %% [markdown]
# ## Three ways to share
# **DDP** repeats everything on each rank. With **ZeRO** (zero redundancy optimizer), each rank updates one part of the parameters and sends it to the others, so it needs the states of that part only. **FSDP** (fully sharded data parallel)
# divides parameters, gradients and states. (These are ZeRO's stages 1 and 3.) Its second version in PyTorch, FSDP2, is the function `fully_shard`.
#
# ![What each of two ranks holds: with DDP everything; with ZeRO everything but half of the states; with FSDP2 half of everything](images/sharding.svg)

# %%
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

Adam = torch.optim.Adam


def ddp(model, mesh):
    model = DistributedDataParallel(model)
    return model, Adam(model.parameters(), lr=0.001)


def zero(model, mesh):
    model = DistributedDataParallel(model)
    return model, ZeroRedundancyOptimizer(model.parameters(), Adam, lr=0.001)


# %% [markdown]
# `fully_shard` changes the model in place, and turns its parameters into DTensors. The **device mesh** names the ranks. Before a block computes, forward or backward, an **all-gather** brings its parameters together, and
# afterwards they are dropped again. After its backward pass, a **reduce-scatter** averages the gradients and leaves each rank with its own part.

# %%
from torch.distributed.fsdp import fully_shard


def fsdp(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # what is in no block: the embeddings and the head
    return model, Adam(model.parameters(), lr=0.001)


# %% [markdown] tags=["instructor"]
# **A DTensor looks whole.** `shape` and `numel()` are those of the whole tensor. Only `to_local()` shows what is here.

# %% [markdown]
# `torch.profiler` records each allocation, so it knows a step's peak.

# %%
import json
import os
import tempfile
from pathlib import Path


def peak(profiler):
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(f"{folder}/trace.json").read_text())["traceEvents"]
    return max(event["args"]["Total Allocated"] for event in events if event["name"] == "[memory]") / 1e6


# %% [markdown]
# `whole` puts all weights together on rank 0. A training function can't return tensors, so they become arrays.

# %%
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict


def whole(model):
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return {name: one.numpy() for name, one in get_model_state_dict(model, options=options).items()}


# %% [markdown]
# One loop serves all three: `config["wrap"]` is one of the functions. DDP copies the weights of rank 0, FSDP2 doesn't: without the seed, each rank would keep a part of a model of its own.

# %% tags=["long"]
import ray.train
import torch.distributed as dist
from ray.train.torch import get_device
from torch.distributed.device_mesh import init_device_mesh


def train_loop(config):
    context, device = ray.train.get_context(), get_device()
    rank, workers = context.get_world_rank(), context.get_world_size()
    profiler = torch.profiler.profile(profile_memory=True)
    if config["profile"]:
        profiler.start()
    torch.manual_seed(0)
    mesh = init_device_mesh(device.type, (workers,))
    model, optimizer = config["wrap"](Transformer().to(device), mesh)
    rows = (rows_of(step, rank, workers) for step in range(config["steps"]))
    for x, y in config["panel"].steps(rows, total=config["steps"]):
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = held(model, optimizer)
    if config["profile"]:
        profiler.stop()
        found["peak"] = peak(profiler)
    if config["save"]:
        config["save"](model, optimizer, config["steps"])
    return found, whole(model), loss.item()


# %% [markdown] tags=["instructor"]
# **Where is the process group?** Ray Train makes it. `init_device_mesh` gives its ranks a shape; here it's one row.

# %%
from labkit.train import TrainPanel
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train(name, workers, wrap, steps=3, profile=True, save=None):
    panel = TrainPanel(f"11-{name}")
    where = {"storage_path": store.storage_path("runs"), "storage_filesystem": store.filesystem}
    config = {"panel": panel, "wrap": wrap, "steps": steps, "profile": profile, "save": save}
    scaling = ScalingConfig(num_workers=workers, use_gpu=settings.use_gpu)
    run_config = RunConfig(name=panel.run_id, callbacks=[panel.callback()], **where)
    both = {"scaling_config": scaling, "run_config": run_config}
    trainer = TorchTrainer(train_loop, train_loop_config=config, **both)
    with panel.watch(trainer):
        return trainer.fit()


# %% [markdown] tags=["prediction"]
# **Predict.** DDP holds 52.6 MB of parameters, gradients and states on each of two ranks. How many megabytes does a rank hold with ZeRO?

# %%
predict("11-b", ...)  # a number

# %%
runs = {"DDP": train("ddp", 2, ddp), "ZeRO": train("zero", 2, zero), "FSDP2": train("fsdp", 2, fsdp)}
runs["FSDP2, 3 ranks"] = train("fsdp-3", 3, fsdp)
table = pandas.DataFrame({name: run.return_value[0] for name, run in runs.items()}).T
table["held"] = table[["parameters", "gradients", "optimizer"]].sum(axis=1)
reveal("11-b", table["held"]["ZeRO"])
table.round(1)

# %%
bars(table[["parameters", "gradients", "optimizer"]])

# %% [markdown] tags=["instructor"]
# **"So the memory is a half."** What is *held* is a half. The peak also has the activations, which FSDP2 doesn't divide, and the block that is
# gathered at the moment.

# %% tags=["claim"]
share, top = table["held"] / table["held"]["DDP"], table["peak"] / table["peak"]["DDP"]
print("held", share.to_dict(), "peak", top.to_dict())
assert 0.7 < share["ZeRO"] < 0.8 and share["FSDP2"] <= 0.65 and share["FSDP2, 3 ranks"] < 0.4
assert top["ZeRO"] < 0.95 and top["FSDP2"] < 0.9
assert (table["peak"] > table["held"]).all()

# %% [markdown]
# FSDP2 holds half on two ranks, and a third on three. The peaks also contain the activations of a rank's rows, and what `held` doesn't see: with DDP and ZeRO a second copy of the gradients, in the buckets
# in which they are averaged, and with FSDP2 the gathered blocks. FSDP2's peaks are several MB too high, because the profiler misses what its communication threads free.
#
# RSS, the operating system's number, also contains libraries and memory already freed. So count bytes; on a GPU, use `torch.cuda.max_memory_allocated()`.
#
# Is it the same model?

# %%
weights = {name: run.return_value[1] for name, run in runs.items()}


def difference(some, others):
    return max(float(abs(some[name] - others[name]).max()) for name in some)


{name: difference(one, weights["DDP"]) for name, one in weights.items()}

# %% [markdown] tags=["instructor"]
# **"FSDP2 is slower here."** Yes: it sends more, in more messages, and two cores have no other work to hide that behind. It's for models that
# otherwise don't run at all.

# %% tags=["claim"]
assert difference(weights["ZeRO"], weights["DDP"]) < 1e-5
assert difference(weights["FSDP2"], weights["DDP"]) < 1e-5
assert difference(weights["FSDP2, 3 ranks"], weights["DDP"]) < 1e-3

# %% [markdown]
# It is, up to rounding: three ranks add gradients in another order than two. The price is communication: a rank of FSDP2 sends about 1.5 times as much as one of DDP, in more and smaller messages.

# %% [markdown]
# ### Exercise 11-2 · A model that doesn't learn
# This loop runs without an error, but two things are wrong. The weights don't change, and during a step each rank has all parameters of the model at once. Fix both. The model has its layers in `model.blocks`
# and `model.head`. The check runs the loop on two workers.


# %%
def train_sharded(config):  # your answer: fix it
    mesh = init_device_mesh("cpu", (ray.train.get_context().get_world_size(),))
    model = config["model"]()
    optimizer = Adam(model.parameters(), lr=0.01)
    fully_shard(model, mesh=mesh)
    for _ in range(config["steps"]):
        loss = model(torch.rand(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return config["inspect"](model)


# %% tags=["solution"]
def train_sharded(config):
    mesh = init_device_mesh("cpu", (ray.train.get_context().get_world_size(),))
    model = config["model"]()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)  # so that only one of them is whole at a time
    fully_shard(model, mesh=mesh)
    optimizer = Adam(model.parameters(), lr=0.01)  # of the new parameters
    for _ in range(config["steps"]):
        loss = model(torch.rand(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return config["inspect"](model)


# %%
check("11-2", train_sharded)

# %% [markdown]
# ## A checkpoint in parts
# In lesson 03, rank 0 saved the model. Here it has only its part, and all parts together may not fit. With `torch.distributed.checkpoint` (**DCP**), every rank writes its own
# part, and rank 0 adds a table of contents. Then every rank reports its folder, and Ray merges them into one checkpoint in the store.

# %%
import torch.distributed.checkpoint as dcp
from ray.train import Checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def save(model, optimizer, step):
    weights, states = get_state_dict(model, optimizer)
    with tempfile.TemporaryDirectory() as folder:
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=folder)
        ray.train.report({"step": step}, checkpoint=Checkpoint.from_directory(folder))


# %% [markdown] tags=["instructor"]
# **Who collects the checkpoint?** No rank does. Each one reports its own folder, and Ray puts all files into one folder of the store.

# %% [markdown]
# Two ranks train longer and save:

# %%
saved = train("saved", 2, fsdp, steps=20 if settings.small else 300, profile=False, save=save)
with saved.checkpoint.as_directory() as folder:
    files = {entry.name: f"{entry.stat().st_size / 1e6:.1f} MB" for entry in os.scandir(folder)}
files

# %% [markdown]
# `dcp.load` works the other way round from `torch.load`: you pass a dict with tensors, here the model's own, and it fills those, whatever else the checkpoint has. Each rank reads its own part, from whichever files contain it, so the number of ranks may differ. This is **resharding**. `set_state_dict` then gives the tensors to model and optimizer.


# %%
def load(checkpoint, model, optimizer):
    weights, states = get_state_dict(model, optimizer)
    with checkpoint.as_directory() as folder:
        dcp.load({"model": weights, "optimizer": states}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)


# %% [markdown] tags=["instructor"]
# **"What does `dcp.load` return?"** Nothing. It fills the tensors in the dict that you pass. Someone who writes `state = dcp.load(…)`, as with
# `torch.load`, gets `None`.


# %%
def reopen(config):
    workers, device = ray.train.get_context().get_world_size(), get_device()
    mesh = init_device_mesh(device.type, (workers,))
    model, optimizer = fsdp(Transformer().to(device), mesh)
    load(config["checkpoint"], model, optimizer)
    rows = [None] * workers
    dist.all_gather_object(rows, len(model.tokens.weight.to_local()))
    return rows, whole(model)


# %% [markdown] tags=["prediction"]
# **Predict.** The embedding of the tokens has 256 rows. Saved by two ranks, each had 128 of them. Three ranks load it, divided as by `torch.chunk`. How many rows does the last one get?

# %%
predict("11-c", ...)  # a number

# %%
scaling, found = ScalingConfig(num_workers=3, use_gpu=settings.use_gpu), {"checkpoint": saved.checkpoint}
three = TorchTrainer(reopen, train_loop_config=found, scaling_config=scaling).fit()
on_ranks, by_three = three.return_value
reveal("11-c", on_ranks[-1])
on_ranks

# %% [markdown]
# The first ranks get 256 / 3 rows, rounded up, and the last one the rest.
#
# Without a process group, as in this notebook, `load` restores an ordinary model. DCP warns that it assumes a single process, which is right.

# %%
opened = Transformer()
adam = Adam(opened.parameters(), lr=0.001)
load(saved.checkpoint, opened, adam)
by_one = whole(opened)
{"by three": difference(by_three, saved.return_value[1]), "by one": difference(by_one, saved.return_value[1])}

# %% tags=["claim"]
assert on_ranks == [86, 86, 84]
assert all(
    (one == by_three[name]).all() and (one == by_one[name]).all()
    for name, one in saved.return_value[1].items()
)
assert {int(one["step"]) for one in adam.state.values()} == {20}

# %% [markdown]
# No bit differs. The states of Adam were loaded, too, so three ranks can continue a run that was saved by two. Saving and loading need all ranks: under `if rank == 0:`, they hang.

# %% [markdown]
# ### Exercise 11-3 · A body without its head
# A classifier should start with the body of a saved model, but its `head` has another number of outputs, so `load` fails. Write `load_body(model, folder)`: it reads everything but the head from the checkpoint in `folder`,
# which has the weights below the key `"model"`, and leaves the head of `model` alone. The check calls it on two workers, with a model that is sharded.


# %%
def load_body(model, folder): ...  # your answer


# %% tags=["solution"]
def load_body(model, folder):
    weights = get_model_state_dict(model)
    body = {name: value for name, value in weights.items() if not name.startswith("head.")}
    dcp.load({"model": body}, checkpoint_id=folder)  # into the model's own tensors


# %%
check("11-3", load_body)

# %% [markdown] tags=["extra"]
# ## Extra: fine-tuning with LoRA
# The trained model should now learn the sentences of lesson 03. **LoRA** (low-rank adaptation) leaves the weights of a layer alone, and adds the product of two small matrices, `up` and `down`. Only these are trained, so gradients and the
# optimizer's states are needed for them alone.


# %%
import copy


class LoRA(nn.Module):
    def __init__(self, base, rank=4, scale=2.0):
        super().__init__()
        self.base, self.scale = base, scale
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))  # so it starts as the base

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.down.T @ self.up.T)


def with_lora(model):
    model.requires_grad_(False)
    for block in model.blocks:
        block.linear1, block.linear2 = LoRA(block.linear1), LoRA(block.linear2)
    return model


# %% [markdown] tags=["prediction"]
# **Predict.** In each of the 4 blocks, `linear1` and `linear2` are 256 × 1024; the model has 3.3 million parameters. What percentage will be trained?

# %%
predict("11-d", ...)  # a number

# %%
tuned = with_lora(copy.deepcopy(opened))  # so that this cell can be run again
trained = [parameter for parameter in tuned.parameters() if parameter.requires_grad]
adam_of_lora = Adam(trained, lr=0.003)
reveal("11-d", 100 * megabytes(trained) / megabytes(tuned.parameters()))


# %%
def loss_on_others():
    x, y = rows_of(-1, rows=100, tokens=others)
    with torch.no_grad():
        return nn.functional.cross_entropy(tuned(x), y.flatten()).item()


before = loss_on_others()
for step in range(20 if settings.small else 200):
    x, y = rows_of(step, tokens=others)
    adam_of_lora.zero_grad()
    nn.functional.cross_entropy(tuned(x), y.flatten()).backward()
    adam_of_lora.step()
print(f"loss {before:.3f}, then {loss_on_others():.3f}")
held(tuned, adam_of_lora)

# %% tags=["claim"]
assert loss_on_others() < before
assert sum(held(tuned, adam_of_lora).values()) < 1.2 * megabytes(tuned.parameters())
assert all(
    (tuned.blocks[0].linear1.base.weight.detach().numpy() == by_one["blocks.0.linear1.weight"]).flatten()
)

# %% [markdown]
# Gradients and states have nearly disappeared: what remains is the model itself, and the activations. A checkpoint of the fine-tuning needs `trained` only. The loss was measured on the text of the training, so it says that
# LoRA learns, not how well it generalizes.

# %% [markdown] tags=["extra"]
# ## Extra: activations that are computed twice
# With **activation checkpointing**, a block keeps only its input. In the backward pass it computes the rest once more. You pay with time for memory.

# %%
from torch.utils.checkpoint import checkpoint


class Again(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, *inputs, **options):
        return checkpoint(self.block, *inputs, use_reentrant=False, **options)


kept = activations(Transformer(), *rows_of(0))["activations"]
frugal = Transformer()
frugal.blocks = nn.ModuleList([Again(block) for block in frugal.blocks])
less = activations(frugal, *rows_of(0))["activations"]
print(f"{kept:.1f} MB, with checkpointing {less:.1f} MB")

# %% tags=["claim"]
assert less < 0.5 * kept

# %% [markdown]
# During the backward pass, the activations of one block come back for a moment. Each block's forward pass runs twice, so a step takes about a third longer if the backward pass takes twice as long as the forward pass.

# %% [markdown] tags=["extra"]
# ## Extra: a batch in parts
# **Gradient accumulation** divides a batch into parts that go through the model one after the other, so only one part's activations are needed at a time. `backward()` adds to the gradients, and one `optimizer.step()` uses their sum. A sharded model would average
# its gradients over the ranks in every `backward()`. `model.set_requires_gradient_sync(False)` postpones that; the last part needs `True`. Until then each rank keeps whole gradients: fewer messages, and more memory. (DDP has `model.no_sync()`.)

# %% [markdown]
# ### Exercise 11-4 · A batch in parts
# Write the loop. `parts` is a list of pairs `(x, y)`, all with the same number of rows, and `loss_of(model, x, y)` is the mean loss of the rows it gets. The model should be updated once, and exactly as if all rows were one batch. It should average the gradients
# in the last `backward()` only.


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

# %% [markdown] tags=["extra"]
# ## Extra: a model that is never whole
# So far, every rank built the whole model before it was divided. One that doesn't fit is built on the device `meta`, where tensors have a shape and no memory. `to_empty` then gives memory to the rank's own parts, and a checkpoint fills them.


# %%
def reopen_in_parts(config):
    workers, device = ray.train.get_context().get_world_size(), get_device()
    with torch.device("meta"):
        model = Transformer()
    model, optimizer = fsdp(model, init_device_mesh(device.type, (workers,)))
    model.to_empty(device=device)
    load(config["checkpoint"], model, optimizer)
    return whole(model)


# %%
scaling = ScalingConfig(num_workers=2, use_gpu=settings.use_gpu)
in_parts = TorchTrainer(reopen_in_parts, train_loop_config=found, scaling_config=scaling).fit()
difference(in_parts.return_value, saved.return_value[1])

# %% tags=["claim"]
assert difference(in_parts.return_value, saved.return_value[1]) == 0

# %% [markdown]
# To start without a checkpoint, each layer needs to draw its weights after `to_empty`, for example by its `reset_parameters()`.

# %% [markdown] tags=["extra"]
# ## Extra: fewer bytes to send
# On GPUs the blocks usually compute in bfloat16, which halves what an all-gather sends and what a gathered block needs. The parts that a rank keeps, and the states of the optimizer, stay in float32. With `LABKIT_GPU=1` the cells of this lesson use NCCL
# and one GPU for each rank, so up to three. We have run them on CPUs only. Gloo, which sends between CPUs, supports bfloat16, too. But a CPU without instructions for it
# computes slowly: three steps of one process took 15 times as long as in float32.

# %%
from torch.distributed.fsdp import MixedPrecisionPolicy


def fsdp_bf16(model, mesh):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model, Adam(model.parameters(), lr=0.001)


# %%
runs["bfloat16"] = train("bf16", 2, fsdp_bf16, profile=False)
{name: round(runs[name].return_value[2], 2) for name in ("FSDP2", "bfloat16")}

# %% tags=["claim"]
losses = [runs[name].return_value[2] for name in ("FSDP2", "bfloat16")]
assert 0 < abs(losses[0] - losses[1]) < 0.1, losses
assert abs(sum(list(runs["bfloat16"].return_value[0].values())[:3]) - table["held"]["FSDP2"]) < 0.1

# %% [markdown]
# ## Key points
# - Training with Adam takes four times the memory of the parameters. The activations come on top, and grow with the batch.
# - DDP, ZeRO and FSDP2 train the same model. They differ in what a rank holds and in what it sends.
# - Call `fully_shard` for each block, then for the model, and create the optimizer last.
# - With DCP every rank saves its own part, and any number of ranks can load it.
#
# | what doesn't fit in memory | use |
# |---|---|
# | nothing, but one GPU is too slow | DDP |
# | the activations | a smaller batch, activation checkpointing, gradient accumulation |
# | the optimizer's states | ZeRO, or FSDP2 straight away |
# | parameters, gradients and states | FSDP2 |
# | gradients and states, and you only want to fine-tune | LoRA |
#
# | older tutorials | today |
# |---|---|
# | `FullyShardedDataParallel(model)`, which is also `prepare_model(model, parallel_strategy="fsdp")` | `fully_shard` for each block, then for the model |
# | `FSDP.state_dict_type(…, SHARDED_STATE_DICT)` | `get_state_dict` and `set_state_dict` |
# | `torch.save` of a whole state on rank 0 | `dcp.save` on all ranks |

# %% [markdown] tags=["plain"]
# ## Without the lab
# A model that is sharded and saved by two ranks and loaded by three, in plain Ray and PyTorch:

# %% [markdown] tags=["links"]
# ## Reference

# %% [markdown]
# ## Stop

# %%
store.stop()
lab.stop()
