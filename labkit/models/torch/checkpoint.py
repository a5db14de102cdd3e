"""The state of a training on disk, and the distance between two models.

    save_state(folder, model, optimizer, epoch)
    start = load_state(folder, model, optimizer)["epoch"] + 1

Loading runs no code out of the file (``weights_only=True``), so a checkpoint may come from a stranger.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from labkit.errors import RunError
from labkit.files import atomic_path
from labkit.models.torch.networks import require_model, unwrapped
from labkit.models.weights import difference_in_shape, distance

STATE_FILE = "state.pt"
_FIELDS = {"model", "optimizer", "optimizer_class", "epoch", "extra"}


def save_state(
    folder: Path | str, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, **extra: Any
) -> Path:
    """Write ``state.pt`` into `folder`: all that a training needs to resume after `epoch`.

    The file is written atomically. It is loaded by `load_state` into a wrapped or a plain model.

    Args:
        epoch: index of the epoch that is done, from 0.
        extra: more to keep, such as metrics: numbers, strings, tensors, and lists and dicts of them.

    Raises:
        RunError: something in `extra` is none of those, or the folder cannot be written to.
    """
    require_model("save a training state", model)
    if not isinstance(optimizer, torch.optim.Optimizer):
        fact = f"the optimizer is of type {type(optimizer).__name__}"
        raise RunError("save a training state", fact, "pass the torch optimizer of that training")
    path = Path(folder) / STATE_FILE
    state = {
        "model": unwrapped(model).state_dict(),
        "optimizer": optimizer.state_dict(),
        "optimizer_class": type(optimizer).__name__,
        "epoch": epoch,
        "extra": extra,
    }
    try:
        with atomic_path(path) as partial:
            torch.save(_loadable(state), partial)
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError where it cannot write
        fix = "look for free space (df -h) and for the right to write there"
        raise RunError(f"save the training state {path}", str(error).splitlines()[0], fix) from error
    return path


def load_state(
    folder: Path | str, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> dict[str, Any]:
    """Load what `save_state` wrote into `model` and `optimizer`, on the devices where they are.

    Returns:
        ``{"epoch": …}`` and the extras: a training resumes with ``epoch + 1``.

    Raises:
        RunError: the file is missing or damaged, or is of another model or optimizer. Model and
            optimizer are then as they were.
    """
    require_model("load a training state", model)
    path = Path(folder) / STATE_FILE
    state = _read(path)
    model = unwrapped(model)
    # load_state_dict would find out too, but after it has overwritten the weights that do fit.
    if fact := difference_in_shape(state["model"], model.state_dict()):
        raise RunError(
            f"load the training state {path}",
            f"it is of another model: {fact}",
            "build the model as it was built for that training, then load",
        )
    if optimizer is not None:
        _load_optimizer(path, state, optimizer)
    model.load_state_dict(state["model"])
    return {"epoch": state["epoch"], **state["extra"]}


def parameter_distance(a: nn.Module | Mapping, b: nn.Module | Mapping) -> float:
    """The largest absolute difference between two models' weights: 0.0 where they are equal.

    Args:
        a, b: models, wrapped or not, or their ``state_dict()``. NaN in a weight gives NaN.

    Raises:
        RunError: they do not have the same weights by name and shape.
    """
    first, second = (
        {name: weight.detach().double().cpu().numpy() for name, weight in _weights(model).items()}
        for model in (a, b)
    )
    return distance(first, second)


def _weights(model: nn.Module | Mapping) -> Mapping[str, torch.Tensor]:
    return model if isinstance(model, Mapping) else unwrapped(model).state_dict()


def _loadable(value: Any) -> Any:
    """`value` in the types that ``torch.load(weights_only=True)`` takes: numpy's numbers become Python's."""
    if value is None or isinstance(value, (torch.Tensor, bool)):
        return value
    for plain in (str, int, float):  # a numpy float64, as a sweep hands out, is a float too
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, Mapping):
        return {key: _loadable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_loadable(item) for item in value)
    if hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0:
        return value.item()
    raise RunError(
        "save a training state",
        f"a {type(value).__name__} is in it, and loading it would run code out of the file",
        "keep numbers, strings, tensors, and lists and dicts of them",
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as archive:  # torch does not look at the checksums in its own files
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"the checksum of {damaged} differs")
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or not set(state) >= _FIELDS:
            raise ValueError("it is a torch file, but not a training state")
    except FileNotFoundError as error:
        fix = "give the folder that save_state wrote to, or train from the start"
        raise RunError(f"load the training state {path}", "there is no such file", fix) from error
    except Exception as error:  # damaged bytes make torch raise nearly anything
        fact = f"the file is damaged: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
        fix = "take the checkpoint of an epoch before, or train from the start"
        raise RunError(f"load the training state {path}", fact, fix) from error
    return state


def _load_optimizer(path: Path, state: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    try:
        if state["optimizer_class"] != type(optimizer).__name__:
            raise ValueError(f"it is of {state['optimizer_class']}, not of {type(optimizer).__name__}")
        optimizer.load_state_dict(state["optimizer"])
    except (ValueError, KeyError) as error:
        fix = "build the optimizer as it was built for that training, or load the model alone"
        fact = f"the optimizer's state does not fit: {error}"
        raise RunError(f"load the training state {path}", fact, fix) from error
