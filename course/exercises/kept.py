"""The file of what a reader has done, ``HOME/exercises.json``:

    {"format": 1,
     "solved": {"03-1": "2026-01-02T10:00:00+00:00"},
     "hints": {"03-2": 2},
     "predictions": {"03-a": {"guess": 2, "answer": 0.7, "verdict": "off"}},
     "minutes": {"03 The loop": {"minutes": 12.5, "from": 1767348000.0, "to": 1767348750.0}},
     "runs": {"03-torch": {"workers": 2, "rows/s": 18300.0}},
     "doctor": ["Java"]}

The last three are of readers who are in a class (see `course.classroom.attendance`). A section that this
version does not know is written back unchanged.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.files import atomic_write, json_object
from labkit.settings import Settings

# The type of an entry, by section.
_ENTRIES = {
    "solved": str,
    "hints": int,
    "predictions": dict,
    "minutes": dict,
}


def load(section: str) -> dict[str, Any]:
    """Return the entries of a section by id; of a file that can't be read, none."""
    try:
        return _read(_path()).get(section, {})
    except (OSError, ValueError):
        return {}


def keep(
    section: str,
    id: str,
    value: Any,
    merge: Callable[[Any, Any], Any] = lambda new, old: new,
) -> str:
    """Keep `value` in a section, or what `merge` makes of it and the value that is there; see `update`."""

    def change(content: dict[str, Any]) -> None:
        entries = content.setdefault(section, {})
        if id in entries:
            entries[id] = merge(value, entries[id])
        else:
            entries[id] = value

    return update(change)


def update(change: Callable[[dict[str, Any]], None]) -> str:
    """Read the file, let `change` edit its content, and write it; several kernels may do so at once.

    A damaged file is moved to ``exercises.unreadable``; one that can't be read for another reason (a network
    drive that is gone for a moment) is left alone. Returns why nothing was kept, or nothing.
    """
    from filelock import FileLock

    path = _path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A separate lock file: exercises.json is replaced, and a lock on a replaced file locks nothing.
        with FileLock(path.parent / ".exercises.lock", timeout=10):
            try:
                content = _read(path)
            except ValueError:
                os.replace(path, path.with_suffix(".unreadable"))
                content = {}
            change(content)
            atomic_write(path, json.dumps({"format": 1, **content}, indent=1))
    except OSError as error:
        return f" (not kept: {error})"
    return ""


def _path() -> Path:
    return Settings.from_env().home / "exercises.json"


def _read(path: Path) -> dict[str, Any]:
    """Read the file, without entries of a wrong type. A ValueError means that it is damaged."""
    try:
        content = json_object(path.read_bytes(), dict.fromkeys(_ENTRIES, dict))
    except FileNotFoundError:
        return {}
    for section in _ENTRIES.keys() & content:
        entries = content[section].items()
        content[section] = {id: entry for id, entry in entries if isinstance(entry, _ENTRIES[section])}
    return content
