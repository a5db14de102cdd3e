# %% [markdown]
# # 10 · Your own experiment
#
# By the end of this lesson you can
# - keep rows for testing that have nothing in common with those for training (exercise 10-1);
# - say whether a difference between two settings is more than chance (10-2);
# - train on a table of your own with your own loop, and keep the right checkpoint (10-3);
# - make a training repeatable (10-4, extra).
#
# **Time** … · **Needs** 00, 03, 05; 02 helps

# %% [markdown]
# A packing hall sorts fruit by photograph, and a grey camera costs half as much as a colour camera. Is it good enough? You could train one model for each and compare two numbers. But another seed
# changes these numbers, too, so you need an experiment.

# %%
from labkit import cluster, datasets, runs, storage
from labkit.exercises import check, hint, predict, reveal
from labkit.settings import Settings

settings = Settings.from_env()
lab, store = cluster.start(), storage.start()
lab

# %% [markdown]
# ## First the question
# Write these five lines *before* the first run. If you decide afterwards what counts, you will always find something.
# - *Question*: does grey sort as well as colour, and does it help to flip half of the batches left to right?
# - **Arms**: `colour`, `mirrored` and `grey` are the settings to compare.
# - *Metric*: the accuracy on test photographs, of the checkpoint with the lowest validation loss in six epochs.
# - *Seeds*: three per arm, because a run is a draw from a lottery.
# - *Rule*: a difference counts if it's larger than two standard errors (exercise 10-2).

# %% [markdown]
# ## A folder of images
# Images belong in one folder per class. This cell paints some: ellipses on a noisy background.

# %% tags=["long"]
import numpy as np
from PIL import Image, ImageDraw

FRUITS = {  # colour, and width divided by length
    "apple": ((200, 60, 50), 1.0),
    "lemon": ((225, 205, 70), 0.75),
    "lime": ((130, 185, 70), 0.75),
    "plum": ((110, 60, 130), 0.85),
}


def photograph(fruit, numbers):
    colour, shape = FRUITS[fruit]
    light, length = numbers.uniform(0.6, 1.15), numbers.uniform(9, 15)
    painted = np.clip(light * np.array(colour) + numbers.normal(0, 24, 3), 0, 255).astype(int)
    (x, y), width = numbers.uniform(11, 21, 2), length * shape * numbers.uniform(0.9, 1.1)
    layer = Image.new("RGBA", (32, 32))
    ImageDraw.Draw(layer).ellipse((x - length, y - width, x + length, y + width), fill=tuple(painted))
    layer = layer.rotate(numbers.uniform(0, 360), center=(x, y))
    image = Image.fromarray(numbers.integers(60, 200, (32, 32, 3), dtype=np.uint8))
    image.paste(layer, mask=layer)
    return image


folder, numbers = settings.home / "fruit", np.random.default_rng(0)
for fruit in FRUITS:
    (folder / fruit).mkdir(parents=True, exist_ok=True)
    for number in range(200 if settings.small else 400):
        photograph(fruit, numbers).save(folder / fruit / f"{number:03}.png")

# %% [markdown]
# `from_folder` reads such folders; `size=(32, 32)` would scale images of different sizes.

# %%
photos = datasets.from_folder(folder, test=0.25, seed=0)
kinds = len(photos.classes)  # a function for workers can't use the name `classes`: docs/troubleshooting.md
photos

# %% [markdown] tags=["instructor"]
# **Their own images.** Only `folder` changes: one folder per class, in colour, and `size=` if the images differ. The validation rows are pickled with the
# loop; more than some 50 MB of them belong in a dataset.

# %% [markdown]
# ## Three parts
# ![The rows are divided into three parts: training rows for the weights, validation rows for every choice, test rows for the answer](images/three_parts.svg)
#
# The **test rows** are only for the answer: they choose neither the learning rate nor the checkpoint, and no loop sees them. **Validation rows** decide these; here they're a fifth of the remaining rows. `write` puts Parquet files into
# the store; the rest is plain Ray Data.

# %%
import time

import ray.data
import torch

place = f"{store.bucket('lab-10')}/fruit-{time.strftime('%H%M%S')}"
print(photos.write(place, filesystem=store.filesystem))
ray.data.DataContext.get_current().execution_options.preserve_order = True  # the same split every time
whole = ray.data.read_parquet(f"{place}/train", filesystem=store.filesystem)
train, valid = whole.train_test_split(0.2, shuffle=True, seed=0)


# %% [markdown]
# The parts are small, so each worker may get a copy of the tensors, with the functions that use them.


# %%
def tensors(dataset):
    return next(iter(dataset.iter_torch_batches(batch_size=dataset.count())))


train_rows, valid_rows = tensors(train), tensors(valid)
test = dict(zip(("x", "y"), map(torch.from_numpy, photos.load("test")), strict=True))
[tuple(rows["x"].shape) for rows in (train_rows, valid_rows, test)]

# %% [markdown]
# ### Exercise 10-1 · A leak
# In your hall, each fruit is photographed several times while it rolls by. This function picks photographs for testing at random, so most fruits have some on both sides. The model
# then recognizes *that apple*, and the accuracy is too good. That is a **leak**. Fix the function so that all photographs of a fruit go to the same side. `fruits[i]` is the number of the fruit on photograph `i`, and `share` is the share of the fruits for testing. If you are stuck: `hint("10-1")`.


# %%
def for_testing(fruits, share, seed):  # your answer: fix it
    numbers = np.random.default_rng(seed)
    return numbers.random(len(fruits)) < share  # True for photographs for testing


# %% tags=["solution"]
def for_testing(fruits, share, seed):
    numbers = np.random.default_rng(seed)
    different = np.unique(fruits)
    chosen = different[numbers.random(len(different)) < share]
    return np.isin(fruits, chosen)


# %%
check("10-1", for_testing)

# %% [markdown]
# ## Model and loop
# Pixels become numbers from 0 to 1, with the colours first.

# %%
from torch import nn
from torch.nn import functional as F


def build_model(width, seed):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(8)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * width * 8 * 8, kinds))


def pixels(images, arm):
    x = images.permute(0, 3, 1, 2).float() / 255
    return x.mean(dim=1, keepdim=True).expand_as(x) if arm == "grey" else x


# %% [markdown] tags=["instructor"]
# **`cannot pickle '_Classes' object`.** A function uses torch and the name `classes`; see [When something is wrong](../troubleshooting.md).


# %%
def train_epoch(model, optimizer, batches, arm):
    for batch in batches:
        x = pixels(batch["x"], arm)
        if arm == "mirrored" and torch.rand(1) < 0.5:
            x = x.flip(3)
        loss = F.cross_entropy(model(x), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def measure(model, rows, arm):
    device = next(model.parameters()).device
    logits, y = model(pixels(rows["x"].to(device), arm)), rows["y"].to(device)
    accuracy = (logits.argmax(dim=1) == y).float().mean().item()
    return {"loss": F.cross_entropy(logits, y).item(), "accuracy": accuracy}


# %% [markdown]
# The loop around it is the one from lesson 03. After each epoch it reports loss and accuracy on the *validation rows*. The loss chooses a checkpoint. The test rows don't appear in the loop: an accuracy that you see after each
# epoch tempts you to choose by it.

# %%
import tempfile

import ray.train
from ray.train.torch import prepare_model


def resume(plain, optimizer):
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as place:
        state = torch.load(f"{place}/state.pt", weights_only=True)
    plain.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1


# %%
def report(plain, optimizer, epoch, arm):
    with tempfile.TemporaryDirectory() as place:
        metrics, checkpoint = {"epoch": epoch}, None
        if ray.train.get_context().get_world_rank() == 0:
            metrics |= measure(plain, valid_rows, arm)
            state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, f"{place}/state.pt")
            checkpoint = ray.train.Checkpoint.from_directory(place)
        ray.train.report(metrics, checkpoint=checkpoint)


# %%
def train_loop(config):
    model = prepare_model(build_model(config["width"], config["seed"]))
    torch.manual_seed(1000 * config["seed"] + ray.train.get_context().get_world_rank())
    plain, optimizer = getattr(model, "module", model), torch.optim.Adam(model.parameters(), lr=config["lr"])
    shard = ray.train.get_dataset_shard("train")
    for epoch in range(resume(plain, optimizer), config["epochs"]):
        shuffle = {"local_shuffle_buffer_size": 256, "local_shuffle_seed": 100 * config["seed"] + epoch}
        rows = shard.iter_torch_batches(batch_size=config["batch_size"], **shuffle)
        steps = config["panel"].steps(rows, epoch=epoch, epochs=config["epochs"])
        train_epoch(model, optimizer, steps, config["arm"])
        report(plain, optimizer, epoch, config["arm"])


# %% [markdown]
# The second `manual_seed` differs between ranks, so each of them mirrors other batches.

# %%
import pandas
from labkit.train import TrainPanel
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

workers = settings.num_workers
scaling = ScalingConfig(num_workers=workers, use_gpu=settings.use_gpu)
basics = {"arm": "colour", "seed": 0, "lr": 0.003, "width": 8, "epochs": 6, "batch_size": 32 // workers}


def train_once(panel, keep, **config):
    run_config = RunConfig(
        name=panel.run_id, storage_path=store.storage_path("runs", "10"),
        storage_filesystem=store.filesystem, checkpoint_config=keep,
        failure_config=FailureConfig(max_failures=1), callbacks=[panel.callback()],
    )  # fmt: skip
    trainer = TorchTrainer(
        train_loop, train_loop_config=basics | config | {"panel": panel}, datasets={"train": train},
        scaling_config=scaling, run_config=run_config,
    )  # fmt: skip
    with panel.watch(trainer):
        return trainer.fit()


# %% [markdown]
# ## Which checkpoint is kept?
# `CheckpointConfig` says how many checkpoints are kept, and by which metric. `num_to_keep=1` keeps the one that Ray ranks first by its loss. A restart needs the latest one, so Ray always keeps that, too.

# %% [markdown] tags=["prediction"]
# **Predict.** The run has six epochs, 0 to 5, and the loss falls most of the time. Which epoch's checkpoint will Ray rank first?

# %%
predict("10-a", ...)  # a number

# %%
panel = TrainPanel("10-first", dataset=photos, rows=train.count())
first = train_once(panel, CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="loss"))
_, kept = first.best_checkpoints[-1]  # from worst to best
reveal("10-a", kept["epoch"])
pandas.DataFrame([kept, first.metrics], index=["ranked first", "latest"])

# %% [markdown] tags=["instructor"]
# **"Where is the test accuracy?"** Not in the curves: these are all about validation rows. Each run is tested once, at the end, with the checkpoint
# that the loss chose. If you look at a test curve and stop at its best epoch, you have a leak.

# %% [markdown] tags=["instructor"]
# **A warning in red below the first run.** That is the point of the section: the panel warns, and Ray alone doesn't.

# %% tags=["claim"]
assert len(first.best_checkpoints) == 1
assert kept["loss"] > first.metrics["loss"] and kept["accuracy"] < first.metrics["accuracy"]

# %% [markdown]
# Ray ranked the *worst* model first and deleted better ones. `checkpoint_score_order` is `"max"` by default, which is right for an accuracy and wrong for a loss. The panel warned you; Ray
# alone would not have. From now on:

# %%
keep = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="loss", checkpoint_score_order="min")

# %% [markdown]
# ## The sweep
# Choose the learning rate and the width *before* you compare the arms, and by the validation rows.

# %%
from labkit.tune import SweepPanel
from ray import tune


def trial(config, rows, valid):
    torch.set_num_threads(1)
    model = build_model(config["width"], seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for _ in range(4):
        order = torch.randperm(len(rows["y"])).split(32)
        batches = ({name: column[some] for name, column in rows.items()} for some in order)
        train_epoch(model, optimizer, batches, "colour")
        tune.report(measure(model, valid, "colour"))


# %%
sweep = SweepPanel("10-sweep")
tuner = tune.Tuner(
    tune.with_parameters(trial, rows=train_rows, valid=valid_rows),
    param_space={"lr": tune.grid_search([0.0003, 0.003, 0.01]), "width": tune.grid_search([4, 8])},
    tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=2),
    run_config=tune.RunConfig(
        name=sweep.run_id, storage_path=str(settings.home / "runs" / "10-tune"), callbacks=[sweep.callback()]
    ),
)
with sweep.watch(tuner):
    results = tuner.fit()
chosen = results.get_best_result().config
chosen

# %% tags=["claim"]
assert len(results) == 6 and results.num_errors == 0

# %% [markdown]
# The sweep used colour images, which favours that arm. In a real experiment, sweep for each arm.

# %% [markdown]
# ## Three arms, three seeds
# Each run is tested once, after it has ended. The model that answers is the one that the validation loss has chosen, and not the latest one:


# %%
def tested(run, arm):
    model = build_model(chosen["width"], seed=0)
    with run.get_best_checkpoint("loss", "min").as_directory() as place:
        state = torch.load(f"{place}/state.pt", weights_only=True)
    model.load_state_dict(state["model"])
    return {"epoch": state["epoch"], "accuracy": measure(model, test, arm)["accuracy"]}


# %% [markdown]
# Nine runs without panels take a minute or two.

# %% [markdown] tags=["prediction"]
# **Predict.** Accuracies go from 0 to 1. How far above `grey` will `colour` be, in mean accuracy?

# %%
predict("10-b", ...)  # a number

# %% [markdown] tags=["instructor"]
# **Nine runs without a panel.** They take a minute or two on two cores. Meanwhile, ask why one seed isn't enough.

# %%
from dataclasses import replace

quiet, answers = replace(settings, panel="none"), []
for seed in range(3):
    for arm in ("colour", "mirrored", "grey"):
        panel = TrainPanel("10-fruit", settings=quiet, dataset=photos, rows=train.count())
        run = train_once(panel, keep, arm=arm, seed=seed, **chosen)
        answers.append({"arm": arm, "seed": seed} | tested(run, arm))
        print("{arm}, seed {seed}: epoch {epoch}, {accuracy:.3f}".format(**answers[-1]))

# %%
table = pandas.DataFrame(answers)
summary = table.groupby("arm")["accuracy"].agg(["count", "mean", "std"])
reveal("10-b", summary["mean"]["colour"] - summary["mean"]["grey"])
summary.round(3)

# %% tags=["claim"]
assert list(summary["count"]) == [3, 3, 3]
assert summary["mean"]["colour"] - summary["mean"]["grey"] > 0.15
# The loss on the validation rows chose the model that was tested.
newest = [runs.get(id) for id in runs.table(name="10-fruit", last=9)["id"]]
for answer, record in zip(answers, reversed(newest), strict=True):
    losses = [epoch["loss"] for epoch in record.history]
    assert record.config["arm"] == answer["arm"] and losses[answer["epoch"]] == min(losses), (answer, losses)

# %% [markdown]
# `std` is the **standard deviation**: how far the runs of one arm are from their mean. `pandas` divides by n − 1, numpy only with `ddof=1`.

# %% [markdown]
# ### Exercise 10-2 · Is it a difference?
# The mean of a few runs is uncertain, too. Its **standard error** is the standard deviation of the runs, divided by the square root of their number. The standard errors of two independent means add up like the sides of a right
# triangle: square, add, take the root. Write a function that gets the results of two arms as lists, which may be of different length. It returns the mean of `b` minus the mean of `a`, and the standard error of that.


# %% [markdown] tags=["instructor"]
# **Standard deviation or standard error?** Say: "The first is how far single runs are from their mean. The second is how far that mean may be from
# the mean of very many runs, so it shrinks when you add seeds."


# %%
def difference(a, b): ...  # your answer: return two numbers


# %% tags=["solution"]
def difference(a, b):
    of_a, of_b = (np.std(runs_of_arm, ddof=1) / len(runs_of_arm) ** 0.5 for runs_of_arm in (a, b))
    return np.mean(b) - np.mean(a), (of_a**2 + of_b**2) ** 0.5


# %%
check("10-2", difference)

# %% [markdown]
# ## The rule, applied
# `pandas` has the standard error of a mean, too: `sem`.

# %% [markdown] tags=["prediction"]
# **Predict.** Compare `colour` with `mirrored`: is the difference of their means larger than two standard errors?

# %%
predict("10-c", ..., choices=["larger", "not larger"])

# %%
import matplotlib.pyplot as plt
from labkit.display import figure_style

plt.rcParams.update(figure_style())
figure, axes = plt.subplots(figsize=(7, 2.2), layout="constrained")
axes.plot(table["accuracy"], table["arm"], "o", fillstyle="none", label="a run")
axes.errorbar(summary["mean"], summary.index, xerr=summary["std"], fmt="|", capsize=5, label="mean ± std")
axes.set_xlabel("accuracy on test images")
_ = axes.legend()
gap = abs(summary["mean"]["colour"] - summary["mean"]["mirrored"])
error = (table.groupby("arm")["accuracy"].sem()[["colour", "mirrored"]] ** 2).sum() ** 0.5
reveal("10-c", "larger" if gap > 2 * error else "not larger")
print(f"difference {gap:.3f}, standard error {error:.3f}")

# %% [markdown] tags=["instructor"]
# **"Which arm won?"** Perhaps none of two. Say: "What would you need to see to be sure?" More seeds, or more test images.

# %% [markdown]
# The grey camera is clearly worse: its best run is far below the worst of all others. Mirroring makes a small difference at most. If it's smaller than two standard errors, the honest answer is "we can't tell". To see
# smaller differences you need more seeds, or more test images: on 400 images, an accuracy of 0.9 is itself uncertain by 0.015.

# %% tags=["claim"]
accuracy = table.groupby("arm")["accuracy"]
assert accuracy.max()["grey"] < min(accuracy.min()["colour"], accuracy.min()["mirrored"]) - 0.05
assert gap < 0.06

# %% [markdown]
# With three runs per arm this rule is weak: about one in nine pairs of *equal* arms would still look different. The more arms you try, the likelier that is, so report how many you tried.

# %% [markdown]
# ## Hand it in
# `runs.report` writes the records into one HTML file, with your words and figures: each run, mean and spread of each arm, curves, settings, loop, versions and git commit. The records have only validation metrics; the accuracies
# on the test rows are in your words and in your figure.

# %%
words = f"""Question: does a grey camera sort as well as a colour camera, and does mirroring help?

Answer: grey loses {summary["mean"]["colour"] - summary["mean"]["grey"]:.2f} of accuracy (mean of three seeds).
Mirroring changes it by {gap:.3f}, with a standard error of {error:.3f}.

Three arms were tried. The learning rate and the width come from a sweep over six settings."""
page = runs.report(
    settings.home / "fruit.html",
    title="A grey camera for the packing hall", text=words,
    name="10-fruit", last=9, by="arm", metrics="loss", pictures=[figure],
)  # fmt: skip
print(page)

# %% tags=["claim"]
written = page.read_text(encoding="utf-8")
assert all(word in written for word in ("packing hall", "def train_loop", "local_shuffle_seed", "mirrored"))
assert len(list(runs.table(name="10-fruit", last=9)["id"])) == 9

# %% [markdown]
# Open the file in a browser. The data aren't in it, only their name.

# %% [markdown]
# ### Exercise 10-3 · A table of your own
# Here is a table of flats with their prices. `datasets.from_table` makes rows of it. A column that isn't numbers has to be named: `categories` makes columns of zeros and ones out of the districts, and `drop` would leave a column out. `scaled` uses mean and standard deviation of the *training rows*; those of all rows would be a leak.

# %%
size, district = numbers.uniform(25, 140, 900), numbers.choice(["north", "south", "port"], 900)
price = 40 + 3 * size + 90 * (district == "port") + numbers.normal(0, 25, 900)
frame = pandas.DataFrame({"size": size, "district": district, "price": price})
flats = datasets.from_table(frame, target="price", categories=["district"])
x, y = flats.load("train")
centre, scale = x.mean(axis=0), x.std(axis=0)


def scaled(batch):
    return {"x": (batch["x"] - centre) / scale, "y": batch["y"]}


flats.write(f"{place}-flats", filesystem=store.filesystem)
flats_train = ray.data.read_parquet(f"{place}-flats/train", filesystem=store.filesystem).map_batches(scaled)
flats_train.take_batch(2)

# %% [markdown]
# Write a loop that trains `torch.nn.Linear(columns, 1)` with SGD on the shard "train", which has such rows. Choose learning rate and batch size. `config["valid"]` is a tuple of two tensors, x [n, columns], scaled, and y [n].
# - After each of `config["epochs"]` epochs the loop reports `epoch` and `rmse`, the root of the mean squared error on these validation rows, with a checkpoint. The check wants less than 20 after four epochs; 5 is noise.
# - If it's restarted, it continues after the latest checkpoint.
# - `keep_two` keeps the two best checkpoints.
#
# The check runs the loop on a smaller table: in this process, then on two workers, which it makes fail after two epochs.


# %%
def train_table(config): ...  # your answer


keep_two = ...  # your answer


# %% tags=["solution"]
def train_table(config):
    x_valid, y_valid = config["valid"]
    model = prepare_model(nn.Linear(x_valid.shape[1], 1))
    plain, optimizer = getattr(model, "module", model), torch.optim.SGD(model.parameters(), lr=0.05)
    first, rank = resume(plain, optimizer), ray.train.get_context().get_world_rank()
    for epoch in range(first, config["epochs"]):
        for batch in ray.train.get_dataset_shard("train").iter_torch_batches(batch_size=16):
            loss = F.mse_loss(model(batch["x"]).squeeze(1), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad(), tempfile.TemporaryDirectory() as place:
            rmse = F.mse_loss(plain(x_valid).squeeze(1), y_valid).sqrt().item()
            state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, f"{place}/state.pt")
            checkpoint = ray.train.Checkpoint.from_directory(place) if rank == 0 else None
            ray.train.report({"epoch": epoch, "rmse": rmse}, checkpoint=checkpoint)


keep_two = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="rmse", checkpoint_score_order="min")

# %% [markdown] tags=["instructor"]
# **An rmse as large as the spread of the prices.** `model(x)` has the shape [n, 1] and y has [n], so their difference is [n, n], and the model
# learns the mean price. Torch only warns. Say: "Print both shapes before the loss."

# %%
check("10-3", train_table, keep_two, store)

# %% [markdown] tags=["extra"]
# ## Extra: text, and the same number twice
# `datasets.from_text` cuts text into rows of tokens; here each byte is one. For each token of `x`, `y` has the one that follows, and that is what a language model predicts. Its **perplexity** is e to the power of the
# mean loss: 256 if it knows nothing, and 1 if it's always sure and right.

# %%
sentences = datasets.shipped("sentences.tsv").read_text(encoding="utf-8").splitlines()
text = settings.home / "sentences.txt"
text.write_text("\n".join(line.split("\t")[1] for line in sentences), encoding="utf-8")
lines = datasets.from_text(text, length=32, test=0.2, seed=0)
lines

# %% [markdown] tags=["extra"]
# ### Exercise 10-4 · The same number twice
# This loop runs without an error. Fix three things. With the same `config["seed"]` two runs should return the same number on rank 0, and with another seed another one. The two ranks should share
# the training rows, `config["train"]`, instead of each training on all of them. And the loop should return the perplexity of the test rows, `config["test"]`. Both are tuples of two tensors, x and y.


# %%
def train_text(config):  # your answer: fix it
    x, y = config["train"]
    model = prepare_model(nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 256)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(config["epochs"]):
        for rows in torch.randperm(len(x)).split(16):
            loss = F.cross_entropy(model(x[rows]).transpose(1, 2), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.exp().item()


# %% tags=["solution"]
def train_text(config):
    context = ray.train.get_context()
    mine = slice(context.get_world_rank(), None, context.get_world_size())
    x, y = (column[mine] for column in config["train"])
    torch.manual_seed(config["seed"])
    model = prepare_model(nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 256)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(config["epochs"]):
        for rows in torch.randperm(len(x)).split(16):
            loss = F.cross_entropy(model(x[rows]).transpose(1, 2), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    x, y = config["test"]
    with torch.no_grad():
        return F.cross_entropy(model(x).transpose(1, 2), y).exp().item()


# %%
check("10-4", train_text)

# %% [markdown] tags=["extra"]
# Without a seed, all workers of this lab begin with the same random numbers, because they are forked from one process; in plain Ray each begins with its own. On GPUs, not even a seed is enough,
# because some operations add in no fixed order. `torch.use_deterministic_algorithms(True)` replaces them, or raises an error. Ray Data hands out blocks in no fixed order either, unless
# `preserve_order` is set, as above. Without it, `train_test_split` with the same seed returned eight different splits in eight calls, and a run that resumes would be validated on rows that it was trained on.
# Otherwise you rarely need all of this: three seeds and their spread say more than the same number twice.

# %% [markdown]
# ## Key points
# - Write down question, arms, metric, seeds and rule before the first run.
# - Weights learn from training rows, choices are made by validation rows, and test rows only answer. Rows that belong together stay on one side.
# - `checkpoint_score_order` is `"max"` by default, so write `"min"` for a loss or an error.
# - Compare the means of several seeds, and weigh their difference against its standard error.
#
# | older tutorials | today |
# |---|---|
# | `tune.run(…, checkpoint_score_attr="min-loss")` | `CheckpointConfig(checkpoint_score_attribute="loss", checkpoint_score_order="min")` |

# %% [markdown] tags=["plain"]
# ## Without the lab
# Two arms with three seeds each, on a folder of images that may be yours, in plain Ray and PyTorch:

# %% [markdown] tags=["links"]
# ## Reference

# %% [markdown]
# ## Stop

# %%
store.stop()
lab.stop()
