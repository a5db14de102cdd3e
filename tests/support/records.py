"""Records of runs that took place on one morning."""

from pathlib import Path
from typing import Any

from labkit.runs.record import RunRecord, folder_of


def record(minute: int = 0, **fields: Any) -> RunRecord:
    """A run that began in this minute after twelve."""
    about = {"name": "03-torch", "run_id": f"run-{minute}", "engine": "Ray Train", "state": "finished"}
    return RunRecord(**about | {"started_at": f"2026-01-31T12:{minute:02}:00+00:00"} | fields)


def write(home: Path, minute: int = 0, **fields: Any) -> Path:
    """The folder of such a run in a home."""
    one = record(minute, **fields)
    return one.write(folder_of(home, one.name, one.run_id)).parent
