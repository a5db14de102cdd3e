"""Notes on workers that train alone, and none on those that exchange anything; what Ray does with loaders."""

import os
import re
import sys
import types

import pytest
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import distributed
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from labkit.panel.reporters import NullReporter
from labkit.train import TrainPanel
from labkit.worker import Tracker
from labkit.worker.events import Note
from labkit.worker.hooks import following

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/worker/")]


LAB = {"nodes": 1, "cpus_per_node": 4}
NUMBERS = TensorDataset(torch.rand(64))
DATA = TensorDataset(torch.rand(64, 4), torch.rand(64, 1))


def rank():
    return ray.train.get_context().get_world_rank()


def apart(model):
    """The largest difference between the two ranks' weights."""
    own = torch.cat([part.detach().flatten() for part in model.parameters()])
    both = [torch.empty_like(own), torch.empty_like(own)]
    distributed.all_gather(both, own)
    return (both[0] - both[1]).abs().max().item()


# -- accelerate and transformers ------------------------------------------------------------------------


def by_accelerate(config):
    if config["variable"]:
        os.environ["ACCELERATE_USE_CPU"] = "true"
    from accelerate import Accelerator

    accelerator = Accelerator(**config["options"])
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    torch.manual_seed(rank())  # each rank shuffles its own way
    parts = model, optimizer, DataLoader(DATA, batch_size=8, shuffle=True)
    model, optimizer, rows = accelerator.prepare(*parts)
    for epoch in range(2):
        for x, y in rows:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        ray.train.report({"loss": loss.item(), "epoch": epoch})
    return apart(model)


def by_transformers(config):
    import tempfile

    if config["variable"]:
        os.environ["ACCELERATE_USE_CPU"] = "true"
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    torch.manual_seed(0)
    rows = [{"input_ids": torch.randint(0, 100, (12,)), "labels": number % 2} for number in range(32)]
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForSequenceClassification(BertConfig(vocab_size=100, **small))
    quiet = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=1,
        per_device_train_batch_size=4,
        seed=rank(),
        **quiet,
        **config["options"],
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    return apart(trainer.model)


def fitted(home, loop, **config):
    panel = TrainPanel("alone", reporter=NullReporter())
    trainer = TorchTrainer(
        loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(home / "runs")),
    )
    return panel.fit(trainer).return_value, panel.view(panel.state, panel.state.ended_at)


@pytest.mark.parametrize(
    ("loop", "options", "variable"),
    [
        (by_accelerate, {}, False),
        (by_accelerate, {"cpu": True}, False),
        (by_accelerate, {}, True),
        (by_transformers, {}, False),
        (by_transformers, {"use_cpu": True}, False),
        (by_transformers, {}, True),
    ],
)
def test_ranks_that_train_alone_are_told_and_each_fix_works(lab, home, loop, options, variable):
    difference, shown = fitted(home, loop, options=options, variable=variable)
    print(loop.__name__, options, variable, difference)
    if options or variable:
        assert difference == 0 and shown.notes == []
        return
    assert difference > 1e-4
    (note,) = shown.notes
    assert "each of the 2 workers trains a model of its own" in note
    fixes = (
        "Accelerator(cpu=True)",
        "TrainingArguments(use_cpu=True)",
        'os.environ["ACCELERATE_USE_CPU"] = ',
    )
    assert all(fix in note for fix in fixes)


# -- what is healthy, although accelerate sees one process ----------------------------------------------


def steps(model, exchange=None, *, after=None, epochs=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for x, y in DataLoader(DATA, batch_size=8):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            for part in model.parameters() if exchange else ():
                exchange(part.grad)
            optimizer.step()
        for part in model.parameters() if after else ():
            after(part.data)


def wrapped_by_ray():
    steps(prepare_model(torch.nn.Linear(4, 1)))


def reduced_by_hand():
    steps(torch.nn.Linear(4, 1), distributed.all_reduce)


def in_a_group_of_its_own():
    group = distributed.new_group([0, 1])
    steps(torch.nn.Linear(4, 1), lambda gradient: distributed.all_reduce(gradient, group=group))


def averaged_after_each_epoch():
    steps(torch.nn.Linear(4, 1), after=distributed.all_reduce)


def fully_sharded():
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Linear(4, 2)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for x, _ in DataLoader(DATA, batch_size=8):
            model(x).sum().backward()
            optimizer.step()


def evaluated_alone():
    model = torch.nn.Linear(4, 1)
    for _ in range(2):
        for x, _ in DataLoader(DATA, batch_size=8):
            model(x)


def alone_but_for_a_final_metric():
    steps(torch.nn.Linear(4, 1))
    distributed.all_reduce(torch.ones(1))


HEALTHY = (
    wrapped_by_ray, reduced_by_hand, in_a_group_of_its_own, averaged_after_each_epoch, fully_sharded,
    evaluated_alone,
)  # fmt: skip


def notes_of(loop):
    events = []
    tracker = Tracker("run", events.append)
    tracker.in_worker = True
    with following(tracker):
        loop()
    return [event.text for event in events if isinstance(event, Note)]


def all_of_them(config):
    without_accelerate = notes_of(lambda: steps(torch.nn.Linear(4, 1)))  # as with a parameter server
    from accelerate import Accelerator

    assert Accelerator().num_processes == 1
    notes = {loop.__name__: notes_of(loop) for loop in (*HEALTHY, alone_but_for_a_final_metric)}
    return {"without_accelerate": without_accelerate, **notes}


def test_no_false_alarm(lab, home):
    notes, _ = fitted(home, all_of_them)
    (note,) = notes.pop("alone_but_for_a_final_metric")
    assert "trains a model of its own" in note
    assert {name for name, of_loop in notes.items() if of_loop} == set()


# -- what `prepare_data_loader` changes -----------------------------------------------------------------

SAMPLERS = {
    "weighted": (lambda: WeightedRandomSampler([1.0] * 64, 64), "replaces WeightedRandomSampler"),
    "subset": (lambda: SubsetRandomSampler(range(32)), r"SubsetRandomSampler .*over all 64 rows.*Subset\("),
    "replacement": (lambda: RandomSampler(DATA, replacement=True), "replaces RandomSampler"),
    "shuffled": (lambda: RandomSampler(DATA), None),
    "in order": (lambda: SequentialSampler(DATA), None),
}


class Stateful(DataLoader):
    """A loader that remembers where it is."""


def prepares(config):
    """The notes on each loader, and rows of its first batch: each rank's panel says the same once."""
    events = []
    tracker = Tracker("run", events.append)

    def notes(loader, **options):
        events.clear()
        with following(tracker, prepares):
            prepared = prepare_data_loader(loader, **options)
        return [event.text for event in events if isinstance(event, Note)], next(iter(prepared))[0].shape

    seen = {name: notes(DataLoader(NUMBERS, 8, sampler=make())) for name, (make, _) in SAMPLERS.items()}
    batches = BatchSampler(SequentialSampler(NUMBERS), 8, False)
    seen["batches"] = notes(DataLoader(NUMBERS, batch_sampler=batches))
    seen["its own way"] = notes(DataLoader(NUMBERS, batch_sampler=batches), add_dist_sampler=False)
    seen["dealt"] = notes(
        DataLoader(NUMBERS, 8, sampler=torch.utils.data.distributed.DistributedSampler(NUMBERS))
    )
    seen["of a subclass"] = notes(Stateful(NUMBERS, 8))
    elsewhere = types.ModuleType("makes_loaders")  # a file of the reader's that has imported the function
    elsewhere.prepare_data_loader = prepare_data_loader
    sys.modules["makes_loaders"] = elsewhere
    events.clear()
    with following(tracker, all_of_them):
        elsewhere.prepare_data_loader(DataLoader(NUMBERS, batch_sampler=batches))
    seen["elsewhere"] = [event.text for event in events if isinstance(event, Note)], None
    assert elsewhere.prepare_data_loader is prepare_data_loader
    ahead = {"num_workers": 1, "persistent_workers": True, "prefetch_factor": 4}
    seen["ahead"] = notes(DataLoader(NUMBERS, 8, **ahead))
    return seen


def test_what_ray_changes_in_a_loader_is_told(lab, home):
    seen, _ = fitted(home, prepares)
    for name, (_, words) in SAMPLERS.items():
        assert len(seen[name][0]) == (words is not None), seen[name]
        assert words is None or re.search(words, seen[name][0][0])
    assert "single rows without a batch dimension" in seen["batches"][0][0]
    assert tuple(seen["batches"][1]) == () and tuple(seen["its own way"][1]) == (8,)
    assert seen["its own way"][0] == seen["dealt"][0] == []
    assert "single rows without a batch dimension" in seen["elsewhere"][0][0]
    (note,) = seen["of a subclass"][0]
    assert "makes a plain DataLoader of your Stateful" in note
    (note,) = seen["ahead"][0]
    assert "drops persistent_workers=True and prefetch_factor=4" in note
