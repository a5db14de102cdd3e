"""The small runs of the campaign of faults: a linear model in PyTorch, Keras and Tune, and a pipeline.

NumPy knows the weights of that model for every epoch (`descend`), so each checkpoint can be compared with
what an undisturbed run has at that epoch. Each step is written into a log, which survives the process.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ray import cloudpickle

from course.models import KERAS_2
from labkit.storage import Store

# Workers cannot import this module, so what is in it goes to them by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

WIDTH, RATE, TRIALS = 4, 0.1, 4  # weights, learning rate, trials of a sweep
STEP = 0.01  # seconds that a step lasts at least
_HALF = 4  # rows of one rank in a step
_Made = tuple[Any, Callable[[], Any]]  # a panel that watches, and what to call in it


def rows(epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of both ranks in a step: float64 [2 · _HALF, WIDTH], [2 · _HALF, 1]."""
    rng = np.random.default_rng([epoch, step])
    return rng.normal(size=(2 * _HALF, WIDTH)), rng.normal(size=(2 * _HALF, 1))


def descend(weights: np.ndarray, epoch: int, steps: int, rate: float) -> np.ndarray:
    """One epoch of gradient descent on the mean squared error, in one process: float64 [WIDTH, 1]."""
    for x, y in (rows(epoch, step) for step in range(steps)):
        weights = weights - rate * 2 * x.T @ (x @ weights - y) / len(x)
    return weights


def note(config: dict[str, Any], key: Any, epoch: int, step: int) -> None:
    """Write down that the rank, trial or pipeline `key` has made a step."""
    with open(config["log"], "a") as log:
        log.write(f"{time.time():.3f} {key} {os.getpid()} {epoch} {step}\n")


def save(folder: str, epoch: int, weights: np.ndarray) -> None:
    """Write the state after an epoch; half of the file is no JSON."""
    state = {"epoch": epoch, "weights": np.ravel(weights).tolist(), "ballast": "-" * 50_000}
    Path(folder, "state.json").write_text(json.dumps(state))


def load(checkpoint: Any) -> tuple[int, np.ndarray]:
    """(the epoch that comes next, weights)."""
    with checkpoint.as_directory() as folder:
        state = json.loads(Path(folder, "state.json").read_text())
    return state["epoch"] + 1, np.array(state["weights"]).reshape(-1, 1)


def validate(checkpoint: Any) -> dict[str, float]:
    """A validation: the norm of a checkpoint's weights."""
    return {"norm": float(np.linalg.norm(load(checkpoint)[1]))}


def _loop(config: dict[str, Any]) -> None:
    """What a worker of Ray Train does: epochs, and a checkpoint of rank 0 after each."""
    import ray.train

    rank, checkpoint = ray.train.get_context().get_world_rank(), ray.train.get_checkpoint()
    first, weights = load(checkpoint) if checkpoint else (0, np.zeros((WIDTH, 1)))
    epochs = _keras_epochs if config["kind"] == "keras" else _torch_epochs
    how: dict[str, Any] = {"delete_local_checkpoint_after_upload": True}
    if config["kind"] == "validation":
        how |= {"checkpoint_upload_mode": ray.train.CheckpointUploadMode.ASYNC, "validation": rank == 0}
    for epoch, now in epochs(config, rank, first, weights):
        kept = None
        if rank == 0:
            folder = tempfile.mkdtemp()
            save(folder, epoch, now)
            kept = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"epoch": epoch}, checkpoint=kept, **how)


def _torch_epochs(config: dict, rank: int, first: int, weights: np.ndarray) -> Iterator:
    import torch
    from ray.train.torch import prepare_model

    model = torch.nn.Linear(WIDTH, 1, bias=False).double()
    model.weight.data = torch.tensor(weights.T.copy())
    model, mine = prepare_model(model), slice(rank * _HALF, (rank + 1) * _HALF)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for epoch in range(first, config["epochs"]):
        for step in range(config["steps"]):
            x, y = (torch.tensor(part[mine]) for part in rows(epoch, step))
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            time.sleep(STEP)
            if rank == 0:
                note(config, 0, epoch, step)
        yield epoch, next(model.parameters()).detach().numpy().T


def _keras_epochs(config: dict, rank: int, first: int, weights: np.ndarray) -> Iterator:
    import tensorflow as tf

    from labkit.keras import PanelCallback

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, input_shape=(WIDTH,))])
        model.compile(tf.keras.optimizers.SGD(RATE), "mse")
    model.set_weights([weights])

    def made(step: int, logs: Any) -> None:
        time.sleep(STEP)
        if rank == 0:
            note(config, 0, epoch, step)

    told = PanelCallback()
    called = [told, tf.keras.callbacks.LambdaCallback(on_train_batch_end=made)]
    for epoch in range(first, config["epochs"]):  # noqa: B007, `made` reads it
        x, y = map(np.concatenate, zip(*(rows(epoch, step) for step in range(config["steps"])), strict=True))
        batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(2 * _HALF)
        model.fit(batches, initial_epoch=epoch, epochs=epoch + 1, verbose=0, callbacks=called)
        yield epoch, model.get_weights()[0]


def train(name: str, config: dict[str, Any], store: Store) -> _Made:
    """A run on two workers: "torch", "validation" (of each checkpoint, next to it) or "keras"."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig, ValidationConfig

    from labkit.train import TrainPanel

    more, environment = {}, {}
    if config["kind"] == "keras":
        from ray.train.tensorflow import TensorflowTrainer as Trainer

        environment = {"worker_runtime_env": {"env_vars": KERAS_2}}
    else:
        from ray.train.torch import TorchTrainer as Trainer
    if config["kind"] == "validation":
        more = {"validation_config": ValidationConfig(validate)}
    panel = TrainPanel(name)
    run_config = RunConfig(
        name=name,
        storage_path=store.storage_path("campaign"),
        storage_filesystem=store.filesystem,
        failure_config=FailureConfig(max_failures=2),
        **environment,
    )
    scaling = ScalingConfig(num_workers=2, placement_strategy="SPREAD")
    given = {"train_loop_config": config, "scaling_config": scaling}
    trainer = Trainer(_loop, run_config=run_config, **given, **more)
    return panel.watch(trainer), trainer.fit


def sweep(name: str, config: dict[str, Any], store: Store) -> _Made:
    """A sweep over learning rates; one that was begun under this name goes on."""
    from ray import tune

    from labkit.tune import SweepPanel

    class Trial(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.done, self.weights = 0, np.zeros((WIDTH, 1))

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

    panel, path, files = SweepPanel(name), store.storage_path("campaign"), store.filesystem
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
    rates = tune.grid_search([RATE * (1 + k) / TRIALS for k in range(TRIALS)])
    options = tune.TuneConfig(metric="norm", mode="max")
    space = {**config, "rate": rates}
    tuner = tune.Tuner(Trial, param_space=space, tune_config=options, run_config=run_config)
    return panel.watch(tuner), tuner.fit


def pipeline(name: str, config: dict[str, Any], store: Store) -> _Made:
    """Ray Data reads objects from the store, one in each task; `fit` returns their numbers."""
    import ray.data

    from labkit.data import DataPanel

    files, folder = store.filesystem, f"{store.bucket('campaign')}/{name}"
    blocks = config["epochs"] * config["steps"]
    for number in range(blocks):
        store.files.pipe_file(f"{folder}/{number}", b"%d" % number**2)

    def read(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        (number,) = batch["id"]
        time.sleep(4 * STEP)
        with files.open_input_stream(f"{folder}/{number}") as stream:
            square = int(stream.read())
        note(config, 0, 0, number)
        return {"square": np.array([square])}

    def fit() -> list[int]:
        numbers = ray.data.range(blocks, override_num_blocks=blocks)
        found = numbers.map_batches(read, batch_size=1).materialize().take_all()
        return sorted(row["square"] for row in found)

    return DataPanel(name), fit
