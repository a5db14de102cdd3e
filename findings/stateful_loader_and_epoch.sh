#!/usr/bin/env bash
# torchdata's StatefulDataLoader resumes with other rows unless the sampler's epoch is set as well.
#
# torchdata 0.11.0, torch 2.13.0, 2026-11-28. Its state has how many batches were read, and not the epoch of torch's
# DistributedSampler. After load_state_dict() it skips that number of batches of the epoch that the *new* sampler has,
# which is 0. So rows are read twice and others never, and nothing is raised.
# What works: save the epoch yourself, and call sampler.set_epoch(epoch) before the first batch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torchdata==0.11.0 torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import torch
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

ROWS = TensorDataset(torch.arange(40))


def new_loader():
    sampler = DistributedSampler(ROWS, num_replicas=2, rank=0, seed=0)
    return StatefulDataLoader(ROWS, batch_size=4, sampler=sampler), sampler


def rows(batches):
    return [row for (batch,) in batches for row in batch.tolist()]


loader, sampler = new_loader()
sampler.set_epoch(3)
batches = iter(loader)
read = rows([next(batches), next(batches)])
state = loader.state_dict()
rest = rows(batches)
for epoch in (None, 3):
    loader, sampler = new_loader()
    if epoch is not None:
        sampler.set_epoch(epoch)
    loader.load_state_dict(state)
    resumed = rows(loader)
    print(f"set_epoch({epoch}): the same rest: {resumed == rest}, read twice: {len(set(read) & set(resumed))}")
END

cat > expected.txt <<'END'
set_epoch(None): the same rest: False, read twice: 3
set_epoch(3): the same rest: True, read twice: 0
END

venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
