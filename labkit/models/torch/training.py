"""Batches, an epoch of training and an evaluation in plain torch. Lessons write them out, then import them.

    for epoch in range(3):
        train = train_epoch(model, batches(images, labels, size=64, seed=epoch), loss_fn, optimizer)
        test = evaluate(model, batches(test_images, test_labels, size=1024, shuffle=False), loss_fn)

No engine is needed. A model may be wrapped in DistributedDataParallel, and batches may come
from Ray Data (dicts with "image" and "label") or from a DataLoader.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from labkit.errors import RunError
from labkit.models.torch.networks import to_input, unwrapped

_Batch = tuple[torch.Tensor, torch.Tensor] | Mapping[str, torch.Tensor]
_LossFn = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def batches(images: Any, labels: Any, *, size: int, shuffle: bool = True, seed: int = 0) -> "_Batches":
    """An iterable over (x float32 [b, 28, 28] in 0..1, y int64 [b]); ``len()`` gives the number of steps.

    Args:
        images: uint8 [n, 28, 28], array or tensor.
        labels: int64 [n], array or tensor.
        size: rows in a batch; the last one has what is left.
        shuffle: in an order that depends on `seed` alone. Pass the epoch, so that each has its own.

    Raises:
        RunError: images and labels differ in number.
    """
    if len(images) != len(labels):
        fact = f"there are {len(images)} images and {len(labels)} labels"
        raise RunError("make batches", fact, "give one label per image")
    return _Batches(_tensor(images), _tensor(labels).long(), size, seed if shuffle else None)


class _Batches:
    def __init__(self, images: torch.Tensor, labels: torch.Tensor, size: int, seed: int | None) -> None:
        self._images, self._labels, self._size, self._seed = images, labels, size, seed

    def __len__(self) -> int:
        return -(-len(self._labels) // self._size)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        count = len(self._labels)
        if self._seed is None:
            order = torch.arange(count)
        else:
            order = torch.randperm(count, generator=torch.Generator().manual_seed(self._seed))
        for rows in order.split(self._size) if count else ():
            yield to_input(self._images[rows]), self._labels[rows]


def train_epoch(
    model: nn.Module,
    batches: Iterable[_Batch],
    loss_fn: _LossFn,
    optimizer: torch.optim.Optimizer,
    on_step: Callable[..., Any] | None = None,
) -> dict[str, float]:
    """One pass over `batches`, one update per batch, on the device where the model is.

    Args:
        loss_fn: (logits, labels) → the mean loss of a batch.
        on_step: called as ``on_step(loss=…)`` after each update with a 0-d tensor (a panel's ``log``).

    Returns:
        loss and, if the model classifies, accuracy (means over the rows, each taken before its batch's
        update), rows, seconds. In a distributed training each is of this worker's rows alone.

    Raises:
        RunError: there was no batch.
    """
    started = time.perf_counter()
    model.train()
    total = _Total()
    for x, y in _on_device(batches, model):
        optimizer.zero_grad()
        logits = model(x)
        loss = loss_fn(logits, y)
        loss.backward()
        optimizer.step()
        total.add(logits.detach(), loss.detach(), y)
        if on_step is not None:
            on_step(loss=loss.detach())
    return {**total.means("train an epoch"), "seconds": time.perf_counter() - started}


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Iterable[_Batch], loss_fn: _LossFn = nn.functional.cross_entropy
) -> dict[str, float]:
    """Return loss, accuracy (means over the rows) and rows of `batches`; the model does not change.

    A model that is wrapped for distributed training may be evaluated on one rank alone.

    Raises:
        RunError: there was no batch.
    """
    model = unwrapped(model)
    was_training = model.training
    model.eval()
    total = _Total()
    try:
        for x, y in _on_device(batches, model):
            logits = model(x)
            total.add(logits, loss_fn(logits, y), y)
    finally:
        model.train(was_training)
    return total.means("evaluate a model")


class _Total:
    """Sums over batches. They stay tensors until the end: a GPU is not waited for at each step."""

    def __init__(self) -> None:
        self._loss: Any = 0.0
        self._correct: Any = None  # of a regression it stays unknown
        self._rows = 0

    def add(self, logits: torch.Tensor, loss: torch.Tensor, y: torch.Tensor) -> None:
        self._loss += loss * len(y)
        if logits.ndim == 2 and y.ndim == 1 and not y.is_floating_point():
            correct = (logits.argmax(dim=1) == y).sum()
            self._correct = correct if self._correct is None else self._correct + correct
        self._rows += len(y)

    def means(self, attempt: str) -> dict[str, float]:
        if not self._rows:
            raise RunError(attempt, "there was no batch", "give batches with rows, and a fresh iterator")
        means = {"loss": float(self._loss) / self._rows}
        if self._correct is not None:
            means["accuracy"] = float(self._correct) / self._rows
        return {**means, "rows": self._rows}


def _on_device(batches: Iterable[_Batch], model: nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    device = next(model.parameters()).device
    for batch in batches:
        x, y = (batch["image"], batch["label"]) if isinstance(batch, Mapping) else batch
        x, y = _tensor(x).to(device), _tensor(y).to(device)
        yield (to_input(x) if x.dtype == torch.uint8 else x), y


def _tensor(array: Any) -> torch.Tensor:
    """`array` as a tensor, without a copy where the memory may be written to (torch warns of the rest)."""
    flags = getattr(array, "flags", None)
    return torch.as_tensor(array) if flags is None or flags.writeable else torch.tensor(array)
