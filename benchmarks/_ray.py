"""A run of Ray Train that returns what its loop measured."""

import tempfile
from collections.abc import Callable, Mapping
from typing import Any

WORKERS = 2


def fit(loop: Callable[[dict], Any], config: dict[str, Any], data: Mapping[str, Any]) -> Any:
    """Run a loop on two workers, and return what it returns on rank 0."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            loop,
            train_loop_config=config,
            datasets=dict(data),
            scaling_config=ScalingConfig(num_workers=WORKERS),
            run_config=RunConfig(storage_path=folder),
        )
        return trainer.fit().return_value
