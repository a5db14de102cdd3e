"""Ray Data: the panel of an execution, operator by operator.

    with DataPanel("02-images") as panel:
        data = ray.data.read_images(…).map_batches(…).materialize()
    panel.plot_memory()    # the object store over time

Ray Data shows its own progress bars only in a terminal; in a notebook it would print log lines, so the lab
switches them off. Ray Data calls the classes that ``RAY_DATA_EXECUTION_CALLBACKS`` names, in the process that
executes: for a plain iteration that is this process, for ``streaming_split`` another one, so a panel shows
nothing of such a dataset.
"""

import contextlib
import logging
import math
import os
import re
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import ray
from ray.data._internal.execution.execution_callback import ExecutionCallback

from labkit.cluster.ray_data_log import quiet
from labkit.display import tracebacks
from labkit.display.figures import GREY, figure_style
from labkit.display.formatting import UNKNOWN, count, seconds, short
from labkit.errors import RunFailed
from labkit.panel.base import LivePanel
from labkit.panel.run import Run, Table, Thinned, joined
from labkit.settings import variables_set

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DataPanel", "quiet"]

_CALLBACKS = "RAY_DATA_EXECUTION_CALLBACKS"
_EVERY = 0.25  # seconds between two looks at an execution
_CAUSE = "The above exception was the direct cause"
# The notes that Ray Data adds to an exception: how often it tried, and how to let it try more often.
_NOTES = re.compile(r"^(Failed to .* after \d+/\d+ attempts|To change retry attempts).*\n?", re.MULTILINE)
_MAX_SAMPLES = 2000
_HEAD = {  # widths in percent: a live table must not jump
    "operator": 24, "rows": 9, "blocks": 8, "tasks": 8, "waiting": 8, "task seconds": 10, "of them CPU": 10,
    "held back": 8, "rows/s": 8, "MB": 7,
}  # fmt: skip
_SHOWN = 10  # operators


@dataclass
class OperatorState:
    """One operator of a chain (list, read, map, …). All work at once, each on what the one before it gave.

    Attributes:
        name: Ray Data's: "ReadImage", "MapBatches(scale)", …
        rows, blocks, bytes: that came out so far; a block is a piece of the table.
        running, finished: tasks.
        queued: blocks that wait to be processed.
        memory, memory_peak: bytes in the object store that are its own, now and at most.
        backpressure_seconds: time with input ready but no CPU or object-store budget to start a task.
        seconds, cpu_seconds: of all its tasks, and those in which a core was busy; known when they are done.
    """

    name: str
    rows: int = 0
    blocks: int = 0
    bytes: int = 0
    running: int = 0
    finished: int = 0
    queued: int = 0
    memory: int = 0
    memory_peak: int = 0
    backpressure_seconds: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def rows_per_second(self) -> float:
        """Rows in each second of its tasks; NaN while no time is known."""
        return self.rows / self.seconds if self.seconds else math.nan

    def row(self) -> tuple[str, ...]:
        """Its figures as `_HEAD` names them; MB is its peak in the object store."""
        held = self.backpressure_seconds
        return (
            short(self.name, 48),
            f"{self.rows:,}",
            f"{self.blocks:,}",
            f"{self.finished:,}" + (f" + {self.running}" if self.running else ""),
            f"{self.queued:,}" if self.queued else UNKNOWN,
            f"{self.seconds:.2f}" if self.seconds else UNKNOWN,
            f"{self.cpu_seconds:.2f}" if self.seconds else UNKNOWN,
            f"{held:.1f} s" if held >= 0.05 else UNKNOWN,
            count(self.rows_per_second),
            f"{self.memory_peak / 1e6:.1f}",
        )


class ExecutionRun(Run):
    """What Ray Data executed between the opening of a panel and its closing."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "Ray Data", brief=True)  # a dataset is executed in seconds
        self.executions: list[list[OperatorState]] = []  # of each dataset, its operators in their order
        self.samples = Thinned(_MAX_SAMPLES)  # (seconds since the start, bytes in the object store)
        self.memory_peak = 0

    @property
    def operators(self) -> list[OperatorState]:
        return [operator for execution in self.executions for operator in execution]

    @property
    def rows(self) -> int:
        return self.executions[-1][-1].rows if self.executions and self.executions[-1] else 0

    @property
    def rows_per_second(self) -> float:
        """Of the whole block: waiting included."""
        return self.rows / self.elapsed() if self.elapsed() else 0.0

    @property
    def bytes(self) -> int:
        return sum(operator.bytes for operator in self.operators)

    def sample(self) -> None:
        """Note the memory that is used now."""
        used = sum(operator.memory for operator in self.operators)
        self.samples.add((self.elapsed(), used))
        self.memory_peak = max(self.memory_peak, used)

    def to_record(self) -> dict[str, Any]:
        operators = [asdict(operator) for operator in self.operators]
        return {
            "rows": self.rows or None,
            "rows_per_second": self.rows_per_second or None,
            "extra": {"operators": operators, "object_store_peak": self.memory_peak},
        }

    def fill(self, now: float) -> None:
        rate = f"{count(self.rows_per_second)} rows/s" if self.rows_per_second else ""
        rows = [operator.row() for operator in self.operators[:_SHOWN]]
        more = len(self.operators) - len(rows)
        said = joined(seconds(self.elapsed(now)), rate) if rows else "nothing is executed yet"
        self.subtitle, self.steps = self.engine, [("dim", said)]
        self.tables = [Table(list(_HEAD), rows, more, widths=list(_HEAD.values()))] if rows else []
        self.result = joined(f"{self.rows:,} rows", rate) if rows else "nothing was executed here"

    def last_line(self) -> str:
        chain = " → ".join(f"{short(one.name)} {count(one.rows)}" for one in self.operators[:_SHOWN])
        return joined(super().last_line(), chain)


class Follower(ExecutionCallback):
    """Tells the panel that is open how far one execution is. Ray Data makes one for each, by its name."""

    def before_execution_starts(self, executor: Any) -> None:
        operators = [op for op in executor._topology if type(op).__name__ != "InputDataBuffer"]
        self._pairs = [(OperatorState(op.name), op) for op in operators]
        self._panel, self._next = DataPanel.current(), 0.0
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


def _update(known: OperatorState, op: Any, state: Any, *, last: bool) -> None:
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


class DataPanel(LivePanel):
    """Follows what Ray Data executes in a ``with`` block; shows it live, and stays as a table.

    See `labkit.panel.base.LivePanel` for its arguments.

    Raises:
        LabError: another one is open.
        RunFailed: Ray Data failed, or a function of the reader's that it called.
        RunStopped: the reader stopped it.
    """

    exclusive = True

    def new_state(self) -> ExecutionRun:
        return ExecutionRun(self._name)

    def plot_memory(self) -> "Figure":
        """The bytes in the object store over time, and a line at all that passed through it."""
        import matplotlib.pyplot as plt

        with plt.rc_context(figure_style()):
            figure, axes = plt.subplots(figsize=(8.5, 2.6), layout="constrained")
            stored = [(at, bytes / 1e6) for at, bytes in self.state.samples]
            axes.plot(*zip(*stored, strict=True), label="in Ray's object store")
            axes.axhline(self.state.bytes / 1e6, color=GREY, ls=":", label="all that passed through it")
            axes.set(xlabel="seconds", ylabel="MB", ylim=(0, None))
            figure.legend(loc="outside upper left", ncols=2)
        plt.close(figure)
        return figure

    # -- what `LivePanel` calls ---------------------------------------------------------------------

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        follower = f"{Follower.__module__}.{Follower.__name__}"
        level = quiet(logging.CRITICAL)
        try:
            with variables_set({_CALLBACKS: ",".join(filter(None, [os.environ.get(_CALLBACKS), follower]))}):
                yield
        finally:
            quiet(level)

    def failure_text(self, error: BaseException) -> str:
        if not isinstance(error, ray.exceptions.RayError):
            return super().failure_text(error)
        return tracebacks.shorten_text(_cause(error))

    def translate(self, error: BaseException) -> BaseException | None:
        """Ray Data's errors, those of the reader's functions included, in one line."""
        fix = "the panel above shows in which line; fix the function or the file, then run the cell again"
        if isinstance(error, ray.exceptions.RayError):
            if not tracebacks.has_own_frame(_cause(error)):
                fix = "no line of yours is in it: look at the file, the column or the size that it names"
        elif not any(_is_ray_datas(frame) for frame, _ in traceback.walk_tb(error.__traceback__)):
            return None
        return RunFailed(f"finish {self.state.name!r}", self.state.failures[-1].message, fix)


def _is_ray_datas(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").startswith("ray.data.")


def _cause(error: BaseException) -> str:
    """What happened in the worker: Ray Data appends an exception of its own, with advice."""
    text = _NOTES.sub("", str(error))
    return text.rpartition(_CAUSE)[0] or text
