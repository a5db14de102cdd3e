# %% [markdown]
# # A searcher that learns
#
# Random search forgets what it has seen. A **searcher** looks at the results so far and proposes the next configuration. You'll let Optuna, a library for that, search a learning rate, and see at which trial its proposals begin.
#
# You need lesson 05.

# %%
from labkit.local import cluster
from labkit.settings import Settings

lab = cluster.start()
folder = str(Settings.from_env().home / "runs" / "recipe-searcher")

# %% [markdown]
# A stand-in for training: the loss is smallest at a learning rate of 0.05, and it doesn't depend on the momentum.

# %%
import math

from ray import tune


def train(config):
    tune.report({"loss": (math.log10(config["lr"]) - math.log10(0.05)) ** 2})


# %% [markdown]
# Optuna's default method, TPE, draws the first ten trials at random before it proposes anything. `n_startup_trials=5` lets it begin sooner. It learns only from trials that have finished, so
# `ConcurrencyLimiter` lets one run at a time: with a hundred at a time it would learn nothing.

# %%
import optuna
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch

optuna.logging.set_verbosity(optuna.logging.ERROR)
sampler = optuna.samplers.TPESampler(n_startup_trials=5, seed=0)
searcher = ConcurrencyLimiter(OptunaSearch(sampler=sampler), max_concurrent=1)

# %%
tuner = tune.Tuner(
    train,
    param_space={"lr": tune.loguniform(1e-4, 1), "momentum": tune.uniform(0, 0.95)},
    tune_config=tune.TuneConfig(
        metric="loss", mode="min", num_samples=30, search_alg=searcher, reuse_actors=True
    ),
    run_config=tune.RunConfig(storage_path=folder, verbose=0),
)
results = tuner.fit()

# %%
rates = [result.config["lr"] for result in results]
losses = [result.metrics["loss"] for result in results]
print("at random:", [f"{rate:.3f}" for rate in rates[:5]])
print("proposed: ", [f"{rate:.3f}" for rate in rates[5:]])

# %% [markdown]
# Most of the later proposals are near the good learning rate, and a few explore far away from it. Is it worth it? With ten trials, chance is often as good. A searcher is worth it when each trial is expensive and you can afford
# several dozen of them, one after the other. ASHA, on the other hand, likes many trials at a time.

# %% tags=["claim"]
from statistics import median

assert len(results) == 30 and results.num_errors == 0
assert median(losses[15:]) < median(losses[:5])

# %%
lab.stop()
