#!/usr/bin/env bash
# Ray Train's datasets= gives all workers the same number of rows, and the remainder to none of them.
#
# Ray 2.60.0, pyarrow 26.0.1, torch 2.13.0, three workers, 2026-11-28. Rows are split with equal=True, so no worker waits
# for another. Of 20 rows, two are read by no worker, in each epoch, and nothing is printed. Which ones depends on
# the blocks. A DistributedSampler of torch repeats rows instead.
# What works: a number of rows that the workers divide, or dataset_config=DataConfig(datasets_to_split=[]) and a
# split of one's own.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[train]==2.60.0" torch==2.13.0 pyarrow==26.0.1 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import logging

import ray
import ray.train
from ray.train import DataConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def loop(config):
    shard = ray.train.get_dataset_shard("train")
    rows = [int(number) for batch in shard.iter_batches(batch_size=4) for number in batch["id"]]
    ranks = [None] * 3
    import torch

    torch.distributed.all_gather_object(ranks, rows)
    return ranks


ray.init("local", num_cpus=5, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
logging.getLogger("ray.data").setLevel(logging.ERROR)
for blocks in (1, 20):
    data = ray.data.range(20, override_num_blocks=blocks)
    trainer = TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=3), datasets={"train": data})
    ranks = trainer.fit().return_value
    seen = {row for rows in ranks for row in rows}
    print(f"20 rows on 3 workers: {sorted(map(len, ranks))}, {20 - len(seen)} rows reach no worker")
END

cat > expected.txt <<'END'
20 rows on 3 workers: [6, 6, 6], 2 rows reach no worker
20 rows on 3 workers: [6, 6, 6], 2 rows reach no worker
END

RAY_USAGE_STATS_ENABLED=0 venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
