"""torchtnt's `AutoUnit`

Group: Trainers in a TorchTrainer
Packages: torchtnt
Guess: all
Line: `strategy="ddp"`, `device=torch.device("cpu")` and a `DistributedSampler` of your own
"""

import torch
from torch.utils.data import DataLoader, DistributedSampler
from torchtnt.framework.auto_unit import AutoUnit
from torchtnt.framework.train import train

from benchmarks._works_with import problem


class Regression(AutoUnit):
    def __init__(self, model, first):
        super().__init__(module=model, device=torch.device("cpu"), strategy="ddp")
        self.first = first

    def compute_loss(self, state, data):
        x, y = data
        output = self.module(x)
        return torch.nn.functional.mse_loss(output, y), output

    def configure_optimizers_and_lr_scheduler(self, module):
        return problem.sgd(module), None

    def on_train_step_end(self, state, data, step, results):
        self.loss = results.loss.item()

    def on_train_epoch_end(self, state):
        super().on_train_epoch_end(state)
        epoch = self.first + self.train_progress.num_epochs_completed - 1
        problem.report(epoch, self.loss, self.module)


def loop(config):
    model = problem.new_model(config["pause"])
    first = problem.resume(model)
    data = problem.data()
    loader = DataLoader(data, batch_size=problem.BATCH, sampler=DistributedSampler(data, shuffle=False))
    unit = Regression(model, first)
    train(unit, loader, max_epochs=config["epochs"] - first)
    return problem.weights_of_ranks(unit.module)
