#!/usr/bin/env bash
# A group of parameters that joins the optimizer during a warm-up gets a rate that is too high, until the end.
#
# torch 2.13.0, 2026-11-30. optimizer.add_param_group() is how layers are unfrozen during training. LinearLR and
# ConstantLR multiply the current rate in each step. They have lowered the rates of the groups that were there at the
# start, and not the rate of the new one. It is raised all the same, so after a warm-up that starts at a tenth it is up
# to ten times what was given. Nothing warns. A SequentialLR or a LambdaLR raises "zip() argument 2 is shorter than
# argument 1" in its next step, which doesn't say that a group was added. No issue was found.
# What works: all groups in the optimizer from the start, with requires_grad_(False) until they are unfrozen; or the
# new group's rate times the factor that the scheduler has reached.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import torch
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR


def linear(optimizer):
    return LinearLR(optimizer, 0.1, total_iters=4)


def constant(optimizer):
    return ConstantLR(optimizer, 0.1, total_iters=4)


def sequence(optimizer):
    return SequentialLR(optimizer, [linear(optimizer), CosineAnnealingLR(optimizer, 4)], milestones=[4])


def function(optimizer):
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))


def report(new_scheduler, joins, rate=1.0):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = new_scheduler(optimizer)
    rates = {0: [], 1: []}
    name = f"{type(scheduler).__name__}, a group with {rate} in step {joins}"
    try:
        for step in range(6):
            if step == joins:
                optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate})
            for number, group in enumerate(optimizer.param_groups):
                rates[number].append(round(group["lr"], 2))
            optimizer.step()
            scheduler.step()
        print(f"{name}: the first {rates[0]}, the new one {rates[1]}")
    except ValueError as error:
        print(f"{name}: {error}")


report(linear, 1)
report(linear, 2)
report(constant, 2)
report(sequence, 2)
report(function, 2)
report(linear, 2, rate=0.55)
END

cat > expected.txt <<'END'
LinearLR, a group with 1.0 in step 1: the first [0.1, 0.33, 0.55, 0.78, 1.0, 1.0], the new one [1.0, 1.69, 2.38, 3.08, 3.08]
LinearLR, a group with 1.0 in step 2: the first [0.1, 0.33, 0.55, 0.78, 1.0, 1.0], the new one [1.0, 1.41, 1.82, 1.82]
ConstantLR, a group with 1.0 in step 2: the first [0.1, 0.1, 0.1, 0.1, 1.0, 1.0], the new one [1.0, 1.0, 10.0, 10.0]
SequentialLR, a group with 1.0 in step 2: zip() argument 2 is shorter than argument 1
LambdaLR, a group with 1.0 in step 2: zip() argument 2 is shorter than argument 1
LinearLR, a group with 0.55 in step 2: the first [0.1, 0.33, 0.55, 0.78, 1.0, 1.0], the new one [0.55, 0.78, 1.0, 1.0]
END

venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
