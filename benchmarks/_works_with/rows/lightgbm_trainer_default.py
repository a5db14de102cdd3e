"""`LightGBMTrainer` with `get_network_params()` alone

Group: Other trainers of Ray Train
Packages: lightgbm
Asked: one model, one process, epochs
Guess: epochs
Line: see the row above
Note: LightGBM's `tree_learner` is `"serial"` unless it is set, so each rank fits a model of its own rows.
"""

from ray.train.lightgbm import LightGBMTrainer, get_network_params

from benchmarks._works_with import predicted
from benchmarks._works_with.rows import lightgbm_trainer


def loop(config):
    lightgbm_trainer.train(config, get_network_params())


def measured(storage):
    in_one_process = lightgbm_trainer.in_one_process
    return predicted.measured(LightGBMTrainer, loop, in_one_process, "lightgbm-default", storage)
