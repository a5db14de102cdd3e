"""What the paired benchmarks share: rounds in turn, a table with its spread, a run record, a last line.

A benchmark has ways (the lab's, and what people would use instead). Each round measures all of them, and
every other round goes backwards, so that background load affects all of them equally. A ratio is always
seconds of the lab over seconds of the other for the same work, in the same round: below 1 the lab is faster.
"""

import argparse
import statistics
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas

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
            self.seconds.setdefault(figure, {}).setdefault(way, []).append(seconds)
        text = " · ".join(f"{figure} {seconds:.3g}" for figure, seconds in figures.items())
        print(f"  {way}: {text}", flush=True)

    def ratio(self, figure: str, other: str) -> float:
        """Return the median over the rounds of the lab's seconds / those of `other`."""
        ways = self.seconds[figure]
        pairs = zip(ways[self.ours], ways[other], strict=True)
        return statistics.median(ours / theirs for ours, theirs in pairs)

    def table(self, *, rows: int | None = None) -> str:
        """Format all figures with median, smallest, largest and ratio; with `rows` also in rows/s."""
        lines = []
        for figure, ways in self.seconds.items():
            for way, seconds in ways.items():
                median = statistics.median(seconds)
                line = {"figure": figure, "way": way, "median": median}
                line |= {"least": min(seconds), "most": max(seconds)}
                if rows:
                    line["rows/s"] = rows / median
                if self.ours in ways and way != self.ours:
                    line["ratio"] = self.ratio(figure, way)
                lines.append(line)
        table = pandas.DataFrame(lines)
        return table.to_string(index=False, float_format="{:,.2f}".format, na_rep="–")

    def finish(self, ratio: float, *, json: Path | None, rows: int | None = None) -> None:
        """Print table, host and the last line; write the run record to `json`."""
        host = this_host()
        if self.seconds:
            print(f"\n{self.table(rows=rows)}")
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
                extra={"ours": self.ours, "figures": self.seconds, **self.details},
            )
            json.write_text(record.to_json())
            print(json)
        print(f"{self.name}: ratio={ratio:.2f}")


def measure(ways: Mapping[str, Callable[[], Mapping[str, float]]], results: Results, repeat: int) -> None:
    """Run all ways in `repeat` rounds, every other one backwards; add what they return to `results`."""
    order = list(ways)
    for number in range(repeat):
        print(f"round {number + 1} of {repeat}", flush=True)
        for way in order:
            results.add(way, ways[way]())
        order.reverse()
