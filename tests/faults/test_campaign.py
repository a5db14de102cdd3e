"""The campaign of faults: its checks see what they are for, and eight of its runs keep what is promised.

`python -m benchmarks faults --campaign 200` makes many. The eight of this seed have eight different faults,
in runs of Ray Train with and without validation, and of Tune.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from ray.train import Checkpoint

from benchmarks import _campaign as campaign
from benchmarks import _campaign_runs as runs

SEED = 248


def plan(**more):
    fixed = {"seed": 0, "number": 0, "kind": "torch", "fault": "kill rank", "share": 0.5, "rank": 0}
    return campaign.Plan(**{**fixed, "seconds": 1.0, "epochs": 3, "steps": 2, **more})


@pytest.mark.parametrize("kept, lost", [(0, False), (1, True)])
def test_an_epoch_that_had_a_checkpoint_must_not_be_trained_again(tmp_path, kept, lost):
    steps = [(10, 0), (10, 1), (10, 2), (11, 1), (11, 2)]  # (pid, epoch)
    (tmp_path / "log").write_text("".join(f"0 {pid} {epoch} 0\n" for pid, epoch in steps))
    if lost:
        with pytest.raises(runs.Broken, match="went on with epoch 1, and the checkpoint of epoch 1"):
            campaign._check_steps(plan(), tmp_path / "log", kept)
    else:
        campaign._check_steps(plan(), tmp_path / "log", kept)


def test_the_eight_runs_have_eight_faults():
    faults = {campaign.Plan.draw(SEED, number).fault for number in range(8)}
    assert len(faults) == 8 and {"kill node", "kill controller"} <= faults


@dataclass
class Reported:
    checkpoint: Checkpoint


def checkpoints_of(folder, epochs):
    """Save a checkpoint of each epoch in a folder, and list them as Ray does."""
    weights = np.zeros((runs.WIDTH, 1))
    for epoch in range(epochs):
        weights = runs.descend(weights, epoch, 2, runs.RATE)
        (folder / f"{epoch}").mkdir()
        runs.save(str(folder / f"{epoch}"), epoch, weights)
        yield Reported(Checkpoint(str(folder / f"{epoch}")))


@pytest.mark.parametrize(
    "epochs, harm, fact",
    [
        (3, lambda state: state, None),
        (2, lambda state: state, "the last checkpoint is of epoch 1"),
        (3, lambda state: {**state, "weights": [0.0] * runs.WIDTH}, "weights differ by"),
        (3, lambda state: {**state, "epoch": 1}, "weights differ by"),
    ],
)
def test_the_model_and_its_checkpoints_are_compared(tmp_path, epochs, harm, fact):
    listed = list(checkpoints_of(tmp_path, epochs))
    path = Path(tmp_path, "0", "state.json")
    path.write_text(json.dumps(harm(json.loads(path.read_text()))))
    if fact is None:
        campaign._check_model(plan(), listed[-1], listed)
    else:
        with pytest.raises(runs.Broken, match=fact):
            campaign._check_model(plan(), listed[-1], listed)


@pytest.mark.fault
@pytest.mark.timeout(1000)
def test_eight_runs_keep_what_is_promised(home):
    command = [sys.executable, "-m", "benchmarks", "faults", "--campaign", "8", "--seed", str(SEED)]
    # A head looks for its nodes every 3 s and gives each five chances: the runs that lose a node would wait.
    quick = {"RAY_health_check_period_ms": "300", "RAY_health_check_initial_delay_ms": "300"}
    options = {"cwd": Path(__file__).parents[2], "env": {**os.environ, **quick}, "timeout": 940}
    done = subprocess.run(command, capture_output=True, text=True, **options)
    print(done.stdout)
    assert "8 of 8 runs kept what was promised" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
