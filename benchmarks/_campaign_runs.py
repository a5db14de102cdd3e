"""The small runs that faults and interrupts hit: a linear model in Ray Train and in Tune.

NumPy knows the weights of that model for every epoch (`descend`), so each checkpoint can be compared with
what an undisturbed run has at that epoch. Each step is written into a log, which survives the process.
"""

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ray import cloudpickle

from labkit.storage import Store

# Workers cannot import this module, so what is in it goes to them by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

WIDTH = 4  # weights
RATE = 0.1  # the learning rate
TRIALS = 4  # of a sweep
STEP = 0.01  # seconds that a step lasts at least
_HALF = 4  # rows of one rank in a step
_Watched = tuple[Any, Callable[[], Any]]  # a panel that watches, and what to call in it


class Broken(Exception):
    """A promise that does not hold after a fault."""


def rows(epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the rows of both ranks in a step: float64 [2 · _HALF, WIDTH], [2 · _HALF, 1]."""
    rng = np.random.default_rng([epoch, step])
    return rng.normal(size=(2 * _HALF, WIDTH)), rng.normal(size=(2 * _HALF, 1))


def descend(weights: np.ndarray, epoch: int, steps: int, rate: float) -> np.ndarray:
    """Descend for one epoch on the mean squared error, in one process; weights are float64 [WIDTH, 1]."""
    for step in range(steps):
        x, y = rows(epoch, step)
        gradient = 2 * x.T @ (x @ weights - y) / len(x)
        weights = weights - rate * gradient
    return weights


def note(config: dict[str, Any], key: Any, epoch: int, step: int) -> None:
    """Write down that the rank, trial or pipeline `key` has made a step."""
    with open(config["log"], "a") as log:
        log.write(f"{key} {os.getpid()} {epoch} {step}\n")


def ballast(size: int) -> str:
    """Return so many letters, always the same."""
    return random.Random(0).randbytes(size // 2).hex()


def save(folder: str, epoch: int, weights: np.ndarray, size: int = 50_000) -> None:
    """Write the state after an epoch into a file of `size` bytes and a few more; half of it is no JSON."""
    state = {"epoch": epoch, "weights": np.ravel(weights).tolist(), "ballast": ballast(size)}
    Path(folder, "state.json").write_text(json.dumps(state))


def load(checkpoint: Any) -> tuple[int, np.ndarray]:
    """Return the epoch that comes next, and the weights."""
    with checkpoint.as_directory() as folder:
        state = json.loads(Path(folder, "state.json").read_text())
    if state["ballast"] != ballast(len(state["ballast"])):
        raise Broken(f"the checkpoint of epoch {state['epoch']} is not what was saved")
    return state["epoch"] + 1, np.array(state["weights"]).reshape(-1, 1)


def listed(name: str, store: Store) -> list[Any]:
    """List the checkpoints that Ray lists for a run of Ray Train, as the store has them."""
    from labkit.train import reported_checkpoints

    path = store.storage_path("campaign", name)
    if not store.files.exists(f"{path}/checkpoint_manager_snapshot.json"):
        return []
    return reported_checkpoints(path, store.filesystem)


def validate(checkpoint: Any) -> dict[str, float]:
    """Return the norm of a checkpoint's weights."""
    _, weights = load(checkpoint)
    return {"norm": float(np.linalg.norm(weights))}


def _loop(config: dict[str, Any]) -> None:
    """Train in a worker of Ray Train; rank 0 reports a checkpoint after each epoch."""
    import ray.train

    rank = ray.train.get_context().get_world_rank()
    checkpoint = ray.train.get_checkpoint()
    first = 0
    begin = np.zeros((WIDTH, 1))
    if checkpoint:
        first, begin = load(checkpoint)
    options: dict[str, Any] = {"delete_local_checkpoint_after_upload": True}
    if config["kind"] == "validation":
        options["checkpoint_upload_mode"] = ray.train.CheckpointUploadMode.ASYNC
        options["validation"] = rank == 0
    for epoch, weights in _epochs(config, rank, first, begin):
        checkpoint = None
        if rank == 0:
            folder = tempfile.mkdtemp()
            save(folder, epoch, weights, config["size"])
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"epoch": epoch, "first": first}, checkpoint=checkpoint, **options)


def _epochs(config: dict, rank: int, first: int, weights: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Train, and yield the weights after each epoch."""
    import torch
    from ray.train.torch import prepare_model

    model = torch.nn.Linear(WIDTH, 1, bias=False).double()
    model.weight.data = torch.tensor(weights.T.copy())
    model = prepare_model(model)
    mine = slice(rank * _HALF, (rank + 1) * _HALF)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for epoch in range(first, config["epochs"]):
        for step in range(config["steps"]):
            x, y = rows(epoch, step)
            optimizer.zero_grad()
            scores = model(torch.tensor(x[mine]))
            torch.nn.functional.mse_loss(scores, torch.tensor(y[mine])).backward()
            optimizer.step()
            time.sleep(STEP)
            if rank == 0:
                note(config, 0, epoch, step)
        yield epoch, next(model.parameters()).detach().numpy().T


def train(
    name: str, config: dict[str, Any], store: Store, *, failures: int = 2, size: int = 50_000
) -> _Watched:
    """Make a run on two workers, of the kind "torch" or "validation" (of each checkpoint, next to it).

    Args:
        failures: after how many the run goes on.
        size: of a checkpoint, in bytes.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig, ValidationConfig
    from ray.train.torch import TorchTrainer

    from labkit.train import TrainPanel

    validation = ValidationConfig(validate) if config["kind"] == "validation" else None
    run_config = RunConfig(
        name=name,
        storage_path=store.storage_path("campaign"),
        storage_filesystem=store.filesystem,
        failure_config=FailureConfig(max_failures=failures),
    )
    trainer = TorchTrainer(
        _loop,
        train_loop_config=config | {"size": size},
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="SPREAD"),
        run_config=run_config,
        validation_config=validation,
    )
    return TrainPanel(name).watch(trainer), trainer.fit


def sweep(name: str, config: dict[str, Any], store: Store) -> _Watched:
    """Make a sweep over learning rates; one that was begun under this name goes on."""
    from ray import tune

    from labkit.tune import SweepPanel

    class Trial(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.done = 0
            self.weights = np.zeros((WIDTH, 1))

        def step(self) -> dict[str, Any]:
            time.sleep(STEP * self.config["steps"])
            self.weights = descend(self.weights, self.done, self.config["steps"], self.config["rate"])
            note(self.config, self.config["rate"], self.done, 0)
            self.done += 1
            return {"norm": float(np.linalg.norm(self.weights))}

        def save_checkpoint(self, folder: str) -> None:
            save(folder, self.done - 1, self.weights)

        def load_checkpoint(self, folder: str) -> None:
            self.done, self.weights = load(tune.Checkpoint.from_directory(folder))

    panel = SweepPanel(name)
    path = store.storage_path("campaign")
    files = store.filesystem
    if tune.Tuner.can_restore(f"{path}/{name}", storage_filesystem=files):
        tuner = tune.Tuner.restore(f"{path}/{name}", trainable=Trial, storage_filesystem=files)
        return panel.watch(tuner), tuner.fit
    run_config = tune.RunConfig(
        name=name,
        storage_path=path,
        storage_filesystem=files,
        stop={"training_iteration": config["epochs"]},
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        failure_config=tune.FailureConfig(max_failures=2),
    )
    rates = [RATE * (1 + number) / TRIALS for number in range(TRIALS)]
    tuner = tune.Tuner(
        Trial,
        param_space={**config, "rate": tune.grid_search(rates)},
        tune_config=tune.TuneConfig(metric="norm", mode="max"),
        run_config=run_config,
    )
    return panel.watch(tuner), tuner.fit
