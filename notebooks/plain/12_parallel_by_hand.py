"""A ring all-reduce, and data parallel training that sends during the backward pass, on two processes.

It starts them with torchrun, and reads NUM_WORKERS (2; it must divide 12).
Compares the ring with torch.distributed.all_reduce,
and the training with DistributedDataParallel: the same up to rounding.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.run import main as torchrun
from torch.nn.parallel import DistributedDataParallel


def ring_all_reduce(tensor):
    rank, world = dist.get_rank(), dist.get_world_size()
    pieces = list(tensor.clone().chunk(world))
    for step in range(2 * (world - 1)):
        into = (rank - step - 1) % world
        got = torch.empty_like(pieces[into])
        sending = dist.isend(pieces[(rank - step) % world], (rank + 1) % world)
        dist.recv(got, (rank - 1) % world)
        sending.wait()
        pieces[into] = pieces[into] + got if step < world - 1 else got
    return torch.cat(pieces)


def train(by_hand):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    model = plain if by_hand else DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    started = []

    def send(weight):  # PyTorch calls it during the backward pass, as soon as this gradient is complete
        started.append((weight, dist.all_reduce(weight.grad, async_op=True)))

    for weight in plain.parameters() if by_hand else ():
        weight.register_post_accumulate_grad_hook(send)
    for _ in range(20):
        rows = torch.randn(32 * world, 64)[rank::world]
        optimizer.zero_grad()
        (model(rows) - rows).square().mean().backward()
        for weight, sending in started:
            sending.wait()
            weight.grad /= world
        started.clear()
        optimizer.step()
    return torch.cat([weight.detach().flatten() for weight in plain.parameters()])


if "RANK" not in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # or torchrun warns
    torchrun(["--standalone", f"--nproc-per-node={os.environ.get('NUM_WORKERS', 2)}", __file__])
else:
    dist.init_process_group("gloo")
    mine = torch.arange(12.0) * 10 ** dist.get_rank()
    ring, theirs = ring_all_reduce(mine), mine.clone()
    dist.all_reduce(theirs)
    off = [(ring - theirs).abs().max().item(), (train(True) - train(False)).abs().max().item()]
    if dist.get_rank() == 0:
        print(f"largest difference of the ring {off[0]:.1e}, of the trained weights {off[1]:.1e}")
    dist.destroy_process_group()
