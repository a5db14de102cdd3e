"""The reader's marks on past runs: tags, and a note.

>>> runs.tag("20260131-120000-a1b2c3", "paper")
['paper']
>>> runs.note("20260131-120000-a1b2c3", "the learning rate was too high")
>>> runs.table(tag="paper", columns=["id", "note", "accuracy"])

They are in a file of their own next to the record, which the panel of a running run writes every few seconds.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.files import atomic_write
from labkit.runs.browse import get
from labkit.runs.record import MARKS_NAME, Home, RunRecord, read

_PATIENCE = 10  # seconds, while another process marks the same run


def tag(run: str | RunRecord, *tags: str, remove: bool = False, home: Home = None) -> list[str]:
    """Add tags to a run, or remove them; return those that it has then.

    Args:
        run: its id, or its record.

    Raises:
        LabError: there is no such run, or its folder cannot be written to.
    """
    given = list(dict.fromkeys(map(str, tags)))

    def change(record: RunRecord) -> dict[str, Any]:
        kept = [one for one in record.tags if one not in given]
        return {"tags": kept if remove else kept + given}

    return _mark(run, home, change)["tags"]


def note(run: str | RunRecord, text: str, *, home: Home = None) -> None:
    """Write a note on a run, in place of an earlier one.

    Raises:
        LabError: there is no such run, or its folder cannot be written to.
    """
    _mark(run, home, lambda _: {"note": str(text)})


def _mark(run: str | RunRecord, home: Home, change: Callable[[RunRecord], dict[str, Any]]) -> dict[str, Any]:
    """Change the marks of a run, one process after the other, and return them."""
    from filelock import FileLock

    path = Path(get(run, home).folder) / MARKS_NAME
    try:
        with FileLock(path.with_name(f".{MARKS_NAME}.lock"), timeout=_PATIENCE):
            record = read(path.parent)  # those of version 0.1.0 have their marks in the record
            marks = {"tags": record.tags, "note": record.note} | change(record)
            atomic_write(path, json.dumps(marks, indent=1))
    except OSError as error:
        raise LabError(f"mark the run in {path.parent}", str(error), "make that folder writable") from error
    return marks
