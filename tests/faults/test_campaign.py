"""The campaign of faults: its checks see what they are for, and eight of its runs keep what is promised.

`python -m benchmarks faults --campaign 200` makes many. The eight of this seed have eight different faults,
in runs of Ray Train with and without validation, and of Tune.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ray.train import Checkpoint

from benchmarks import _campaign as campaign
from benchmarks import _campaign_runs as runs

SEED = 248


PLANS = [campaign.Plan.draw(SEED, number) for number in range(8)]  # the first one is a run of Ray Train


def test_an_epoch_that_had_a_checkpoint_must_not_be_trained_again(tmp_path):
    log = tmp_path / "log"
    steps = [(1.0, 10, 0), (2.0, 10, 1), (3.0, 10, 2), (7.5, 11, 1), (8.0, 11, 2)]  # (time, pid, epoch)
    log.write_text("".join(f"{time} 0 {pid} {epoch} 0\n" for time, pid, epoch in steps))
    assert campaign._check_steps(PLANS[0], log, 0, 3.1) == 4.5
    with pytest.raises(campaign.Broken, match="went on with epoch 1, and the checkpoint of epoch 1"):
        campaign._check_steps(PLANS[0], log, 1, 3.1)


def test_a_checkpoint_with_other_weights_is_seen(tmp_path):
    runs.save(str(tmp_path), PLANS[0].epochs - 1, np.zeros((runs.WIDTH, 1)))
    with pytest.raises(campaign.Broken, match="weights differ by"):
        campaign._check_checkpoints(PLANS[0], [Checkpoint(str(tmp_path))], runs.RATE)


def test_the_eight_runs_have_eight_faults():
    faults = {plan.fault for plan in PLANS}
    assert len(faults) == 8 and {"kill node", "kill controller"} <= faults


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
