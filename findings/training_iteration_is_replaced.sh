#!/usr/bin/env bash
# A metric called training_iteration replaces Ray Tune's own count of reports, and stops a trial early or never.
#
# Ray 2.60.0, 2026-11-28. Tune counts reports as training_iteration, and stop={"training_iteration": 5} and
# schedulers compare that number. A loop that reports a number of that name, for example its optimizer steps,
# replaces it: the trial ends after its first report, or runs to its end.
# What works: another name, such as "steps".
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
        tune.report({"score": number, **config["more"]})


ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
for more in ({}, {"training_iteration": 99}, {"training_iteration": 0}):
    with tempfile.TemporaryDirectory() as folder:
        run = tune.RunConfig(storage_path=folder, stop={"training_iteration": 5}, verbose=0)
        (trial,) = tune.Tuner(loop, param_space={"more": more}, run_config=run).fit()
        reports = len(trial.metrics_dataframe)
    with open("seen.txt", "a") as file:
        print(f"{more}: {reports} of 10 reports, training_iteration {trial.metrics['training_iteration']}", file=file)
END

cat > expected.txt <<'END'
{}: 5 of 10 reports, training_iteration 5
{'training_iteration': 99}: 1 of 10 reports, training_iteration 99
{'training_iteration': 0}: 10 of 10 reports, training_iteration 0
END

# Tune prints tables, so the program writes what it saw into a file.
RAY_USAGE_STATS_ENABLED=0 venv/bin/python program.py > log.txt 2>&1 || { cat log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
