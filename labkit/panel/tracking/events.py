"""The events of a run: what each kind carries, and how one is checked.

Events are JSON objects, made by a `Tracker`. All have ``kind``, ``run``, ``at`` (Unix seconds),
``rank``, ``pid`` and ``node``; their kinds, and what each carries:

========== =====================================================================================
worker     a worker process exists; ``workers``: how many its group has, if known
phase      ``name`` (loading, training, evaluating, uploading, …)
step       ``epoch``, ``epochs``, ``step``, ``total``, ``rows``, ``seconds``, ``waiting``, ``first_wait``,
           ``between``, ``metrics``, ``done``: counts within this epoch and worker; ``memory``,
           ``gpu_memory`` (bytes) and ``gpu_percent`` of its process, as far as known. ``counted``: the
           epochs were counted from outside, from this process's first on; then ``made`` is the steps of
           all of them, and ``fed`` whether there is a loader
saved      ``epoch`` and ``step``: epochs and steps of this process when it gave a checkpoint to Ray
empty      this worker's loader had no batch
report     ``metrics``; ``epoch`` if known; ends an epoch
checkpoint ``path``, ``bytes``, ``status`` (committed, pending, validated, failed, timed out, deleted),
           ``metrics``
validation ``path`` of the checkpoint, ``done``, ``seconds`` that it took, ``text`` of what it raised: one
           that runs in parallel to the training
print      ``text``: a line that the training function printed
failure    ``text``: the worker's traceback; the engine may start the workers again
========== =====================================================================================

What arrives may come from a newer version, or from a run that reports anything. `read` checks and
converts it once, so the states behind it rely on its types.
"""

import re
import time
from functools import partial
from numbers import Real
from typing import Any

_MOST_METRICS = 100
_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # colours and cursor movements
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def read(event: Any) -> dict[str, Any] | None:
    """Return the known fields of `event`, each of its type; None if it is not an event.

    A field of a wrong type counts as missing. An event without a field that its kind needs is dropped.
    """
    kind = event.get("kind") if isinstance(event, dict) else None
    if not isinstance(kind, str):
        return None
    known: dict[str, Any] = {"kind": kind, "at": time.time(), "rank": 0, "pid": 0, "node": ""}
    for name in event.keys() & _FIELDS.keys():
        value = _FIELDS[name](event[name])
        if value is not None:
            known[name] = value
    return known if _NEEDS.get(kind, set()) <= known.keys() else None


def _number(value: Any) -> float | None:
    """A finite number from 0 on, of Python or numpy."""
    return float(value) if isinstance(value, Real) and 0 <= value < 2**53 else None


def whole(value: Any) -> int | None:
    """A whole number from 0 on, of Python or numpy; None for anything else, such as a search space."""
    number = _number(value)
    return int(number) if number is not None and number.is_integer() else None


def _text(most: int, value: Any) -> str | None:
    if not isinstance(value, (str, int, float)):
        return None
    text = str(value)[: 2 * most].replace("\r\n", "\n")
    return _CONTROL.sub("\ufffd", _TERMINAL.sub("", text))[:most]


def _scalar(value: Any) -> float | int | bool | str | None:
    """The value of a metric: a number (NaN included) or a short text."""
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return _text(100, value if isinstance(value, str) else repr(value))


def _metrics(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    return {_text(100, str(name)): _scalar(value[name]) for name in list(value)[:_MOST_METRICS]}


_FIELDS = {
    **dict.fromkeys(("rank", "pid", "workers", "epoch", "epochs", "step", "total", "rows", "bytes"), whole),
    "made": whole,
    **dict.fromkeys(("memory", "gpu_memory", "gpu_percent"), whole),
    **dict.fromkeys(("at", "seconds", "waiting", "first_wait", "between"), _number),
    **dict.fromkeys(("name", "node", "status"), partial(_text, 100)),
    "path": partial(_text, 1000),
    "text": partial(_text, 10_000),
    **dict.fromkeys(("done", "counted", "fed"), bool),
    "metrics": _metrics,
}
_NEEDS: dict[str, set[str]] = {
    "phase": {"name"},
    "step": {"epoch", "step", "rows", "seconds", "waiting"},
    "saved": {"epoch", "step"},
    "checkpoint": {"path"},
    "validation": {"path"},
    "print": {"text"},
    "failure": {"text"},
}
