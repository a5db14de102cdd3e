# %% [markdown]
# # Look into a cluster: ports, token, dashboard, jobs
#
# A cluster listens on many ports, most of them open to the network, because nodes have to find each other. What protects it is a token. Here you see the ports, try to get in without the token, open the dashboard, and submit a script.
#
# You need lesson 01.

# %%
import psutil
from labkit.local import cluster

lab = cluster.start()
me = psutil.Process().username()
for process in psutil.process_iter(["name", "username"]):
    if process.info["username"] == me and process.info["name"] in ("gcs_server", "raylet"):
        for socket in process.net_connections("tcp"):
            if socket.status == psutil.CONN_LISTEN:
                print(process.info["name"], "listens on", socket.laddr.ip, socket.laddr.port)

# %% [markdown]
# `127.0.0.1` is reached from this machine only, and `::` or `0.0.0.0` from the network.
#
# Anyone who is let in can run any program on your machine. Without the token, the dashboard refuses:

# %%
from urllib.error import HTTPError
from urllib.request import urlopen

status = None
try:
    urlopen(lab.dashboard_url + "/api/v0/nodes")
except HTTPError as error:
    status = error.code
status

# %% tags=["claim"]
assert status == 401

# %% [markdown]
# To open the dashboard, click its link in the box that `lab` shows. The page asks for the token, which is in a file that only you can read. Never print it in a notebook, whose outputs are saved and shared. Run the command that this cell prints in a terminal (File → New → Terminal), and paste its output into the page:

# %%
import os

lab

# %%
print("cat", os.environ["RAY_AUTH_TOKEN_PATH"])

# %% [markdown]
# Look at the pages *Cluster* (which node is busy) and *Jobs* (the tasks of this notebook, and their errors). Lesson 01 reads the same in a cell, with `list_tasks`.
#
# A script runs on the cluster with `ray job submit`. The job is a driver of its own, on the head, and what it prints comes back to you:

# %%
import sys
import tempfile
from pathlib import Path

job = Path(tempfile.mkdtemp())
(job / "hello.py").write_text("import ray\n\nray.init()\nprint(ray.cluster_resources()['CPU'], 'CPUs')\n")
ray_command = Path(sys.executable).with_name("ray")
# !{ray_command} job submit --address {lab.dashboard_url} --working-dir {job} -- {sys.executable} hello.py 2>&1 | tail -8

# %% [markdown]
# On machines of your own, the same token file has to be on each of them, and `RAY_AUTH_MODE=token` in the environment of every process before it imports ray. Be careful with `ray stop`: it ends the Ray processes of *all* clusters on the machine, if you have the permission to end them.

# %%
lab.stop()
