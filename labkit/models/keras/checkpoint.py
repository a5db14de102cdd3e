"""The state of a Keras training on disk, and the distance between two models.

    save_state(folder, model, epoch, accuracy=0.95)            # every rank, each into a folder of its own
    with strategy.scope():
        model, state = load_state(folder)
    start = state["epoch"] + 1

``model.keras`` holds the layers, the weights and the optimizer; ``state.json`` holds the rest of what a
training needs. Loading runs no code out of the file (Keras's ``safe_mode``).
"""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from labkit.errors import RunError
from labkit.models.weights import distance

MODEL_FILE = "model.keras"  # the name that Ray's ReportCheckpointCallback gives it, too
STATE_FILE = "state.json"

# Keras 2 remembers for each thread whether ".keras" is its own format, and knows it in the main thread alone.
# Ray Train runs a loop in another one: there `model.save("model.keras")` writes HDF5, without `save_format`.
_FORMAT = {"save_format": "keras_v3"} if tf.keras.Model.__module__.startswith("tf_keras.") else {}
_HDF5 = b"\x89HDF\r\n\x1a\n"


def save_state(folder: Path | str, model: Any, epoch: int, **extra: Any) -> Path:
    """Write ``model.keras`` and ``state.json`` into `folder`.

    With several workers every rank must call it, because to save a model Keras sums the metrics of all
    workers: if one rank is missing, the others wait for it.

    Args:
        epoch: index of the epoch that is done, from 0.
        extra: more to keep: numbers, strings, lists and dicts of them.

    Raises:
        RunError: the folder cannot be written to, or something in `extra` is not JSON.
    """
    folder = Path(folder)
    try:
        state = json.dumps({"epoch": int(epoch), **{name: _plain(value) for name, value in extra.items()}})
        folder.mkdir(parents=True, exist_ok=True)
        model.save(folder / MODEL_FILE, **_FORMAT)
        (folder / STATE_FILE).write_text(state)
    except TypeError as error:
        fix = "keep numbers, strings, lists and dicts of them"
        raise RunError("save a training state", str(error), fix) from error
    except OSError as error:
        fix = "look for free space (df -h) and for the right to write there"
        raise RunError(f"save the training state in {folder}", str(error).splitlines()[0], fix) from error
    return folder / MODEL_FILE


def load_state(folder: Path | str) -> tuple[Any, dict[str, Any]]:
    """The model, compiled and with its optimizer as it was, and ``{"epoch": …}`` with the extras.

    Call it inside the strategy's scope. A folder without ``state.json``, as Ray's
    ``ReportCheckpointCallback`` writes it, gives an empty dict.

    Raises:
        RunError: there is no ``model.keras``, or one of the files is damaged.
    """
    path, about = Path(folder) / MODEL_FILE, Path(folder) / STATE_FILE
    attempt = f"load the model {path}"
    if not path.exists():
        there = ", ".join(sorted(p.name for p in Path(folder).iterdir())) if Path(folder).is_dir() else ""
        fact = f"there is no such file; the folder holds {there or 'nothing'}"
        fix = "give the folder of a checkpoint that save_state filled, or train from the start"
        raise RunError(attempt, fact, fix)
    try:
        _refuse_what_is_damaged(path)
        model = tf.keras.models.load_model(path)
        state = json.loads(about.read_text()) if about.exists() else {}
        if not isinstance(state, dict):
            raise ValueError(f"{STATE_FILE} is no training state")
    except Exception as error:  # damaged bytes make Keras raise nearly anything
        fact = f"it is damaged, or of another Keras: {type(error).__name__}: {_one_line(error)}"
        fix = "take the checkpoint of an epoch before, or train from the start"
        raise RunError(attempt, fact, fix) from error
    return model, state


def _refuse_what_is_damaged(path: Path) -> None:
    """Raises BadZipFile. Keras itself does not look at all checksums."""
    with path.open("rb") as file:
        if file.read(len(_HDF5)) == _HDF5:  # as Ray's callback writes it with Keras 2; it has no checksums
            return
    with zipfile.ZipFile(path) as archive:
        if damaged := archive.testzip():
            raise zipfile.BadZipFile(f"the checksum of {damaged} differs")


def weights_distance(a: Any, b: Any) -> float:
    """The largest absolute difference between two models' weights: 0.0 where they are equal.

    Args:
        a, b: models, or what their ``get_weights()`` gives. NaN in a weight gives NaN.

    Raises:
        RunError: they do not have as many weights of the same shapes.
    """
    return distance(_weights(a), _weights(b))


def _weights(model: Any) -> dict[str, np.ndarray]:
    arrays = model.get_weights() if hasattr(model, "get_weights") else model
    return {f"weight {number}": np.asarray(array) for number, array in enumerate(arrays)}


def _plain(value: Any) -> Any:
    """numpy's and TensorFlow's numbers become Python's."""
    return value.item() if hasattr(value, "item") else float(value) if tf.is_tensor(value) else value


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
