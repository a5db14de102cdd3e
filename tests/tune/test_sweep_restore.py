"""A sweep whose notebook is killed is restored in the next one: nothing is lost or repeated."""

import random
import re
import time

import pytest

from kernels import kernel
from labkit.local.lab import Lab
from labkit.tune import trials
from labs import home as home_of_its_own

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/tune/"), pytest.mark.fault]

TRIALS, STEPS = 8, 10

SETUP = """
import os, tempfile, time
os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = "0"
from ray import tune
from labkit.local import cluster, storage
from labkit.tune import SweepPanel

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

class Witness(tune.Callback):
    # It writes down the trials that are over, when Tune has had its chance to do so.
    over = set()

    def on_step_end(self, iteration, trials, **_):
        new = {trial.config["x"] for trial in trials if trial.status == "TERMINATED"} - self.over
        with open(home + "/over", "a") as file:
            file.writelines(f"{x}\\n" for x in new)
        self.over |= new

store = storage.start()
path = store.storage_path("runs")
panel = SweepPanel("night")
"""
FIT = f"""
tuner = tune.Tuner(
    Count,
    param_space={{"x": tune.grid_search(list(range({TRIALS}))), "log": home + "/steps"}},
    tune_config=tune.TuneConfig(metric="count", mode="max", reuse_actors=True, max_concurrent_trials=2),
    run_config=tune.RunConfig(
        name="night",
        storage_path=path,
        storage_filesystem=store.filesystem,
        stop={{"training_iteration": {STEPS}}},
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        callbacks=[Witness()],
    ),
)
with panel.watch(tuner):
    tuner.fit()
"""
RESTORE = """
tuner = tune.Tuner.restore(path + "/night", trainable=Count, storage_filesystem=store.filesystem)
with panel.watch(tuner):
    results = tuner.fit()
print("counts", sorted(result.metrics["count"] for result in results), "errors", results.num_errors)
print("known", len(panel.state.trials), dict(panel.state.counts()), "best", panel.state.best.value)
print("rows", sorted(len(result.metrics_dataframe) for result in results))
"""


@pytest.fixture
def home():
    with home_of_its_own() as folder:
        yield folder
        Lab(folder).stop()


def steps(home):
    """(trial, step) in the order in which they were made."""
    return [tuple(map(int, line.split())) for line in lines(home / "steps")]


def over(home):
    """The trials that Tune has ended, and had its chance to write so."""
    return {int(line) for line in lines(home / "over")}


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def killed_in(home, code, *, when):
    """Run the sweep in a kernel, and kill that as soon as `when()`; how many steps were made by then."""
    with kernel(LABKIT_PANEL="text") as notebook:
        assert notebook.run(SETUP).error is None
        cell, deadline = notebook.begin(code), time.monotonic() + 300
        while not when():
            assert not cell.done and time.monotonic() < deadline, cell.text
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.1))
        notebook.kill()
    return len(steps(home))


def cut_off_the_files_of_tune(home):
    (state,) = home.rglob(f"night/{trials.SAVED}")
    files = [path for path in state.parent.iterdir() if re.search(r"state-.*\.(json|pkl)$", path.name)]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_sweep_that_is_killed_twice(home):
    """First with Tune's files cut off as a kill may leave them, and the cluster gone; then at any moment."""
    before = [killed_in(home, FIT, when=lambda: len(over(home)) >= 2)]
    done = [over(home)]
    Lab(home).stop()  # Tune finds files of a sweep in the folder of Ray's session, too
    cut_off_the_files_of_tune(home)
    more = random.randrange(4, 3 * STEPS)
    before.append(killed_in(home, RESTORE, when=lambda: len(steps(home)) >= before[0] + more))
    done.append(over(home))
    with kernel(LABKIT_PANEL="text") as last:
        assert last.run(SETUP).error is None
        cell = last.run(RESTORE, seconds=600)
        assert cell.error is None, cell.error
    assert f"counts {[STEPS] * TRIALS} errors 0" in cell.text, cell.text
    assert f"known {TRIALS} {{'finished': {TRIALS}}} best {STEPS}" in cell.text, cell.text
    made = steps(home)
    for first, finished in zip(before, done, strict=True):
        assert not [x for x, _ in made[first:] if x in finished], (more, "a finished trial ran again")
    for x in range(TRIALS):
        assert sorted({step for trial, step in made if trial == x}) == list(range(1, STEPS + 1))
    # Of each trial that was cut off: the step that was under way, and one whose checkpoint was.
    assert len(made) - TRIALS * STEPS <= 8, (more, "a trial that was cut off started over")
    # What a trial reported is kept, too. The steps that were under way may be missing or twice in its table.
    rows = [int(number) for number in re.search(r"rows \[(.*)\]", cell.text)[1].split(",")]
    assert len(rows) == TRIALS and min(rows) >= STEPS - 4, (more, rows)
