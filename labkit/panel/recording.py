"""From the state of a run that is over to the record of it that stays."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.machine import installed_versions, this_host
from labkit.panel.state.run import RunState
from labkit.runs.record import RunRecord, folder_of, this_process


def keep(record: RunRecord, *, home: Path) -> Path:
    """Write the record of a run below ``home/runs``; that of one which still runs says in which process.

    Raises:
        RunError: it cannot be written there.
    """
    if record.state == "running":
        record = replace(record, process=this_process())
    return record.write(folder_of(home, record.name, record.run_id))


def record_of(state: RunState, *, run_id: str) -> RunRecord:
    """The run record of a run, as far as it got."""
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
        config=state.config,
        scaling=state.scaling,
        storage_path=state.storage_path,
        started_at=datetime.fromtimestamp(state.started_at, UTC).isoformat(timespec="milliseconds"),
        seconds_total=state.elapsed(),
        seconds_to_start=spent["start"] if state.first_step_at else None,
        seconds_per_epoch=list(state.epoch_seconds),
        rows_per_second=state.rows_per_second() or None,
        waiting_share=state.waiting_share(),
        metrics=state.metrics(),
        history=list(state.history),
        checkpoints=state.checkpoints.kept,
        checkpoint=next((one.path for one in reversed(state.checkpoints) if not one.deleted), None),
        error=failure,
        seconds=spent,
        versions=installed_versions(),
        host=this_host(),
        extra=_beside(state),
    )


def _beside(state: RunState) -> dict[str, Any]:
    """The checkpoints one by one and the time axis of a run that validated, in its loop or beside it."""
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
