"""What a reader has solved and predicted: ``exercises.json`` in the lab's home, and the progress table."""

import json
import os
from typing import Any

from labkit.display.cards import Table
from labkit.exercises import registry
from labkit.files import atomic_write
from labkit.settings import Settings

_FILE = "exercises.json"


def load(section: str) -> dict[str, Any]:
    """The entries of a section ("solved", "predictions") by id. A file that cannot be read has none."""
    try:
        content = json.loads((Settings.from_env().home / _FILE).read_text(encoding="utf-8"))
        return dict(content.get(section, {}))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def keep(section: str, id: str, value: Any, *, replace: bool = False) -> str:
    """Keep `value`; several kernels may do so at once. An id that is there stays, unless `replace`.

    Returns:
        Why it could not be kept, for the end of a line; or nothing.
    """
    from filelock import FileLock

    path = Settings.from_env().home / _FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A separate lock file: exercises.json is replaced, and a lock on a replaced file locks nothing.
        with FileLock(path.parent / ".exercises.lock", timeout=10):
            content = {"format": 1, "solved": load("solved"), "predictions": load("predictions")}
            if path.exists() and not content["solved"] and not content["predictions"]:
                os.replace(path, path.with_suffix(".unreadable"))  # damaged, or of a later version
            if replace or id not in content[section]:
                content[section][id] = value
                atomic_write(path, json.dumps(content, indent=1))
    except OSError as error:
        return f" (not kept: {error})"
    return ""


def progress_table() -> Table:
    """List all lessons, their exercises, which of them are solved, and how many predictions were right."""
    lessons, solved, predicted = registry.lessons(), load("solved"), load("predictions")
    count = max(len(lesson.exercises) for lesson in lessons)
    rows = []
    for lesson in lessons:
        done = [one.id in solved for one in lesson.exercises]
        cells = ["✓ solved" if one else "open" for one in done] + ["–"] * (count - len(done))
        found = [one.get("verdict") for id, one in predicted.items() if id[:2] == lesson.number]
        guessed = f"{found.count('right')} of {len(found)}" if found else "–"
        rows.append((f"{lesson.number} {lesson.title}", *cells, f"{sum(done)} of {len(done)}", guessed))
    return Table(("lesson", *map(str, range(1, count + 1)), "solved", "predicted"), rows)
