"""The state of a training on disk, and the distance between two models.

    save_state(folder, model, optimizer, epoch)
    start = load_state(folder, model, optimizer)["epoch"] + 1

Loading runs no code out of the file (``weights_only=True``), so a checkpoint may come from a stranger.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from labkit.errors import RunError
from labkit.files import atomic_path
from labkit.models.torch.networks import unwrapped
from labkit.models.weights import distance

STATE_FILE = "state.pt"


def save_state(
    folder: Path | str, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, **extra: Any
) -> Path:
    """Write ``state.pt`` into `folder`: all that a training needs to resume after `epoch`.

    The file is written atomically. It is loaded by `load_state` into a wrapped or a plain model.

    Args:
        epoch: index of the epoch that is done, from 0.
        extra: more to keep, such as metrics: numbers, strings, tensors, and lists and dicts of them.

    Raises:
        RunError: something in `extra` is none of those.
        OSError, RuntimeError: the folder cannot be written to.
    """
    path = Path(folder) / STATE_FILE
    weights = unwrapped(model).state_dict()
    state = {"model": weights, "optimizer": optimizer.state_dict(), "epoch": epoch, "extra": extra}
    with atomic_path(path) as partial:
        torch.save(_loadable(state), partial)
    return path


def load_state(
    folder: Path | str, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> dict[str, Any]:
    """Load what `save_state` wrote into `model` and `optimizer`, on the devices where they are.

    Returns:
        ``{"epoch": …}`` and the extras: a training resumes with ``epoch + 1``.

    Raises:
        RunError: the file is missing or damaged; model and optimizer are then as they were.
        RuntimeError, ValueError: it is of another model or optimizer.
    """
    path = Path(folder) / STATE_FILE
    attempt = f"load the training state {path}"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        weights, of_optimizer = state["model"], state["optimizer"]
        about = {"epoch": state["epoch"], **state["extra"]}
    except FileNotFoundError as error:
        fix = "give the folder that save_state wrote to, or train from the start"
        raise RunError(attempt, "there is no such file", fix) from error
    except Exception as error:  # damaged bytes make torch raise nearly anything
        fact = f"the file is damaged: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise RunError(attempt, fact, "take the checkpoint of an epoch before") from error
    unwrapped(model).load_state_dict(weights)
    if optimizer is not None:
        optimizer.load_state_dict(of_optimizer)
    return about


def parameter_distance(a: nn.Module | Mapping, b: nn.Module | Mapping) -> float:
    """The largest absolute difference between two models' weights: 0.0 where they are equal.

    Args:
        a, b: models, wrapped or not, or their ``state_dict()``. NaN in a weight gives NaN.

    Raises:
        RunError: they do not have the same weights by name and shape.
    """
    states = (model if isinstance(model, Mapping) else unwrapped(model).state_dict() for model in (a, b))
    first, second = (
        {name: weight.detach().double().cpu().numpy() for name, weight in state.items()} for state in states
    )
    return distance(first, second)


def _loadable(value: Any) -> Any:
    """`value` in the types that ``torch.load(weights_only=True)`` takes: numpy's numbers become Python's."""
    if isinstance(value, Mapping):
        return {key: _loadable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_loadable, value))
    if isinstance(value, np.generic):  # a learning rate that a sweep hands out
        return value.item()
    if value is None or isinstance(value, (torch.Tensor, bool, int, float, str)):
        return value
    raise RunError(
        "save a training state",
        f"a {type(value).__name__} is in it, and loading it would run code out of the file",
        "keep numbers, strings, tensors, and lists and dicts of them",
    )
