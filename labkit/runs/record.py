"""The run record: a small JSON file about one run, in the same form for every engine.

    >>> record = RunRecord(name="03-torch", run_id="a1", engine="Ray Train", state="finished",
    ...                    started_at="2026-01-31T12:00:00+00:00", workers=2, metrics={"loss": 0.14})
    >>> RunRecord.from_json(record.to_json()) == record
    True

Panels and benchmarks write records. The reader's note is in a second file in the same folder, so that a note
and the record never overwrite each other; `read` merges both. Unknown fields are ignored, and missing ones
take their defaults.
"""

import contextlib
import functools
import hashlib
import inspect
import json
import math
import os
import platform
import re
import reprlib
import subprocess
import textwrap
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from labkit import process_info
from labkit.display import formatting
from labkit.errors import Damaged, LabError
from labkit.files import atomic_write, json_object

Home = Path | str | None  # the lab's home folder; None: from the settings
FILE_NAME = "run_record.json"
NOTE_NAME = "note.json"

_SILENT = 600.0  # seconds after which a run of another machine has ended; clocks may differ

# The reader passes these to the engine, so they may contain secrets, data and objects of any kind.
_FROM_THE_READER = (
    "config",
    "scaling",
    "storage_path",
    "checkpoint",
    "seed",
)
_SECRET = re.compile(
    r"((?i:(^|[^a-z])(api)?(key|token|secret|password|passwd|credential))"
    r"|[a-z0-9](Key|Token|Secret|Password|Credential))[sS]?$"
)
# Of longer lists and deeper dicts, only the type and the length are recorded.
_LONGEST = 20
_DEEPEST = 5
_SHORT = reprlib.Repr()
_SHORT.maxother = 200


@dataclass(frozen=True, kw_only=True, repr=False)
class RunRecord:
    """The settings, the times (in seconds) and the results of one run."""

    name: str  # of its panel ("03-torch"); several runs may share a name
    run_id: str  # unique to this run
    engine: str  # "one process", "Ray Train", "torchrun", "TorchDistributor", "Ray Tune", …
    state: str  # "running", "finished", "failed", "stopped", or "lost": the process that ran it is gone
    started_at: str  # ISO 8601 with its offset, in UTC
    workers: int = 1  # training processes
    dataset: str | None = None
    rows: int | None = None  # of the training set, all workers together
    data_fingerprint: str | None = None  # a hash of the data, where a panel was given the data set itself
    config: Any = field(default_factory=dict)  # the settings of the training function, without secrets
    seed: Any = None  # `config`'s "seed", or what the panel was given
    code: str = ""  # the training function, or the cell, function or script around a ``with`` block
    commit: str | None = None  # of the git repository that the run was started in
    scaling: Any = field(default_factory=dict)  # "num_workers", "use_gpu", "resources_per_worker"
    storage_path: str | None = None  # the folder of its checkpoints, as `Result.from_path` takes it
    checkpoint: str | None = None  # the path of its latest checkpoint
    seconds_total: int | float | None = None  # from the call to its return
    seconds_to_start: int | float | None = None  # from the call to the first step
    seconds_per_epoch: list = field(default_factory=list)  # one for each epoch that ended
    seconds: dict = field(default_factory=dict)  # where the time went: "start", "data", "training", …
    rows_per_second: int | float | None = None  # all workers together, while training
    waiting_share: int | float | None = None  # part of the training time spent waiting for data, 0 to 1
    parts: dict = field(default_factory=dict)  # of steps, as `labkit.runs.verdict` takes them
    verdict: dict = field(default_factory=dict)  # that it made of them; `labkit why` makes a new one
    metrics: dict = field(default_factory=dict)  # at the end
    history: list = field(default_factory=list)  # one dict per report: its metrics, and "epoch" (from 0)
    checkpoints: int = 0  # how many were kept
    versions: dict = field(default_factory=dict)
    host: dict = field(default_factory=dict)
    error: str | None = None  # the failure in one line
    process: dict = field(default_factory=dict)  # that runs it, from `this_process`; empty when it is over
    note: str = ""  # the reader's own
    epochs: int = 0
    extra: dict = field(default_factory=dict)  # facts that only one engine or benchmark has
    folder: str = field(default="", compare=False)  # where it was read from; not part of the file

    def __post_init__(self) -> None:
        epochs = max(self.epochs, _epochs_in(self.history), len(self.seconds_per_epoch))
        object.__setattr__(self, "epochs", epochs)
        if self.seed is None and isinstance(self.config, Mapping):
            object.__setattr__(self, "seed", self.config.get("seed"))

    def __repr__(self) -> str:
        outcome = f"{self.name} ({self.run_id}): {self.state}"
        if self.seconds_total is not None:
            outcome += f" after {formatting.seconds(self.seconds_total)}"
        parts = [
            outcome,
            self.engine,
            formatting.plural(self.workers, "worker"),
            formatting.plural(self.epochs, "epoch"),
            formatting.short_metrics(self.metrics),
            self.note and formatting.short(self.note),
        ]
        return f"<run {' · '.join(filter(None, parts))}>"

    @property
    def started(self) -> datetime:
        """`started_at` in this machine's time zone."""
        return datetime.fromisoformat(self.started_at).astimezone()

    def to_json(self) -> str:
        """Return the record as JSON, with Python's ``NaN`` and ``Infinity``."""
        values = dict(vars(self))
        del values["folder"]
        for name in _FROM_THE_READER:
            values[name] = setting(values[name])
        return json.dumps(values, indent=1, default=_plain)

    @classmethod
    def from_json(cls, text: str) -> "RunRecord":
        """Read a record from JSON; raises ValueError or TypeError."""
        values = json_object(text)
        names = {part.name for part in fields(cls)}
        record = cls(**{name: values[name] for name in names & values.keys()})
        for part in fields(cls):
            if part.type is Any:
                continue
            value = getattr(record, part.name)
            if not isinstance(value, cast(type, part.type)):
                raise ValueError(f"its {part.name} is {value!r:.80}")
        datetime.fromisoformat(record.started_at)
        return record

    def write(self, folder: Path | str) -> Path:
        """Write ``run_record.json`` into `folder`, atomically, and return its path."""
        path = Path(folder) / FILE_NAME
        try:
            return atomic_write(path, self.to_json())
        except OSError as error:
            raise LabError(
                f"write the run record {path}",
                str(error),
                "make that folder writable, or set LABKIT_HOME to one that is",
            ) from error


def _epochs_in(history: list) -> int:
    """Count the epochs that have an entry; without numbers of epochs, count the entries."""
    try:
        return len({math.ceil(entry["epoch"]) for entry in history})
    except (TypeError, KeyError, ValueError, OverflowError):
        return len(history)


def read(path: Path) -> RunRecord:
    """Read the record in the file `path`, with its note.

    A "running" one whose process is gone becomes "lost".
    """
    file = path
    try:
        record = RunRecord.from_json(path.read_text(encoding="utf-8"))
        for file in path.parent.glob(NOTE_NAME):
            note = json_object(file.read_text(encoding="utf-8"), {"note": str})
            record = replace(record, note=note.get("note", ""))
    except (OSError, ValueError, TypeError) as error:  # also if it is not UTF-8
        to_delete = path.parent if file == path else file
        raise Damaged(
            f"read the run record {file}",
            str(error),
            f"delete {to_delete} if it can't be repaired; runs.table() lists the other runs",
        ) from error
    state = record.state
    if state == "running" and not _may_live(record.process, path):
        state = "lost"
    return replace(record, folder=str(path.parent), state=state)


def find(home: Path | str) -> list[RunRecord]:
    """Read the records below ``home/runs``, newest run first. A damaged one is skipped with a warning."""
    records = []
    for path in Path(home).glob(f"runs/*/*/{FILE_NAME}"):
        try:
            records.append(read(path))
        except LabError as error:
            warnings.warn(f"skipped {path}: {error.fact}", stacklevel=2)
    records.sort(key=lambda record: (record.started, record.run_id), reverse=True)
    return records


def folder_of(home: Path | str, name: str, run_id: str) -> Path:
    """Return the folder of a run's record. What in a name could lead out of ``runs`` is replaced."""
    safe_name = re.sub(r"[^\w.-]+", "-", name)
    safe_name = safe_name[:80].strip(".-") or "run"
    return Path(home) / "runs" / safe_name / run_id


# -- where a run comes from -----------------------------------------------------------------------------


def source_of(code: Any) -> str:
    """Return the text of a function, a frame, or a class's methods; "" if Python doesn't have its text.

    Python reads the file of an imported function when it is asked, so it has what was saved last.
    """
    while isinstance(code, functools.partial):
        code = code.func
    parts = [code]
    if inspect.isclass(code):
        # `inspect` looks for a notebook's class in a file, and finds none; its functions have their text.
        methods = [member for member in vars(code).values() if inspect.isfunction(member)]
        parts = methods or [code]
    # What is built in, typed at a prompt or an object has no text.
    with contextlib.suppress(OSError, TypeError, SyntaxError):
        texts = [inspect.getsource(inspect.unwrap(part)) for part in parts]
        return textwrap.dedent("".join(texts))
    return ""


def git_commit() -> str | None:
    """Return the commit that is checked out here, without later changes; None outside of a repository."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        commit = subprocess.check_output(
            ["git", "rev-parse", "--verify", "--quiet", "HEAD"],
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=5,
        )
        return commit.strip()
    return None


def this_process() -> dict[str, Any]:
    """Identify this process (pids are reused, so by its start time as well) and its machine."""
    return {**process_info.identity(os.getpid()), "machine": _machine()}


def _may_live(process: dict[str, Any], path: Path) -> bool:
    """Return whether a run's process may still be running.

    Those of other machines can't be looked up, and a machine may have got another name. A run writes its
    record every few seconds.
    """
    if process.get("machine") not in (None, _machine()):
        return time.time() - path.stat().st_mtime < _SILENT
    with contextlib.suppress(LookupError, TypeError, ValueError, OverflowError):  # damaged, or it has ended
        now = process_info.identity(process["pid"])
        is_of_this_boot = now["boot"] == process["boot"]
        return is_of_this_boot and abs(now["created"] - process["created"]) < 0.1
    return False


def _machine() -> str:
    """Return a hash that tells machines with a common home folder apart, and hides the machine's name."""
    name = platform.node().encode()
    return hashlib.sha256(name).hexdigest()[:12]


# -- values as JSON has them ----------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Convert a value that JSON has no type for. No metric may prevent the record from being written."""
    if hasattr(value, "tolist"):  # scalars and arrays of numpy and torch
        return value.tolist()
    return _SHORT.repr(value)


def setting(value: Any, name: str = "", depth: int = 0) -> Any:
    """Summarize a setting: redact text whose name says that it is a secret, reduce data to type and size."""
    type_name = type(value).__name__
    if isinstance(value, (str, bytes)) and _SECRET.search(name):
        return "(secret)"
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping) and depth < _DEEPEST:
        return {str(key): setting(item, str(key), depth + 1) for key, item in value.items()}
    if hasattr(value, "shape"):
        if value.shape == ():
            return value.item()
        return f"{type_name} of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple)) and len(value) <= _LONGEST and depth < _DEEPEST:
        return [setting(item, name, depth + 1) for item in value]
    if isinstance(value, (Mapping, list, tuple, set, bytes)):
        return f"{type_name} of {len(value)}"
    if isinstance(value, str):
        text = value
    elif getattr(value, "__qualname__", None) is not None:
        text = value.__qualname__
    elif type(value).__repr__ is object.__repr__:
        return _numbers_of(value, name)
    else:
        text = _SHORT.repr(value)
    if " at 0x" in text:  # an address in memory, which differs from run to run
        return type_name
    return formatting.without_credentials(text)[:200]


def _numbers_of(value: Any, name: str) -> str:
    """Describe an object by its numbers: its texts and parts may be secrets, large, or change meanwhile."""
    type_name = type(value).__name__
    attributes = dict(getattr(value, "__dict__", {}))
    numbers = []
    for key, part in attributes.items():
        if isinstance(part, (bool, int, float)):
            numbers.append(f"{key}={setting(part)}")
    if not numbers or _SECRET.search(name):
        return type_name
    return f"{type_name}({', '.join(numbers[:_LONGEST])})"[:200]
