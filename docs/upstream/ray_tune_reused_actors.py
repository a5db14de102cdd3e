"""Short trials on reused actors, two at a time: most of them run one at a time. A minute.

.venv/bin/python docs/upstream/ray_tune_reused_actors.py
"""

import logging
import os
import tempfile

import ray
from ray import tune

TRIALS = 60
os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
logging.getLogger("ray.tune").setLevel(logging.ERROR)


def short(config: dict) -> None:
    """A trial that is over before another actor could start."""
    tune.report({"score": config["x"], "process": os.getpid()})


def sweep(at_once: int, folder: str) -> str:
    """Run the trials; how long the second half of them took, and in how many processes."""
    tuner = tune.Tuner(
        short,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=TRIALS,
            max_concurrent_trials=at_once,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(name=f"at-once-{at_once}", storage_path=folder, verbose=0),
    )
    table = tuner.fit().get_dataframe().sort_values("timestamp")
    later = table.tail(TRIALS // 2)
    seconds = later["timestamp"].max() - later["timestamp"].min()
    return f"the second half took {seconds} s in {later['process'].nunique()} process(es)"


with tempfile.TemporaryDirectory() as folder:
    print(f"ray {ray.__version__}; expected: two at a time run in 2 processes to the end")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    for at_once in (1, 2):
        print(f"{TRIALS} trials, {at_once} at a time: {sweep(at_once, folder)}", flush=True)
    ray.shutdown()
