"""The panel of an execution of Ray Data.

    with DataPanel("02-images") as panel:
        data = ray.data.read_images(…).map_batches(…).materialize()
    panel.plot()           # what each operator did, as bars
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
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import ray

from labkit.cluster.ray_data_log import quiet
from labkit.display import tracebacks
from labkit.display.figures import GREY, figure_style
from labkit.display.formatting import UNKNOWN, count, seconds, short, size
from labkit.errors import RunFailed
from labkit.panel.base import LivePanel
from labkit.panel.run import Run, Table, Thinned, joined
from labkit.settings import variables_set

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CALLBACKS = "RAY_DATA_EXECUTION_CALLBACKS"
_FOLLOWER = "labkit.data.executor.Follower"
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
        operators = self.operators
        rate = f"{count(self.rows_per_second)} rows/s" if self.rows_per_second else ""
        self.subtitle = self.engine
        self.steps = [
            ("dim", joined(seconds(self.elapsed(now)), rate) if operators else "nothing is executed yet")
        ]
        rows = [_row(operator) for operator in operators[:_SHOWN]]
        widths = list(_HEAD.values())
        self.tables = [Table(list(_HEAD), rows, len(operators) - len(rows), widths=widths)] if rows else []
        self.result = joined(f"{self.rows:,} rows", rate) if operators else "nothing was executed here"

    def last_line(self) -> str:
        chain = " → ".join(f"{short(one.name)} {count(one.rows)}" for one in self.operators[:_SHOWN])
        return joined(super().last_line(), chain)


def _row(operator: OperatorState) -> tuple[str, ...]:
    """An operator's figures as `_HEAD` names them; MB is its peak in the object store."""
    known, held = bool(operator.seconds), operator.backpressure_seconds
    return (
        short(operator.name, 48),
        f"{operator.rows:,}",
        f"{operator.blocks:,}",
        f"{operator.finished:,}" + (f" + {operator.running}" if operator.running else ""),
        f"{operator.queued:,}" if operator.queued else UNKNOWN,
        f"{operator.seconds:.2f}" if known else UNKNOWN,
        f"{operator.cpu_seconds:.2f}" if known else UNKNOWN,
        f"{held:.1f} s" if held >= 0.05 else UNKNOWN,
        count(operator.rows_per_second),
        f"{operator.memory_peak / 1e6:.1f}",
    )


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

    @property
    def seconds(self) -> float:
        """From the beginning of the block to its end."""
        return self.state.elapsed()

    @property
    def rows(self) -> int:
        """Rows that came out of the last execution of the block."""
        return self.state.rows

    def plot(self) -> "Figure":
        """Seconds, rows per second and memory of each operator, as bars.

        The figure is closed for pyplot, so a notebook shows it once: as the value of its cell.
        """
        import matplotlib.pyplot as plt

        operators = self.state.operators[:_SHOWN]
        bars = {
            "seconds of its tasks": ([o.seconds for o in operators], seconds),
            "rows in a task second": ([o.rows / o.seconds if o.seconds else 0.0 for o in operators], count),
            "peak in Ray's object store": ([o.memory_peak for o in operators], size),
        }
        with plt.rc_context(figure_style()):
            height = 1.0 + 0.42 * max(len(operators), 1)
            figure, all_axes = plt.subplots(1, 3, figsize=(8.5, height), sharey=True, layout="constrained")
            for axes, (title, (values, words)) in zip(all_axes, bars.items(), strict=True):
                drawn = axes.barh(range(len(values)), values, height=0.6)
                axes.bar_label(drawn, map(words, values), padding=4)
                axes.set(title=title, xmargin=0.35, xticks=[])
                axes.spines["bottom"].set_visible(False)
            labels = [short(o.name, 32).replace("$", r"\$") for o in operators]
            all_axes[0].set_yticks(range(len(operators)), labels)
            all_axes[0].invert_yaxis()
        plt.close(figure)
        return figure

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
        level = quiet(logging.CRITICAL)
        try:
            with variables_set({_CALLBACKS: ",".join(filter(None, [os.environ.get(_CALLBACKS), _FOLLOWER]))}):
                yield
        finally:
            quiet(level)

    def failure_text(self, error: BaseException) -> str:
        if not isinstance(error, ray.exceptions.RayError):
            return super().failure_text(error)
        return tracebacks.shorten_text(_cause(error))

    def translate(self, error: BaseException) -> BaseException | None:
        """Ray Data's errors, those of the reader's functions included, in one line."""
        if isinstance(error, ray.exceptions.RayError):
            in_a_line_of_the_reader = tracebacks.has_own_frame(_cause(error))
        elif _is_ray_datas(error):
            in_a_line_of_the_reader = True  # the one that called Ray Data
        else:
            return None
        fix = "the panel above shows in which line; fix the function or the file, then run the cell again"
        if not in_a_line_of_the_reader:
            fix = "no line of yours is in it: look at the file, the column or the size that it names"
        return RunFailed(f"finish {self.state.name!r}", self.state.failures[-1].message, fix)


def _cause(error: BaseException) -> str:
    """What happened in the worker: Ray Data appends an exception of its own, with advice."""
    text = _NOTES.sub("", str(error))
    return text.rpartition(_CAUSE)[0] or text


def _is_ray_datas(error: BaseException) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").startswith("ray.data.") for frame, _ in frames)
