"""`HyperOptSearch`

Group: Searchers and schedulers of Ray Tune
Packages: hyperopt
Extra: yes
Guess: all
"""

from ray import tune
from ray.tune.search.hyperopt import HyperOptSearch

from benchmarks._works_with import tuned

SPACE = {"x": tune.uniform(0.0, 10.0)}


def options():
    return {"search_alg": HyperOptSearch(random_state_seed=0), "max_concurrent_trials": 2}


def measured(storage):
    return tuned.measured("hyperopt", storage, SPACE, options)
