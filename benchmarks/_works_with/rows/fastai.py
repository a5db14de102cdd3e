"""fastai's `Learner`

Group: Trainers in a TorchTrainer
Packages: fastai
Guess: all but loss
Line: the model wrapped by `prepare_model`, and a loader with a `DistributedSampler`: `distrib_ctx`
    needs a GPU
"""

from fastai.basics import DataLoaders, Learner, OptimWrapper
from fastai.callback.core import Callback
from fastai.callback.progress import ProgressCallback
from ray.train.torch import prepare_model
from torch.nn.functional import mse_loss
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks._works_with import problem


class Report(Callback):
    def __init__(self, first):
        self.first = first

    def after_step(self):
        self.train_loss = self.loss.item()

    def after_epoch(self):
        epoch = self.first + self.epoch
        problem.report(epoch, self.train_loss, self.model)


def loop(config):
    model = problem.new_model(config["pause"])
    first = problem.resume(model)
    data = problem.data()
    loader = DataLoader(data, batch_size=problem.BATCH, sampler=DistributedSampler(data, shuffle=False))
    learner = Learner(
        DataLoaders(loader, DataLoader(data, batch_size=64)),
        prepare_model(model),
        loss_func=mse_loss,
        opt_func=lambda parameters, **options: OptimWrapper(parameters, SGD, lr=problem.RATE),
        cbs=[Report(first)],
    )
    learner.remove_cb(ProgressCallback)
    with learner.no_logging():
        learner.fit(config["epochs"] - first, lr=problem.RATE)
    return problem.weights_of_ranks(learner.model)
