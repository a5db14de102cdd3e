#!/usr/bin/env bash
# torch.distributed.checkpoint saves the mean of a batch norm from one rank, and its variance from another.
#
# torch 2.13.0, torchrun with two processes, 2026-11-28. With DDP, all ranks have the same weights, and not the same
# running statistics of BatchNorm: each rank has those of its own rows, and torch.save() on rank 0 saves rank 0's. The
# distributed checkpoint assumes that tensors which aren't sharded are equal, and shares out the writing. So the model
# that is loaded normalizes by a mean and a variance of different rows. Nothing warns. An object that isn't a tensor,
# such as the state of a loader, is one rank's for all ranks.
# What works: average the buffers over the ranks before saving, or save with
# DefaultSavePlanner(dedup_save_to_lowest_rank=True), which takes all of them from rank 0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)))
model(torch.rand(8, 3)).sum().backward()  # each rank has rows of its own
state = model.module.state_dict()
states = [None, None]
dist.all_gather_object(states, state)


def owners_in_checkpoint(planner, folder):
    """Return whose tensors a checkpoint has that both ranks have saved, and whose object."""
    dcp.save({"model": state, "rank": dist.get_rank()}, checkpoint_id=folder, planner=planner)
    loaded = {"model": {name: torch.zeros_like(tensor) for name, tensor in state.items()}, "rank": None}
    dcp.load(loaded, checkpoint_id=folder)
    owners = {"an object": [loaded["rank"]]}
    for name in ("0.weight", "1.running_mean", "1.running_var"):
        owners[name] = [rank for rank in (0, 1) if torch.equal(loaded["model"][name], states[rank][name])]
    return owners


by_default = owners_in_checkpoint(DefaultSavePlanner(), "default")
by_lowest = owners_in_checkpoint(DefaultSavePlanner(dedup_save_to_lowest_rank=True), "lowest")
if dist.get_rank() == 0:
    print("by default, equal to rank:", by_default)
    print("dedup_save_to_lowest_rank=True, equal to rank:", by_lowest)
dist.destroy_process_group()
END

cat > expected.txt <<'END'
by default, equal to rank: {'an object': [1], '0.weight': [0, 1], '1.running_mean': [0], '1.running_var': [1]}
dedup_save_to_lowest_rank=True, equal to rank: {'an object': [0], '0.weight': [0, 1], '1.running_mean': [0], '1.running_var': [0]}
END

OMP_NUM_THREADS=1 venv/bin/torchrun --standalone --nproc-per-node 2 program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
