# %% [markdown]
# # Several trials, one download
#
# Each trial of a sweep starts with *download the data, unless it is there*. With several trials on a machine, that goes wrong: one of them finds the file that another one is still writing. You'll see it, and repair it with a file lock.
#
# You need lesson 05.

# %%
import tempfile
from pathlib import Path

from labkit.local import cluster
from labkit.settings import Settings
from ray import tune

lab = cluster.start(cpus_per_node=3)
home = Settings.from_env().make_home()
runs = tune.RunConfig(storage_path=str(home / "runs" / "recipe-lock"), verbose=0)

# %% [markdown]
# The download writes ten blocks, with a pause after each, as a slow network would. It also notes in a second file that it ran.

# %%
import time

BLOCKS, BLOCK = 10, b"x" * 1000


def download(target):
    with open(target.with_name("downloads.txt"), "a") as log:
        log.write("one download\n")
    with open(target, "wb") as file:
        for _ in range(BLOCKS):
            file.write(BLOCK)
            file.flush()
            time.sleep(0.3)


# %% [markdown]
# ## Without a lock
# Three trials start within three seconds. Each reports how many bytes it has read.


# %%
def hopes(config):
    target = Path(config["folder"], "data.bin")
    if not target.exists():
        download(target)
    tune.report({"bytes": len(target.read_bytes())})


def sweep(trainable):
    folder = Path(tempfile.mkdtemp(dir=home))
    space = {"folder": str(folder), "lr": tune.grid_search([0.1, 0.2, 0.3])}
    results = tune.Tuner(trainable, param_space=space, run_config=runs).fit()
    downloads = len((folder / "downloads.txt").read_text().splitlines())
    return sorted(result.metrics["bytes"] for result in results), downloads


print("bytes of each trial, downloads:", sweep(hopes))

# %% [markdown]
# The file has 10,000 bytes. A trial that reports fewer has read a part of it, without an error! With a table or a text, it would have trained on fewer rows.
#
# ## With a lock
# `FileLock` lets one process at a time into its block, and the others wait. The second repair is as important: write under another name, and rename when the file is complete. If a trial is killed during its download, its lock is free again, but half a file stays, and nothing tells the next trial that it is half.

# %%
import os

from filelock import FileLock


def locks(config):
    target = Path(config["folder"], "data.bin")
    with FileLock(f"{target}.lock"):
        if not target.exists():
            part = target.with_name("data.part")
            download(part)
            os.replace(part, target)  # at once: no trial sees half of it
    tune.report({"bytes": len(target.read_bytes())})


sizes, downloads = sweep(locks)
print("bytes of each trial, downloads:", sizes, downloads)

# %% tags=["claim"]
assert (sizes, downloads) == ([10_000] * 3, 1)

# %% [markdown]
# One download, and three complete files. A lock is for one machine: use a folder on its own disk, so that each machine downloads once. On a network filesystem, whether locks work at all depends on the server. For data that all trials read from memory, `tune.with_parameters` (lesson 05) needs no file.

# %%
lab.stop()
