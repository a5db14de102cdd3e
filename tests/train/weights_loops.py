"""Loops of two ranks that train one model, and loops that don't; `test_weights.py` runs them.

    RANK=0 WORLD_SIZE=2 … python weights_loops.py FILE NAME…

writes the events of each loop into FILE. A loop trains three epochs and knows nothing of the panel.
"""

import json
import os
import sys

import torch
from torch import distributed, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.nn.functional import all_reduce
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


def loader(rows=32, *, rank=RANK):
    """The rows of a rank."""
    torch.manual_seed(100 + rank)
    return DataLoader(TensorDataset(torch.rand(rows, 4), torch.rand(rows, 1)), batch_size=8)


def sgd(*models, lr=0.1, **options):
    parts = [part for model in models for part in model.parameters() if part.requires_grad]
    return torch.optim.SGD(parts, lr=lr, **options)


def average(model, group=None):
    """Average the gradients of both ranks by hand."""
    for part in model.parameters():
        distributed.all_reduce(part.grad, group=group)
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


def not_wrapped_one_epoch():
    train(network(), epochs=1, each_epoch=lambda _, epoch: REPORTS[0]({"epoch": epoch}))


def models_one_after_another():
    """As in a cross-validation: what is gone leaves its place in memory to the next one."""
    for seed in range(4):
        train(network(seed))


def not_wrapped_but_a_metric_is_reduced_at_the_end():
    train(network())
    distributed.all_reduce(torch.ones(1))


def not_wrapped_but_a_metric_is_reduced():
    train(network(), each_epoch=lambda *_: distributed.all_reduce(torch.ones(1)))


def wrapped_and_the_inner_model_trained():
    train(Wrapper(network()).module)


def no_sync_in_each_step():
    model = Wrapper(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
    with model.no_sync():
        train(model)


def a_second_model_outside():
    first, second = Wrapper(network()), nn.Linear(1, 3)
    train(nn.Sequential(first, second))


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


def frozen_features_of_each_rank():
    model = Wrapper(network())
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
    not_wrapped_one_epoch: NONE,
    models_one_after_another: NONE,
    not_wrapped_but_a_metric_is_reduced: NONE,
    wrapped_and_the_inner_model_trained: rf"{NONE}.*instead of model\.module\(x\)",
    no_sync_in_each_step: rf"{NONE}.*outside of no_sync\(\)",
    a_second_model_outside: r"gradients of .*\(3, 1\).* aren't averaged.*wrap each model",
    unfrozen_later: r"gradients of 0\.weight and 0\.bias aren't averaged.*requires_grad=True",
    averaged_from_other_weights: r"although they average.*before the first step\. Call torch\.manual_seed",
    another_learning_rate: r"although they average.* were the same before.*learning rate",
    frozen_features_of_each_rank: r"features differ and aren't trained",
    averaged_in_part: r"gradients of a tensor of shape \(8, 4\) and .* aren't averaged\. Average those",
    without_a_loader: NONE,
}


# -- loops that are right ---------------------------------------------------------------------------------


def wrapped():
    train(Wrapper(network(RANK)))


def averaged_by_hand():
    train(network(), exchange=average)


def averaged_in_a_group_of_its_own():
    group = distributed.new_group([0, 1])
    train(network(), exchange=lambda model: average(model, group))


def sharded():
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model)
    train(model)


def sharded_first_version():
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.manual_seed(0)
    layer = nn.Linear(4, 2, bias=False)
    train(FullyShardedDataParallel(layer, use_orig_params=True, device_id=torch.device("cpu")))


def weights_averaged_each_epoch():
    train(network(), each_epoch=lambda model, _: average_weights(model))


def weights_averaged_after_a_report():
    def report_and_average(model, epoch):
        REPORTS[0]({"epoch": epoch})
        average_weights(model)

    train(network(), each_epoch=report_and_average, epochs=1)


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


class Summed(nn.Sequential):
    """The sum of what both ranks' layers return."""

    def forward(self, x):
        return all_reduce(super().forward(x))


def tensor_parallel():
    """Each rank has half of the hidden units, and both train on the same rows."""
    torch.manual_seed(RANK)
    half = Summed(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1, bias=False))
    train(half, rows=loader(rank=0))


def experts():
    """A layer for all, and an expert of each rank, whose outputs are added."""
    shared = Wrapper(nn.Linear(4, 4))
    torch.manual_seed(RANK)
    train(Summed(shared, nn.Linear(4, 1)))


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
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False)
    own = nn.Parameter(model.weight.detach().chunk(2, dim=1)[RANK].clone())
    optimizer = torch.optim.Adam([own])
    for _ in range(EPOCHS):
        for x, y in loader():
            model.zero_grad()
            mse_loss(model(x), y).backward()
            average(model)
            own.grad = model.weight.grad.chunk(2, dim=1)[RANK].clone()
            optimizer.step()
            both = [torch.empty_like(own.data), torch.empty_like(own.data)]
            distributed.all_gather(both, own.data)
            model.weight.data = torch.cat(both, dim=1)


def compiled_step():
    model = Wrapper(network())
    optimizer = sgd(model)
    optimizer.step = torch.compile(optimizer.step, backend="eager")
    train(model, optimizer)


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


def the_best_loaded_on_one_rank_at_the_end():
    model = train(Wrapper(network()))
    if RANK == 0:
        model.module.load_state_dict(network(3).state_dict())


def evaluation():
    model = network(RANK)
    with torch.no_grad():
        for _ in range(EPOCHS):
            for x, _ in loader():
                model(x)


def on_meta():
    x, y = torch.rand(8, 4, device="meta"), torch.rand(8, 1, device="meta")
    train(nn.Linear(4, 1, device="meta"), rows=[(x, y)] * 4)


GOOD = (
    wrapped,
    averaged_by_hand,
    averaged_in_a_group_of_its_own,
    sharded,
    sharded_first_version,
    weights_averaged_each_epoch,
    weights_averaged_after_a_report,
    weights_averaged_now_and_then,
    post_local_sgd,
    tensor_parallel,
    pipeline,
    optimizer_in_parts,
    compiled_step,
    fewer_rows_on_one_rank,
    one_rank_trains,
    other_models,
    the_best_loaded_on_one_rank_at_the_end,
    evaluation,
    on_meta,
)

# Those whose ranks train together, whatever accelerate sees.
TOGETHER = (
    wrapped,
    averaged_by_hand,
    averaged_in_a_group_of_its_own,
    weights_averaged_each_epoch,
    sharded,
    evaluation,
)

REPORTS = []  # how a loop without a loader reports


def events_of(loop):
    """What this rank's panel would get from `loop`."""
    events = []
    tracker = Tracker("run", events.append)
    tracker.in_worker = True
    tracker.emit(Worker(2))
    with following(tracker):
        from labkit.worker.hooks import current

        REPORTS[:] = [current().report]
        loop()
    return events


def main(path, *names):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    if "WITH_ACCELERATE" in os.environ:
        from accelerate import Accelerator

        assert Accelerator().num_processes == 1
    told = {}
    for name in names:
        told[name] = [encode(event).decode() for event in events_of(globals()[name])]
        distributed.barrier()
    with open(path, "w") as file:
        json.dump(told, file)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
