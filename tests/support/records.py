"""Records of runs that took place on one morning."""

from pathlib import Path
from typing import Any

from labkit.runs.record import RunRecord, folder_of


def record(minute: int = 0, **fields: Any) -> RunRecord:
    """A run that began in this minute after twelve."""
    fixed = {"name": "03-torch", "run_id": f"run-{minute}", "engine": "Ray Train", "state": "finished"}
    return RunRecord(**fixed | {"started_at": f"2026-01-31T12:{minute:02}:00+00:00"} | fields)


def write(home: Path, minute: int = 0, **fields: Any) -> Path:
    """The folder of such a run in a home."""
    run = record(minute, **fields)
    return run.write(folder_of(home, run.name, run.run_id)).parent
