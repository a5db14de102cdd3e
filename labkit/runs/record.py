"""The run record: a small JSON beside a run's checkpoints, the same form for every engine.

    >>> record = RunRecord(name="03-torch", run_id="a1", engine="Ray Train", state="finished",
    ...                    started_at="2026-01-31T12:00:00+00:00", workers=2, metrics={"loss": 0.14})
    >>> RunRecord.from_json(record.to_json()) == record
    True

Panels and benchmarks write records; `labkit.runs.browse` shows and compares them. A record outlives the
version of the lab that wrote it: fields that this version does not know are passed over, and
fields that an older one did not write take their defaults.
"""

import hashlib
import json
import math
import os
import platform
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.display.formatting import without_credentials
from labkit.errors import RunError
from labkit.files import atomic_write

FILE_NAME = "run_record.json"
_FORMAT = 1

# Given by the reader, who may have put secrets into them.
_GIVEN = ("config", "scaling", "storage_path", "checkpoint")
# Of settings longer or deeper than this, only the kind and the length are written down.
_LONGEST, _DEEPEST = 20, 5
# A text with such a name is not written to a record ("max_tokens" is a number, so it is).
_SECRET = re.compile(r"(^|_)(key|token|secret|password|passwd|credentials?)s?$", re.IGNORECASE)
# JSON has no numbers for these, and a loss that became NaN is a result that must be kept.
_TO_TEXT = {math.inf: "Infinity", -math.inf: "-Infinity"}
_FROM_TEXT = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What one training was, took and reached.

    Attributes:
        name: what the reader called it ("03-torch"); several runs may share a name.
        run_id: what no other run is called.
        engine: "one process", "Ray Train", "torchrun", "TorchDistributor", "Ray Tune", …
        state: "running", "finished", "failed", "stopped", or "lost": the process that ran it is gone.
        started_at: ISO 8601 with its offset, in UTC.
        workers: training processes (1 for one process).
        dataset: name of the data set.
        rows: rows of the training set, all workers together.
        config: the settings that the training function was given; secrets are not written down.
        scaling: what its workers were given: "num_workers", "use_gpu", "resources_per_worker".
        storage_path: the folder with its checkpoints, as `ray.train.Result.from_path` takes it.
        checkpoint: the path of its latest checkpoint.
        seconds_total: from the call to its return.
        seconds_to_start: from the call to the first step (cluster, processes, imports, data).
        seconds_per_epoch: one number for each epoch that ended.
        seconds: part → seconds, where the time went: "start", "data", "training", "between epochs", "rest",
            and "restart" where workers failed and were started again.
        rows_per_second: all workers together, while training (the start does not count).
        waiting_share: part of the training time spent waiting for data, 0 to 1.
        metrics: name → value at the end.
        history: one dict per epoch: its metrics, and "epoch" (from 0).
        checkpoints: how many were kept.
        versions: of Python and of the engines, as `labkit.machine.installed_versions` gives them.
        host: as `labkit.machine.this_host` gives it.
        error: the failure in one line, None where there was none.
        process: the process that runs it, as `this_process` gives it; empty once the run is over.
        extra: what only one engine or benchmark has to say.
        folder: where the record was read from or written to; not part of the JSON.
    """

    name: str
    run_id: str
    engine: str
    state: str
    started_at: str
    workers: int = 1
    dataset: str | None = None
    rows: int | None = None
    config: dict = field(default_factory=dict)
    scaling: dict = field(default_factory=dict)
    storage_path: str | None = None
    checkpoint: str | None = None
    seconds_total: float | None = None
    seconds_to_start: float | None = None
    seconds_per_epoch: list = field(default_factory=list)
    seconds: dict = field(default_factory=dict)
    rows_per_second: float | None = None
    waiting_share: float | None = None
    metrics: dict = field(default_factory=dict)
    history: list = field(default_factory=list)
    checkpoints: int = 0
    versions: dict = field(default_factory=dict)
    host: dict = field(default_factory=dict)
    error: str | None = None
    process: dict = field(default_factory=dict)
    extra: dict = field(default_factory=dict)
    folder: Path | None = field(default=None, compare=False, repr=False)

    @property
    def epochs(self) -> int:
        """How many epochs ended."""
        return max(len(self.history), len(self.seconds_per_epoch))

    @property
    def started(self) -> datetime:
        """`started_at` in this machine's own time."""
        return _time(self).astimezone()

    def to_json(self) -> str:
        """The record as strict JSON: NaN and infinities are the strings "NaN", "Infinity", "-Infinity"."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "folder"}
        values = _plain(values | {name: _setting(values[name]) for name in _GIVEN})
        return json.dumps({"format": _FORMAT, **values}, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "RunRecord":
        """The record in `text`.

        Raises:
            RunError: it is no JSON, or a field has a type that no version of the lab writes.
        """
        try:
            values = json.loads(text)
            if not isinstance(values, dict):
                raise TypeError(f"it holds a {type(values).__name__}, not an object")
            known = {f.name: f.type for f in fields(cls) if f.name != "folder"}
            values = {name: _parsed(name, values[name], known[name]) for name in known if name in values}
            record = cls(**values)
            _time(record)
        except (ValueError, TypeError, RecursionError) as error:
            raise RunError(
                "read a run record",
                f"the text is not one: {error}",
                f"delete that {FILE_NAME}; the run's checkpoints are not touched by it",
            ) from error
        return record

    def write(self, folder: Path | str) -> Path:
        """Write ``run_record.json`` into `folder`, which is made where it is missing.

        It is whole or not there: a reader never sees half of it.

        Raises:
            RunError: the folder cannot be written to.
        """
        path = Path(folder) / FILE_NAME
        try:
            return atomic_write(path, self.to_json())
        except OSError as error:
            fix = "make that folder writable, or point LABKIT_HOME at one that is"
            raise RunError(f"write the run record {path}", str(error), fix) from error


def read(path: Path | str) -> RunRecord:
    """The record in the file `path`, or in the folder `path`.

    Raises:
        RunError: there is no such file, or it is damaged.
    """
    path = Path(path)
    path = path / FILE_NAME if path.is_dir() else path
    try:
        record = RunRecord.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        fix = "runs.table() lists the runs that have a record"
        raise RunError(f"read the run record {path}", str(error), fix) from error
    except RunError as error:
        raise RunError(f"read the run record {path}", error.fact, error.fix) from error
    object.__setattr__(record, "folder", path.parent)
    if record.state == "running" and not _may_live(record.process):
        object.__setattr__(record, "state", "lost")
    return record


def folder_of(home: Path | str, name: str, run_id: str = "") -> Path:
    """The folder of a run's record, or without `run_id` that of all runs which are called `name`.

    A name may be any text. In the folder's name, characters that could lead out of ``runs`` are replaced,
    and a long one is cut.
    """
    return Path(home) / "runs" / (re.sub(r"[^\w.-]+", "-", name)[:80].strip(".-") or "run") / run_id


def find(home: Path | str, *, names: Iterable[str] | None = None) -> list[RunRecord]:
    """The records below ``home/runs``, newest run first; a damaged one is passed over with a warning.

    Only the folders that `folder_of` gives are searched: a sweep may store thousands of files below ``runs``.

    Args:
        names: only runs with one of these names.
    """
    runs = Path(home) / "runs"
    folders = runs.glob("*/") if names is None else {folder_of(home, name) for name in names}
    found = []
    for path in sorted(path for folder in folders for path in folder.glob(f"*/{FILE_NAME}")):
        try:
            found.append(read(path))
        except RunError as error:
            warnings.warn(f"passed over {path}: {error.fact}", stacklevel=2)
    if names is not None:  # two names may share a folder
        found = [record for record in found if record.name in names]
    return sorted(found, key=lambda record: (_time(record), record.run_id), reverse=True)


def this_process() -> dict[str, Any]:
    """Identifies this process, even when its pid is given to another one, and its machine."""
    from labkit.system.process_info import Identity

    return {**asdict(Identity.of(os.getpid())), "machine": _machine()}


def _machine() -> str:
    """Tells machines that share a home folder apart, without the machine's name."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:12]


def _may_live(process: dict[str, Any]) -> bool:
    """Whether the process of a run may still run it; of other machines' processes we cannot know."""
    from labkit.system.process_info import Identity

    try:
        there = Identity(pid=process["pid"], created=process["created"], boot=process["boot"])
        return process["machine"] != _machine() or there.alive
    except (KeyError, TypeError):
        return False


def _setting(value: Any, depth: int = 0) -> Any:
    """A setting of a training in short: no secrets, and of data only the kind and the shape."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping) and depth < _DEEPEST:
        return {
            str(name): "(not recorded)"
            if isinstance(item, str) and _SECRET.search(str(name))
            else _setting(item, depth + 1)
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple, set)) and len(value) <= _LONGEST and depth < _DEEPEST:
        return [_setting(item, depth + 1) for item in value]
    kind = type(value).__name__
    if hasattr(value, "shape"):
        return value.item() if value.shape == () else f"{kind} of shape {tuple(value.shape)}"
    if isinstance(value, (Mapping, list, tuple, set)):
        return f"{kind} of {len(value)}"
    if isinstance(value, type) or callable(value):
        return getattr(value, "__qualname__", kind)
    try:
        return without_credentials(str(value))[:200]
    except Exception:  # an object of the reader's that cannot be told
        return kind


def _time(record: RunRecord) -> datetime:
    moment = datetime.fromisoformat(record.started_at)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _plain(value: Any) -> Any:
    """`value` in JSON's own types. What a training reports is never a reason to lose its record."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _TO_TEXT.get(float(value), "NaN")
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # scalars and arrays of numpy and torch
        return _plain(value.tolist())
    return str(value)[:200]


def _numbers(value: Any) -> Any:
    """`value` as JSON gave it, with the strings of `_FROM_TEXT` as the floats they were."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return _FROM_TEXT.get(value, value) if isinstance(value, str) else value


def _parsed(name: str, value: Any, kind: Any) -> Any:
    if not isinstance("", kind):  # a run may be called "NaN"
        value = _numbers(value)
    fits = isinstance(value, kind) or (isinstance(value, int) and isinstance(0.0, kind))
    items = {"seconds_per_epoch": (int, float), "history": dict}.get(name)
    if not fits or (items and not all(isinstance(item, items) for item in value)):
        raise ValueError(f"its field {name!r} is {str(value)[:40]!r}")
    return value
