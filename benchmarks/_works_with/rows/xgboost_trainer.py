"""`XGBoostTrainer`

Group: Other trainers of Ray Train
Packages: xgboost
Asked: one model, one process, epochs, loss, resumes
Guess: all but epochs
Missed: resumes
Note: A round is what the panel calls an epoch. The row gives `RayTrainReportCallback` the option
    `checkpoint_at_end=False`: without it, a resumed run reports its last round twice.
"""

import ray.train
import xgboost
from ray.train.xgboost import RayTrainReportCallback, XGBoostTrainer

from benchmarks._works_with import predicted, problem

OPTIONS = {"objective": "reg:squarederror", "tree_method": "hist", "max_depth": 2}


def loop(config):
    rows = problem.dealt(ray.train.get_context().get_world_rank())
    train = xgboost.DMatrix(problem.X[rows].numpy(), label=problem.Y[rows].numpy())
    checkpoint, model, left = ray.train.get_checkpoint(), None, config["epochs"]
    if checkpoint:
        model = RayTrainReportCallback.get_model(checkpoint)
        left -= model.num_boosted_rounds()
    model = xgboost.train(
        OPTIONS,
        train,
        num_boost_round=left,
        evals=[(train, "train")],
        xgb_model=model,
        callbacks=[RayTrainReportCallback({"loss": "train-rmse"}, frequency=1, checkpoint_at_end=False)],
    )
    problem.keep_predictions(config, model.predict(xgboost.DMatrix(problem.X.numpy())))


def in_one_process(rounds):
    """The predictions of one process, and its losses."""
    seen = {}
    train = xgboost.DMatrix(problem.X.numpy(), label=problem.Y.numpy())
    model = xgboost.train(
        OPTIONS, train, rounds, evals=[(train, "train")], evals_result=seen, verbose_eval=False
    )
    return model.predict(train), seen["train"]["rmse"]


def measured(storage):
    return predicted.measured(XGBoostTrainer, loop, in_one_process, "xgboost", storage)
