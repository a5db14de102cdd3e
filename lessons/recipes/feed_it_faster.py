# %% [markdown]
# # Feed a loop faster when the data fits into memory
#
# A Ray dataset reads its files again in each epoch, and every batch goes through several threads. That's right for data that is larger than memory. If yours fits, read it once and cut the batches yourself.
#
# You need lesson 02.

# %%
from course import datasets
from labkit.local import cluster

lab = cluster.start()
digits = datasets.load(split="train")

# %% [markdown]
# Here are the digits as four Parquet files, and the usual way to read them:

# %%
import tempfile
import time

import ray.data


def milliseconds(batches):
    start = time.perf_counter()
    for _ in batches:
        pass
    return 1000 * (time.perf_counter() - start)


def scale(batch):
    return {"x": batch["image"].astype("float32") / 255, "y": batch["label"]}


rows = [
    {"image": image, "label": int(label)} for image, label in zip(digits.images, digits.labels, strict=True)
]
folder = tempfile.mkdtemp()
ray.data.from_items(rows, override_num_blocks=4).write_parquet(folder)
data = ray.data.read_parquet(folder).map_batches(scale)
usual = milliseconds(data.iter_torch_batches(batch_size=64))

# %% [markdown]
# Now read everything once, in large pieces, before the first epoch. A slice of a tensor is a view of it, so cutting a batch copies nothing.

# %%
pieces = list(data.materialize().iter_torch_batches(batch_size=8192))


def batches(size):
    for piece in pieces:
        yield from zip(piece["x"].split(size), piece["y"].split(size), strict=True)


fast = milliseconds(batches(64))
print(f"an epoch of reading takes {usual:.0f} ms the usual way, and {fast:.1f} ms from memory")

# %% tags=["claim", "timed"]
assert usual > 10 * fast

# %% tags=["claim"]
assert sum(len(y) for _, y in batches(64)) == len(digits)

# %% [markdown]
# In a training loop, `pieces` comes from the worker's shard, `ray.train.get_dataset_shard("train")`, before the first epoch. Shuffle the rows of the pieces yourself, with a different permutation in each epoch:
# `order = torch.randperm(len(piece["y"]))`. All workers have to make equally many steps, and the shards that Ray gives them are equally long.

# %%
lab.stop()
