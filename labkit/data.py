"""Ray Data: the panel of an execution, operator by operator.

    with DataPanel("02-images") as panel:
        data = ray.data.read_images(…).map_batches(…).materialize()
    panel.plot_memory()    # the object store over time

Ray Data calls the classes that ``RAY_DATA_EXECUTION_CALLBACKS`` names, in the process that executes: for a
plain iteration that is this process, for ``streaming_split`` another one, so a panel shows nothing of such a
dataset.
"""

import contextlib
import itertools
import logging
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import ray
from ray.data._internal.execution.execution_callback import ExecutionCallback

from labkit import _ray
from labkit.cluster import ends, ray_data
from labkit.cluster.fixes import known_fix
from labkit.display import tracebacks
from labkit.display.figures import GREY, figure_style
from labkit.display.formatting import UNKNOWN, count, joined, seconds, short
from labkit.errors import RunFailed
from labkit.panel.base import LivePanel
from labkit.panel.run import Run, Thinned
from labkit.panel.shown import Shown, Table
from labkit.settings import variables_set

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DataPanel"]

_CALLBACKS = "RAY_DATA_EXECUTION_CALLBACKS"
_EVERY = 0.25  # seconds between two looks at an execution
_HEAD = {  # widths in percent: a live table must not jump
    "operator": 28, "rows": 11, "blocks": 10, "tasks": 10, "task seconds": 12, "of them CPU": 12,
    "held back": 9, "MB": 8,
}  # fmt: skip
# How Ray's own workers end: by themselves, or by `ray.kill`.
_ORDERLY = (0, 1)
_CAUSE = "The above exception was the direct cause"
# The notes that Ray Data adds to an exception: how often it tried, and how to let it try more often.
_NOTES = re.compile(r"^(Failed to .* after \d+/\d+ attempts|To change retry attempts).*\n?", re.MULTILINE)


@dataclass
class OperatorState:
    """One operator of a chain (list, read, map, …). All work at once, each on what the one before it gave."""

    name: str
    rows: int = 0  # that came out so far, as are the blocks (pieces of the table) and bytes
    blocks: int = 0
    bytes: int = 0
    tasks: int = 0  # that are done
    memory: int = 0  # bytes in the object store that are its own, now …
    memory_peak: int = 0  # … and at most
    backpressure_seconds: float = 0.0  # with input ready, but without CPU or object store to start a task
    seconds: float = 0.0  # of all its tasks, and those in which a core was busy; known when they are done
    cpu_seconds: float = 0.0

    def update(self, op: Any, *, last: bool) -> None:
        """Take over what Ray Data measures of it; `last`: its tasks are done."""
        metrics = op.metrics
        self.rows = metrics.row_outputs_taken
        self.blocks = metrics.block_outputs_taken
        self.bytes = metrics.bytes_outputs_taken
        self.tasks = metrics.num_tasks_finished
        self.memory = 0 if last else metrics.obj_store_mem_used
        # These two overlap, so their sum can be more than the time of the run.
        self.backpressure_seconds = max(
            metrics.task_submission_backpressure_time, metrics.task_output_backpressure_time_s
        )
        if last:
            stats = _ray.stats_of_blocks(op)
            self.seconds = sum(block.wall_time_s or 0 for block in stats)
            self.cpu_seconds = sum(block.cpu_time_s or 0 for block in stats)

    def row(self) -> tuple[str, ...]:
        """Return its row in the table, in the order of `_HEAD`."""
        return (
            short(self.name, 48),
            f"{self.rows:,}",
            f"{self.blocks:,}",
            f"{self.tasks:,}",
            f"{self.seconds:.2f}" if self.seconds else UNKNOWN,
            f"{self.cpu_seconds:.2f}" if self.seconds else UNKNOWN,
            f"{self.backpressure_seconds:.1f} s" if self.backpressure_seconds >= 0.05 else UNKNOWN,
            f"{self.memory_peak / 1e6:.1f}",
        )


@dataclass(eq=False, repr=False)
class ExecutionRun(Run):
    """What Ray Data executed between the opening of a panel and its closing."""

    engine: str = "Ray Data"
    executions: list[list[OperatorState]] = field(default_factory=list)  # the operators of each
    samples: Thinned = field(default_factory=lambda: Thinned(2000))  # (seconds, bytes in the object store)
    memory_peak: int = 0
    death: int | None = None  # exit status or signal of the process that ended last, of those that died

    @property
    def operators(self) -> list[OperatorState]:
        return list(itertools.chain(*self.executions))

    @property
    def rows(self) -> int:
        """Rows that the latest execution has made."""
        return self.executions[-1][-1].rows if self.executions else 0

    @property
    def rows_per_second(self) -> float:
        """Rows that all executions have made, per second of the whole block, waiting included."""
        made = sum(operators[-1].rows for operators in self.executions)
        return made / self.elapsed() if self.elapsed() else 0.0

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


def shown(run: ExecutionRun, now: float) -> Shown:
    """Return what is shown of an execution at `now` (Unix seconds)."""
    rate = f"{count(run.rows_per_second)} rows/s" if run.rows_per_second else ""
    rows = [operator.row() for operator in run.operators]
    state = joined(seconds(run.elapsed(now)), rate) if rows else "nothing is executed yet"
    return Shown(
        subtitle=run.engine,
        steps=[("dim", state)],
        tables=[Table(list(_HEAD), rows, widths=list(_HEAD.values()))] if rows else [],
        result=joined(f"{run.rows:,} rows", rate) if rows else "nothing was executed here",
        notes=[] if run.death is None else [_on_death(run.death)],
        brief=True,  # a dataset is executed in seconds
    )


def _on_death(status: int) -> str:
    """Return a line on worker processes that died: Ray Data repeats their tasks and says nothing."""
    # Without their number: each line that changes is another line of a log.
    how = ends.ended_with(status)
    return f"a worker process is gone: {how}. Ray Data starts its tasks again, as often as that happens"


class Follower(ExecutionCallback):
    """Tells the panel that is open how far one execution is. Ray Data makes one for each, by its name."""

    def before_execution_starts(self, executor: Any) -> None:
        self._pairs = [(OperatorState(op.name), op) for op in _ray.operators_of(executor)]
        self._panel = DataPanel.current()
        self._next = 0.0
        self._ended_before = ends.exit_codes().keys()
        if self._panel is not None:
            with self._panel.update() as run:
                if self._pairs:
                    run.executions.append([state for state, _ in self._pairs])
            self.on_execution_step(executor)

    def after_execution_succeeds(self, executor: Any, error: Exception | None = None) -> None:
        self.on_execution_step(executor, last=True)

    after_execution_fails = after_execution_succeeds

    def on_execution_step(self, executor: Any, *, last: bool = False) -> None:
        now = time.monotonic()
        if self._panel is None or self._panel.state.over:
            return
        used = 0
        for state, op in self._pairs:  # at every step: a peak may be short
            memory = op.metrics.obj_store_mem_used
            state.memory_peak = max(state.memory_peak, memory)
            used += memory
        if now < self._next and not last and used <= self._panel.state.memory_peak:
            return
        self._next = now + _EVERY
        with self._panel.update() as run:
            for state, op in self._pairs:
                state.update(op, last=last)
            for pid, code in ends.exit_codes().items():
                if pid not in self._ended_before and code not in _ORDERLY:
                    run.death = code
            run.sample()


class DataPanel(LivePanel):
    """Follows what Ray Data executes in a ``with`` block; shows it live, and stays as a table.

    See `labkit.panel.base.LivePanel` for its arguments and errors.
    """

    exclusive = True
    view = staticmethod(shown)
    state: ExecutionRun

    def new_state(self) -> ExecutionRun:
        return ExecutionRun(self._name)

    def plot_memory(self) -> "Figure":
        """Draw the bytes in the object store over time, and a line at all that passed through it."""
        import matplotlib.pyplot as plt

        with plt.rc_context(figure_style()):
            figure, axes = plt.subplots(figsize=(8.5, 2.6), layout="constrained")
            stored = [(at, used / 1e6) for at, used in self.state.samples]
            axes.plot(*zip(*stored, strict=True), label="in Ray's object store")
            axes.axhline(self.state.bytes / 1e6, color=GREY, ls=":", label="all that passed through it")
            axes.set(xlabel="seconds", ylabel="MB", ylim=(0, None))
            figure.legend(loc="outside upper left", ncols=2)
        plt.close(figure)
        return figure

    # -- what `LivePanel` calls ---------------------------------------------------------------------

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        callbacks = [os.environ.get(_CALLBACKS), f"{Follower.__module__}.{Follower.__name__}"]
        level = ray_data.set_log_level(logging.CRITICAL)
        try:
            with variables_set({_CALLBACKS: ",".join(filter(None, callbacks))}), ends.quiet_deaths():
                yield
        finally:
            ray_data.set_log_level(level)

    def failure_text(self, error: BaseException) -> str:
        if not isinstance(error, ray.exceptions.RayError):
            return super().failure_text(error)
        if ends.is_an_end(str(error)):
            return f"a worker process is gone: {ends.how_it_ended(str(error))}"
        return tracebacks.shorten_text(_cause(error))

    def translate(self, error: BaseException) -> BaseException | None:
        if isinstance(error, ray.exceptions.RayError):
            text = _cause(error)
        elif tracebacks.passed_through(error, "ray.data."):
            text = tracebacks.formatted(error)
        else:
            return None
        return RunFailed(f"finish {self.state.name!r}", self.state.failures[-1].message, _fix(text))


def _cause(error: BaseException) -> str:
    """Return what happened in the worker: Ray Data appends an exception of its own, with advice."""
    text = _NOTES.sub("", str(error))
    return text.rpartition(_CAUSE)[0] or text


def _fix(text: str) -> str:
    """Return the fix for a formatted traceback; the panel shows a line only if one is the reader's own."""
    if ends.is_an_end(text):
        in_log = ends.more_in_log(ends.process_of(text))
        return known_fix(text) or in_log or "`ray logs cluster` says more"
    where = "the line in the panel above, or " if tracebacks.shows_own(text) else ""
    return known_fix(text) or f"fix {where}the file or column that the error names"
