#!/usr/bin/env bash
# With get_network_params() alone, each worker of a LightGBMTrainer fits a model of its own rows.
#
# Ray 2.60.0, lightgbm 4.7.0, two workers, 2026-11-28. LightGBM's tree_learner is "serial" unless it is set, also with
# num_machines=2. The workers then never exchange anything, and rank 0's model, which has seen half of the rows, is the
# one that is saved. Nothing is printed.
# What works: "tree_learner": "data" next to **get_network_params().
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[train]==2.60.0" lightgbm==4.7.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import tempfile
from pathlib import Path

import numpy
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.lightgbm import LightGBMTrainer, get_network_params


def loop(config):
    import lightgbm

    rank = ray.train.get_context().get_world_rank()
    x = numpy.arange(64.0).reshape(-1, 1)[rank::2]
    y = (x[:, 0] > 31) + 10.0 * rank  # 0 or 1 in rank 0's rows, 10 or 11 in rank 1's
    rows = lightgbm.Dataset(x, label=y)
    options = {"objective": "regression", "min_data_in_leaf": 4, "num_threads": 1, "verbose": -1}
    model = lightgbm.train({**options, **get_network_params(), **config["options"]}, rows, num_boost_round=50)
    Path(config["folder"], str(rank)).write_text(str(model.predict([[0.0]])[0].round(3)))


ray.init("local", num_cpus=3, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
for options in ({}, {"tree_learner": "data", "pre_partition": True}):
    with tempfile.TemporaryDirectory() as folder:
        trainer = LightGBMTrainer(
            loop,
            train_loop_config={"folder": folder, "options": options},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=folder),
        )
        trainer.fit()
        predictions = [float(Path(folder, str(rank)).read_text()) for rank in range(2)]
    equal = len(set(predictions)) == 1
    of_both = 1 < predictions[0] < 10
    print(f"{options}: equal models: {equal}, rank 0's model is of both ranks' rows: {of_both}")
END

cat > expected.txt <<'END'
{}: equal models: False, rank 0's model is of both ranks' rows: False
{'tree_learner': 'data', 'pre_partition': True}: equal models: True, rank 0's model is of both ranks' rows: True
END

RAY_USAGE_STATS_ENABLED=0 venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
