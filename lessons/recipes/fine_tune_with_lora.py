# %% [markdown]
# # Fine-tune a model with little memory: LoRA
#
# **LoRA** (low-rank adaptation) leaves the weights of a layer alone, and adds the product of two small matrices. Only these are trained, so gradients and the optimizer's states are needed for a few percent of the weights.
#
# You need lesson 11. No cluster is needed.

# %%
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))  # think of it as pretrained


class LoRA(nn.Module):
    def __init__(self, base, rank=4, scale=2.0):
        super().__init__()
        self.base = base
        self.scale = scale
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))  # so it starts as the base

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.down.T @ self.up.T)


# %% [markdown]
# Freeze the model, and put a `LoRA` around each linear layer. At first, the model's answers don't change.

# %%
x = torch.rand(64, 256)
answers = model(x).detach()
frozen = {name: tensor.clone() for name, tensor in model.state_dict().items()}

model.requires_grad_(False)
model[0] = LoRA(model[0])
model[2] = LoRA(model[2])
same = torch.equal(model(x), answers)
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
count = sum(parameter.numel() for parameter in trained)
everything = sum(parameter.numel() for parameter in model.parameters())
print(f"{count:,} of {everything:,} weights are trained: {count / everything:.1%}")

# %%
target = x.flip(1)
optimizer = torch.optim.Adam(trained, lr=0.01)
losses = []
for _ in range(100):
    loss = nn.functional.mse_loss(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f}, then {losses[-1]:.3f}")

# %% tags=["claim"]
assert same and count / everything < 0.03
assert losses[-1] < 0.7 * losses[0]
assert torch.equal(model[0].base.weight, frozen["0.weight"])

# %% [markdown]
# The base has not changed, so a checkpoint of the fine-tuning needs `trained` only, and one base serves many fine-tuned models.
#
# At work, `peft.get_peft_model` puts such layers into a Hugging Face model, also where its layers aren't `nn.Linear`, as in GPT-2.
