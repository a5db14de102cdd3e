"""Kill a worker in the middle of a run, and let Ray Train resume it: what lesson 08 does, in plain Ray.

Prints at which step the second attempt began, in about 45 s on two cores.
"""

import os
import signal
import tempfile
import time

import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model

STEPS = 40


def rows_of(step, rank, workers):  # they depend only on the number of the step
    rows = torch.rand(64, 8, generator=torch.Generator().manual_seed(step))[rank::workers]
    return rows, rows.sum(dim=1, keepdim=True)


def save(model, optimizer, step):
    with tempfile.TemporaryDirectory() as folder:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, f"{folder}/state.pt")
        checkpoint = ray.train.Checkpoint.from_directory(folder)
        is_first = ray.train.get_context().get_world_rank() == 0
        ray.train.report({"step": step}, checkpoint=checkpoint if is_first else None)


def train_loop(config):
    context = ray.train.get_context()
    model = prepare_model(torch.nn.Linear(8, 1))
    plain = getattr(model, "module", model)  # a single worker's model has no wrapper
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first, checkpoint = 0, ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt", weights_only=True)
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    rank, workers = context.get_world_rank(), context.get_world_size()
    for step in range(first, STEPS):
        x, y = rows_of(step, rank, workers)
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.1)  # a larger model; a checkpoint that was saved right before the kill may not count
        if (step + 1) % 10 == 0:
            save(plain, optimizer, step + 1)
        if (step, first, rank) == (25, 0, 1):
            os.kill(os.getpid(), signal.SIGKILL)
    return {"first": first}


ray.init("local", num_cpus=3, log_to_driver=False)
run = ray.train.RunConfig(storage_path=tempfile.mkdtemp(), failure_config=ray.train.FailureConfig(1))
scaling = ray.train.ScalingConfig(num_workers=2)
result = TorchTrainer(train_loop, scaling_config=scaling, run_config=run).fit()
print("rank 1 died at step 25; the second attempt began at step", result.return_value["first"])
