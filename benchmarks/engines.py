"""Six ways to launch the same training: one process, torchrun, Ray Train twice, TorchDistributor twice.

    .venv/bin/python -m benchmarks.engines [--rows 60000] [--epochs 3] [--rounds 3] [--no-deaths]

Each launch is a whole program from nothing to its end (`notebooks/engines`), all with the same rows in the
same global batches of 128. In each round all are run, in turn; the table shows medians, the spread stands
below it. A figure is shown only if all came to the same weights. Afterwards each is run once more,
and its last rank is killed with SIGKILL. All that was measured goes to a JSON file.

Ray starts as the lab starts it, its workers forked with their imports done; LABKIT_PRELOAD=0 leaves that out.
"""

import argparse
import statistics
from datetime import UTC, datetime

from labkit import comparison
from labkit.settings import Settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-deaths", action="store_true", help="kill no rank")
    options = parser.parse_args()
    settings = Settings.from_env()
    names = [engine.name for engine in comparison.ENGINES]
    found = comparison.run(
        rows=options.rows,
        epochs=options.epochs,
        rounds=options.rounds,
        deaths=[] if options.no_deaths else names,
        settings=settings,
        told=lambda line: print(line, flush=True),
    )
    print()
    print(found)
    print("\nspread over the rounds, least to most:")
    for name in names:
        results = found.of(name)
        first = [result.first_step for result in results]
        rates = [result.rows_per_second[-1] for result in results]
        print(
            f"  {name:28} first step {min(first):.1f} to {max(first):.1f} s, last epoch {min(rates):,.0f} to "
            f"{max(rates):,.0f} rows/s (median {statistics.median(rates):,.0f})"
        )
    path = settings.home / "benchmarks" / f"engines-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(found.to_json())
    print(f"\n{path}")


if __name__ == "__main__":
    main()
