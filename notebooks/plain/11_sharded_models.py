"""Train a model in shards, save it from all ranks, and load it with one rank more: lesson 11 in plain Ray.

Reads NUM_WORKERS (2). Each rank holds its part of the model and of the optimizer, and saves that part.
Prints the loss, and that of the loaded model, which is the same.
"""

import os
import tempfile

import ray.train
import torch
import torch.distributed.checkpoint as dcp
from ray.train.torch import TorchTrainer, get_device
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(device, workers):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(*blocks, nn.Linear(512, 1)).to(device)
    mesh = init_device_mesh(device.type, (workers,))
    for block in model[:-1]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.001)  # after fully_shard


def train_loop(config):
    workers, device = ray.train.get_context().get_world_size(), get_device()
    model, optimizer = build(device, workers)
    weights, states = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": states}
    if config["checkpoint"]:
        with config["checkpoint"].as_directory() as folder:
            dcp.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
    x = torch.rand(64, 512, generator=torch.Generator().manual_seed(1)).to(device)
    for _ in range(config["steps"]):
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean().item()
    weights, states = get_state_dict(model, optimizer)
    with tempfile.TemporaryDirectory() as folder:
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=folder)
        ray.train.report({"loss": loss}, checkpoint=ray.train.Checkpoint.from_directory(folder))


workers, checkpoint = int(os.environ.get("NUM_WORKERS", 2)), None
address = os.environ.get("RAY_ADDRESS", "local")  # a cluster of its own, even if one runs here
ray.init(address, num_cpus=workers + 1 if address == "local" else None, log_to_driver=False)
for ranks, steps in ((workers, 20), (workers + 1, 0)):
    loop, scaling = {"steps": steps, "checkpoint": checkpoint}, ray.train.ScalingConfig(num_workers=ranks)
    result = TorchTrainer(train_loop, train_loop_config=loop, scaling_config=scaling).fit()
    checkpoint = result.checkpoint
    print(f"{ranks} ranks: loss {result.metrics['loss']:.3f} after {steps} steps")
