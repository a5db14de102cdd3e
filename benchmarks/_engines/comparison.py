"""The same training under six launchers: how long each takes to start, and how fast it trains.

All programs get the same rows in the same global batches, the same seed and plain SGD, so they must end with
the same weights. That is checked before any figure is shown.
"""

import dataclasses
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._engines import launch
from benchmarks._engines.launch import ENGINES, Engine, Result
from course.exercises.table import Table
from labkit.errors import LabError
from labkit.local.preload import Preloader
from labkit.settings import Settings

_PRELOADED = " Ray starts as in the lab: its workers are forked from a process that has imported torch."
_NOT_PRELOADED = " Ray starts as pip installs it: each of its workers imports torch for itself."
_TOLERANCE = 1e-3  # largest difference of a weight, as a fraction of the largest change in the training


@dataclass(frozen=True)
class Comparison:
    """The results of all runs, checked. Its repr is a table.

    Attributes:
        rows, epochs: of each run.
        max_weight_change: largest change of a weight in the training.
        results: of all rounds, in the order of the runs.
        preload: whether Ray's workers were forked with their imports done; None without Ray.
    """

    rows: int
    epochs: int
    max_weight_change: float
    results: list[Result] = field(default_factory=list)
    preload: bool | None = None

    def of(self, engine: str) -> list[Result]:
        """Return the results of one engine, one for each round."""
        return [result for result in self.results if result.engine == engine]

    def median(self, engine: str, figure: Callable[[Result], float]) -> float:
        """Return the median of a figure over the rounds of one engine."""
        return statistics.median(figure(result) for result in self.of(engine))

    def table(self) -> Table:
        """Make a table with one row for each engine: medians over the rounds.

        *engine* is the start of cluster or session, and part of *first step*; *lines* differ from the plain
        program. If ranks were killed, a last column says what happened then.
        """
        head = (
            "launched by", "engine s", "first step s", "rows/s, first", "rows/s, last", "total s", "peak MB",
            "lines",
        )  # fmt: skip
        rows = [self._row(name) for name in self._names()]
        if any(result.death for result in self.results):
            head += ("a rank is killed",)
            rows = [(*row, self._after_death(row[0])) for row in rows]
        difference = max(result.weight_difference for result in self.results)
        line = (
            f"{self.rows:,} rows, {self.epochs} epochs, global batch {launch.BATCH}. Equal weights: the "
            f"largest difference is {difference:.1e}, the training changed them by up to "
            f"{self.max_weight_change:.2f}."
        )
        if self.preload is not None:
            line += _PRELOADED if self.preload else _NOT_PRELOADED
        return Table(head, rows, line)

    def __repr__(self) -> str:
        return repr(self.table())

    def _names(self) -> list[str]:
        return list(dict.fromkeys(result.engine for result in self.results))

    def _row(self, name: str) -> tuple:
        engine_seconds = self.median(name, lambda r: r.engine_seconds)
        return (
            name,
            f"{engine_seconds:.1f}" if engine_seconds else "–",
            f"{self.median(name, lambda r: r.first_step):.1f}",
            f"{self.median(name, lambda r: r.rows_per_second[0]):,.0f}",
            f"{self.median(name, lambda r: r.rows_per_second[-1]):,.0f}",
            f"{self.median(name, lambda r: r.total_seconds):.1f}",
            f"{self.median(name, lambda r: r.peak_bytes) / 1e6:,.0f}",
            self.of(name)[0].changed_lines,
        )

    def _after_death(self, name: str) -> str:
        death = next((result.death for result in self.of(name) if result.death), None)
        if death is None:
            return "–"
        if death["status"] == 0:
            return f"restarted, finished {death['seconds']:.0f} s later"
        tries = f", {death['attempts']} attempts" if death["attempts"] > 1 else ""
        return f"failed {death['seconds']:.1f} s later{tries}"


def run(
    *,
    rows: int,
    epochs: int,
    settings: Settings,
    engines: Sequence[Engine] = ENGINES,
    rounds: int = 1,
    kill_rank_of: Sequence[str] = (),
    log: Callable[[str], None] = print,
) -> Comparison:
    """Run each engine, one after the other, and compare.

    Args:
        rows: of digits; a last batch of fewer than 128 rows is left out.
        rounds: how often each engine runs.
        kill_rank_of: names of engines that run once more afterwards, and whose last rank is killed then.
        log: called with a line of text before each run.

    Raises:
        LabError: the weights of two engines differ.
        RunFailed: a program failed, or did not end in time.
    """
    results: list[Result] = []
    with launch.workplace(settings) as folder:
        rows = launch.write_rows(folder, rows)
        for number in range(rounds * len(engines)):
            engine = engines[number % len(engines)]
            place = folder / f"run-{number}"
            log(f"round {number // len(engines) + 1} of {rounds}: {engine.name}")
            result = launch.launch(engine, place, settings, epochs=epochs)
            difference = _weight_difference(folder / "run-0", place, engine.name)
            results.append(dataclasses.replace(result, weight_difference=difference))
        for number, engine in enumerate(engines):
            if engine.name in kill_rank_of:
                log(f"{engine.name}, whose last rank is killed")
                place = folder / f"killed-{number}"
                death = launch.kill_rank(engine, place, settings, epochs=epochs)
                results[number] = dataclasses.replace(results[number], death=death)
        change = _max_weight_change(folder / "run-0")
        shutil.rmtree(folder, ignore_errors=True)  # after an error its logs stay
    with_ray = any(engine.path.name.startswith("ray_") for engine in engines)
    preload = settings.preload and Preloader.is_possible() if with_ray else None
    return Comparison(rows, epochs, change, results, preload)


def _weight_difference(first: Path, other: Path, name: str) -> float:
    from course.models.torch import parameter_distance

    difference = parameter_distance(_weights(first), _weights(other))
    change = _max_weight_change(first)
    if not difference <= _TOLERANCE * change:
        raise LabError(
            f"compare {name} with {ENGINES[0].name}",
            f"their weights differ by up to {difference:.1e}, and the training changed them by {change:.1e} "
            "only: they did not train the same model",
            "look for another batch size, another order of rows, another seed",
        )
    return difference


def _max_weight_change(folder: Path) -> float:
    from benchmarks._models import mlp
    from course.models.torch import parameter_distance

    return parameter_distance(_weights(folder), mlp(seed=0))


def _weights(folder: Path) -> Any:
    import torch

    return torch.load(folder / "weights.pt", weights_only=True)
