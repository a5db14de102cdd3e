"""Loops that know nothing of the panel: what is counted from outside, and that it changes nothing."""

import contextlib
import itertools
import json
import math
import sys
import threading
import time
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ray.train.torch.train_loop_utils import _WrappedDataLoader
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import _TrainingResultState
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.data import DataLoader, TensorDataset

import labs
from labkit.errors import BadInput
from labkit.worker import Tracker, follower, hooks
from labkit.worker.events import End, Step
from labkit.worker.hooks import following
from labkit.worker.reports import Reports, refuse_what_json_lacks

pytestmark = pytest.mark.slow


X = torch.arange(72, dtype=torch.float32).reshape(36, 2) / 72
DATA = TensorDataset(X, X.sum(1, keepdim=True))


class Hand:
    """A model, and steps and rows of each epoch as the loop itself counts them."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.steps, self.rows = [], []

    def weights(self):
        return [
            getattr(parameter, "full_tensor", lambda parameter=parameter: parameter)()
            for parameter in self.model.parameters()
        ]

    def epoch(self):
        self.steps.append(0)
        self.rows.append(0)

    def loss(self, batch):
        x, y = batch
        return torch.nn.functional.mse_loss(self.model(x), y)

    def back(self, batch):
        self.loss(batch).backward()
        self.rows[-1] += len(batch[0])

    def step(self, batch=None):
        if batch is not None:
            self.back(batch)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps[-1] += 1


def loader():
    return DataLoader(DATA, batch_size=8, shuffle=True)


# -- the loops ------------------------------------------------------------------------------------------


def train(hand, rows, *, epochs=2, leaves_before=None):
    """Batch by batch; or until the loop leaves, before a batch of this number is trained."""
    for _ in range(epochs):
        hand.epoch()
        for number, batch in enumerate(rows):
            if number == leaves_before:
                break
            hand.step(batch)


def plain(hand):
    train(hand, loader())


def zipped(hand):
    """Two loaders draw from one generator, in the order in which they are iterated."""
    first, second = loader(), loader()
    for _ in range(2):
        hand.epoch()
        for a, b in zip(first, second, strict=False):
            hand.back(a)
            hand.step(b)


def early(hand):
    """The order of the rows is drawn when `iter` is called."""
    rows = loader()
    iterator = iter(rows)
    torch.rand(3)
    for _ in range(2):
        hand.epoch()
        assert len(iterator) == 5
        for batch in iterator:
            hand.step(batch)
        iterator = iter(rows)
        torch.rand(1)


def left(hand):
    train(hand, loader(), epochs=3, leaves_before=3)


def accumulated(hand):
    rows = loader()
    for _ in range(2):
        hand.epoch()
        for number, batch in enumerate(rows):
            hand.back(batch)
            if number % 2:
                hand.step()
        hand.step()  # for the fifth


def adversarial(hand):
    """A GAN: two optimizers for each batch."""
    other = torch.optim.SGD(hand.model.parameters(), lr=0.01)
    for _ in range(2):
        hand.epoch()
        for batch in loader():
            hand.step(batch)
            hand.loss(batch).backward()
            other.step()


def sharded(hand):
    hand.optimizer = ZeroRedundancyOptimizer(hand.model.parameters(), torch.optim.SGD, lr=0.1)
    plain(hand)


def evaluated(hand):
    test = loader()
    for _ in range(2):
        hand.epoch()
        for batch in loader():
            hand.step(batch)
            with torch.no_grad():
                for seen in test:
                    hand.loss(seen)
        next(iter(test))


def without_a_loader(hand):
    for _ in range(2):
        hand.epoch()
        for k in range(0, 36, 9):
            hand.loss((X[k : k + 9], X[k : k + 9, :1])).backward()
            hand.step()
        for batch in loader():
            hand.loss(batch)


def lbfgs(hand):
    hand.optimizer = torch.optim.LBFGS(hand.model.parameters(), max_iter=3)
    for _ in range(2):
        hand.epoch()
        for batch in loader():

            def closure(batch=batch):
                hand.optimizer.zero_grad()
                loss = hand.loss(batch)
                loss.backward()
                return loss

            hand.optimizer.step(closure)
            hand.steps[-1] += 1
            hand.rows[-1] += len(batch[0])


def fully_sharded(hand):
    """FSDP2: parameters and gradients are DTensors."""
    fully_shard(hand.model, mesh=init_device_mesh("cpu", (1,)))
    hand.optimizer = torch.optim.SGD(hand.model.parameters(), lr=0.1)
    plain(hand)


LOOPS = [
    plain, zipped, early, left, accumulated, adversarial, sharded, evaluated, without_a_loader, lbfgs,
    fully_sharded,
]  # fmt: skip
FIRST_TOTAL = {plain: 5, accumulated: 2}  # steps of the epoch, as known at its first one


@pytest.fixture(scope="module", autouse=True)
def group():
    """A process group of this process alone, for ZeRO."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def events():
    return []


@pytest.fixture
def tracker(events):
    return Tracker("run", events.append)


def epochs_of(events):
    return [event for event in events if isinstance(event, Step) and event.done]


def places():
    """All that hooks replace."""
    optimizer = sys.modules["torch.optim.optimizer"]
    return [
        DataLoader.__iter__, _WrappedDataLoader.__iter__, torch.Tensor.backward, torch.amp.GradScaler.scale,
        sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter.__next__, list(sys.meta_path),
        *map(len, (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)),
    ]  # fmt: skip


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_the_weights_are_the_same_to_the_last_bit_and_counts_are_those_by_hand(loop, tracker, events):
    before, alone, seen = places(), Hand(), Hand()
    loop(alone)
    with following(tracker, loop):
        torch.manual_seed(0)
        seen = Hand()
        loop(seen)
    assert places() == before
    for mine, theirs in zip(alone.weights(), seen.weights(), strict=True):
        assert torch.equal(mine, theirs)
    ends = epochs_of(events)
    assert ends[-1].made == sum(seen.steps)
    if loop in FIRST_TOTAL:
        assert next(event.total for event in events if isinstance(event, Step)) == FIRST_TOTAL[loop]
    if loop is without_a_loader:  # no report says where its epochs end
        assert ends[-1].rows == 0
        return
    assert [event.step for event in ends] == seen.steps
    assert [event.epoch for event in ends] == list(range(len(seen.steps)))
    assert [event.rows for event in ends] == seen.rows
    assert all(0 < event.waiting <= event.seconds for event in ends)


@pytest.mark.parametrize("loop", [accumulated, adversarial, lbfgs, without_a_loader])
def test_the_time_of_every_backward_is_counted_once(loop, tracker, events):
    hand = Hand()
    hand.model.weight.register_hook(lambda gradient: time.sleep(0.02))
    with following(tracker, loop):
        loop(hand)
    first, *_, last = [event.parts for event in events if isinstance(event, Step) and event.parts["steps"]]
    parts = {name: last[name] - first[name] for name in last}
    inside = sum(parts[name] for name in ("data", "forward", "backward", "exchange", "optimizer"))
    assert parts["backward"] >= 6 * 0.02 and inside <= parts["wall"] + 1e-5


def test_waiting_is_that_of_training_passes_alone_and_begins_with_iter(tracker, events, monkeypatch):
    class Slow(TensorDataset):
        def __getitem__(self, row):
            clock.now += 1
            return super().__getitem__(row)

    class SlowToBegin(DataLoader):
        def _get_iterator(self):
            clock.now += 3
            return super()._get_iterator()

    def loop(hand):
        hand.epoch()
        rows = SlowToBegin(Slow(*DATA.tensors), batch_size=8)
        for batch in rows:
            clock.now += 5  # to compute
            hand.step(batch)
        for _ in rows:  # an evaluation
            pass

    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(follower, "perf_counter", lambda: clock.now)
    with following(tracker, loop):
        loop(Hand())
    (epoch,) = epochs_of(events)
    assert (epoch.waiting, epoch.seconds) == (3 + 36, 3 + 36 + 5 * 5)


def test_what_a_loop_does_after_each_epoch_is_counted_after_the_last_one_too(tracker, events, monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(follower, "perf_counter", lambda: clock.now)
    hand = Hand()
    with following(tracker):
        for _ in range(3):
            hand.epoch()
            for batch in loader():
                hand.step(batch)
            clock.now += 7  # to evaluate
            hooks.current().report({"loss": 1.0})
            clock.now += 2
    first, *later = epochs_of(events)
    assert first.between == 0 and [event.between for event in later] == [9, 9]
    assert [event.seconds for event in events if isinstance(event, End)] == [9]


def test_the_live_loss_is_what_backward_is_called_on(tracker, events):
    def loop(hand, scaler):
        hand.epoch()
        for number, batch in enumerate(loader()):
            scaler.scale(hand.loss(batch) * 0 + number).backward()
            hand.step()

    with following(tracker, loop):
        loop(Hand(), torch.amp.GradScaler("cpu", enabled=False))
    assert epochs_of(events)[0].metrics == {"loss": 4.0}
    events.clear()
    with following(tracker, loop):
        loop(Hand(), torch.amp.GradScaler("cpu"))
    assert epochs_of(events)[0].metrics == {}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_no_hook_is_left_after_an_error_and_how_far_it_came_is_known(tracker, events, error):
    def loop():
        hand = Hand()
        hand.epoch()
        for batch in loader():
            hand.step(batch)
            if hand.steps == [3]:
                raise error

    before = places()
    with pytest.raises(error), following(tracker, loop):
        loop()
    assert places() == before and follower.followers == []
    assert (events[-1].step, events[-1].done) == (3, False)

    def interrupted(event):
        if isinstance(event, Step) and event.done:
            raise error

    with pytest.raises(error), following(Tracker("run", interrupted)):
        train(Hand(), loader(), epochs=1)
    assert places() == before and follower.followers == []


def test_an_odd_batch_and_another_thread_train_and_are_not_followed(tracker, events):
    class Odd:
        @property
        def shape(self):
            raise RuntimeError("not known yet")

    with following(tracker, plain):
        other = threading.Thread(target=plain, args=[hand := Hand()])
        other.start()
        other.join()
        assert len(list(DataLoader([Odd(), Odd()], collate_fn=tuple))) == 2
    assert sum(hand.steps) == 10 and epochs_of(events) == []


LATE = """
import sys
from labkit.worker.hooks import following
from labkit.worker import Tracker
from labkit.worker.events import Step
assert "torch" not in sys.modules
events, before = [], list(sys.meta_path)
def loop():
    import torch
    from torch.utils.data import DataLoader
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(torch.rand(10, 1), batch_size=5):
        model(x).sum().backward()
        optimizer.step()
with following(Tracker("run", events.append), loop):
    loop()
assert sys.meta_path == before
print([(event.step, event.rows) for event in events if isinstance(event, Step) and event.done])
"""


def test_torch_is_not_imported_for_a_loop_and_is_followed_if_the_loop_imports_it():
    shown = labs.python(LATE).stdout
    assert shown.endswith("[(2, 10)]\n"), shown


def test_an_error_in_a_step_that_the_loop_survives(tracker, events):
    class Sometimes(torch.optim.SGD):
        def step(self, closure=None):
            if self.fails:
                raise RuntimeError("out of memory")
            return super().step(closure)

    hand = Hand()
    hand.epoch()
    hand.optimizer = Sometimes(hand.model.parameters(), lr=0.1)
    with following(tracker, plain):
        for number, batch in enumerate(loader()):
            hand.optimizer.fails = number == 1
            with contextlib.suppress(RuntimeError):
                hand.step(batch)
    assert epochs_of(events)[0].step == hand.steps[0] == 4


def by_lightning(loaders):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.model = torch.nn.Linear(2, 1)

        def training_step(self, batch, _):
            return torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])

        def validation_step(self, batch, _):
            self.training_step(batch, _)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    torch.manual_seed(0)
    module = Module()
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        accumulate_grad_batches=2,
        limit_val_batches=2,
        **dict.fromkeys(off, False),
    )
    trainer.fit(module, *loaders)
    return list(module.parameters())


@pytest.mark.filterwarnings("ignore")
def test_a_loop_by_lightning(tracker, events):
    """It keeps its iterators, begins with some batches of validation, and steps after two batches."""
    loaders = loader(), DataLoader(DATA, batch_size=8)
    alone = by_lightning(loaders)
    with following(tracker, by_lightning):
        seen = by_lightning(loaders)
    assert all(map(torch.equal, alone, seen))
    assert [(event.step, event.total, event.rows) for event in epochs_of(events)] == [(3, 3, 36)] * 2


# -- metrics that Ray can't keep ------------------------------------------------------------------------


def kept_by_ray(metrics):
    """The metrics of a checkpoint, as a run that resumes reads them."""
    return json.loads(_TrainingResultState(checkpoint_dir_name="c", metrics=metrics).json())["metrics"]


REFUSED = [
    (np.float32(0.5), "'m'", "float(value)"),
    (np.int64(3), "'m'", "float(value)"),
    (np.bool_(True), "'m'", "float(value)"),
    (np.array(1.5), "'m'", "float(value)"),
    (np.zeros((3, 3)), "'m'", "value.tolist()"),
    (torch.ones(2), "'m'", "value.tolist()"),
    (torch.tensor(1.0), "'m'", "float(value)"),
    ({"a": [1, np.float32(1)]}, "'m'['a'][1]", "make it float(value) where"),
    ({np.int64(3): 1}, "'m'", "make the key a str or an int"),
    (object(), "'m'", "str(value)"),
]


@pytest.mark.parametrize("value, where, fix", REFUSED)
def test_what_ends_rays_controller_is_refused_at_the_report(value, where, fix):
    with pytest.raises(ValueError, match="serializ"):
        kept_by_ray({"m": value})
    with pytest.raises(BadInput) as caught:
        refuse_what_json_lacks({"epoch": 1, "m": value})
    assert where in str(caught.value) and fix in caught.value.fix


CHANGED = [
    (math.nan, "'m' is nan in line", "copy of it, as JSON, has None", "Report a large number"),
    (-math.inf, "'m' is -inf in line", "has None", "Report a large number"),
    ((1, 2), "'m' is tuple in line", "has [1, 2]", "Report [1, 2] yourself"),
    ({1}, "'m' is set in line", "has [1]", "Report [1] yourself"),
    ({"a": {1: 2}}, "'m'['a'], a key of it, is 1", "has '1'", "Report '1' yourself"),
    ([(1,)], "'m'[0] is tuple", "has [1]", "Report [1] yourself"),
    (Decimal("1.5"), "'m' is Decimal('1.5')", "has '1.5'", "Report '1.5' yourself"),
]


@pytest.mark.parametrize("value, fact, kept, fix", CHANGED)
def test_what_ray_changes_in_the_metrics_of_a_checkpoint_is_said(value, fact, kept, fix):
    assert kept_by_ray({"m": value}) != {"m": value}
    reports = Reports()
    (note,) = reports.notes_on({"epoch": 1, "m": value}, None)
    assert fact in note and kept in note and fix in note and "of test_hooks.py" in note
    assert list(reports.notes_on({"epoch": 2, "m": value}, None)) == []  # once


def test_what_ray_keeps_unchanged_has_no_note():
    kept = {"a": 1, "b": 0.5, "c": [True, None, {"d": "e"}], "f": np.float64(0.5), "g": [np.float64(1)]}
    assert list(Reports().notes_on(kept, "epoch-1")) == [] and kept_by_ray(kept) == kept
    assert list(Reports().notes_on(1, None)) == []  # Ray refuses it


def test_two_checkpoints_in_one_folder_are_said():
    reports = Reports()
    assert list(reports.notes_on({"a": 1}, "best")) == []
    assert list(reports.notes_on({"a": 1}, "other")) == []
    (note,) = reports.notes_on({"a": 1}, "best")
    assert "report 3 has the same checkpoint_dir_name='best' as report 1" in note and "test_hooks.py" in note
    assert list(reports.notes_on({"a": 1}, "best")) == []  # once for each folder


def test_batches_that_are_kept_and_used_again_are_steps(tracker, events):
    """`cycle` keeps the batches of its first pass, and draws no more from the loader."""
    hand = Hand()
    hand.epoch()
    with following(tracker):
        for _, batch in zip(range(105), itertools.cycle(loader()), strict=False):
            hand.step(batch)
    assert max(event.made for event in events if isinstance(event, Step)) >= 100
    events.clear()
    with following(tracker):
        batch = next(iter(loader()))  # a look at whether the model learns one batch
        for _ in range(100):
            hand.step(batch)
    assert max(event.made for event in events if isinstance(event, Step)) >= 95


def test_an_epoch_of_one_step_without_a_loader_takes_time(tracker, events, monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(follower, "perf_counter", lambda: float(next(clock)))
    hand = Hand()
    with following(tracker):
        for epoch in range(3):
            hand.epoch()
            hand.step(DATA[:])
            hooks.current().report({"epoch": epoch})
    seconds = [event.seconds for event in epochs_of(events)]
    assert len(seconds) == 3 and min(seconds[1:]) > 0


class ListLoader(DataLoader):
    def _get_iterator(self):
        return iter([torch.zeros(8, 2)])  # a list's iterator can't be referred to weakly


def test_a_loader_with_an_iterator_of_its_own_is_left_alone(tracker):
    with following(tracker):
        assert len(list(ListLoader(DATA))) == 1


def test_the_iterator_of_a_loader_that_ray_has_prepared_has_its_length(tracker):
    prepared = _WrappedDataLoader(loader(), torch.device("cpu"), False)
    without = len(iter(prepared))
    with following(tracker):
        assert len(iter(prepared)) == without == 5 and iter(prepared)


def test_after_an_error_of_cuda_the_loops_own_error_is_what_is_raised(tracker, monkeypatch):
    """Each call of CUDA raises it again, also the one that asks whether a graph is captured."""

    def fails():
        raise RuntimeError("CUDA error: device-side assert triggered")

    hand = Hand()
    with pytest.raises(ValueError, match="mine"), following(tracker):
        train(hand, loader(), epochs=1)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", fails)
        monkeypatch.setattr(torch.cuda, "memory_reserved", fails)
        raise ValueError("mine")
