"""`JaxTrainer` on CPUs with its defaults

Group: Other trainers of Ray Train
Packages: jax
Asked: one model, one process, epochs
Guess: epochs
Line: see the row above
Note: Ray starts no group without a GPU or a TPU. Each worker sees one process, and trains on its own rows.
"""

from ray.train.v2.jax import JaxTrainer

from benchmarks._works_with import predicted
from benchmarks._works_with.rows import jax_trainer


def measured(storage):
    cpu = {"JAX_PLATFORMS": "cpu"}
    return predicted.measured(
        JaxTrainer, jax_trainer.loop, jax_trainer.in_one_process, "jax-default", storage, env_vars=cpu
    )
