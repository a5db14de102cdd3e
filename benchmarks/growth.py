"""How time and memory grow: ten times the rows and trials; one, two and four workers.

    .venv/bin/python -m benchmarks growth [--rows 60000] [--repeat 1] [--figure FILE] [--json FILE]

- rows: an epoch of lesson 03's recipe (`torch_throughput`), with a tenth of the rows and with all, two
  workers.
- workers: the same epoch with one, two and four workers, and the same global batch.
- torchrun: the same without Ray, a `DataLoader` in each of one, two and four processes: what more workers
  than cores cost by themselves. Only its seconds are measured.
- trials: a sweep of trials that report three numbers each, 20 and 200 of them, actors reused.

Memory is the most that all processes of the lab and this one took together at a time. With an exponent of 1
something grows linearly, with 0 not at all. The last line is ``growth: ratio=…``, the largest exponent of the
lab's.
"""

import argparse
import contextlib
import io
import math
import os
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks import _throughput, torch_throughput, tune_sweep
from benchmarks._paired import Found, parser
from labkit import cluster
from labkit.settings import Settings
from labkit.system import family, process_info

_LOOK_EVERY = 1.0  # seconds; to look takes a tenth of one
_EPOCHS = 4  # of each run; the first is not counted


class Memory(threading.Thread):
    """The most bytes that the lab's processes and this one have while it runs."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(daemon=True)
        self._home, self._over, self.most = settings.home, threading.Event(), 0

    def __enter__(self) -> "Memory":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(_LOOK_EVERY):
            members = [one.process for one in family.running(self._home)]
            self.most = max(self.most, sum(map(process_info.memory, [*members, psutil.Process()])))


def epoch(rows: int, workers: int, settings: Settings) -> float:
    """Seconds of an epoch in steady state."""
    folder = _throughput.rows_folder(settings, rows)
    options = argparse.Namespace(epochs=_EPOCHS, piece=8192)
    return torch_throughput.in_ray("recipe", folder, options, workers)["later epochs"]


def epoch_in_torchrun(rows: int, workers: int, settings: Settings) -> float:
    """The same without Ray."""
    folder = _throughput.rows_folder(settings, rows)
    return torch_throughput.as_program("torchrun", folder, _EPOCHS, workers)["later epochs"]


def trials(count: int) -> float:
    """Seconds of a sweep of so many."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        return tune_sweep.cheap(folder, trials=count, panel=None)


def exponent(sizes: list[float], values: list[float]) -> float:
    """Of the power of size with which the values grow, from the first to the last."""
    return math.log(values[-1] / values[0]) / math.log(sizes[-1] / sizes[0])


@contextlib.contextmanager
def drawn(figure: Path, rows: int, columns: int) -> Iterator[Any]:
    """The axes of a figure in the lab's style, which is written into a file when the block ends."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from labkit.display import figure_style

    with pyplot.rc_context(figure_style()):
        made, axes = pyplot.subplots(rows, columns, figsize=(11, 2.75 * rows), layout="constrained")
        yield axes
        made.savefig(figure)


def draw(found: Found, figure: Path) -> None:
    """Time above, memory below, over the size; dashed: linear. Next to the workers' time: torchrun's."""
    kinds = [name.partition(",")[0] for name in found.seconds if name.endswith("MB")]
    with drawn(figure, 2, len(kinds)) as axes:
        for kind, column in zip(kinds, axes.T, strict=True):
            for unit, axis in zip(("s", "MB"), column, strict=True):
                sizes, middle = line(found.seconds[f"{kind}, {unit}"])
                axis.loglog(sizes, [middle[0] * size / sizes[0] for size in sizes], "--", label="linear")
                axis.loglog(sizes, middle, "o-", label=f"measured: power {exponent(sizes, middle):.2f}")
                if (kind, unit) == ("workers", "s"):
                    beside = line(found.seconds["torchrun, s"])
                    axis.loglog(*beside, "s:", label=f"torchrun: power {exponent(*beside):.2f}")
                axis.set(title=f"{kind}: {unit}")
                axis.set_ylim(min(middle) / 4, max(*middle, middle[0] * sizes[-1] / sizes[0]) * 4)
                axis.set_xticks(sizes, [f"{size:,.0f}" for size in sizes])
                axis.minorticks_off()
                axis.legend(fontsize=8)


def line(ways: dict[str, list[float]]) -> tuple[list[float], list[float]]:
    """Sizes, and the median of what was measured of each."""
    return [float(way.replace(",", "")) for way in ways], [statistics.median(v) for v in ways.values()]


def main() -> None:
    options = parser(__doc__, repeat=1, rows=60_000)
    options.add_argument("--figure", type=Path, help="draw it into this file, .svg or .png")
    options = options.parse_args()
    os.environ.update(LABKIT_PANEL="none", RAY_AIR_NEW_OUTPUT="0")
    settings = Settings.from_env()
    found = Found("growth", ours="")
    with cluster.start(settings=settings, cpus_per_node=6):
        from labkit.data import quiet

        quiet()
        kinds: dict[str, tuple[list[int], Callable[[int], float]]] = {
            "rows": ([options.rows // 10, options.rows], lambda size: epoch(size, 2, settings)),
            "workers": ([1, 2, 4], lambda size: epoch(options.rows, size, settings)),
            "torchrun": ([1, 2, 4], lambda size: epoch_in_torchrun(options.rows, size, settings)),
            "trials": ([20, 200], trials),
        }
        for kind, (sizes, once) in kinds.items():
            print(kind)
            for _ in range(options.repeat):
                for size in sizes:
                    with Memory(settings) as memory:
                        seconds = once(size)
                    figures = {f"{kind}, s": seconds}
                    if kind != "torchrun":  # its processes are none of the lab's
                        figures[f"{kind}, MB"] = memory.most / 1e6
                    found.add(f"{size:,}", figures)
    exponents = {}
    for name, ways in found.seconds.items():
        exponents[name] = exponent(*line(ways))
        print(f"{name:14} grows with the power {exponents[name]:.2f}")
    found.beside["exponents"] = exponents
    if options.figure:
        draw(found, options.figure)
    ours = [value for name, value in exponents.items() if not name.startswith("torchrun")]
    found.finish(max(ours), json=options.json, unit="see name")


if __name__ == "__main__":
    main()
