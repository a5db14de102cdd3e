"""Run one row on two ranks, and say which facts hold."""

import importlib
import math
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
from ray import cloudpickle
from ray.train import FailureConfig

from benchmarks import _works_with
from benchmarks._ray import trainer
from benchmarks._works_with import problem
from benchmarks._works_with.table import Row
from labkit import runs
from labkit.errors import RunFailed, RunStopped
from labkit.panel import Panel
from labkit.panel.reporters import NullReporter
from labkit.train import TrainPanel

_CLOSE = 1e-5  # of weights and losses: two orders of the same sum
_LONG = 120  # seconds to wait for what a busy machine does slowly
_FOREVER = 100_000  # epochs of the run that is stopped
_PAUSE = 0.05  # seconds a step of it


def measure(row: Row, storage: Path) -> dict[str, Any]:
    """Run the row; return whether each fact holds, the panel's own sentences, and what the row raised."""
    seen = {"facts": {}, "notes": [], "error": ""}
    try:
        module = importlib.import_module(f"benchmarks._works_with.rows.{row.key}")
        cloudpickle.register_pickle_by_value(_works_with)  # workers can't import a benchmark
        if hasattr(module, "measured"):
            seen["facts"] = module.measured(storage)
        else:
            seen["facts"], seen["notes"] = _with_torch_trainer(module, row, storage)
    except Exception as error:
        seen["error"] = repr(error)
        traceback.print_exc()
    return seen


def _with_torch_trainer(module: ModuleType, row: Row, storage: Path) -> tuple[dict[str, bool], list[str]]:
    if hasattr(module, "write"):  # the data set, in the form that the library reads
        module.write(storage)
    rows_of = getattr(module, "ROWS_OF", problem.dealt)
    panel, ranks = _fit(module.loop, row.key, storage, 2)
    notes = list(panel.view(panel.state, panel.state.ended_at).notes)
    facts = seen_by_panel(panel, row.key, ranks, problem.Reference(2, rows_of))
    if "resumes" in row.asked:
        _, ranks = _fit(module.loop, row.key, storage, 3)
        aim = problem.Reference(3, rows_of).weights
        if not facts["one process"]:
            _, (aim, _) = _fit(module.loop, f"{row.key}-at-once", storage, 3)
        made = len(runs.latest(row.key).seconds_per_epoch)
        facts["resumes"] = close(ranks[0], aim) and made == getattr(module, "EPOCHS_AFTER_RESUME", 1)
    if "stop" in row.asked:
        facts["stop"] = _killed_and_stopped(module.loop, f"{row.key}-stopped", storage)
    return facts, notes


def _trainer(
    loop: Callable, name: str, storage: Path, epochs: int, *, pause: float = 0.0, failures: int = 0
) -> Any:
    config = {"epochs": epochs, "pause": pause, "folder": str(storage)}
    failure_config = FailureConfig(max_failures=failures)
    return trainer(loop, config, str(storage), name=name, failure_config=failure_config)


def _fit(loop: Callable, name: str, storage: Path, epochs: int) -> tuple[TrainPanel, list[list[float]]]:
    """A run to its end: its panel, and the weights of both ranks."""
    panel = TrainPanel(name, reporter=NullReporter())
    return panel, panel.fit(_trainer(loop, name, storage, epochs)).return_value


def _killed_and_stopped(loop: Callable, name: str, storage: Path) -> bool:
    """Kill rank 1 of a long run, wait until it trains again, and stop it."""
    panel = TrainPanel(name, reporter=NullReporter())

    def trains() -> bool:
        workers = panel.state.workers
        return len(workers) == 2 and all(worker.made for worker in workers.values())

    def act() -> None:
        if until(trains):
            first = panel.state.workers[1].pid
            os.kill(first, signal.SIGKILL)
            until(lambda: trains() and panel.state.workers[1].pid != first)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=act, daemon=True).start()
    try:
        panel.fit(_trainer(loop, name, storage, _FOREVER, pause=_PAUSE, failures=1))
    except RunStopped:
        failures = panel.state.failures
        return len(failures) == 1 and failures[0].rank == 1 and panel.state.recovered
    except RunFailed:
        traceback.print_exc()
    return False


def seen_by_panel(
    panel: Panel, name: str, ranks: list[list[float]], expected: problem.Reference, *, reports: bool = True
) -> dict[str, bool]:
    """Whether the weights of two ranks match, and rows, steps, epochs and losses in the panel and its record.

    Args:
        reports: whether the loop reports a loss per epoch; a loop in TorchDistributor may not.
    """
    same = close(ranks[0], expected.weights)  # else it had other batches, and losses only match each other
    workers = panel.state.workers.values()
    record = runs.latest(name)
    epochs = len(expected.last)
    rows = problem.ROWS // 2 * epochs
    steps = problem.STEPS * epochs
    numbers = [entry.get("epoch") for entry in record.history]
    reported = [entry.get("loss", math.nan) for entry in record.history]
    followed = [metrics["loss"] for _, metrics in panel.state.curve if "loss" in metrics][-1:]
    loss = close(followed, expected.last[-1:] if same else reported[-1:])
    if reports and same:
        loss = loss and any(
            close(reported, losses) for losses in (expected.last, expected.mean, expected.own)
        )
    return {
        "one model": close(*ranks),
        "one process": same,
        "rows": [worker.rows for worker in workers if worker.counted] == [rows, rows],
        "steps": [worker.made for worker in workers] == [steps, steps],
        "epochs": record.epochs == len(record.seconds_per_epoch) == epochs
        and (not reports or numbers == [*range(epochs)]),
        "loss": loss,
    }


def close(first: list[float], second: list[float]) -> bool:
    """Whether two lists of numbers are equal, up to the order of sums."""
    return len(first) == len(second) and numpy.allclose(first, second, rtol=0, atol=_CLOSE)


def until(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds; whether it did in time."""
    deadline = time.monotonic() + _LONG
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
