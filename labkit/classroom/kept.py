"""What a reader has solved, asked for and predicted, and how long it took: ``exercises.json``."""

import json
import os
from typing import Any

from labkit.files import atomic_write, has_type, json_object
from labkit.settings import Settings

_FILE = "exercises.json"
_SECTIONS: dict[str, Any] = {
    "solved": str,
    "hints": int,
    "predictions": dict[str, str | float],
    "minutes": dict[str, float],
}
_NEEDS = {"predictions": {"guess"}, "minutes": {"minutes", "from", "to"}}


def load(section: str) -> dict[str, Any]:
    """The entries of a section ("solved", "hints", …) by id, without damaged ones."""
    kind, needs = _SECTIONS[section], _NEEDS.get(section, set())
    try:
        entries = json_object((Settings.from_env().home / _FILE).read_bytes(), {section: dict}).get(
            section, {}
        )
    except (OSError, ValueError):
        return {}
    return {
        id: one for id, one in entries.items() if has_type(one, kind) and (not needs or needs <= one.keys())
    }


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
            content = {name: load(name) for name in _SECTIONS}
            if path.exists() and not any(content.values()):
                os.replace(path, path.with_suffix(".unreadable"))  # damaged, or of a later version
            if replace or id not in content[section]:
                content[section][id] = value
                atomic_write(path, json.dumps({"format": 1, **content}, indent=1))
    except OSError as error:
        return f" (not kept: {error})"
    return ""
