# %% [markdown]
# # 10 · Your own experiment
#
# By the end of this lesson you can
# - keep test rows that have nothing in common with the training rows (exercise 10-1);
# - keep the right checkpoint, and look at the test rows once;
# - say whether a difference between two settings is more than chance (10-2);
# - make a run that you can repeat exactly (10-4);
# - write the whole loop for a table of your own (10-3).
#
# **Time** about 110 minutes · **Needs** 00, 03, 03b, 05
#
# A packing hall sorts fruit by photograph. A grey camera costs half as much as a colour camera, and a third camera delivers its colours in the order blue, green, red. Which ones are good enough? You could train one model for each and
# compare three numbers. But a different seed changes these numbers, too, so you need an experiment.
#
# In 2023, Sayash Kapoor and Arvind Narayanan collected mistakes in published studies that use machine learning
# ([*Leakage and the reproducibility crisis*](https://doi.org/10.1016/j.patter.2023.100804)). In 17 fields they found *leakage*: models had used information that they wouldn't have in practice. 294 papers were affected, and some of their
# results disappeared when the leak was closed. This lesson is about not becoming number 295.

# %% [markdown]
# ## First the question
# Write these five lines *before* the first run that counts. If you decide afterwards what counts, you'll always find something.
#
# - **Question.** Do a grey camera and a blue-first camera sort as well as the colour camera?
# - **Arms.** The settings that you compare are called arms: here colour, grey and blue first.
# - **Metric.** The accuracy on test photographs, of the checkpoint with the lowest validation loss.
# - **Seeds.** Three for each arm, because the initial weights and the order of the rows are random, and the accuracy depends on both.
# - **Rule.** A difference counts if it's larger than two of its standard errors. A standard error is how far chance may move a mean, or a difference of means; you compute it in exercise 10-2.
#
# ## Photographs of fruit
# You have no photographs of fruit at hand, so this cell paints 800: ellipses on a noisy background. At work you have a folder of images per class; `read_images` in `notebooks/own_experiment/images.py` makes arrays like these from it.

# %%
import numpy as np
import torch
from torch.utils.data import TensorDataset

COLOURS = [(200, 60, 50), (225, 205, 70), (130, 185, 70), (110, 60, 130)]  # apple, lemon, lime, plum
numbers = np.random.default_rng(0)
rows, columns = np.mgrid[:32, :32]


def photograph(fruit):
    picture = numbers.integers(60, 200, (32, 32, 3))
    top, left = numbers.uniform(11, 21, 2)
    height, width = numbers.uniform(7, 15, 2)
    inside = ((rows - top) / height) ** 2 + ((columns - left) / width) ** 2 < 1
    picture[inside] = numbers.uniform(0.6, 1.15) * np.array(COLOURS[fruit]) + numbers.normal(0, 24, 3)
    return picture.clip(0, 255).transpose(2, 0, 1)  # [3 colours, height, width]


fruits = torch.arange(800) % 4
photos = torch.tensor(np.stack([photograph(fruit) for fruit in fruits])).float() / 255

# %% [markdown] tags=["instructor"]
# **Their own images.** Copy `read_images` from `notebooks/own_experiment/images.py` into the cell, call `x, y, classes = read_images("photos", size=(32, 32))`, shuffle the rows, and put the colours first. The rows are pickled with the run; more than some 50 MB of them belong in a Ray dataset (lesson 02).

# %% [markdown]
# ## Which checkpoint is kept?
# The first run uses `my_loop.py` from lesson 03b: 480 photographs to train on, and 120 to measure the accuracy after each epoch.
#
# Your question is about the checkpoint with the lowest loss, so Ray must not delete it. `CheckpointConfig` sets how many checkpoints are kept, and by which metric. With `num_to_keep=1`, Ray keeps the one that it ranks first, and
# always the latest, because a restart needs that.

# %%
import my_loop
from ray import cloudpickle
from ray.train import CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

cloudpickle.register_pickle_by_value(my_loop)


def make_model():
    nn = torch.nn
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 8 * 8, 4))


train, valid = TensorDataset(photos[:480], fruits[:480]), TensorDataset(photos[480:600], fruits[480:600])
config = {"make_model": make_model, "train": train, "test": valid, "epochs": 6, "batch_size": 16, "lr": 0.02}

# %% [markdown] tags=["prediction"]
# **Predict.** Each of the six epochs reports the loss of its last batch, which falls with ups and downs. Which epoch's checkpoint will Ray rank first? Decide before the run, because its panel gives the answer away.

# %%
from course.exercises import check, hint, predict, reveal

predict("10-a", ..., choices=["epoch 0", "one of the epochs 1 to 4", "epoch 5"])

# %%
import tempfile

from labkit.local import cluster
from labkit.train import TrainPanel

lab = cluster.start()
keep = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="loss")
trainer = TorchTrainer(
    my_loop.train_loop,
    train_loop_config=config,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=tempfile.mkdtemp(), checkpoint_config=keep),
)
with TrainPanel("10-first").watch(trainer):
    first = trainer.fit()
_, kept = first.best_checkpoints[-1]  # from worst to best

# %% tags=["claim"]
assert len(first.best_checkpoints) == 1

# %%
import pandas

from labkit import runs

if kept["epoch"] == 0:
    reveal("10-a", "epoch 0")
elif kept["epoch"] == 5:
    reveal("10-a", "epoch 5")
else:
    reveal("10-a", "one of the epochs 1 to 4")
print("ranked first: epoch", kept["epoch"])
epochs = pandas.DataFrame(runs.latest("10-first").history)
epochs

# %% tags=["claim"]
assert len(epochs) == 6 and kept["loss"] == epochs["loss"].max() > epochs["loss"].min()

# %% [markdown] tags=["instructor"]
# **A warning in red below the first run.** That's the point of the section: the panel warns, and Ray by itself doesn't.

# %% [markdown]
# Ray ranked the checkpoint with the *highest* loss first. Of the others it kept only the latest, and only because a restart needs it. Nothing looks wrong: the run ends, and there is a best checkpoint. The reason is `checkpoint_score_order`, which is `"max"` by default. That's right for an
# accuracy and wrong for a loss. The lab's panel warns you; Ray doesn't. Here is the repair:

# %%
keep = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="loss", checkpoint_score_order="min")

# %% [markdown]
# ## Three parts
# Why isn't one test set enough? Because every choice that you make by looking at rows fits your model to these rows a little. So you need a part that no choice has ever seen.
#
# ![The rows are divided into three parts: training rows for the weights, validation rows for every choice, test rows for the answer](images/three_parts.svg)
#
# The training rows set the weights. The **validation rows** decide everything that you choose: the learning rate, and which checkpoint to keep. The **test rows** are only for the answer, and you look at them once. (Here the four fruits alternate, so every part has all of them. Shuffle yours before you divide them.)

# %%
PARTS = {"train": slice(0, 480), "valid": slice(480, 600), "test": slice(600, 800)}
ARMS = {
    "colour": lambda x: x,
    "grey": lambda x: x.mean(dim=1, keepdim=True).repeat(1, 3, 1, 1),
    "blue first": lambda x: x.flip(1),
}


def seen_by(arm, part):
    return TensorDataset(ARMS[arm](photos[PARTS[part]]), fruits[PARTS[part]])


# %% [markdown]
# ### Exercise 10-1 ★ · A leak
# In your hall, each piece of fruit is photographed several times while it rolls by. This function picks *photographs* for testing at random, so most pieces end up on both sides. The model then recognizes *that apple*, and the accuracy is too good. This is
# a **leak**. Fix the function so that all photographs of a piece go to the same side. `pieces[i]` is the number of the piece on photograph `i`, and `share` is the share of the pieces for testing.


# %%
def for_testing(pieces, share, seed):  # your answer: fix it
    numbers = np.random.default_rng(seed)
    return numbers.random(len(pieces)) < share  # True for photographs for testing


# %% tags=["solution"]
def for_testing(pieces, share, seed):
    numbers = np.random.default_rng(seed)
    different = np.unique(pieces)
    chosen = different[numbers.random(len(different)) < share]
    return np.isin(pieces, chosen)


# %%
check("10-1", for_testing)

# %% [markdown]
# ## A loop with a seed
# The experiment needs a loop of its own. Saving and resuming still come from `my_loop.py`. Besides Adam, three things are new:
#
# - The seed sets the initial weights *and* the order of the rows, so a run with a different seed is a different draw.
# - After each epoch, the loop measures loss and accuracy on the validation rows, so Ray ranks the checkpoints by the validation loss, not by one training batch.
# - The test rows don't appear in it.

# %%
from ray.train.torch import prepare_data_loader, prepare_model
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


@torch.no_grad()
def measure(model, rows):
    x, y = rows[:]
    answers = model(x)
    accuracy = (answers.argmax(dim=1) == y).float().mean()
    return {"loss": cross_entropy(answers, y).item(), "accuracy": accuracy.item()}


# %%
def train_loop(config):
    torch.manual_seed(config["seed"])
    model = prepare_model(make_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    loader = prepare_data_loader(DataLoader(config["train"], batch_size=32, shuffle=True))
    first = my_loop.resume(model, optimizer)
    for epoch in range(first, config["epochs"]):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(1000 * config["seed"] + epoch)
        for x, y in loader:
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        plain = getattr(model, "module", model)
        my_loop.save(model, optimizer, epoch, measure(plain, config["valid"]))


# %% [markdown]
# ## Choose the learning rate first
# If you tune the learning rate for one arm and not for the others, you compare your patience and not the cameras. So choose it before you compare, and by the validation rows. This short sweep (lesson 05) tries three values, on colour only. In a real experiment, sweep for each arm. `tune.with_parameters` stores the datasets once, instead of sending them with each trial.

# %%
from ray import tune


def trial(config, train, valid):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for _ in range(3):
        for x, y in DataLoader(train, batch_size=32, shuffle=True):
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    tune.report(measure(model, valid))


tuner = tune.Tuner(
    tune.with_parameters(trial, train=train, valid=valid),
    param_space={"lr": tune.grid_search([0.0001, 0.003, 0.1])},
    tune_config=tune.TuneConfig(metric="loss", mode="min"),
    run_config=tune.RunConfig(storage_path=tempfile.mkdtemp(), verbose=0),
)
results = tuner.fit()
chosen = results.get_best_result().config["lr"]
chosen

# %% tags=["claim"]
assert len(results) == 3 and results.num_errors == 0 and chosen == 0.003

# %% [markdown]
# ## Three arms, three seeds
# A model this small trains fastest with one worker (lesson 03), so each run has one. After the run, `tested` loads the checkpoint with the lowest validation loss, whatever epoch it comes from, and measures it on the test rows once.


# %%
from labkit.local import storage
from ray.train import FailureConfig

store = storage.start()


def make_trainer(arm, seed):
    config = {"arm": arm, "seed": seed, "lr": chosen, "epochs": 6}
    return TorchTrainer(
        train_loop,
        train_loop_config=config | {"train": seen_by(arm, "train"), "valid": seen_by(arm, "valid")},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            storage_path=store.storage_path("runs", "10"),
            storage_filesystem=store.filesystem,
            checkpoint_config=keep,
            failure_config=FailureConfig(max_failures=1),
        ),
    )


def tested(run, arm):
    best = run.get_best_checkpoint("loss", "min")
    with best.as_directory() as place:
        state = torch.load(f"{place}/state.pt", weights_only=True)
    model = make_model()
    model.load_state_dict(state["model"])
    return state["epoch"], measure(model, seen_by(arm, "test"))["accuracy"]


# %% [markdown] tags=["prediction"]
# **Predict.** Accuracies go from 0 to 1, and guessing gives 0.25. How far above grey will colour be, in mean accuracy?

# %%
predict("10-b", ...)  # a number

# %% [markdown] tags=["instructor"]
# **Nine runs without a panel.** They take about half a minute on two cores. Meanwhile, ask why one seed isn't enough.

# %%
from dataclasses import replace

from labkit.settings import Settings

quiet = replace(Settings.from_env(), panel="none")
seeds = range(2 if quiet.small else 3)  # small mode: two
answers = []
for seed in seeds:
    for arm in ARMS:
        trainer = make_trainer(arm, seed)
        with TrainPanel("10-fruit", settings=quiet).watch(trainer):
            run = trainer.fit()
        epoch, accuracy = tested(run, arm)
        answers.append({"arm": arm, "seed": seed, "epoch": epoch, "accuracy": accuracy})
        print(f"{arm}, seed {seed}: epoch {epoch}, accuracy {accuracy:.3f}")

# %%
table = pandas.DataFrame(answers)
summary = table.groupby("arm")["accuracy"].agg(["count", "mean", "std"])
reveal("10-b", summary["mean"]["colour"] - summary["mean"]["grey"])
summary.round(3)

# %% tags=["claim"]
assert list(summary["count"]) == [len(seeds)] * 3
assert summary["mean"]["colour"] - summary["mean"]["grey"] > 0.15
# The loss on the validation rows chose the model that was tested.
newest = [runs.get(id) for id in runs.table("10-fruit", last=len(answers))["id"]]
for answer, record in zip(answers, reversed(newest), strict=True):
    losses = [epoch["loss"] for epoch in record.history]
    assert record.config["arm"] == answer["arm"] and losses[answer["epoch"]] == min(losses), (answer, losses)

# %% [markdown]
# The column with the **standard deviation**, `std`, shows how far the runs of one arm are from their mean. They differ only by their seeds! From a single run for each arm, you'd have read a difference of this size as a result.
#
# ### Exercise 10-2 ★★ · Is it a difference?
# The mean of a few runs is uncertain, too. Its **standard error** is the standard deviation, divided by the square root of the number of runs. The standard errors of two independent means add up like the sides of a right triangle:
#
# ![A right triangle: the legs are the standard errors of a and b, the hypotenuse is the standard error of their difference](images/standard_errors.svg)
#
# Write a function that gets the results of two arms as lists, which may have different lengths. It returns two numbers: the mean of `b` minus the mean of `a`, and the standard error of that difference. Careful: `np.std` divides by n unless you pass `ddof=1`, and for
# a few runs it should be n − 1.
#
# All arms use the same seeds, so the runs of a seed are a pair. Here we treat them as independent. The standard error contains what the seeds change, but not that other test images would give other accuracies.


# %%
def difference(a, b): ...  # your answer: return two numbers


# %% tags=["solution"]
def difference(a, b):
    error_a = np.std(a, ddof=1) / len(a) ** 0.5
    error_b = np.std(b, ddof=1) / len(b) ** 0.5
    return np.mean(b) - np.mean(a), (error_a**2 + error_b**2) ** 0.5


# %%
check("10-2", difference)

# %% [markdown] tags=["instructor"]
# **Standard deviation or standard error?** Say: "The first is how far single runs are from their mean. The second is how far that mean may be from the mean of very many runs, so it shrinks when you add seeds."

# %% [markdown]
# ## The rule, applied
# Now apply the rule that you wrote down at the start. (The method `sem` returns the standard error of a mean.)

# %% [markdown] tags=["prediction"]
# **Predict.** Compare colour with blue first: is the difference of their means larger than two of its standard errors?

# %%
predict("10-c", ..., choices=["larger", "not larger"])

# %%
means = summary["mean"]
errors = table.groupby("arm")["accuracy"].sem()
gap = abs(means["colour"] - means["blue first"])
error = (errors["colour"] ** 2 + errors["blue first"] ** 2) ** 0.5
if gap > 2 * error:
    reveal("10-c", "larger")
else:
    reveal("10-c", "not larger")
print(f"difference {gap:.3f}, standard error {error:.3f}")

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(7, 2.2), layout="constrained")
axes.margins(y=0.2)
axes.plot(table["accuracy"], table["arm"], "o", fillstyle="none", label="a run")
axes.errorbar(means, summary.index, xerr=2 * errors, fmt="|", capsize=5, label="mean ± 2 standard errors")
axes.set_xlabel("accuracy on test images")
_ = axes.legend()

# %% tags=["claim"]
accuracy = table.groupby("arm")["accuracy"]
assert accuracy.max()["grey"] < min(accuracy.min()["colour"], accuracy.min()["blue first"]) - 0.05
assert gap < 0.06

# %% [markdown] tags=["instructor"]
# **"Which arm won?"** Perhaps none of two. Say: "What would you need to see to be sure?" More seeds, or more test images.

# %% [markdown]
# The grey camera is clearly worse: its best run is far below the worst run of the others. Between colour and blue first, you see a small difference. Here we happen to know the truth: it's exactly zero. The initial weights are drawn in the same way for each colour, so the network can't
# prefer an order, and what you see is chance. In most experiments, no one knows the truth. If the difference is smaller than two standard errors, the honest answer is "we can't tell".
#
# And if your run said "larger"? That happens. With three runs for each arm, about one in nine pairs of *equal* arms looks different by this rule. The more arms you try, the likelier it gets, so report how many you tried. To see
# smaller differences, you need more seeds or more test images: on 200 images, an accuracy of 0.9 is itself uncertain by 0.02.
#
# ## Hand it in
# A colleague should be able to understand and repeat what you did. This notebook already has the question, the arms, the rule, the loop and the figure. Two things are missing: the answer in your words, and where the runs come from.

# %%
from IPython.display import Markdown

Markdown(f"""
**Answer.** Grey loses {means["colour"] - means["grey"]:.2f} of accuracy on test images (mean of {len(seeds)} seeds).
Blue first changes it by {gap:.3f}, with a standard error of {error:.3f}.

Three arms were tried. The learning rate comes from a sweep over three values, on colour.
""")

# %%
record = runs.latest("10-fruit")
print("commit", record.commit, "with", record.versions)
fruit = runs.table("10-fruit", last=len(answers))
fruit[["id", "arm", "seed", "lr", "epochs", "loss", "accuracy"]]

# %% [markdown]
# The records of the runs contain only validation metrics, so the test accuracies are in your words. Now save the notebook (Ctrl-S), and turn the file into an HTML page, with everything that you see here. `nbconvert` does that; JupyterLab brings it, and its menu *File → Save and Export Notebook As → HTML* does the same.

# %%
import sys
from pathlib import Path

folder = Path(tempfile.mkdtemp())
# !{sys.executable} -m nbconvert --to html 10_own_experiment.ipynb --output-dir {folder}
print("open this file in a browser:", folder / "10_own_experiment.html")

# %% tags=["claim"]
written = (folder / "10_own_experiment.html").read_text(encoding="utf-8")
assert all(word in written for word in ("packing hall", "train_loop", "set_epoch", "blue first"))
assert list(fruit["arm"]) == [answer["arm"] for answer in reversed(answers)]

# %% [markdown]
# ## The same number twice
# Your colleague repeats the run and gets a different number. Is something broken, or is it chance? You can only tell if the run is reproducible: the same seed leads to exactly the same number.
#
# ### Exercise 10-4 ★★ · The same number twice
# This small language model predicts the next letter: each row of x has eight letters, and y has the letter that follows each of them. Its **perplexity** is e to the power of the mean loss: 256 if it knows nothing, and 1 if it's always sure and right. The loop runs without an error.
# Leave the model and the batches of 16 alone. (`cross_entropy` expects the classes in dimension 1: hence `transpose`.) Fix three things:
#
# - With the same seed, `config["seed"]`, two runs return the same number on rank 0. With a different seed, they return a different one.
# - The two ranks share the training rows, `config["train"]`, so that neither trains on all of them. Rank 0 takes every second row from row 0 on, rank 1 from row 1 on.
# - The loop returns the perplexity of the test rows, `config["test"]`.
#
# `config["train"]` and `config["test"]` are tuples of two tensors, x and y. The check runs your loop on two workers, three times.

# %%
import ray.train


def train_text(config):  # your answer: fix it
    x, y = config["train"]
    model = prepare_model(torch.nn.Sequential(torch.nn.Embedding(256, 32), torch.nn.Linear(32, 256)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(config["epochs"]):
        for some in torch.randperm(len(x)).split(16):
            loss = cross_entropy(model(x[some]).transpose(1, 2), y[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.exp().item()


# %% tags=["solution"]
def train_text(config):
    rank = ray.train.get_context().get_world_rank()
    workers = ray.train.get_context().get_world_size()
    x, y = config["train"]
    x, y = x[rank::workers], y[rank::workers]
    torch.manual_seed(config["seed"])
    model = prepare_model(torch.nn.Sequential(torch.nn.Embedding(256, 32), torch.nn.Linear(32, 256)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(config["epochs"]):
        for some in torch.randperm(len(x)).split(16):
            loss = cross_entropy(model(x[some]).transpose(1, 2), y[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    x, y = config["test"]
    with torch.no_grad():
        return cross_entropy(model(x).transpose(1, 2), y).exp().item()


# %%
check("10-4", train_text)

# %% [markdown]
# ## A table of your own
# Here is a CSV file of flats: their size, the code of their district, and their price. One of the districts has the code `NA`. See what pandas makes of it:

# %%
size = numbers.uniform(25, 140, 900)
district = numbers.choice(["NA", "S1", "S2"], 900)
price = 40 + 3 * size + 90 * (district == "S2") + numbers.normal(0, 5, 900)
path = Path(tempfile.mkdtemp(), "flats.csv")
pandas.DataFrame({"size": size, "district": district, "price": price}).to_csv(path, index=False)
pandas.read_csv(path)["district"].value_counts(dropna=False)

# %% tags=["claim"]
assert pandas.read_csv(path)["district"].isna().sum() == (district == "NA").sum() > 0

# %% [markdown]
# The code became `NaN`, "not a number", as if these flats had no district. pandas does that with `NA`, `None`, `null` and some more texts, and says nothing. The codes `007` and `7` would become the same number in the same way.
#
# The function below reads the file without such guesses. It's the one in the template `notebooks/own_experiment/table.py`. You name the columns of texts, and every other column must have a number in every row. It prints what it made of each column, so read that first:


# %%
def read_table(path, target, categories=(), drop=(), **options):
    """Return the table with its texts unchanged, and the numbers that the model gets, without the target."""
    texts = [*categories, *drop]
    options = {"keep_default_na": False, "encoding": "utf-8-sig", **options}
    table = pandas.read_csv(path, dtype=dict.fromkeys(texts, str), **options)
    if not isinstance(table.index, pandas.RangeIndex):
        raise ValueError(f"the rows of {path} have more cells than its header")
    for name, column in table.items():
        if name in texts:
            print(f"{name}: {column.nunique()} texts, such as {sorted(column.unique())[:5]}")
            continue
        numbers = pandas.to_numeric(column, errors="coerce").astype(float)
        if not np.isfinite(numbers).all():
            row = np.isfinite(numbers).argmin()
            fix = "fill it with a number, leave out the row, or name the column in categories or drop"
            raise ValueError(f"{name!r} has {column[row]!r} in row {row + 2}: {fix}")
        if name != target and column.dtype.kind in "iu" and numbers.abs().max() > 2**24:
            raise ValueError(f"{name!r} has whole numbers above 16,777,216, which float32 rounds")
        print(f"{name}: numbers from {numbers.min():g} to {numbers.max():g}")
    x = table.drop(columns=[target, *drop], errors="ignore")  # new rows have no target
    if categories:  # each value becomes a column of zeros and ones
        x = pandas.get_dummies(x, columns=list(categories), dtype=float)
    return table, x.astype("float32")


# %%
flats, x = read_table(path, target="price", categories=["district"])
flats.head(3)

# %% tags=["claim"]
assert list(flats["district"]) == list(district)
assert list(x.columns[1:]) == ["district_NA", "district_S1", "district_S2"]

# %% [markdown]
# No flat has lost its district: each code is a column of zeros and ones in `x`. Now scale the columns with mean and standard deviation of the *training rows*. If you used all rows, something of the test rows would leak.

# %%
in_training = numbers.random(len(x)) < 0.8
x = (x - x[in_training].mean()) / x[in_training].std()
y = flats["price"].astype("float32")
flat_rows = TensorDataset(torch.tensor(x[in_training].to_numpy()), torch.tensor(y[in_training].to_numpy()))

# %% [markdown]
# ### Exercise 10-3 ★★★ · Write the loop
# Write a loop for such rows, with what you have learnt in this lesson and in 03b. The model is `torch.nn.Linear(columns, 1)`, trained with SGD. `config["train"]` is a dataset like `flat_rows`, and `config["valid"]` is a tuple of two tensors: x of shape [n, columns], and the prices y of shape [n].
#
# - After each of `config["epochs"]` epochs, the loop saves a checkpoint and reports `epoch`, from 0, and `rmse`: the root of the mean squared error on the validation rows. You choose the batch size and the learning rate. The prices have noise with a standard deviation of 5, and the check wants an rmse of less than 20 after four epochs.
# - Two workers share the rows, and their weights stay equal.
# - If the loop is restarted, it loads the latest checkpoint and continues with the next epoch.
# - `keep_two` keeps the two best checkpoints.
#
# The check runs your loop in this process, then on two workers, and makes it fail after two epochs.


# %%
def train_table(config): ...  # your answer


keep_two = ...  # your answer

# %% [markdown]
# If you'd rather fill in blanks, which makes it ★★, paste this version over it:
#
# ```python
# def train_table(config):
#     x_valid, y_valid = config["valid"]
#     model = prepare_model(torch.nn.Linear(x_valid.shape[1], 1))
#     optimizer = torch.optim.SGD(model.parameters(), lr=...)
#     loader = prepare_data_loader(DataLoader(config["train"], batch_size=..., shuffle=True))
#     first = ...
#     for epoch in range(first, config["epochs"]):
#         if hasattr(loader.sampler, "set_epoch"):
#             loader.sampler.set_epoch(epoch)
#         for x, y in loader:
#             loss = torch.nn.functional.mse_loss(..., y)
#             optimizer.zero_grad()
#             loss.backward()
#             optimizer.step()
#         with torch.no_grad():
#             plain = getattr(model, "module", model)
#             rmse = ...
#         my_loop.save(model, optimizer, epoch, {"rmse": rmse})
#
#
# keep_two = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute=..., checkpoint_score_order=...)
# ```


# %% tags=["solution"]
def train_table(config):
    x_valid, y_valid = config["valid"]
    model = prepare_model(torch.nn.Linear(x_valid.shape[1], 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = prepare_data_loader(DataLoader(config["train"], batch_size=16, shuffle=True))
    first = my_loop.resume(model, optimizer)
    for epoch in range(first, config["epochs"]):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            plain = getattr(model, "module", model)
            rmse = torch.nn.functional.mse_loss(plain(x_valid).squeeze(1), y_valid).sqrt().item()
        my_loop.save(model, optimizer, epoch, {"rmse": rmse})


keep_two = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="rmse", checkpoint_score_order="min")

# %%
check("10-3", train_table, keep_two, store)

# %% [markdown] tags=["instructor"]
# **An rmse as large as the spread of the prices.** `model(x)` has the shape [n, 1] and y has [n], so their difference is [n, n], and the model learns the mean price. Torch only warns. Say: "Print both shapes before the loss."

# %% [markdown]
# ## Now your own data
# The folder `notebooks/own_experiment` has a template for images, one for a table and one for a text. Copy the one that fits, and change the call that reads the data. Each says what goes wrong in silence with its kind of data: codes that become numbers, images of which only the first page is read, texts in two encodings. Write your five lines first.
#
# ## Key points
# - Write question, arms, metric, seeds and rule down before the first run.
# - Training rows set the weights, validation rows decide, test rows answer. Load the checkpoint that the validation loss chose, and test it once.
# - For an error metric, set `checkpoint_score_order="min"`. Otherwise the worst model is kept.
# - Compare means of several seeds with their standard errors, and say how many arms you tried.
#
# **A question to take along.** Two arms differ by 0.4 points, each with three seeds. What do you have to know before you call one of them better?
#
# <details><summary>Compare your answer</summary>How much the seeds differ from each other: compare the difference with its standard error. And how many arms you tried, because the best of many is often luck.</details>
#
# | older tutorials | today |
# |---|---|
# | one run for each setting, the best number wins | several seeds for each setting, with their standard error |
#
# Where to go next: lesson 11, if your model doesn't fit into one process; lesson 08, if your experiment runs for days.

# %% [markdown] tags=["plain"]
# ## Without the lab
# A smaller comparison on a folder of your own, in plain Ray and PyTorch; its ± is the standard deviation. Each worker takes its rows by `[rank::world]`, as in exercise 10-4, so there is no loader:

# %% [markdown] tags=["links"]
# ## Official pages

# %% [markdown]
# ## Stop

# %%
store.stop()
lab.stop()
