"""What the benchmarks of throughput share: the rows, the figures of a run, the options."""

import argparse
import json
import os
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks._digits import rendered
from benchmarks._paired import Found, measure, parser
from labkit.settings import Settings

GLOBAL_BATCH, WORKERS = 128, 2


def arguments(about: str) -> argparse.ArgumentParser:
    """Those of all benchmarks, and the epochs of a run and the ways to measure."""
    made = parser(about, repeat=3, rows=60_000)
    made.add_argument("--epochs", type=int, default=4)
    made.add_argument("--ways", nargs="+", help="only these")
    return made


def rows_folder(settings: Settings, rows: int) -> str:
    """A folder with the rendered digits, one Parquet file for each worker; made once."""
    folder = settings.home / "benchmarks" / f"rendered-{rows}"
    paths = [folder / f"part-{rank:05}.parquet" for rank in range(WORKERS)]
    if not all(path.exists() for path in paths):
        data, size = rendered(rows), -(-rows // WORKERS)
        for rank, path in enumerate(paths):
            data[rank * size : (rank + 1) * size].to_parquet(path)
    return str(folder)


def figures(seconds: list[float], whole: float) -> dict[str, float]:
    """Of a run: the seconds of its epochs, and of all that it takes."""
    return {"first epoch": seconds[0], "later epochs": statistics.median(seconds[1:]), "whole": whole}


def program_environment(**more: str) -> dict[str, str]:
    """Of a run in processes of its own: one thread, and the modules of this folder."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1]), **more}


def told_by(output: str) -> list[float] | None:
    """The seconds of the epochs that a program printed after the word "seen"."""
    lines = [line for line in output.splitlines() if line.startswith("seen ")]
    return json.loads(lines[0].removeprefix("seen ")) if len(lines) == 1 else None


def compare(
    found: Found, ways: Mapping[str, Callable[[], dict[str, float]]], against: str, options: Any
) -> None:
    """Measure the ways, or those that were asked for; the ratio compares the later epochs."""
    ways = {way: do for way, do in ways.items() if not options.ways or way in options.ways}
    measure(ways, found, options.repeat)
    against = against if against in ways else found.ours
    found.finish(found.ratio("later epochs", against), json=options.json, rows=options.rows)
