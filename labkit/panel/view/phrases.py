"""States of a run in words, the same in every reporter, table and record."""

from labkit.display.formatting import seconds, short
from labkit.panel.state.run import RunState

PHASES = {"starting": "starting workers", "loading": "loading data"}


def subtitle(state: RunState) -> str:
    """``Ray Train · 2 workers · digits · 1,437 rows``."""
    parts = [state.engine]
    if state.engine != "one process":
        parts.append(f"{state.world_size} worker" + "s" * (state.world_size != 1))
    if state.dataset:
        parts.append(state.dataset)
    if state.rows:
        parts.append(f"{state.rows:,} rows")
    return " · ".join(parts)


def headline(state: RunState, now: float | None = None) -> str:
    """Where the run is: ``epoch 7 of 10 · step 14 of 22 · about 19 s left``."""
    worker = state.leader
    if worker is None or not state.first_step_at:
        return short(PHASES.get(state.phase, state.phase))
    if pending := state.checkpoints.pending if state.status == "running" and state.fraction() == 1.0 else 0:
        return f"all epochs are trained · {pending} validation{'s' * (pending != 1)} left"
    # A run that is between two epochs stands at the end of the first.
    parts = [f"epoch {worker.epoch + 1}" + (f" of {state.epochs}" if state.epochs else "")]
    parts.append(f"step {worker.step}" + (f" of {worker.total}" if worker.total else ""))
    left = state.eta(now)
    if left is not None and state.status == "running":
        parts.append(f"about {seconds(left)} left" if left >= 1 else "nearly done")
    return " · ".join(parts)


def validations(state: RunState) -> list[str]:
    """``["3 validated", "1 validation failed"]``: how many of each, of a run that validates beside itself."""
    words = {
        "validated": "validated",
        "failed": "validation failed",
        "timed out": "timed out",
        "pending": "waits for validation" if state.status == "running" else "not validated yet",
    }
    found = [checkpoint.status for checkpoint in state.checkpoints]
    return [f"{found.count(status)} {said}" for status, said in words.items() if status in found]


def time_spent(state: RunState, now: float | None = None) -> str:
    """``start 8.1 s · data 2.0 s · training 84 s``: what took at least a tenth of a second."""
    parts = [f"{name} {seconds(value)}" for name, value in state.seconds(now).items() if value >= 0.05]
    return " · ".join(parts)
