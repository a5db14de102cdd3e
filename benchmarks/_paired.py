"""What the paired benchmarks share: rounds in turn, a table with its spread, a run record, a last line.

A benchmark has ways (the lab's, and what people would use instead). Each round measures all of them, and
every other round goes backwards, so that background load affects all of them equally. A ratio is always
seconds of the lab over seconds of the other for the same work, in the same round: below 1 the lab is faster.
"""

import argparse
import statistics
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.machine import installed_versions, this_host
from labkit.runs.record import RunRecord


def parser(description: str, *, repeat: int, rows: int | None = None) -> argparse.ArgumentParser:
    """Make a parser with the common options: --repeat, --json, and --rows if the work consists of rows."""
    arguments = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    arguments.add_argument("--repeat", type=int, default=repeat, help=f"rounds (default {repeat})")
    arguments.add_argument(
        "--json", type=Path, help="write all figures into this file, in the form of a run record"
    )
    if rows is not None:
        arguments.add_argument("--rows", type=int, default=rows, help=f"of the data set (default {rows:,})")
    return arguments


def rounds(ways: Sequence[str], repeat: int) -> Iterator[str]:
    """Yield the ways, in turn, `repeat` times; every other round backwards."""
    for number in range(repeat):
        yield from ways if number % 2 == 0 else reversed(ways)


@dataclass
class Results:
    """The figures of a benchmark.

    Attributes:
        name: of the benchmark.
        ours: the way that is the lab's.
        seconds: {figure: {way: one number for each round, in the order of the rounds}}.
        details: what else to keep in the record.
    """

    name: str
    ours: str
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    _began: datetime = field(default_factory=lambda: datetime.now(UTC), repr=False)

    def add(self, way: str, figures: Mapping[str, float]) -> None:
        """Add one more round of a way, and print it."""
        for figure, seconds in figures.items():
            self.append(figure, way, seconds)
        text = " · ".join(f"{figure} {seconds:.3g}" for figure, seconds in figures.items())
        print(f"  {way}: {text}", flush=True)

    def append(self, figure: str, way: str, seconds: float) -> None:
        """Add one number."""
        self.seconds.setdefault(figure, {}).setdefault(way, []).append(seconds)

    def ratio(self, figure: str, other: str) -> float:
        """Return the median over the rounds of the lab's seconds / those of `other`."""
        ways = self.seconds[figure]
        pairs = zip(ways[self.ours], ways[other], strict=True)
        return statistics.median(ours / theirs for ours, theirs in pairs)

    def table(self, *, rows: int | None = None, unit: str = "s") -> str:
        """Format each figure with median, smallest, largest and ratio; with `rows` also in rows/s."""
        lines = []
        for figure, ways in self.seconds.items():
            width = max(map(len, ways))
            speed = f"{'rows/s':>10}  " if rows else ""
            title = f"{figure}, {unit}"
            lines.append(f"\n{title:{width + 2}}  {'median':>8}  {'least':>8}  {'most':>8}  {speed}ratio")
            for way, seconds in ways.items():
                median = statistics.median(seconds)
                speed = f"{rows / median:10,.0f}  " if rows else ""
                ratio = "–"
                if self.ours in ways and way != self.ours:
                    ratio = f"{self.ratio(figure, way):.2f}"
                numbers = f"{median:8.2f}  {min(seconds):8.2f}  {max(seconds):8.2f}"
                lines.append(f"  {way:{width}}  {numbers}  {speed}{ratio}")
        return "\n".join(lines)

    def finish(self, ratio: float, *, json: Path | None, rows: int | None = None, unit: str = "s") -> None:
        """Print table, host and the last line; write the run record to `json`."""
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
                extra={"ours": self.ours, "unit": unit, "figures": self.seconds, **self.details},
            )
            json.write_text(record.to_json())
            print(json)
        print(f"{self.name}: ratio={ratio:.2f}")


def measure(ways: Mapping[str, Callable[[], Mapping[str, float]]], results: Results, repeat: int) -> None:
    """Run all ways in `repeat` rounds, and add what they return to `results`."""
    for number, way in enumerate(rounds(list(ways), repeat)):
        if number % len(ways) == 0:
            print(f"round {number // len(ways) + 1} of {repeat}", flush=True)
        results.add(way, ways[way]())
