#!/usr/bin/env bash
# A NumPy number in a report with a checkpoint ends a Ray Train run, in a process that isn't the loop's.
#
# Ray 2.60.0, torch 2.13.0, one worker, 2026-11-28. The metrics of a report are saved as JSON next to its
# checkpoint, by the run's controller. float and numpy.float64 (which is a float) are fine. numpy.float32, integers
# and arrays raise there, so the error names neither the loop, nor the line, nor the metric. Without a checkpoint
# the same numbers pass, because then nothing is saved.
# What works: float(value), or value.item().
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[train]==2.60.0" torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import tempfile

import numpy
import ray.train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def loop(config):
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint.from_directory(folder) if config["saves"] else None
        ray.train.report({"loss": config["loss"]}, checkpoint=checkpoint)


def outcome(loss, saves=True):
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            loop,
            train_loop_config={"loss": loss, "saves": saves},
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(storage_path=folder),
        )
        try:
            trainer.fit()
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[-1]}"
    return "fine"


ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
for loss in (0.5, numpy.float64(0.5), numpy.float32(0.5), numpy.int64(1), numpy.array([0.5])):
    print(f"{type(loss).__name__}: {outcome(loss)}")
print(f"float32 without a checkpoint: {outcome(numpy.float32(0.5), saves=False)}")
END

cat > expected.txt <<'END'
float: fine
float64: fine
float32: ControllerError: Unable to serialize unknown type: <class 'numpy.float32'>
int64: ControllerError: Unable to serialize unknown type: <class 'numpy.int64'>
ndarray: ControllerError: Unable to serialize unknown type: <class 'numpy.ndarray'>
float32 without a checkpoint: fine
END

RAY_USAGE_STATS_ENABLED=0 venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
