#!/usr/bin/env bash
# When an XGBoostTrainer resumes, Ray's RayTrainReportCallback reports the last round twice.
#
# Ray 2.60.0, xgboost 3.2.0, two workers, 2026-11-28. With frequency=1 each round has its checkpoint, and the callback
# leaves out the one at the end. It compares the rounds of the whole model with those of this call of train(), so after
# a resume they differ: the last round gets a second report and a second checkpoint. The model is right.
# What works: RayTrainReportCallback(..., frequency=1, checkpoint_at_end=False).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[train]==2.60.0" xgboost==3.2.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import tempfile
from pathlib import Path

import numpy
import ray
from ray.train import RunConfig, ScalingConfig, UserCallback
from ray.train.xgboost import RayTrainReportCallback, XGBoostTrainer


class Count(UserCallback):
    def __init__(self, path):
        self.path = path

    def after_report(self, run_context, metrics, checkpoint):
        with open(self.path, "a") as file:
            file.write(".")


def loop(config):
    import xgboost

    rank = ray.train.get_context().get_world_rank()
    x = numpy.random.default_rng(rank).random((32, 4))
    rows = xgboost.DMatrix(x, label=x.sum(axis=1))
    checkpoint = ray.train.get_checkpoint()
    model = RayTrainReportCallback.get_model(checkpoint) if checkpoint else None
    rounds = config["rounds"] - (model.num_boosted_rounds() if model else 0)
    callback = RayTrainReportCallback(frequency=1, **config["options"])
    model = xgboost.train({"nthread": 1}, rows, rounds, evals=[(rows, "train")], xgb_model=model, callbacks=[callback])
    return model.num_boosted_rounds()


ray.init("local", num_cpus=3, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
for options in ({}, {"checkpoint_at_end": False}):
    with tempfile.TemporaryDirectory() as folder:
        for rounds in (2, 3):
            reports = Path(folder, f"reports-{rounds}")
            trainer = XGBoostTrainer(
                loop,
                train_loop_config={"rounds": rounds, "options": options},
                scaling_config=ScalingConfig(num_workers=2),
                run_config=RunConfig(name="run", storage_path=folder, callbacks=[Count(str(reports))]),
            )
            made = trainer.fit().return_value
            print(f"{options}: a model of {made} rounds, {len(reports.read_text())} reports in this run")
END

cat > expected.txt <<'END'
{}: a model of 2 rounds, 2 reports in this run
{}: a model of 3 rounds, 2 reports in this run
{'checkpoint_at_end': False}: a model of 2 rounds, 2 reports in this run
{'checkpoint_at_end': False}: a model of 3 rounds, 1 reports in this run
END

RAY_USAGE_STATS_ENABLED=0 venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
