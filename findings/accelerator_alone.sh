#!/usr/bin/env bash
# In a Gloo process group on CPUs, accelerate's Accelerator() trains alone in each process.
#
# accelerate 1.15.0, torch 2.13.0, torchrun with two processes, 2026-11-28. torch.distributed is initialized and has
# two ranks. Accelerator() then reports one process, prepare() returns the plain model, and each rank trains its own
# model on all rows. No warning is shown. The same happens in a worker of Ray Train without a GPU.
# What works: Accelerator(cpu=True), or ACCELERATE_USE_CPU=true; TrainingArguments(use_cpu=True) in transformers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import os

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState

dist.init_process_group("gloo")
lines = []
for what, options, variables in (
    ("Accelerator()", {}, {}),
    ("Accelerator(cpu=True)", {"cpu": True}, {}),
    ("ACCELERATE_USE_CPU=true", {}, {"ACCELERATE_USE_CPU": "true"}),
):
    os.environ.update(variables)
    accelerator = Accelerator(**options)
    torch.manual_seed(0)
    model = accelerator.prepare(torch.nn.Linear(4, 1, bias=False))
    torch.manual_seed(dist.get_rank())  # each rank has rows of its own
    model(torch.rand(8, 4)).sum().backward()
    gradients = [None, None]
    dist.all_gather_object(gradients, accelerator.unwrap_model(model).weight.grad.tolist())
    equal = "equal" if gradients[0] == gradients[1] else "different"
    lines.append(f"{what}: {accelerator.num_processes} of 2 processes, {type(model).__name__}, {equal} gradients")
    del model
    AcceleratorState._reset_state(reset_partial_state=True)
if dist.get_rank() == 0:
    print("\n".join(lines))
dist.destroy_process_group()
END

cat > expected.txt <<'END'
Accelerator(): 1 of 2 processes, Linear, different gradients
Accelerator(cpu=True): 2 of 2 processes, DistributedDataParallel, equal gradients
ACCELERATE_USE_CPU=true: 2 of 2 processes, DistributedDataParallel, equal gradients
END

OMP_NUM_THREADS=1 venv/bin/torchrun --standalone --nproc-per-node 2 program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
