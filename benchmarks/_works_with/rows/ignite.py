"""PyTorch Ignite

Group: Trainers in a TorchTrainer
Packages: pytorch-ignite
Extra: yes
Guess: all
Line: `idist.auto_model`, `idist.auto_optim` and a `DistributedSampler` of your own
"""

import ignite.distributed as idist
import ray.train
import torch
from ignite.engine import Events, create_supervised_trainer
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks._works_with import problem


def loop(config):
    model = problem.new_model(config["pause"])
    first = 0
    if state := problem.load():
        model.load_state_dict(state["model"])
        first = state["epoch"] + 1
    model = idist.auto_model(model)
    optimizer = idist.auto_optim(problem.sgd(model))
    data = problem.data()
    loader = DataLoader(data, batch_size=problem.BATCH, sampler=DistributedSampler(data, shuffle=False))
    trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.mse_loss)

    @trainer.on(Events.EPOCH_COMPLETED)
    def report(engine):
        epoch = first + engine.state.epoch - 1
        checkpoint = problem.save(epoch, model=model.module.state_dict())
        ray.train.report({"loss": engine.state.output, "epoch": epoch}, checkpoint=checkpoint)

    trainer.run(loader, max_epochs=config["epochs"] - first)
    return problem.weights_of_ranks(model)
