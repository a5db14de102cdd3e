"""The run record: a small JSON file about one training, in the same form for every engine.

    >>> record = RunRecord(name="03-torch", run_id="a1", engine="Ray Train", state="finished",
    ...                    started_at="2026-01-31T12:00:00+00:00", workers=2, metrics={"loss": 0.14})
    >>> RunRecord.from_json(record.to_json()) == record
    True

Panels and benchmarks write records, `labkit.runs.index` finds them. Records written by other
versions of the lab can be read: unknown fields are ignored, and missing ones take their defaults.
"""

import hashlib
import json
import os
import platform
import re
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.display.formatting import without_credentials
from labkit.errors import RunError
from labkit.files import atomic_write, json_object
from labkit.runs.origin import SECRET

FILE_NAME = "run_record.json"

# The reader passes these to the engine, so they may contain secrets, data and objects of any kind.
_GIVEN = ("config", "scaling", "storage_path", "checkpoint")
_ANY = ("config", "scaling", "seed")  # may have any type in the file
_SECRET = re.compile(r"(^|_)(key|token|secret|password|passwd|credentials?)s?$", re.IGNORECASE)
_LONGEST, _DEEPEST = 20, 5  # longer lists and deeper dicts are recorded by their kind and length only
_SHORT = reprlib.Repr()
_SHORT.maxother = 200


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The settings, the times and the results of one training.

    Attributes:
        name: the name of its panel ("03-torch"); several runs may share a name.
        run_id: unique to this run.
        engine: "one process", "Ray Train", "torchrun", "TorchDistributor", "Ray Tune", …
        state: "running", "finished", "failed", "stopped", or "lost": the process that ran it is gone.
        started_at: ISO 8601 with its offset, in UTC.
        workers: training processes (1 for one process).
        dataset: name of the data set.
        rows: rows of the training set, all workers together.
        data_fingerprint: a hash of the data, where a panel was given the data set itself.
        config: the settings passed to the training function, without secrets.
        abridged: the settings of which `config` has less than was passed: secrets, data, functions.
        seed: `config`'s "seed", or what the panel was given.
        code: the training function as text, without secrets; for a loop in a ``with`` block, the cell, the
            function or the script around it. "" if unknown.
        called: the functions and classes of the same notebook or file that it calls, as text.
        commit: of the git repository that the run was started in; None if there was none.
        scaling: the workers' resources: "num_workers", "use_gpu", "resources_per_worker".
        storage_path: the folder of its checkpoints, as `ray.train.Result.from_path` takes it.
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
        versions: of Python and of the engines, from `labkit.machine.installed_versions`.
        host: from `labkit.machine.this_host`.
        error: the failure in one line; None if there was none.
        process: the process that runs it, from `this_process`; empty when the run is over.
        tags, note: the reader's own, from `labkit.runs.tag` and `labkit.runs.note`.
        epochs: how many ended.
        extra: facts that only one engine or benchmark has.
        folder: where it was read from; not part of the file.
    """

    name: str
    run_id: str
    engine: str
    state: str
    started_at: str
    workers: int = 1
    dataset: str | None = None
    rows: int | None = None
    data_fingerprint: str | None = None
    config: dict = field(default_factory=dict)
    abridged: list[str] = field(default_factory=list)
    seed: int | None = None
    code: str = ""
    called: str = ""
    commit: str | None = None
    scaling: dict = field(default_factory=dict)
    storage_path: str | None = None
    checkpoint: str | None = None
    seconds_total: float | None = None
    seconds_to_start: float | None = None
    seconds_per_epoch: list[float] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    rows_per_second: float | None = None
    waiting_share: float | None = None
    metrics: dict = field(default_factory=dict)
    history: list[dict] = field(default_factory=list)
    checkpoints: int = 0
    versions: dict = field(default_factory=dict)
    host: dict = field(default_factory=dict)
    error: str | None = None
    process: dict = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    note: str = ""
    epochs: int = 0
    extra: dict = field(default_factory=dict)
    folder: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        epochs = max(self.epochs, len(self.history), len(self.seconds_per_epoch))
        object.__setattr__(self, "epochs", epochs)
        if self.seed is None and isinstance(self.config, Mapping):
            object.__setattr__(self, "seed", self.config.get("seed"))

    @property
    def all_code(self) -> str:
        """`code` and what it calls."""
        return "\n\n".join(filter(None, (self.code, self.called)))

    @property
    def code_hash(self) -> str:
        """Equal for equal code, with what it calls: 12 digits of its SHA-256; "" without code."""
        return hashlib.sha256(self.all_code.encode()).hexdigest()[:12] if self.code else ""

    @property
    def moment(self) -> datetime:
        """`started_at` with its time zone."""
        moment = datetime.fromisoformat(self.started_at)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    @property
    def started(self) -> datetime:
        """`started_at` in this machine's time zone."""
        return self.moment.astimezone()

    def to_json(self) -> str:
        """Return the record as JSON, with Python's ``NaN`` and ``Infinity``."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "folder"}
        values |= {name: _setting(values[name]) for name in _GIVEN}
        config = self.config if isinstance(self.config, Mapping) else {}
        abridged = {str(name) for name, value in config.items() if not _is_whole({name: value})}
        values["abridged"] = sorted({*self.abridged, *abridged})
        return json.dumps(values | {"code_hash": self.code_hash}, indent=1, default=_plain)

    @classmethod
    def from_json(cls, text: str) -> "RunRecord":
        """Read a record from `text`; a ValueError or TypeError says why it is not one."""
        values = json_object(text, {f.name: f.type for f in fields(cls) if f.name not in _ANY})
        record = cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})
        if (
            not 1970 < datetime.fromisoformat(record.started_at).year < 9999
        ):  # no time zone leads out of these
            raise ValueError(f"it was started in {record.started_at}")
        return record

    def write(self, folder: Path | str) -> Path:
        """Write ``run_record.json`` into `folder`, atomically, and return its path.

        Raises:
            RunError: the folder cannot be written to.
        """
        path = Path(folder) / FILE_NAME
        try:
            return atomic_write(path, self.to_json())
        except OSError as error:
            fix = "make that folder writable, or set LABKIT_HOME to one that is"
            raise RunError(f"write the run record {path}", str(error), fix) from error


def read(path: Path | str) -> RunRecord:
    """Read the record at `path`, a file or a folder. A "running" one whose process is gone becomes "lost".

    Raises:
        RunError: there is no such file, or it is damaged.
    """
    path = Path(path)
    path = path / FILE_NAME if path.is_dir() else path
    try:
        record = RunRecord.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError) as error:  # also if it is no UTF-8
        fix = "runs.table() lists the runs that have a record; a damaged one can be deleted"
        raise RunError(f"read the run record {path}", str(error), fix) from error
    return lost_if_gone(replace(record, folder=str(path.parent)))


def lost_if_gone(record: RunRecord) -> RunRecord:
    """The record; as "lost" if it says that the run is running, and its process is gone."""
    lost = record.state == "running" and not _may_live(record.process)
    return replace(record, state="lost") if lost else record


def folder_of(home: Path | str, name: str, run_id: str = "") -> Path:
    """Return the folder of a run's record or, without `run_id`, of all runs with this name.

    A name may be any text: characters that could lead out of ``runs`` are replaced, and a long name is cut.
    """
    return Path(home) / "runs" / (re.sub(r"[^\w.-]+", "-", name)[:80].strip(".-") or "run") / run_id


def this_process() -> dict[str, Any]:
    """Identify this process (pids are reused, so by its start time as well) and its machine."""
    from labkit.system.process_info import ProcessIdentity

    return {**asdict(ProcessIdentity.of(os.getpid())), "machine": _machine()}


def _may_live(process: dict[str, Any]) -> bool:
    """Whether the process of a run may still be running. Those of other machines cannot be looked up."""
    from labkit.system.process_info import ProcessIdentity

    if process.get("machine") not in (None, _machine()):
        return True
    identity = {f.name: process.get(f.name) for f in fields(ProcessIdentity)}
    return None not in identity.values() and ProcessIdentity(**identity).alive


def _machine() -> str:
    """Distinguishes machines that share a home folder, without giving the machine's name."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:12]


def _plain(value: Any) -> Any:
    """A value that JSON has no type for. No metric may prevent the record from being written."""
    # Scalars and arrays of numpy and torch have tolist().
    return value.tolist() if hasattr(value, "tolist") else _SHORT.repr(value)


def _is_whole(value: Any) -> bool:
    """Whether the record has all of a dict of settings."""
    try:
        return json.dumps(value, default=lambda one: one.item()) == json.dumps(_setting(value))
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return False


def _setting(value: Any, depth: int = 0) -> Any:
    """A setting of a training in short: without secrets, and of data only its kind and its size."""
    kind = type(value).__name__
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping) and depth < _DEEPEST:
        return {
            str(name): SECRET
            if isinstance(item, str) and _SECRET.search(str(name))
            else _setting(item, depth + 1)
            for name, item in value.items()
        }
    if hasattr(value, "run_id"):  # a panel: its text has the id of its run
        return kind
    if hasattr(value, "shape"):
        return value.item() if value.shape == () else f"{kind} of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple)) and len(value) <= _LONGEST and depth < _DEEPEST:
        return [_setting(item, depth + 1) for item in value]
    if isinstance(value, (Mapping, list, tuple, set)):
        return f"{kind} of {len(value)}"
    text = value if isinstance(value, str) else getattr(value, "__qualname__", None) or _SHORT.repr(value)
    return kind if " at 0x" in text else without_credentials(text)[:200]  # addresses differ from run to run
