"""A sweep whose notebook is killed, and what becomes of it in the next one."""

import re
import time

import pytest
from kernels import kernel
from labs import home as home_of_its_own

from labkit.processes import Registry

pytestmark = pytest.mark.fault

TRIALS, STEPS = 8, 10

SETUP = """
import os, tempfile, time
os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = "0.5"
from ray import tune
from labkit import cluster
from labkit.sweep_panel import SweepPanel

home = os.environ["LABKIT_HOME"]
lab = cluster.start()

class Count(tune.Trainable):
    def setup(self, config):
        self.reset_config(config)

    def reset_config(self, config):
        self.config, self.count = config, 0
        return True

    def step(self):
        time.sleep(0.1)
        self.count += 1
        with open(self.config["log"], "a") as log:
            log.write(f"{self.config['x']} {self.count}\\n")
        return {"count": self.count}

    def save_checkpoint(self, folder):
        with open(f"{folder}/count", "w") as file:
            file.write(str(self.count))

    def load_checkpoint(self, folder):
        with open(f"{folder}/count") as file:
            self.count = int(file.read())

panel = SweepPanel("night")
"""
FIT = f"""
tuner = tune.Tuner(
    Count,
    param_space={{"x": tune.grid_search(list(range({TRIALS}))), "log": home + "/steps"}},
    tune_config=tune.TuneConfig(metric="count", mode="max", reuse_actors=True, max_concurrent_trials=2),
    run_config=tune.RunConfig(
        name="night",
        storage_path=home + "/runs",
        stop={{"training_iteration": {STEPS}}},
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        callbacks=[panel.callback()],
    ),
)
with panel.watch(tuner):
    tuner.fit()
"""
RESTORE = """
tuner = tune.Tuner.restore(home + "/runs/night", trainable=Count)
with panel.watch(tuner):
    results = tuner.fit()
print("counts", sorted(result.metrics["count"] for result in results), "errors", results.num_errors)
print("known", len(panel.state.trials), dict(panel.state.counts()), "best", panel.state.best.best)
print("before", sorted(t.number for t in panel.state.trials.values() if t.why == "before the restart"))
"""


@pytest.fixture
def home():
    with home_of_its_own() as folder:
        yield folder
        Registry(folder).stop_all()


def steps(home):
    log = home / "steps"
    return [tuple(map(int, line.split())) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.timeout(240)
def test_a_killed_kernel_and_the_next_one(home):
    with kernel(LABKIT_PANEL="text") as first:
        assert first.run(SETUP).error is None
        cell = first.begin(FIT)
        # Some are finished in the eyes of the reader: so the panel says.
        first.wait(cell, until=f" of {TRIALS} · ", seconds=90)
        first.kill()
    before = steps(home)
    done = {x for x, step in before if step == STEPS}
    assert 2 <= len(done) < TRIALS, before  # in mid-sweep
    with kernel(LABKIT_PANEL="text") as second:
        assert second.run(SETUP).error is None
        cell = second.run(RESTORE, seconds=120)
        assert cell.error is None, cell.error
    assert f"counts {[STEPS] * TRIALS} errors 0" in cell.text, cell.text
    assert f"known {TRIALS} {{'finished': {TRIALS}}} best {STEPS}" in cell.text
    told = {int(number) for number in re.search(r"before \[(.+)\]", cell.text)[1].split(",")}
    after = steps(home)[len(before) :]
    assert told and told <= done
    assert not [x for x, _ in after if x in told], "a finished trial ran again"
    # Nothing is lost: every trial has made each of its steps, and what was cut off went on where it was.
    for x in range(TRIALS):
        assert sorted({step for trial, step in steps(home) if trial == x}) == list(range(1, STEPS + 1))
    repeated = len(steps(home)) - TRIALS * STEPS
    assert repeated <= 4, "a trial that was cut off began anew"


def test_how_far_a_sweep_is_can_be_asked(home):
    """The errors that people meet: a path without a sweep, and a trainable of another name."""
    from ray import tune

    assert not tune.Tuner.can_restore(str(home / "nothing"))
    with pytest.raises(FileNotFoundError, match=r"tuner\.pkl"):
        tune.Tuner.restore(str(home / "nothing"), trainable=time.sleep)
