"""What the paired benchmarks share: rounds in turn, a table with its spread, a run record, a last line.

A benchmark has ways (the lab's, and what people would use instead). Each round measures all of them, and
the order turns round from one round to the next, so that whatever else the machine does hits all alike. A
ratio is always seconds of the lab over seconds of the other for the same work, in the same round: below 1
the lab is faster.
"""

import argparse
import statistics
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import psutil

from labkit import process_info
from labkit.local import family
from labkit.machine import installed_versions, this_host
from labkit.runs.record import RunRecord

__all__ = ["Found", "Memory", "measure", "parser", "rounds"]


def parser(about: str, *, repeat: int, rows: int | None = None) -> argparse.ArgumentParser:
    """The options that all have: --repeat, --json, and --rows where rows are what the work is made of."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("--repeat", type=int, default=repeat, help=f"rounds (default {repeat})")
    made.add_argument(
        "--json", type=Path, help="write all figures into this file, in the form of a run record"
    )
    if rows is not None:
        made.add_argument("--rows", type=int, default=rows, help=f"of the data set (default {rows:,})")
    return made


def rounds(ways: Sequence[str], repeat: int) -> Iterator[str]:
    """The ways, in turn, `repeat` times; every other round backwards."""
    for number in range(repeat):
        yield from ways[:: 1 if number % 2 == 0 else -1]


@dataclass
class Found:
    """The figures of a benchmark.

    Attributes:
        name: of the benchmark.
        ours: the way that is the lab's.
        seconds: {figure: {way: one number for each round, in the order of the rounds}}.
        beside: what else to keep in the record.
    """

    name: str
    ours: str
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    beside: dict[str, Any] = field(default_factory=dict)
    _began: datetime = field(default_factory=lambda: datetime.now(UTC), repr=False)

    def add(self, way: str, figures: Mapping[str, float]) -> None:
        """One more round of a way; printed at once."""
        for figure, seconds in figures.items():
            self.seconds.setdefault(figure, {}).setdefault(way, []).append(seconds)
        told = " · ".join(f"{figure} {seconds:.3g}" for figure, seconds in figures.items())
        print(f"  {way}: {told}", flush=True)

    def ratio(self, figure: str, other: str) -> float:
        """Median over the rounds of the lab's seconds / those of `other`."""
        ways = self.seconds[figure]
        return statistics.median(a / b for a, b in zip(ways[self.ours], ways[other], strict=True))

    def table(self, *, rows: int | None = None, unit: str = "s") -> str:
        """Each figure with median, smallest, largest and ratio; with `rows` also in rows/s."""
        lines = []
        for figure, ways in self.seconds.items():
            width = max(map(len, ways))
            head = [
                f"\n{figure + ', ' + unit:{width + 2}}",
                *(f"{name:>8}" for name in ("median", "least", "most")),
            ]
            head += [f"{'rows/s':>10}", "ratio"] if rows else ["ratio"]
            lines.append("  ".join(head))
            for way, seconds in ways.items():
                middle = statistics.median(seconds)
                speed = f"{rows / middle:10,.0f}  " if rows else ""
                ratio = f"{self.ratio(figure, way):.2f}" if self.ours in ways and way != self.ours else "–"
                figures = f"{middle:8.2f}  {min(seconds):8.2f}  {max(seconds):8.2f}"
                lines.append(f"  {way:{width}}  {figures}  {speed}{ratio}")
        return "\n".join(lines)

    def finish(self, ratio: float, *, json: Path | None, rows: int | None = None, unit: str = "s") -> None:
        """Print table, host and the last line; write the run record where `json` says."""
        host = this_host()
        print(self.table(rows=rows, unit=unit))
        print("\n" + ", ".join(f"{key} {value}" for key, value in host.items()))
        if json:
            record = RunRecord(
                name=f"benchmark-{self.name}",
                run_id=uuid.uuid4().hex[:8],
                engine="benchmark",
                state="finished",
                started_at=self._began.isoformat(timespec="milliseconds"),
                rows=rows,
                seconds_total=(datetime.now(UTC) - self._began).total_seconds(),
                metrics={"ratio": ratio},
                versions=installed_versions(),
                host=host,
                extra={"ours": self.ours, "unit": unit, "figures": self.seconds, **self.beside},
            )
            json.write_text(record.to_json())
            print(json)
        print(f"{self.name}: ratio={ratio:.2f}")


def measure(ways: Mapping[str, Callable[[], Mapping[str, float]]], found: Found, repeat: int) -> None:
    """Run all ways in `repeat` rounds, and put what they return into `found`."""
    for number, way in enumerate(rounds(list(ways), repeat)):
        if number % len(ways) == 0:
            print(f"round {number // len(ways) + 1} of {repeat}", flush=True)
        found.add(way, ways[way]())


class Memory(threading.Thread):
    """The most bytes that the processes of a home, `root` and their children have in a ``with`` block."""

    def __init__(self, home: Path, root: psutil.Process) -> None:
        super().__init__(daemon=True)
        self._home, self._root, self._over, self.most = home, root, threading.Event(), 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(2):  # to look takes a tenth of a second
            found = {self._root, *self._root.children(recursive=True)}
            found |= {one.process for one in family.running(self._home)}
            self.most = max(self.most, sum(map(process_info.memory, found)))
