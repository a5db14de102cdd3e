# %% [markdown]
# # Validation on a node that comes and goes
#
# A machine that only validates is idle most of the time. On a rented cluster, Ray's autoscaler starts it when a validation asks for it, and stops it afterwards. You'll watch that on your own machine, with Ray's autoscaler and a *provider* whose machines are only processes.
#
# You need lesson 06b. Ray uses this provider, `fake_multinode`, for its own tests: it isn't documented, and an update may change it.
#
# An autoscaler needs to know which **node types** there are. The head has two CPUs and never goes. A node of type `validator` has two CPUs and two units of the custom resource `validator`. There is at most one, and it is stopped after six idle seconds. At work, that's some minutes. The head's type must be called `ray.head.default`,
# because the provider gives it that name.

# %%
import json
import sys
from pathlib import Path

import ray
from labkit.machine import free_port
from labkit.settings import Settings

folder = Settings.from_env().make_home() / "autoscaled"
folder.mkdir(exist_ok=True)
head_id = "f" * 51 + "00000"  # the name that the provider gives to the head
address = f"{ray.util.get_node_ip_address()}:{free_port()}"
node_types = {
    "ray.head.default": {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
    "validator": {"resources": {"CPU": 2, "validator": 2}, "node_config": {}, "max_workers": 1},
}

# %%
provider = {
    "type": "fake_multinode",
    "gcs_address": address,
    "head_node_id": head_id,
    "use_node_id_as_ip": True,  # all of its nodes have the address of this machine
    "disable_node_updaters": True,  # there is nothing to install on them
    "disable_launch_config_check": True,
}
scaling = {
    "cluster_name": "fake",
    "provider": provider,
    "available_node_types": node_types,
    "head_node_type": "ray.head.default",
    "max_workers": 1,
    "idle_timeout_minutes": 0.1,
    "upscaling_speed": 1.0,
    **dict.fromkeys(["auth", "docker", "file_mounts"], {}),
    "file_mounts_sync_continuously": False,
}
for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter"):
    scaling[name] = []
for name in ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray"):
    scaling[f"{name}_commands"] = []
(folder / "scaling.json").write_text(json.dumps(scaling))

# %% [markdown]
# `ray start --head` gets this file by `--autoscaling-config`. The lab's supervisor starts it, so that it is stopped with this notebook. On Kubernetes or with `ray up`, all of this is done for you.

# %%
import os
import secrets
import tempfile

from labkit.files import private_file
from labkit.local import supervision

home, token = Settings.from_env().home, folder / "scaling-token"
private_file(token, secrets.token_hex(32))
command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus=2"]
command += [f"--port={address.rpartition(':')[2]}", f"--autoscaling-config={folder / 'scaling.json'}"]
command += [
    f"--{name}-port={free_port()}" for name in ("dashboard", "ray-client-server", "dashboard-agent-listen")
]
command += [f"--temp-dir={tempfile.mkdtemp(prefix='ray-')}"]  # a short path, for its sockets
command += ["--min-worker-port=0", "--max-worker-port=0", "--object-store-memory=100000000"]
environment = {
    **os.environ,
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN_PATH": str(token),
    "RAY_FAKE_CLUSTER": "1",
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": head_id,
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
}
log = folder / "head.log"
supervision.use(home, "autoscaled")
head = supervision.start(home, command, group="autoscaled", log=log, env=environment)

# %%
import time

from labkit.local import cluster

while "Ray runtime started" not in log.read_text() and head.status() is None:
    time.sleep(0.5)
lab = cluster.connect(address, token_file=token)
[node["Resources"].get("validator", 0) for node in ray.nodes()]

# %% [markdown]
# One node, without `validator`. A thread notes when that changes:

# %%
import threading

seen, begin = [(0.0, 0)], time.monotonic()


def watch():
    while ray.is_initialized():
        count = sum("validator" in node["Resources"] for node in ray.nodes() if node["Alive"])
        if count != seen[-1][1]:
            seen.append((time.monotonic() - begin, count))
        time.sleep(0.3)


threading.Thread(target=watch, daemon=True).start()

# %% [markdown]
# The training needs one CPU of the head. Only the validation asks for `validator`. No node has it now, so asking is what starts one. The timeout includes the time in which a machine starts: at work, give it minutes.

# %%
import ray.train
from ray.train import CheckpointUploadMode, RunConfig, ScalingConfig, ValidationConfig, ValidationTaskConfig
from ray.train.torch import TorchTrainer


def where():
    return ray.get_runtime_context().get_node_id()[-5:]


def validate(checkpoint):
    return {"validated on": where()}


def train_loop(config):
    place = tempfile.mkdtemp()
    Path(place, "epoch.txt").write_text("0")
    ray.train.report(
        {"trained on": where()},
        checkpoint=ray.train.Checkpoint.from_directory(place),
        checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
        validation=True,
    )


# %%
trainer = TorchTrainer(
    train_loop,
    scaling_config=ScalingConfig(num_workers=1),
    run_config=RunConfig(storage_path=str(folder / "runs")),
    validation_config=ValidationConfig(
        fn=validate,
        task_config=ValidationTaskConfig(timeout_s=120),
        ray_remote_kwargs={"resources": {"validator": 1}},
    ),
)
result = trainer.fit()
result.metrics

# %% [markdown]
# The node ids are the provider's, and the head's ends with 00000. Now nothing asks for `validator` any more:

# %%
deadline = time.monotonic() + 60
while seen[-1][1] and time.monotonic() < deadline:
    time.sleep(0.5)
for seconds, count in seen:
    print(f"{seconds:5.1f} s: {count} nodes that validate")

# %% tags=["claim"]
assert result.metrics == {"trained on": "00000", "validated on": "00001"}
assert [count for _, count in seen] == [0, 1, 0]

# %% [markdown]
# It came for the validation, and it went. Ray's autoscaler looks at what tasks, actors and placement groups *ask* for. That's why `require_cpus` of lesson 06b doesn't belong here: it looks first and asks for nothing. And it's why a node with work left on it stays: a placement group that a timed-out validation has left
# behind keeps a rented machine running. Look at the list of nodes after each run.
#
# What Ray can't do: a validation that waits for its node doesn't stop the clock of its timeout, and the status is the same `VALIDATION_TIMEOUT` as for one that hangs. The dashboard shows the demand that nothing satisfies.

# %%
lab.stop()
supervision.stop(home, "autoscaled")
