#!/usr/bin/env bash
# On several ranks Lightning shuffles the training rows, also of a loader with shuffle=False.
#
# lightning 2.6.6, torch 2.13.0, torchrun with two processes, 2026-11-28. Where the loader has no sampler for several
# ranks, Lightning puts in a DistributedSampler with shuffle=True for training, whatever the loader says. On one
# rank the same program reads the rows in order. Nothing is printed.
# What works: Trainer(use_distributed_sampler=False), and a DistributedSampler(..., shuffle=False) of one's own.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet lightning==2.6.6 torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import os

import lightning
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ROWS = TensorDataset(torch.arange(16.0).reshape(-1, 1))
RANK = int(os.environ["RANK"])


class Reader(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.rows = []

    def training_step(self, batch, number):
        self.rows += batch[0].flatten().int().tolist()
        return self.layer(batch[0]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def are_in_order(sampler=None, **options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", enable_model_summary=False, **quiet, **options
    )
    module = Reader()
    trainer.fit(module, DataLoader(ROWS, batch_size=4, shuffle=False, sampler=sampler))
    return module.rows == sorted(module.rows)


default = are_in_order()
own = are_in_order(DistributedSampler(ROWS, 2, RANK, shuffle=False), use_distributed_sampler=False)
if RANK == 0:
    with open("seen.txt", "w") as file:
        print(f"shuffle=False: rank 0 reads its rows in order: {default}", file=file)
        print(f"use_distributed_sampler=False, and a sampler of one's own: {own}", file=file)
END

cat > expected.txt <<'END'
shuffle=False: rank 0 reads its rows in order: False
use_distributed_sampler=False, and a sampler of one's own: True
END

# Lightning prints about itself, so the program writes what it saw into a file.
OMP_NUM_THREADS=1 venv/bin/torchrun --standalone --nproc-per-node 2 program.py > log.txt 2>&1 || { cat log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
