# %% [markdown]
# # Fetch objects without a function of your own
#
# Ray Data has an expression for fetching, `download`, which is still marked *alpha*. It makes a column of bytes out of a column of names, with threads, in a step of its own. Its `filesystem` argument is new; older versions take URIs such as `s3://…` only.
#
# You need lesson 02.

# %%
import io

import PIL.Image
from course import datasets
from labkit.local import cluster, storage

lab = cluster.start()
store = storage.start()
digits = datasets.load("digits", n=40)


def png(image):
    file = io.BytesIO()
    PIL.Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


store.bucket("recipes")
store.files.pipe({f"recipes/download/{row:02}.png": png(image) for row, image in enumerate(digits.images)})
names = sorted(store.files.find("recipes/download"))

# %% [markdown]
# One of these 41 names doesn't exist. Nothing is raised, and its row stays, without bytes:

# %%
import ray.data
from ray.data.expressions import col, download

named = ray.data.from_items([*names, "recipes/no-such.png"], override_num_blocks=4)
rows = named.with_column("bytes", download("item", filesystem=store.filesystem)).materialize()
empty = [row["item"] for row in rows.filter(expr=col("bytes").is_null()).take_all()]
rows.count(), empty

# %% tags=["claim"]
import inspect

assert rows.count() == 41 and empty == ["recipes/no-such.png"]
assert "alpha" in download.__doc__ and "filesystem" in inspect.signature(download).parameters

# %% [markdown]
# So count the rows without bytes before you go on, as you would count bad images. Decoding is still your function: `map(lambda row: decode(row["item"], row["bytes"]))`.

# %%
store.stop()
lab.stop()
