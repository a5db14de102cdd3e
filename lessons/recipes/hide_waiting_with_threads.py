# %% [markdown]
# # Hide waiting behind threads
#
# A store in another city answers in 20 ms or more. A Ray Data task that requests one object after the other does nothing in the meantime. Give it many names at once, and let threads request sixteen objects at the same time.
#
# You need lesson 02.

# %%
from labkit.local import cluster

lab = cluster.start()

# %% [markdown]
# A pause of 20 ms plays the part of the distance. There are as many blocks as CPUs, so all tasks run at the same time:

# %%
import time

import ray.data


def fetch_from_afar(row):
    time.sleep(0.02)
    return {"size": len(row["item"])}


def seconds(dataset):
    start = time.perf_counter()
    rows = dataset.materialize().count()
    return time.perf_counter() - start, rows


names = [f"images/{number}.png" for number in range(400)]
far = ray.data.from_items(names, override_num_blocks=2)
one_by_one, rows = seconds(far.map(fetch_from_afar))

# %% [markdown]
# `map_batches` passes a whole block of names to your function, which can spread them over threads:

# %%
from concurrent.futures import ThreadPoolExecutor

import numpy as np


def fetch_many(batch):
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(fetch_from_afar, [{"item": name} for name in batch["item"]]))
    return {"size": np.array([row["size"] for row in found])}


threads, rows_of_threads = seconds(far.map_batches(fetch_many))
print(f"one by one {one_by_one:.1f} s, sixteen threads {threads:.1f} s")

# %% tags=["claim"]
assert rows == rows_of_threads == 400

# %% tags=["claim", "timed"]
assert one_by_one > 1.5 * threads

# %% [markdown]
# Threads hide waiting, but not computing: because of Python's **global interpreter lock**, the threads of one process largely share one core. To decode images faster, use more tasks.

# %%
lab.stop()
