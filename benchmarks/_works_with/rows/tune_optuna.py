"""`OptunaSearch`

Group: Searchers and schedulers of Ray Tune
Packages: optuna
Guess: all
"""

from ray import tune
from ray.tune.search.optuna import OptunaSearch

from benchmarks._works_with import tuned

SPACE = {"x": tune.uniform(0.0, 10.0)}


def options():
    return {"search_alg": OptunaSearch(seed=0), "max_concurrent_trials": 2}


def measured(storage):
    return tuned.measured("optuna", storage, SPACE, options)
