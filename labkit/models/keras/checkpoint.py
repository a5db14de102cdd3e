"""The state of a Keras training on disk, and the distance between two models.

    save_state(folder, model, epoch, accuracy=0.95)            # every rank, each into a folder of its own
    with strategy.scope():
        model, state = load_state(folder)
    start = state["epoch"] + 1

``model.keras`` holds the layers, the weights and the optimizer; ``state.json`` holds the rest of what a
training needs. Loading runs no code out of the file (Keras's ``safe_mode``).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from labkit.errors import RunError
from labkit.models.weights import distance

MODEL_FILE = "model.keras"  # the name that Ray's ReportCheckpointCallback gives it, too
STATE_FILE = "state.json"

# Keras 2 remembers for each thread whether ".keras" stands for its own format or for HDF5, and knows it only
# in the main thread from the start. In another one, where Ray Train runs a loop, the first save is in Keras's
# own format, and all later ones are HDF5. `save_format` settles it.
_FORMAT = {"save_format": "keras_v3"} if tf.keras.Model.__module__.startswith("tf_keras.") else {}


def save_state(folder: Path | str, model: Any, epoch: int, **extra: Any) -> Path:
    """Write ``model.keras`` and ``state.json`` into `folder`, and return the path of the model.

    With several workers every rank must call it, because to save a model Keras sums the metrics of all
    workers: if one rank is missing, the others wait for it.

    Args:
        epoch: index of the epoch that is done, from 0.
        extra: more to keep: numbers, strings, lists and dicts of them.

    Raises:
        TypeError: something in `extra` is not JSON.
        OSError: the folder cannot be written to.
    """
    folder = Path(folder)
    state = json.dumps({"epoch": int(epoch), **extra}, default=float)  # numbers of numpy and TensorFlow
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / MODEL_FILE, **_FORMAT)
    (folder / STATE_FILE).write_text(state)
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
        there = ", ".join(sorted(p.name for p in Path(folder).glob("*"))) or "nothing"
        fix = "give the folder of a checkpoint that save_state filled, or train from the start"
        raise RunError(attempt, f"there is no such file; the folder holds {there}", fix)
    try:
        return tf.keras.models.load_model(path), json.loads(about.read_text()) if about.exists() else {}
    except Exception as error:  # damaged bytes make Keras raise nearly anything
        said = " ".join(str(error).split())[:120]
        fact = f"it is damaged, or of another Keras: {type(error).__name__}: {said}"
        fix = "take the checkpoint of an epoch before, or train from the start"
        raise RunError(attempt, fact, fix) from error


def weights_distance(a: Any, b: Any) -> float:
    """The largest absolute difference between two models' weights: 0.0 where they are equal.

    Args:
        a, b: models, or what their ``get_weights()`` gives. NaN in a weight gives NaN.

    Raises:
        RunError: they do not have as many weights of the same shapes.
    """
    weights = (model.get_weights() if hasattr(model, "get_weights") else model for model in (a, b))
    return distance(*({str(n): np.asarray(array) for n, array in enumerate(arrays)} for arrays in weights))
