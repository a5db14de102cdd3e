"""Six ways to launch the same training: one process, torchrun, Ray Train twice, TorchDistributor twice.

    .venv/bin/python -m benchmarks engines [--rows 60000] [--repeat 3] [--epochs 3] [--json FILE]

Each launch is a whole program from nothing to its end (`_engines/programs`), all with the same rows in the
same global batches of 128. In each round all are run, in turn; the table shows medians, the spread is
below it. A figure is shown only if all came to the same weights. Afterwards each is run once more,
and its last rank is killed with SIGKILL. The last line is ``engines: ratio=…``, the whole program of Ray
Train with a DataLoader over that of torchrun. With ``--no-deaths`` no rank is killed.

Ray starts as the lab starts it, its workers forked with their imports done; LABKIT_PRELOAD=0 leaves that out.
"""

from dataclasses import asdict

from benchmarks._engines.comparison import run
from benchmarks._engines.launch import ENGINES
from benchmarks._paired import Results, parser
from labkit.settings import Settings

_LAB = "Ray Train, DataLoader"
_OTHER = "torchrun"


def main() -> None:
    options = parser(__doc__, repeat=3, rows=60_000)
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--no-deaths", action="store_true", help="kill no rank")
    options = options.parse_args()
    settings = Settings.from_env()
    names = [engine.name for engine in ENGINES]
    comparison = run(
        rows=options.rows,
        epochs=options.epochs,
        rounds=options.repeat,
        kill_rank_of=[] if options.no_deaths else names,
        settings=settings,
        log=lambda line: print(line, flush=True),
    )
    print(f"\n{comparison}")
    results = Results("engines", ours=_LAB)
    for result in comparison.results:
        results.append("first step", result.engine, result.first_step)
        results.append("last epoch", result.engine, options.rows / result.rows_per_second[-1])
        results.append("whole program", result.engine, result.total_seconds)
    results.details["comparison"] = asdict(comparison)
    results.finish(results.ratio("whole program", _OTHER), json=options.json)


if __name__ == "__main__":
    main()
