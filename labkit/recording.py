"""From the state of a run that is over to the record of it that stays."""

import re
from datetime import UTC, datetime
from pathlib import Path

from labkit.progress import RunState
from labkit.records import RunRecord, installed_versions, this_host

__all__ = ["keep", "record_of"]


def keep(record: RunRecord, *, home: Path) -> Path:
    """Write the record of a run that is over below ``home/runs``.

    Raises:
        RunError: it cannot be written there.
    """
    return record.write(home / "runs" / _folder_name(record.name) / record.run_id)


def record_of(state: RunState, *, run_id: str) -> RunRecord:
    """The run record of a run that is over."""
    spent = state.seconds()
    failure = state.failures[-1].message if state.status == "failed" and state.failures else None
    return RunRecord(
        name=state.name,
        run_id=run_id,
        engine=state.engine,
        state=state.status,
        workers=state.world_size,
        dataset=state.dataset,
        rows=state.rows,
        started_at=datetime.fromtimestamp(state.started_at, UTC).isoformat(timespec="milliseconds"),
        seconds_total=state.elapsed(),
        seconds_to_start=spent["start"] if state.first_step_at else None,
        seconds_per_epoch=list(state.epoch_seconds),
        rows_per_second=state.rows_per_second() or None,
        waiting_share=state.waiting_share(),
        metrics=state.metrics(),
        history=list(state.history),
        checkpoints=len(state.checkpoints),
        error=failure,
        seconds=spent,
        versions=installed_versions(),
        host=this_host(),
    )


def _folder_name(name: str) -> str:
    """The name of a run as that of one folder: no way out of ``runs``, and not too long for a file system."""
    return re.sub(r"[^\w.-]+", "-", name)[:80].strip(".-") or "run"
