"""What Ray Data's executor knows of its operators. The one file that uses Ray Data's private names.

Ray Data makes a `Follower` for each execution, where ``RAY_DATA_EXECUTION_CALLBACKS`` names it.
"""

import time
from typing import Any

from ray.data._internal.execution.execution_callback import ExecutionCallback

from labkit.data import panel as panels

_EVERY = 0.25  # seconds between two looks


class Follower(ExecutionCallback):
    """Tells the panel that is open how far one execution is."""

    def before_execution_starts(self, executor: Any) -> None:
        operators = [op for op in executor._topology if type(op).__name__ != "InputDataBuffer"]
        self._pairs = [(panels.OperatorState(op.name), op) for op in operators]
        self._panel, self._next = panels.DataPanel.current(), 0.0
        if self._panel is not None:
            with self._panel.update() as state:
                state.executions.append([known for known, _ in self._pairs])
            self.on_execution_step(executor)

    def after_execution_succeeds(self, executor: Any, error: Exception | None = None) -> None:
        self.on_execution_step(executor, last=True)

    after_execution_fails = after_execution_succeeds

    def on_execution_step(self, executor: Any, *, last: bool = False) -> None:
        if self._panel is None or self._panel.state.over:
            return
        for known, op in self._pairs:  # at every step: a peak may be short
            known.memory = op.metrics.obj_store_mem_used
            known.memory_peak = max(known.memory_peak, known.memory)
        if last or time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY
            with self._panel.update() as state:
                for known, op in self._pairs:
                    _update(known, op, executor._topology[op], last=last)
                state.sample()


def _update(known: panels.OperatorState, op: Any, state: Any, *, last: bool) -> None:
    metrics = op.metrics
    known.rows = metrics.row_outputs_taken
    known.blocks = metrics.block_outputs_taken
    known.bytes = metrics.bytes_outputs_taken
    known.running, known.finished = metrics.num_tasks_running, metrics.num_tasks_finished
    known.queued = state.total_enqueued_input_blocks()
    waits = metrics.task_submission_backpressure_time, metrics.task_output_backpressure_time_s
    known.backpressure_seconds = sum(waits)
    if last:
        spent = [block.exec_stats for blocks in op.get_stats().values() for block in blocks]
        known.seconds = sum(part.wall_time_s or 0 for part in spent if part is not None)
        known.cpu_seconds = sum(part.cpu_time_s or 0 for part in spent if part is not None)
        known.memory = 0
