"""The lessons' networks in PyTorch, the plain training loop, and checkpoints on disk.

    model = mlp(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        train = train_epoch(model, batches(images, labels, size=64, seed=epoch), loss_fn, optimizer)
        test = evaluate(model, batches(test_images, test_labels, size=1024, shuffle=False), loss_fn)
        save_state(folder, model, optimizer, epoch)

Lessons write the loops out, then import them. No engine is needed: a model may be wrapped in
DistributedDataParallel, and batches may come from Ray Data (dicts with "image" and "label") or a DataLoader.
The networks have no batch normalization and no dropout: with those, two workers would not train the same
model as one process does with the same global batch.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from labkit.errors import LabError
from labkit.files import atomic_path
from labkit.models.weights import CLASSES, SIDE, distance, initial_weights, not_uint8

STATE_FILE = "state.pt"
_Batch = tuple[torch.Tensor, torch.Tensor] | Mapping[str, torch.Tensor]
_LossFn = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


# -- networks ---------------------------------------------------------------------------------------


def mlp(hidden: Sequence[int] = (128, 64), *, seed: int | None = None) -> nn.Sequential:
    """Fully connected layers 784-128-64-10 with ReLU between them: the model of all comparisons.

    Takes float32 [n, 28, 28] in 0..1 (see `to_input`), gives logits float32 [n, 10].

    Args:
        hidden: widths of the hidden layers; ``()`` is a linear model.
        seed: the same seed gives the same weights in every process, and leaves torch's own random
            numbers where they were; None draws from those.
    """
    layers, inputs = [nn.Flatten()], SIDE * SIDE
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        for outputs in hidden:
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
            inputs = outputs
        return _with_weights(nn.Sequential(*layers, nn.Linear(inputs, CLASSES)), seed)


def cnn(*, seed: int | None = None) -> nn.Sequential:
    """Twice convolution 3×3 (16, then 32 channels), ReLU, 2×2 maximum; then one linear layer.

    Takes and gives what `mlp` does, with the same `seed`. It has fewer weights (20,490) than `mlp` (109,386)
    and computes far more with each: a worker exchanges less for the work it does.
    """
    layers: list[nn.Module] = [nn.Unflatten(1, (1, SIDE))]
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        for inputs, outputs in ((1, 16), (16, 32)):
            layers += [nn.Conv2d(inputs, outputs, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        return _with_weights(nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 7 * 7, CLASSES)), seed)


@torch.no_grad()
def _with_weights(model: nn.Sequential, seed: int | None) -> nn.Sequential:
    """`model` with the first weights of `seed`, or those that torch drew."""
    if seed is not None:
        arrays = initial_weights([parameter.shape for parameter in model.parameters()], seed)
        for parameter, array in zip(model.parameters(), arrays, strict=True):
            parameter.copy_(torch.from_numpy(array))
    return model


def to_input(images: Any) -> torch.Tensor:
    """Convert uint8 images (array or tensor) to float32 in 0..1, of the same shape and on the same device.

    Raises:
        LabError: the images are not uint8.
    """
    tensor = images if isinstance(images, torch.Tensor) else torch.tensor(images)
    if tensor.dtype != torch.uint8:
        raise not_uint8(str(tensor.dtype).removeprefix("torch."))
    return tensor.to(torch.float32).div_(255)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, without DistributedDataParallel around it."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def parameter_distance(a: nn.Module | Mapping, b: nn.Module | Mapping) -> float:
    """The largest absolute difference between two models' weights: 0.0 where they are equal, NaN for a NaN.

    Args:
        a, b: models, wrapped or not, or their ``state_dict()``.

    Raises:
        LabError: they do not have the same weights by name and shape.
    """
    states = (model if isinstance(model, Mapping) else unwrapped(model).state_dict() for model in (a, b))
    return distance(
        *({name: one.detach().double().cpu().numpy() for name, one in state.items()} for state in states)
    )


# -- the training loop ------------------------------------------------------------------------------


class batches:  # noqa: N801, it is called as a function
    """An iterable over (x float32 [b, 28, 28] in 0..1, y int64 [b]); ``len()`` gives the number of steps.

    Args:
        images, labels: uint8 [n, 28, 28] and int64 [n], arrays or tensors.
        size: rows in a batch; the last one has what is left.
        shuffle: in an order that depends on `seed` alone. Pass the epoch, so that each has its own.

    Raises:
        LabError: images and labels differ in number.
    """

    def __init__(self, images: Any, labels: Any, *, size: int, shuffle: bool = True, seed: int = 0) -> None:
        if len(images) != len(labels):
            fact = f"there are {len(images)} images and {len(labels)} labels"
            raise LabError("make batches", fact, "give one label per image")
        self._images, self._labels = _tensor(images), _tensor(labels).long()
        self._size, self._seed = size, seed if shuffle else None

    def __len__(self) -> int:
        return -(-len(self._labels) // self._size)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = torch.arange(count := len(self._labels))
        if self._seed is not None:
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
        update), rows, seconds. In a distributed run each is only of this worker's rows.

    Raises:
        LabError: there was no batch.
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
    return {**total.means(), "seconds": time.perf_counter() - started}


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Iterable[_Batch], loss_fn: _LossFn = nn.functional.cross_entropy
) -> dict[str, float]:
    """Return loss, accuracy (means over the rows) and rows of `batches`; the model does not change.

    A model that is wrapped for distributed training may be evaluated on only one rank.

    Raises:
        LabError: there was no batch.
    """
    model, total = unwrapped(model), _Total()
    was_training = model.training
    model.eval()
    try:
        for x, y in _on_device(batches, model):
            logits = model(x)
            total.add(logits, loss_fn(logits, y), y)
    finally:
        model.train(was_training)
    return total.means()


class _Total:
    """Sums over batches. They stay tensors until the end, so that no step waits for a GPU."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._rows = 0

    def add(self, logits: torch.Tensor, loss: torch.Tensor, y: torch.Tensor) -> None:
        sums = {"loss": loss * len(y)}
        if logits.ndim == 2 and y.ndim == 1 and not y.is_floating_point():  # a regression has no accuracy
            sums["accuracy"] = (logits.argmax(dim=1) == y).sum()
        self._sums = {name: self._sums.get(name, 0) + value for name, value in sums.items()}
        self._rows += len(y)

    def means(self) -> dict[str, float]:
        if not self._rows:
            raise LabError("run an epoch", "there was no batch", "give batches with rows, a fresh iterator")
        return {name: float(value) / self._rows for name, value in self._sums.items()} | {"rows": self._rows}


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


# -- checkpoints ------------------------------------------------------------------------------------


def save_state(
    folder: Path | str, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, **others: Any
) -> Path:
    """Write ``state.pt`` into `folder`, atomically: all that a run needs to resume after `epoch`.

    Args:
        epoch: index of the epoch that is done, from 0.
        others: what else has a ``state_dict()``: ``scheduler=scheduler``, a `GradScaler` and the like.

    Raises:
        OSError, RuntimeError: the folder cannot be written to.
    """
    path = Path(folder) / STATE_FILE
    parts = {"model": unwrapped(model), "optimizer": optimizer, **others}
    state = {name: one.state_dict() for name, one in parts.items()}
    for group in state["optimizer"]["param_groups"]:
        # A learning rate that a sweep hands out is a number of numpy, which `weights_only` refuses.
        group |= {name: one.item() for name, one in group.items() if isinstance(one, np.generic)}
    with atomic_path(path) as partial:
        torch.save({**state, "epoch": epoch}, partial)
    return path


def load_state(
    folder: Path | str, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **others: Any
) -> dict[str, int]:
    """Load what `save_state` wrote into `model`, wrapped or not, `optimizer` and `others`.

    It runs no code out of the file (``weights_only=True``), so a checkpoint may come from a stranger.

    Returns:
        ``{"epoch": …}``: training resumes with ``epoch + 1``.

    Raises:
        LabError: the file is missing or damaged, lacks one of `others`, or is of another model or optimizer.
    """
    path, attempt = Path(folder) / STATE_FILE, f"load the training state {Path(folder) / STATE_FILE}"
    parts = {"model": unwrapped(model), **({"optimizer": optimizer} if optimizer else {}), **others}
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        saved, epoch = {name: state[name] for name in parts}, int(state["epoch"])
        for name, one in parts.items():
            one.load_state_dict(saved[name])
    except FileNotFoundError:
        fix = "give the folder that save_state wrote to, or train from scratch"
        raise LabError(attempt, "there is no such file", fix) from None
    except Exception as error:  # damaged bytes make torch raise nearly anything
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        fix = "build the model as it was saved, pass what save_state got, or take an earlier checkpoint"
        raise LabError(attempt, f"it is damaged, or of another model: {said}", fix) from error
    return {"epoch": epoch}
