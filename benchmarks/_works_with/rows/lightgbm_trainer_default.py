"""`LightGBMTrainer` with `get_network_params()` alone

Group: Other trainers of Ray Train
Packages: lightgbm
Extra: yes
Asked: one model, one process, epochs
Guess: epochs
Line: see the row above
Note: LightGBM's `tree_learner` is `"serial"` unless it is set, so each rank fits a model of its own rows.
"""

import lightgbm
import ray.train
from ray.train.lightgbm import LightGBMTrainer, RayTrainReportCallback, get_network_params

from benchmarks._works_with import predicted, problem
from benchmarks._works_with.rows import lightgbm_trainer


def loop(config):
    rows = problem.dealt(ray.train.get_context().get_world_rank())
    train = lightgbm.Dataset(problem.X[rows].numpy(), label=problem.Y[rows, 0].numpy())
    model = lightgbm.train(
        {**lightgbm_trainer.OPTIONS, **get_network_params()},
        train,
        num_boost_round=config["epochs"],
        valid_sets=[train],
        valid_names=["train"],
        callbacks=[RayTrainReportCallback(metrics={"loss": "train-rmse"}, frequency=1)],
    )
    problem.keep_predictions(config, model.predict(problem.X.numpy()))


def measured(storage):
    in_one_process = lightgbm_trainer.in_one_process
    return predicted.measured(LightGBMTrainer, loop, in_one_process, "lightgbm-default", storage)
