# %% [markdown]
# # Compute in 16 bits: mixed precision
#
# A float of 32 bits is more than most of a network needs. With **mixed precision**, matrix products and convolutions compute in 16 bits, while the weights and what is sensitive stay in 32. You'll measure what that brings on your machine, and what it costs.
#
# You need lesson 03. If there is a GPU, it computes there.

# %%
import torch
from labkit.local import cluster
from labkit.settings import Settings

settings = Settings.from_env()
lab = cluster.start()

# %% [markdown]
# There are two formats with 16 bits. `float16` has more digits, `bfloat16` has the range of `float32`. A gradient of 1e-8 is nothing special:

# %%
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    tiny, third = torch.tensor(1e-8).to(dtype), torch.tensor(1 / 3).to(dtype)
    print(f"{dtype}: 1e-8 becomes {tiny.item():.1e}, a third becomes {third.item():.7f}")

# %% [markdown]
# In `float16` it became 0. That's why `float16` needs a `GradScaler`: it multiplies the loss by a large number, so that small gradients survive, divides the gradients again before the step, and skips a step in which one has overflowed. `bfloat16` needs none.
#
# In the loop, three places change. `autocast` chooses the format of each operation in its block. The backward pass uses the formats of the forward pass, so it stays outside. With `enabled=False`, a scaler does nothing, and the loop is the same for all formats.

# %%
import time

import ray.train
from ray.train.torch import get_device, prepare_model
from torch.nn.functional import cross_entropy


def make_model():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 1024), torch.nn.GELU()]
    return torch.nn.Sequential(*layers, torch.nn.LayerNorm(1024), torch.nn.Linear(1024, 10))


def wait_for(device):
    if device.type == "cuda":  # a step only starts the GPU's work
        torch.cuda.synchronize(device)


# %% tags=["long"]
def train_loop(config):
    torch.set_num_threads(1)
    device, dtype = get_device(), getattr(torch, config["dtype"])
    model = prepare_model(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)  # 1
    generator = torch.Generator().manual_seed(ray.train.get_context().get_world_rank())
    x = torch.randn(256, 256, generator=generator).to(device)
    y = (x[:, :10].argmax(dim=1)).to(device)
    kept = []

    def note(tensor):
        kept.append(tensor.nbytes)
        return tensor

    for step in range(config["steps"]):
        if step == 2:  # the first steps are slower
            wait_for(device)
            begin = time.perf_counter()
        autocast = torch.autocast(device.type, dtype=dtype, enabled=dtype is not torch.float32)  # 2
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), autocast:
            out = model(x)
            loss = cross_entropy(out, y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()  # 3
        scaler.step(optimizer)
        scaler.update()
    wait_for(device)
    seconds = (time.perf_counter() - begin) / (config["steps"] - 2)
    formats = {str(parameter.dtype) for parameter in model.parameters()}
    return {
        "ms per step": 1000 * seconds,
        "MB kept for backward": sum(kept) / config["steps"] / 1e6,
        "output": str(out.dtype),
        "weights": ", ".join(formats),
        "gradients": str(next(model.parameters()).grad.dtype),
        "loss": loss.item(),
    }


# %% [markdown]
# `saved_tensors_hooks` adds up what the forward pass keeps for the backward pass: activations, which fill a GPU's memory, and weights.

# %%
import pandas
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def measure(dtype):
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={"dtype": dtype, "steps": 12},
        scaling_config=ScalingConfig(num_workers=settings.num_workers, use_gpu=settings.use_gpu),
    )
    return trainer.fit().return_value


formats = ["float32", "bfloat16"]
if settings.use_gpu:
    formats.append("float16")
table = {dtype: measure(dtype) for dtype in formats}
pandas.DataFrame(table)

# %% tags=["claim"]
full, half = table["float32"], table["bfloat16"]
assert half["output"] == "torch.bfloat16" and full["output"] == "torch.float32"
for result in table.values():
    assert result["weights"] == result["gradients"] == "torch.float32"
    assert abs(result["loss"] - full["loss"]) < 0.05
assert half["MB kept for backward"] < 0.6 * full["MB kept for backward"]

# %% [markdown]
# Read the table by rows.
#
# - *ms per step* depends on your processor. A CPU with instructions for bfloat16 (`avx512_bf16` or `amx_bf16` in `lscpu`) gets faster; any other converts back and forth, and gets slower. A recent GPU usually gets much faster. On a busy machine, measure twice.
# - *MB kept for backward* is about half, because all of it is now in 16 bits, the weights as copies. On a GPU, that lets you use a larger batch.
# - *weights* and *gradients* are still `float32`. So a checkpoint has the same size, and DDP exchanges as many bytes as before.
# - *loss* differs in the third or fourth digit. That is the price, and most runs don't notice. Compare yours with a `float32` run before you believe it.
#
# Keep the validation in the format in which the model will be used.

# %%
lab.stop()
