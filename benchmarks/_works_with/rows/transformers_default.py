"""transformers' `Trainer` with its defaults

Group: Trainers in a TorchTrainer
Packages: transformers, accelerate
Asked: one model, one process, epochs
Guess: epochs
Line: see the row above
Note: On CPUs each worker trains a model of its own, on all rows, and the panel says so.
"""

import ray.train

from benchmarks._works_with import problem
from benchmarks._works_with.rows.transformers_cpu import Report, new_trainer


def loop(config):
    rank = ray.train.get_context().get_world_rank()
    trainer = new_trainer(config["epochs"], callbacks=[Report()], save_strategy="epoch", seed=rank)
    trainer.train()
    return problem.weights_of_ranks(trainer.model)
