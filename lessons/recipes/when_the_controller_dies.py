# %% [markdown]
# # When the controller dies: start the same run again
#
# `max_failures` counts failures of *workers*. A run has one more process, the **controller**, which starts the workers and directs them. If it dies, `fit()` raises, and Ray doesn't restart it. You'll see that, and what brings the run back.
#
# You need lesson 08.

# %%
from course import faults
from labkit.local import cluster
from labkit.train import TrainPanel

lab = cluster.start()

# %% [markdown]
# A loop of 50 steps, which saves after every fifth one. The pauses stand in for a larger model:

# %%
import tempfile
import time

import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


# %%
def train_loop(config):
    plain = torch.nn.Linear(4, 1)
    model = prepare_model(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt", weights_only=True)
        plain.load_state_dict(state["model"])
        first = state["step"]
    for step in range(first + 1, config["steps"] + 1):
        optimizer.zero_grad()
        model(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()
        time.sleep(0.1)
        if step % 5 == 0:
            with tempfile.TemporaryDirectory() as folder:
                torch.save({"model": plain.state_dict(), "step": step}, f"{folder}/state.pt")
                is_first = ray.train.get_context().get_world_rank() == 0
                saved = ray.train.Checkpoint.from_directory(folder) if is_first else None
                ray.train.report({"step": step}, checkpoint=saved)
    return first


# %%
def make_trainer(name):
    return TorchTrainer(
        train_loop,
        train_loop_config={"steps": 50},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name=name,
            storage_path=storage,
            failure_config=FailureConfig(max_failures=3),
        ),
    )


# %%
storage = tempfile.mkdtemp()
panel = TrainPanel("controller")
name = panel.run_id
faults.kill_controller().at(panel, step=12)
try:
    trainer = make_trainer(name)
    with panel.watch(trainer):
        trainer.fit()
except Exception as error:
    print(error)

# %% [markdown]
# Three failures were allowed, and the first one ended the run. Call `fit()` again with the same name and storage, and it resumes from its latest checkpoint. This also works from a new notebook, the next morning:

# %%
first = make_trainer(name).fit().return_value
print("the second run started after step", first)

# %% tags=["claim"]
assert panel.state.status == "failed"

# %% tags=["claim", "timed"]
assert first in (5, 10)

# %% [markdown]
# The notebook is the *driver* of its runs: if its kernel ends, the controller ends, too. On a real cluster, let the cluster run the driver with `ray job submit -- python train.py`. Then you can close the notebook.

# %%
lab.stop()
