"""A table of what a class has solved, from collected ``exercises.json`` files.

    $ python -m course.classroom results collected > results.csv

``python -m labkit home`` prints the folder that has a learner's file. The folder `collected` has one file for
each learner, ``anna.json`` or ``anna/exercises.json``. Learners can edit their files, so the table shows work
and proves nothing.
"""

import contextlib
import csv
import json
from pathlib import Path
from typing import Any, TextIO

from course.classroom import plan
from labkit.errors import BadInput

_LARGEST = 1_000_000  # bytes; all exercises and predictions take 20 kB


def write(folder: Path, out: TextIO) -> None:
    """Write a row for each learner to `out`: 1 for a solved exercise, 0 for an open one, and predictions.

    A file that can't be read gets a row that says why, and nothing is counted.

    Raises:
        BadInput: the folder has no such file.
    """
    files = sorted([*folder.glob("*.json"), *folder.glob("*/exercises.json")])
    if not files:
        raise BadInput(
            "read the results",
            f"{folder} has no NAME.json and no NAME/exercises.json",
            "python -m course.classroom results COLLECTED > results.csv",
        )
    ids = plan.read().exercises
    columns = [
        "learner",
        *ids,
        "solved",
        "predictions",
        "right",
        "problem",
    ]
    writer = csv.DictWriter(out, columns, restval=0, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_row(path, set(ids)) for path in files)


def _row(path: Path, ids: set[str]) -> dict[str, Any]:
    name = path.parent.name if path.name == "exercises.json" else path.stem
    if not name.isprintable() or name.startswith(("=", "+", "-", "@")):
        name = f"'{name!r}"  # a spreadsheet would take it for a formula
    try:
        solved, predictions = _read(path)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return {"learner": name, "problem": reason.partition("\n")[0][:120]}
    counted = solved.keys() & ids
    unknown = len(solved) - len(counted)
    problem = f"unknown exercises: {unknown}" if unknown else ""
    verdicts = [prediction.get("verdict") for prediction in predictions.values()]
    return {
        "learner": name,
        **dict.fromkeys(counted, 1),
        "solved": len(counted),
        "predictions": len(predictions),
        "right": verdicts.count("right"),
        "problem": problem,
    }


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is solved and what was predicted, by id."""
    if path.is_symlink() or not path.is_file():
        raise ValueError("not a plain file")
    size = path.stat().st_size
    if size > _LARGEST:
        raise ValueError(f"{size:,} bytes, and at most {_LARGEST:,} are read")
    content = json.loads(path.read_text(encoding="utf-8"))
    with contextlib.suppress(AttributeError, TypeError, ValueError, KeyError):
        solved = dict(content.get("solved", {}))
        predictions = dict(content.get("predictions", {}))
        are_dicts = all(isinstance(prediction, dict) for prediction in predictions.values())
        if content["format"] == 1 and are_dicts:
            return solved, predictions
    raise ValueError("not an exercises.json of this lab")
