#!/usr/bin/env bash
# A NaN makes Ray Tune's get_best_result(scope="all") forget what the trial reported before and after it.
#
# Ray 2.60.0, 2026-11-28. Tune keeps the least value of each metric with min(), and from a NaN on that is NaN. Such
# a trial isn't considered, although its losses are in the table of its reports. Nothing warns.
# What works: report a large number instead of NaN, or get_dataframe(filter_metric=..., filter_mode=...).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[tune]==2.60.0" numpy==2.4.6 pandas==2.3.3
cd "$folder"

cat > program.py <<'END'
import tempfile

import ray
from ray import tune

LOSSES = {"a": [0.1, float("nan"), 0.9], "b": [0.5, 0.4, 0.3]}


def loop(config):
    for loss in LOSSES[config["name"]]:
        tune.report({"loss": loss})


ray.init("local", num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
with tempfile.TemporaryDirectory() as folder:
    tuner = tune.Tuner(
        loop,
        param_space={"name": tune.grid_search(["a", "b"])},
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    )
    results = tuner.fit()
    best = results.get_best_result("loss", "min", scope="all").config["name"]
    table = results.get_dataframe(filter_metric="loss", filter_mode="min")
    least = table.sort_values("loss").iloc[0]
    with open("seen.txt", "a") as file:
        print("least loss: trial a with 0.1", file=file)
        print(f'get_best_result(scope="all"): trial {best}', file=file)
        print(f"get_dataframe(filter_metric, filter_mode): trial {least['config/name']} with {least['loss']}", file=file)
END

cat > expected.txt <<'END'
least loss: trial a with 0.1
get_best_result(scope="all"): trial b
get_dataframe(filter_metric, filter_mode): trial a with 0.1
END

# Tune prints tables, so the program writes what it saw into a file.
RAY_USAGE_STATS_ENABLED=0 venv/bin/python program.py > log.txt 2>&1 || { cat log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
