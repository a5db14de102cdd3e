"""`OptunaSearch`

Group: Searchers and schedulers of Ray Tune
Packages: optuna
Asked: resumes, trials, best
Guess: all
"""

from ray.tune.search.optuna import OptunaSearch

from benchmarks._works_with import tuned


def options():
    return {"search_alg": OptunaSearch(seed=0), "max_concurrent_trials": 2}


def measured(storage):
    return tuned.measured("optuna", storage, options)
