"""The panel of an execution of Ray Data.

    with DataPanel("02-images") as panel:
        data = ray.data.read_images(…).map_batches(…).materialize()
    panel.table()          # what each operator did
    panel.plot()           # the same as bars
    panel.plot_memory()    # the object store over time

Ray Data switches its own progress bars on where there is a terminal, so a notebook would get log lines;
the lab switches them off, and this stands in their place. Ray Data calls whatever
``RAY_DATA_EXECUTION_CALLBACKS`` names, in the process that executes: for a plain iteration this one; for
``streaming_split`` a process of its own, so that of such a dataset nothing is seen here.
"""

import contextlib
import logging
import os
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

import psutil
import ray
from ray.data._internal.execution.execution_callback import ExecutionCallback

from labkit.data import view as drawing
from labkit.data.state import ExecutionState, OperatorState
from labkit.display import formatting, tracebacks
from labkit.display.tables import Table
from labkit.errors import RunError, RunFailed, RunStopped
from labkit.panel import reporters
from labkit.settings import Settings
from labkit.system import process_info
from labkit.system.process_registry import ProcessRegistry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CALLBACKS = "RAY_DATA_EXECUTION_CALLBACKS"
_CAUSE = "The above exception was the direct cause"
_EVERY = 0.25  # seconds between two looks, and two drawings
_open: list["DataPanel"] = []  # the panel that is open in this process, if one is


def quiet(level: int = logging.WARNING) -> None:
    """Of what Ray Data logs, show only what is at least of `level`; all of it is in its log file.

    Importing this module does so for warnings. While a panel is open it shows what matters, and a failure
    is the cell's error.
    """
    for handler in logging.getLogger("ray.data").handlers:
        if type(handler).__name__ != "SessionFileHandler":
            handler.setLevel(level)


quiet()


class DataPanel:
    """Follows what Ray Data executes in a ``with`` block; shows itself, and stays as a table.

    Args:
        name: of the panel.
        settings: default: from the environment.

    Raises:
        RunError: another one is open.
        RunFailed: a function of the reader's failed; the panel shows where.
        RunStopped: the reader interrupted the kernel.
    """

    def __init__(self, name: str, *, settings: Settings | None = None) -> None:
        self.state = ExecutionState(name)
        self._settings = settings or Settings.from_env()
        self._lock = threading.RLock()
        self._handle: Any = None
        self._chosen = type(reporters.choose(self._settings.panel)).__name__

    def __repr__(self) -> str:
        return drawing.line(self.state)

    @property
    def seconds(self) -> float:
        """From the beginning of the block to its end."""
        return self.state.seconds

    @property
    def rows(self) -> int:
        """That came out of the last execution of the block."""
        return self.state.rows

    def table(self) -> Table:
        """One row for each operator."""
        return Table(drawing.HEAD, [drawing.row(operator) for operator in self.state.operators])

    def plot(self) -> "Figure":
        """Seconds, rows per second and memory of each operator."""
        return drawing.plot(self.state)

    def plot_memory(self) -> "Figure":
        """The object store over time."""
        return drawing.plot_memory(self.state)

    # -- the block ----------------------------------------------------------------------------------

    def __enter__(self) -> "DataPanel":
        if _open:
            fix = "close that one first: one panel at a time"
            raise RunError(f"open the panel {self.state.name!r}", f"{_open[0].state.name!r} is open", fix)
        quiet(logging.CRITICAL)
        self.state = ExecutionState(self.state.name)
        self._processes = _Processes(self._settings)
        self._next = 0.0
        self._before = os.environ.get(_CALLBACKS)
        mine = f"{__name__}.{_Follower.__name__}"
        os.environ[_CALLBACKS] = f"{self._before},{mine}" if self._before else mine
        _open.append(self)
        if self._chosen == "WidgetReporter":
            from IPython.display import HTML, display

            self._handle = display(HTML(drawing.html(self.state)), display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _open.remove(self)
        quiet()
        if self._before is None:
            os.environ.pop(_CALLBACKS, None)
        else:
            os.environ[_CALLBACKS] = self._before
        status = "finished" if error is None else "failed" if isinstance(error, Exception) else "stopped"
        with self._lock:
            self.state.end(status, _short(error) if isinstance(error, Exception) else "")
            self._draw()
        if self._chosen == "TextReporter":
            print("\n".join([drawing.line(self.state), self.state.failure]).strip())
        if status == "stopped":
            fact = f"stopped by you after {formatting.clock(self.state.seconds)}"
            raise RunStopped(self.state.name, fact, "The CPUs are free again") from None
        if isinstance(error, ray.exceptions.RayError):
            lines = self.state.failure.splitlines()
            message = next((text for text in reversed(lines) if text[:1].strip()), lines[-1])
            fix = "the panel above shows in which line; the dataset can be executed again as it is"
            raise RunFailed(f"finish {self.state.name!r}", message, fix) from error

    # -- what the follower calls, in Ray Data's own thread ------------------------------------------

    def _begin(self, executor: Any) -> None:
        with self._lock:
            self.state.executions.append([OperatorState(op.name) for op in _operators(executor)])
            executor.labkit_place = len(self.state.executions) - 1
            self._look(executor)

    def _look(self, executor: Any, *, last: bool = False) -> None:
        with self._lock:
            if self.state.status != "running":
                return
            pairs = list(zip(self.state.executions[executor.labkit_place], _operators(executor), strict=True))
            for known, op in pairs:  # at every step: a peak may be short
                known.memory = op.metrics.obj_store_mem_used
                known.memory_peak = max(known.memory_peak, known.memory)
            if not last and time.monotonic() < self._next:
                return
            self._next = time.monotonic() + _EVERY
            for known, op in pairs:
                _update(known, op, executor._topology[op], last=last)
            stored = sum(operator.memory for operator in self.state.operators)
            self.state.sample(stored, self._processes.bytes())
            self._draw()

    def _draw(self) -> None:
        if self._handle is not None:
            text = drawing.line(self.state)
            self._handle.update({"text/html": drawing.html(self.state), "text/plain": text}, raw=True)


class _Follower(ExecutionCallback):
    """Made by Ray Data, once for each execution; tells the panel that is open."""

    def before_execution_starts(self, executor: Any) -> None:
        self._panel = _open[-1] if _open else None
        self._tell("_begin", executor)

    def on_execution_step(self, executor: Any) -> None:
        self._tell("_look", executor)

    def after_execution_succeeds(self, executor: Any) -> None:
        self._tell("_look", executor, last=True)

    def after_execution_fails(self, executor: Any, error: Exception) -> None:
        self._tell("_look", executor, last=True)

    def _tell(self, method: str, executor: Any, **options: Any) -> None:
        # What a panel cannot show must not cost the reader the execution.
        if self._panel is not None:
            with contextlib.suppress(Exception):
                getattr(self._panel, method)(executor, **options)


class _Processes:
    """The memory of the processes that the lab runs on this machine."""

    def __init__(self, settings: Settings) -> None:
        self._registry = ProcessRegistry(settings.home)
        self._next, self._bytes = 0.0, 0

    def bytes(self) -> int:
        """Bytes that the system would get back, some seconds ago at most: to look takes 2 % of a core."""
        began = time.monotonic()
        if began >= self._next:
            self._bytes = sum(map(process_info.memory, self._all()))
            now = time.monotonic()
            self._next = now + max(1.0, 50 * (now - began))
        return self._bytes

    def _all(self) -> set[psutil.Process]:
        found: set[psutil.Process] = set()
        for entry in self._registry.records():
            with contextlib.suppress(psutil.Error):
                if entry.alive:
                    process = psutil.Process(entry.pid)
                    found |= {process, *process.children(recursive=True)}
        return found


def _operators(executor: Any) -> list[Any]:
    """Those that do something, in the order of the data; what only hands blocks in is none."""
    return [op for op in executor._topology if type(op).__name__ != "InputDataBuffer"]


def _update(known: OperatorState, op: Any, state: Any, *, last: bool) -> None:
    metrics = op.metrics
    known.rows = metrics.row_outputs_taken
    known.blocks = metrics.block_outputs_taken
    known.bytes = metrics.bytes_outputs_taken
    known.running, known.finished = metrics.num_tasks_running, metrics.num_tasks_finished
    known.queued = state.total_enqueued_input_blocks()
    known.memory = 0 if last else known.memory
    known.held = metrics.task_submission_backpressure_time + metrics.task_output_backpressure_time_s
    known.over = last or op.has_completed()
    if last:
        blocks = [block for found in op.get_stats().values() for block in found]
        spent = [block.exec_stats for block in blocks if block.exec_stats is not None]
        known.seconds = sum(part.wall_time_s or 0 for part in spent)
        known.cpu_seconds = sum(part.cpu_time_s or 0 for part in spent)


def _short(error: Exception) -> str:
    """The lines of the reader's own code in a traceback of a worker's."""
    if not isinstance(error, ray.exceptions.RayError):
        return tracebacks.shorten(error)
    # Ray appends an exception of its own, which says how to try again; the reader's is before it.
    text = str(error)
    return tracebacks.shorten_text(text.rpartition(_CAUSE)[0] or text)
