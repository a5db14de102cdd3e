"""A sweep as lines of text, for terminals, logs and CI: what is news, not every trial."""

import sys
from typing import Any

from labkit.display import formatting
from labkit.tune import view as sweep_drawing
from labkit.tune.state import SweepState

_STEPS = 4  # lines of counts in the whole sweep
_TRIALS_LISTED = 5
_FAILURES_TOLD = 3


class SweepTextReporter:
    """A line at the start, at each quarter, for the first failures; the best trials at the end.

    Args:
        stream: where to write; default: ``sys.stdout`` at the time of each line.
    """

    def __init__(self, stream: Any = None) -> None:
        self._stream = stream

    def open(self, state: SweepState) -> None:
        self._told, self._failures = 0, 0
        self._say(state, state.engine)

    def draw(self, state: SweepState) -> None:
        failures, self._failures = state.failures[self._failures : _FAILURES_TOLD], len(state.failures)
        for failure in failures:
            who = f"trial {failure.rank}" if failure.rank >= 0 else "the sweep"
            self._say(state, f"{who} failed: {formatting.short(failure.message, 160)}")
        total = max(state.total or 0, len(state.trials), 1)
        quarter = state.done * _STEPS // total
        if quarter > self._told:
            self._told = quarter
            best = f" · {sweep_drawing.best_line(state)}" if state.best else ""
            self._say(state, f"{state.done} of {total} · {sweep_drawing.counts_line(state)}{best}")

    def close(self, state: SweepState, files: list[tuple[str, str]], record: str | None) -> None:
        self.draw(state)
        told = {failure.text for failure in state.failures[:_FAILURES_TOLD]}
        for text in sorted(text for text in told if "\n" in text):  # one line was told already
            self._say(state, text)
        for trial in state.ranked()[:_TRIALS_LISTED] if state.best else []:
            number = formatting.number(trial.best) if trial.best is not None else formatting.UNKNOWN
            line = sweep_drawing.trial_line(state, trial)
            if trial.value != trial.best:
                number += f" (last {formatting.number(trial.value)})"
            ended = formatting.short(trial.why, 60) or f"{trial.status} after {trial.iteration} iterations"
            self._say(state, f"{state.metric} {number} · {line} · {ended}")
        spent = f"{state.status} after {formatting.clock(state.elapsed())}"
        self._say(state, f"{spent}: {sweep_drawing.counts_line(state)}")

    def _say(self, state: SweepState, text: str) -> None:
        stream = self._stream or sys.stdout
        for line in text.splitlines():
            print(f"{formatting.clock(state.elapsed())} {state.name}: {line}", file=stream, flush=True)
