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
import os
import re
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

import ray

from labkit.cluster.ray_data_log import quiet
from labkit.data import view
from labkit.data.state import ExecutionState
from labkit.display import tracebacks
from labkit.display.figures import GREY, figure_style
from labkit.display.formatting import count, seconds, short, size
from labkit.errors import RunFailed
from labkit.panel.base import LivePanel
from labkit.settings import variables_set

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CALLBACKS = "RAY_DATA_EXECUTION_CALLBACKS"
_FOLLOWER = "labkit.data.executor.Follower"
_CAUSE = "The above exception was the direct cause"
# The notes that Ray Data adds to an exception: how often it tried, and how to let it try more often.
_NOTES = re.compile(r"^(Failed to .* after \d+/\d+ attempts|To change retry attempts).*\n?", re.MULTILINE)


class DataPanel(LivePanel):
    """Follows what Ray Data executes in a ``with`` block; shows it live, and stays as a table.

    See `labkit.panel.base.LivePanel` for its arguments.

    Raises:
        LabError: another one is open.
        RunFailed: Ray Data failed, or a function of the reader's that it called.
        RunStopped: the reader stopped it.
    """

    view = view.ExecutionView()
    exclusive = True

    def new_state(self) -> ExecutionState:
        return ExecutionState(self._name)

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

        operators = self.state.operators[: view.SHOWN]
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
