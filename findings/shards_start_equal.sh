#!/usr/bin/env bash
# Weights that are initialized after fully_shard() on CPUs are the same on each rank, so a layer has each neuron twice.
#
# torch 2.13.0, torchrun with two processes, 2026-11-30. A model that is too large for one process is made on the meta
# device, sharded by fully_shard(), allocated by to_empty(), and then initialized by reset_parameters(). On CPUs, each
# rank fills its shard from its own default generator. With the usual torch.manual_seed(0) on all ranks, these are the
# same numbers: the second half of a layer's rows is a copy of the first, and two neurons compute the same. Dropout of a
# sharded tensor drops the same places of each shard. Nothing warns.
# What works: torch.manual_seed(seed + rank) before reset_parameters(), as long as all tensors are sharded; or a model
# that is initialized first and sharded afterwards.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group("gloo")
RANK = dist.get_rank()


def whole(layer):
    return layer.weight.full_tensor()


def report(name, weight):
    upper, lower = weight.chunk(2)
    if RANK == 0:
        print(f"{name}: different rows {len(weight.unique(dim=0))} of {len(weight)}, halves equal: {upper.equal(lower)}")


def meta_first(seed):
    with torch.device("meta"):
        layer = torch.nn.Linear(16, 64)
    fully_shard(layer)
    layer.to_empty(device="cpu")
    torch.manual_seed(seed)
    layer.reset_parameters()
    return layer


torch.manual_seed(0)
layer = torch.nn.Linear(16, 64)
fully_shard(layer)
report("initialized, then sharded", whole(layer))
report("sharded, then initialized", whole(meta_first(0)))
report("sharded, then initialized, a seed for each rank", whole(meta_first(RANK)))
torch.manual_seed(0)
ones = distribute_tensor(torch.ones(64, 16), init_device_mesh("cpu", (2,)), [Shard(0)])
report("dropout of a sharded tensor", torch.nn.functional.dropout(ones).full_tensor())
dist.destroy_process_group()
END

cat > expected.txt <<'END'
initialized, then sharded: different rows 64 of 64, halves equal: False
sharded, then initialized: different rows 32 of 64, halves equal: True
sharded, then initialized, a seed for each rank: different rows 64 of 64, halves equal: False
dropout of a sharded tensor: different rows 32 of 64, halves equal: True
END

OMP_NUM_THREADS=1 venv/bin/torchrun --standalone --nproc-per-node 2 program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
