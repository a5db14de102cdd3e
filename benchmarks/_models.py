"""The network of all comparisons, and the plain training loop."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from course.models.torch import seeded


def mlp(hidden: Sequence[int] = (128, 64), *, seed: int = 0) -> nn.Module:
    """Fully connected layers 784-128-64-10 with ReLU between them.

    Takes float32 [n, 28, 28] in 0..1 (see `to_input`), gives logits float32 [n, 10].
    """
    layers = [nn.Flatten()]
    inputs = 28 * 28
    for outputs in hidden:
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        inputs = outputs
    return seeded(nn.Sequential(*layers, nn.Linear(inputs, 10)), seed)


def to_input(images: Any) -> torch.Tensor:
    """Convert uint8 images (array or tensor) to float32 in 0..1."""
    tensor = images if isinstance(images, torch.Tensor) else torch.tensor(images)
    return tensor.to(torch.float32) / 255


def train_epoch(
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor] | Mapping[str, torch.Tensor]],
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
) -> dict[str, float]:
    """Pass over `batches` once, with one update per batch. Return the mean loss and accuracy of the rows.

    Args:
        batches: pairs (x, y), or Ray Data's dicts with "image" and "label"; uint8 images are scaled.
        loss_fn: (logits, labels) → the mean loss of a batch.
    """
    model.train()
    rows = 0
    loss_sum = 0
    right = 0
    for batch in batches:
        if isinstance(batch, Mapping):
            batch = batch["image"], batch["label"]
        x, y = batch
        if x.dtype == torch.uint8:
            x = to_input(x)
        optimizer.zero_grad()
        logits = model(x)
        loss = loss_fn(logits, y)
        loss.backward()
        optimizer.step()
        rows += len(y)
        loss_sum += loss.detach() * len(y)
        right += (logits.detach().argmax(dim=1) == y).sum()
    return {"loss": float(loss_sum) / rows, "accuracy": float(right) / rows}
