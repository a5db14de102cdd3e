"""Three validators for the benchmark of asynchronous validation: functions from a checkpoint to its metrics.

Ray Train calls a validator in a task of its own. All three read the same rows, load the same weights, and
return the same means, taken over rows in double precision:

- `in_a_task` evaluates in that task.
- `in_a_trainer` starts a `TorchTrainer` that only evaluates.
- `in_ray_data` streams the rows through actors that load the model once.
"""

import functools
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.fs
import ray.data
import ray.train
import torch
from ray.train import CheckpointUploadMode, ScalingConfig
from ray.train.torch import TorchTrainer, get_device
from torch import nn

from labkit.datasets import read_rows
from labkit.errors import LabError
from labkit.models.torch import to_input

ACCURACY, LOSS = "val_accuracy", "val_loss"

_Validator = Callable[..., dict[str, float]]


@dataclass(frozen=True)
class _Job:
    """What every validator needs; it is small, and travels with each checkpoint."""

    build: Callable[[], nn.Module]
    path: str
    filesystem: pyarrow.fs.FileSystem | None
    batch_size: int

    def model(self, checkpoint: ray.train.Checkpoint, device: torch.device | str = "cpu") -> nn.Module:
        """The checkpoint's model, ready to evaluate."""
        model = self.build()
        with checkpoint.as_directory() as folder:
            model.load_state_dict(torch.load(f"{folder}/state.pt", weights_only=True))
        return model.to(device).eval()


def in_a_task(
    build: Callable[[], nn.Module],
    path: str,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    batch_size: int = 512,
) -> _Validator:
    """A validator that evaluates in the task that Ray gives it.

    Args:
        build: makes the model, with any weights (`cnn`).
        path: Parquet object, or folder of them, with ``image`` and ``label``.
        filesystem: where the path is; default: this machine.
        batch_size: rows at once.

    Returns:
        a function (checkpoint) → {"val_accuracy", "val_loss"}: means over the rows.
    """
    return functools.partial(_in_a_task, job=_Job(build, path, filesystem, batch_size))


def in_a_trainer(
    build: Callable[[], nn.Module],
    path: str,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    batch_size: int = 512,
    workers: int = 1,
    use_gpu: bool = False,
    storage_path: str,
) -> _Validator:
    """A validator that starts a `TorchTrainer`, whose workers share the rows and evaluate.

    Give its task no CPU of its own (``ray_remote_kwargs={"num_cpus": 0}``): it only waits for them.

    Args:
        workers, use_gpu: of that trainer.
        storage_path: where its runs are, on `filesystem`; each has a name of its own.
        build, path, filesystem, batch_size: as in `in_a_task`.
    """
    job = _Job(build, path, filesystem, batch_size)
    scaling = ScalingConfig(num_workers=workers, use_gpu=use_gpu)
    return functools.partial(_in_a_trainer, job=job, scaling=scaling, storage_path=storage_path)


def in_ray_data(
    build: Callable[[], nn.Module],
    path: str,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    batch_size: int = 512,
    actors: int = 1,
    use_gpu: bool = False,
) -> _Validator:
    """A validator that streams the rows through actors; each loads the model once.

    Its task, too, only waits: ``ray_remote_kwargs={"num_cpus": 0}``.

    Args:
        actors: at the same time.
        use_gpu: one for each actor.
        build, path, filesystem, batch_size: as in `in_a_task`.
    """
    job = _Job(build, path, filesystem, batch_size)
    return functools.partial(_in_ray_data, job=job, actors=actors, use_gpu=use_gpu)


# -- the three -------------------------------------------------------------------------------------


def _in_a_task(checkpoint: ray.train.Checkpoint, *, job: _Job) -> dict[str, float]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = job.model(checkpoint, device)
    images, labels = read_rows(job.path, job.filesystem)
    correct, loss = zip(*_judge_all(model, images, labels, job.batch_size), strict=True)
    return {ACCURACY: float(np.concatenate(correct).mean()), LOSS: float(np.concatenate(loss).mean())}


def _in_a_trainer(
    checkpoint: ray.train.Checkpoint, *, job: _Job, scaling: ScalingConfig, storage_path: str
) -> dict[str, float]:
    # A fresh name for each attempt: under a used one, Ray would go on with the run of that name.
    name = f"validate-{checkpoint.path.rstrip('/').rpartition('/')[2]}-{secrets.token_hex(4)}"
    result = TorchTrainer(
        _evaluate_only,
        train_loop_config={"job": job, "checkpoint": checkpoint},
        scaling_config=scaling,
        run_config=ray.train.RunConfig(
            name=name, storage_path=storage_path, storage_filesystem=job.filesystem
        ),
    ).fit()
    return {key: result.metrics[key] for key in (ACCURACY, LOSS)}


def _evaluate_only(config: dict[str, Any]) -> None:
    """In each worker of that trainer: its part of the rows, and the mean over all of them."""
    from torchmetrics import MeanMetric

    job, context = config["job"], ray.train.get_context()
    device = get_device()
    model = job.model(config["checkpoint"], device)
    rank, world = context.get_world_rank(), context.get_world_size()
    images, labels = (rows[rank::world] for rows in read_rows(job.path, job.filesystem))
    # Its own ways with NaN would leave such rows out of the mean, as if they were not there.
    means = {n: MeanMetric(nan_strategy="disable").to(device) for n in (ACCURACY, LOSS)}
    means = {name: mean.set_dtype(torch.float64) for name, mean in means.items()}
    for correct, loss in _judge_all(model, images, labels, job.batch_size):
        means[ACCURACY].update(torch.from_numpy(correct).to(device))
        means[LOSS].update(torch.from_numpy(loss).to(device))
    # compute() adds up the sums and the weights of all ranks, so that parts may differ in length.
    metrics = {name: float(mean.compute()) for name, mean in means.items()}
    # Ray keeps metrics only with a checkpoint: this one is a name in the run's folder, and no more.
    storage = context.get_storage()
    nothing = ray.train.Checkpoint(f"{storage.experiment_fs_path}/nothing", storage.storage_filesystem)
    ray.train.report(metrics, checkpoint=nothing, checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD)


def _in_ray_data(
    checkpoint: ray.train.Checkpoint, *, job: _Job, actors: int, use_gpu: bool
) -> dict[str, float]:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.use_datasource_v2 = False  # its planning takes longer than the reading of a few files
    rows = ray.data.read_parquet(job.path, filesystem=job.filesystem)
    judged = rows.map_batches(
        _Judge,
        fn_constructor_kwargs={"job": job, "checkpoint": checkpoint},
        batch_size=job.batch_size,
        num_cpus=1,
        num_gpus=1 if use_gpu else 0,
        compute=ray.data.ActorPoolStrategy(size=actors),
    )
    means = judged.mean(["correct", "loss"])
    return {ACCURACY: float(means["mean(correct)"]), LOSS: float(means["mean(loss)"])}


class _Judge:
    """An actor of Ray Data: it loads the model when it starts, and judges every batch that comes."""

    def __init__(self, job: _Job, checkpoint: ray.train.Checkpoint) -> None:
        self._model = job.model(checkpoint, "cuda" if torch.cuda.is_available() else "cpu")

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        correct, loss = _judge(self._model, batch["image"], batch["label"])
        return {"correct": correct, "loss": loss}


def _judge_all(
    model: nn.Module, images: np.ndarray, labels: np.ndarray, size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    if not len(labels):
        raise LabError("validate a checkpoint", "there is no row to validate on", "look at the path")
    for first in range(0, len(labels), size):
        yield _judge(model, images[first : first + size], labels[first : first + size])


@torch.no_grad()
def _judge(model: nn.Module, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row whether the model is right, and its loss: float64 [n], float64 [n]."""
    device = next(model.parameters()).device
    logits = model(to_input(torch.from_numpy(np.array(images))).to(device)).double().cpu()
    y = torch.from_numpy(np.array(labels))
    correct = (logits.argmax(dim=1) == y).double().numpy()
    return correct, nn.functional.cross_entropy(logits, y, reduction="none").numpy()
