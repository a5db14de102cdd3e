"""`PB2`

Group: Searchers and schedulers of Ray Tune
Packages: scikit-learn
Asked: resumes, trials, best
Guess: all
Note: It needs `scikit-learn`, which Ray doesn't install.
"""

from ray.tune.schedulers.pb2 import PB2

from benchmarks._works_with import tuned


def options():
    return {"scheduler": PB2(perturbation_interval=1, hyperparam_bounds={"x": [0.0, 10.0]})}


def measured(storage):
    return tuned.measured("pb2", storage, options)
