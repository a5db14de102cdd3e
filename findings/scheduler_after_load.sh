#!/usr/bin/env bash
# A scheduler with a warm-up that is made after optimizer.load_state_dict() resumes with too low a rate, until the end.
#
# torch 2.13.0, 2026-11-28. Making a scheduler sets the optimizer's rate to that of its first step, and the
# scheduler's load_state_dict() doesn't set it again. Many schedulers compute the next rate from the last one, so with
# SequentialLR of a warm-up and a cosine, all further rates are an eighth of what they were, and ConstantLR never goes
# up again. OneCycleLR and LambdaLR are wrong for one step. CosineAnnealingLR alone is right in any order. Nothing
# warns. https://github.com/pytorch/pytorch/issues/65342, open.
# What works: make both, then load the scheduler and the optimizer.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import copy

import torch
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, OneCycleLR, SequentialLR


def warm_up_and_cosine(optimizer):
    warm_up, cosine = LinearLR(optimizer, 0.1, 1, total_iters=3), CosineAnnealingLR(optimizer, 7)
    return SequentialLR(optimizer, [warm_up, cosine], milestones=[3])


SCHEDULERS = {
    "SequentialLR": warm_up_and_cosine,
    "ConstantLR": lambda optimizer: ConstantLR(optimizer, 0.1, total_iters=4),
    "OneCycleLR": lambda optimizer: OneCycleLR(optimizer, 1.0, total_steps=10),
    "CosineAnnealingLR": lambda optimizer: CosineAnnealingLR(optimizer, 10),
}


def new_optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)


def rates(optimizer, scheduler, steps):
    found = []
    for _ in range(steps):
        found.append(round(optimizer.param_groups[0]["lr"], 3))
        optimizer.step()
        scheduler.step()
    return found


for name, new_scheduler in SCHEDULERS.items():
    optimizer = new_optimizer()
    scheduler = new_scheduler(optimizer)
    rates(optimizer, scheduler, 5)
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    print(f"{name}, uninterrupted:", rates(optimizer, scheduler, 5))

    optimizer = new_optimizer()
    scheduler = new_scheduler(optimizer)
    optimizer.load_state_dict(copy.deepcopy(saved[0]))
    scheduler.load_state_dict(copy.deepcopy(saved[1]))
    print(f"{name}, made before the load:", rates(optimizer, scheduler, 5))

    optimizer = new_optimizer()
    optimizer.load_state_dict(copy.deepcopy(saved[0]))
    scheduler = new_scheduler(optimizer)
    scheduler.load_state_dict(copy.deepcopy(saved[1]))
    print(f"{name}, made after the load:", rates(optimizer, scheduler, 5))
END

cat > expected.txt <<'END'
SequentialLR, uninterrupted: [0.812, 0.611, 0.389, 0.188, 0.05]
SequentialLR, made before the load: [0.812, 0.611, 0.389, 0.188, 0.05]
SequentialLR, made after the load: [0.1, 0.075, 0.048, 0.023, 0.006]
ConstantLR, uninterrupted: [1.0, 1.0, 1.0, 1.0, 1.0]
ConstantLR, made before the load: [1.0, 1.0, 1.0, 1.0, 1.0]
ConstantLR, made after the load: [0.1, 0.1, 0.1, 0.1, 0.1]
OneCycleLR, uninterrupted: [0.611, 0.389, 0.188, 0.05, 0.0]
OneCycleLR, made before the load: [0.611, 0.389, 0.188, 0.05, 0.0]
OneCycleLR, made after the load: [0.04, 0.389, 0.188, 0.05, 0.0]
CosineAnnealingLR, uninterrupted: [0.5, 0.345, 0.206, 0.095, 0.024]
CosineAnnealingLR, made before the load: [0.5, 0.345, 0.206, 0.095, 0.024]
CosineAnnealingLR, made after the load: [0.5, 0.345, 0.206, 0.095, 0.024]
END

venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
