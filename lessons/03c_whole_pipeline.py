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
# **Time** … · **Needs** 02, 03, 03b

# %% [markdown]
# In 2023, engineers at Pinterest described why new ideas about their *data* took so long to test. Preparing it in a separate Spark job took days. Preparing it inside the training process was simpler, but the GPUs waited for the CPUs next to them. Their
# solution was to let Ray prepare the data on many machines *while* the model trains ([Last Mile Data Processing with Ray](https://medium.com/pinterest-engineering/last-mile-data-processing-with-ray-629affbf34ff)): GPU utilization rose above 90 %, and an iteration took hours instead of days.
#
# You have all the parts already: images in a store and a plan that reads them (02), a loop on two workers (03), and checkpoints (03b). In this lesson you connect them, and then you look at the questions that come up as soon as they are connected.
#
# ## The store and the plan
# This cell starts the cluster, this time with only 100 MB for Ray's object store, and uploads 513 images, one PNG object each. The odd number is on purpose.

# %%
from labkit import cluster, datasets, storage

lab = cluster.start(object_store_bytes=100_000_000)
store = storage.start()
digits = datasets.load("digits", "train", n=513)
storage.upload(digits, store, "lab-03c", prefix="images")

# %% [markdown]
# From here to the plan it's lesson 02: list the names, write a function that fetches one image, and one that scales a batch. There are two additions. Each row also has an `id`, the number in its name, so that we can count rows later. And the label is a 32-bit integer, as you often find it in files.

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
# `preserve_order` tells Ray Data to hand out blocks in the order of the plan. Without it, the block whose task ends first comes first, so an order can't be repeated exactly. It may cost some speed, because a slow task holds up the blocks behind it. In this lesson we need orders that we can compare.
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
# +            x, y = batch["image"].unsqueeze(1), batch["label"].long()            # 3
#              loss = cross_entropy(model(x), y)
#
# -TorchTrainer(train_loop, …)
# +TorchTrainer(train_loop, datasets={"train": plan}, …)                           # 4
# ```
#
# - **1** · `get_dataset_shard` returns this worker's part of the data set that the trainer got under the name `"train"`.
# - **2** · `iter_torch_batches` executes the plan and yields dicts of tensors. Call it once in each epoch, because each call executes the plan again.
# - **3** · The images get a channel axis. `cross_entropy` wants labels of the type `int64`, which PyTorch calls *long*, and refuses 32-bit ones.
# - **4** · `datasets` gives the plan to the trainer.
#
# Where is `.to(device)`? In a training worker, `iter_torch_batches` moves each batch to the worker's device, because its argument `device` is `"auto"`. Tensors that you make yourself you still have to move.
#
# The loop saves with `my_loop.save` from lesson 03b, after each epoch. Its last line collects what each rank has seen, because Ray returns only rank 0's value.

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
    layers = [
        torch.nn.Conv2d(1, 16, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(2304, 10),
    ]
    return torch.nn.Sequential(*layers)


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
            x, y = batch["image"].unsqueeze(1), batch["label"].long()  # 3
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
from labkit.exercises import check, hint, predict, reveal

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
# The panel shows that the workers waited for data most of the time. This model is tiny, and its images are fetched one after the other. We'll come back to that.
#
# ## And back
# The checkpoints are in the store now. Any process that can read it, on any machine, can load the model by the path of the run. Here it's the kernel:

# %%
test = datasets.load(split="test")
test_rows = torch.utils.data.TensorDataset(
    torch.tensor(test.images).unsqueeze(1) / 255, torch.tensor(test.labels)
)


def accuracy_of(run):
    found = Result.from_path(f"{saved_in['storage_path']}/{run}", storage_filesystem=store.filesystem)
    with found.checkpoint.as_directory() as folder:
        state = torch.load(f"{folder}/state.pt", weights_only=True)
    model = make_model()
    model.load_state_dict(state["model"])
    return my_loop.accuracy(model, test_rows)


in_order = accuracy_of(panel.run_id)
print(f"accuracy {in_order:.2f}")

# %% [markdown]
# If the model were good, this is the file that you'd give to a server, for example to [Ray Serve](https://docs.ray.io/en/latest/serve/index.html), which answers requests with models and isn't part of this kit.
#
# But it isn't good. An accuracy of 0.1 is what you get for knowing nothing, and this is a network that reached more than 0.9 in lesson 03b. Nothing failed: every row arrived, the loss went down. Look at the names above for the reason. They are sorted by label, so the model saw zeros first and nines last, and at the end of
# each epoch it has forgotten the zeros. We'll shuffle soon. First, what happened to the 513th row?

# %% tags=["claim"]
assert in_order < 0.85

# %% [markdown]
# ## Equal steps
# Each step ends with an all-reduce, so all ranks must make the same number of steps, or one of them waits forever in `backward()`, as in lesson 03b. Ray Train therefore gives all ranks equally many rows and drops the rest:

# %%
for epoch in range(2):
    print("not used in epoch", epoch, set(range(513)) - {*of_rank_0[epoch], *of_rank_1[epoch]})

# %% [markdown]
# At most `workers - 1` rows are lost in this way, which hardly matters for training. Two other cases do matter:
#
# - **Fewer rows than workers.** Then *every* rank gets zero rows, and the loop makes no step at all. In the loop above, `loss` wouldn't exist after the first epoch, and the run would fail with an `UnboundLocalError`. A filter that keeps too little is the usual cause; the panel says which rank had no rows.
# - **The last batch is small.** 256 rows in batches of 32 are 8 steps. 250 rows would be 7 full batches and one of 26. If your model can't use that (batch normalization of a single row fails, for example), pass `drop_last=True`. Every rank then drops up to `batch_size - 1` rows.
#
# And if you must use every row, as in a test, don't train with `datasets=`: count on each rank and add up the counts, as in exercise 03-5.
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
# Look at the first rows of rank 0 in both epochs.

# %% [markdown] tags=["prediction"]
# **Predict.** How does the order of epoch 1 compare with that of epoch 0?

# %%
predict("03c-b", ..., choices=["the same order", "a different order"])

# %%
for epoch in range(2):
    print("epoch", epoch, of_rank_0[epoch][:10])
if of_rank_0[0] == of_rank_0[1]:
    reveal("03c-b", "the same order")
else:
    reveal("03c-b", "a different order")

# %% tags=["claim"]
assert of_rank_0[0] == of_rank_0[1]

# %% [markdown]
# The plan was given once, and the same plan gives the same order. That isn't only a problem of sorted names: with `random_shuffle(seed=7)` in the plan, you'd get one shuffled order, and that one again in each epoch. People [have asked](https://github.com/ray-project/ray/issues/47460) since 2024 how to
# shuffle for each epoch. There are five answers, with very different prices. To compare them, we need data with some size, so this cell uploads the same rows as 16 Parquet files, sorted by label, and `enlarge` makes each image five times as high and as wide: 40 MB in all.

# %%
ray.data.DataContext.get_current().use_datasource_v2 = False  # as in lesson 02
by_label = digits[np.argsort(digits.labels, kind="stable")][:512]
storage.upload_shards(by_label, store, "lab-03c", prefix="rows", rows_per_shard=32)


def parquet(**options):
    return ray.data.read_parquet("s3://lab-03c/rows", filesystem=s3, **options)


def enlarge(batch):
    large = batch["image"].repeat(5, axis=1).repeat(5, axis=2)
    return {"image": large.astype(np.float32) / 255, "label": batch["label"]}


# %% [markdown]
# The five ways, and no shuffling for comparison:
#
# - **files**: read the files in a random order.
# - **blocks**: process everything, then hand out the blocks in a random order.
# - **local buffer**: keep some rows in the worker, and draw each batch from them at random. It isn't part of the plan, but an argument of the iteration.
# - **everything**: move every row to a random block.
# - **names**: shuffle the list of names before anything is read.

# %%
from ray.data import FileShuffleConfig, RandomSeedConfig

shuffled_names = np.random.default_rng(7).permutation(names[:512]).tolist()
ways = {
    "none": parquet().map_batches(enlarge),
    "files": parquet(shuffle=FileShuffleConfig(seed=7)).map_batches(enlarge),
    "blocks": parquet().map_batches(enlarge).randomize_block_order(seed=RandomSeedConfig(seed=7)),
    "local buffer": parquet().map_batches(enlarge),
    "everything": parquet().map_batches(enlarge).random_shuffle(seed=RandomSeedConfig(seed=7)),
    "names": ray.data.from_items(shuffled_names, override_num_blocks=16).map(fetch).map_batches(enlarge),
}


# %% [markdown]
# You measure three things while you read batches of 32: the seconds until the first batch and for all of them, the largest use of Ray's object store, and how many of the ten classes a batch has on average. Each batch pauses for 0.02 s, in place of a training step.

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
    return {"first batch, s": seconds[0], "all, s": seconds[-1], "MB": max(megabytes), "classes": np.mean(classes)}


# %% [markdown] tags=["prediction"]
# **Predict.** Which way will need the most memory?

# %%
predict("03c-c", ..., choices=list(ways))

# %%
import pandas

cost_of(ways["none"])  # the first execution starts processes, so it isn't counted
costs = {}
for way, dataset in ways.items():
    options = {"local_shuffle_buffer_size": 200, "local_shuffle_seed": 7} if way == "local buffer" else {}
    costs[way] = cost_of(dataset, **options)
table = pandas.DataFrame(costs).T.round(2)
reveal("03c-c", table["MB"].idxmax())
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
# Read the table row by row.
#
# - *Files* and *blocks* change the order of large pieces, and the rows of a piece stay together, so a batch still has one or two classes. That's fine if your files are mixed already, and useless if they are sorted. *Blocks* has a surprise: in Ray 2.60, it waits until all blocks are there.
# - *Everything* mixes perfectly, and it must: no row can leave before the last one has been read. All 40 MB were in memory. If they don't fit, Ray writes them to disk, which is called **spilling**, and reads them back.
# - The *local buffer* mixes rows that are near each other. Two hundred rows are enough here; for sorted data, the buffer must be larger than the stretch of equal rows. It costs memory in each worker, which this table doesn't show.
# - *Names* mixes perfectly and needs no more memory than no shuffling, because a name has 80 bytes. But it needs an object per row, or at least many small files.
#
# So if you can, write your files with rows in random order once, read them with shuffled *files* and a *local buffer*. If each row is an object, shuffle the names.
#
# ### A seed for each epoch
# The plan is given once, so where does the seed of an epoch come from? `FileShuffleConfig` and `RandomSeedConfig` count: with each execution of the plan, the seed changes. Here are the labels of the 16 files, in three executions:


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
# Three epochs, three orders. The same cell gives the same three orders tomorrow, which is what you want from a seed. A plain number, such as `random_shuffle(seed=7)`, doesn't count: it gives one order for all epochs.
#
# The count has a catch. Where is it? Let another process execute the same function:

# %%
elsewhere = ray.get(ray.remote(num_cpus=0)(three_orders).remote())
print("\n".join(elsewhere))
elsewhere == here

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
# It began with the first order again, because the count is in the memory of the process. That has two consequences. A run that crashes in epoch 5 and resumes there trains with the order of epoch 0. And every other execution counts as well: after a `take(1)` to look at a row, the next epoch gets the order that belonged to the one after it.
#
# The local buffer has no such catch, because *you* pass its seed in each epoch, and you know the epoch: `local_shuffle_seed=epoch`. We'll do the same with names at the end of this lesson.
#
# ### Exercise 03c-2 ★★ · The batches of an epoch
# Write a generator that yields the pairs `(x, y)` of one epoch from a shard, ready for the loss. A batch of the shard has the columns `image` (uint8, 28×28) and `label` (int32).
#
# | | |
# |---|---|
# | `x` | float32 from 0 to 1, of the shape (rows, 1, 28, 28) |
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
        yield batch["image"].unsqueeze(1) / 255, batch["label"].long()


# %%
check("03c-2", batches)

# %% [markdown]
# ## More than fits, while you train
# Lesson 02 streamed 1 GB through 400 MB, but nobody trained on it, and the rows were made up. Now two workers train, and the rows come from the store. Each image is made eight times as high and as wide, so that all of them have 103 MB, which is more than Ray's object store has. The store is far away, too: each request takes 5 ms longer.


# %%
def far_fetch(row):
    time.sleep(0.005)
    return fetch(row)


def enlarge_8(batch):
    large = batch["image"].repeat(8, axis=1).repeat(8, axis=2)
    return {**batch, "image": large.astype(np.float32) / 255}


def train_large(config):
    layers = [torch.nn.Conv2d(1, 4, 16, stride=16), torch.nn.Flatten(), torch.nn.Linear(784, 10)]
    model = prepare_model(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    megabytes = []
    for batch in ray.train.get_dataset_shard("train").iter_torch_batches(batch_size=16):
        loss = cross_entropy(model(batch["image"].unsqueeze(1)), batch["label"].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        megabytes.append(used_megabytes())
    return max(megabytes)


def train_from(name, plan):
    trainer = TorchTrainer(train_large, datasets={"train": plan}, scaling_config=ScalingConfig(num_workers=2))
    with TrainPanel(name).watch(trainer):
        return trainer.fit().return_value


# %%
small_names = ray.data.from_items(names, override_num_blocks=64)
one_at_a_time = small_names.map(far_fetch).map_batches(enlarge_8)
most = train_from("03c-one-at-a-time", one_at_a_time)
print(f"at most {most:.0f} MB of 100 were used")

# %% tags=["claim"]
assert most < 80

# %% [markdown]
# It works: the blocks never filled the memory, because Ray Data starts no task without room for its result. But look at the share of waiting in the panel. The lab's cluster has three CPUs, two of them belong to the workers, and one is left for data tasks. So one task runs at a time, and most of the time it waits for the store.
#
# Ray's CPUs are *logical*: a number that a task takes while it runs. A task that mostly waits doesn't need a whole one.

# %% [markdown] tags=["prediction"]
# **Predict.** Now each task that fetches asks for a quarter of a CPU, so four of them run at the same time. By what factor will the epoch get shorter?

# %%
predict("03c-d", ...)

# %%
from labkit import runs

four_at_a_time = small_names.map(far_fetch, num_cpus=0.25).map_batches(enlarge_8, num_cpus=0.25)
train_from("03c-four-at-a-time", four_at_a_time)
before, after = runs.latest("03c-one-at-a-time"), runs.latest("03c-four-at-a-time")
for record in (before, after):
    print(f"{record.name}: an epoch took {record.seconds_per_epoch[0]:.1f} s, {record.waiting_share:.0%} of it waiting for data")
reveal("03c-d", before.seconds_per_epoch[0] / after.seconds_per_epoch[0])

# %% tags=["claim"]
assert before.seconds_per_epoch[0] > 512 * 0.005 * 0.8

# %% tags=["claim", "timed"]
assert after.seconds_per_epoch[0] < before.seconds_per_epoch[0] * 0.8

# %% [markdown]
# One argument, and the epoch is much shorter. It isn't four times shorter: the waits overlap now, but decoding and enlarging still need a core, and your machine may have only two. If the workers still wait, the next steps are more requests in each task (the recipe `notebooks/recipes/hide_waiting_with_threads.ipynb`), fewer and larger objects, and more CPUs.
#
# ## Who needs a CPU?
# With validation from lesson 06, there are more who want a CPU: the validation task, and the workers that it may start itself. Workers take theirs when the run starts and keep them until it ends. Data tasks and validations share what is left.
#
# ![Six CPUs: two for the training workers, one for a validation task, two for its own workers, and one left, in which four data tasks of a quarter CPU run](images/cpus.svg)
#
# If nothing is left, nothing happens: the workers wait for data, the data tasks wait for a CPU, and Ray doesn't raise an error. The panel does the sum before it starts anything:

# %% tags=["raises-exception"]
too_many = TorchTrainer(
    train_loop,
    train_loop_config={"epochs": 1, "batch_size": 32},
    datasets={"train": plan},
    scaling_config=ScalingConfig(num_workers=int(lab.cpus)),
)
with TrainPanel("03c-too-many").watch(too_many):
    too_many.fit()

# %% [markdown]
# A validation that starts workers of its own is the treacherous case. Its task takes the last CPU and waits for workers that never get one. The data tasks wait as well, so the training stops until the validation's timeout ends it, and after the next checkpoint it all begins again.
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
# **At the epoch.** The loop above does that already, with `my_loop.resume`: after a crash it trains the epoch again in which it crashed. The only trap is the order, as you have seen: seed the shuffle with the epoch, not with a count.
#
# **At the row.** If an epoch takes a day, you don't want to repeat it. Then a checkpoint must say which rows are done. With blocks that come from tasks on many machines, that's hard. With names it's easy, because the order is ours:
#
# - The order of an epoch is a permutation of the names, from the seed and the epoch. Every process can compute it, at any time.
# - A step uses the next `workers * batch_size` names, so the number of finished steps says where to continue.
# - Of these names, rank 0 takes the first, rank 1 the second, and so on in turn. The ranks share nothing, and a step has the same rows for any number of workers.
#
# ### Exercise 03c-4 ★★★ · The rows that are left
# Write the function that returns the list of names that *this* rank still has to read in `epoch`, in their order, if `step` steps of the epoch are done.
#
# - The permutation depends on `seed` and `epoch` and on nothing else. `np.random.default_rng((seed, epoch))` makes a generator from two numbers.
# - Names that don't fill a step of all workers are left out. They're others in each epoch.
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

# %% [markdown]
# Now the loop around it. It doesn't need `datasets=`: each worker makes a plan of its own names and executes it by itself. `my_loop.save` writes a number into the checkpoint that it calls `epoch`, and `my_loop.resume` returns the next one. Here that number counts the steps of the whole run, and a checkpoint comes after
# every third step.


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
            loss = cross_entropy(model(batch["image"].unsqueeze(1)), batch["label"].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done % 3 == 0 or done == config["epochs"] * steps:
                my_loop.save(model, optimizer, done - 1, {"epoch": epoch, "loss": loss.item()})
    weights = getattr(model, "module", model).state_dict()
    return {name: tensor.numpy() for name, tensor in weights.items()}


# %% [markdown]
# The proof is a comparison: one process trains undisturbed, with batches of 64. Two workers train with 32 each, and one of them is killed at a random step of epoch 1. If every row is used once in the right step, both end with the same weights.

# %%
import random

from labkit import faults

if rows_left(names, 7, 0, 0, 0, 1, 64) is not None:  # your function is there
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

# %%
if rows_left(names, 7, 0, 0, 0, 1, 64) is not None:
    differences = [abs(alone.return_value[k] - killed.return_value[k]).max() for k in killed.return_value]
    print(f"largest difference of a weight: {max(differences):.1e}")
    print(f"accuracy {accuracy_of(panel.run_id):.2f}; with sorted names it was {in_order:.2f}")

# %% tags=["claim"]
assert max(differences) < 1e-5
assert accuracy_of(panel.run_id) > in_order

# %% [markdown]
# A worker was killed in the middle of an epoch, and the weights are those of a process that was never disturbed, up to rounding. The order is what makes this possible, and the shuffled names also repaired the accuracy.
#
# The same function works with another number of workers after the restart, as long as `workers * batch_size` stays the same. What it can't do is continue in the middle of a *file* with many rows. There, shuffle and resume by files, and accept that one file is repeated.
#
# ## Key points
# - `datasets={"train": plan}`, `get_dataset_shard` and `iter_torch_batches` connect a plan to a loop. Batches arrive on the worker's device, labels in the type that they have in the file.
# - All ranks get equally many rows. Up to `workers - 1` rows are dropped in each epoch, and with fewer rows than workers all of them.
# - A plan is given once, so its order repeats. Shuffled names cost nothing, a local buffer mixes neighbours, and a full shuffle needs all rows in memory or on disk.
# - `FileShuffleConfig` and `RandomSeedConfig` count executions in one process. A seed that contains the epoch survives a restart.
# - Workers keep their CPUs; data tasks and validations share the rest. Tasks that wait can ask for a part of a CPU.
# - If the order is a function of seed and epoch, a step number is enough to resume at the row.
#
# | older tutorials | today |
# |---|---|
# | `ray.train.get_dataset_shard("train").to_torch(…)`, `.repeat(epochs)`, `.random_shuffle_each_window()` | `iter_torch_batches` once in each epoch, with a seed that contains the epoch |

# %% [markdown] tags=["plain"]
# ## Without the lab
# The same pipeline as a script, in plain Ray and PyTorch: images from any filesystem that `pyarrow` knows, names that are shuffled by epoch, a worker that is killed, and a run that resumes at the row.

# %% [markdown] tags=["links"]
# ## Official pages

# %% [markdown]
# ## Stop

# %%
store.stop()
lab.stop()
