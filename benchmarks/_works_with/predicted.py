"""What the rows of trees and of JAX share: models are compared by what each rank predicts for all rows."""

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


def measured(
    trainer_class: Any,
    loop: Callable,
    in_one_process: Callable,
    name: str,
    storage: Path,
    *,
    env_vars: dict[str, str] | None = None,
    **options: Any,
) -> dict[str, bool]:
    """Fit two rounds and then, resumed, a third one. `options` go to the trainer.

    Args:
        loop: a rank's loop, which ends with `problem.keep_predictions`.
        in_one_process: return the predictions and the losses of one process after a number of rounds.
        env_vars: further environment variables of the workers.
    """

    def fit(rounds: int) -> list[list[float]]:
        trainer = trainer_class(
            loop,
            train_loop_config={"epochs": rounds, "folder": str(storage)},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(
                name=name, storage_path=str(storage), worker_runtime_env={"env_vars": env_vars or {}}
            ),
            **options,
        )
        TrainPanel(name, reporter=NullReporter()).fit(trainer)
        return [json.loads((storage / f"predictions-{rank}.json").read_text()) for rank in range(2)]

    ranks = fit(2)
    record = runs.latest(name)
    aim, losses = in_one_process(2)
    seen = {
        "one model": close(*ranks),
        "one process": close(ranks[0], numpy.ravel(aim)),
        "epochs": record.epochs == 2 and [entry.get("epoch") for entry in record.history] == [0, 1],
        "loss": close([entry.get("loss", -1.0) for entry in record.history], losses),
    }
    ranks = fit(3)
    aim, _ = in_one_process(3)
    is_right = close(ranks[0], numpy.ravel(aim)) if seen["one process"] else close(*ranks)
    seen["resumes"] = is_right and runs.latest(name).epochs == 1
    return seen
