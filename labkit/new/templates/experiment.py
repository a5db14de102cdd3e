# %% [markdown]
# # EXPERIMENT
# This is your experiment: change what you like. `python EXPERIMENT.py` does the same as the notebook next
# to it. It trains on two workers of this machine or, if `RAY_ADDRESS` is set, on that cluster; data and
# checkpoints then need a store that all nodes reach (`LABKIT_S3_ENDPOINT`). `python -m pytest
# test_EXPERIMENT.py` tests the data and the model in seconds, without a cluster.

# %%
import tempfile

import numpy as np
import pandas
import ray.data
import ray.train
import torch
from labkit import cluster, datasets, runs, storage
from labkit.errors import LabError
from labkit.models.torch import load_state, save_state, unwrapped
from labkit.settings import Settings
from labkit.train import TrainPanel
from ray.train import CheckpointConfig, DataConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn
from torch.nn import functional as F

NAME = "EXPERIMENT"
CONFIG = {"epochs": 8, "batch_size": 64, "lr": 0.01, "width": 32, "seed": 0}

# %% [markdown]
# ## Data
# Each row has an `x` and a `y`. One row in five is for testing; the others are for training and
# validation.


# %% tags=["made"]
def load_data():  # a table made on the spot; datasets.from_table("flats.csv", target="price") reads yours
    numbers = np.random.default_rng(0)
    size, district = numbers.uniform(25, 140, 900), numbers.choice(["north", "south", "port"], 900)
    price = 40 + 3 * size + 90 * (district == "port") + numbers.normal(0, 25, 900)
    flats = pandas.DataFrame({"size": size, "district": district, "price": price})
    return datasets.from_table(flats, target="price", categories=["district"])


# %% tags=["given"]
def load_data():
    return datasets.DATA


# %% [markdown]
# ## Model
# `facts` returns what the model must know about the data. Each run records it with its configuration.


# %% tags=["images"]
def facts(data):
    x, _ = next(data.batches("train"))
    return {"colours": x.shape[3] if x.ndim == 4 else 1, "classes": len(data.classes)}


class Network(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config["width"]
        layers = [nn.Conv2d(config["colours"], width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(4)]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * width, config["classes"]))

    def forward(self, x):  # bytes from 0 to 255 become numbers from 0 to 1, with the colours first
        x = x.float() / 255
        return self.layers(x.permute(0, 3, 1, 2) if x.ndim == 4 else x.unsqueeze(1))


# %% tags=["numbers", "classification"]
def facts(data):
    x, _ = data.load("train")
    return {"mean": x.mean(axis=0).tolist(), "spread": x.std(axis=0).tolist(), "outputs": len(data.classes)}


# %% tags=["numbers", "regression"]
def facts(data):
    x, y = data.load("train")
    found = {"mean": x.mean(axis=0).tolist(), "spread": x.std(axis=0).tolist(), "outputs": 1}
    return found | {"y_mean": float(y.mean()), "y_spread": float(y.std()) or 1.0}


# %% tags=["numbers"]
class Network(nn.Module):
    def __init__(self, config):
        super().__init__()
        # Buffers are saved with the model and move to its device.
        self.register_buffer("mean", torch.tensor(config["mean"]))
        self.register_buffer("spread", torch.tensor([one or 1.0 for one in config["spread"]]))
        first = nn.Linear(len(config["mean"]), config["width"])
        self.layers = nn.Sequential(first, nn.ReLU(), nn.Linear(config["width"], config["outputs"]))

    def forward(self, x):
        return self.layers((x - self.mean) / self.spread)


# %% tags=["tokens"]
def facts(data):
    return {"vocabulary": data.vocabulary}


class Network(nn.Module):  # it predicts the next token from those before
    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(config["vocabulary"], config["width"])
        self.recurrent = nn.GRU(config["width"], 2 * config["width"], batch_first=True)
        self.last = nn.Linear(2 * config["width"], config["vocabulary"])

    def forward(self, x):
        return self.last(self.recurrent(self.embedding(x))[0])


# %% [markdown]
# ## Loss and metrics
# `values` has one number per row. Training minimizes the mean of `loss`, and each epoch reports the means
# of all of them on the validation rows.


# %% tags=["classification"]
def values(model, batch, config):
    outputs, y = model(batch["x"]), batch["y"]
    loss = F.cross_entropy(outputs, y, reduction="none")
    return {"loss": loss, "accuracy": (outputs.argmax(dim=1) == y).float()}


# %% tags=["regression"]
def values(model, batch, config):  # the error has the target's unit; the loss is of targets with spread 1
    error = model(batch["x"]).squeeze(1) - (batch["y"] - config["y_mean"]) / config["y_spread"]
    return {"loss": error**2, "absolute_error": error.abs() * config["y_spread"]}


# %% tags=["language"]
def values(model, batch, config):  # perplexity is e to the power of this loss
    losses = F.cross_entropy(model(batch["x"]).transpose(1, 2), batch["y"], reduction="none")
    return {"loss": losses.mean(dim=1)}


# %%
@torch.no_grad()
def measure(model, batches, config):
    found = [values(model, batch, config) for batch in batches]
    return {name: torch.cat([one[name] for one in found]).mean().item() for name in found[0]}


# %% [markdown]
# `predictions` shows what a trained model makes of some test rows.


# %% tags=["classification"]
@torch.no_grad()
def predictions(model, data, config):
    x, y = (part[:8] for part in next(data.batches("test")))
    sure, found = model(torch.tensor(x)).softmax(dim=1).max(dim=1)
    names = np.array(data.classes)
    return pandas.DataFrame({"is": names[y], "predicted": names[found], "probability": sure.numpy().round(2)})


# %% tags=["regression"]
@torch.no_grad()
def predictions(model, data, config):
    x, y = (part[:8] for part in next(data.batches("test")))
    found = model(torch.tensor(x)).squeeze(1).numpy() * config["y_spread"] + config["y_mean"]
    return pandas.DataFrame({"is": y, "predicted": found, "error": found - y}).round(3)


# %% tags=["language"]
@torch.no_grad()
def predictions(model, data, config):  # it continues the beginning of a test row
    x, _ = next(data.batches("test"))
    tokens = torch.tensor(x[:1, :32])
    for _ in range(64):
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(dim=2)], dim=1)
    return bytes(tokens[0].tolist()).decode(errors="replace")


# %% [markdown]
# ## Training
# Each worker runs this loop on its shard of the rows. After a failure Ray starts it again, and it
# continues after the latest checkpoint.


# %%
def train_loop(config):
    torch.manual_seed(config["seed"])
    model = prepare_model(Network(config))
    optimizer, first = torch.optim.Adam(model.parameters(), lr=config["lr"]), 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            first = load_state(folder, model, optimizer)["epoch"] + 1
    train, valid = ray.train.get_dataset_shard("train"), ray.train.get_dataset_shard("valid")
    options = {"batch_size": config["batch_size"] // ray.train.get_context().get_world_size()}
    for epoch in range(first, config["epochs"]):
        shuffled = {"local_shuffle_buffer_size": 1024, "local_shuffle_seed": config["seed"] + epoch}
        batches = train.iter_torch_batches(**options, **shuffled)
        for batch in config["panel"].steps(batches, epoch=epoch, epochs=config["epochs"]):
            loss = values(model, batch, config)["loss"].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        metrics = {"epoch": epoch, **measure(unwrapped(model), valid.iter_torch_batches(**options), config)}
        with tempfile.TemporaryDirectory() as folder:
            save_state(folder, model, optimizer, epoch)
            is_first = ray.train.get_context().get_world_rank() == 0
            checkpoint = ray.train.Checkpoint.from_directory(folder) if is_first else None
            ray.train.report(metrics, checkpoint=checkpoint)


# %% [markdown]
# `run` writes the rows into the store, trains, and measures the best checkpoint on the test rows. If the
# last run was killed or failed, with these settings and data, it continues after its latest checkpoint;
# `run(store, resume=False)` begins from the start.


# %%
def unfinished_run(data, config):
    try:
        last = runs.latest(NAME, state=None)  # the newest, however it ended
    except LabError:  # this is the first
        return None
    same = last.data_fingerprint == data.fingerprint and config.items() <= last.config.items()
    if last.state not in ("lost", "failed") or not same or not last.storage_path:
        return None
    how = "was killed" if last.state == "lost" else "failed"
    print(f"{last.run_id} {how}: continuing after its latest checkpoint")
    return last.storage_path.rpartition("/")[2]  # Ray finds the checkpoints by this name


def run(store, resume=True, **changes):
    settings, data, config = Settings.from_env(), load_data(), CONFIG | changes
    panel = TrainPanel(NAME, dataset=data)
    place = store.storage_path("data", NAME, panel.run_id)
    data.write(place, filesystem=store.filesystem)
    ray.data.DataContext.get_current().execution_options.preserve_order = True  # the same split every time
    rows = ray.data.read_parquet(f"{place}/train", filesystem=store.filesystem)
    train, valid = rows.train_test_split(0.2, shuffle=True, seed=config["seed"])
    name = (unfinished_run(data, config) if resume else None) or panel.run_id
    config |= facts(data)
    trainer = TorchTrainer(
        train_loop,
        train_loop_config=config | {"panel": panel},
        scaling_config=ScalingConfig(num_workers=settings.num_workers, use_gpu=settings.use_gpu),
        datasets={"train": train, "valid": valid},
        dataset_config=DataConfig(datasets_to_split=["train"]),  # each worker measures all validation rows
        run_config=RunConfig(
            name=name,
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
    model = Network(config)
    with best.as_directory() as folder:
        load_state(folder, model)
    test = ({"x": torch.tensor(x), "y": torch.tensor(y)} for x, y in data.batches("test"))
    found = measure(model, test, config)
    said = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
    runs.note(panel.run_id, f"test: {said}")  # the table and the report show it
    return found, predictions(model, data, config)


# %%
if __name__ == "__main__":
    lab, store = cluster.start(), storage.start()
    found, examples = run(store)
    print(f"on the test rows: {found}\n\n{examples}\n")
    columns = ["run_id", "state", "lr", "width", "loss", "note"]  # any setting or metric can be a column
    print(runs.table(name=NAME, columns=columns).to_string())

# %% [markdown]
# When you are done, stop what was started. A cluster at `RAY_ADDRESS` keeps running.

# %%
if __name__ == "__main__":
    store.stop()
    lab.stop()
