"""The cost of a sweep: the recipe of lesson 05 against Ray's and Tune's defaults.

    .venv/bin/python -m benchmarks tune_sweep [--repeat 3] [--trials 32] [--json FILE]

In each round both ways sweep the digits, with the same seed, each in a process and a cluster of its own:

- recipe: as the lesson teaches it. A cluster of the lab, reused actors with `reset_config`, images put once,
  as many trials at a time as there are cores, the panel;
- defaults: `ray.init()`, no setting of the lab, and for each trial a process that imports and loads the
  images for itself.

The start of the cluster is not counted. The last line is ``tune_sweep: ratio=…``, seconds of the recipe over
those of the defaults.
"""

import contextlib
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import ray
import torch
from ray import cloudpickle, tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import _programs
from benchmarks._models import mlp, to_input
from benchmarks._paired import Results, measure, parser
from course import datasets
from labkit.local import cluster
from labkit.settings import Settings
from labkit.tune import SweepPanel


class Digits(tune.Trainable):
    """The trainable of lesson 05."""

    def setup(self, config, data=None):
        train, held_out = data or _data()
        self.rows = TensorDataset(to_input(train.images), torch.tensor(train.labels))
        self.held_out = TensorDataset(to_input(held_out.images), torch.tensor(held_out.labels))
        torch.set_num_threads(1)
        self.reset_config(config)

    def reset_config(self, config):
        self.model = mlp((32,), seed=0)
        self.optimizer = torch.optim.SGD(self.model.parameters(), **config)
        return True

    def step(self):
        for x, y in DataLoader(self.rows, batch_size=64, shuffle=True):
            self.optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
        x, y = self.held_out.tensors
        with torch.no_grad():
            return {"mean_accuracy": (self.model(x).argmax(1) == y).float().mean().item()}

    def save_checkpoint(self, folder):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, f"{folder}/state.pt")

    def load_checkpoint(self, folder):
        state = torch.load(f"{folder}/state.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def _data():
    """Load the rows for training and those that are held out."""
    whole = datasets.load(split="train")
    cut = len(whole) * 4 // 5
    return whole[:cut], whole[cut:]


def sweep(folder: str, *, trials: int, seed: int, recipe: bool) -> dict:
    """Make an ASHA sweep in the cluster of this process; return its seconds, best accuracy, processes."""
    trainable = Digits
    at_once = 0  # as many as fit
    began = time.perf_counter()
    if recipe:
        trainable = tune.with_parameters(Digits, data=_data())
        at_once = os.cpu_count()
    tuner = tune.Tuner(
        trainable,
        param_space={"lr": tune.loguniform(1e-3, 1), "momentum": tune.uniform(0, 0.95)},
        tune_config=tune.TuneConfig(
            metric="mean_accuracy",
            mode="max",
            num_samples=trials,
            scheduler=ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3),
            search_alg=BasicVariantGenerator(random_state=seed, max_concurrent=at_once),
            reuse_actors=recipe,
        ),
        run_config=tune.RunConfig(
            name=f"{seed}-{recipe}-{time.time_ns()}",
            storage_path=folder,
            stop={"training_iteration": 27},
        ),
    )
    with SweepPanel("benchmark-sweep").watch(tuner) if recipe else contextlib.nullcontext():
        grid = tuner.fit()
    seconds = time.perf_counter() - began
    table = grid.get_dataframe()
    return {
        "seconds": seconds,
        "accuracy": float(table["mean_accuracy"].max()),
        "processes": int(table["pid"].nunique()),
        "epochs": int(table["training_iteration"].sum()),
    }


def one_way(way: str, trials: int, seeds: Iterator[int]) -> dict[str, float]:
    """Measure a sweep in a process and a cluster of their own; `way` is "recipe" or "defaults"."""
    with tempfile.TemporaryDirectory(prefix="lkb", ignore_cleanup_errors=True) as home:
        if way == "recipe":
            environment = {**_programs.lab_environment(Path(home)), "LABKIT_PANEL": "widgets"}
        else:
            environment = _programs.stock_environment(Settings.from_env())
        path = [str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path)
        code = "from benchmarks import tune_sweep; tune_sweep.run_way()"
        command = ["-c", code, way, home, str(trials), str(next(seeds))]
        (done,) = _programs.run(command, environment)
    print(f"  {way}: {done['processes']} processes · {done['epochs']} epochs · best {done['accuracy']:.3f}")
    return {"sweep": done["seconds"]}


def run_way() -> None:
    """Make the sweep in the process that `one_way` starts."""
    way, home, trials, seed = sys.argv[1:]
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as from a notebook
    if way == "recipe":
        running = cluster.start()
    else:
        # A new one, in a folder of its own: plain ray.init() would look for a cluster that ran here before,
        # and for minutes where that is gone.
        running = ray.init(address="local", _temp_dir=home)
    with running:
        done = sweep(f"{home}/runs", trials=int(trials), seed=int(seed), recipe=way == "recipe")
    _programs.show(done)


def main() -> None:
    options = parser(__doc__, repeat=3)
    options.add_argument("--trials", type=int, default=32, help="of each ASHA sweep (default 32)")
    options = options.parse_args()
    results = Results("tune_sweep", ours="recipe")
    # Each way counts for itself, so that both have the same seed in a round.
    ways = {way: partial(one_way, way, options.trials, itertools.count()) for way in ("recipe", "defaults")}
    measure(ways, results, options.repeat)
    results.finish(results.ratio("sweep", "defaults"), json=options.json)


if __name__ == "__main__":
    main()
