"""PyTorch Ignite

Group: Trainers in a TorchTrainer
Packages: pytorch-ignite
Guess: all
Line: `idist.auto_model`, `idist.auto_optim` and a `DistributedSampler` of your own
"""

import ignite.distributed as idist
import torch
from ignite.engine import Events, create_supervised_trainer
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks._works_with import problem


def loop(config):
    model = problem.new_model(config["pause"])
    first = problem.resume(model)
    model = idist.auto_model(model)
    optimizer = idist.auto_optim(problem.sgd(model))
    data = problem.data()
    loader = DataLoader(data, batch_size=problem.BATCH, sampler=DistributedSampler(data, shuffle=False))
    trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.mse_loss)

    @trainer.on(Events.EPOCH_COMPLETED)
    def report(engine):
        epoch = first + engine.state.epoch - 1
        problem.report(epoch, engine.state.output, model)

    trainer.run(loader, max_epochs=config["epochs"] - first)
    return problem.weights_of_ranks(model)
