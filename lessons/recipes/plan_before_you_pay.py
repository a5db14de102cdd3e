# %% [markdown]
# # Plan before you pay: what one of 64 GPUs would hold
#
# You want to train a model with six billion parameters on 64 GPUs, and you don't have 64 GPUs. You can still ask PyTorch what each of them would hold. Two things make that possible on a laptop, in seconds and with no memory.
#
# - On the device `meta`, tensors have a shape and no numbers.
# - The backend `fake` is a process group of any size, of which you are one rank. Its collectives send nothing and return at once.
#
# You need lesson 12b, or lesson 11.

# %%
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=17, world_size=64)

# %% [markdown]
# `FakeStore` is a private name of PyTorch and may move in a later version. If the import fails, look for it in the [tests of PyTorch](https://github.com/pytorch/pytorch/tree/main/torch/testing/_internal/distributed), or compute the last table with the rule in it: divide the parameters by the number of ranks that share them.
#
# The model is a stack of 32 transformer blocks of width 4,096, with the layer names that the plan below needs.


# %%
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, width, bias=False)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)


def make_model():
    with torch.device("meta"):
        return nn.Sequential(*[Block(4096) for _ in range(32)])


parameters = sum(one.numel() for one in make_model().parameters())
print(f"{parameters / 1e9:.2f} billion parameters, {4 * parameters / 1e9:.1f} GB in float32")

# %% [markdown]
# Now shard it in two ways. The first divides every block among all 64 ranks. The second puts the ranks into a mesh of 8 × 8: eight neighbours divide the matrices, and the eight groups divide what is left.

# %%
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

columns, rows = ["query", "key", "value", "up"], ["out", "down"]
matrices = {name: ColwiseParallel() for name in columns} | {name: RowwiseParallel() for name in rows}


def shard(model, mesh):
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


fsdp = shard(make_model(), init_device_mesh("cpu", (64,)))
mesh = init_device_mesh("cpu", (8, 8), mesh_dim_names=("rows", "matrix"))
both = make_model()
for block in both:
    parallelize_module(block, mesh["matrix"], matrices)
shard(both, mesh["rows"])


def here(model):
    return sum(one.to_local().nbytes for one in model.parameters()) / 1e9


print(f"rank 17 holds {here(fsdp):.3f} GB of the weights with FSDP2, {here(both):.3f} GB in the mesh")

# %% [markdown]
# Rank 17 holds a 64th of the weights both times. So what is the mesh for? While a block computes, FSDP2 gathers *all* of it, and in the mesh only an eighth. And the activations of a block are divided, too.
#
# Adam keeps two more numbers for each weight, and there is a gradient for each. Both are divided like the weights, so the whole plan follows, without activations:

# %%
import pandas as pd

whole, part = 4 * parameters / 1e9, here(fsdp)
one_block = whole / 32
plan = pd.DataFrame(
    {
        "DDP": [whole, whole, 2 * whole, 0],
        "ZeRO-1": [whole, whole, 2 * whole / 64, 0],
        "FSDP2": [part, part, 2 * part, one_block],
        "FSDP2 × tensor parallel": [here(both), here(both), 2 * here(both), one_block / 8],
    },
    index=["weights", "gradients", "Adam", "gathered block"],
).T
plan["GB in all"] = plan.sum(axis=1)
plan.round(2)

# %% tags=["claim"]
assert abs(here(fsdp) - whole / 64) < 0.01 and abs(here(both) - whole / 64) < 0.01
assert plan["GB in all"].is_monotonic_decreasing
assert plan["GB in all"]["DDP"] > 80 > plan["GB in all"]["ZeRO-1"] > 40
assert all(one.device.type == "meta" for one in fsdp.parameters())

# %% [markdown]
# With DDP a GPU of 80 GB is too small before the first row arrives. ZeRO-1 leaves 27 GB for activations and everything else. With FSDP2 nearly all of the memory is free for activations, which depend on your batch. Lesson 11 measures them.
#
# Change the width, the number of blocks or the number of ranks above, and run the cells again. To change the number of ranks, run this cell first:

# %%
dist.destroy_process_group()
