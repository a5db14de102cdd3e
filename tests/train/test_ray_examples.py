"""Ray's own examples, as its package brings them, unmodified: on forked workers, with and without a panel."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import ray

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("labkit/panel/", "labkit/worker/"),
    pytest.mark.night,
    pytest.mark.fault,
]

# It runs an example in a cluster that is there: argv has its path, and "panel" for one around each fit().
PROGRAM = """
import json, math, os, random, runpy, sys
import numpy, torch
import ray
from ray.train.torch import TorchTrainer
from ray.tune import ResultGrid, Tuner
from labkit.local import cluster
from labkit.panel.reporters import NullReporter
from labkit.train import TrainPanel
from labkit.tune import SweepPanel

path, panels, *arguments = sys.argv[1:]
lab = cluster.start(cpus_per_node=4)
start, seen = ray.init, []
ray.init = lambda *args, **options: None if ray.is_initialized() else start(*args, **options)
for seed in (random.seed, numpy.random.seed, torch.manual_seed):
    seed(7)

def watched(kind, fit):
    def fit_under_a_panel(self):
        if panels != "panel":
            result = fit(self)
        else:
            with kind("example", reporter=NullReporter()).watch(self) as panel:
                result = fit(self)
            seen.append(panel.state)
        results.append(result)
        return result
    return fit_under_a_panel

def told(result):
    ours = result if isinstance(result, ResultGrid) else [result]
    by_chance = "/tune/" not in path or "optuna" in path or "pbt" in path  # their searchers have no seed
    return sorted(
        json.dumps([
            None if by_chance else one.config,
            one.metrics.get("training_iteration"),
            sorted(one.metrics),
            one.error is None,
        ], default=str)
        for one in ours
    )

results = []
TorchTrainer.fit, Tuner.fit = watched(TrainPanel, TorchTrainer.fit), watched(SweepPanel, Tuner.fit)
sys.argv = [path, *arguments]
runpy.run_path(path, run_name="__main__")
(result,) = results
said = {"results": told(result)}
if seen:
    (state,) = seen
    said |= {"status": state.status, "trials": len(getattr(state, "trials", ()))}
    said |= {"steps": getattr(state, "made", 0), "epochs": len(getattr(state, "epoch_seconds", ()))}
print("TOLD", json.dumps(said))
"""
SWEEPS = ("logging_example", "pbt_function", "tune_basic_example")


def outcome(path, panels, home):
    """What `PROGRAM` says of an example. Its results go to a folder of their own: Tune mixes equal names."""
    command = [sys.executable, "-c", PROGRAM, str(Path(ray.__file__).parent / path), panels, "--smoke-test"]
    with tempfile.TemporaryDirectory(dir=home) as folder:
        variables = {**os.environ, "HOME": folder}
        done = subprocess.run(command, cwd=home, env=variables, capture_output=True, text=True, timeout=280)
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(lines[0].removeprefix("TOLD "))


LAB = {"cpus_per_node": 4}  # `PROGRAM` finds the cluster that runs already


@pytest.mark.timeout(600)
@pytest.mark.parametrize("example", SWEEPS)
def test_a_sweep_is_followed_and_its_results_stay(lab, home, example):
    path = f"tune/examples/{example}.py"
    without, under = outcome(path, "none", home), outcome(path, "panel", home)
    assert under["results"] == without["results"]
    assert under["status"] == "finished" and under["trials"] == len(under["results"])


@pytest.mark.timeout(600)
def test_a_training_is_followed(lab, home):
    under = outcome("train/examples/pytorch/torch_linear_example.py", "panel", home)
    assert (under["status"], under["epochs"]) == ("finished", 3)  # and 1000 rows: 2 workers, 4 a batch
    assert under["steps"] == 3 * 1000 / 2 / 4
