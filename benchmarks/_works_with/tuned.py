"""What the rows of Ray Tune share: a sweep of six trials, and one that is stopped and restored."""

import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from ray import tune

from benchmarks._works_with.measure import until
from labkit import runs
from labkit.errors import RunFailed, RunStopped
from labkit.panel.reporters import NullReporter
from labkit.tune import SweepPanel

TRIALS, REPORTS = 6, 4


class Parabola(tune.Trainable):
    """The loss of a trial is least at x = 3, and shrinks with each step."""

    def setup(self, config: dict) -> None:
        self.x, self.steps = config["x"], 0

    def step(self) -> dict:
        self.steps += 1
        time.sleep(0.2)  # so that a sweep can be stopped
        return {"loss": (self.x - 3) ** 2 + 1 / self.steps}

    def save_checkpoint(self, folder: str) -> None:
        Path(folder, "steps").write_text(str(self.steps))

    def load_checkpoint(self, folder: str) -> None:
        self.steps = int(Path(folder, "steps").read_text())

    def reset_config(self, config: dict) -> bool:
        self.x = config["x"]
        return True


def measured(name: str, storage: Path, new_options: Callable) -> dict[str, bool]:
    """Sweep to the end; then stop a second sweep and restore it.

    Args:
        new_options: return options of `TuneConfig`; a searcher belongs to one sweep.
    """

    def tuner(name: str) -> tune.Tuner:
        return tune.Tuner(
            Parabola,
            param_space={"x": tune.uniform(0.0, 10.0)},
            tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=TRIALS, **new_options()),
            run_config=tune.RunConfig(
                name=name, storage_path=str(storage), stop={"training_iteration": REPORTS}, verbose=0
            ),
        )

    whole = tuner(name)
    with SweepPanel(name, reporter=NullReporter()).watch(whole):
        results = whole.fit()
    record = runs.latest(name)
    trials = len(results) == TRIALS == len(record.extra["trials"]) and results.num_errors == 0
    name += "-stopped"
    return {
        "trials": trials,
        "best": record.metrics["loss"] == results.get_best_result().metrics["loss"],
        "resumes": _resumes(tuner(name), name, storage),
    }


def _resumes(tuner: tune.Tuner, name: str, storage: Path) -> bool:
    """Stop a sweep when two trials are over, restore it, and say whether it makes the others."""
    panel = SweepPanel(name, reporter=NullReporter())

    def stop() -> None:
        until(lambda: panel.state.done >= 2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=stop, daemon=True).start()
    try:
        with panel.watch(tuner):
            tuner.fit()
    except RunStopped:
        pass
    before = _finished(panel)
    restored = tune.Tuner.restore(str(storage / name), Parabola)
    panel = SweepPanel(name, reporter=NullReporter())
    try:
        with panel.watch(restored):
            results = restored.fit()
    except RunFailed:
        traceback.print_exc()
        return False
    after = _finished(panel)
    return 2 <= len(before) < TRIALS == len(results) == len(panel.state.trials) and before <= after


def _finished(panel: SweepPanel) -> set[tuple[str, float]]:
    """Return the trials that have ended by themselves, with what they tried."""
    trials = panel.state.trials.items()
    return {(id, trial.config["x"]) for id, trial in trials if trial.status in ("finished", "stopped early")}
