# %% [markdown]
# # 02 · Data that does not fit: Ray Data
#
# **You will be able to** read images from an object store in three ways and say what each costs; change them in batches, with tasks and with
# actors; cut, split and shuffle a dataset; pass four times more data through a cluster than its memory holds; and find a bad row and a bad
# object. · **Time** 40 min (2 of them waiting) · **Needs** 00, 01
#
# So far the images lay in this process. A large data set lies somewhere else, in an *object store*: a server to which you say a
# name, and which answers with bytes. It never fits into memory as a whole. So it must *stream*: while one part is being read,
# another is being decoded, and a third is on its way to the training.
#
# That is what Ray Data does.

# %%
from labkit import cluster, datasets
from labkit.settings import Settings

settings = Settings.from_env()
lab = cluster.start()
lab

# %% [markdown]
# ## An object store
# In production this is S3, MinIO or something similar; here it is a small S3 server on your machine. Careful: lesson 01 used the same term for the shared memory
# of a Ray node. From here on, that is *Ray's object store*, and the S3 server is *the store*.

# %%
from labkit import storage

store = storage.start()
store

# %% [markdown]
# Objects lie in *buckets*. The next cells put each image there as an object of its own, a PNG, with its label in its name. Then all
# of them once more, as a few Parquet files (*shards*) with many rows in each. You will read both.

# %%
from labkit.storage import upload, upload_shards

n = 300 if settings.small else 1400
train = datasets.load("digits", n=n)
upload(train, store, "lab-02", prefix="images")

# %%
upload_shards(train, store, "lab-02", prefix="shards", rows_per_shard=n // 4)

# %% [markdown]
# ## Names, not data
# `store.filesystem` is a `pyarrow` filesystem connected to the store: Arrow's interface to files, wherever they are. Use it to list what is there.

# %%
from pyarrow.fs import FileSelector

found = store.filesystem.get_file_info(FileSelector("lab-02/images", recursive=True))
names = sorted(file.path for file in found if file.is_file)
len(names), names[0], names[-1]

# %% [markdown]
# A list of names is small: a million of them take about 80 MB. The part before the last slash is the label. A Ray *dataset* of names:

# %%
import ray.data
from labkit.data import DataPanel

named = ray.data.from_items(names)
named.schema()

# %% [markdown]
# A dataset is a table. This one has a column `item`, and a row for each name. To make images out of it, write what happens to *one* row:

# %%
import io

import numpy as np
import PIL.Image

filesystem = store.filesystem


def decode(name, payload):
    image = np.asarray(PIL.Image.open(io.BytesIO(payload)).convert("L"))
    return {"image": image, "label": int(name.split("/")[-2]), "name": name}


def fetch(row):
    with filesystem.open_input_stream(row["item"]) as stream:
        return decode(row["item"], stream.read())


fetch({"item": names[0]})["image"].shape

# %% [markdown]
# It works for one row, in this process. Try a function there first, always.

# %% [markdown] tags=["prediction"]
# **Before you go on:** the next cell asks for *every* name to be fetched. How long will it take?

# %%
import time

begin = time.perf_counter()
images = named.map(fetch)
print(f"{1000 * (time.perf_counter() - begin):.0f} milliseconds")

# %% [markdown]
# Nothing was fetched. A dataset is *lazy*: it is a plan. It is executed when something asks for rows, for example
# `materialize`, which asks for all of them and keeps them.
#
# Ray starts its worker processes when they are first needed. The next cell executes a tiny plan, so that this doesn't count in what follows. Then
# the images. The panel shows what is going on.

# %%
with DataPanel("02-warm-up"):
    ray.data.range(3, override_num_blocks=3).map_batches(lambda batch: batch).materialize()

# %%
with DataPanel("02-names") as many_blocks:
    images.materialize()

# %% [markdown]
# Each line of the table is a step of the plan, an **operator**. *Task seconds* are the durations of its tasks, added up, and *of them CPU* is how much of that they
# computed; the rest is waiting. *Rows/s* in the table are rows per task second; the number in the headline counts seconds on the clock. *Held back* is how long
# the operator had rows to work on but no free CPU or no room for results, and *MB* is Ray's estimate of the most memory that the operator used at one time.
#
# ## Blocks
# Look at the column *tasks*. Ray Data cuts a table into **blocks**, and each task processes one. It cut the list into 200 blocks of only a few rows,
# and most of the time went into starting tasks (lesson 01: give a task work for at least tens of milliseconds).
#
# Cut it into fewer:

# %%
named = ray.data.from_items(names, override_num_blocks=8)
with DataPanel("02-names, 8 blocks") as few_blocks:
    images = named.map(fetch).materialize()

print(f"{many_blocks.seconds / few_blocks.seconds:.1f} × as fast")

# %% [markdown]
# A block is the unit of everything: a task works on one, a failed task repeats one, and a worker holds one in memory. Ray itself aims at blocks
# of 1 to 128 MiB. Those of this page are smaller because its data is.

# %%
images.num_blocks(), images.count(), f"{images.size_bytes() / 1000:.0f} kB"

# %% [markdown]
# ## The same, ready made
# Listing, fetching and decoding are so common that Ray Data has them. `read_images` does all three. The label comes from the name of the
# folder, if you say so with `Partitioning`.

# %%
from ray.data.datasource import Partitioning

folders = Partitioning("dir", field_names=["label"], base_dir="lab-02/images")
with DataPanel("02-read-images") as ready_made:
    data = ray.data.read_images(
        "lab-02/images", filesystem=filesystem, mode="L", partitioning=folders, include_paths=True
    ).materialize()

data.schema()

# %% [markdown]
# Both send one request per image. (Here the label is a string, because it comes from the name of a folder.) A Parquet shard needs one request for many rows.
#
# One setting first. To plan the reading, Ray Data 2.60 starts 32 processes that look into the Parquet files. With ten thousand files that
# pays. With four, on two cores, it takes ten seconds, so here we switch back to the older reader.

# %%
ray.data.DataContext.get_current().use_datasource_v2 = False

with DataPanel("02-read-parquet") as shards:
    table = ray.data.read_parquet("lab-02/shards", filesystem=filesystem).materialize()

table.schema()

# %%
import pandas

ways = {"own fetch": few_blocks, "read_images": ready_made, "read_parquet": shards}
times = pandas.DataFrame([{"way": way, "rows": p.rows, "seconds": p.seconds} for way, p in ways.items()])
times["rows/s"] = times["rows"] / times["seconds"]
times.set_index("way").round(1)

# %% [markdown]
# The first two do the same work: for each image they send a request and decode a PNG. `read_images` also lists the folder, and opens some files to estimate the size of all of them;
# with so few images, that counts. With Parquet, one response has many rows. And this store is on your
# machine: over a real network, where each request takes some milliseconds longer, the difference grows. So one object per image is how images *arrive*. Before you
# train on them fifty times, write them into shards: `data.write_parquet("lab-02/more-shards", filesystem=filesystem)`.
#
# And your own `fetch`? Use it for what no reader can do: your own format, two files for each row, a query to a database. If all you need are the bytes behind a column
# of names, Ray Data can fetch those, too: `named.with_column("bytes", download("item", filesystem=filesystem))`, with `download` from `ray.data.expressions`.

# %% [markdown]
# ## While it waits
# The store of this page is on your machine and responds in a millisecond or two. One in another city takes 20 or more, for each object. A task that requests one object after
# the other does nothing in the meantime. Here is such a store, or at least its distance. There are as many blocks as CPUs, so each task runs once:


# %%
def fetch_from_afar(row):
    time.sleep(0.02)
    return fetch(row)


far = ray.data.from_items((names * 2)[:600], override_num_blocks=int(lab.cpus))
with DataPanel("02-one-by-one") as one_by_one:
    far.map(fetch_from_afar).materialize()

# %% [markdown]
# Most of the *task seconds* are not CPU time, but waiting. A task does not have to request one object after the other. It can request sixteen at once, with threads, if it
# gets many names: `map_batches` passes it a whole *batch*, a dict of arrays. (Unless you set `batch_size`, that is a whole block.)

# %% [markdown] tags=["prediction"]
# **Before you go on:** sixteen threads wait at the same time. Will it be sixteen times as fast? Which part of the time will remain?

# %%
from concurrent.futures import ThreadPoolExecutor


def fetch_many(batch, fetch=fetch):
    with ThreadPoolExecutor(16) as pool:
        rows = list(pool.map(fetch, [{"item": name} for name in batch["item"]]))
    return {column: np.stack([row[column] for row in rows]) for column in rows[0]}


with DataPanel("02-threads") as threads:
    far.map_batches(fetch_many, fn_kwargs={"fetch": fetch_from_afar}).materialize()


def seconds_of(panel):
    (operator,) = panel.state.operators
    computing, waiting = operator.cpu_seconds, operator.seconds - operator.cpu_seconds
    return {"tasks computed": computing, "tasks waited": waiting, "on the clock": panel.seconds}


pandas.DataFrame({"one by one": seconds_of(one_by_one), "sixteen threads": seconds_of(threads)}).T.round(1)

# %% [markdown]
# The tasks waited for a small part of the time that they waited before. The CPU time remains: sending requests, parsing responses, decoding images. Because of
# Python's **global interpreter lock**, the threads of one process largely share one core. Use threads to hide waiting, and more tasks to use more CPUs.
#
# *On the clock* includes a fixed cost: each execution takes Ray some tenths of a second, however little there is to do. In a run this short you notice it.

# %% [markdown]
# ## What each operator did
# The panel's table is made from what Ray Data measures. `stats()` has all of it, in many numbers:

# %%
print("\n".join(data.stats().splitlines()[:7]))

# %% [markdown]
# *Wall time* is the duration of its tasks, *CPU time* how much of it they computed. The difference is waiting, mostly for the store. Here is a plan of three steps,
# and a figure of what each operator did:


# %%
def scale(batch):
    batch["x"] = batch["image"].astype(np.float32) / 255
    return batch


with DataPanel("02-chain") as panel:
    named.map_batches(fetch_many).random_shuffle(seed=0).map_batches(scale, batch_size=64).materialize()

panel.plot()

# %% [markdown]
# You wrote three steps, and there are two operators. Where one step simply follows another, Ray Data **fuses** them: one task does both, and
# nothing is passed between them. (Ray doesn't count the tasks of a shuffle, so that column says 0 there.) `scale` could not be fused: a full shuffle cannot emit its first
# row until it has read the last one.

# %% [markdown]
# ## Batches
# `map` calls your function for each row, `map_batches` for many rows at once: up to `batch_size` of them or, by default, a whole block. A batch is a dict of `numpy`
# arrays, unless you ask for another form:

# %%
for form in ("numpy", "pandas", "pyarrow"):
    batch = table.take_batch(4, batch_format=form)
    print(f"{form:8} {type(batch).__name__:10}", batch["label"].__class__.__name__)

# %% [markdown]
# Use `numpy` for images, `pandas` or `pyarrow` for tables of numbers and words. What your function returns may have other columns, and even another number
# of rows. What matters is that it computes with whole arrays, without a loop over rows. Don't change the arrays that you get: they may be views of Ray's object store and
# read-only, so `batch["image"] /= 255` fails. Make new ones, as `scale` does.

# %% [markdown]
# ### Exercise 02-1 · One number for each image
# Write a function for `map_batches` that adds a column `ink`: for each image the mean of its pixels, as a number from 0 (all black) to 1 (all
# white). The other columns stay. There is no loop in it.


# %%
def with_ink(batch): ...  # your answer


# %% tags=["solution"]
def with_ink(batch):
    return {**batch, "ink": batch["image"].mean(axis=(1, 2)) / 255}


# %%
from labkit.exercises import check, hint

check("02-1", with_ink)

# %% [markdown]
# ## What is loaded once
# Often a step needs something large: a model, a table, a dictionary. Here it is a table of ten mean images, one for each digit. The nearest of them says
# which digit an image is. It lies in the store, too:

# %%
means = np.stack([train.images[train.labels == digit].mean(axis=0) for digit in range(10)])
with filesystem.open_output_stream("lab-02/means.npy") as stream:
    np.save(stream, means.astype(np.float32))

# %%
import uuid


def load_means():
    with filesystem.open_input_stream("lab-02/means.npy") as stream:
        return np.load(io.BytesIO(stream.read())), uuid.uuid4().hex


def guess(batch, means, mark):
    distance = ((batch["image"][:, None] - means) ** 2).sum(axis=(2, 3))
    size = len(batch["label"])
    return {"label": batch["label"], "guess": distance.argmin(axis=1), "loaded": np.full(size, mark)}


# %% [markdown]
# `load_means` also gives each loading a mark of its own, so that you can count them. First with a function, which runs in tasks:


# %%
def guess_in_task(batch):
    return guess(batch, *load_means())


with DataPanel("02-tasks") as panel:
    by_tasks = data.map_batches(guess_in_task, batch_size=32).materialize()

# %% [markdown]
# A task forgets everything when it is done. An actor does not. Give `map_batches` a *class*, and Ray Data makes actors of it: `__init__` runs once in
# each of them, `__call__` for every batch.


# %%
class Guess:
    def __init__(self):
        self.means, self.mark = load_means()

    def __call__(self, batch):
        return guess(batch, self.means, self.mark)


# %% [markdown] tags=["prediction"]
# **Before you go on:** batches of 32, and one actor. How often did the tasks load the table? How often will the actor?

# %%
from ray.data import ActorPoolStrategy

with DataPanel("02-actor") as panel:
    by_actor = data.map_batches(Guess, batch_size=32, compute=ActorPoolStrategy(size=1)).materialize()

for how, result in {"tasks": by_tasks, "actor": by_actor}.items():
    answer = result.to_pandas()
    right = (answer.guess == answer.label.astype(int)).mean()
    print(f"{how}: {right:.0%} right, the table was loaded {answer.loaded.nunique()} ×")

# %% [markdown]
# Both give the same answers. (The line that begins with a date is Ray's own: it says what would happen if this actor failed.) The tasks loaded the table for every batch. There are more
# batches than rows divided by 32, because each block is cut by itself and its last batch is smaller. The actor loaded the table once, but it had to be started, a new process. So use actors for what
# is slow to load, and tasks for everything else. `ActorPoolStrategy(min_size=1, max_size=4)` lets the pool grow while there is work and there are free CPUs.

# %% [markdown]
# ### Exercise 02-2 · Load it once
# Here is a function that loads a table of 256 numbers for each batch, and replaces each pixel by the number at its place (that is how one makes images
# brighter or darker).
#
# ```python
# def brighten(batch):
#     table = load()
#     return {**batch, "image": table[batch["image"]]}
# ```
#
# Write it as a class. `load` is given to it when it is made. It is called once, however many batches there are.


# %%
class Brighten:  # your answer
    def __init__(self, load): ...

    def __call__(self, batch): ...


# %% tags=["solution"]
class Brighten:
    def __init__(self, load):
        self.table = load()

    def __call__(self, batch):
        return {**batch, "image": self.table[batch["image"]]}


# %%
check("02-2", Brighten)

# %% [markdown]
# ## Parts
# Some rows are kept back for testing:

# %%
to_train, to_test = table.train_test_split(test_size=0.2, shuffle=True, seed=0)
to_train.count(), to_test.count()

# %% [markdown]
# And each training worker needs its own part. `streaming_split` hands out blocks *while they are produced*, to whichever worker asks next. Two threads stand in for two
# workers here; in lesson 03 Ray Train does this for you.


# %%
def consume(shard):
    return [len(batch["label"]) for batch in shard.iter_batches(batch_size=64)]


parts = to_train.streaming_split(2, equal=True)
with ThreadPoolExecutor() as pool:
    for sizes in pool.map(consume, parts):
        print(f"{sum(sizes)} rows in batches of {sizes}")

# %% [markdown]
# With `equal=True` all get equally many rows, since workers that train together must make equally many steps. If the rows cannot be shared out evenly,
# the rest is left out.

# %% [markdown]
# ### Exercise 02-3 · Who gets how much?
# 1,000 rows are split with `streaming_split(3, equal=True)`, and each worker takes batches of 64. How many rows does each worker get, how many rows are dropped, and how
# many batches does each worker process per epoch?

# %%
rows_each = ...  # your answer
rows_lost = ...  # your answer
batches_each = ...  # your answer

# %% tags=["solution"]
rows_each = 1000 // 3
rows_lost = 1000 % 3
batches_each = -(-rows_each // 64)

# %%
check("02-3", rows_each, rows_lost, batches_each)

# %% [markdown]
# ## Order
# The names were sorted, and so the images come class by class. Training in this order works badly: the model sees only zeros at first, then only ones, and forgets the zeros
# while it learns the ones. There are several ways to change the order. They differ in what they read before they can give out the first batch:


# %%
few = names[:: max(1, len(names) // 300)]


def images_of(names):
    return ray.data.from_items(names, override_num_blocks=8).map(fetch_from_afar)


def first_labels(dataset, **options):
    begin = time.perf_counter()
    batches = iter(dataset.iter_batches(batch_size=16, **options))
    labels = next(batches)["label"].astype(int)
    return " ".join(map(str, labels)) + f"   {len(set(labels))} classes, {time.perf_counter() - begin:.2f} s"


print("not shuffled", first_labels(images_of(few)))
print("blocks mixed", first_labels(images_of(few).randomize_block_order(seed=0)))
print("local       ", first_labels(images_of(few), local_shuffle_buffer_size=200, local_shuffle_seed=0))
print("full        ", first_labels(images_of(few).random_shuffle(seed=0)))

# %% [markdown]
# Four orders, and how long each took until its first batch. All four start from the names.
#
# - *Not shuffled*: the first batch is there when the first block is.
# - `randomize_block_order` shuffles the *blocks*; the rows of a block stay together. It needs no work, but in Ray 2.60 it waits for all blocks. On data that is materialized, it's free.
# - A *local* shuffle keeps a buffer of rows in the process that reads, and draws from it. It waits until the buffer is full, and mixes rows that are near each other. A
#   larger buffer mixes more and takes more memory.
# - A *full* shuffle moves every row to another block. All rows must be read before the first one comes out, all of them have to fit into Ray's object store (or are
#   written to disk), and in a cluster of many machines they go over the network.
#
# There is a cheaper way here, because you had the *names* first. Shuffle those:

# %%
import random

mixed = random.Random(0).sample(few, len(few))
print("names mixed ", first_labels(images_of(mixed)))

# %% [markdown]
# Fully shuffled, and the first batch comes as soon as without any shuffle. For files, `read_parquet(…, shuffle="files")` and the like shuffle the names of the files in this way, and a
# local shuffle does the rest.

# %% [markdown]
# ## Once or every time
# An epoch runs the plan again: fetch, decode, change. `materialize` keeps the result in Ray's object store.


# %%
def epochs(dataset, times=2):
    for epoch in range(times):
        begin = time.perf_counter()
        rows = sum(len(batch["label"]) for batch in dataset.iter_batches(batch_size=128))
        print(f"  epoch {epoch + 1}: {rows} rows in {time.perf_counter() - begin:.2f} s")


plan = named.map_batches(fetch_many).map_batches(scale, batch_size=64)
print("the plan:")
epochs(plan)
print("materialized:")
epochs(plan.materialize())

# %% [markdown]
# Materialize when the result fits into Ray's object store and should be identical in every epoch. Put random augmentation (crops, flips) *after* `materialize`; otherwise every
# epoch gets the same crops.

# %% [markdown]
# ## Four times more than fits
# Ray's object store on this node has 400 MB. Now 1.6 GB go through it: 80 blocks of 20 MB. (They are made on the spot, so that your disk does not have to hold them.) The
# consumer is slow, as trainings are.

# %% [markdown] tags=["prediction"]
# **Before you go on:** the blocks are made much faster than they are consumed. Where do they pile up? Will the memory run over?


# %%
def large(batch):
    return {"x": np.ones((len(batch["id"]), 1_000_000), np.uint8)}


with DataPanel("02-stream") as stream_panel:
    stream = ray.data.range(1600, override_num_blocks=80).map_batches(large, batch_size=20)
    for _ in stream.iter_batches(batch_size=20):
        time.sleep(0.05)

# %%
state = stream_panel.state
print(f"{state.bytes / 1e6:,.0f} MB went through")
print(f"{state.memory_peak / 1e6:,.0f} MB at most were in Ray's object store at one time")
print(f"{state.samples[0][2] / 1e6:,.0f} MB were taken by all of Ray's processes before")
print(f"{state.process_peak / 1e6:,.0f} MB at most")
stream_panel.plot_memory()

# %% [markdown]
# The blocks did not pile up: the memory rose to a level and stayed there. When the consumer does not keep up, Ray Data makes `large` wait: it starts no further task until there is room. That is
# **back-pressure**, the column *held back* of the panel. So the total size of the data doesn't matter. What must fit is a few blocks for each running task.
#
# Some operations break this rule because they need all rows at the same time: `materialize`, `random_shuffle`, `sort`, `groupby`, `join`, and `randomize_block_order`.

# %% [markdown]
# ## A bug in one row
# This function cuts an image down to what is drawn on it. It was tried on ten images, and it was right. In the store there is now one more.

# %%
black = io.BytesIO()
PIL.Image.fromarray(np.zeros((28, 28), np.uint8)).save(black, "PNG")
odd = "lab-02/odd/3/black.png"
with filesystem.open_output_stream(odd) as stream:
    stream.write(black.getvalue())


# %%
def height(row):
    lines = np.flatnonzero(row["image"].any(axis=1))
    return {"name": row["name"], "height": lines[-1] - lines[0] + 1}


# %% tags=["raises-exception"]
some = ray.data.from_items([*names[:40], odd], override_num_blocks=2)
with DataPanel("02-bug"):
    some.map(fetch).map(height).materialize()

# %% [markdown]
# The panel shows the line, and what was wrong: there is no `lines[-1]`. Which *row* it was, Python does not know. Tell it:


# %%
def height_with_name(row):
    try:
        return height(row)
    except Exception as error:
        raise ValueError(f"{row['name']}: {error}") from error


# %% tags=["raises-exception"]
with DataPanel("02-bug-found"):
    some.map(fetch).map(height_with_name).materialize()

# %% [markdown]
# Now the message has the name of the object, and you can look at it: `fetch({"item": …})`, in this process, with a debugger if need be.

# %% [markdown]
# ## Bad objects
# Among a million objects some are broken: an upload that stopped half way, a text file that was left there by mistake.

# %%
with filesystem.open_input_stream(names[0]) as stream:
    good = stream.read()

bad = {"lab-02/odd/3/half.png": good[: len(good) // 2], "lab-02/odd/3/notes.png": b"ask Kim about these"}
for name, payload in bad.items():
    with filesystem.open_output_stream(name) as stream:
        stream.write(payload)

suspects = ray.data.from_items([*names[:40], *bad], override_num_blocks=6)

# %% [markdown]
# Three ways to deal with them. **Refuse** is the default: the first bad object ends everything.

# %% tags=["raises-exception"]
with DataPanel("02-refuse"):
    suspects.map(fetch).materialize()

# %% [markdown]
# **Drop blocks.** `max_errored_blocks` sets how many blocks may fail before the execution does. You don't have to change your function.

# %% [markdown] tags=["prediction"]
# **Before you go on:** 42 objects, two of them bad, in six blocks. How many rows will be left?

# %%
context = ray.data.DataContext.get_current()
context.max_errored_blocks = 2
# Made again, since a dataset keeps the settings that were valid when it was made.
suspects = ray.data.from_items([*names[:40], *bad], override_num_blocks=6)
with DataPanel("02-drop-blocks") as panel:
    suspects.map(fetch).materialize()

context.max_errored_blocks = 0
print(panel.rows, "rows of 42")

# %% [markdown]
# It drops the whole block with all the good rows in it. It is meant for machines that fail, not for rows.
#
# **Skip rows.** `flat_map` wants a list of rows for each row. For a bad one that is an empty list:


# %%
def fetch_or_skip(row):
    try:
        return [fetch(row)]
    except (OSError, SyntaxError):  # Pillow's words for "no image", and for a broken one
        return []


with DataPanel("02-skip") as panel:
    suspects.flat_map(fetch_or_skip).materialize()

print(panel.rows, "rows of 42")

# %% [markdown]
# Now exactly two are missing. But you don't know which, and if one day it's half of them, you won't notice. Better to count.

# %% [markdown]
# ### Exercise 02-4 · Note what was bad
# Write a function that is given the name of an object and its bytes, and *always* returns a row with three columns: `name`, `image` (uint8, 28×28) and `error`. For a good image `error` is
# the empty text. For anything else `image` is all zeros, and `error` says what was wrong, in any words. `decode` from above may help.
#
# (All rows of a table have the same columns with the same types: so a bad row has an image, too.)


# %%
def decode_or_note(name, payload): ...  # your answer


# %% tags=["solution"]
def decode_or_note(name, payload):
    try:
        image = decode(name, payload)["image"]
        if image.shape != (28, 28):
            raise ValueError(f"its size is {image.shape}")
        return {"name": name, "image": image, "error": ""}
    except Exception as error:
        return {"name": name, "image": np.zeros((28, 28), np.uint8), "error": repr(error)}


# %%
check("02-4", decode_or_note)

# %% [markdown]
# Try it on the suspects:

# %%
from ray.data.expressions import col


def fetch_or_note(row):
    with filesystem.open_input_stream(row["item"]) as stream:
        return decode_or_note(row["item"], stream.read())


if decode_or_note(names[0], good) is not None:  # your function is there
    with DataPanel("02-note"):
        noted = suspects.map(fetch_or_note).materialize()
        bad_rows = noted.filter(expr=col("error") != "").take_all()
    print([(row["name"], row["error"][:40]) for row in bad_rows])

# %% [markdown]
# Now you know which objects were bad, and how many. `filter(expr=col("error") == "")` continues with the good ones, and you decide: you might accept 0.1 % and alert someone above that.

# %% [markdown]
# ## In this notebook
# - you began with names, fetched and decoded them yourself, and then with `read_images` and `read_parquet`, and measured what one object per image costs;
# - you saw that a dataset is a plan, cut into blocks, and that too many blocks are slow;
# - you changed rows with `map`, batches with `map_batches`, and loaded a table once in an actor;
# - you kept rows for testing, dealt the others out to two workers, and know what each kind of shuffle costs;
# - 1.6 GB went through Ray's object store of 400 MB, since back-pressure holds the producers;
# - you found a bad row by its name, and can refuse, drop, skip or note bad objects.
#
# Stop the store and the cluster. The next lesson trains on data like this.

# %%
store.stop()
lab.stop()
