"""What the run record says of a training, beyond what it says of every run."""

from typing import Any


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
