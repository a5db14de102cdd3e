"""The checkpoints of a Ray Train run: what the store says of them, and which of them Ray keeps."""

import json
import os
import re
from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Any

import pyarrow.fs
import ray.train
from ray.train import ReportedCheckpoint, ReportedCheckpointStatus

from labkit.errors import LabError

_LOW_IS_GOOD = re.compile(r"(^|[^a-z])(loss|error|mse|rmse|mae|perplexity)$")  # at the end of a metric's name
_NAMES_TOLD = 8


def reported_checkpoints(
    path: str, filesystem: pyarrow.fs.FileSystem | None = None
) -> list[ReportedCheckpoint]:
    """The checkpoints of a run with their metrics and status, in the order of their reports.

    During a run ``ray.train.get_all_reported_checkpoints`` gives workers the same. A `Result` has no
    statuses, so afterwards, or when a run was killed, they are read from Ray's list in the store.

    Args:
        path: of the run: ``result.path``, or storage_path/name.
        filesystem: ``result.filesystem``.

    Raises:
        LabError: there is no such run, or its list is not Ray's.
    """
    filesystem = filesystem or pyarrow.fs.LocalFileSystem()
    try:
        with filesystem.open_input_stream(f"{path}/checkpoint_manager_snapshot.json") as file:
            kept = json.loads(file.read())
        # By the number of their report; Ray keeps them by their score.
        numbered = zip(kept["checkpoint_report_indices"], kept["checkpoint_results"], strict=True)
        results = [result for _, result in sorted(numbered, key=lambda pair: pair[0])]
        return [_reported(path, filesystem, result, kept) for result in results]
    except (OSError, ValueError, KeyError, TypeError) as error:
        fact = f"there is no list of them as Ray 2.60 writes it ({type(error).__name__}: {error})"
        fix = "give result.path, or storage_path/name of a run that reported a checkpoint"
        raise LabError(f"read the checkpoints of {path}", fact, fix) from error


def _reported(
    path: str, filesystem: pyarrow.fs.FileSystem, result: dict[str, Any], kept: dict[str, Any]
) -> ReportedCheckpoint:
    name = result["checkpoint_dir_name"]
    of_status = {
        "PENDING_VALIDATION": [one["checkpoint_dir_name"] for one in kept["pending_training_results"]],
        "VALIDATED": kept["validated_checkpoint_dir_names"],
        "VALIDATION_TIMEOUT": kept["timed_out_validation_checkpoint_dir_names"],
        "VALIDATION_FAILED": kept["failed_validation_checkpoint_dir_names"],
    }
    status = next((status for status, names in of_status.items() if name in names), "COMMITTED")
    checkpoint, status = ray.train.Checkpoint(f"{path}/{name}", filesystem), ReportedCheckpointStatus[status]
    return ReportedCheckpoint(checkpoint=checkpoint, metrics=result["metrics"], status=status)


def listed(config: ray.train.RunConfig) -> list[ReportedCheckpoint] | None:
    """Those of the run with this configuration, whose paths are as Ray gives them; None without a list."""
    filesystem, path = config.storage_filesystem, f"{str(config.storage_path).rstrip('/')}/{config.name}"
    try:
        if filesystem is None:
            path = path if "://" in path else os.path.abspath(os.path.expanduser(path))
            filesystem, path = pyarrow.fs.FileSystem.from_uri(path)
        return reported_checkpoints(PurePosixPath(path).as_posix(), filesystem)
    except Exception:  # if something is wrong with the store, Ray's own error says it better
        return None


def epochs_of(found: list[ReportedCheckpoint]) -> int:
    """Epochs that have checkpoints: Ray goes on from there."""
    return max((int(one.metrics.get("epoch", number)) + 1 for number, one in enumerate(found)), default=0)


def wrong_order(config: ray.train.CheckpointConfig) -> str:
    """A warning if the checkpoints that `config` keeps are probably the worst, else "".

    Ray ranks them by `checkpoint_score_attribute`, by default the highest first, also where it is an error.
    """
    name = config.checkpoint_score_attribute or ""
    low = _LOW_IS_GOOD.search(name.lower()) and "neg" not in name.lower()
    if not low or config.checkpoint_score_order == "min":
        return ""
    kept = f"keeps the {config.num_to_keep}" if config.num_to_keep else "ranks first the"
    return (
        f"Ray {kept} checkpoints with the highest {name}, because checkpoint_score_order is 'max': "
        'CheckpointConfig(..., checkpoint_score_order="min") keeps the best'
    )


def unranked(config: ray.train.CheckpointConfig, reported: Collection[str]) -> str:
    """What to say if none of the metrics that came with checkpoints is the one that ranks them, else ""."""
    name = config.checkpoint_score_attribute
    if name is None or "/" in name or not reported or name in reported:  # "a/b" is b of a dictionary a
        return ""
    told = ", ".join(sorted(reported)[:_NAMES_TOLD])
    return f"the checkpoints aren't ranked: none has checkpoint_score_attribute={name!r} (they have {told})"
