# %% [markdown]
# # 02 · Data that does not fit: Ray Data
#
# By the end of this lesson you can
# - read data from an object store by its `s3://` address, with keys and without;
# - change it in batches, with functions (exercise 02-1) and with classes that load something once (02-2);
# - choose into how many blocks a data set is cut (02-4);
# - find bad objects, and keep a run alive that meets them (02-3).
#
# **Time** about 75 minutes · **Needs** 00, 01

# %% [markdown]
# In 2021, engineers at Google looked at a month of training jobs, millions of them. One job in five spent more than a third of its compute time on reading and preparing data
# ([Murray et al.](https://arxiv.org/abs/2101.12127), figure 1). An expensive GPU that waits for a JPEG is still an expensive GPU.
#
# Suppose you have 40 GB of images on a server and 16 GB of memory. You can't load all of them before you train, so the data has to *stream*: while one part is read, another is decoded, and a third is on its way to the model. Ray Data does that,
# on all CPUs of a cluster.
#
# ## An object store
# An **object store** is a server that keeps bytes under names: you send it a name, and it answers with the bytes. Most training data at work is in one, such as Amazon S3, Google Cloud Storage or MinIO. This cell starts a small S3 server
# on your machine and puts 400 images of digits into the bucket `lab-02`, each as a PNG object whose name contains its label, such as `lab-02/images/7/00012.png`:

# %%
import io

import PIL.Image
from course import datasets
from labkit.local import cluster, storage

lab = cluster.start()
store = storage.start()
digits = datasets.load("digits", n=400)


def png(image):
    file = io.BytesIO()
    PIL.Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


objects = {}
for row, (image, label) in enumerate(digits):
    objects[f"lab-02/images/{label}/{row:05}.png"] = png(image)
store.bucket("lab-02")
store.files.pipe(objects)

# %% [markdown]
# The same images once more, as four **Parquet** files, which are tables stored by columns. `pyarrow` writes them:

# %%
import pyarrow.parquet

rows = digits.to_arrow()
for part in range(4):
    path = f"lab-02/rows/part-{part:05}.parquet"
    pyarrow.parquet.write_table(rows.slice(100 * part, 100), path, filesystem=store.filesystem)

# %% [markdown] tags=["instructor"]
# **"Object store" means two things.** In this lesson it's the S3 server. Ray's shared memory from lesson 01 is called *Ray's object store* here. Say
# both names aloud once.

# %% [markdown] tags=["instructor"]
# **"Shard" means two things as well.** Some people call each of the four Parquet *files* a shard. In lesson 03 a shard is a worker's part of the rows.

# %% [markdown]
# An S3 address has the form `s3://bucket/prefix`. To read it you need three more things: where the server is, an access key and a secret key. `S3FileSystem` from `pyarrow` takes all of them, and Ray Data takes the filesystem:

# %%
import ray.data
from pyarrow.fs import S3FileSystem

access_key, secret_key = store.read_keys()
s3 = S3FileSystem(endpoint_override=store.endpoint, access_key=access_key, secret_key=secret_key)
table = ray.data.read_parquet("s3://lab-02/rows", filesystem=s3)
table.schema()

# %% [markdown] tags=["instructor"]
# **A store that doesn't answer.** `store = storage.start()` starts it again with the same data, and on the same port if that is still free. Then
# `s3` and `names` stay valid.

# %% [markdown]
# On Amazon you'd leave out `endpoint_override`, and usually the keys, too: they are found in environment variables, in `~/.aws/credentials`, or in the role of the machine. Then no filesystem is needed:
#
# ```python
# ray.data.read_parquet("s3://my-bucket/digits")
# ```
#
# ### A bucket without keys
# Many data sets are in public buckets, which you can read without an account. If a client has no keys, it looks for some and fails, so you have to say that you want none: `anonymous=True`. This cell starts a second server on your machine,
# which needs no keys and refuses to write. Then it reads from it.

# %%
public = storage.start_public({"open-data/digits.parquet": digits.to_arrow()})
no_keys = S3FileSystem(endpoint_override=public, anonymous=True)
ray.data.read_parquet("s3://open-data/digits.parquet", filesystem=no_keys).count()

# %% tags=["claim"]
assert ray.data.read_parquet("s3://open-data/digits.parquet", filesystem=no_keys).count() == len(digits)
for files, name in ((no_keys, "open-data/digits.parquet"), (S3FileSystem(endpoint_override=store.endpoint, anonymous=True), "lab-02/rows/part-00000.parquet")):  # fmt: skip
    try:
        files.delete_file(name) if files is no_keys else files.open_input_file(name)
    except OSError:
        continue
    raise AssertionError(f"{name} is not protected")

# %% [markdown]
# On Amazon, the short form is `anonymous@` in front of the bucket. The line below reads a data set that the authors of Ray have published. It needs a network, so it isn't a cell:
#
# ```python
# ray.data.read_csv("s3://anonymous@ray-example-data/iris.csv")
# ```
#
# ### Where the keys end up
# Your functions will run in worker processes, perhaps on other machines. Ray pickles a function together with what it uses, and that includes the filesystem.

# %% [markdown] tags=["prediction"]
# **Predict.** What is in the pickled `s3`?

# %%
from course.exercises import check, hint, predict, reveal, solved

predict("02-h", ..., choices=["only the address", "the address and the keys"])

# %%
import pickle

if (secret_key or "no key").encode() in pickle.dumps(s3):
    reveal("02-h", "the address and the keys")
else:
    reveal("02-h", "only the address")

# %% tags=["claim"]
assert secret_key.encode() in pickle.dumps(s3)
assert secret_key.encode() not in pickle.dumps(store.filesystem)

# %% [markdown]
# The keys are in there, in plain text, and they go wherever the function goes. That's fine on your laptop, but on a shared cluster, let each machine find its own keys. The lab's `store.filesystem` works that way: it reads the same objects, and each worker
# gets the keys from a file that only you can read.
#
# `store.filesystem` is also what the lab *writes* with. It's built on `s3fs`, because `pyarrow` uploads in pieces without announcing the length of the whole, which the lab's small server refuses for an object of any size, while Amazon and MinIO accept it.

# %%
ray.data.range(100).write_parquet("s3://lab-02/results", filesystem=store.filesystem)
ray.data.read_parquet("s3://lab-02/results", filesystem=s3).count()

# %% tags=["claim"]
assert ray.data.read_parquet("s3://lab-02/results", filesystem=s3).count() == 100
try:
    with s3.open_output_stream("lab-02/claims") as file:
        file.write(b"ten bytes.")
except OSError as error:
    assert "411" in str(error), error
else:
    raise AssertionError("pyarrow can write to the lab's store now")

# %% [markdown]
# ## Names, not data
# Why begin with a list of names? Because it's small: a million names take about 80 MB, so you can list, count and shuffle them before you read a single image.

# %%
from pyarrow.fs import FileSelector

found = s3.get_file_info(FileSelector("lab-02/images", recursive=True))
names = sorted(file.path for file in found if file.is_file)
len(names), names[0], names[-1]

# %% [markdown]
# A Ray *dataset* describes a table, below with a column `item` and a row for each name. To turn names into images, write what happens to *one* row, and try it in the notebook first:

# %%
import numpy as np


def decode(name, payload):
    image = np.asarray(PIL.Image.open(io.BytesIO(payload)).convert("L"))
    return {"image": image, "label": int(name.split("/")[-2]), "name": name}


def fetch(row):
    with s3.open_input_stream(row["item"]) as stream:
        return decode(row["item"], stream.read())


fetch({"item": names[0]})["image"].shape

# %% [markdown] tags=["prediction"]
# **Predict.** How long will `map(fetch)`, for all 400 names, take to return?

# %%
predict("02-a", ..., choices=["as long as all fetches", "as long as one fetch", "next to nothing"])

# %%
import time

named = ray.data.from_items(names)
start = time.perf_counter()
images = named.map(fetch)
milliseconds = 1000 * (time.perf_counter() - start)
print(f"{milliseconds:.1f} ms")
reveal("02-a", "next to nothing" if milliseconds < 100 else "as long as all fetches")

# %% tags=["claim", "timed"]
assert milliseconds < len(names) / 3

# %% [markdown] tags=["instructor"]
# **Nothing happened, in a millisecond.** Right: `map` only adds a step to a plan. Ask what in the next cells makes it run.

# %% [markdown]
# Nothing was fetched, because a dataset is *lazy*: it's a plan, and it is executed when something asks for rows. One such call is `materialize`, which asks for all rows and keeps them:


# %%
def seconds(dataset):
    start = time.perf_counter()
    dataset.materialize()
    return time.perf_counter() - start


seconds(images)  # a warm-up, because the first execution also starts worker processes
many_blocks = seconds(images)
many_blocks

# %% [markdown]
# ## Blocks
# That took seconds for 400 small images. Why so long? Ray Data cuts a table into **blocks**, and each task processes one block. How many blocks are there?

# %%
named.num_blocks()

# %% [markdown]
# Your list of names became 200 blocks of only two rows, so 200 tasks had to start.
#
# ![A table is cut into blocks; each task turns one block into one block, and none starts while the memory for blocks is used up](images/blocks.svg)

# %% [markdown] tags=["prediction"]
# **Predict.** Now 8 blocks instead of 200. What speed-up do you expect, that is, the time with 200 blocks divided by the time with 8?

# %%
predict("02-b", ...)

# %%
named = ray.data.from_items(names, override_num_blocks=8)
few_blocks = seconds(named.map(fetch))
print(f"{many_blocks:.1f} s with 200 blocks, {few_blocks:.1f} s with 8")
reveal("02-b", many_blocks / few_blocks)

# %% tags=["claim"]
assert named.num_blocks() == 8

# %% tags=["claim", "timed"]
assert many_blocks / few_blocks > 1.5

# %% [markdown]
# The same images in the same processes, and most of the time had gone into starting tasks! A block is the unit of everything: a task processes one, a retry repeats one, and one has to fit into memory. Where Ray reads files, it aims at blocks of 1 to 128 MiB; a list is cut into up to 200.

# %% [markdown]
# ## Many rows in an object
# Your own `fetch` and Ray's ready-made `read_images` send requests for each image. A Parquet file brings many rows with a few requests, so compare the three. `use_datasource_v2 = False` is for four small files only: with it, Ray Data 2.60 doesn't start processes that look into the files first. Keep the default for real data.

# %%
import pandas

ray.data.DataContext.get_current().use_datasource_v2 = False
with_read_images = seconds(ray.data.read_images("s3://lab-02/images", filesystem=s3, mode="L"))
with_read_parquet = seconds(ray.data.read_parquet("s3://lab-02/rows", filesystem=s3))
found = {"own fetch": few_blocks, "read_images": with_read_images, "read_parquet": with_read_parquet}
pandas.Series(found).round(2)

# %% tags=["claim", "timed"]
assert with_read_parquet < few_blocks and with_read_parquet < with_read_images

# %% [markdown]
# One object per image is how images *arrive*. Before you train on them fifty times, write them to Parquet once. The gap grows with the distance: the store here answers in a millisecond or two, and one in another city takes twenty. And because Parquet stores columns, you can leave out what you don't need. Ray Data then doesn't read the other columns:

# %%
labels = ray.data.read_parquet("s3://lab-02/rows", filesystem=s3).select_columns(["label"])
labels.take(3)

# %% tags=["claim"]
assert labels.schema().names == ["label"]

# %% [markdown]
# Keep your own `fetch` for what no reader can do, such as your own format
# or two files for each row.
#
# ## Batches
# `map` calls your function for each row, and a million calls take time even if each does little. `map_batches` calls it for many rows at once: at most `batch_size` of them or, by default, a whole block. (A batch doesn't always reach `batch_size`: blocks of ten rows and `batch_size=32` give batches of 32, 8, 32, 8 and 20 rows. `iter_batches` does fill its batches, up to the last one.) A batch is a dict of arrays:

# %%
batch = table.take_batch(4)
{name: (column.dtype, column.shape) for name, column in batch.items()}


# %%
def scale(batch):
    return {"x": batch["image"].astype(np.float32) / 255, "y": batch["label"]}


named.map(fetch).map_batches(scale, batch_size=64).schema()


# %% tags=["claim"]
def brighten(batch):
    batch["image"] += 1
    return batch


try:
    table.map_batches(brighten).take(1)
except Exception as error:
    assert "output array is read-only" in str(error)
else:
    raise AssertionError("a batch can be changed in place")
lengths = ray.data.range(100, override_num_blocks=10).map_batches(lambda rows: {"n": [len(rows["id"])]}, batch_size=32)  # fmt: skip
assert [row["n"] for row in lengths.take_all()] == [32, 8, 32, 8, 20]

# %% [markdown] tags=["instructor"]
# **"output array is read-only".** Someone changes the batch that they got. By default `map_batches` avoids copies, so the arrays may be
# read-only views of Ray's object store. Say: "Compute a new array and return that."

# %% [markdown] tags=["instructor"]
# **"Why are my dates times now?"** Batches are NumPy arrays by default, and Ray 2.60 makes columns of what NumPy has: a date becomes a time, and a time loses its zone. With `batch_format="pyarrow"` all types stay.

# %% [markdown]
# Compute with whole arrays, and return new ones. The arrays that you get may be views of shared memory, and changing one in place, such as `batch["image"] += 1`, then raises `ValueError: output array is read-only`. Names, fetch, scale: lesson 03c gives this plan to a trainer. It's executed again in each epoch, while the workers train.
#
# ### Exercise 02-1 ★ · One number for each image
# Write a function for `map_batches` that adds a column `ink` to batches of `named.map(fetch)`: the mean pixel of each image, from 0 (all black) to 1 (all white). The other columns stay. The check runs it on the cluster.


# %%
def with_ink(batch): ...  # your answer


# %% tags=["solution"]
def with_ink(batch):
    return {**batch, "ink": batch["image"].mean(axis=(1, 2)) / 255}


# %%
check("02-1", with_ink)

# %% [markdown]
# Newer tutorials write such a step as an expression: `rows.with_column("x", col("x") / 255.0)`. There, `/ 255` without the point keeps integers, and every pixel becomes 0.
#
# ## What is loaded once
# Often a step needs something large: a model, a table, a dictionary. If you load it in the function, you load it for every batch. Here a pause of 0.3 s plays the part of a large file.


# %%
def load_table():
    time.sleep(0.3)
    return np.arange(255, -1, -1, dtype=np.uint8)


def invert(batch):
    return {"image": load_table()[batch["image"]]}


data = named.map(fetch).materialize()
each_time = seconds(data.map_batches(invert, batch_size=100))
print(f"{each_time:.1f} s")

# %% tags=["claim"]
assert each_time > 0.3 * len(names) / 100 / lab.cpus

# %% [markdown]
# A task can't keep the table for the next batch, which may run in another process, but an actor can. Give `map_batches` a *class*, and Ray Data makes actors of it: `__init__` runs once in each of them, and `__call__` runs for every batch.
#
# ### Exercise 02-2 ★★ · Load it once
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

# %% [markdown]
# What does the class bring? Here are both on the same images, each in one process. The function loads the table for each of eight batches, and the class once:

# %%
from ray.data import ActorPoolStrategy, TaskPoolStrategy

if solved("02-2"):
    function = data.map_batches(invert, batch_size=50, compute=TaskPoolStrategy(size=1))
    actor = data.map_batches(
        Invert, fn_constructor_args=(load_table,), compute=ActorPoolStrategy(size=1), batch_size=50
    )
    print(f"function: {seconds(function):.1f} s, class: {seconds(actor):.1f} s")

# %% tags=["claim", "timed"]
assert seconds(actor) < seconds(function)

# %% [markdown]
# Did a line with `max_restarts > 0` appear? Ray 2.60 logs it for every pool of actors. Nothing failed: it only warns that an actor can't restart if the arguments of its constructor are lost.
#
# An actor is a process of its own, and it takes time to start one. Use actors for what is slow to load, and tasks for everything else.
#
# ### Exercise 02-4 ★ · What would change?
# `named.map(fetch)` runs with 8 blocks. The step after it is a class such as `Invert`, with one actor, and gets all the images. What changes if you cut the names into 80 blocks instead? Write "less", "same" or "more" for each.

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

# %% [markdown]
# ## More than fits
# Now the promise from the beginning: data that is larger than memory. Ray's object store, the shared memory from lesson 01, has 400 MB on this node. You'll send 1 GB through it, in 50 blocks of 20 MB. The consumer is slow, like most training.

# %% [markdown] tags=["prediction"]
# **Predict.** The blocks are made much faster than they are consumed. How many MB will be in Ray's object store at most, at one time?

# %%
predict("02-d", ...)


# %%
def large(batch):
    return {"x": np.ones((len(batch["id"]), 1_000_000), np.uint8)}


from labkit.data import DataPanel

with DataPanel("02-stream") as streamed:
    stream = ray.data.range(1000, override_num_blocks=50).map_batches(large, batch_size=20)
    for _ in stream.iter_batches(batch_size=20):
        time.sleep(0.05)

# %%
reveal("02-d", streamed.state.memory_peak / 1e6)
streamed.plot_memory()

# %% [markdown] tags=["instructor"]
# **The table of the data panel.** *Task seconds* is the sum over tasks, *of them CPU* what they computed, and *held back* how long an operator had
# work but no free CPU or no room.

# %% tags=["claim"]
assert streamed.state.bytes > 0.95e9 and streamed.state.memory_peak < 0.25e9
assert streamed.state.memory_peak >= max(operator.memory_peak for operator in streamed.state.operators)

# %% [markdown]
# The blocks didn't pile up. By default, Ray Data uses at most half of the object store, here 200 MB, and starts no further task until a block fits into that. This is **back-pressure**. So the total size of the data doesn't matter; what must fit into half of the store is a few blocks for each running task.
#
# The panel shows the waiting in the column *held back*. Each line there is a step of the plan, an **operator**. *Task seconds* is the time of all its tasks, added up. *Of them CPU* is how much of this time they really computed; the rest is waiting.
#
# Some calls break this rule, because they need or keep all rows at the same time: `materialize`, `random_shuffle`, `sort`, `groupby` and `join`. What doesn't fit into the object store then goes to disk, which is slow.
#
# ## Bad objects
# Among a million objects some are broken: a file that was damaged before its upload, or a text file that someone left there by mistake. Put one of each into the store, and see what they do to your run.

# %%
with s3.open_input_stream(names[0]) as stream:
    good = stream.read()

bad = {"lab-02/odd/3/half.png": good[: len(good) // 2], "lab-02/odd/3/notes.png": b"ask Kim about these"}
for name, payload in bad.items():
    with store.filesystem.open_output_stream(name) as file:
        file.write(payload)

# %% tags=["raises-exception"]
suspects = ray.data.from_items([*names[:40], *bad], override_num_blocks=6)
with DataPanel("02-refuse"):
    suspects.map(fetch).materialize()

# %% [markdown] tags=["instructor"]
# **A red error in *Bad objects*.** It's intended: two of the 42 objects are broken, and the run ends. After exercise 02-3, the same objects go
# through. Until the exercise is solved, the cell below its check prints nothing.

# %% [markdown]
# Everything ended because of one file, and the message doesn't even name it. Imagine this on the second day of a run.
#
# ### Exercise 02-3 ★★★ · Note what was bad
# Repair the run: write a function that takes the place of `decode` and *always* returns a row with three columns:
#
# | column | for a good image | for anything else |
# |---|---|---|
# | `name` | the name | the name |
# | `image` | the pixels, uint8, 28×28 | all zeros, uint8, 28×28 |
# | `error` | `""` | a text that says why, and isn't empty |
#
# Pillow raises many kinds of errors, some when it opens a file and some only when it decodes it. An image of a different size is bad, too, also if it has as many pixels. The label isn't needed.
#
# <details><summary>A version with blanks</summary>
#
# ```python
# def decode_or_note(name, payload):
#     image, error = np.zeros((28, 28), np.uint8), ""
#     try:
#         found = ___
#         if found.shape != ___:
#             raise ValueError(f"its size is {found.shape}")
#         image = found
#     except ___ as problem:
#         error = ___
#     return {"name": name, "image": image, "error": error}
# ```
# </details>


# %%
def decode_or_note(name, payload): ...  # your answer


# %% tags=["solution"]
def decode_or_note(name, payload):
    image, error = np.zeros((28, 28), np.uint8), ""
    try:
        found = decode(name, payload)["image"]
        if found.shape != (28, 28):
            raise ValueError(f"its size is {found.shape}")
        image = found
    except Exception as problem:
        error = repr(problem)
    return {"name": name, "image": image, "error": error}


# %%
check("02-3", decode_or_note)

# %%
from ray.data.expressions import col


def fetch_or_note(row):
    with s3.open_input_stream(row["item"]) as stream:
        return decode_or_note(row["item"], stream.read())


if decode_or_note(names[0], good) is not None:  # your function is there
    noted = suspects.map(fetch_or_note).filter(expr=col("error") != "")
    print([(row["name"], row["error"][:40]) for row in noted.take_all()])

# %% [markdown]
# The run survives, and you know which objects were bad and how many. Decide beforehand what you'll accept: 0.1 % may be fine, and half of them is an alarm.
#
# ## Key points
# - `s3://bucket/prefix` and a filesystem is all Ray Data needs. Public buckets want `anonymous=True`. A pickled `S3FileSystem` contains its keys.
# - A dataset is a plan: no rows are read until something asks for them.
# - A plan is executed block by block. Too many blocks cost time, and large ones need memory.
# - A class loads once in each actor; a function has to load again in each call.
# - What must fit into memory, by default into half of Ray's object store, is a few blocks for each running task, not the data.
# - Decide what happens with bad rows before you meet them, and count them.
#
# **A question to take along.** A plan reads 100 GB on a machine with 16 GB. Why is that no problem, and which change of the plan could make it one?
#
# <details><summary>Compare your answer</summary>Only a few blocks for each running task are in memory. A full shuffle, a sort, or <code>materialize()</code> would need all rows at once; blocks that are very large would need much for a single one.</details>
#
# | older tutorials | today |
# |---|---|
# | `ray.data.dataset_pipeline`, `.window()`, `.repeat()` | every dataset streams; iterate once per epoch |
#
# Four recipes go on from here, each with one idea: `notebooks/recipes/hide_waiting_with_threads.ipynb` for a store that is far away, `notebooks/recipes/fetch_with_download.ipynb` for fetching without a function of your own,
# `notebooks/recipes/shuffle_the_names.ipynb` for the order of the rows, and `notebooks/recipes/drop_or_skip_rows.ipynb` for bad rows that you don't want to note.

# %% [markdown] tags=["plain"]
# ## Without the lab
# Names, fetch, batches and bad rows, in plain Ray, from any filesystem that `pyarrow` knows:

# %% [markdown] tags=["links"]
# ## Official pages

# %% [markdown]
# ## Stop
# The next lesson trains a model on two workers.

# %%
store.stop()
lab.stop()
