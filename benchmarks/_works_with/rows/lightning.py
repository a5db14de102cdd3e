"""Lightning's `Trainer`

Group: Trainers in a TorchTrainer
Packages: lightning
Guess: all
Line: `strategy=RayDDPStrategy()`, `plugins=[RayLightningEnvironment()]`, and `prepare_trainer(trainer)`
Note: Lightning shuffles the rows of several ranks, also of a loader that has no `shuffle=True`. To keep
    the order, pass `use_distributed_sampler=False` and a `DistributedSampler` of your own.
"""

import lightning
import ray.train
import torch
from ray.train.lightning import (
    RayDDPStrategy,
    RayLightningEnvironment,
    RayTrainReportCallback,
    prepare_trainer,
)
from torch.utils.data import DataLoader

from benchmarks._works_with import problem


class Regression(lightning.LightningModule):
    def __init__(self, pause=0.0):
        super().__init__()
        self.model = problem.new_model(pause)

    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return problem.sgd(self.model)


def loop(config):
    trainer = lightning.Trainer(
        max_epochs=config["epochs"],
        accelerator="cpu",
        devices="auto",
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        callbacks=[RayTrainReportCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer = prepare_trainer(trainer)
    module = Regression(config["pause"])
    loader = DataLoader(problem.data(), batch_size=problem.BATCH)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            trainer.fit(module, loader, ckpt_path=f"{folder}/{RayTrainReportCallback.CHECKPOINT_NAME}")
    else:
        trainer.fit(module, loader)
    return problem.weights_of_ranks(module)
