"""`HyperOptSearch`

Group: Searchers and schedulers of Ray Tune
Packages: hyperopt
Asked: resumes, trials, best
Guess: all
"""

from ray.tune.search.hyperopt import HyperOptSearch

from benchmarks._works_with import tuned


def options():
    return {"search_alg": HyperOptSearch(random_state_seed=0), "max_concurrent_trials": 2}


def measured(storage):
    return tuned.measured("hyperopt", storage, options)
