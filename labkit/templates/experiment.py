# %% [markdown]
# # EXPERIMENT
# This is your experiment: change what you like. `python EXPERIMENT.py` does the same as the notebook next
# to it. It trains on two workers of this machine or, if `RAY_ADDRESS` is set, on that cluster; data and
# checkpoints then need a store that all nodes reach (`LABKIT_S3_ENDPOINT`). `python -m pytest
# test_EXPERIMENT.py` tests the data and the model in seconds, without a cluster.

# %%
import tempfile

import ray.data
import ray.train
import torch
from labkit import cluster, datasets, runs, storage
from labkit.settings import Settings
from labkit.train import TrainPanel
from ray.train import CheckpointConfig, DataConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_model
from torch import nn
from torch.nn import functional as F

NAME = "EXPERIMENT"
CONFIG = {"epochs": 8, "batch_size": 64, "lr": 0.01, "width": 32, "seed": 0}

# %% [markdown]
# ## Data
# Each row has an `x` and a `y`. One row in five is for testing; the others are for training and
# validation.

# %% tags=["made"]
import numpy as np
import pandas


def load_data():  # a table made on the spot; datasets.from_table("flats.csv", target="price") reads yours
    numbers = np.random.default_rng(0)
    size, district = numbers.uniform(25, 140, 900), numbers.choice(["north", "south", "port"], 900)
    price = 40 + 3 * size + 90 * (district == "port") + numbers.normal(0, 25, 900)
    flats = pandas.DataFrame({"size": size, "district": district, "price": price})
    return datasets.from_table(flats, target="price")


# %% tags=["folder"]
def load_data():
    return datasets.from_folder("PATH", size=(32, 32))  # every image is scaled to this height and width


# %% tags=["table"]
def load_data():
    return datasets.from_table("PATH", target="TARGET", task="TASK")


# %% tags=["text"]
def load_data():
    return datasets.from_text("PATH", length=64)  # rows of 64 bytes; tokenizer= takes one of yours


# %% [markdown]
# ## Model
# `facts` returns what the model must know about the data. Each run records it with its configuration.


# %% tags=["images"]
def facts(data):
    x, _ = next(data.batches("train"))
    return {"inputs": x.shape[3] if x.ndim == 4 else 1, "outputs": len(data.classes)}


def build_model(config):
    width = config["width"]
    layers = [nn.Conv2d(config["inputs"], width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(4)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * width * 4 * 4, config["outputs"]))


def prepared(x):  # bytes from 0 to 255 become numbers from 0 to 1, with the colours first
    x = x.float() / 255
    return x.permute(0, 3, 1, 2) if x.ndim == 4 else x.unsqueeze(1)


# %% tags=["numbers"]
def scale(data):  # mean and spread of each column in the training rows
    x = torch.cat([torch.tensor(x) for x, _ in data.batches("train")])
    spread = x.std(dim=0)
    return {"center": x.mean(dim=0).tolist(), "scale": torch.where(spread > 0, spread, 1.0).tolist()}


# %% tags=["numbers", "classification"]
def facts(data):
    return {"inputs": len(data.columns), "outputs": len(data.classes), **scale(data)}


# %% tags=["numbers", "regression"]
def facts(data):
    y = torch.cat([torch.tensor(y) for _, y in data.batches("train")])
    mean, spread = y.mean().item(), y.std().item() or 1.0
    return {"inputs": len(data.columns), "outputs": 1, "mean": mean, "spread": spread, **scale(data)}


# %% tags=["numbers"]
class Perceptron(nn.Module):
    def __init__(self, config):
        super().__init__()
        # Buffers are saved with the model and move to its device.
        self.register_buffer("center", torch.tensor(config["center"]))
        self.register_buffer("scale", torch.tensor(config["scale"]))
        self.first = nn.Linear(config["inputs"], config["width"])
        self.last = nn.Linear(config["width"], config["outputs"])

    def forward(self, x):
        return self.last(self.first((x - self.center) / self.scale).relu())


def build_model(config):
    return Perceptron(config)


def prepared(x):
    return x


# %% tags=["tokens"]
def facts(data):
    return {"inputs": data.vocabulary, "outputs": data.vocabulary}


class Recurrent(nn.Module):  # it predicts the next token from those before
    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(config["inputs"], config["width"])
        self.recurrent = nn.GRU(config["width"], 2 * config["width"], batch_first=True)
        self.last = nn.Linear(2 * config["width"], config["outputs"])

    def forward(self, x):
        return self.last(self.recurrent(self.embedding(x))[0])


def build_model(config):
    return Recurrent(config)


def prepared(x):
    return x


# %% [markdown]
# ## Loss and metrics
# `values` has one number per row. Training minimizes the mean of `loss`, and each epoch reports the means
# of all of them on the validation rows.


# %% tags=["classification"]
def values(outputs, y, config):
    right = (outputs.argmax(dim=1) == y).float()
    return {"loss": F.cross_entropy(outputs, y, reduction="none"), "accuracy": right}


# %% tags=["regression"]
def values(outputs, y, config):  # the error has the target's unit; the loss is of targets with spread 1
    guess, goal = outputs.squeeze(1), (y - config["mean"]) / config["spread"]
    error = F.l1_loss(guess, goal, reduction="none") * config["spread"]
    return {"loss": F.mse_loss(guess, goal, reduction="none"), "absolute_error": error}


# %% tags=["language"]
def values(outputs, y, config):  # perplexity is e to the power of this loss
    return {"loss": F.cross_entropy(outputs.transpose(1, 2), y, reduction="none").mean(dim=1)}


# %%
@torch.no_grad()
def measure(model, batches, config):
    model.eval()
    found = [values(model(prepared(batch["x"])), batch["y"], config) for batch in batches]
    model.train()
    return {name: torch.cat([one[name] for one in found]).mean().item() for name in found[0]}


# %% [markdown]
# ## Training
# Each worker runs this loop on its shard of the rows. After a failure Ray starts it again, and it
# continues after the latest checkpoint.


# %%
def train_loop(config):
    torch.manual_seed(config["seed"])
    model = prepare_model(build_model(config))
    plain, optimizer = getattr(model, "module", model), torch.optim.Adam(model.parameters(), lr=config["lr"])
    first, checkpoint, options = 0, ray.train.get_checkpoint(), {"batch_size": config["batch_size"]}
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt", weights_only=True, map_location=get_device())
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    train, valid = ray.train.get_dataset_shard("train"), ray.train.get_dataset_shard("valid")
    for epoch in range(first, config["epochs"]):
        shuffled = {"local_shuffle_buffer_size": 1024, "local_shuffle_seed": config["seed"] + epoch}
        batches = train.iter_torch_batches(**options, **shuffled, drop_last=True)
        for batch in config["panel"].steps(batches, epoch=epoch, epochs=config["epochs"]):
            loss = values(model(prepared(batch["x"])), batch["y"], config)["loss"].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        metrics = {"epoch": epoch, **measure(plain, valid.iter_torch_batches(**options), config)}
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, f"{folder}/state.pt")
            is_first = ray.train.get_context().get_world_rank() == 0
            checkpoint = ray.train.Checkpoint.from_directory(folder) if is_first else None
            ray.train.report(metrics, checkpoint=checkpoint)


# %% [markdown]
# `run` writes the rows into the store, trains, and measures the best checkpoint on the test rows.


# %%
def run(store, **changes):
    settings, data = Settings.from_env(), load_data()
    panel, workers, config = TrainPanel(NAME, dataset=data.name), settings.num_workers, CONFIG | changes
    place = store.storage_path("data", NAME, panel.run_id)
    data.write(place, filesystem=store.filesystem)
    ray.data.DataContext.get_current().execution_options.preserve_order = True  # the same split every time
    rows = ray.data.read_parquet(f"{place}/train", filesystem=store.filesystem)
    train, valid = rows.train_test_split(0.2, shuffle=True, seed=config["seed"])
    batch_size = min(config["batch_size"], train.count()) // workers
    config |= facts(data) | {"batch_size": max(2, batch_size)}
    trainer = TorchTrainer(
        train_loop,
        train_loop_config=config | {"panel": panel},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=settings.use_gpu),
        datasets={"train": train, "valid": valid},
        dataset_config=DataConfig(datasets_to_split=["train"]),  # each worker measures all validation rows
        run_config=RunConfig(
            name=panel.run_id,
            storage_path=store.storage_path("runs", NAME),
            storage_filesystem=store.filesystem,
            checkpoint_config=CheckpointConfig(2, "loss", checkpoint_score_order="min"),
            failure_config=FailureConfig(max_failures=1),
            callbacks=[panel.callback()],
        ),
    )
    with panel.watch(trainer):
        result = trainer.fit()
    best, _ = min(result.best_checkpoints, key=lambda one: one[1]["loss"])
    model = build_model(config)
    with best.as_directory() as folder:
        state = torch.load(f"{folder}/state.pt", weights_only=True, map_location="cpu")
    model.load_state_dict(state["model"])
    test = ({"x": torch.tensor(x), "y": torch.tensor(y)} for x, y in data.batches("test"))
    found = measure(model, test, config)
    said = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
    runs.note(panel.run_id, f"best checkpoint on the test rows: {said}")  # the table and the report show it
    return found


# %%
if __name__ == "__main__":
    lab, store = cluster.start(), storage.start()
    print("on the test rows:", run(store))
    print(runs.table(name=NAME))

# %% [markdown]
# When you are done, stop what was started. A cluster at `RAY_ADDRESS` keeps running.

# %%
if __name__ == "__main__":
    store.stop()
    lab.stop()
