# %% [markdown]
# # Validate on another machine
#
# Validation shouldn't take CPUs or GPUs away from the training. You'll give it a machine of its own, and check that it really runs there. The same lines work with a small GPU for validation, next to the large ones that train.
#
# You need lesson 06.

# %%
from labkit.local import cluster

lab = cluster.start()

# %% [markdown]
# A **custom resource** is a name with a count, which a node offers and a task asks for. Only nodes that offer it can run that task. Here a second node joins, with one CPU and one unit of `validation`:

# %%
import ray

lab.add_node(cpus=1, resources={"validation": 1})
[node["NodeID"] for node in ray.nodes() if "validation" in node["Resources"]]

# %% [markdown]
# The validator returns where it ran. The loop only saves something, so that there is a checkpoint to validate.

# %%
import tempfile
from pathlib import Path

import ray.train
from labkit.settings import Settings
from ray.train import CheckpointUploadMode, RunConfig, ScalingConfig, ValidationConfig, ValidationTaskConfig
from ray.train.torch import TorchTrainer


def where():
    return ray.get_runtime_context().get_node_id()


def validate(checkpoint):
    return {"validated on": where()}


def train_loop(config):
    for epoch in range(2):
        folder = tempfile.mkdtemp()
        Path(folder, "epoch.txt").write_text(str(epoch))
        ray.train.report(
            {"epoch": epoch, "trained on": where()},
            checkpoint=ray.train.Checkpoint.from_directory(folder),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            validation=True,
        )


# %% [markdown]
# `ray_remote_kwargs` are what Ray reserves for each validation. On a real cluster, `{"num_gpus": 1}` reserves a GPU, and `{"label_selector": {"ray.io/accelerator-type": "L4"}}` chooses its kind. Reserving isn't using: the validator
# has to move its model there.

# %%
trainer = TorchTrainer(
    train_loop,
    scaling_config=ScalingConfig(num_workers=1, label_selector={"ray.io/node-id": where()}),
    validation_config=ValidationConfig(
        fn=validate,
        task_config=ValidationTaskConfig(timeout_s=60),
        ray_remote_kwargs={"resources": {"validation": 1}},
    ),
    run_config=RunConfig(storage_path=str(Settings.from_env().home / "runs" / "recipe-validation")),
)
result = trainer.fit()

# %%
for _, metrics in result.best_checkpoints:
    print(
        f"epoch {metrics['epoch']}: trained on {metrics['trained on'][:8]}, validated on {metrics['validated on'][:8]}"
    )

# %% [markdown]
# All machines must be able to read the checkpoints, so on a real cluster the storage is an object store or a shared folder.

# %% tags=["claim"]
(other,) = [node["NodeID"] for node in ray.nodes() if "validation" in node["Resources"] and node["Alive"]]
found = [metrics for _, metrics in result.best_checkpoints]
assert [metrics["validated on"] for metrics in found] == [other] * 2
assert {metrics["trained on"] for metrics in found} == {where()}

# %%
lab.stop()
