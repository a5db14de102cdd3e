"""The lessons' networks in PyTorch, and the plain training loop.

    model = mlp(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        found = train_epoch(model, loader, torch.nn.functional.cross_entropy, optimizer)

Lessons write the loop out. The networks have no batch normalization and no dropout: with those, two workers
would not train the same model as one process does with the same global batch.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from labkit.errors import LabError
from labkit.models import CLASSES, SIDE, initial_weights, not_uint8


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
    """Convert uint8 images (array or tensor) to float32 in 0..1; a `LabError` for other types."""
    tensor = images if isinstance(images, torch.Tensor) else torch.tensor(images)
    if tensor.dtype != torch.uint8:
        raise not_uint8(str(tensor.dtype).removeprefix("torch."))
    return tensor.to(torch.float32).div_(255)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, without DistributedDataParallel around it."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def parameter_distance(a: nn.Module | Mapping, b: nn.Module | Mapping) -> float:
    """The largest absolute difference between two models' weights: 0.0 where they are equal, NaN for a NaN.

    `a` and `b` are models, wrapped or not, or their ``state_dict()``. Other names or shapes are a `LabError`.
    """
    first, second = (one if isinstance(one, Mapping) else unwrapped(one).state_dict() for one in (a, b))
    shapes = [{name: tuple(weight.shape) for name, weight in one.items()} for one in (first, second)]
    if shapes[0] != shapes[1]:
        fact = f"the shapes of their weights are {shapes[0]} and {shapes[1]}"
        raise LabError("compare two models", fact, "compare models that were built by the same call")
    each = [(first[name].cpu().double() - second[name].cpu().double()).abs().max() for name in first]
    return torch.stack(each).max().item()


def train_epoch(
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor] | Mapping[str, torch.Tensor]],
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
) -> dict[str, float]:
    """One pass over `batches`, one update per batch, on the device where the model is.

    Args:
        model: a classifier; it may be wrapped in DistributedDataParallel.
        batches: pairs (x, y), or Ray Data's dicts with "image" and "label"; uint8 images are scaled.
        loss_fn: (logits, labels) → the mean loss of a batch.

    Returns:
        loss and accuracy (means over this worker's rows, each before its batch's update), rows, seconds.
    """
    started, device = time.perf_counter(), next(model.parameters()).device
    model.train()
    rows, loss_sum, right = 0, 0, 0  # the sums stay tensors until the end, so that no step waits for a GPU
    for batch in batches:
        x, y = (batch["image"], batch["label"]) if isinstance(batch, Mapping) else batch
        x, y = torch.as_tensor(x).to(device), torch.as_tensor(y).to(device)
        optimizer.zero_grad()
        logits = model(to_input(x) if x.dtype == torch.uint8 else x)
        loss = loss_fn(logits, y)
        loss.backward()
        optimizer.step()
        rows, loss_sum = rows + len(y), loss_sum + loss.detach() * len(y)
        right += (logits.detach().argmax(dim=1) == y).sum()
    if not rows:
        raise LabError("run an epoch", "there was no batch", "give batches with rows, a fresh iterator")
    means = {"loss": float(loss_sum) / rows, "accuracy": float(right) / rows}
    return {**means, "rows": rows, "seconds": time.perf_counter() - started}
