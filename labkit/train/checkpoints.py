"""The checkpoints of a Ray Train run: what the store says of them, and which of them Ray keeps."""

import contextlib
import json
import re
from collections.abc import Collection
from typing import Any

import pyarrow.fs
import ray.train
from ray.train import ReportedCheckpoint, ReportedCheckpointStatus

from labkit.errors import LabError

# Words of metrics' names.
_LOW_IS_GOOD = re.compile("loss|err|error|mse|rmse|mae|mape|perplexity|nll|wer|cer")
_HIGH_IS_GOOD = re.compile("acc|accuracy|auc|auroc|f1|precision|recall|r2|bleu|iou|reward")
_NEGATED = re.compile("neg|negative|minus")
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


def wrong_order(config: ray.train.CheckpointConfig) -> str | None:
    """A warning if the checkpoints that `config` keeps are probably the worst, else None.

    Ray ranks them by `checkpoint_score_attribute`, by default the highest first, also where it is an error.
    """
    name, order = config.checkpoint_score_attribute, config.checkpoint_score_order
    words = re.split(r"[^a-z0-9]+", (name or "").lower())
    low, high, negated = (any(map(p.fullmatch, words)) for p in (_LOW_IS_GOOD, _HIGH_IS_GOOD, _NEGATED))
    if negated or low == high or order == ("min" if low else "max"):
        return None
    kept = f"keeps the {config.num_to_keep}" if config.num_to_keep else "ranks first the"
    return (
        f"Ray {kept} checkpoints with the {'highest' if low else 'lowest'} {name}, "
        f"because checkpoint_score_order is {order!r}: "
        f'CheckpointConfig(..., checkpoint_score_order="{"min" if low else "max"}") keeps the best'
    )


def unranked(config: ray.train.CheckpointConfig, reported: Collection[str]) -> str:
    """What to say if none of the metrics that came with checkpoints is the one that ranks them, else ""."""
    name = config.checkpoint_score_attribute
    if name is None or "/" in name or not reported or name in reported:  # "a/b" is b of a dictionary a
        return ""
    told = ", ".join(sorted(reported)[:_NAMES_TOLD])
    return f"the checkpoints aren't ranked: none has checkpoint_score_attribute={name!r} (they have {told})"


def epochs_done(config: ray.train.RunConfig) -> int:
    """Epochs that the store has checkpoints of under this run's name: Ray goes on from there."""
    # Mostly there is no list; and if something is wrong with the store, Ray's own error says it better.
    with contextlib.suppress(Exception):
        filesystem, path = config.storage_filesystem, str(config.storage_path).rstrip("/")
        if filesystem is None:
            filesystem, path = pyarrow.fs.FileSystem.from_uri(path)
        found = reported_checkpoints(f"{path}/{config.name}", filesystem)
        return max(int(one.metrics.get("epoch", number)) for number, one in enumerate(found)) + 1
    return 0
