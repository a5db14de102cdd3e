"""From a state to the run record: what every record says, and what that of a training says besides."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.machine import installed_versions, this_host
from labkit.panel.state.base import State
from labkit.runs.record import RunRecord, folder_of, this_process


def write(state: State, run_id: str, home: Path) -> str:
    """Write the record of a run, over or not, and return its path.

    Raises:
        RunError: the folder cannot be written to.
    """
    failed = state.status == "failed" and state.failures
    record = RunRecord(
        name=state.name,
        run_id=run_id,
        engine=state.engine,
        state=state.status,
        started_at=datetime.fromtimestamp(state.started_at, UTC).isoformat(timespec="milliseconds"),
        seconds_total=state.elapsed(),
        error=state.failures[-1].message if failed else None,
        versions=installed_versions(),
        host=this_host(),
        process=this_process() if state.status == "running" else {},
    )
    return str(replace(record, **state.to_record()).write(folder_of(home, state.name, run_id)))


def fields_of(state: Any) -> dict[str, Any]:
    """The fields of `labkit.runs.record.RunRecord` for a `RunState`."""
    spent = state.time_breakdown()
    return {
        "workers": state.world_size,
        "dataset": state.dataset,
        "rows": state.rows,
        "config": state.config,
        "scaling": state.scaling,
        "storage_path": state.storage_path,
        "seconds_to_start": spent["start"] if state.first_step_at else None,
        "seconds_per_epoch": state.epoch_seconds,
        "seconds": spent,
        "rows_per_second": state.rows_per_second() or None,
        "waiting_share": state.waiting_share(),
        "metrics": state.metrics(),
        "history": list(state.history),
        "checkpoints": state.checkpoints.kept,
        "checkpoint": next((one.path for one in reversed(state.checkpoints) if not one.deleted), None),
        "extra": _time_axis(state),
    }


def _time_axis(state: Any) -> dict[str, Any]:
    """The checkpoints one by one and the spans of a run that validated, in its loop or in parallel."""
    if not state.spans.row("validation"):
        return {}
    ended = {f"epoch {span.label}": span.end for span in state.spans.row("training")}
    checkpoints = [
        {
            "checkpoint": one.label,
            "status": one.status,
            "seconds_waiting": one.waited,
            "seconds_validating": one.seconds,
            "seconds_to_metric": _between(ended.get(one.label), one.decided_at or one.committed_at),
            "metrics": one.metrics,
        }
        for one in state.checkpoints
    ]
    zero = min(span.begin for span in state.spans)
    spans = [
        {"row": s.row, "label": s.label, "begin": s.begin - zero, "end": (s.end or s.begin) - zero,
         "status": s.status}
        for s in state.spans
    ]  # fmt: skip
    return {"checkpoints": checkpoints, "timeline": spans}


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else max(end - begin, 0.0)
