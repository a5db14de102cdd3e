"""The same training under six launches, side by side: what starting costs, what training gives.

    result = comparison.run(rows=6_000, epochs=3)
    result                       # a table; result.figure() draws where the seconds go

Each launch is a whole program (``notebooks/engines/*.py``), in a fresh process, from nothing to its end: the
engine's own start (a cluster, a JVM), the launch of the ranks, the epochs. All have the same rows in the same
global batches, the same seed and plain SGD; so all must come to the same weights, and that is checked before
a figure is shown.
"""

import dataclasses
import json
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.cluster.preload import Preloader
from labkit.comparison import launches
from labkit.comparison.launches import ENGINES, Engine, changed_lines
from labkit.comparison.stopwatch import Task
from labkit.display import figures
from labkit.display.progress import Waiting
from labkit.display.tables import Table
from labkit.errors import RunError, RunStopped
from labkit.settings import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PRELOADED = (
    " Ray starts as the lab starts it: its workers are forked from a process that has imported torch."
)
_NOT_PRELOADED = " Ray starts as pip installs it: each of its workers imports torch for itself."
_TOLERANCE = 1e-3  # largest difference of a weight, as a part of how far the weights have moved


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one launch took.

    Attributes:
        engine: its name.
        engine_seconds: from the start of the program until cluster or session are up.
        launch_seconds: from then to the end of the first step.
        rows_per_second: of each epoch, all ranks together.
        first_wait: seconds of the first epoch until its first step was done; `launch_seconds` has them, too.
        total_seconds: from the start of the program to its end.
        peak_bytes: most memory of all its processes at one time, looked at each second.
        gap: largest difference of a weight to the first engine's.
        death: what became of a run whose last rank was killed; None if that was not tried.
    """

    engine: str
    engine_seconds: float
    launch_seconds: float
    rows_per_second: list[float]
    total_seconds: float
    peak_bytes: int
    first_wait: float = 0.0
    gap: float = 0.0
    death: dict[str, Any] | None = None

    @property
    def first_step(self) -> float:
        """Seconds from nothing to the first step."""
        return self.engine_seconds + self.launch_seconds


@dataclass(frozen=True)
class Comparison:
    """The results of all launches, checked. Shows itself as a table.

    Attributes:
        rows, epochs: of each run.
        moved: largest distance that a weight has gone in the training.
        results: one for each launch, of all rounds, in the order of the engines.
        preload: whether Ray's workers were forked with their imports done; None without Ray.
    """

    rows: int
    epochs: int
    moved: float
    results: list[Result] = field(default_factory=list)
    preload: bool | None = None

    def table(self) -> Table:
        """One row for each engine; with several rounds the median of each figure.

        *engine* is the start of cluster or session, and a part of *first step*; *rows/s* are of the first and
        the last epoch; *lines* are those that differ from the plain script. Where a rank was killed, a column
        tells what became of that run.
        """
        head = (
            "launched by", "engine s", "first step s", "rows/s, first", "rows/s, last", "total s", "peak MB",
            "lines",
        )  # fmt: skip
        rows = [_row(name, self.of(name)) for name in dict.fromkeys(r.engine for r in self.results)]
        if any(result.death for result in self.results):
            head += ("a rank is killed",)
            rows = [(*row, self._death(row[0])) for row in rows]
        gap = max(result.gap for result in self.results)
        line = (
            f"{self.rows:,} rows, {self.epochs} epochs, global batch {launches.BATCH}. Equal weights: the "
            f"largest difference is {gap:.1e}, the weights moved by up to {self.moved:.2f}."
        )
        if self.preload is not None:
            line += _PRELOADED if self.preload else _NOT_PRELOADED
        return Table(head, rows, line)

    def of(self, engine: str) -> list[Result]:
        """The results of one engine, one for each round."""
        return [result for result in self.results if result.engine == engine]

    def _death(self, engine: str) -> str:
        return next((_said(result.death) for result in self.of(engine) if result.death), "–")

    def to_json(self) -> str:
        """All that was measured."""
        return json.dumps(asdict(self), indent=1)

    def figure(self) -> "Figure":
        """For each engine where the seconds went: its own start, the launch, the epochs, the end."""
        import matplotlib.pyplot as plt

        names = list(dict.fromkeys(result.engine for result in self.results))
        parts = {
            "the engine starts": lambda r: r.engine_seconds,
            "ranks start, first step": lambda r: r.launch_seconds,
            "epochs": self._epoch_seconds,
            "the end": lambda r: max(r.total_seconds - r.first_step - self._epoch_seconds(r), 0.0),
        }
        with plt.rc_context(figures.figure_style()):
            drawn, axes = plt.subplots(figsize=(8.5, 0.9 + 0.4 * len(names)), layout="constrained")
            plt.close(drawn)
            ends = [0.0] * len(names)
            for (part, seconds), hatch in zip(parts.items(), ("\\\\\\", "...", "", "///"), strict=True):
                values = [_median(self.of(name), seconds) for name in names]
                axes.barh(names, values, left=ends, height=0.6, hatch=hatch, label=part)
                ends = [end + value for end, value in zip(ends, values, strict=True)]
            for number, end in enumerate(ends):
                axes.annotate(f"{end:.0f} s", (end, number), (4, 0), textcoords="offset points", va="center")
            axes.set(title="from nothing to the end", xlabel="seconds")
            axes.set_xmargin(0.12)
            axes.invert_yaxis()
            drawn.legend(loc="outside lower left", ncols=4)
        return drawn

    def _epoch_seconds(self, result: Result) -> float:
        return sum(self.rows / rate for rate in result.rows_per_second) - result.first_wait

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def run(
    *,
    rows: int,
    epochs: int = 3,
    engines: Sequence[Engine] = ENGINES,
    rounds: int = 1,
    deaths: Sequence[str] = (),
    settings: Settings | None = None,
    told: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Run each engine, one after the other, and compare.

    Args:
        rows: of rendered digits; what does not fill a global batch of 128 is left out.
        rounds: how often all are run in turn.
        deaths: names of engines that are run once more afterwards, their last rank killed in the first epoch.
        told: called with a line before each run.

    Raises:
        RunFailed: a launch failed, or hung.
        RunError: the weights of two engines differ; or the scripts are not there.
        RunStopped: interrupted.
    """
    settings = settings or Settings.from_env()
    launches.require_scripts(engines)
    base = settings.make_home() / "comparison"
    shutil.rmtree(base, ignore_errors=True)
    rows = launches.write_rows(base, rows)
    first, found, total = None, [], rounds * len(engines) + len(deaths)
    try:
        with Waiting("comparing", unit="launches") as waiting:
            for number in range(rounds):
                for engine in engines:
                    told(f"round {number + 1} of {rounds}: {engine.name}")
                    folder = base / f"run-{len(found)}"
                    measured = launches.launch(
                        engine,
                        folder,
                        Task(epochs=epochs),
                        settings,
                        waiting=partial(waiting, len(found), total),
                    )
                    first = first or folder
                    gap = _gap(first, folder, engine.name)
                    found.append(Result(engine=engine.name, **measured, gap=gap))
            for done, name in enumerate(deaths, start=len(found)):
                told(f"{name}, a rank of which is killed")
                place = next(k for k, result in enumerate(found) if result.engine == name)
                engine = next(each for each in engines if each.name == name)
                tell = partial(waiting, done, total)
                death = launches.kill(engine, base / f"death-{place}", settings, epochs, waiting=tell)
                found[place] = dataclasses.replace(found[place], death=death)
            waiting(total, total)
    except KeyboardInterrupt:
        raise RunStopped("the comparison", "stopped by you", "Nothing of it is left running") from None
    moved = _moved(first)
    shutil.rmtree(base, ignore_errors=True)
    with_ray = any(engine.script.startswith("ray_") for engine in engines)
    preload = settings.preload and Preloader.possible() if with_ray else None
    return Comparison(rows, epochs, moved, found, preload)


def _gap(first: Path, other: Path, name: str) -> float:
    from labkit.models.torch.checkpoint import parameter_distance

    gap, moved = parameter_distance(_weights(first), _weights(other)), _moved(first)
    if not gap <= _TOLERANCE * moved:
        raise RunError(
            f"compare {name} with one process",
            f"their weights differ by up to {gap:.1e}, and the training moved them by {moved:.1e} only: they "
            "did not train the same model",
            "look for another batch size, another order of rows, another seed",
        )
    return gap


def _moved(folder: Path) -> float:
    from labkit.models.torch.checkpoint import parameter_distance
    from labkit.models.torch.networks import mlp

    return parameter_distance(_weights(folder), mlp(seed=0))


def _weights(folder: Path) -> Any:
    import torch

    return torch.load(folder / "weights.pt", weights_only=True)


def _median(results: Sequence[Result], of: Callable[[Result], float]) -> float:
    return statistics.median(of(result) for result in results)


def _row(name: str, results: Sequence[Result]) -> tuple:
    def seconds(of: Callable[[Result], float]) -> str:
        return f"{_median(results, of):.1f}"

    engine = next(engine for engine in ENGINES if engine.name == name)
    return (
        name,
        seconds(lambda r: r.engine_seconds) if any(r.engine_seconds for r in results) else "–",
        seconds(lambda r: r.first_step),
        f"{_median(results, lambda r: r.rows_per_second[0]):,.0f}",
        f"{_median(results, lambda r: r.rows_per_second[-1]):,.0f}",
        seconds(lambda r: r.total_seconds),
        f"{_median(results, lambda r: r.peak_bytes) / 1e6:,.0f}",
        changed_lines(engine),
    )


def _said(death: dict[str, Any]) -> str:
    if death["status"] == 0:
        return f"began again, done {death['seconds']:.0f} s later"
    again = f", tried {death['attempts']} times" if death["attempts"] > 1 else ""
    return f"ended with an error {death['seconds']:.1f} s later{again}"
