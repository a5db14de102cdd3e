# %% [markdown]
# # 02 · Data that does not fit: Ray Data
#
# By the end of this lesson you can
# - read images from an object store in three ways, and say what each costs;
# - change them in batches, with functions (exercise 02-1) and with classes that load something once (02-2);
# - find bad objects, and keep a run alive that meets them (02-3);
# - say what blocks, actors and memory have to do with each other (02-4).
#
# **Time** … · **Needs** 00, 01

# %% [markdown]
# Suppose you have 40 GB of images on a server and 16 GB of memory. You can't load all of them before you train. The data has to *stream*: while one part is read,
# another is decoded, and a third is on its way to the training. Ray Data does that, on all CPUs of a cluster.

# %%
from labkit import cluster, datasets, storage
from labkit.settings import Settings

settings = Settings.from_env()
lab = cluster.start()
store = storage.start()
store

# %% [markdown] tags=["instructor"]
# **"Object store" means two things.** In this lesson it's the S3 server. Ray's shared memory from lesson 01 is called *Ray's object store* here. Say
# both names aloud once.

# %% [markdown]
# ## An object store
# An **object store** is a server that keeps bytes under names: you send it a name, and it answers with the bytes. In production this is S3, MinIO or something similar; here it is a small S3 server on your machine. (Lesson 01
# used the same term for the shared memory of a Ray node. In this lesson, that is *Ray's object store*.) You upload each image as a PNG file, in a folder named after its label, and all of them
# once more as four Parquet files, which are tables stored by columns. The function calls them shards:

# %%
from labkit.storage import upload, upload_shards

n = 300 if settings.small else 1400
train = datasets.load("digits", n=n)
upload(train, store, "lab-02", prefix="images")
upload_shards(train, store, "lab-02", prefix="rows", rows_per_shard=n // 4)
train.show(range(8))

# %% [markdown] tags=["instructor"]
# **"Shard" means two things as well.** `upload_shards` writes Parquet *files*. In lesson 03 a shard is a worker's part of the rows.

# %% [markdown]
# `pyarrow` connects to any S3 server, if you give it the address and the keys. The lab keeps its keys in a file that only you can read:

# %%
import configparser

from pyarrow.fs import FileSelector, S3FileSystem

key_file = settings.home / "objects" / "credentials"
if key_file.exists():  # a store that the lab started
    keys = configparser.ConfigParser()
    keys.read(key_file)
    (mine,) = (keys[section] for section in keys.sections())
    access, secret = mine["aws_access_key_id"], mine["aws_secret_access_key"]
    by_hand = S3FileSystem(endpoint_override=store.endpoint, access_key=access, secret_key=secret)
    print([file.base_name for file in by_hand.get_file_info(FileSelector("lab-02/rows"))])

# %% [markdown] tags=["instructor"]
# **A store that doesn't answer.** `store = storage.start()` starts it again with the same data, and on the same port if that is still free. Then
# `filesystem` and `names` stay valid.

# %% [markdown]
# `store.filesystem` does the same job. It is a `pyarrow` filesystem as well, but when it is sent to a worker, the keys are not in it: each worker reads the key file.

# %%
filesystem = store.filesystem
found = filesystem.get_file_info(FileSelector("lab-02/images", recursive=True))
names = sorted(file.path for file in found if file.is_file)
len(names), names[0], names[-1]

# %% [markdown]
# ## Names, not data
# A list of names is small: a million of them take about 80 MB. So begin with the names. A Ray *dataset* is a table; this one has a column `item`, and a row for each name. To turn names into images, write what
# happens to *one* row:

# %%
import io

import numpy as np
import PIL.Image
import ray.data

named = ray.data.from_items(names)


def decode(name, payload):
    image = np.asarray(PIL.Image.open(io.BytesIO(payload)).convert("L"))
    return {"image": image, "label": int(name.split("/")[-2]), "name": name}


def fetch(row):
    with filesystem.open_input_stream(row["item"]) as stream:
        return decode(row["item"], stream.read())


fetch({"item": names[0]})["image"].shape

# %% [markdown]
# It works for one row, in this process. Always try a function that way first.

# %% [markdown] tags=["prediction"]
# **Predict.** The next cell applies `fetch` to every name. How long will it take?

# %%
from labkit.exercises import check, hint, predict, reveal

predict("02-a", ..., choices=["as long as all fetches", "as long as one fetch", "next to nothing"])

# %%
import time

begin = time.perf_counter()
images = named.map(fetch)
milliseconds = 1000 * (time.perf_counter() - begin)
print(f"{milliseconds:.1f} ms")
reveal("02-a", "next to nothing" if milliseconds < len(names) / 3 else "as long as all fetches")

# %% [markdown] tags=["instructor"]
# **Nothing happened, in a millisecond.** Right: `map` only adds a step to a plan. Ask what in the next cells makes it run.

# %% [markdown]
# Nothing was fetched. A dataset is *lazy*: it is a plan. It is executed when something asks for rows, for example
# `materialize`, which asks for all of them and keeps them. (The first run is a tiny one, so that the start of worker processes doesn't count.)

# %%
from labkit.data import DataPanel

with DataPanel("02-warm-up"):
    ray.data.range(3, override_num_blocks=3).map_batches(lambda batch: batch).materialize()

# %%
with DataPanel("02-names") as many_blocks:
    images.materialize()

# %% [markdown] tags=["instructor"]
# **The table of the data panel.** *Task seconds* is the sum over tasks, *of them CPU* what they computed, and *held back* how long an operator had
# work but no free CPU or no room.

# %% [markdown]
# Each line of the table is a step of the plan, an **operator**. *Task seconds* are the durations of its tasks, added up, and *of them CPU* is how much of that they
# computed; the rest is waiting. *Held back* is how long the operator had work but no free CPU or no room for results.
#
# ## Blocks
# Look at the column *tasks*. Ray Data cuts a table into **blocks**, and each task processes one. It cut the list into 200 blocks of only a few rows.
#
# ![A table is cut into blocks; each task turns one block into one block, and two operators may be fused](images/blocks.svg)

# %% [markdown] tags=["prediction"]
# **Predict.** Now 8 blocks instead of 200. How many times as fast will it be?

# %%
predict("02-b", ...)

# %%
named = ray.data.from_items(names, override_num_blocks=8)
with DataPanel("02-names, 8 blocks") as few_blocks:
    data = named.map(fetch).materialize()

reveal("02-b", many_blocks.seconds / few_blocks.seconds)

# %% tags=["claim"]
assert many_blocks.seconds / few_blocks.seconds > 1.5 and data.count() == len(names)

# %% [markdown]
# Most of the time had gone into starting tasks. A block is the unit of everything: a task works on one, a failed task repeats one, and a worker holds one in memory. Where Ray reads files, it aims at blocks of 1 to 128 MiB; it cuts a list into up to 200.
#
# ## The same, ready made
# Listing, fetching and decoding are so common that Ray Data has them:

# %%
with DataPanel("02-read-images") as ready_made:
    ray.data.read_images("lab-02/images", filesystem=filesystem, mode="L").materialize()

# %% [markdown]
# This sends one request per image, too. A Parquet file needs one request for many rows. (To plan the reading, Ray Data 2.60 starts 32 processes that look into the files. With four files on two cores this takes
# ten seconds, so the next cell switches back to the older reader.)

# %%
ray.data.DataContext.get_current().use_datasource_v2 = False

with DataPanel("02-read-parquet") as parquet:
    table = ray.data.read_parquet("lab-02/rows", filesystem=filesystem).materialize()

# %%
import pandas

ways = {"own fetch": few_blocks, "read_images": ready_made, "read_parquet": parquet}
times = pandas.DataFrame([{"way": way, "rows": p.rows, "seconds": p.seconds} for way, p in ways.items()])
times.set_index("way").round(1)

# %% tags=["claim"]
assert parquet.seconds < few_blocks.seconds and parquet.seconds < ready_made.seconds

# %% [markdown]
# One object per image is how images *arrive*. Before you train on them fifty times, write them into Parquet: `data.write_parquet("lab-02/as-parquet", filesystem=filesystem)`. Use your own `fetch` for what no
# reader can do: your own format, two files for each row, a query to a database.

# %% [markdown]
# ## Batches
# `map` calls your function for each row. `map_batches` calls it for many rows at once: up to `batch_size` of them or, by default, a whole block. A batch is a dict of arrays:

# %%
batch = table.take_batch(4)
{name: (column.dtype, column.shape) for name, column in batch.items()}

# %% [markdown]
# Compute with whole arrays, without a loop over rows. Don't change the arrays that you get: they may be views of Ray's object store and
# read-only, and then `batch["image"][0] = 0` fails. Make new ones:


# %%
def scale(batch):
    return {"x": batch["image"].astype(np.float32) / 255, "y": batch["label"]}


plan = named.map(fetch).map_batches(scale, batch_size=64)
plan.schema()

# %% [markdown] tags=["instructor"]
# **"assignment destination is read-only".** Someone changes the batch that they got. By default `map_batches` avoids copies, so the arrays may be
# read-only views of Ray's object store. Say: "Compute a new array and return that."

# %% [markdown]
# Names, fetch, scale: this plan is what you give to a training (lesson 03). It is executed again in each epoch, while the workers train. `materialize()` would keep its result instead. That pays when the result fits into Ray's
# object store and should be the same in each epoch. Random crops and flips belong *after* `materialize()`.

# %% [markdown]
# ### Exercise 02-1 · One number for each image
# Write a function for `map_batches` that adds a column `ink`: for each image the mean of its pixels, from 0 (all black) to 1 (all
# white). The other columns stay. The check runs it on the cluster.


# %%
def with_ink(batch): ...  # your answer


# %% tags=["solution"]
def with_ink(batch):
    return {**batch, "ink": batch["image"].mean(axis=(1, 2)) / 255}


# %%
check("02-1", with_ink)

# %% [markdown]
# ## What is loaded once
# Often a step needs something large: a model, a table, a dictionary. Loading it takes time; here that is a pause of 0.3 s.


# %%
def load_table():
    time.sleep(0.3)
    return np.arange(255, -1, -1, dtype=np.uint8)


def invert(batch):
    return {"image": load_table()[batch["image"]]}


# %% [markdown]
# `invert` loads the table for every batch. A task can't keep it for the next one, which may run in another process. An actor can. Give `map_batches` a *class*, and Ray Data makes actors of it: `__init__` runs once in
# each of them, `__call__` for every batch.

# %% [markdown]
# ### Exercise 02-2 · Load it once
# Fill the class so that it does what `invert` does, and loads the table once in each actor. `load` is `load_table`. The check sends batches through
# `map_batches(Invert, fn_constructor_args=(load,), compute=ActorPoolStrategy(size=1))`.


# %%
class Invert:
    def __init__(self, load): ...  # your answer

    def __call__(self, batch): ...  # your answer


# %% tags=["solution"]
class Invert:
    def __init__(self, load):
        self.table = load()

    def __call__(self, batch):
        return {"image": self.table[batch["image"]]}


# %%
check("02-2", Invert)

# %% [markdown] tags=["prediction"]
# **Predict.** Batches of 100, and the table takes 0.3 s to load. The rows, 1,400 or in small mode 300, are in 8 blocks of equal length. How many seconds will the tasks of `invert` wait, added up?

# %%
predict("02-c", ...)

# %%
with DataPanel("02-invert") as panel:
    data.map_batches(invert, batch_size=100).materialize()

(operator,) = panel.state.operators
waited = operator.seconds - operator.cpu_seconds
reveal("02-c", waited)

# %% [markdown] tags=["instructor"]
# **The tasks waited longer than the cell ran.** Task seconds are added up over tasks that run at the same time. With 1,400 images, each of the 8
# blocks has 175 rows and is cut into 2 batches. Say: "16 batches of 0.3 s make 4.8 s, and the CPUs share them."

# %% tags=["claim"]
assert waited > 0.3 * len(names) / 100 * 0.9

# %% [markdown]
# There are more batches than rows divided by 100, because each block is cut by itself: 175 rows are two batches, so 16 batches wait for 4.8 s; in small mode it's 8 batches and 2.4 s. An actor waits once. Starting an actor means starting a process. So use actors for what
# is slow to load, and tasks for everything else.

# %% [markdown]
# ## More than fits
# Ray's object store on this node has 400 MB, the size that `cluster.start` chooses. Now 1.6 GB go through it: 80 blocks of 20 MB, made on the spot. The consumer is slow, like most training.

# %% [markdown] tags=["prediction"]
# **Predict.** The blocks are made much faster than they are consumed. How many MB will be in Ray's object store at most, at one time?

# %%
predict("02-d", ...)


# %%
def large(batch):
    return {"x": np.ones((len(batch["id"]), 1_000_000), np.uint8)}


with DataPanel("02-stream") as streamed:
    stream = ray.data.range(1600, override_num_blocks=80).map_batches(large, batch_size=20)
    for _ in stream.iter_batches(batch_size=20):
        time.sleep(0.05)

# %%
reveal("02-d", streamed.state.memory_peak / 1e6)
streamed.plot_memory()

# %% tags=["claim"]
assert streamed.state.bytes > 1.5e9 and streamed.state.memory_peak < 0.5e9

# %% [markdown]
# The blocks did not pile up. Ray Data plans with half of the object store, here 200 MB. When the consumer does not keep up, Ray Data starts no further task until there is room. That is
# **back-pressure**, the column *held back*. So the total size of the data doesn't matter; what must fit is a few blocks for each running task. Some operators break this rule because they need, or keep, all rows at the same
# time: `materialize`, `random_shuffle`, `sort`, `groupby`, `join`, and `randomize_block_order`.

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

# %% tags=["raises-exception"]
suspects = ray.data.from_items([*names[:40], *bad], override_num_blocks=6)
with DataPanel("02-refuse"):
    suspects.map(fetch).materialize()

# %% [markdown] tags=["instructor"]
# **A red error in *Bad objects*.** It's intended: two of the 42 objects are broken, and the run ends. After exercise 02-3, the same objects go
# through. Until the exercise is solved, the cell below its check prints nothing.

# %% [markdown]
# The first bad object ends everything, and the message doesn't say which one it was.

# %% [markdown]
# ### Exercise 02-3 · Note what was bad
# Repair it. Write a function that is used in place of `decode` and *always* returns a row with `name`, `image` (uint8, 28×28) and `error`. For a good image `error` is
# the empty text. Leave out the label. For anything else `image` is all zeros, because all rows of a table have the same columns, and `error` says what was wrong, in any words. Pillow raises several kinds of errors, when it opens a file or only when it decodes it. An image of another size is bad, too.


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
check("02-3", decode_or_note)

# %%
from ray.data.expressions import col


def fetch_or_note(row):
    with filesystem.open_input_stream(row["item"]) as stream:
        return decode_or_note(row["item"], stream.read())


if decode_or_note(names[0], good) is not None:  # your function is there
    noted = suspects.map(fetch_or_note).filter(expr=col("error") != "")
    print([(row["name"], row["error"][:40]) for row in noted.take_all()])

# %% [markdown]
# Now you know which objects were bad, and how many. You decide whether to go on: you might accept 0.1 % and alert someone above that. A name that no longer exists still ends the run; the extra section on `download` has a way around that.

# %% [markdown]
# ### Exercise 02-4 · What would change?
# `named.map(fetch).map_batches(Invert, …)` with 8 blocks and one actor. What happens if you cut the names into 80 blocks instead? Write "less", "same" or "more" for each.

# %%
change = {
    "tasks that fetch": ...,  # your answer
    "rows that are fetched again if a task fails": ...,  # your answer
    "memory for a block": ...,  # your answer
    "how often the table is loaded": ...,  # your answer
}

# %% tags=["solution"]
change = {
    "tasks that fetch": "more",
    "rows that are fetched again if a task fails": "less",
    "memory for a block": "less",
    "how often the table is loaded": "same",
}

# %%
check("02-4", change)

# %% [markdown] tags=["extra"]
# ## Extra: while it waits
# The store of this page is on your machine and responds in a millisecond or two. One in another city takes 20 ms or more per object. A task that requests one object after
# the other does nothing in the meantime. The pause below stands for that distance. There are as many blocks as CPUs, so all tasks run at the same time:


# %%
def fetch_from_afar(row):
    time.sleep(0.02)
    return fetch(row)


far = ray.data.from_items((names * 2)[:600], override_num_blocks=int(lab.cpus))
with DataPanel("02-one-by-one") as one_by_one:
    far.map(fetch_from_afar).materialize()

# %% [markdown]
# Most of the *task seconds* are not CPU time, but waiting. A task does not have to request one object after the other. It can request sixteen at once, with threads, if it
# gets many names: `map_batches` passes it a whole batch.

# %% [markdown] tags=["prediction"]
# **Predict.** Sixteen threads wait at the same time. How many times as fast will it be?

# %%
predict("02-e", ...)

# %%
from concurrent.futures import ThreadPoolExecutor


def fetch_many(batch):
    with ThreadPoolExecutor(16) as pool:
        rows = list(pool.map(fetch_from_afar, [{"item": name} for name in batch["item"]]))
    return {column: np.stack([row[column] for row in rows]) for column in rows[0]}


with DataPanel("02-threads") as threads:
    far.map_batches(fetch_many).materialize()


def seconds_of(panel):
    (operator,) = panel.state.operators
    computing, waiting = operator.cpu_seconds, operator.seconds - operator.cpu_seconds
    return {"tasks computed": computing, "tasks waited": waiting, "on the clock": panel.seconds}


reveal("02-e", one_by_one.seconds / threads.seconds)
pandas.DataFrame({"one by one": seconds_of(one_by_one), "sixteen threads": seconds_of(threads)}).T.round(1)

# %% tags=["claim"]
assert one_by_one.seconds > threads.seconds

# %% [markdown]
# The tasks waited for a small part of the time that they waited before. The CPU time remains: sending requests, parsing responses, decoding images. Because of
# Python's **global interpreter lock**, the threads of one process largely share one core. Use threads to hide waiting, and more tasks to use more CPUs.
#
# *On the clock* includes a fixed cost: each execution takes Ray some tenths of a second, however little there is to do. In a run this short you notice it.

# %% [markdown] tags=["extra"]
# ## Extra: fetch without a function of your own
# Ray Data has an expression for fetching, `download`, which is still marked *alpha*. It makes a column of bytes out of a column of names, with threads, in a step of its own. Its `filesystem` argument is newer than the
# expression: in Ray 2.52, for example, `download` takes only a column of URIs such as `s3://…`.

# %% [markdown] tags=["prediction"]
# **Predict.** One of the 41 names below doesn't exist. What will you get for it?

# %%
predict("02-f", ..., choices=["an error", "no row", "a row without bytes"])

# %%
from ray.data.expressions import download

payloads = ray.data.from_items([*names[:40], "lab-02/no-such.png"], override_num_blocks=4)
with DataPanel("02-download"):
    payloads = payloads.with_column("bytes", download("item", filesystem=filesystem)).materialize()

# %%
empty = [row["item"] for row in payloads.iter_rows() if row["bytes"] is None]
reveal("02-f", "a row without bytes" if empty else "no row")
payloads.count(), empty

# %% tags=["claim"]
import inspect

assert "alpha" in download.__doc__ and "filesystem" in inspect.signature(download).parameters

# %% tags=["claim"]
assert payloads.count() == 41 and empty == ["lab-02/no-such.png"]

# %% [markdown]
# The row is there, and nothing was raised. So filter by `col("bytes").is_null()` and count, as with your own errors. Decoding is still your function: `map(lambda row: decode(row["item"], row["bytes"]))`. (The
# package `obstore`, which Ray recommends, makes downloads of many files faster.)

# %% [markdown] tags=["extra"]
# ## Extra: what each operator did
# The panel's table is made from what Ray Data measures. `stats()` has all of it, in many numbers:

# %%
print("\n".join(data.stats().splitlines()[:7]))

# %% [markdown]
# *Wall time* is the duration of its tasks, *CPU time* how much of it they computed. The difference is waiting, mostly for the store. Here is a plan of three steps,
# and a figure of what each operator did:

# %%
with DataPanel("02-chain") as panel:
    named.map(fetch).random_shuffle(seed=0).map_batches(scale, batch_size=64).materialize()

panel.plot()

# %% [markdown]
# You wrote three steps, and there are two operators: `fetch` runs in the tasks of the shuffle's first half. Where one step simply follows another, Ray Data **fuses** them: one task does both, and
# nothing is passed between them. (Ray doesn't count the tasks of a shuffle, so that column says 0 there.) `scale` could not be fused: a full shuffle cannot emit its first
# row until it has read the last one.

# %% [markdown] tags=["extra"]
# ## Extra: order
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
# Fully shuffled, and the first batch comes as soon as without any shuffle. Shuffle again, with another seed, for each epoch. For files, `read_parquet(…, shuffle="files")` and the like shuffle the names of the files in this way, and a
# local shuffle does the rest.

# %% [markdown] tags=["extra"]
# ## Extra: parts
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
# ![Four Parquet files become blocks, and the blocks become one shard for each rank](images/shards.svg)
#
# With `equal=True` all get equally many rows, since workers that train together must make equally many steps. If the rows cannot be shared out evenly,
# the rest is left out.

# %% [markdown] tags=["extra"]
# ## Extra: drop and skip
# `max_errored_blocks` sets how many blocks may fail before the execution does. You don't have to change your function.

# %% [markdown] tags=["prediction"]
# **Predict.** 42 objects in six blocks of seven; the two bad ones are the last. How many rows will be left?

# %%
predict("02-g", ...)

# %%
context = ray.data.DataContext.get_current()
context.max_errored_blocks = 2
again = ray.data.from_items([*names[:40], *bad], override_num_blocks=6)  # with the new setting
with DataPanel("02-drop-blocks") as panel:
    again.map(fetch).materialize()

context.max_errored_blocks = 0
reveal("02-g", panel.rows)

# %% [markdown]
# Both bad objects were in the last block, and five good ones were dropped with them. The setting is meant for machines that fail, not for rows. To skip rows, use `flat_map`, which wants a list of rows for each row. For a bad one the list is empty:


# %%
def fetch_or_skip(row):
    with filesystem.open_input_stream(row["item"]) as stream:  # a store that is down is no bad image
        payload = stream.read()
    try:
        return [decode(row["item"], payload)]
    except (OSError, SyntaxError):  # what Pillow raises for "no image", and for a broken one
        return []


suspects.flat_map(fetch_or_skip).count()

# %% [markdown]
# Exactly two are missing. But you don't know which, and if one day it's half of them, you won't notice. Better to note them, as in exercise 02-3.

# %% [markdown]
# ## Key points
# - Begin with names. A dataset is a plan, and nothing is read until rows are asked for.
# - A plan is executed block by block. Too many blocks cost time, too few leave CPUs without work.
# - Many rows in a file, and many rows in a batch: that makes reading and computing fast.
# - A class loads once in each actor; a function has to load again in each call.
# - What must fit into memory is a few blocks for each running task, not the data.
# - Decide what happens with bad rows before you meet them, and count them.
#
# | older tutorials | today |
# |---|---|
# | `ray.data.dataset_pipeline`, `.window()`, `.repeat()` | every dataset streams; iterate once per epoch |
# | `map_batches(f, compute="actors")` | `compute=ActorPoolStrategy(size=…)` |
# | `filter(lambda row: …)`, `filter(expr="error != ''")` | `filter(expr=col("error") != "")` |
# | a `fetch` of your own for bytes | that, or `with_column("bytes", download("item", filesystem=…))` |

# %% [markdown] tags=["plain"]
# ## Without the lab
# Names, fetch, batches and bad rows, in plain Ray, from any filesystem that `pyarrow` knows:

# %% [markdown] tags=["links"]
# ## Reference

# %% [markdown]
# ## Stop
# The next lesson trains on data like this.

# %%
store.stop()
lab.stop()
