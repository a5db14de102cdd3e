"""What the rows of Ray Tune share: a sweep of six trials, and the same sweep restored."""

from pathlib import Path
from typing import Any

from ray import tune

from labkit import runs
from labkit.panel.reporters import NullReporter
from labkit.tune import SweepPanel

TRIALS, REPORTS = 6, 4


class Parabola(tune.Trainable):
    """The loss of a trial is least at x = 3, and shrinks with each step."""

    def setup(self, config: dict) -> None:
        self.x, self.steps = config["x"], 0

    def step(self) -> dict:
        self.steps += 1
        return {"loss": (self.x - 3) ** 2 + 1 / self.steps}

    def save_checkpoint(self, folder: str) -> None:
        Path(folder, "steps").write_text(str(self.steps))

    def load_checkpoint(self, folder: str) -> None:
        self.steps = int(Path(folder, "steps").read_text())

    def reset_config(self, config: dict) -> bool:
        self.x = config["x"]
        return True


def measured(name: str, storage: Path, space: dict, **options: Any) -> dict[str, bool]:
    """Sweep; restore the sweep when it is over. `options` go to `TuneConfig`."""
    tuner = tune.Tuner(
        Parabola,
        param_space=space,
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=TRIALS, **options),
        run_config=tune.RunConfig(
            name=name, storage_path=str(storage), stop={"training_iteration": REPORTS}, verbose=0
        ),
    )
    with SweepPanel(name, reporter=NullReporter()).watch(tuner):
        results = tuner.fit()
    record = runs.latest(name)
    seen = {
        "trials": len(results) == TRIALS == len(record.extra["trials"]) and results.num_errors == 0,
        "best": record.metrics["loss"]
        == results.get_best_result(scope="all").metrics_dataframe["loss"].min(),
    }
    again = tune.Tuner.restore(str(storage / name), Parabola)
    restored = again.fit()
    seen["resumes"] = sorted(one.config["x"] for one in restored) == sorted(
        one.config["x"] for one in results
    )
    return seen
