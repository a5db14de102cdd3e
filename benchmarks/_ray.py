"""A run of Ray Train that returns what its loop measured."""

import tempfile
from collections.abc import Callable
from typing import Any

WORKERS = 2


def trainer(
    loop: Callable[[dict], Any],
    config: dict[str, Any],
    folder: str,
    *,
    workers: int = WORKERS,
    data: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Make a trainer that runs a loop on two workers, and writes into a folder; `options` of `RunConfig`."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    return TorchTrainer(
        loop,
        train_loop_config=config,
        datasets=data,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(storage_path=folder, **options),
    )


def fit(loop: Callable[[dict], Any], config: dict[str, Any], data: dict[str, Any] | None = None) -> Any:
    """Run a loop on two workers, and return what it returns on rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        return trainer(loop, config, folder, data=data).fit().return_value
