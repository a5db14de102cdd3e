# %% [markdown]
# # Drop bad blocks, or skip bad rows
#
# Sometimes you don't want to note which objects were bad; you only want the run to continue. Ray Data has a setting for blocks that fail, and `flat_map` skips single rows. The difference is larger than it looks.
#
# You need lesson 02.

# %%
from labkit.local import cluster

lab = cluster.start()

# %% [markdown]
# There are 42 payloads in six blocks of seven. The last two aren't numbers:

# %%
import ray.data

payloads = [str(number) for number in range(40)] + ["ask Kim", "about these"]


def decode(row):
    return {"number": int(row["item"])}


# %% [markdown]
# `max_errored_blocks` sets how many blocks may fail before the execution does. It has to be set before the dataset is made:

# %%
from labkit.data import DataPanel

context = ray.data.DataContext.get_current()
context.max_errored_blocks = 2
with DataPanel("drop-blocks"):
    left = ray.data.from_items(payloads, override_num_blocks=6).map(decode).take_all()
context.max_errored_blocks = 0
len(left)

# %% [markdown]
# Both bad rows were in the last block, and five good ones were dropped with them. The setting is meant for machines that fail, not for rows. To skip a row, use `flat_map`, which wants a list of rows for each row:


# %%
def decode_or_skip(row):
    try:
        return [decode(row)]
    except ValueError:
        return []


skipped = ray.data.from_items(payloads, override_num_blocks=6).flat_map(decode_or_skip).take_all()
len(skipped)

# %% tags=["claim"]
assert len(left) == 35 and len(skipped) == 40

# %% [markdown]
# Only two rows are missing now. But you don't know which, and if one day it's half of them, you won't notice. Count them, or note them as in exercise 02-3.

# %%
lab.stop()
