"""From the state of a sweep that is over to the record of it that stays."""

from datetime import UTC, datetime
from typing import Any

from labkit.machine import installed_versions, this_host
from labkit.runs.record import RunRecord
from labkit.tune.state import SweepState, TrialState


def record_of(state: SweepState, *, run_id: str, path: str | None) -> RunRecord:
    """The run record of a sweep: metrics and history of its best trial, all trials in ``extra``.

    Args:
        path: the folder of the sweep's results.
    """
    best = state.best
    failure = state.failures[-1].message if state.status == "failed" and state.failures else None
    return RunRecord(
        name=state.name,
        run_id=run_id,
        engine=state.engine,
        state=state.status,
        workers=state.at_once,
        dataset=state.dataset,
        started_at=datetime.fromtimestamp(state.started_at, UTC).isoformat(timespec="milliseconds"),
        seconds_total=state.elapsed(),
        seconds_to_start=state.seconds()["start"] if state.first_trial_at else None,
        seconds=state.seconds(),
        metrics={state.metric: best.best} if best is not None else {},
        history=[{"epoch": i - 1, state.metric: v} for i, v in best.curve] if best is not None else [],
        error=failure,
        versions=installed_versions(),
        host=this_host(),
        extra={
            "counts": dict(state.counts()),
            "best": best.number if best is not None else None,
            "config": best.config if best is not None else {},
            "trials": [_row(trial) for trial in state.trials.values()],
            "path": path,
        },
    )


def _row(trial: TrialState) -> dict[str, Any]:
    fields = ("number", "id", "status", "why", "iteration", "value", "best", "seconds", "node", "config")
    return {name: getattr(trial, name) for name in fields}
