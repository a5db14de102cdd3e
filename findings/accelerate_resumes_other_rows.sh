#!/usr/bin/env bash
# accelerate's skip_first_batches after load_state skips the batches of another order.
#
# accelerate 1.15.0, torch 2.13.0, one process, 2026-11-28. A run saves its state after three of six batches of an
# epoch. load_state() restores the random numbers as they were then, in the middle of the epoch. The loader draws its
# order at the start of an epoch, so it draws another one, and skips three batches of that. Of the six rows that it
# then reads, four were read before, and four others never are. use_seedable_sampler=True alone begins with the order
# of epoch 0 again. Nothing warns. https://github.com/huggingface/accelerate/issues/2016, open.
# What works: use_seedable_sampler=True, the same seed, and loader.set_epoch(epoch) before skip_first_batches.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.state import AcceleratorState
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

ROWS = TensorDataset(torch.arange(12))


def new_process(seedable):
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=seedable))
    set_seed(7)
    return accelerator, accelerator.prepare(DataLoader(ROWS, batch_size=2, shuffle=True))


def rows_of(batches):
    return [int(row) for (batch,) in batches for row in batch]


for seedable, set_epoch in ((False, False), (True, False), (True, True)):
    accelerator, loader = new_process(seedable)
    rows_of(loader)
    before = []
    for number, batch in enumerate(loader):
        before += rows_of([batch])
        if number == 2:
            accelerator.save_state("state")
            break

    accelerator, loader = new_process(seedable)
    accelerator.load_state("state")
    if set_epoch:
        loader.set_epoch(1)
    after = rows_of(skip_first_batches(loader, 3))
    print(f"use_seedable_sampler={seedable}, set_epoch={set_epoch}: before {before}, after {after},", end=" ")
    print(f"{len(set(before) & set(after))} twice, {12 - len(set(before) | set(after))} never")
END

cat > expected.txt <<'END'
use_seedable_sampler=False, set_epoch=False: before [5, 11, 7, 0, 4, 8], after [7, 10, 5, 0, 8, 3], 4 twice, 4 never
use_seedable_sampler=True, set_epoch=False: before [3, 10, 0, 6, 9, 4], after [11, 6, 8, 1, 10, 2], 2 twice, 2 never
use_seedable_sampler=True, set_epoch=True: before [3, 10, 0, 6, 9, 4], after [1, 7, 8, 2, 5, 11], 0 twice, 0 never
END

venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
