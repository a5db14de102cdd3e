#!/usr/bin/env bash
# Ray Train's prepare_data_loader builds a loader again, and loses what it doesn't copy.
#
# Ray 2.60.0, torch 2.13.0, two workers on CPUs, 2026-11-28. A SubsetRandomSampler of 60 rows is replaced by a
# DistributedSampler over all 100, so rows that were kept for validation are trained on. A loader with
# batch_sampler= yields single rows without a batch dimension. prefetch_factor and persistent_workers go back to
# their defaults. Only for the sampler there is a warning, in the log of rank 0; it recommends `with_sampler`, and
# the parameter is called add_dist_sampler. No error is raised.
# What works: split with torch.utils.data.Subset, pass batch_size=, or divide the rows yourself and call
# prepare_data_loader(loader, add_dist_sampler=False).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[train]==2.60.0" torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import ray
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, SubsetRandomSampler, TensorDataset

ROWS = TensorDataset(torch.arange(100))


def loop(config):
    for_training = DataLoader(ROWS, batch_size=10, sampler=SubsetRandomSampler(range(60)))
    in_tens = DataLoader(ROWS, batch_sampler=BatchSampler(SequentialSampler(ROWS), 10, False))
    ahead = DataLoader(ROWS, batch_size=10, num_workers=1, prefetch_factor=4, persistent_workers=True)
    rows = torch.cat([batch for (batch,) in prepare_data_loader(for_training)]).tolist()
    shapes = [tuple(batch.shape) for (batch,) in prepare_data_loader(in_tens)]
    prepared = prepare_data_loader(ahead)
    options = (prepared.num_workers, prepared.prefetch_factor, prepared.persistent_workers)
    ranks = [None, None]
    torch.distributed.all_gather_object(ranks, (rows, shapes, options))
    return ranks


ray.init(num_cpus=3, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
ranks = TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=2)).fit().return_value
rows = sorted({row for rows, _, _ in ranks for row in rows})
print(f"sampler of rows 0 to 59: the two ranks read {len(rows)} rows, {rows[0]} to {rows[-1]}")
print(f"batch_sampler of ten batches of ten: rank 0 gets {len(ranks[0][1])} items, shapes {set(ranks[0][1])}")
print(f"num_workers=1, prefetch_factor=4, persistent_workers=True: {ranks[0][2]}")
END

cat > expected.txt <<'END'
sampler of rows 0 to 59: the two ranks read 100 rows, 0 to 99
batch_sampler of ten batches of ten: rank 0 gets 50 items, shapes {()}
num_workers=1, prefetch_factor=4, persistent_workers=True: (1, 2, False)
END

RAY_USAGE_STATS_ENABLED=0 venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
