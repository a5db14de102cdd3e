"""Ray's own examples, as its package brings them, unmodified: on forked workers, with and without a panel.

`EXAMPLES` has those that need no network and nothing that the lab doesn't install.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import ray

pytestmark = pytest.mark.fault

# It runs an example in a cluster that is there: argv has its path, and "panel" for one around each fit().
PROGRAM = """
import json, math, os, random, runpy, sys
import numpy, torch
import ray
from ray.train.torch import TorchTrainer
from ray.tune import ResultGrid, Tuner
from labkit import cluster
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
EXAMPLES = (
    "tune/examples/async_hyperband_example.py",
    "tune/examples/custom_checkpointing_with_callback.py",
    "tune/examples/custom_func_checkpointing.py",
    "tune/examples/hyperband_example.py",
    "tune/examples/hyperband_function_example.py",
    "tune/examples/logging_example.py",
    "tune/examples/optuna_example.py",
    "tune/examples/optuna_define_by_run_example.py",
    "tune/examples/optuna_multiobjective_example.py",
    "tune/examples/pbt_example.py",
    "tune/examples/pbt_function.py",
    "tune/examples/tune_basic_example.py",
    "train/examples/pytorch/torch_linear_example.py",
)


def told(path, panels, home):
    """What `PROGRAM` says of an example. Its results go to a folder of their own: Tune mixes equal names."""
    command = [sys.executable, "-c", PROGRAM, str(path), panels, "--smoke-test"]
    with tempfile.TemporaryDirectory(dir=home) as folder:
        variables = {**os.environ, "HOME": folder}
        done = subprocess.run(command, cwd=home, env=variables, capture_output=True, text=True, timeout=280)
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(lines[0].removeprefix("TOLD "))


@pytest.fixture
def result(lab, home):
    """result(example, panels): what it printed last, as an object. It finds the cluster that runs already."""
    return lambda example, panels: told(Path(ray.__file__).parent / example, panels, home)


LAB = {"cpus_per_node": 4}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("example", [one for one in EXAMPLES if re.search("basic|logging|pbt_f", one)])
def test_a_sweep_is_followed_and_its_results_stay(result, example):
    without, under = result(example, "none"), result(example, "panel")
    assert under["results"] == without["results"]
    assert under["status"] == "finished" and under["trials"] == len(under["results"])


@pytest.mark.timeout(600)
def test_a_training_is_followed(result):
    under = result("train/examples/pytorch/torch_linear_example.py", "panel")
    assert (under["status"], under["epochs"]) == ("finished", 3)  # and 1000 rows: 2 workers, 4 a batch
    assert under["steps"] == 3 * 1000 / 2 / 4
