# %% [markdown]
# # Tour · Kill a worker, and get the same model
#
# Five minutes, and nothing to type. Run the cells one after the other with **Shift+Enter**, and read as much or as little as you like.
#
# You'll train a small network on handwritten digits with two **workers**, processes that each train on a part of the images. In the middle of the run, one of the workers is killed, the way Linux kills a process
# when memory runs out. The run resumes by itself from its last checkpoint. At the end you compare its weights with the weights of a single, undisturbed process.
#
# Machines do fail: while Meta trained Llama 3 on 16,384 GPUs, 419 unexpected interruptions hit the job in 54 days, about one every three hours
# ([The Llama 3 Herd of Models](https://arxiv.org/abs/2407.21783), section 3.3.4).

# %% [markdown]
# ## A cluster on this machine
# This cell starts a Ray cluster. Ray also runs on a thousand machines; here it has one **node**, which is this computer.

# %%
from labkit.local import cluster

lab = cluster.start()
lab

# %% [markdown]
# ## A training loop
# Here are 1,280 images and a small network, in plain PyTorch.

# %%
import torch
from course import datasets
from torch.utils.data import DataLoader, TensorDataset

digits = datasets.load(split="train")
images = TensorDataset(torch.tensor(digits.images[:1280]) / 255, torch.tensor(digits.labels[:1280]))


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )


# %% [markdown]
# Each worker runs this loop. Two calls make the training distributed: `prepare_model` makes the workers average their gradients in every step, and `prepare_data_loader` gives each worker its own part of the images.
#
# `save` and `load` below write and read a checkpoint. The pause stands in for a larger model, so that there is something to watch.

# %%
import time

import ray.train
from ray.train.torch import prepare_data_loader, prepare_model


def train_loop(config):
    model = prepare_model(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = prepare_data_loader(DataLoader(images, batch_size=config["batch_size"]))
    first_epoch = load(model, optimizer)
    for epoch in range(first_epoch, config["epochs"]):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(config["pause"])
        save(model, optimizer, epoch, loss)
    return {name: weight.numpy() for name, weight in weights_of(model).items()}


# %%
import tempfile


def weights_of(model):
    return getattr(model, "module", model).state_dict()  # without the wrapper that prepare_model adds


def save(model, optimizer, epoch, loss):
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:  # one worker writes the file
            torch.save(
                {"weights": weights_of(model), "optimizer": optimizer.state_dict(), "epoch": epoch},
                f"{folder}/state.pt",
            )
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"loss": loss.item()}, checkpoint=checkpoint)  # all of them report


def load(model, optimizer):
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0  # a new run starts at epoch 0
    with checkpoint.as_directory() as folder:
        state = torch.load(f"{folder}/state.pt", weights_only=True)
    getattr(model, "module", model).load_state_dict(state["weights"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1


# %% [markdown]
# ## One process, undisturbed
# With `num_workers=0` Ray runs the loop in this notebook's own process. It trains on 128 images in each step.

# %%
from labkit.settings import Settings
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


torch.set_num_threads(1)
folder = str(Settings.from_env().home / "tour")
alone = TorchTrainer(
    train_loop,
    train_loop_config={"epochs": 6, "batch_size": 128, "pause": 0},
    scaling_config=ScalingConfig(num_workers=0),
    run_config=RunConfig(storage_path=folder),
).fit()
print(f"one process: loss {alone.metrics['loss']:.3f}")

# %% [markdown]
# ## Two workers, and one of them dies
# Each of the two workers uses 64 images, so a step still uses 128. The setting `max_failures=1` allows one restart. The fault below kills the worker with **rank** 1 in its fourth epoch. Code counts ranks, epochs and steps from 0,
# and the panel counts epochs from 1. So `epoch=3` is the panel's epoch 4, and `step=4` means after four steps of that epoch.
#
# Watch the panel: the epochs, the loss, the moment when a worker dies, and the restart.

# %%
from course import faults
from labkit.train import TrainPanel

panel = TrainPanel("tour")
fault = faults.kill_rank(1).at(panel, epoch=3, step=4)
trainer = TorchTrainer(
    train_loop,
    train_loop_config={"epochs": 6, "batch_size": 64, "pause": 0.1},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=1)),
)
with panel.watch(trainer):
    together = trainer.fit()

# %% [markdown]
# ## What did it cost?

# %%
fault

# %% [markdown]
# The epoch that was cut short had to start over, so a few steps were trained twice. What happened to the model? The losses of the two runs differ, because each is one process's loss on its last batch:
# 128 images in the first run, 64 in the second. So compare the weights:

# %%
one, two = alone.return_value, together.return_value
largest = max(abs(one[name] - two[name]).max() for name in one)
print(f"largest difference of a weight: {largest:.1e}")

# %% tags=["claim", "timed"]
assert 0 < fault.repeated <= 10

# %% tags=["claim"]
assert fault.outcome == "made"
assert largest < 1e-4

# %% [markdown]
# The weights agree up to rounding. Two processes and a crash led to the same model as one undisturbed process.
#
# That isn't luck, because three things are right here. Both runs use the same 128 images in each step: rank 0 gets the images 0, 2, 4 and so on, and rank 1 gets the others. The checkpoint contains the optimizer as well as the weights,
# and the loop resumes with the epoch after the checkpoint. In these lessons you build each of them, and break it once.
#
# ## Where to go next
# - [00 · Start here](00_welcome.ipynb): check your machine, and run the shortest distributed training there is.
# - [03 · Your loop on two workers](03_torch_trainer.ipynb): turn the loop that you have into a distributed one, line by line.
# - [03c · The whole pipeline](03c_whole_pipeline.ipynb): feed two workers from an object store, in a different order in each epoch, and resume at the row.
# - [06b · Validation on several workers](06b_validation_on_several_workers.ipynb): validate while the training goes on, in three ways.
# - [08 · When machines fail](08_when_machines_fail.ipynb): kill, freeze and drain workers and machines, and count what each fault costs.

# %%
lab.stop()
