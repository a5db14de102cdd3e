"""`LightGBMTrainer`

Group: Other trainers of Ray Train
Packages: lightgbm
Asked: one model, one process, epochs, resumes
Guess: all but epochs
Line: `"tree_learner": "data"` next to `**get_network_params()`
Note: Each rank finds the bins of some columns in its own rows, so the trees aren't those of one process,
    and the metric is of rank 0's rows. A round is what the panel calls an epoch.
"""

import lightgbm
import ray.train
from ray.train.lightgbm import LightGBMTrainer, RayTrainReportCallback, get_network_params

from benchmarks._works_with import predicted, problem

OPTIONS = {
    "objective": "regression",
    "metric": "rmse",
    "min_data_in_leaf": 4,
    "min_data_in_bin": 1,
    "num_leaves": 4,
    "verbose": -1,
    "num_threads": 1,
}


def train(config, options):
    """Train on the rows of a rank, with `options` that say how the ranks work together."""
    rows = problem.dealt(ray.train.get_context().get_world_rank())
    data = lightgbm.Dataset(problem.X[rows].numpy(), label=problem.Y[rows, 0].numpy())
    checkpoint, model, left = ray.train.get_checkpoint(), None, config["epochs"]
    if checkpoint:
        model = RayTrainReportCallback.get_model(checkpoint)
        left -= model.current_iteration()
    model = lightgbm.train(
        OPTIONS | options,
        data,
        num_boost_round=left,
        valid_sets=[data],
        valid_names=["train"],
        init_model=model,
        callbacks=[RayTrainReportCallback(metrics={"loss": "train-rmse"}, frequency=1)],
    )
    problem.keep_predictions(config, model.predict(problem.X.numpy()))


def loop(config):
    train(config, {"tree_learner": "data", "pre_partition": True, **get_network_params()})


def in_one_process(rounds):
    """The predictions of one process; its losses are not asked for."""
    data = lightgbm.Dataset(problem.X.numpy(), label=problem.Y[:, 0].numpy())
    model = lightgbm.train(OPTIONS, data, rounds)
    return model.predict(problem.X.numpy()), []


def measured(storage):
    return predicted.measured(LightGBMTrainer, loop, in_one_process, "lightgbm", storage)
