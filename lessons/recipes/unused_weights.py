# %% [markdown]
# # Weights that a step doesn't use
#
# DDP waits in `backward()` for the gradient of *every* weight. If a step leaves some weights out, for example because a model has several heads, the next step fails. You'll see the error, and the option that allows it.
#
# You need lesson 03.

# %%
from labkit.local import cluster

lab = cluster.start()

# %% [markdown]
# This model has two heads, and each step uses only one of them:

# %%
import ray.train
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


class TwoHeads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(784, 32)
        self.heads = torch.nn.ModuleList([torch.nn.Linear(32, 10), torch.nn.Linear(32, 2)])

    def forward(self, x, head):
        return self.heads[head](self.body(x).relu())


def train_heads(config):
    model = prepare_model(TwoHeads(), parallel_strategy_kwargs=config)
    for step in range(4):
        model(torch.rand(8, 784), head=step % 2).square().mean().backward()
    return step + 1


def steps_made(**options):
    trainer = TorchTrainer(
        train_heads, train_loop_config=options, scaling_config=ScalingConfig(num_workers=2)
    )
    return trainer.fit().return_value


# %%
try:
    steps_made()
except ray.train.TrainingFailedError as error:
    unused = [line for line in str(error).splitlines() if "Parameter indices" in line]
    print(unused[0])

# %% [markdown]
# Weights 4 and 5 belong to the second head. They got no gradient in the first step, so the second one failed. Something worse happened before that: in the first step *no* gradient was averaged, and each rank kept its own. If such a step is the last one,
# nothing raises an error, and the ranks end with different models. `find_unused_parameters` makes DDP look in each step which weights were used. That costs some time, so it's off by
# default. In older tutorials, `parallel_strategy_kwargs` is called `ddp_args`.

# %%
made = steps_made(find_unused_parameters=True)
made


# %% tags=["claim"]
def gradients(config):
    model = prepare_model(TwoHeads(), parallel_strategy_kwargs=config)
    torch.manual_seed(ray.train.get_context().get_world_rank())
    model(torch.rand(8, 784), head=0).square().mean().backward()
    norms = [0.0, 0.0]
    torch.distributed.all_gather_object(norms, model.module.body.weight.grad.norm().item())
    return norms


for config, averaged in (({}, False), ({"find_unused_parameters": True}, True)):
    scaling = ScalingConfig(num_workers=2)
    norms = TorchTrainer(gradients, train_loop_config=config, scaling_config=scaling).fit().return_value
    assert (norms[0] == norms[1]) == averaged
assert "4 5" in unused[0]
assert made == 4

# %%
lab.stop()
