"""Lightning's `Trainer`, in TorchDistributor

Group: In TorchDistributor
Packages: lightning, pyspark
Asked: one model, one process, rows, steps, epochs
Guess: all but one process
Line: `devices=2` and `strategy="ddp"` in local mode; `devices=1, num_nodes=2` on executors
Note: Lightning shuffles the rows of several ranks, also of a loader that has no `shuffle=True`.
"""

import lightning
from torch.utils.data import DataLoader

from benchmarks._works_with import problem, sparked
from benchmarks._works_with.rows.lightning import Regression


def loop(epochs):
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Regression()
    trainer.fit(module, DataLoader(problem.data(), batch_size=problem.BATCH))
    return problem.weights_of_ranks(module)


def measured(storage):
    return sparked.measured(loop, "spark_lightning", problem.dealt)
