# %% [markdown]
# # Shuffle the names, not the images
#
# Names that are sorted by class make a bad order: the model sees only zeros at first, and forgets them while it learns the ones. Ray Data can shuffle rows, but then it has to read them first. If you have the names, shuffle those.
#
# You need lesson 02.

# %%
from labkit.local import cluster

lab = cluster.start()

# %% [markdown]
# Here are 300 names of images in ten classes. A pause of 20 ms plays the part of fetching one. How long does it take until the first batch is there, and which classes does it contain?

# %%
import time

import ray.data

names = [f"images/{label}/{number}.png" for label in range(10) for number in range(30)]


def fetch(row):
    time.sleep(0.02)
    return {"label": int(row["item"].split("/")[1])}


def first_batch(dataset, **options):
    start = time.perf_counter()
    batch = next(iter(dataset.iter_batches(batch_size=16, **options)))
    return len(set(batch["label"])), round(time.perf_counter() - start, 2)


def images_of(names):
    return ray.data.from_items(names, override_num_blocks=10).map(fetch)


# %%
import random

import pandas

mixed = random.Random(0).sample(names, len(names))
found = {
    "not shuffled": first_batch(images_of(names)),
    "local shuffle": first_batch(images_of(names), local_shuffle_buffer_size=200),
    "full shuffle": first_batch(images_of(names).random_shuffle(seed=0)),
    "names shuffled": first_batch(images_of(mixed)),
}
pandas.DataFrame(found, index=["classes in the first batch", "seconds until it came"]).T

# %% tags=["claim"]
assert found["not shuffled"][0] == 1 and found["names shuffled"][0] >= 5

# %% tags=["claim", "timed"]
assert found["names shuffled"][1] < found["full shuffle"][1]

# %% [markdown]
# A *local* shuffle waits until its buffer is full, and mixes only rows that are near each other. A *full* shuffle reads every row before the first one comes out. What doesn't fit into Ray's object store is written to disk and read again, which is slow. Shuffled names give a full
# shuffle, and the first batch arrives as early as without any. Shuffle them again, with a different seed, for each epoch; lesson 03c shows how. For files, `read_parquet(…, shuffle="files")` shuffles the names of the files.

# %%
lab.stop()
