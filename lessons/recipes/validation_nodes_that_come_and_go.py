# %% [markdown]
# # Validation on a node that comes and goes
#
# A machine that only validates is idle most of the time. On a rented cluster, Ray's autoscaler starts it when a validation asks for it, and stops it afterwards. You'll watch that on your own machine, with Ray's autoscaler and a *provider* whose machines are only processes.
#
# You need lesson 06b. The provider is the one that Ray tests its autoscaler with. It isn't documented, and an update may change it.
#
# An autoscaler needs to know which **node types** there are. The head has two CPUs and never goes. A node of type `validator` has two CPUs and two units of the custom resource `validator`. There is at most one, and it is stopped after six idle seconds. At work, that's some minutes. The head's type must be called `ray.head.default`,
# because the provider gives it that name.

# %%
import ray
from course import autoscaling

node_types = {
    "ray.head.default": {"resources": {"CPU": 2}, "max_workers": 0},
    "validator": {"resources": {"CPU": 2, "validator": 2}, "max_workers": 1},
}
lab = autoscaling.start(node_types, idle_timeout_minutes=0.1)
[node["Resources"].get("validator", 0) for node in ray.nodes()]

# %% [markdown]
# `autoscaling.start` writes a file with these node types, of the kind that `ray up` reads, and starts a head with `ray start --head --autoscaling-config=FILE`. On Kubernetes or with `ray up`, all of this is done for you.
#
# One node, without `validator`. A thread notes when that changes:

# %%
import threading
import time

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
import tempfile
from pathlib import Path

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
    run_config=RunConfig(storage_path=tempfile.mkdtemp()),
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
# It came for the validation, and it went. Ray's autoscaler looks at what tasks, actors and placement groups *ask* for. That's why `require` of lesson 06b doesn't belong here: it looks first and asks for nothing. And it's why a node with work left on it stays: a placement group that a timed-out validation has left
# behind keeps a rented machine running. Look at the list of nodes after each run.
#
# What Ray can't do: a validation that waits for its node doesn't stop the clock of its timeout, and the status is the same `VALIDATION_TIMEOUT` as for one that hangs. The dashboard shows the demand that nothing satisfies.

# %%
lab.stop()
autoscaling.stop()
