# %% [markdown]
# # 06b · Validation on several workers
#
# By the end of this lesson you can
# - hand one data set to training in parts and another one to validation as a whole;
# - compute a metric over the rows of all workers (exercise 06b-1);
# - validate with a class in `map_batches`, and find what makes its number wrong (06b-2);
# - choose one of three ways by what you measured and by what each needs (06b-3);
# - count the CPUs that a validation needs while training goes on (06b-4), and keep machines for it;
# - write a validator that runs as a `TorchTrainer` of its own (06b-5).
#
# **Time** about 105 minutes · **Needs** 02, 03, 06

# %% [markdown]
# Pythia is a family of 16 language models that was trained for research on how models learn. For each of them, 154 checkpoints were published, and the paper evaluates checkpoints over the whole run
# ([Biderman et al., 2023](https://arxiv.org/abs/2304.01373)). Suppose that one evaluation takes half an hour in one process. Then 154 of them take 77 hours, and the queue of lesson 06 is longer than the training.
#
# What helps is a validation that itself uses several workers. Ray offers three ways to write one, and they fail in different ways.
#
# ![A checkpoint is validated in three ways: a function in one process; a TorchTrainer with two ranks and an all-reduce; map_batches with two actors, whose results Ray Data adds up](images/three_ways.svg)

# %%
from course import datasets
from labkit.local import cluster, storage

lab = cluster.start(cpus_per_node=4)
store = storage.start()

# %% [markdown]
# ## One data set in parts, one as a whole
# There are 2,000 images to train with and 3,001 to validate with, as Parquet files in the store. The odd number is there on purpose.

# %%
import numpy as np
import pyarrow
import pyarrow.parquet


def write(name, digits, count, files=4):  # each image several times, moved by up to a pixel
    numbers = np.random.default_rng(0)
    chosen, shifts = numbers.integers(len(digits), size=count), numbers.integers(-1, 2, size=(count, 2))
    moved = np.stack([np.roll(digits.images[chosen[i]], shifts[i], axis=(0, 1)) for i in range(count)])
    for number in range(files):
        images = pyarrow.FixedShapeTensorArray.from_numpy_ndarray(moved[number::files].reshape(-1, 784))
        rows = {"image": images, "label": digits.labels[chosen[number::files]]}
        with store.filesystem.open_output_stream(f"{folder}/{name}/{number}.parquet") as file:
            pyarrow.parquet.write_table(pyarrow.table(rows), file)


folder = store.storage_path("lab-06b")
write("train", datasets.load("digits", "train"), 2000)
write("valid", datasets.load("digits", "test"), 3001)

# %%
import ray.data

ray.data.DataContext.get_current().use_datasource_v2 = False  # few small files, as in lesson 02


def rows_of(name):
    return ray.data.read_parquet(f"{folder}/{name}", filesystem=store.filesystem)


train, valid = rows_of("train"), rows_of("valid")

# %% [markdown]
# A trainer takes both, by name, and each worker asks for its part with `get_dataset_shard`. By default Ray splits every data set among the workers. `DataConfig(datasets_to_split=["train"])` splits only the training rows.
#
# The loop below is short: one epoch, one checkpoint. It also counts the rows of `valid` that this worker gets, and returns the count.

# %%
import tempfile

import ray.train
import torch
from ray.train.torch import prepare_model
from torch.nn.functional import cross_entropy


def make_model():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 10)]
    return torch.nn.Sequential(*layers)


def pixels(batch):
    return batch["image"].float() / 255


def checkpoint_of(model, epoch):
    if ray.train.get_context().get_world_rank() != 0:
        return None
    place = tempfile.mkdtemp()
    torch.save({"model": getattr(model, "module", model).state_dict(), "epoch": epoch}, f"{place}/state.pt")
    return ray.train.Checkpoint.from_directory(place)


# %%
def train_epoch(model, optimizer):
    for batch in ray.train.get_dataset_shard("train").iter_torch_batches(batch_size=50):
        loss = cross_entropy(model(pixels(batch)), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def train_loop(config):
    model = prepare_model(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = train_epoch(model, optimizer)
    ray.train.report({"loss": loss}, checkpoint=checkpoint_of(model, 0))
    rows = ray.train.get_dataset_shard("valid").iter_torch_batches(batch_size=500)
    return sum(len(batch["label"]) for batch in rows)


# %% [markdown] tags=["prediction"]
# **Predict.** Two workers train. How many of the 3,001 rows of `valid` does rank 0 count?

# %%
from course.exercises import check, hint, predict, reveal

predict("06b-a", ...)  # a number

# %%
from labkit.train import TrainPanel
from ray.train import DataConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

saved_in = {"storage_path": store.storage_path("runs", "06b"), "storage_filesystem": store.filesystem}
trainer = TorchTrainer(
    train_loop,
    datasets={"train": train, "valid": valid},
    dataset_config=DataConfig(datasets_to_split=["train"]),
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(**saved_in),
)
with TrainPanel("06b-train").watch(trainer):
    result = trainer.fit()
reveal("06b-a", result.return_value)

# %% tags=["claim"]
assert result.return_value == 3001

# %% [markdown]
# All of them: `valid` was handed on whole, and each worker could read every row. For a validation *inside* the loop that is rarely what you want, because every rank does the same work. Here the data set is meant for a validator, which runs as a task and divides
# the rows by itself. It takes the name `valid` along, which is cheap, because a Ray dataset is only a plan until it's read (lesson 06).
#
# ## First way: a function
# The validator of lesson 06 reads all rows in one process.


# %%
def load_model(checkpoint):
    model = make_model().eval()  # without eval(), dropout makes the number random
    with checkpoint.as_directory() as place:
        model.load_state_dict(torch.load(f"{place}/state.pt", weights_only=True)["model"])
    return model


@torch.no_grad()
def is_right(model, batch):
    return model(pixels(batch)).argmax(dim=1) == batch["label"]


def in_a_function(checkpoint):
    model, right, rows = load_model(checkpoint), 0, 0
    for batch in valid.iter_torch_batches(batch_size=250):
        right += is_right(model, batch).sum().item()
        rows += len(batch["label"])
    return {"val_accuracy": right / rows, "rows": rows}


# %% [markdown]
# Every validator here is called in a task, as Ray would call it, and needs no CPU (`num_cpus=0`), because what works are its workers. The helper notes the seconds.

# %%
import time

import pandas
import ray

metrics, seconds = {}, {}


def measure(name, validator, *arguments):
    begin = time.perf_counter()
    task = ray.remote(num_cpus=0)(validator)
    metrics[name] = ray.get(task.remote(result.checkpoint, *arguments))
    seconds[name] = time.perf_counter() - begin
    return metrics[name]


measure("function", in_a_function)

# %% [markdown]
# Your number isn't your neighbour's, in spite of the seed: Ray Data hands its blocks to the training workers in the order in which they are ready. What has to be equal is the number that the three ways find for *one* checkpoint.
#
# ## Second way: a trainer that only evaluates
# A `TorchTrainer` starts workers and connects them into a process group. They don't have to train: the loop below evaluates its shard, and the ranks combine what they counted. `rows` is there to look at.
#
# `MeanMetric` from torchmetrics does the exchange; `set_dtype` lets it add up in 64 bits. `update` adds up on this rank; `compute` sums the totals *and* the counts of all ranks before it divides. So ranks may have different numbers of rows. Pass probabilities, not logits, to other metrics of torchmetrics, such as `BinaryAccuracy`: each `update` guesses from the numbers which of the two it got.


# %%
def metric_of(part, checkpoint):
    from torchmetrics import MeanMetric

    model, mean = load_model(checkpoint), MeanMetric().set_dtype(torch.float64)
    for batch in part.iter_torch_batches(batch_size=250):
        mean.update(is_right(model, batch))
    rows = torch.tensor(float(mean.weight))
    torch.distributed.all_reduce(rows)  # each rank ends up with the sum
    node = ray.get_runtime_context().get_node_id()
    return {"val_accuracy": mean.compute().item(), "rows": int(rows), "validated on": node[:8]}


def evaluate(config):
    return metric_of(ray.train.get_dataset_shard("valid"), config["checkpoint"])


# %% [markdown]
# Two details of the validator around it are easy to get wrong.
#
# - **The run's name.** To Ray, a name that was used before means *resume that run*. So each validation gets a name of its own, and it begins with the checkpoint's, so that you find it later.
# - **The result.** You don't need a report: `return_value` is what rank 0's loop returned.

# %%
import uuid
from pathlib import PurePath


def run_name(checkpoint):
    return f"validate-{PurePath(checkpoint.path).name}-{uuid.uuid4().hex[:8]}"


def in_a_trainer_at_first(checkpoint, workers):
    trainer = TorchTrainer(
        evaluate,
        train_loop_config={"checkpoint": checkpoint},
        datasets={"valid": valid},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name=run_name(checkpoint), **saved_in),
    )
    return trainer.fit().return_value


# %% [markdown] tags=["prediction"]
# **Predict.** Two workers evaluate. How many of the 3,001 rows do they count together?

# %%
predict("06b-b", ...)  # a number

# %%
at_first = measure("trainer, at first", in_a_trainer_at_first, 2)
reveal("06b-b", at_first["rows"])
print(f"{at_first['val_accuracy']:.6f}, and the function found {metrics['function']['val_accuracy']:.6f}")

# %% tags=["claim"]
assert at_first["rows"] == 3000 and metrics["function"]["rows"] == 3001
assert abs(at_first["val_accuracy"] - metrics["function"]["val_accuracy"]) > 1e-6

# %% [markdown] tags=["instructor"]
# **Where did the row go?** Ray Train gives all ranks the same number of rows, so that no rank waits in `backward()` for one that has finished. With four workers, up to three rows are lost.

# %% [markdown]
# One of 3,001 rows is gone, because Ray Train gives equally many rows to each worker and drops what's left over. In training, all ranks must make the same number of steps. For a metric it's wrong, and nothing warns you: with 64 workers up to 63 rows are missing.
#
# So divide the rows yourself. `streaming_split(workers, equal=False)` returns one iterator for each worker, and together they have every row. The loop picks the iterator of its rank.


# %%
def evaluate_all(config):
    part = config["parts"][ray.train.get_context().get_world_rank()]
    return metric_of(part, config["checkpoint"])


def in_a_trainer(checkpoint, workers, resources=None):
    parts = valid.streaming_split(workers, equal=False)
    scaling = ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1, **(resources or {})})
    trainer = TorchTrainer(
        evaluate_all,
        train_loop_config={"checkpoint": checkpoint, "parts": parts},
        scaling_config=scaling,
        run_config=RunConfig(name=run_name(checkpoint), **saved_in),
    )
    return trainer.fit().return_value


# %%
measure("trainer, 2 workers", in_a_trainer, 2)

# %% tags=["claim"]
assert metrics["trainer, 2 workers"]["rows"] == 3001
assert abs(metrics["trainer, 2 workers"]["val_accuracy"] - metrics["function"]["val_accuracy"]) < 1e-6

# %% [markdown]
# ### Exercise 06b-1 ★★ · The accuracy of each digit
# One number hides a digit that the model never recognizes. Write `by_digit(batches)` for a loop on several workers. `batches` belong to this rank: pairs of tensors, `right` (booleans) and `label` (0 to 9). On every rank, return a list of ten floats: the accuracy of each digit over the rows of *all*
# ranks. For a digit without any row, return 0.0.
#
# The ranks have different numbers of batches, some have a digit that others lack, and a rank may have no batch at all. The check runs your function on two workers. `torch.bincount(label, minlength=10)` counts labels.


# %%
def by_digit(batches): ...  # your answer


# %% tags=["solution"]
def by_digit(batches):
    counts = torch.zeros(2, 10)
    for right, label in batches:
        counts[0] += torch.bincount(label[right], minlength=10)
        counts[1] += torch.bincount(label, minlength=10)
    torch.distributed.all_reduce(counts)
    return (counts[0] / counts[1].clamp(min=1)).tolist()


# %%
check("06b-1", by_digit)

# %% [markdown] tags=["instructor"]
# **"Each rank divides, then I average." (06b-1)** Let them try two ranks: 1 of 1 right and 0 of 9 right. The mean of the ratios is 0.5, and one row of ten was right.

# %% [markdown]
# ## Third way: a class in `map_batches`
# A validation isn't a training run: rows come in, one number for each row comes out, and no row needs another. That's what Ray Data is for. Give `map_batches` a **predictor class**. Each actor of the pool creates one object, so the model is loaded once; Ray then calls the object with one batch
# after another. `mean` adds up over the whole data set.

# %%
from ray.data import ActorPoolStrategy


class Predictor:
    def __init__(self, checkpoint):
        self.model = load_model(checkpoint)

    def __call__(self, batch):
        tensors = {"image": torch.tensor(batch["image"]), "label": torch.tensor(batch["label"])}
        return {"right": is_right(self.model, tensors).numpy().astype(float)}


def in_map_batches(checkpoint, actors):
    judged = valid.map_batches(
        Predictor,
        fn_constructor_kwargs={"checkpoint": checkpoint},
        batch_size=250,
        compute=ActorPoolStrategy(size=actors),
    )
    return {"val_accuracy": judged.mean("right")}


measure("map_batches, 2 workers", in_map_batches, 2)

# %% [markdown]
# There is no process group, no rank and no all-reduce. The price is that you have to return one value for each row. A metric that needs all rows at once, or a model that is divided among GPUs, doesn't fit into this form.
#
# ### Exercise 06b-2 ★★ · Fix this predictor
# This class gives a wrong accuracy, a different one at each run, and it is slow. Find the four mistakes. A batch has the columns of `valid`. `load` makes the model and gives it the checkpoint's weights, and nothing else. An object of the class should return a dict with the column `right`: for each row 1.0 or 0.0, as an array.


# %%
class FixedPredictor:  # your answer: fix it
    def __init__(self, load):
        self.load = load

    def __call__(self, batch):
        model = self.load()
        images = torch.tensor(batch["image"]).float()
        with torch.no_grad():
            guesses = model(images).argmax(dim=1)
        right = (guesses == torch.tensor(batch["label"])).float()
        return {"right": [right.mean().item()]}


# %% tags=["solution"]
class FixedPredictor:
    def __init__(self, load):
        self.model = load().eval()

    def __call__(self, batch):
        images = torch.tensor(batch["image"]).float() / 255
        with torch.no_grad():
            guesses = self.model(images).argmax(dim=1)
        right = (guesses == torch.tensor(batch["label"])).float()
        return {"right": right.numpy()}


# %%
check("06b-2", FixedPredictor)

# %% [markdown] tags=["instructor"]
# **"Why isn't the mean of a batch enough?" (06b-2)** The last batch is smaller. With 3,001 rows in batches of 250 it has one row, which then counts as much as 250 others.

# %% [markdown]
# ## Which of the three?
# All three have to find the same number. How long do they take, with one worker and with two? The first use of each way loads libraries and isn't counted. (The trainer with two workers has run twice already, so its seconds are known.)

# %% [markdown] tags=["prediction"]
# **Predict.** The time of the trainer with two workers, divided by the time of the function: what factor do you expect?

# %%
predict("06b-c", ...)  # a number

# %%
measure("function", in_a_function)
measure("trainer, 1 worker", in_a_trainer, 1)
measure("map_batches, 1 worker", in_map_batches, 1)
measure("map_batches, 2 workers", in_map_batches, 2)
reveal("06b-c", seconds["trainer, 2 workers"] / seconds["function"])
table = pandas.DataFrame(
    {"seconds": seconds, "val_accuracy": {k: v["val_accuracy"] for k, v in metrics.items()}}
)
table.drop("trainer, at first").round({"seconds": 1, "val_accuracy": 6})

# %% tags=["claim"]
values = [metrics[name]["val_accuracy"] for name in metrics if name != "trainer, at first"]
assert len(values) == 5 and max(values) - min(values) < 1e-6
assert seconds["trainer, 2 workers"] > seconds["function"]

# %% [markdown]
# The metrics agree in all digits. The seconds differ by what has to start before the first row is read: nothing for the function, actors for `map_batches`, and for the trainer a controller, workers and a process group. With so few rows, the second worker brings nothing. Don't
# read more into these seconds: on a busy machine they differ by a factor of two from run to run. What stays is that the trainer is the slowest here, and the break-even: several workers are worth it when the rows take much longer than the start.
#
# | | function | trainer | `map_batches` |
# |---|---|---|---|
# | starts | one task | controller, workers, process group | a pool of actors |
# | rows | one process reads all | you divide them | Ray Data divides them |
# | metric | any | any, by all-reduce or torchmetrics | an aggregate of one value for each row |
# | ranks can talk to each other | – | yes | no |
# | a worker that dies | the task is repeated | the run fails, or restarts all workers | its batch is repeated |
#
# ### Exercise 06b-3 ★ · Choose a way
# Choose `"function"`, `"trainer"` or `"map_batches"` for each case.
#
# - *quick*: 500 rows, and a validation takes two seconds in one process.
# - *sharded*: the model doesn't fit on one GPU, so its layers are divided among four, which exchange activations in the forward pass.
# - *images*: 40 million images; for each of them the model decides right or wrong. GPUs of spot machines come and go.
# - *old code*: your team's evaluation runs under torchrun, calls `dist.all_gather` in three places, and should stay unchanged.

# %%
choice = {"quick": ..., "sharded": ..., "images": ..., "old code": ...}  # your answer

# %% tags=["solution"]
choice = {"quick": "function", "sharded": "trainer", "images": "map_batches", "old code": "trainer"}

# %%
check("06b-3", choice)

# %% [markdown]
# ## CPUs for a validation
# Asynchronous validation runs while the workers train, so both must fit at the same time. Count what a validation with workers of its own needs:
#
# - the task in which Ray calls your function: one CPU by default. It only waits for its workers, so `ray_remote_kwargs={"num_cpus": 0}` saves that one;
# - one CPU for each of its workers or actors;
# - one more for the tasks that read the rows. Without it, workers hold all CPUs and wait for rows that no task can read.
#
# What happens if they don't fit? Here two workers train on four CPUs, and the validator wants three. The loop trains one epoch, reports with `validation=True`, and then asks for the status.

# %%
from ray.train import CheckpointUploadMode, ValidationConfig, ValidationTaskConfig


def train_async(config):
    model = prepare_model(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(config["epochs"]):
        train_epoch(model, optimizer)
        checkpoint = checkpoint_of(model, epoch)
        ray.train.report(
            {"epoch": epoch, "trained on": ray.get_runtime_context().get_node_id()[:8]},
            checkpoint=checkpoint,
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            validation=checkpoint is not None,
        )
    return [(one.status.name, one.metrics) for one in ray.train.get_all_reported_checkpoints()]


# %%
def run(name, validator, *, epochs, scaling, timeout_s=60):
    trainer = TorchTrainer(
        train_async,
        train_loop_config={"epochs": epochs},
        datasets={"train": train},
        scaling_config=scaling,
        run_config=RunConfig(**saved_in),
        validation_config=ValidationConfig(
            fn=validator,
            task_config=ValidationTaskConfig(timeout_s=timeout_s),
            ray_remote_kwargs={"num_cpus": 0},
        ),
    )
    with TrainPanel(name).watch(trainer):
        return trainer.fit().return_value


# %% [markdown] tags=["prediction"]
# **Predict.** Two workers train and hold two of four CPUs. The validator wants three workers, and its timeout is five seconds. How will `fit()` end?

# %%
predict("06b-d", ..., choices=["with an error", "not at all", "with a result"])


# %%
def three_workers(checkpoint):
    return in_a_trainer(checkpoint, 3)


statuses = run("06b-no-room", three_workers, epochs=1, scaling=ScalingConfig(num_workers=2), timeout_s=5)
reveal("06b-d", "with a result")
statuses[0][0]

# %% tags=["claim"]
assert statuses[0][0] == "VALIDATION_TIMEOUT"

# %% [markdown]
# It returned, without a metric, and no line says that a CPU was missing. And now that the run is over and nothing works any more, all CPUs should be free:

# %%
time.sleep(3)
print(ray.available_resources().get("CPU", 0), "of", ray.cluster_resources()["CPU"], "CPUs are free")
for group in ray.util.placement_group_table().values():
    if group["state"] != "REMOVED":
        print(group["state"], group["bundles"])

# %% tags=["claim"]
groups = [
    group["bundles"] for group in ray.util.placement_group_table().values() if group["state"] == "CREATED"
]
assert [sum(bundle["CPU"] for bundle in one.values()) for one in groups] == [3.0]

# %% [markdown]
# They aren't, because a trainer reserves the CPUs of its workers with a **placement group**. The timeout ended the validation's task, but not its reservation. That stayed in the queue and got its three CPUs when the training ended. It keeps them until this notebook disconnects (Ray 2.60). Your next run would wait for them.
# `ray.shutdown()` ends everything that this notebook has reserved, and `cluster.start()` connects again. A dataset that was read remembers objects of the old connection, so both plans are made again.

# %%
ray.shutdown()
lab = cluster.start()
print(ray.available_resources()["CPU"], "CPUs are free")
train, valid = rows_of("train"), rows_of("valid")

# %% tags=["claim"]
assert all(group["state"] == "REMOVED" for group in ray.util.placement_group_table().values())

# %% [markdown] tags=["instructor"]
# **"My next run doesn't start."** A validation that timed out has left a placement group. The panel says how many CPUs are free. `ray.shutdown()`, then `cluster.start()`.

# %% [markdown]
# The repair is to look first. A validator that waits a few seconds for what it needs, and then says in words what is missing, reserves nothing. The next cell asks for five workers and raises an error:


# %%
def lacking(needed):
    free = ray.available_resources()
    return [f"{n} {name}, {free.get(name, 0):g} free" for name, n in needed.items() if free.get(name, 0) < n]


def require(needed, patience=3):
    deadline = time.monotonic() + patience
    while lacking(needed):
        if time.monotonic() > deadline:
            raise RuntimeError(f"this validation needs {lacking(needed)}: use fewer workers")
        time.sleep(0.5)


def in_a_trainer_with_room(checkpoint, workers, resources=None):
    needed = {"CPU": workers + 1}  # one is for the tasks that read
    needed |= {name: workers * amount for name, amount in (resources or {}).items()}
    require(needed)
    return in_a_trainer(checkpoint, workers, resources)


# %% tags=["raises-exception"]
measure("no room", in_a_trainer_with_room, 5)

# %% [markdown] tags=["instructor"]
# **A red error after `require`.** It's intended, and the last line of the output has the reason. In a run, the checkpoint's status would be `VALIDATION_FAILED`, and the panel shows the sentence.

# %% [markdown]
# Looking isn't reserving, so two things remain. Two validations that look at the same moment both find the CPUs free. And a validation that comes while another one runs fails after `patience` seconds instead of waiting for it: if yours overlap, let it be as long as one validation takes.
#
# ### Exercise 06b-4 ★ · How many validators fit?
# A cluster has `cpus` CPUs. `training` workers train, with one CPU each. A validation's task reserves `own` CPUs, each of its workers one, and one CPU must stay free for the tasks that read rows. Write `most_workers(cpus, training, own)`: the largest number of validating workers, or 0 if not even one fits.


# %%
def most_workers(cpus, training, own): ...  # your answer


# %% tags=["solution"]
def most_workers(cpus, training, own):
    return max(0, cpus - training - own - 1)


# %%
check("06b-4", most_workers)

# %% [markdown]
# ## Machines that only validate
# Large GPUs train, small ones validate, and small ones are often rented by the minute. So give the validation's node a **custom resource**, a name with a count, and let the validating workers ask for it. In the recipe `validate_on_another_machine.ipynb` the validation's task asks for it; here, each
# of its workers does.
#
# A node joins with three CPUs and two units of `validator`. The training asks for a place on the head, by the node's id. Nothing else keeps it off the new node, because that offers plain CPUs, too.

# %%
here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
node = lab.add_node(cpus=3, resources={"validator": 2})


def on_validators(checkpoint):
    return in_a_trainer_with_room(checkpoint, 2, {"validator": 1})


scaling = ScalingConfig(num_workers=1, label_selector=here)
statuses = run("06b-elsewhere", on_validators, epochs=1, scaling=scaling)
print(f"{node.name} is {node.id[:8]}")
pandas.DataFrame([{"status": status, **values} for status, values in statuses])

# %% tags=["claim"]
assert [status for status, _ in statuses] == ["VALIDATED"]
assert {values["validated on"] for _, values in statuses} == {node.id[:8]}
assert {values["trained on"] for _, values in statuses} == {here["ray.io/node-id"][:8]}
assert [values["rows"] for _, values in statuses] == [3001]

# %% [markdown]
# The last column is the new node. The accuracy is higher than above, because one worker trained alone: it made 40 steps of 50 rows, and two workers make 20. For `map_batches` it's `resources={"validator": 1}` among its arguments. Real clusters also have labels that you don't have to make up: `label_selector={"ray.io/accelerator-type": "L4"}` chooses a kind of GPU.
#
# When the last validation is done, the node can go, and nothing else notices:

# %%
lab.remove_node(node)
[node.name for node in lab.nodes]

# %% tags=["claim"]
assert [node.name for node in lab.nodes] == ["head"]

# %% [markdown]
# On a rented cluster you don't do this by hand. The **autoscaler** starts a node of a type when something asks for a resource that only this type has, and stops it when it was idle for some minutes. There, *asking* is what makes the cluster grow, so `require` would wait for a node that
# nothing has asked for: leave it out, and give the timeout the minutes that a machine needs to start. The recipe `notebooks/recipes/validation_nodes_that_come_and_go.ipynb` runs Ray's autoscaler on your machine and lets you watch such a node.
#
# ### Exercise 06b-5 ★★★ · A validator of your own
# Write `validate_loss(checkpoint, load, rows, workers, saved_in)`. It starts a `TorchTrainer` with that many workers and returns `{"val_loss": …, "rows": …}`: the mean of the cross-entropy over *every* row of the Ray dataset `rows`, and how many rows were counted. Each row counts once, whatever
# the number of workers. `load(checkpoint)` returns the model; call it in each worker. The columns are `x`, the model's input, and `label`. `saved_in` goes to `RunConfig`, as above.
#
# The check runs it on the cluster with two workers and 101 rows.
#
# <details><summary>A version with blanks</summary>
#
# ```python
# def validate_loss(checkpoint, load, rows, workers, saved_in):
#     def loop(config):
#         part = config["parts"][...]
#         model, totals = load(checkpoint).eval(), torch.zeros(2, dtype=torch.float64)
#         with torch.no_grad():
#             for batch in part.iter_torch_batches(batch_size=32):
#                 losses = cross_entropy(model(batch["x"]), batch["label"], reduction=...)
#                 totals += torch.tensor([..., ...])
#         torch.distributed....
#         return {"val_loss": ..., "rows": int(totals[1])}
#
#     trainer = TorchTrainer(
#         loop,
#         train_loop_config={"parts": rows.streaming_split(...)},
#         scaling_config=ScalingConfig(num_workers=workers),
#         run_config=RunConfig(**saved_in),
#     )
#     return trainer.fit()....
# ```
# </details>


# %%
def validate_loss(checkpoint, load, rows, workers, saved_in): ...  # your answer


# %% tags=["solution"]
def validate_loss(checkpoint, load, rows, workers, saved_in):
    def loop(config):
        part = config["parts"][ray.train.get_context().get_world_rank()]
        model, totals = load(checkpoint).eval(), torch.zeros(2, dtype=torch.float64)
        with torch.no_grad():
            for batch in part.iter_torch_batches(batch_size=32):
                losses = cross_entropy(model(batch["x"]), batch["label"], reduction="sum")
                totals += torch.tensor([losses.item(), len(batch["label"])])
        torch.distributed.all_reduce(totals)
        return {"val_loss": (totals[0] / totals[1]).item(), "rows": int(totals[1])}

    trainer = TorchTrainer(
        loop,
        train_loop_config={"parts": rows.streaming_split(workers, equal=False)},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(**saved_in),
    )
    return trainer.fit().return_value


# %%
check("06b-5", validate_loss)

# %% [markdown] tags=["instructor"]
# **`rows` is 100 (06b-5).** They passed the data set as `datasets=`, or wrote `equal=True`. Both deal equally many rows to each worker.

# %% [markdown]
# ## Key points
# - `DataConfig(datasets_to_split=["train"])` splits the training rows and hands other data sets on whole. A validator can also name a data set itself, since only its plan is pickled.
# - A `TorchTrainer` can only evaluate. Its result is `return_value`, and torchmetrics or an all-reduce combines the ranks.
# - Ray Train gives equally many rows to each worker and drops the rest. For a metric, use `streaming_split(workers, equal=False)`.
# - In `map_batches`, a predictor class loads the model once in each actor and returns one value for each row; the data set adds up.
# - Count CPUs: training, the validation's task, its workers, and one for the tasks that read. A validation that doesn't fit times out without a reason, and a trainer in it leaves its reservation behind.
# - A custom resource or a label sends validations to machines that only validate.
#
# **A question to take along.** You have one checkpoint, a million rows and a metric that is a mean. Which of the three ways would you try first, and when would you need a trainer?
#
# <details><summary>Compare your answer</summary><code>map_batches</code> with a predictor class: each row is judged alone, and the data set adds up. A trainer is needed if the ranks have to talk to each other, for example because the model is sharded.</details>
#
# | older tutorials | today |
# |---|---|
# | a dummy checkpoint in the validator's report, so that Ray keeps its metrics | `return trainer.fit().return_value` |
# | `map_batches(Predictor, concurrency=2)` | `map_batches(Predictor, compute=ActorPoolStrategy(size=2))` |
#
# The recipe `notebooks/recipes/late_metrics_in_a_tracker.ipynb` writes the metrics that come late into the tracker's run of the training.

# %% [markdown] tags=["plain"]
# ## Without the lab
# The three ways as a script in plain Ray and PyTorch. It validates one checkpoint in each way, and prints the metric and the seconds:

# %% [markdown] tags=["links"]
# ## Official pages
# Ray's guide to [validating checkpoints asynchronously](https://docs.ray.io/en/latest/train/user-guides/asynchronous-validation.html) has a section about distributed validation functions. From this lesson's code:

# %% [markdown]
# ## Stop

# %%
store.stop()
lab.stop()
