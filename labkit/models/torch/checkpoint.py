"""The state of a training on disk, and the distance between two models.

    save_state(folder, model, optimizer, epoch)
    start = load_state(folder, model, optimizer)["epoch"] + 1

Both also take a schedule, a `GradScaler` and the like, as ``scheduler=scheduler``.
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
    folder: Path | str, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, **others: Any
) -> Path:
    """Write ``state.pt`` into `folder`: all that a training needs to resume after `epoch`.

    The file is written atomically. It is loaded by `load_state` into a wrapped or a plain model.

    Args:
        epoch: index of the epoch that is done, from 0.
        others: what else has a ``state_dict()``.

    Raises:
        OSError, RuntimeError: the folder cannot be written to.
    """
    path = Path(folder) / STATE_FILE
    kept = optimizer.state_dict()
    # A learning rate that a sweep hands out is a number of numpy, which `weights_only` refuses.
    kept["param_groups"] = [
        {name: value.item() if isinstance(value, np.generic) else value for name, value in group.items()}
        for group in kept["param_groups"]
    ]
    state = {name: one.state_dict() for name, one in {"model": unwrapped(model), **others}.items()}
    with atomic_path(path) as partial:
        torch.save({**state, "optimizer": kept, "epoch": epoch}, partial)
    return path


def load_state(
    folder: Path | str, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **others: Any
) -> dict[str, int]:
    """Load what `save_state` wrote into `model`, `optimizer` and `others`, on the devices where they are.

    Returns:
        ``{"epoch": …}``: a training resumes with ``epoch + 1``.

    Raises:
        RunError: the file is missing or damaged, or lacks one of `others`; all are then as they were.
        RuntimeError, ValueError: it is of another model or optimizer.
    """
    path = Path(folder) / STATE_FILE
    attempt = f"load the training state {path}"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        weights, of_optimizer, epoch = state["model"], state["optimizer"], state["epoch"]
        if not (isinstance(weights, dict) and isinstance(of_optimizer, dict) and type(epoch) is int):
            raise TypeError("it has other values than save_state writes")
    except FileNotFoundError as error:
        fix = "give the folder that save_state wrote to, or train from the start"
        raise RunError(attempt, "there is no such file", fix) from error
    except Exception as error:  # damaged bytes make torch raise nearly anything
        fact = f"the file is damaged: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise RunError(attempt, fact, "take the checkpoint of an epoch before") from error
    if missing := [name for name in others if name not in state]:
        fix = "pass what was passed to save_state, under the same names"
        raise RunError(attempt, f"it has no state of {', '.join(missing)}", fix)
    saved = [(one, state[name]) for name, one in others.items()]
    saved += [] if optimizer is None else [(optimizer, of_optimizer)]
    before = [(one, one.state_dict()) for one, _ in saved]
    try:
        for one, values in saved:
            one.load_state_dict(values)
        unwrapped(model).load_state_dict(weights)
    except (LookupError, TypeError, AttributeError) as error:  # entries are missing, or are no tensors
        for one, values in before:
            one.load_state_dict(values)
        fact = f"the file is damaged: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise RunError(attempt, fact, "take the checkpoint of an epoch before") from error
    return {"epoch": epoch}


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
