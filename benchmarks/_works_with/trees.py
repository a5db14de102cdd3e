"""What the rows of trees and of JAX share: each rank keeps its predictions in a file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
from ray.train import RunConfig, ScalingConfig

from benchmarks._works_with.measure import close
from labkit import runs
from labkit.panel.reporters import NullReporter
from labkit.train import TrainPanel


def keep(config: dict, rank: int, predictions: numpy.ndarray) -> None:
    """In a rank: write down what its model predicts for all rows."""
    Path(config["folder"], f"{rank}.json").write_text(json.dumps(numpy.ravel(predictions).tolist()))


def measured(
    trainer_class: Any,
    loop: Callable,
    alone: Callable,
    name: str,
    storage: Path,
    variables: dict,
    **options: Any,
) -> dict[str, bool]:
    """Fit two rounds and then, resumed, a third one.

    Args:
        alone: returns the predictions and the losses of one process after so many rounds.
        variables: further environment variables of the workers.
    """

    def fit(rounds: int) -> list[list[float]]:
        trainer = trainer_class(
            loop,
            train_loop_config={"epochs": rounds, "folder": str(storage)},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(
                name=name, storage_path=str(storage), worker_runtime_env={"env_vars": variables}
            ),
            **options,
        )
        TrainPanel(name, reporter=NullReporter()).fit(trainer)
        return [json.loads((storage / f"{rank}.json").read_text()) for rank in range(2)]

    ranks = fit(2)
    record = runs.latest(name)
    predictions, losses = alone(2)
    seen = {
        "one model": close(*ranks),
        "one process": close(ranks[0], numpy.ravel(predictions).tolist()),
        "epochs": record.epochs == 2 and [entry.get("epoch") for entry in record.history] == [0, 1],
        "loss": close([entry.get("loss", -1.0) for entry in record.history], losses),
    }
    ranks = fit(3)
    predictions, _ = alone(3)
    same = close(ranks[0], numpy.ravel(predictions).tolist()) if seen["one process"] else close(*ranks)
    seen["resumes"] = same and runs.latest(name).epochs == 1
    return seen
