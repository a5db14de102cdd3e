# %% [markdown]
# # 03c · The whole pipeline: from the store into the training, and back
#
# By the end of this lesson you can
# - feed two workers from an object store through Ray Data, and test the checkpoint that comes back;
# - say how many steps each worker makes, and which rows are dropped (exercise 03c-1);
# - choose how to shuffle by what it costs, and get a different order in each epoch (03c-2);
# - count the CPUs that workers, data tasks and validation need together (03c-3);
# - resume a killed run at the row where it stopped (03c-4).
#
# **Time** about 90 minutes · **Needs** 02, 03, 03b

# %% [markdown]
# In 2023, engineers at Pinterest described why new ideas about their *data* took so long to test. A separate Spark job was slow to change, and inside the training process the GPUs waited for the CPUs next to them. So they let Ray prepare the data on many machines *while* the model trains
# ([Last Mile Data Processing with Ray](https://medium.com/pinterest-engineering/last-mile-data-processing-with-ray-629affbf34ff)). An iteration then took hours instead of days, and the GPUs were busy more than 90 % of the time.
#
# You know the parts: a store and a plan (02), a loop on two workers (03), and checkpoints (03b). Now you connect them.
#
# ## The store and the plan
# This cell starts the cluster, this time with only 100 MB for Ray's object store, and uploads 513 images, one PNG object each. The odd number is on purpose.

# %%
import io

import PIL.Image
from course import datasets
from labkit.local import cluster, storage

lab = cluster.start(object_store_bytes=100_000_000)
store = storage.start()
digits = datasets.load("digits", "train", n=513)


def png(image):
    file = io.BytesIO()
    PIL.Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


store.bucket("lab-03c")
_ = store.files.pipe(
    {f"lab-03c/images/{digits.labels[row]}/{row:05}.png": png(digits.images[row]) for row in range(513)}
)

# %% [markdown]
# Up to the plan it's lesson 02: list the names, fetch an image, scale a batch. Each row also has an `id`, the number in its name, so that we can count rows later. And the label is a 32-bit integer, as it often is in files.

# %%
from pyarrow.fs import FileSelector, S3FileSystem

access_key, secret_key = store.read_keys()
s3 = S3FileSystem(endpoint_override=store.endpoint, access_key=access_key, secret_key=secret_key)
listed = s3.get_file_info(FileSelector("lab-03c/images", recursive=True))
names = sorted(file.path for file in listed if file.is_file)
len(names), names[0], names[-1]

# %%
import io

import numpy as np
import PIL.Image


def fetch(row):
    _, _, label, file = row["item"].split("/")
    with s3.open_input_stream(row["item"]) as stream:
        image = np.asarray(PIL.Image.open(io.BytesIO(stream.read())))
    return {"image": image, "label": np.int32(label), "id": int(file.removesuffix(".png"))}


def scale(batch):
    return {**batch, "image": batch["image"].astype(np.float32) / 255}


# %%
import ray.data

ray.data.DataContext.get_current().execution_options.preserve_order = True
plan = ray.data.from_items(names, override_num_blocks=16).map(fetch).map_batches(scale)
plan.take_batch(3)["label"]

# %% [markdown]
# `preserve_order` tells Ray Data to hand out blocks in the order of the plan. Without it, the block whose task ends first comes first. Here we want to compare orders.
#
# ## The plan goes into the trainer
# Three lines of lesson 03's loop change, and one argument of the trainer:
#
# ```diff
# -    loader = prepare_data_loader(DataLoader(images, batch_size=config["batch_size"]))
# +    shard = ray.train.get_dataset_shard("train")                                # 1
#      for epoch in range(config["epochs"]):
# -        for x, y in loader:
# +        for batch in shard.iter_torch_batches(batch_size=config["batch_size"]):  # 2
# +            x, y = batch["image"], batch["label"].long()                         # 3
#              loss = cross_entropy(model(x), y)
#
# -TorchTrainer(train_loop, …)
# +TorchTrainer(train_loop, datasets={"train": plan}, …)                           # 4
# ```
#
# - **1** · `get_dataset_shard` returns this worker's part of the data set that the trainer got as `"train"`.
# - **2** · `iter_torch_batches` executes the plan and yields dicts of tensors. Call it once in each epoch: each call executes the plan again.
# - **3** · `cross_entropy` refuses 32-bit labels. It wants `int64`, which PyTorch calls *long*.
# - **4** · `datasets` gives the plan to the trainer.
#
# Where is `.to(device)`? In a training worker, `iter_torch_batches` moves each batch to the worker's device by itself, because its argument `device` is `"auto"`. Tensors that you make yourself, you move.
#
# The loop saves and resumes with `my_loop.py` from lesson 03b. Ray returns only rank 0's value, so `of_all_ranks` collects the ids of all ranks.

# %%
import my_loop
import ray.train
import torch
from ray import cloudpickle
from ray.train.torch import prepare_model
from torch.nn.functional import cross_entropy

cloudpickle.register_pickle_by_value(my_loop)


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))


def of_all_ranks(value):
    values = [None] * ray.train.get_context().get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


# %%
def train_loop(config):
    model = prepare_model(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    shard = ray.train.get_dataset_shard("train")  # 1
    ids = []
    for epoch in range(my_loop.resume(model, optimizer), config["epochs"]):
        ids.append([])
        for batch in shard.iter_torch_batches(batch_size=config["batch_size"]):  # 2
            x, y = batch["image"], batch["label"].long()  # 3
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ids[-1] += batch["id"].tolist()
        my_loop.save(model, optimizer, epoch, {"loss": loss.item()})
    return of_all_ranks(ids)


# %% [markdown] tags=["prediction"]
# **Predict.** There are 513 rows and two workers. How many rows will rank 0 see in an epoch?

# %%
from course.exercises import check, hint, predict, reveal

predict("03c-a", ...)

# %%
from labkit.train import TrainPanel
from ray.train import FailureConfig, Result, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

saved_in = {"storage_path": store.storage_path("runs", "03c"), "storage_filesystem": store.filesystem}
panel = TrainPanel("03c-first")
trainer = TorchTrainer(
    train_loop,
    train_loop_config={"epochs": 2, "batch_size": 32},
    datasets={"train": plan},  # 4
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name=panel.run_id, **saved_in),
)
with panel.watch(trainer):
    result = trainer.fit()

# %%
of_rank_0, of_rank_1 = result.return_value
reveal("03c-a", len(of_rank_0[0]))

# %% tags=["claim"]
for first, second in zip(of_rank_0, of_rank_1, strict=True):
    assert len(first) == len(second) == 256
    assert len({*first, *second}) == 512

# %% [markdown]
# The workers mostly waited for data. We'll come back to that.
#
# ## And back
# The checkpoints are in the store now. Any process that can read the store, on any machine, can load the model by the path of the run. Here it's the kernel:

# %%
test = datasets.load(split="test")
test_rows = torch.utils.data.TensorDataset(torch.tensor(test.images) / 255, torch.tensor(test.labels))


def accuracies_of(run):
    saved = Result.from_path(f"{saved_in['storage_path']}/{run}", storage_filesystem=store.filesystem)
    accuracies = []
    for checkpoint, _ in saved.best_checkpoints:  # all that were kept, the oldest first
        with checkpoint.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt", weights_only=True)
        model = make_model()
        model.load_state_dict(state["model"])
        accuracies.append(my_loop.accuracy(model, test_rows))
    return accuracies


in_order = accuracies_of(panel.run_id)
print("accuracy after each epoch:", *(f"{accuracy:.2f}" for accuracy in in_order))

# %% [markdown]
# A good model you'd give to a server such as [Ray Serve](https://docs.ray.io/en/latest/serve/index.html), which isn't part of this kit.
#
# This one isn't good! After the first epoch it knew little: 0.1 is what you get by guessing. After the second it's better, and still behind the 0.8 and more that such a model can reach. Nothing failed. The reason is in the names: they are sorted by label. The model saw zeros first and nines last, and by the end of an epoch it had forgotten most of the zeros. We'll shuffle soon. First, what happened to the 513th row?

# %% tags=["claim"]
assert in_order[0] < 0.5 and in_order[0] < in_order[1] < 0.8

# %% [markdown] tags=["instructor"]
# **An accuracy near 0.1 in *And back*.** It's intended: the names are sorted by label. Let them find the reason in the output of the cell that lists the names, before they read on.

# %% [markdown]
# ## Equal steps
# Each step ends with an all-reduce, so all ranks must make the same number of steps. Otherwise one of them hangs in `backward()`, as in lesson 03b. Ray Train therefore gives all ranks equally many rows and drops the rest:

# %%
for epoch in range(2):
    print("not used in epoch", epoch, set(range(513)) - {*of_rank_0[epoch], *of_rank_1[epoch]})

# %% [markdown]
# With two workers that's at most one row, which hardly matters. Two other cases do matter:
#
# - **Fewer rows than workers.** Then *every* rank gets zero rows, and the loop makes no step. Our loop would fail in `save`, because there is no `loss`. The panel says which rank had no rows.
# - **A small last batch.** 250 rows in batches of 32 are 7 full batches and one of 26. If your model can't use a small batch (batch normalization fails on a single row), pass `drop_last=True`.
#
# ### Exercise 03c-1 ★ · How many steps?
# Write a function that returns two numbers for one epoch: the steps of each rank, and the rows that *no* rank uses.


# %%
def steps_and_dropped(rows, workers, batch_size, drop_last): ...  # your answer


# %% tags=["solution"]
def steps_and_dropped(rows, workers, batch_size, drop_last):
    each = rows // workers
    steps = each // batch_size if drop_last else -(-each // batch_size)
    used = steps * batch_size if drop_last else each
    return steps, rows - used * workers


# %%
check("03c-1", steps_and_dropped)

# %% [markdown]
# ## Another order in each epoch
# Here are the first rows of rank 0 in both epochs:

# %%
for epoch in range(2):
    print("epoch", epoch, of_rank_0[epoch][:10])

# %% tags=["claim"]
assert of_rank_0[0] == of_rank_0[1]

# %% [markdown]
# The plan was given once, and the same plan gives the same order. With `random_shuffle(seed=7)` in the plan, you'd get one shuffled order, again in each epoch. People [have asked](https://github.com/ray-project/ray/issues/47460) about that since 2024.
#
# There are five ways to shuffle, with very different prices. To compare them, we need more data. This cell uploads the same rows as 16 Parquet files, sorted by label, and `enlarge` makes each image five times as high and as wide: 40 MB in all.

# %%
import pyarrow.parquet

ray.data.DataContext.get_current().use_datasource_v2 = False  # as in lesson 02
by_label = digits[np.argsort(digits.labels, kind="stable")][:512]
for part in range(16):
    rows = by_label[32 * part : 32 * part + 32].to_arrow()
    pyarrow.parquet.write_table(rows, f"lab-03c/rows/part-{part:05}.parquet", filesystem=store.filesystem)


def parquet(**options):
    return ray.data.read_parquet("s3://lab-03c/rows", filesystem=s3, **options)


def enlarge(batch):
    large = batch["image"].repeat(5, axis=1).repeat(5, axis=2)
    return {"image": large.astype(np.float32) / 255, "label": batch["label"]}


# %% [markdown]
# - *files*: read the files in a random order.
# - *blocks*: hand out blocks in a random order.
# - *local buffer*: keep some rows in the worker, and draw each batch from them. This isn't part of the plan, but an argument of the iteration.
# - *everything*: move every row to a random block.
# - *names*: shuffle the list of names before anything is read. For comparison there is a plan that reads them *in order*.

# %%
from ray.data import FileShuffleConfig, RandomSeedConfig

shuffled_names = np.random.default_rng(7).permutation(names[:512]).tolist()
ways = {
    "none": parquet().map_batches(enlarge),
    "files": parquet(shuffle=FileShuffleConfig(seed=7)).map_batches(enlarge),
    "blocks": parquet().map_batches(enlarge).randomize_block_order(seed=RandomSeedConfig(seed=7)),
    "local buffer": parquet().map_batches(enlarge),
    "everything": parquet().map_batches(enlarge).random_shuffle(seed=RandomSeedConfig(seed=7)),
    "names, in order": ray.data.from_items(names[:512], override_num_blocks=16)
    .map(fetch)
    .map_batches(enlarge),
    "names": ray.data.from_items(shuffled_names, override_num_blocks=16).map(fetch).map_batches(enlarge),
}


# %% [markdown]
# Measure what each way costs: the seconds until the first batch and the last one, and the largest use of Ray's object store. And measure how well it mixes: how many of the ten classes are in a batch of 32, on average. A pause of 0.02 s for each batch stands for a training step.

# %%
import time


def used_megabytes():
    total, free = ray.cluster_resources(), ray.available_resources()
    return (total["object_store_memory"] - free.get("object_store_memory", 0)) / 1e6


def cost_of(dataset, **options):
    seconds, megabytes, classes = [], [], []
    start = time.perf_counter()
    for batch in dataset.iter_batches(batch_size=32, **options):
        seconds.append(time.perf_counter() - start)
        megabytes.append(used_megabytes())
        classes.append(len(set(batch["label"].tolist())))
        time.sleep(0.02)
    times = {"first batch, s": seconds[0], "all, s": seconds[-1]}
    return times | {"MB": max(megabytes), "classes": np.mean(classes)}


# %%
import pandas

cost_of(ways["none"])  # the first execution starts processes, so it isn't counted
costs = {}
for way, dataset in ways.items():
    options = {"local_shuffle_buffer_size": 200, "local_shuffle_seed": 7} if way == "local buffer" else {}
    costs[way] = cost_of(dataset, **options)
table = pandas.DataFrame(costs).T.round(2)
table

# %% tags=["claim"]
assert table["classes"]["none"] < 3 and table["classes"]["files"] < 3 and table["classes"]["blocks"] < 3
assert table["classes"]["local buffer"] > 5
assert table["classes"]["everything"] > 9 and table["classes"]["names"] > 9
assert table["MB"]["everything"] > 39

# %% tags=["claim", "timed"]
assert table["MB"]["everything"] == table["MB"].max()
assert table["MB"][["none", "files", "names"]].max() < 30

# %% [markdown]
# - *Files* and *blocks* move large pieces. The rows of a piece stay together, so a batch still has one or two classes. That's fine if the rows in your files are mixed, and useless if they're sorted. *Blocks* has a surprise: in Ray 2.60 it waits for all blocks.
# - *Everything* mixes perfectly, but no row can leave before the last one has been read. All 40 MB were in memory. If they don't fit, Ray writes blocks to disk, which is called **spilling**, and reads them back.
# - The *local buffer* mixes rows that are near each other. It must be larger than the longest series of rows with the same label, and it costs memory in each worker, which this table doesn't show.
# - *Names* mixes perfectly and needs no more memory than no shuffling, because a name has only about 80 bytes in Python. But it needs an object per row, or many small files, and each is a request of its own. That takes the seconds, and not the shuffling: compare the last two rows.
#
# So if each row is an object, shuffle the names. Otherwise mix the rows once when you write the files; then shuffled *files* and a *local buffer* are enough.
#
# ### A seed for each epoch
# Where does the seed of an epoch come from, if the plan is given once? `FileShuffleConfig` and `RandomSeedConfig` count the executions of the plan, and the seed changes with the count. Here are the labels of the 16 files in three executions:


# %%
def label_of_each_file(dataset):
    return " ".join(str(batch["label"][0]) for batch in dataset.iter_batches(batch_size=32))


def three_orders():
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order, context.use_datasource_v2 = True, False
    plan = parquet(shuffle=FileShuffleConfig(seed=7)).select_columns(["label"])
    return [label_of_each_file(plan) for epoch in range(3)]


here = three_orders()
print("\n".join(here))

# %% [markdown]
# Three epochs, three orders, and tomorrow the same three. A plain number such as `random_shuffle(seed=7)` doesn't count: it gives one order for all epochs.
#
# But where is that count? Let another process execute the same function:

# %%
elsewhere = ray.get(ray.remote(num_cpus=0)(three_orders).remote())
print("\n".join(elsewhere))
print("the same orders:", elsewhere == here)

# %% tags=["claim"]
assert elsewhere == here and len(set(here)) == 3
again = ray.data.range(64, override_num_blocks=8)
plain = again.random_shuffle(seed=7)
assert plain.take_all() == plain.take_all()
counting = again.random_shuffle(seed=RandomSeedConfig(seed=7))
assert counting.take_all() != counting.take_all()
peeked = parquet(shuffle=FileShuffleConfig(seed=7)).select_columns(["label"])
peeked.take(1)
assert label_of_each_file(peeked) == here[1]

# %% [markdown]
# It began with the first order again, because the count is in the memory of a process. So a run that crashes in epoch 5 and resumes there gets the order of epoch 0. And every execution counts: if you look at a row with `take(1)`, one order is skipped.
#
# The local buffer has no such trap, because *you* pass its seed, and you know the epoch: `local_shuffle_seed=epoch`. At the end of this lesson we do the same with names.
#
# ### Exercise 03c-2 ★ · The batches of an epoch
# Write a generator that yields the pairs `(x, y)` of one epoch from a shard, ready for the loss. A batch of the shard has the columns `image` (uint8, 28×28) and `label` (int32).
#
# | | |
# |---|---|
# | `x` | float32 from 0 to 1 |
# | `y` | int64 |
# | batches | full ones only |
# | order | drawn from a local buffer of 4 · `batch_size` rows; a different order in each epoch, and the same one if the epoch is repeated |


# %%
def batches(shard, batch_size, epoch): ...  # your answer


# %% tags=["solution"]
def batches(shard, batch_size, epoch):
    for batch in shard.iter_torch_batches(
        batch_size=batch_size,
        drop_last=True,
        local_shuffle_buffer_size=4 * batch_size,
        local_shuffle_seed=epoch,
    ):
        yield batch["image"] / 255, batch["label"].long()


# %%
check("03c-2", batches)

# %% [markdown] tags=["instructor"]
# **"So is the order random or not?"** An order can be different in each epoch and still be the same each time you repeat the run. That's what a seed that contains the epoch gives. Say both halves.

# %% [markdown]
# ## More than fits, while you train
# Now two workers train on rows from the store that don't fit into Ray's object store. Each image is made eight times as high and as wide. That's 103 MB in all, and there's room for 100. And the store is far away: each request takes 10 ms longer.


# %%
def far_fetch(row):
    time.sleep(0.01)
    return fetch(row)


def enlarge_8(batch):
    large = batch["image"].repeat(8, axis=1).repeat(8, axis=2)
    return {**batch, "image": large.astype(np.float32) / 255}


def train_large(config):
    model = prepare_model(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(224 * 224, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    most = 0
    for batch in ray.train.get_dataset_shard("train").iter_torch_batches(batch_size=8):
        loss = cross_entropy(model(batch["image"]), batch["label"].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        most = max(most, used_megabytes())
    return most


def train_from(name, plan):
    trainer = TorchTrainer(train_large, datasets={"train": plan}, scaling_config=ScalingConfig(num_workers=2))
    with TrainPanel(name).watch(trainer):
        return trainer.fit().return_value


# %%
blocks = ray.data.from_items(names, override_num_blocks=32)
most = train_from("03c-whole", blocks.map(far_fetch).map_batches(enlarge_8))
print(f"at most {most:.0f} MB of 100 were used")

# %% tags=["claim"]
assert most < 80

# %% [markdown]
# The blocks never filled the memory, because Ray Data starts no task without room for its result. But look at the share of waiting in the panel. The lab's cluster has three CPUs: two belong to the workers, and one is left for data tasks. So one task runs at a time, and it mostly waits for the store.
#
# Ray's CPUs are *logical*, a number that a task takes while it runs. A task that mostly waits doesn't need a whole one.

# %% [markdown] tags=["prediction"]
# **Predict.** Now each task asks for a quarter of a CPU, so four of them run at the same time. By what factor will the epoch get shorter?

# %%
predict("03c-b", ...)

# %%
from labkit import runs

quarters = blocks.map(far_fetch, num_cpus=0.25).map_batches(enlarge_8, num_cpus=0.25)
train_from("03c-quarters", quarters)
before, after = runs.latest("03c-whole"), runs.latest("03c-quarters")
for record in (before, after):
    print(f"{record.seconds_per_epoch[0]:.1f} s, {record.waiting_share:.0%} of them waiting for data")
reveal("03c-b", before.seconds_per_epoch[0] / after.seconds_per_epoch[0])

# %% tags=["claim"]
assert before.seconds_per_epoch[0] > 512 * 0.01 * 0.8

# %% tags=["claim", "timed"]
assert after.seconds_per_epoch[0] < before.seconds_per_epoch[0] * 0.8

# %% [markdown]
# You don't get the full factor of four. The waits overlap now, but decoding and enlarging still need a core, and your machine may have only two. If other programs keep both busy, you may see no gain at all. The recipe `notebooks/recipes/hide_waiting_with_threads.ipynb` goes further.
#
# The panel has looked for the reason as well. The sentence below its strips is also in the record:

# %%
print(before.verdict["sentence"])

# %% tags=["claim", "timed"]
assert [cause["detail"] for cause in before.verdict["causes"] if cause["name"] == "data"] == ["waiting"]

# %% [markdown]
# *Waiting* means that the training processes had nothing to do, so it helps to fetch more at a time or from a nearer store. If they were *computing* their rows themselves, a faster store would change nothing. And the sentence has a limit: what an epoch would take without the wait. No number of data tasks can make it shorter than that.
#
# ## Who needs a CPU?
# Lesson 06 will add validation, which needs CPUs as well: one for its task, and more if it starts workers of its own. The training workers keep theirs from the start of the run to its end. Data tasks and validations share what is left.
#
# ![Six CPUs: two for the training workers, one for a validation task, two for its own workers, and one left, in which four data tasks of a quarter CPU run](images/cpus.svg)
#
# If nothing is left, nothing happens: the workers wait for data, the data tasks wait for a CPU, and Ray raises no error. The panel does the sum before it starts anything:

# %% tags=["raises-exception"]
too_many = TorchTrainer(
    train_loop,
    train_loop_config={"epochs": 1, "batch_size": 32},
    datasets={"train": plan},
    scaling_config=ScalingConfig(num_workers=int(lab.cpus)),
)
with TrainPanel("03c-too-many").watch(too_many):
    too_many.fit()

# %% [markdown] tags=["instructor"]
# **The red error in *Who needs a CPU?*** It's intended, and nothing was started. Without the panel, the same run would wait forever.

# %% [markdown]
# A validation with its own workers is harder to see. If its task takes the last CPU, it waits for workers that never get one, and the training waits for data until the validation's timeout.
#
# ### Exercise 03c-3 ★★ · The budget
# A cluster has `cpus` logical CPUs. A run has `workers` workers with one CPU each. A validation needs `validation` CPUs, its own workers included, and each data task `per_task` of one. How many data tasks can run at the same time *while* a validation runs? If there's no room for even one, raise a `ValueError`
# that says how many CPUs would be enough for one.


# %%
def data_tasks(cpus, workers, validation, per_task): ...  # your answer


# %% tags=["solution"]
def data_tasks(cpus, workers, validation, per_task):
    left = cpus - workers - validation
    if left < per_task:
        enough = workers + validation + per_task
        raise ValueError(f"the run needs {enough:g} CPUs, and the cluster has {cpus:g}")
    return int(left / per_task)


# %%
check("03c-3", data_tasks)

# %% [markdown]
# ## Resume
# **At the epoch.** The loop above does that with `my_loop.resume`. The only trap is the order, as you have seen: the seed must contain the epoch.
#
# **At the row.** If an epoch takes a day, you don't want to repeat it. A checkpoint then has to say which rows are done. With names that's easy, because the order is ours:
#
# - The order of an epoch is a permutation of the names, made from a seed and the epoch. Every process can compute it at any time.
# - A step uses the next `workers * batch_size` names, so the number of finished steps says where to continue.
# - Of these names, rank 0 takes the first, rank 1 the second, and so on in turn. A step has the same rows for any number of workers.
#
# ### Exercise 03c-4 ★★★ · The rows that are left
# Write the function that returns the names that *this* rank still has to read in `epoch`, in their order, if `step` steps of the epoch are done. The permutation depends on `seed` and `epoch` only: `np.random.default_rng((seed, epoch))` makes a generator from two numbers. Names that don't fill a step of all workers are left out.
#
# <details><summary>A version with blanks</summary>
#
# ```python
# def rows_left(names, seed, epoch, step, rank, workers, batch_size):
#     order = np.random.default_rng(___).permutation(names).tolist()
#     per_step = ___
#     steps = len(order) // ___
#     left = order[___ : steps * per_step]
#     return left[___::___]
# ```
# </details>


# %%
def rows_left(names, seed, epoch, step, rank, workers, batch_size): ...  # your answer


# %% tags=["solution"]
def rows_left(names, seed, epoch, step, rank, workers, batch_size):
    order = np.random.default_rng((seed, epoch)).permutation(names).tolist()
    per_step = workers * batch_size
    steps = len(order) // per_step
    left = order[step * per_step : steps * per_step]
    return left[rank::workers]


# %%
check("03c-4", rows_left)

# %% [markdown] tags=["instructor"]
# **Why deal in turn, and not in two halves (03c-4)?** With halves, a step of two workers has other rows than a step of one process, and the weights differ. Draw the order as a row of cards, and cut it into steps first.

# %% [markdown]
# The loop around it doesn't need `datasets=`: each worker makes a plan of its own names and executes it. Its tasks take half a CPU each, so both workers' tasks share the third one. `my_loop.save` stores a number that it calls `epoch`, and `my_loop.resume` returns the next one. Here we let that number count the steps of the whole run.


# %%
def train_rows(config):
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    rank = ray.train.get_context().get_world_rank()
    workers = ray.train.get_context().get_world_size()
    size, steps = config["batch_size"], len(names) // (workers * config["batch_size"])
    model = prepare_model(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    done = my_loop.resume(model, optimizer)  # steps of the whole run
    while done < config["epochs"] * steps:
        epoch, step = divmod(done, steps)
        left = rows_left(names, 7, epoch, step, rank, workers, size)
        part = ray.data.from_items(left, override_num_blocks=4)
        rows = part.map(fetch, num_cpus=0.5).map_batches(scale, num_cpus=0.5)
        for batch in rows.iter_torch_batches(batch_size=size):
            loss = cross_entropy(model(batch["image"]), batch["label"].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done % 3 == 0 or done == config["epochs"] * steps:
                my_loop.save(model, optimizer, done - 1, {"epoch": epoch, "loss": loss.item()})
    weights = getattr(model, "module", model).state_dict()
    return {name: tensor.numpy() for name, tensor in weights.items()}


# %% [markdown]
# Now the proof. One process trains undisturbed with batches of 64. Two workers train with 32 each, and one of them is killed at a random step of epoch 1.

# %%
import random

from course import faults

if rows_left(names, 7, 0, 0, 0, 1, 64):  # your function is there
    alone = TorchTrainer(
        train_rows,
        train_loop_config={"epochs": 2, "batch_size": 64},
        scaling_config=ScalingConfig(num_workers=0),
    ).fit()
    panel = TrainPanel("03c-killed")
    fault = faults.kill_rank(1).at(panel, epoch=1, step=random.randrange(1, 8))
    trainer = TorchTrainer(
        train_rows,
        train_loop_config={"epochs": 2, "batch_size": 32},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name=panel.run_id, failure_config=FailureConfig(max_failures=1), **saved_in),
    )
    with panel.watch(trainer):
        killed = trainer.fit()
    print(fault)
    differences = [abs(alone.return_value[k] - killed.return_value[k]).max() for k in killed.return_value]
    print(f"largest difference of a weight: {max(differences):.1e}")
    print(f"accuracy {accuracies_of(panel.run_id)[-1]:.2f}; with sorted names it was {in_order[-1]:.2f}")

# %% tags=["claim"]
assert max(differences) < 1e-5
assert accuracies_of(panel.run_id)[-1] > in_order[-1]

# %% [markdown]
# A worker was killed in the middle of an epoch, and the run ended with the weights of an undisturbed process, up to rounding. The shuffled names also improved the accuracy. (The panel counts epochs from 1: *epoch 2* is `epoch=1`.)
#
# The restarted run may even have another number of workers, if `workers * batch_size` stays the same. With *files* of many rows, resume at a file, and accept that a part of it is repeated.
#
# ## Key points
# - `datasets={"train": plan}`, `get_dataset_shard` and `iter_torch_batches` connect a plan to a loop. Batches arrive on the worker's device; labels may need `.long()`.
# - All ranks get equally many rows, and the rest is dropped. With fewer rows than workers, that's all of them.
# - A plan is given once, so its order repeats. Shuffled names need no extra memory, a local buffer mixes neighbours, and a full shuffle needs all rows in memory or on disk.
# - `FileShuffleConfig` and `RandomSeedConfig` count executions in one process. A seed that contains the epoch survives a restart.
# - Workers keep their CPUs; data tasks and validations share the rest.
# - If the order follows from seed and epoch, a step's number is enough to resume at the row.
#
# **A question to take along.** Your loss curve has the same bumps in each epoch. What do you suspect, and how do you check it?
#
# <details><summary>Compare your answer</summary>The order repeats, because the plan was given once. Print the first ids of two epochs. Then let the epoch choose the order: by a local buffer with a seed that contains the epoch, by shuffled files, or by shuffled names.</details>
#
# | older tutorials | today |
# |---|---|
# | `ray.train.get_dataset_shard("train").to_torch(…)`, `.repeat(epochs)`, `.random_shuffle_each_window()` | `iter_torch_batches` once in each epoch, with a seed that contains the epoch |

# %% [markdown] tags=["plain"]
# ## Without the lab
# The same pipeline in plain Ray and PyTorch, for any filesystem that `pyarrow` knows. A rank dies, and the run resumes at the row. It uses `my_loop.py` from the folder above.

# %% [markdown] tags=["links"]
# ## Official pages

# %% [markdown]
# ## Stop

# %%
store.stop()
lab.stop()
