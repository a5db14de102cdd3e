"""What a run's store says of its checkpoints: metrics and status, also when the run is over or was killed."""

import json
from typing import Any

import pyarrow.fs
import ray.train
from ray.train import ReportedCheckpoint, ReportedCheckpointStatus

from labkit.errors import RunError


def reported(path: str, filesystem: pyarrow.fs.FileSystem | None = None) -> list[ReportedCheckpoint]:
    """What a run's store says of its checkpoints, in the order of their reports: metrics and status.

    During a run ``ray.train.get_all_reported_checkpoints`` tells the same to its workers. A `Result` has no
    statuses, so afterwards, or when a run was killed, they are read from the list that Ray keeps beside the
    checkpoints.

    Args:
        path: of the run: ``result.path``, or storage_path/name.
        filesystem: ``result.filesystem``.

    Raises:
        RunError: there is no such run, or its list is not Ray's.
    """
    filesystem = filesystem or pyarrow.fs.LocalFileSystem()
    name = f"{path}/checkpoint_manager_snapshot.json"
    try:
        with filesystem.open_input_stream(name) as file:
            kept = json.loads(file.read())
        return [_reported(path, filesystem, result, kept) for result in _in_order(kept)]
    except FileNotFoundError as error:
        fix = "give result.path, or storage_path/name of a run that reported a checkpoint"
        raise RunError(f"read the checkpoints of {path}", "there is no list of them", fix) from error
    except (ValueError, KeyError, TypeError) as error:
        fact = f"{name} is not as Ray 2.60 writes it ({type(error).__name__}: {error})"
        raise RunError(f"read the checkpoints of {path}", fact, "use the Ray that wrote it") from error


def _in_order(kept: dict[str, Any]) -> list[dict[str, Any]]:
    """The results by the number of their report; Ray keeps them by their score."""
    numbered = zip(kept["checkpoint_report_indices"], kept["checkpoint_results"], strict=True)
    return [result for _, result in sorted(numbered, key=lambda pair: pair[0])]


def _reported(
    path: str, filesystem: pyarrow.fs.FileSystem, result: dict[str, Any], kept: dict[str, Any]
) -> ReportedCheckpoint:
    name = result["checkpoint_dir_name"]
    pending = {waiting["checkpoint_dir_name"] for waiting in kept["pending_training_results"]}
    status = ReportedCheckpointStatus.COMMITTED
    for found, names in (
        (ReportedCheckpointStatus.PENDING_VALIDATION, pending),
        (ReportedCheckpointStatus.VALIDATED, kept["validated_checkpoint_dir_names"]),
        (ReportedCheckpointStatus.VALIDATION_TIMEOUT, kept["timed_out_validation_checkpoint_dir_names"]),
        (ReportedCheckpointStatus.VALIDATION_FAILED, kept["failed_validation_checkpoint_dir_names"]),
    ):
        status = found if name in names else status
    checkpoint = ray.train.Checkpoint(f"{path}/{name}", filesystem)
    return ReportedCheckpoint(checkpoint=checkpoint, metrics=result["metrics"], status=status)
