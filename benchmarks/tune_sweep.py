"""What a sweep costs: the recipe of lesson 05 against Tune's defaults, and the panel beside 200 cheap trials.

    .venv/bin/python -m benchmarks tune_sweep [--trials 32] [--rounds 3] [--seed 0] [--cheap 200] [--json F]

Each round sweeps the digits twice, in turn, with the same seeds, each time in a process and a cluster of its
own (whose start is not counted): once as the lesson teaches (a cluster of the lab, reused actors with
`reset_config`, images put once, as many trials at a time as there are cores, the panel), and once with the
defaults of Ray and Tune: `ray.init()`, no setting of the lab, and for each trial a process that
imports and loads the images for itself. The figure is the median over the rounds of defaults / recipe. Then,
in a cluster of the lab, a sweep of cheap trials, with the widgets drawn: the panel's own
cost is the time that Tune's loop spent in its call-backs, and the CPU time of the thread that draws, over
the whole time; beside it the same sweep without a panel.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from labkit import cluster, datasets
from labkit.settings import Settings


def make_trainable():
    """The `Digits` of lesson 05; in a function, so that it travels by value."""
    import torch
    from ray import tune

    from labkit.torch_models import mlp
    from labkit.torch_states import load_state, save_state
    from labkit.torch_training import batches, evaluate, train_epoch

    class Digits(tune.Trainable):
        def setup(self, config, data=None):
            self.data = data or _data()
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
            rows = batches(*self.data["train"], size=64, seed=self.epoch)
            train_epoch(self.model, rows, torch.nn.functional.cross_entropy, self.optimizer)
            self.epoch += 1
            valid = batches(*self.data["valid"], size=512, shuffle=False)
            return {"mean_accuracy": evaluate(self.model, valid)["accuracy"]}

        def save_checkpoint(self, folder):
            save_state(folder, self.model, self.optimizer, self.epoch)

        def load_checkpoint(self, folder):
            self.epoch = load_state(folder, self.model, self.optimizer)["epoch"]

    return Digits


def _data():
    whole = datasets.load(split="train")
    cut = len(whole) * 4 // 5
    return {
        "train": (whole.images[:cut], whole.labels[:cut]),
        "valid": (whole.images[cut:], whole.labels[cut:]),
    }


def sweep(folder: str, *, trials: int, seed: int, recipe: bool) -> dict:
    """One ASHA sweep in the cluster of this process: seconds, best accuracy, processes."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.basic_variant import BasicVariantGenerator

    from labkit.sweep_panel import SweepPanel

    trainable, options, run = make_trainable(), {}, {}
    panel = SweepPanel("benchmark-sweep") if recipe else None
    began = time.perf_counter()
    if recipe:
        trainable = tune.with_parameters(trainable, data=_data())
        options, run = {"reuse_actors": True}, {"callbacks": [panel.callback()]}
    tuner = tune.Tuner(
        trainable,
        param_space={"lr": tune.loguniform(1e-3, 1), "momentum": tune.uniform(0, 0.95)},
        tune_config=tune.TuneConfig(
            metric="mean_accuracy",
            mode="max",
            num_samples=trials,
            scheduler=ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3),
            search_alg=BasicVariantGenerator(
                random_state=seed, max_concurrent=os.cpu_count() if recipe else 0
            ),
            **options,
        ),
        run_config=tune.RunConfig(
            name=f"{seed}-{recipe}-{time.time_ns()}",
            storage_path=folder,
            stop={"training_iteration": 27},
            **run,
        ),
    )
    with panel.watch(tuner) if panel else contextlib.nullcontext():
        results = tuner.fit()
    seconds = time.perf_counter() - began
    table = results.get_dataframe()
    return {
        "seconds": seconds,
        "accuracy": float(table["mean_accuracy"].max()),
        "processes": int(table["pid"].nunique()),
        "epochs": int(table["training_iteration"].sum()),
        "trials": len(results),
    }


def one_way(way: str, folder: str, *, trials: int, seed: int) -> dict:
    """A sweep in a process of its own, with a cluster of its own.

    Args:
        way: "recipe" in a cluster of the lab, or "defaults" after ``ray.init()``, without any
            setting of the lab.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "LABKIT_", "TUNE_"))}
    home = environment["BENCHMARK_HOME"] = tempfile.mkdtemp(prefix="lkb")
    if way == "recipe":
        environment |= {"LABKIT_HOME": home, "LABKIT_PANEL": "widgets"}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.tune_sweep", "--way", way]
    command += ["--folder", folder, "--seed", str(seed), "--trials", str(trials)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if done.returncode:
        raise SystemExit(f"{way} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def run_way(way: str, folder: str, *, trials: int, seed: int) -> None:
    """What `one_way` starts: its last line of output is the finding."""
    import ray

    if way == "recipe":
        running = cluster.start()
    else:
        # A new one, in a folder of its own: plain ray.init() would look for a cluster that ran here before,
        # and for minutes where that is gone.
        running = ray.init(address="local", _temp_dir=os.environ["BENCHMARK_HOME"])
    with running:
        print(json.dumps(sweep(folder, trials=trials, seed=seed, recipe=way == "recipe")))


def compare(folder: str, *, trials: int, rounds: int, seed: int) -> dict:
    """Recipe and defaults in turn; their order changes with each round."""
    taken: dict[str, list[dict]] = {"recipe": [], "defaults": []}
    for number in range(seed, seed + rounds):
        for way in list(taken)[:: 1 if number % 2 == 0 else -1]:
            done = one_way(way, folder, trials=trials, seed=number)
            taken[way].append(done)
            print(
                f"  {way:8} {done['seconds']:6.1f} s · {done['processes']} processes · "
                f"{done['epochs']} epochs · best {done['accuracy']:.3f}",
                flush=True,
            )
    ratios = [d["seconds"] / r["seconds"] for r, d in zip(taken["recipe"], taken["defaults"], strict=True)]
    return {"trials": trials, **taken, "ratios": ratios, "ratio": statistics.median(ratios)}


def cheap(folder: str, *, trials: int, panel) -> float:
    """Seconds of a sweep of trials that report three numbers each."""
    from ray import tune

    def climb(config):
        for step in range(3):
            tune.report({"score": config["x"] * step})

    tuner = tune.Tuner(
        climb,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            metric="score", mode="max", num_samples=trials, reuse_actors=True, max_concurrent_trials=2
        ),
        run_config=tune.RunConfig(
            name=f"cheap-{time.time_ns()}",
            storage_path=folder,
            verbose=0,
            callbacks=[panel.callback()] if panel else [],
        ),
    )
    began = time.perf_counter()
    with panel.watch(tuner) if panel else contextlib.nullcontext():
        tuner.fit()
    return time.perf_counter() - began


def cost(folder: str, *, trials: int, rounds: int) -> dict:
    """The panel's share of a sweep of cheap trials."""
    from labkit.sweep_panel import SweepCallback, SweepPanel

    spent = {"callbacks": 0.0, "drawing": 0.0}

    class Measured(SweepPanel):
        def callback(self):
            return MeasuredCallback(self.state.name)

        def _draw(self):
            super()._draw()
            spent["drawing"] = time.thread_time()  # the thread does nothing else, and ends here

    class MeasuredCallback(SweepCallback):
        def _tell(self, what, *args):
            began = time.perf_counter()
            super()._tell(what, *args)
            spent["callbacks"] += time.perf_counter() - began

    shares, walls = [], {"with": [], "without": []}
    for number in range(rounds):
        for kind in ("with", "without") if number % 2 == 0 else ("without", "with"):
            spent.update(callbacks=0.0, drawing=0.0)
            panel = Measured("benchmark-cheap") if kind == "with" else None
            with contextlib.redirect_stdout(io.StringIO()):
                seconds = cheap(folder, trials=trials, panel=panel)
            walls[kind].append(seconds)
            if panel is not None:
                shares.append(100 * (spent["callbacks"] + spent["drawing"]) / seconds)
                print(
                    f"  with     {seconds:6.1f} s · call-backs {spent['callbacks']:.3f} s · "
                    f"drawing {spent['drawing']:.3f} s · {shares[-1]:.2f} %",
                    flush=True,
                )
            else:
                print(f"  without  {seconds:6.1f} s", flush=True)
    return {"trials": trials, "share_percent": shares, "median_percent": statistics.median(shares), **walls}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=32, help="of each ASHA sweep; 0: none")
    parser.add_argument("--rounds", type=int, default=3, help="of each comparison")
    parser.add_argument("--cheap", type=int, default=200, help="cheap trials beside the panel; 0: none")
    parser.add_argument("--json", help="write the figures to this file, too")
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    for name in ("--way", "--folder"):  # of the process that runs one sweep
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        return run_way(options.way, options.folder, trials=options.trials, seed=options.seed)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        if options.trials:
            print(f"{options.trials} trials of ASHA on the digits, {options.rounds} rounds")
            found["sweep"] = compare(folder, trials=options.trials, rounds=options.rounds, seed=options.seed)
            print(f"  defaults / recipe: {found['sweep']['ratio']:.1f}")
        if options.cheap:
            print(f"{options.cheap} cheap trials")
            # The dearer of the two reporters: it draws. Tune's own output is off on both sides.
            os.environ.update(LABKIT_PANEL="widgets", RAY_AIR_NEW_OUTPUT="0")
            logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
            with cluster.start(settings=Settings.from_env()):
                found["panel"] = cost(folder, trials=options.cheap, rounds=options.rounds)
            print(f"  the panel's own cost: {found['panel']['median_percent']:.2f} % of the sweep")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
