#!/usr/bin/env bash
# Ray Tune ignores a stop criterion whose metric no trial reports.
#
# Ray 2.60.0, 2026-11-28. stop={"acuracy": 0.5} with a typo stops nothing: the trial runs to its end, without an
# error. Metrics of a scheduler or a searcher are checked at the first report, and those of `stop` are not.
# What works: training_iteration as a second criterion, and the number of reports of the first trial.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[tune]==2.60.0" numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import tempfile

import ray
from ray import tune


def loop(config):
    for number in range(10):
        tune.report({"accuracy": number / 10})


ray.init("local", num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
for name in ("accuracy", "acuracy"):
    with tempfile.TemporaryDirectory() as folder:
        run = tune.RunConfig(storage_path=folder, stop={name: 0.5}, verbose=0)
        (trial,) = tune.Tuner(loop, run_config=run).fit()
        with open("seen.txt", "a") as file:
            print(f"stop={{'{name}': 0.5}}: {len(trial.metrics_dataframe)} of 10 reports, error {trial.error}", file=file)
END

cat > expected.txt <<'END'
stop={'accuracy': 0.5}: 6 of 10 reports, error None
stop={'acuracy': 0.5}: 10 of 10 reports, error None
END

# Tune prints tables, so the program writes what it saw into a file.
RAY_USAGE_STATS_ENABLED=0 venv/bin/python program.py > log.txt 2>&1 || { cat log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
