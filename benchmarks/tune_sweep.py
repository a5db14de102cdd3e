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
import functools
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import _programs
from benchmarks._paired import Results, measure, parser
from course import datasets
from labkit.local import cluster
from labkit.settings import Settings


def make_trainable():
    """Define the `Digits` of lesson 05; in a function, so that it is pickled by value."""
    import torch
    from ray import tune
    from torch.utils.data import DataLoader, TensorDataset

    from benchmarks._models import mlp, to_input, train_epoch

    class Digits(tune.Trainable):
        def setup(self, config, data=None):
            train, held_out = data or _data()
            self.rows = TensorDataset(to_input(train.images), torch.tensor(train.labels))
            self.held_out = TensorDataset(to_input(held_out.images), torch.tensor(held_out.labels))
            torch.set_num_threads(1)
            self.reset_config(config)

        def reset_config(self, config):
            self.model = mlp((32,), seed=0)
            self.optimizer = torch.optim.SGD(
                self.model.parameters(), lr=config["lr"], momentum=config["momentum"]
            )
            self.epoch = 0
            return True

        def step(self):
            loader = DataLoader(self.rows, batch_size=64, shuffle=True)
            train_epoch(self.model, loader, torch.nn.functional.cross_entropy, self.optimizer)
            self.epoch += 1
            x, y = self.held_out.tensors
            with torch.no_grad():
                return {"mean_accuracy": (self.model(x).argmax(1) == y).float().mean().item()}

        def save_checkpoint(self, folder):
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(state | {"epoch": self.epoch}, f"{folder}/state.pt")

        def load_checkpoint(self, folder):
            state = torch.load(f"{folder}/state.pt", weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.epoch = state["epoch"]

    return Digits


def _data():
    """Load the rows for training and those that are held out."""
    whole = datasets.load(split="train")
    cut = len(whole) * 4 // 5
    return whole[:cut], whole[cut:]


def sweep(folder: str, *, trials: int, seed: int, recipe: bool) -> dict:
    """Make an ASHA sweep in the cluster of this process; return its seconds, best accuracy, processes."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.basic_variant import BasicVariantGenerator

    from labkit.tune import SweepPanel

    trainable = make_trainable()
    options = {}
    panel = SweepPanel("benchmark-sweep") if recipe else None
    at_once = os.cpu_count() if recipe else 0  # 0: as many as fit
    began = time.perf_counter()
    if recipe:
        trainable = tune.with_parameters(trainable, data=_data())
        options = {"reuse_actors": True}
    tuner = tune.Tuner(
        trainable,
        param_space={"lr": tune.loguniform(1e-3, 1), "momentum": tune.uniform(0, 0.95)},
        tune_config=tune.TuneConfig(
            metric="mean_accuracy",
            mode="max",
            num_samples=trials,
            scheduler=ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3),
            search_alg=BasicVariantGenerator(random_state=seed, max_concurrent=at_once),
            **options,
        ),
        run_config=tune.RunConfig(
            name=f"{seed}-{recipe}-{time.time_ns()}",
            storage_path=folder,
            stop={"training_iteration": 27},
        ),
    )
    with panel.watch(tuner) if panel else contextlib.nullcontext():
        grid = tuner.fit()
    seconds = time.perf_counter() - began
    table = grid.get_dataframe()
    return {
        "seconds": seconds,
        "accuracy": float(table["mean_accuracy"].max()),
        "processes": int(table["pid"].nunique()),
        "epochs": int(table["training_iteration"].sum()),
        "trials": len(grid),
    }


def one_way(way: str, *, trials: int, seed: int) -> dict:
    """Make a sweep in a process and a cluster of their own; `way` is "recipe" or "defaults"."""
    with tempfile.TemporaryDirectory(prefix="lkb", ignore_cleanup_errors=True) as home:
        if way == "recipe":
            environment = {**_programs.lab_environment(Path(home)), "LABKIT_PANEL": "widgets"}
        else:
            environment = _programs.stock_environment(Settings.from_env())
        path = [str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path)
        code = "from benchmarks import tune_sweep; tune_sweep.run_way()"
        (done,) = _programs.run(["-c", code, way, home, str(trials), str(seed)], environment)
    return done


def run_way() -> None:
    """Make the sweep in the process that `one_way` starts."""
    import ray
    from ray import cloudpickle

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


def compare(results: Results, *, trials: int, repeat: int, seed: int) -> None:
    """Measure recipe and defaults in turn, with a new seed for each round."""
    sweeps: dict[str, list[dict]] = {"recipe": [], "defaults": []}

    def sweep_by(way: str) -> dict[str, float]:
        done = one_way(way, trials=trials, seed=seed + len(sweeps[way]))
        sweeps[way].append(done)
        work = f"{done['processes']} processes · {done['epochs']} epochs"
        print(f"  {way}: {work} · best {done['accuracy']:.3f}")
        return {"sweep": done["seconds"]}

    measure({way: functools.partial(sweep_by, way) for way in sweeps}, results, repeat)
    results.details["sweeps"] = sweeps


def main() -> None:
    options = parser(__doc__, repeat=3)
    options.add_argument("--trials", type=int, default=32, help="of each ASHA sweep (default 32)")
    options.add_argument("--seed", type=int, default=0, help="of the first round (default 0)")
    options = options.parse_args()
    results = Results("tune_sweep", ours="recipe")
    compare(results, trials=options.trials, repeat=options.repeat, seed=options.seed)
    results.finish(results.ratio("sweep", "defaults"), json=options.json)


if __name__ == "__main__":
    main()
