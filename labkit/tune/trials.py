"""What Ray Tune knows of a sweep and its trials: the one file that uses names which Tune does not document.

Each of them is in a function that degrades: if a version of Ray has renamed something, the panel shows less
and the sweep runs as before.
"""

import contextlib
import functools
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.fs
from ray import tune

from labkit.display import tracebacks
from labkit.errors import RunError
from labkit.runs.browse import flat
from labkit.settings import variables_set

STATE_FILES = "experiment_state-"  # plus the session's time and ".json": Tune's list of trials
_STATUS = {"RUNNING": "running", "PAUSED": "paused", "TERMINATED": "finished", "ERROR": "failed"}
_NOT_TUNES_METRICS = {"done", "trial_id", "experiment_tag", "should_checkpoint"}
_KILLED = ("died unexpectedly", "running low on memory")  # in what Ray says of a process that is gone
_TABLES = "RAY_AIR_NEW_OUTPUT"  # "1", the default, prints tables in a terminal whatever `verbose` says
_NOISE = (  # what Tune logs, and the panel shows, or what has no remedy
    "Trial task failed for trial", "Could not re-use actor", "Trials did not complete",
    "Experiment has been interrupted", "Stop signal received", "may be a performance bottleneck",
    "Remote file not found", "Failed to fetch metrics",
)  # fmt: skip


# -- what a Tuner was given -------------------------------------------------------------------------


@dataclass(frozen=True)
class TunerPlan:
    """What a Tuner was given.

    Attributes:
        trainable: class or function.
        space: the search space; {} if there is none.
        options: its `TuneConfig`.
        run: its `RunConfig`.
        restored: whether it goes on with an interrupted sweep.
    """

    trainable: Any
    space: Any
    options: Any
    run: Any
    restored: bool = False

    @classmethod
    def from_tuner(cls, tuner: Any) -> "TunerPlan | None":
        """Read `tuner`, which has no public attributes; None if this version of Ray keeps them elsewhere.

        Raises:
            RunError: it is no Tuner.
        """
        if not isinstance(tuner, tune.Tuner):
            fact = f"watch() takes a ray.tune.Tuner and got {tuner!r:.60}"
            raise RunError("follow the sweep", fact, "panel.watch(tune.Tuner(trainable, param_space=…))")
        try:
            inner = tuner._local_tuner
            return cls(
                trainable=inner.trainable,
                space=inner.param_space or {},
                options=inner._tune_config,
                run=inner._run_config,
                restored=inner._is_restored,
            )
        except AttributeError:
            return None

    @property
    def name(self) -> str:
        return getattr(self.trainable, "__name__", str(self.trainable))

    @property
    def path(self) -> str:
        return f"{str(self.run.storage_path).rstrip('/')}/{self.run.name}"

    @property
    def metric(self) -> str | None:
        return self.options.metric or getattr(self.options.scheduler, "_metric", None)

    @property
    def mode(self) -> str:
        return self.options.mode or getattr(self.options.scheduler, "_mode", None) or "max"

    @property
    def rungs(self) -> tuple[int, ...]:
        """The iterations at which the scheduler compares trials, ascending."""
        brackets = getattr(self.options.scheduler, "_brackets", None) or []
        try:
            return tuple(sorted({math.ceil(rung[0]) for one in brackets for rung in one._rungs}))
        except (AttributeError, IndexError, TypeError):
            return ()

    def resources(self) -> list[dict[str, float]] | None:
        """The bundles that one trial asks for, each on one node; None if only a drawn configuration tells."""
        try:
            wanted = getattr(self.trainable, "_resources", None)
            if isinstance(self.trainable, type):
                wanted = self.trainable.default_resource_request(dict(self.space))
            elif callable(wanted) and not hasattr(wanted, "bundles"):
                wanted = wanted(dict(self.space))
            return [dict(bundle) for bundle in wanted.bundles] if wanted is not None else [{"CPU": 1.0}]
        except Exception:  # of the reader's own function, called with ranges in place of values
            return None

    @functools.cached_property
    def storage(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """The filesystem with the sweep's folder, and the folder's path there."""
        filesystem, path = self.run.storage_filesystem, self.path
        if filesystem is not None:
            return filesystem, path
        if "://" in path:
            return pyarrow.fs.FileSystem.from_uri(path)
        return pyarrow.fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(path))

    def ended_early(self, trial: Any, result: Mapping[str, Any]) -> bool:
        """Whether the scheduler has ended a trial at a rung, if `result` is its last."""
        iteration = result.get("training_iteration", 0)
        longest = getattr(self.options.scheduler, "_max_t", math.inf)
        if not result.get("done") or iteration not in self.rungs or iteration >= longest:
            return False
        criteria = getattr(trial, "stopping_criterion", {})
        return not any(name in result and result[name] >= limit for name, limit in criteria.items())


# -- one trial --------------------------------------------------------------------------------------


def status_of(trial: Any) -> str:
    return _STATUS.get(trial.status, "waiting")


def place_of(trial: Any) -> int:
    """Return a trial's place in the order of creation. Tune restores trials in the order of their results."""
    found = re.match(r"\d+", str(getattr(trial, "experiment_tag", "")))
    return int(found[0]) if found else 0


def newest_result(trial: Any) -> dict[str, Any]:
    # trial.last_result would ask the trial's process, and wait for it.
    return getattr(getattr(trial, "run_metadata", None), "last_result", None) or {}


def staging_folder(trial: Any) -> Path | None:
    """Return the local folder to which Tune writes the state of the trial's sweep."""
    folder = getattr(getattr(trial, "storage", None), "experiment_driver_staging_path", None)
    return Path(folder) if folder else None


def shown_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a reader can read of a configuration: texts, lists and plain numbers, on one level."""
    shown = {}
    for name, value in flat(config, separator="/").items():
        plain = value if isinstance(value, (str, tuple, list)) else number(value)
        if plain is not None or value is None:
            shown[name] = plain
    return shown


def number(value: Any) -> bool | int | float | None:
    """Return numpy's and torch's numbers as plain ones, and None for everything else."""
    with contextlib.suppress(AttributeError, TypeError, ValueError, RuntimeError):
        value = value.item()
    return value if isinstance(value, (bool, int, float)) else None


def names_without_metric(message: str) -> list[str] | None:
    """Return what trials report, if `message` is Tune's complaint that the metric is not among it."""
    if "did not include the specified metric" not in message:
        return None
    names = re.findall(r"'([^']+)':", message.rpartition("Result: ")[2])
    tunes = {*getattr(getattr(tune, "result", None), "AUTO_RESULT_KEYS", ()), *_NOT_TUNES_METRICS}
    return sorted(name for name in names if name not in tunes and not name.startswith(("_", "config/")))


def why_failed(trial: Any) -> str:
    try:
        text = Path(trial.error_file).read_text(errors="replace")
    except (AttributeError, OSError, TypeError):
        return "no error was kept"
    text = text.rpartition("Failure #")[2].partition("\n")[2].strip()
    if any(words in text for words in _KILLED):
        return f"its process is gone, most likely killed for its memory. {text.splitlines()[0][:300]}"
    return tracebacks.shorten_text(text)


# -- what Tune prints and logs ----------------------------------------------------------------------


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Keep Tune from printing tables and logging what the panel shows; let its other warnings through."""
    tune_log, handlers = logging.getLogger("ray.tune"), logging.getLogger("ray").handlers[:]
    level = tune_log.level
    tune_log.setLevel(logging.WARNING)  # the cluster's own loggers are at ERROR
    for handler in handlers:
        handler.addFilter(_is_news)
    try:
        with variables_set({_TABLES: "0"}):
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(_is_news)
        tune_log.setLevel(level)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.name.startswith("ray.tune") or not any(text in record.getMessage() for text in _NOISE)
