"""Five ways to launch the same training: one process, torchrun, Ray Train, TorchDistributor in two modes.

    .venv/bin/python -m benchmarks engines [--rows 60000] [--repeat 3] [--epochs 3] [--json FILE]

Each is a whole program (`_engines.py`) from nothing to its end, all with the same rows in the same global
batches of 128; cluster and session are started by it. In each round all come in turn. A figure counts only
if all came to the same weights. The last line is ``engines: ratio=…``, the seconds of the whole program
in Ray Train over those in torchrun.
"""

import tempfile
import time
from pathlib import Path

from benchmarks import _programs
from benchmarks._engines import WAYS, weights_of
from benchmarks._paired import Results, measure, parser
from benchmarks.torch_throughput import GLOBAL_BATCH, rows_folder
from labkit.settings import Settings

_TOLERANCE = 1e-3  # the largest difference of a weight, as a share of the largest change in the training


def run(way: str, folder: str, epochs: int, home: Path) -> dict[str, float]:
    """Run a program, and return the seconds until its first step, of its last epoch, and of all."""
    launcher = _programs.TORCHRUN if way == "torchrun" else ()
    environment = _programs.lab_environment(home) | {"PYTHONPATH": str(_programs.ROOT)}
    del environment["OMP_NUM_THREADS"]  # each launcher sets it in its own way
    began = time.time()
    (seen,) = _programs.run([*launcher, "-m", "benchmarks._engines", way, folder, str(epochs)], environment)
    return {
        "first step": seen["first step at"] - began,
        "last epoch": seen["epochs"][-1],
        "whole program": time.time() - began,
    }


def require_equal_weights(folder: str) -> None:
    """End the benchmark if two programs came to other weights, since then they did other work."""
    import torch

    from benchmarks._models import mlp
    from course.models.torch import parameter_distance

    weights = {way: torch.load(weights_of(folder, way), weights_only=True) for way in WAYS}
    first = weights["one process"]
    change = parameter_distance(first, mlp(seed=0))
    for way in WAYS:
        difference = parameter_distance(first, weights[way])
        print(f"  {way}: weights differ by up to {difference:.1e}, the training changed them by {change:.2f}")
        if not difference <= _TOLERANCE * change:
            raise SystemExit(f"{way} did not train the same model")


def main() -> None:
    options = parser(__doc__, repeat=3, rows=60_000)
    options.add_argument("--epochs", type=int, default=3)
    options = options.parse_args()
    # Else the ranks' last batches would differ from those of one process.
    rows = options.rows // GLOBAL_BATCH * GLOBAL_BATCH
    folder = rows_folder(Settings.from_env().home, rows)
    results = Results("engines", ours="Ray Train")
    with tempfile.TemporaryDirectory(prefix="lkb", ignore_cleanup_errors=True) as home:
        ways = {way: lambda way=way: run(way, folder, options.epochs, Path(home)) for way in WAYS}
        measure(ways, results, options.repeat)
    require_equal_weights(folder)
    results.finish(results.ratio("whole program", "torchrun"), json=options.json, rows=rows)


if __name__ == "__main__":
    main()
