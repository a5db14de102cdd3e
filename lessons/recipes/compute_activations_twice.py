# %% [markdown]
# # Compute activations twice to save memory
#
# If the activations don't fit into memory, don't keep them. With **activation checkpointing**, a block keeps only its input. When the backward pass needs the rest, the block computes it once more. You pay with time for memory.
#
# You need lesson 11. No cluster is needed.

# %%
import torch
from torch import nn


def make_model():
    torch.manual_seed(0)
    blocks = [nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True) for _ in range(4)]
    return nn.Sequential(*blocks)


def kept_megabytes(model, x):
    """What the forward pass keeps for the backward pass, without the parameters."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(x).sum().backward()
    for parameter in model.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(kept.values()) / 1e6


x = torch.rand(12, 32, 256)
plain = make_model()
before = kept_megabytes(plain, x)

# %% [markdown]
# The only change is in the call of a block:

# %%
from torch.utils.checkpoint import checkpoint


class Again(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


frugal = nn.Sequential(*[Again(block) for block in make_model()])
after = kept_megabytes(frugal, x)
print(f"{before:.1f} MB without checkpointing, {after:.1f} MB with it")

# %% tags=["claim"]
assert after < 0.5 * before
gradients = zip(plain.parameters(), frugal.parameters(), strict=True)
assert all(torch.allclose(one.grad, other.grad, atol=1e-5) for one, other in gradients)

# %% [markdown]
# The gradients are the same. During the backward pass, the activations of one block come back for a moment. Each block's forward pass runs twice, so a step takes about a third longer if the backward pass takes twice as long as the forward pass.
#
# With FSDP2, wrap the blocks before you call `fully_shard`.
