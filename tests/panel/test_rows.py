"""Rows are counted by what a loader knows, whatever its batches look like; else none are shown."""

import itertools

import pytest
import ray
import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderDispatcher
from ray.train.torch.train_loop_utils import _WrappedDataLoader
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from labkit.panel import Panel
from labkit.panel.reporters import NullReporter
from labkit.panel.training_view import shown
from labkit.worker.hooks import following

pytestmark = pytest.mark.slow


ROWS, BATCH = 22, 4  # the last batch has two rows


class Photos(Dataset):
    """Images of different sizes, each with its boxes."""

    def __len__(self):
        return ROWS

    def __getitem__(self, number):
        return torch.rand(3, 24 + number % 8, 32), {"boxes": torch.rand(1 + number % 3, 4)}


class Sentences(Photos):
    def __getitem__(self, number):
        if isinstance(number, list):
            return [self[one] for one in number]
        return torch.randint(0, 50, (5 + number % 9,))


class Stream(IterableDataset):
    """The rows of another data set; each loader process has its part."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return (self.rows[number] for number in range(first, ROWS, step))


class Batches(IterableDataset):
    """A stream whose items are batches already."""

    def __iter__(self):
        return ((torch.rand(BATCH, 3), torch.rand(BATCH)) for _ in range(5))


class ByLength:
    """A batch sampler whose batches have different sizes."""

    def __iter__(self):
        return iter([[*range(1)], [*range(1, 4)], [*range(4, 14)], [*range(14, ROWS)]])

    def __len__(self):
        return 4


def tuples(batch):
    return tuple(zip(*batch, strict=True))


def packed(batch):
    return pack_sequence(batch, enforce_sorted=False)


class Opaque:
    """A batch that tells nothing of itself."""

    def __init__(self, rows):
        self.rows = rows


def dicts(batch):
    return [{"pixels": image, **target} for image, target in batch]


PLAIN = TensorDataset(torch.rand(ROWS, 3, 8, 8), torch.rand(ROWS))
LOADERS = {
    "plain": lambda: DataLoader(PLAIN, BATCH),
    "dropping the last": lambda: DataLoader(PLAIN, BATCH, drop_last=True),
    "detection": lambda: DataLoader(Photos(), BATCH, collate_fn=tuples),
    "rows as dicts": lambda: DataLoader(Photos(), BATCH, collate_fn=dicts),
    "ragged": lambda: DataLoader(Sentences(), BATCH, collate_fn=list, shuffle=True),
    "packed": lambda: DataLoader(Sentences(), BATCH, collate_fn=packed),
    "packed in processes": lambda: DataLoader(Sentences(), BATCH, collate_fn=packed, num_workers=2),
    "a batch sampler": lambda: DataLoader(Sentences(), batch_sampler=ByLength(), collate_fn=packed),
    "persistent": lambda: DataLoader(PLAIN, BATCH, num_workers=1, persistent_workers=True),
    "single rows": lambda: DataLoader(PLAIN, batch_size=None),
    "batches of indexes": lambda: DataLoader(
        Sentences(),
        batch_size=None,
        sampler=BatchSampler(RandomSampler(range(ROWS)), BATCH, False),
        collate_fn=len,
    ),
    "stream": lambda: DataLoader(Stream(PLAIN), BATCH),
    "stream, packed": lambda: DataLoader(Stream(Sentences()), BATCH, collate_fn=packed),
    "stream, detection": lambda: DataLoader(Stream(Photos()), BATCH, collate_fn=tuples),
    "stream of objects": lambda: DataLoader(Stream(PLAIN), BATCH, collate_fn=Opaque),
    "stream, packed in processes": lambda: DataLoader(
        Stream(Sentences()), BATCH, collate_fn=packed, num_workers=2
    ),
    "as Ray prepares it": lambda: _WrappedDataLoader(
        DataLoader(Photos(), BATCH, collate_fn=tuples), torch.device("cpu"), auto_transfer=False
    ),
    "as accelerate prepares it": lambda: Accelerator(cpu=True).prepare(
        DataLoader(Sentences(), BATCH, collate_fn=list)
    ),
    "as accelerate goes on": lambda: Accelerator(cpu=True).skip_first_batches(
        Accelerator(cpu=True).prepare(DataLoader(Sentences(), BATCH, collate_fn=list)), 2
    ),
    "accelerate's dispatcher": lambda: DataLoaderDispatcher(PLAIN, batch_size=BATCH),
}
TRUE = {"dropping the last": 20, "as accelerate goes on": ROWS - 2 * BATCH}
UNKNOWN = {
    "batches already made": lambda: DataLoader(Batches(), batch_size=None),
    "a stream of objects made in processes": lambda: DataLoader(
        Stream(PLAIN), BATCH, collate_fn=Opaque, num_workers=1
    ),
}


def train(loader, *, leaves_after=None):
    """Step after each batch, whatever it is."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for number, _ in enumerate(loader):
        weight.sum().backward()
        optimizer.step()
        if number == leaves_after:
            break


def watched(make, epochs=2, **options):
    """The state of a panel after some epochs over a loader."""
    panel = Panel("rows", epochs=epochs, reporter=NullReporter())
    with panel:
        loader = make()
        for _ in range(epochs):
            train(loader, **options)
    return panel.state


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))


@pytest.mark.parametrize("name", LOADERS)
def test_rows_by_what_the_loader_knows(name):
    state = watched(LOADERS[name])
    assert state.workers[0].rows == 2 * TRUE.get(name, ROWS)
    assert state.rows_per_second() > 0
    assert "rows/s" in [what for _, what in shown(state, state.ended_at).tiles]


@pytest.mark.parametrize("name", UNKNOWN)
def test_where_nobody_knows_there_are_no_rows(name):
    state = watched(UNKNOWN[name])
    seen = shown(state, state.ended_at)
    assert state.workers[0].made >= 8 and state.to_record()["rows_per_second"] is None
    assert "rows/s" not in [what for _, what in seen.tiles] and "rows/s" not in seen.result


def kept_iterator():
    return DataLoader(
        Sentences(), batch_sampler=ByLength(), collate_fn=packed, num_workers=1, persistent_workers=True
    )


@pytest.mark.parametrize("make, rows", [(kept_iterator, 1 + 3), (LOADERS["as Ray prepares it"], 2 * BATCH)])
def test_batches_that_were_fetched_ahead_of_a_break_are_not_of_the_next_pass(make, rows):
    """Persistent workers keep the iterator with what they had fetched; Ray's loader fetches one ahead."""
    assert watched(make, leaves_after=1).workers[0].rows == 2 * rows


def test_shards_of_ray_data(lab):
    shard = ray.data.range(ROWS).map(lambda row: {"x": row["id"], "y": 1.0}).iterator()

    def sums(columns):
        return {"total": columns["x"].sum(), "rows": torch.tensor(list(columns["x"]))}

    ways = {
        "rows": lambda: shard.iter_rows(),
        "batches": lambda: shard.iter_batches(batch_size=BATCH),
        "pandas": lambda: shard.iter_batches(batch_size=BATCH, batch_format="pandas"),
        "arrow": lambda: shard.iter_batches(batch_size=BATCH, batch_format="pyarrow"),
        "blocks": lambda: shard.iter_batches(batch_size=None),
        "torch": lambda: shard.iter_torch_batches(batch_size=BATCH),
        "the data set itself": lambda: ray.data.range(ROWS).iter_torch_batches(batch_size=BATCH),
        "collated to a list": lambda: shard.iter_torch_batches(
            batch_size=BATCH, collate_fn=lambda columns: [torch.ones(3)] * len(columns["x"])
        ),
    }
    counted = {name: watched(make).workers[0].rows for name, make in ways.items()}
    assert counted == dict.fromkeys(ways, 2 * ROWS)
    unknown = lambda: shard.iter_torch_batches(batch_size=BATCH, collate_fn=lambda columns: object())  # noqa: E731
    assert watched(unknown).to_record()["rows_per_second"] is None


@pytest.mark.parametrize(
    "name", ["stream, packed", "ragged", "packed in processes", "persistent", "as Ray prepares it"]
)
def test_batches_are_the_same_as_without_hooks(name):
    def drawn():
        torch.manual_seed(0)
        return [str(batch) for batch in itertools.islice(LOADERS[name](), 9)]

    alone = drawn()
    with following(Panel("rows", reporter=NullReporter()).tracker):
        assert drawn() == alone
