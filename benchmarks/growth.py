"""How time and memory grow: ten times the rows and trials; one, two and four workers.

    .venv/bin/python -m benchmarks growth [--rows 60000] [--repeat 1] [--json FILE]

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
from collections.abc import Callable

import psutil

from benchmarks import _throughput, torch_throughput, tune_sweep
from benchmarks._paired import Found, Memory, parser
from labkit.local import cluster
from labkit.settings import Settings

_EPOCHS = 4  # of each run; the first is not counted


def epoch(rows: int, workers: int, settings: Settings) -> float:
    """Seconds of an epoch in steady state."""
    folder = _throughput.rows_folder(settings, rows)
    options = argparse.Namespace(epochs=_EPOCHS)
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


def line(ways: dict[str, list[float]]) -> tuple[list[float], list[float]]:
    """Sizes, and the median of what was measured of each."""
    return [float(way.replace(",", "")) for way in ways], [statistics.median(v) for v in ways.values()]


def main() -> None:
    options = parser(__doc__, repeat=1, rows=60_000).parse_args()
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
                    with Memory(settings.home, psutil.Process()) as memory:
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
    ours = [value for name, value in exponents.items() if not name.startswith("torchrun")]
    found.finish(max(ours), json=options.json, unit="see name")


if __name__ == "__main__":
    main()
