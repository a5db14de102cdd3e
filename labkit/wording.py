"""Numbers and states in words, the same in every reporter, table and record."""

import math
from typing import Any

from labkit.progress import RunState

__all__ = [
    "PHASES",
    "clock",
    "count",
    "headline",
    "number",
    "seconds",
    "short",
    "short_metrics",
    "size",
    "subtitle",
    "time_spent",
    "validations",
    "UNKNOWN",
]

UNKNOWN = "–"  # stands where a number is not known
PHASES = {"starting": "starting workers", "loading": "loading data"}


def clock(value: float) -> str:
    """72.4 -> ``01:12``; from an hour on ``1:01:12``."""
    minutes, rest = divmod(int(max(value, 0)) if math.isfinite(value) else 0, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def seconds(value: float) -> str:
    """0.034 -> ``34 ms``, 7.23 -> ``7.2 s``, 84 -> ``84 s``, 400 -> ``6 min 40 s``; then ``2 h 13 min``."""
    if not math.isfinite(value):
        return UNKNOWN
    value = max(value, 0.0)
    if value < 0.0995:
        return f"{value * 1000:.0f} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    if value < 119.5:
        return f"{value:.0f} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60)} min"


def count(value: float) -> str:
    """A number of things, such as rows in a second: 512 -> ``512``, 18_312 -> ``18.3 k``."""
    if not math.isfinite(value):
        return UNKNOWN
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit * 0.9995:
            scaled = value / limit
            return f"{scaled:.1f} {unit}" if scaled < 99.95 else f"{scaled:.0f} {unit}"
    return f"{value:.0f}"


def size(value: float | None) -> str:
    """Bytes: 217_088 -> ``217 kB``."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= limit * 0.9995:
            scaled = value / limit
            return f"{scaled:.1f} {unit}" if scaled < 9.95 else f"{scaled:.0f} {unit}"
    return f"{value:.0f} B"


def number(value: Any) -> str:
    """A metric with three or four digits that matter; of a text, its beginning."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return short(str(value))
    if abs(value) < 1e6 and value == int(value):
        return f"{int(value)}"
    try:
        return f"{value:.3f}" if 0.001 <= abs(value) < 999.9995 else f"{value:.3g}"
    except OverflowError:
        return UNKNOWN  # a whole number beyond all floats


def short(text: str, most: int = 40) -> str:
    """A text in one line of at most `most` characters."""
    line = " ".join(text[: 10 * most].split())
    return line if len(line) <= most else line[: most - 1] + "…"


def short_metrics(metrics: dict[str, Any], most: int = 4) -> str:
    """``loss 0.214 · accuracy 0.951``."""
    shown = [f"{short(name)} {number(value)}" for name, value in metrics.items() if name != "epoch"]
    return " · ".join(shown[:most])


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
