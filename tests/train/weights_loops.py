"""Loops of two ranks that train one model, and loops that don't; `test_weights.py` runs them.

    RANK=0 WORLD_SIZE=2 … python weights_loops.py FILE NAME…

writes the events of each loop into FILE. A loop trains three epochs and knows nothing of the panel.
"""

import contextlib
import copy
import json
import os
import sys

import torch
from torch import distributed, nn
from torch.distributed.algorithms.join import Join
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as Wrapper
from torch.utils.data import DataLoader, TensorDataset

from labkit.worker import Tracker
from labkit.worker.events import Worker, encode
from labkit.worker.hooks import following

RANK = int(os.environ.get("RANK", 0))
EPOCHS = 3


def network(seed=0, *, width=8):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))


def loader(rows=32, *, first=0):
    """The rows of this rank."""
    torch.manual_seed(100 + RANK + first)
    return DataLoader(TensorDataset(torch.rand(rows, 4), torch.rand(rows, 1)), batch_size=8)


def sgd(*models, lr=0.1, **options):
    parts = [part for model in models for part in model.parameters() if part.requires_grad]
    return torch.optim.SGD(parts, lr=lr, **options)


def average(model):
    """Average the gradients of both ranks by hand."""
    for part in model.parameters():
        distributed.all_reduce(part.grad)
        part.grad /= 2


def average_weights(model):
    for part in model.parameters():
        distributed.all_reduce(part.data)
        part.data /= 2


def train(model, optimizer=None, *, rows=None, exchange=None, after=None, each_epoch=None, epochs=EPOCHS):
    """Train `model`; the three functions are called after a backward pass, a step and an epoch."""
    optimizer, rows = optimizer or sgd(model), rows or loader()
    for epoch in range(epochs):
        for x, y in rows:
            loss = mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            if exchange:
                exchange(model)
            optimizer.step()
            if after:
                after(model)
        if each_epoch:
            each_epoch(model, epoch)
    return model


# -- loops that train another model than the reader means -------------------------------------------------


def not_wrapped():
    train(network())


def not_wrapped_other_seeds():
    train(network(RANK))


def not_wrapped_one_epoch():
    train(network(), epochs=1, each_epoch=lambda _, epoch: REPORTS[0]({"epoch": epoch}))


def models_one_after_another():
    """As in a cross-validation: what is gone leaves its place in memory to the next one."""
    for seed in range(4):
        train(network(seed))


def not_wrapped_but_a_metric_is_reduced():
    train(network(), each_epoch=lambda *_: distributed.all_reduce(torch.ones(1)))


def wrapped_and_the_inner_model_trained():
    train(Wrapper(network()).module)


def no_sync_in_each_step():
    model = Wrapper(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
    with model.no_sync():
        train(model)


def a_second_model_outside():
    first, second = Wrapper(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))), network(width=3)
    second[0] = nn.Linear(8, 3)
    train(nn.Sequential(first, second))


def a_parameter_added_later():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.scale = network(), None

        def forward(self, x):
            return self.inner(x) * (1.0 if self.scale is None else self.scale)

    model = Wrapper(Scaled())
    del model.module.scale
    model.module.scale = nn.Parameter(torch.ones(1))
    train(model)


def unfrozen_later():
    model = network()
    model[0].requires_grad_(False)
    model = Wrapper(model)
    model.module[0].requires_grad_(True)
    train(model)


def averaged_from_other_weights():
    train(network(RANK), exchange=average)


def another_learning_rate():
    model = Wrapper(network())
    train(model, sgd(model, lr=0.1 * (1 + RANK)))


def loaded_on_one_rank():
    model = Wrapper(network())
    if RANK == 0:
        model.module.load_state_dict(network(7).state_dict())
    train(model)


def loaded_on_one_rank_in_the_middle():
    def load(model, epoch):
        if epoch == 0 and RANK == 0:
            model.module.load_state_dict(network(7).state_dict())

    train(Wrapper(network()), each_epoch=load)


def frozen_features_of_each_rank():
    class Random(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 1)

        def forward(self, x):
            return self.head(x @ self.features)

    torch.manual_seed(0)
    model = Wrapper(Random())
    torch.manual_seed(RANK)
    model.module.features = nn.Parameter(torch.rand(4, 8), requires_grad=False)
    train(model)


def averaged_in_part():
    def of_the_head(model):
        average(model[2])

    train(network(), exchange=of_the_head)


def without_a_loader():
    model = network()
    optimizer = sgd(model)
    torch.manual_seed(RANK)
    x, y = torch.rand(32, 4), torch.rand(32, 1)
    for epoch in range(EPOCHS):
        for first in range(0, 32, 8):
            optimizer.zero_grad()
            mse_loss(model(x[first : first + 8]), y[first : first + 8]).backward()
            optimizer.step()
        REPORTS[0]({"epoch": epoch})


NONE = "no gradients are exchanged"
PLANTED = {
    not_wrapped: rf"{NONE}, so each .*Wrap the model .*model = ray\.train\.torch\.prepare_model\(model\)",
    not_wrapped_other_seeds: NONE,
    not_wrapped_one_epoch: NONE,
    models_one_after_another: NONE,
    not_wrapped_but_a_metric_is_reduced: NONE,
    wrapped_and_the_inner_model_trained: rf"{NONE}.*instead of model\.module\(x\)",
    no_sync_in_each_step: rf"{NONE}.*outside of no_sync\(\)",
    a_second_model_outside: r"gradients of .*\(3, 8\).* aren't averaged.*wrap each model",
    a_parameter_added_later: r"gradients of scale aren't averaged.*added to a model",
    unfrozen_later: r"gradients of 0\.weight and 0\.bias aren't averaged.*requires_grad=True",
    averaged_from_other_weights: r"although they average.*before the first step\. Call torch\.manual_seed",
    another_learning_rate: r"although they average.* were the same before.*learning rate",
    loaded_on_one_rank: r"although they average.*differed before the first step.*load weights on all ranks",
    loaded_on_one_rank_in_the_middle: r"although they average.*change weights in the loop on all ranks",
    frozen_features_of_each_rank: r"features differ and aren't trained",
    averaged_in_part: r"gradients of a tensor of shape \(8, 4\) and .* aren't averaged\. Average those",
    without_a_loader: NONE,
}


# -- loops that are right ---------------------------------------------------------------------------------


def wrapped():
    train(Wrapper(network(RANK)))


def averaged_by_hand():
    train(network(), exchange=average)


def batch_norm():
    train(Wrapper(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))))


def synchronized_batch_norm():
    """On CPUs it runs only in eval mode and without the wrapper."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    train(model.eval(), exchange=average)


def sharded():
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model)
    train(model)


def sharded_first_version():
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.manual_seed(0)
    model = FullyShardedDataParallel(
        nn.Linear(4, 2, bias=False), use_orig_params=True, device_id=torch.device("cpu")
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer)


def accumulated():
    model = Wrapper(network())
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(loader()):
            steps = number % 2 == 1
            with contextlib.nullcontext() if steps else model.no_sync():
                (mse_loss(model(x), y) / 2).backward()
            if steps:
                optimizer.step()
                optimizer.zero_grad()


def moving_average():
    model = Wrapper(network())
    smooth = torch.optim.swa_utils.AveragedModel(model.module)
    train(model, after=lambda model: smooth.update_parameters(model.module))


def moving_average_swapped_in():
    """Validate with the average, and put the weights back."""
    model = Wrapper(network())
    smooth = copy.deepcopy(model.module)

    def validate(model, _):
        own = copy.deepcopy(model.module.state_dict())
        model.module.load_state_dict(smooth.state_dict())
        model.module.load_state_dict(own)

    train(model, each_epoch=validate)


def two_optimizers():
    model = Wrapper(network())
    first, second = sgd(model.module[0]), torch.optim.Adam(model.module[2].parameters())
    for _ in range(EPOCHS):
        for x, y in loader():
            mse_loss(model(x), y).backward()
            for optimizer in (first, second):
                optimizer.step()
                optimizer.zero_grad()


def frozen_backbone():
    model = network()
    model[0].requires_grad_(False)
    model = Wrapper(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def weights_averaged_each_epoch():
    train(network(), each_epoch=lambda model, _: average_weights(model))


def weights_averaged_after_a_report():
    def report_and_average(model, epoch):
        REPORTS[0]({"epoch": epoch})
        average_weights(model)

    train(network(), each_epoch=report_and_average, epochs=1)


def weights_averaged_from_other_seeds():
    train(network(RANK), each_epoch=lambda model, _: average_weights(model))


def weights_averaged_now_and_then():
    """Local SGD: every third step, so epochs of four steps end with different weights."""
    steps = []

    def every_third(model):
        steps.append(1)
        if len(steps) % 3 == 0:
            average_weights(model)

    train(network(), after=every_third)


def post_local_sgd():
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    model = network()
    train(model, PostLocalSGDOptimizer(sgd(model), PeriodicModelAverager(period=3, warmup_steps=0)))


def gossip():
    """Each step mixes the weights a bit with those of the other rank."""

    def mix(model):
        for part in model.parameters():
            other = part.detach().clone()
            distributed.all_reduce(other)
            part.data.mul_(0.8).add_(other / 2, alpha=0.2)

    train(network(), after=mix)


class Together(torch.autograd.Function):
    """The sum over both ranks, whose gradient is passed on unchanged."""

    @staticmethod
    def forward(context, x):
        x = x.clone()
        distributed.all_reduce(x)
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient


class Split(torch.autograd.Function):
    """The same value for both ranks, whose gradients are added."""

    @staticmethod
    def forward(context, x):
        return x

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.clone()
        distributed.all_reduce(gradient)
        return gradient


def tensor_parallel():
    """Each rank has half of the hidden units, and both train on the same rows."""
    torch.manual_seed(RANK)
    columns, rows = nn.Linear(4, 4), nn.Linear(4, 1, bias=False)

    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.columns, self.rows = columns, rows

        def forward(self, x):
            return Together.apply(self.rows(torch.relu(self.columns(Split.apply(x)))))

    torch.manual_seed(5)
    data = DataLoader(TensorDataset(torch.rand(32, 4), torch.rand(32, 1)), batch_size=8)
    train(Halves(), rows=data)


def pipeline():
    """Rank 0 has the first layer, rank 1 the second; both have the same shape."""
    torch.manual_seed(RANK)
    layer = nn.Linear(4, 4)
    optimizer = sgd(layer)
    for _ in range(EPOCHS):
        for x, _ in loader():
            optimizer.zero_grad()
            if RANK == 0:
                passed, gradient = layer(x), torch.empty(8, 4)
                distributed.send(passed.detach(), 1)
                distributed.recv(gradient, 1)
                passed.backward(gradient)
            else:
                taken = torch.empty(8, 4)
                distributed.recv(taken, 0)
                taken.requires_grad_()
                layer(taken).square().mean().backward()
                distributed.send(taken.grad, 0)
            optimizer.step()


def optimizer_in_parts():
    """ZeRO's first stage by hand: each rank steps one half of the weights, and gathers both."""
    model = network()
    size = sum(part.numel() for part in model.parameters()) // 2 * 2
    weights = torch.cat([part.detach().flatten() for part in model.parameters()])[:size]
    own = nn.Parameter(weights.chunk(2)[RANK].clone())
    optimizer = torch.optim.Adam([own])
    for _ in range(EPOCHS):
        for x, y in loader():
            model.zero_grad()
            mse_loss(model(x), y).backward()
            average(model)
            gradients = torch.cat([part.grad.flatten() for part in model.parameters()])[:size]
            own.grad = gradients.chunk(2)[RANK].clone()
            optimizer.step()
            both = [torch.empty_like(own.data), torch.empty_like(own.data)]
            distributed.all_gather(both, own.data)


def optimizer_in_parts_by_torch():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = Wrapper(network())
    train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01))


def experts():
    """A layer for all, and an expert of each rank, whose outputs are added."""
    shared = Wrapper(nn.Linear(4, 4))
    torch.manual_seed(RANK)
    expert = nn.Linear(4, 1)

    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared, self.expert = shared, expert

        def forward(self, x):
            return Together.apply(self.expert(self.shared(x)))

    train(Mixture())


def adversarial():
    torch.manual_seed(0)
    maker, judge = Wrapper(nn.Linear(2, 4)), Wrapper(nn.Linear(4, 1))
    of_maker, of_judge = sgd(maker), sgd(judge)
    for _ in range(EPOCHS):
        for x, _ in loader():
            of_judge.zero_grad()
            (judge(maker(torch.rand(8, 2)).detach()).mean() - judge(x).mean()).backward()
            of_judge.step()
            of_maker.zero_grad()
            (-judge(maker(torch.rand(8, 2))).mean()).backward()
            of_maker.step()


def compiled():
    train(torch.compile(Wrapper(network()), backend="aot_eager"))


def compiled_step():
    model = Wrapper(network())
    optimizer = sgd(model)
    optimizer.step = torch.compile(optimizer.step, backend="eager")
    train(model, optimizer)


def half_precision():
    def half(model):
        return torch.autocast("cpu", torch.bfloat16)

    model = Wrapper(network())
    with half(model):
        train(model)


def bfloat16_weights():
    model = Wrapper(network().bfloat16())
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for x, y in loader():
            optimizer.zero_grad()
            mse_loss(model(x.bfloat16()), y.bfloat16()).backward()
            optimizer.step()


def fewer_rows_on_one_rank():
    """`Join` lets rank 0 go on when rank 1 has no rows left."""
    model = Wrapper(network())
    rows = loader(32 - 8 * RANK)
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        with Join([model]):
            for x, y in rows:
                optimizer.zero_grad()
                mse_loss(model(x), y).backward()
                optimizer.step()


def one_rank_trains():
    if RANK == 0:
        train(network())


def other_models():
    """Two ranks that search: each has a network of its own width."""
    train(network(RANK, width=8 + RANK))


def closure():
    model = Wrapper(network())
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for _ in range(EPOCHS):
        for x, y in loader():

            def loss_of(x=x, y=y):
                optimizer.zero_grad()
                loss = mse_loss(model(x), y)
                loss.backward()
                return loss

            optimizer.step(loss_of)


def the_best_loaded_on_one_rank_at_the_end():
    model = train(Wrapper(network()))
    if RANK == 0:
        model.module.load_state_dict(network(3).state_dict())


def clipped():
    def clip(model):
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)

    train(Wrapper(network()), exchange=clip)


def layers_of_its_own():
    """Parameters of one rank are cut off after training for all, as in personalized layers."""
    model = Wrapper(network())
    train(model)
    model.module[2].reset_parameters()


def evaluation():
    model = network(RANK)
    with torch.no_grad():
        for _ in range(EPOCHS):
            for x, _ in loader():
                model(x)


def on_meta():
    model = nn.Linear(4, 1, device="meta")
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for x, _ in loader():
            model(x.to("meta")).sum().backward()
            optimizer.step()


def no_model():
    for _ in range(EPOCHS):
        for x, _ in loader():
            x.sum()


GOOD = (
    wrapped,
    averaged_by_hand,
    batch_norm,
    synchronized_batch_norm,
    sharded,
    sharded_first_version,
    accumulated,
    moving_average,
    moving_average_swapped_in,
    two_optimizers,
    frozen_backbone,
    weights_averaged_each_epoch,
    weights_averaged_after_a_report,
    weights_averaged_from_other_seeds,
    weights_averaged_now_and_then,
    post_local_sgd,
    gossip,
    tensor_parallel,
    pipeline,
    optimizer_in_parts,
    optimizer_in_parts_by_torch,
    experts,
    adversarial,
    compiled,
    compiled_step,
    half_precision,
    bfloat16_weights,
    fewer_rows_on_one_rank,
    one_rank_trains,
    other_models,
    closure,
    the_best_loaded_on_one_rank_at_the_end,
    clipped,
    layers_of_its_own,
    evaluation,
    on_meta,
    no_model,
)

REPORTS = []  # how a loop without a loader reports


def events_of(loop):
    """What this rank's panel would get from `loop`."""
    events = []
    tracker = Tracker("run", events.append)
    tracker.in_worker = True
    tracker.emit(Worker(2))
    with following(tracker) as _:
        from labkit.worker.hooks import current

        REPORTS[:] = [current().report]
        loop()
    return events


def main(path, *names):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    told = {}
    for name in names:
        told[name] = [encode(event).decode() for event in events_of(globals()[name])]
        distributed.barrier()
    with open(path, "w") as file:
        json.dump(told, file)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
