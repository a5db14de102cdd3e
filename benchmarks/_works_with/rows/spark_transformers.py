"""transformers' `Trainer` with `use_cpu=True`, in TorchDistributor

Group: In TorchDistributor
Packages: transformers, pyspark
Asked: all but resumes, stop
Guess: all
Line: `TrainingArguments(use_cpu=True)` on CPUs
"""

from benchmarks._works_with import problem, sparked
from benchmarks._works_with.rows.transformers_cpu import new_trainer


def loop(epochs):
    trainer = new_trainer(epochs, use_cpu=True, train_sampling_strategy="sequential", save_strategy="no")
    trainer.train()
    return problem.weights_of_ranks(trainer.model)


def measured(storage):
    return sparked.measured(loop, "spark_transformers", problem.in_batches)
