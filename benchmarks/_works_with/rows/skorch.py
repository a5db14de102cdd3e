"""skorch's `NeuralNetRegressor`

Group: Trainers in a TorchTrainer
Packages: skorch
Guess: all but epochs
Line: the module wrapped by `prepare_model`, and `iterator_train__sampler=DistributedSampler(…)`
"""

from ray.train.torch import prepare_model
from skorch import NeuralNetRegressor
from skorch.callbacks import Callback
from torch.optim import SGD
from torch.utils.data import DistributedSampler

from benchmarks._works_with import problem


class Report(Callback):
    def __init__(self, first):
        self.first = first

    def on_epoch_end(self, net, **others):
        epoch = self.first + len(net.history) - 1
        problem.report(epoch, net.history[-1]["train_loss"], net.module_)


def loop(config):
    model = problem.new_model(config["pause"])
    first = problem.resume(model)
    net = NeuralNetRegressor(
        prepare_model(model),
        optimizer=SGD,
        lr=problem.RATE,
        max_epochs=config["epochs"] - first,
        batch_size=problem.BATCH,
        iterator_train__sampler=DistributedSampler(problem.data(), shuffle=False),
        train_split=None,
        callbacks=[Report(first)],
        verbose=0,
    )
    net.fit(problem.X, problem.Y)
    return problem.weights_of_ranks(net.module_)
