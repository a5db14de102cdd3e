"""Count the rows of a batch by what its loader knows. A batch whose rows are unknown has None.

A batch alone doesn't say how many rows it has: a tuple of images of different sizes, a list of sentences and
a packed sequence have shapes that are no counts. So a count comes from

- the indexes that a sampler gives for a batch: exact, whatever the sampler and the `collate_fn` are;
- the rows that a stream has handed to its `collate_fn`;
- columns, where the loader promises that each has one entry for every row.

A stream whose `collate_fn` runs in other processes tells none of these. There, `Calibrated` looks for a
length that equals the batch size in the first batch, and uses that length from then on.
"""

import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

Counter = Callable[[Any], int | None]

_SIZES = "_labkit_sizes"  # an attribute of torch's iterators
_AHEAD = 2  # batches that a loader around another one holds: the one that it gives, and the next


def note_index(iterator: Any, index: Any) -> None:
    """Keep how many rows torch's iterator will fetch by `index`: a list of them, or the index of one row."""
    sizes = vars(iterator).setdefault(_SIZES, deque())
    # With `batch_size=None` there may be a batch sampler.
    if iterator._auto_collation or isinstance(index, list):
        sizes.append(_length(index))
    else:
        sizes.append(1)


def forget_indexes(loader: Any) -> None:
    """Drop what was fetched ahead in a pass that the loop left: persistent workers keep the iterator."""
    sizes = getattr(getattr(loader, "_iterator", None), _SIZES, None)
    if sizes is not None:
        sizes.clear()


def torch_counter(iterator: Any) -> Counter:
    """Return what counts the rows of a batch that torch's iterator gives next."""
    loader_module = sys.modules["torch.utils.data.dataloader"]
    if not hasattr(iterator, "_dataset_kind"):  # of a subclass that has its own
        return unknown
    if iterator._dataset_kind == loader_module._DatasetKind.Map:
        sizes = vars(iterator).setdefault(_SIZES, deque())

        def count(batch: Any) -> int | None:
            return sizes.popleft() if sizes else None

        return count
    if not iterator._auto_collation:
        return of_sample
    fetcher = getattr(iterator, "_dataset_fetcher", None)  # which collates in this process
    if fetcher is not None:
        counting = Counting(fetcher.collate_fn)
        fetcher.collate_fn = counting
        return lambda batch: counting.rows
    if iterator._collate_fn is loader_module.default_collate:
        return of_columns
    return Calibrated(iterator._index_sampler.batch_size)


class Counting:
    """A `collate_fn` that keeps how many rows it was given last."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate
        self.rows: int | None = None

    def __call__(self, rows: Any) -> Any:
        self.rows = _length(rows)
        return self._collate(rows)


class Calibrated:
    """A counter for batches of unknown form, of which the full ones have `size` rows."""

    def __init__(self, size: int | None) -> None:
        self._size = size or 0  # no batch fits 0
        self._ruler: Counter | None = None

    def __call__(self, batch: Any) -> int | None:
        if self._ruler is None:
            self._ruler = self._fitting(batch)
        rows = self._ruler(batch)
        return rows if rows and rows <= self._size else None

    def _fitting(self, batch: Any) -> Counter:
        """Return the ruler by which a full batch has its size."""
        for ruler in _RULERS:
            if ruler(batch) == self._size:
                return ruler
        return unknown


def wrapped_counter(inner: deque[int | None]) -> Counter:
    """Return what counts for a loader around torch's: `inner` has the rows of the batches that it drew."""

    def count(batch: Any) -> int | None:
        while len(inner) > _AHEAD:  # a resumed loader skips batches
            inner.popleft()
        return inner.popleft() if inner else None

    return count


def of_columns(batch: Any) -> int | None:
    """Return the length of the first column in tensors, arrays, a table, or a nest of these."""
    shape = getattr(batch, "shape", None)
    if isinstance(shape, tuple):
        return shape[0] if shape else None
    if isinstance(batch, Mapping):
        return of_columns(next(iter(batch.values()), None))
    if isinstance(batch, (list, tuple)) and batch:
        if isinstance(batch[0], (str, bytes)):  # a column of texts
            return len(batch)
        return of_columns(batch[0])
    return _length(batch)  # such as a table of Arrow


def one_row(batch: Any) -> int:
    """Return 1: the loader gives single rows."""
    return 1


def of_sample(sample: Any) -> int | None:
    """Return 1 for what a stream gives with `batch_size=None`; None if it looks like a batch already made.

    Parts of one row have lengths of their own, and columns of a batch have the same one.
    """
    parts = list(sample.values()) if isinstance(sample, Mapping) else sample
    if not isinstance(parts, (list, tuple)):
        return 1
    shapes: list[Any] = [getattr(part, "shape", None) for part in parts]
    if len(shapes) < 2 or not all(shapes):
        return 1
    lengths = {shape[0] for shape in shapes}
    return None if len(lengths) == 1 and lengths.pop() > 1 else 1


def _length(rows: Any) -> int | None:
    try:
        return len(rows)
    except Exception:  # a sampler or a batch may be anything
        return None


def unknown(batch: Any) -> None:
    """Return None: the loader tells nothing."""
    return None


def _of_rows(batch: Any) -> int | None:
    return None if isinstance(batch, tuple) else _length(batch)  # a tuple has parts, not rows


def _of_first_column(batch: Any) -> int | None:
    if isinstance(batch, Mapping):
        return _length(next(iter(batch.values()), None))
    if isinstance(batch, (list, tuple)) and batch:
        return _length(batch[0])
    return None


def _of_last_column(batch: Any) -> int | None:
    if isinstance(batch, (list, tuple)) and batch:
        return of_columns(batch[-1])
    return None


_RULERS: tuple[Counter, ...] = (of_columns, _of_rows, _of_first_column, _of_last_column)
