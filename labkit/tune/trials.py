"""What Ray Tune knows of a sweep and its trials: the one file that uses names which Tune does not document.

`tests/test_private_names.py` lists them.
"""

import contextlib
import copy
import functools
import importlib
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.fs
from ray import tune
from ray.tune.experiment import Experiment
from ray.tune.result import AUTO_RESULT_KEYS
from ray.tune.schedulers import TrialScheduler
from ray.tune.utils import flatten_dict

from labkit.display import tracebacks
from labkit.errors import LabError
from labkit.settings import variables_set

STATE_FILES = "experiment_state-"  # plus the session's time and ".json": Tune's list of trials
_STATUS = {"RUNNING": "running", "PAUSED": "paused", "TERMINATED": "finished", "ERROR": "failed"}
_NOT_METRICS = {*AUTO_RESULT_KEYS, "done", "trial_id", "experiment_tag", "should_checkpoint"}
_LONGEST = 80  # characters of an object in a configuration
_KILLED = ("died unexpectedly", "running low on memory")  # in what Ray says of a process that is gone
_TABLES = "RAY_AIR_NEW_OUTPUT"  # "1", the default, prints tables in a terminal whatever `verbose` says
_NOISE = (  # what Tune logs, and the panel shows, or what has no remedy
    "Trial task failed for trial", "Could not re-use actor", "Trials did not complete",
    "Experiment has been interrupted", "Stop signal received", "may be a performance bottleneck",
    "Remote file not found", "Failed to fetch metrics",
)  # fmt: skip
_DATE = r"_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d"  # Tune names a sweep after its trainable and the second
_NEW = {"tuner.pkl", ".validate_storage_marker"}  # files of a sweep that has not begun


@dataclass(frozen=True)
class TunerPlan:
    """What a Tuner was given.

    Attributes:
        trainable: class or function.
        space: the search space; {} if there is none.
        options: its `TuneConfig`.
        run: its `RunConfig`.
        restored: whether it goes on with an interrupted sweep.
        stopped: by trial id, why the scheduler has ended it (see `noting_stops`).
    """

    trainable: Any
    space: Any
    options: Any
    run: Any
    restored: bool = False
    stopped: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_tuner(cls, tuner: Any) -> "TunerPlan":
        """Read `tuner`, which has no public attributes.

        Raises:
            LabError: it is no Tuner.
        """
        if not isinstance(tuner, tune.Tuner):
            fact = f"watch() takes a ray.tune.Tuner and got {tuner!r:.60}"
            raise LabError("follow the sweep", fact, "panel.watch(tune.Tuner(trainable, param_space=…))")
        inner = tuner._local_tuner
        given = inner.trainable, inner.param_space or {}, inner._tune_config, inner._run_config
        return cls(*given, restored=inner._is_restored)

    @property
    def path(self) -> str:
        return f"{str(self.run.storage_path).rstrip('/')}/{self.run.name}"

    @functools.cached_property
    def storage(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """The filesystem with the sweep's folder, and the folder's path there."""
        if self.run.storage_filesystem is not None:
            return self.run.storage_filesystem, self.path
        if "://" in self.path:
            return pyarrow.fs.FileSystem.from_uri(self.path)
        return pyarrow.fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(self.path))

    @functools.cached_property
    def _compared(self) -> tuple[Any, Any]:
        """(metric, mode): where `TuneConfig` has none, the scheduler or the searcher has."""
        searcher = self.options.search_alg
        while hasattr(searcher, "searcher"):  # of a ConcurrencyLimiter, for example
            searcher = searcher.searcher
        named = [(self.options.metric, self.options.mode)]
        named += [
            (getattr(one, "_metric", None), getattr(one, "_mode", None))
            for one in (self.options.scheduler, searcher)
        ]
        metric = next((metric for metric, _ in named if metric), None)
        return metric, next((mode for _, mode in named if mode), "max")

    @property
    def metric(self) -> str | None:
        """The name of what is compared; None if there is none, or several."""
        return self._compared[0] if isinstance(self._compared[0], str) else None

    @property
    def mode(self) -> str:
        return "min" if self._compared[1] == "min" else "max"

    @property
    def time(self) -> str:
        """What the scheduler counts: the name of a figure in each result."""
        return getattr(self.options.scheduler, "_time_attr", "training_iteration")

    @property
    def rungs(self) -> tuple[float, ...]:
        """The times at which ASHA compares trials, ascending; () with another scheduler."""
        brackets = getattr(self.options.scheduler, "_brackets", [])
        found = {rung[0] for one in brackets for rung in getattr(one, "_rungs", [])}
        whole = self.time == "training_iteration"
        return tuple(sorted(math.ceil(rung) if whole else rung for rung in found))

    def resources(self) -> list[dict[str, float]]:
        """The bundles that one trial asks for, each on one node; [] if only a drawn configuration tells."""
        try:
            wanted = getattr(self.trainable, "_resources", None)
            if isinstance(self.trainable, type):
                wanted = self.trainable.default_resource_request(dict(self.space))
            elif callable(wanted) and not hasattr(wanted, "bundles"):
                wanted = wanted(dict(self.space))
            return [dict(bundle) for bundle in wanted.bundles] if wanted is not None else [{"CPU": 1.0}]
        except Exception:  # of the reader's own function, called with ranges in place of values
            return []

    @contextlib.contextmanager
    def noting_stops(self) -> Iterator[None]:
        """Note in `stopped` which trials the scheduler ends before its own last time, `max_t`.

        Tune asks it only about results with which a trial would go on, and reports an end by the scheduler
        as any other.
        """
        scheduler = self.options.scheduler
        if not isinstance(scheduler, TrialScheduler):
            yield
            return
        decide, longest = scheduler.on_trial_result, getattr(scheduler, "_max_t", math.inf)

        def noted(controller: Any, trial: Any, result: dict[str, Any]) -> str:
            decision = decide(controller, trial, result)
            time = result.get(self.time, 0)
            if decision == TrialScheduler.STOP and time < longest:
                passed = [rung for rung in self.rungs if rung <= time]
                where = f"at rung {passed[-1]:g}" if passed else f"by {type(scheduler).__name__}"
                self.stopped[trial.trial_id] = f"stopped {where}"
            return decision

        scheduler.on_trial_result = noted
        try:
            yield
        finally:
            del scheduler.on_trial_result


def named_uniquely(tuner: tune.Tuner, name: str) -> None:
    """Give a sweep that has no name of its own `name`: Tune's is its second, and two may begin in one."""
    plan, inner = TunerPlan.from_tuner(tuner), tuner._local_tuner
    tunes = Experiment.get_trainable_name(inner.converted_trainable)
    if plan.restored or not re.fullmatch(re.escape(tunes) + _DATE, plan.run.name):
        return
    run = copy.copy(plan.run)
    run.name = name
    again = tune.Tuner(
        inner.trainable, param_space=inner.param_space, tune_config=plan.options, run_config=run
    )
    tuner._local_tuner = again._local_tuner
    files, old = plan.storage
    found = files.get_file_info(pyarrow.fs.FileSelector(old, allow_not_found=True))
    if found and {info.base_name for info in found} <= _NEW:
        files.delete_dir(old)


@contextlib.contextmanager
def noting_interrupts() -> Iterator[Callable[[], bool]]:
    """Yield what tells whether Tune was interrupted: it ends its loop then, and returns as always."""
    module, events = importlib.import_module("ray.tune.tune"), []
    catch = module._setup_signal_catching

    def caught() -> threading.Event:
        events.append(catch())
        return events[-1]

    module._setup_signal_catching = caught
    try:
        yield lambda: any(event.is_set() for event in events)
    finally:
        module._setup_signal_catching = catch


# -- one trial --------------------------------------------------------------------------------------


def status_of(trial: Any) -> str:
    return _STATUS.get(trial.status, "waiting")


def place_of(trial: Any) -> int:
    """Return a trial's place in the order of creation. Tune restores trials in the order of their results."""
    found = re.match(r"\d+", str(trial.experiment_tag))
    return int(found[0]) if found else 0


def newest_result(trial: Any) -> dict[str, Any]:
    """Return its result on one level: the metric "val/loss" may be in a dict "val"."""
    # trial.last_result would ask the trial's process, and wait for it.
    return flatten_dict(trial.run_metadata.last_result or {})


def staging_folder(trial: Any) -> Path:
    """Return the local folder to which Tune writes the state of the trial's sweep."""
    return Path(trial.storage.experiment_driver_staging_path)


def shown_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration on one level, with values that a table and a record can hold."""
    return {name: readable(value) for name, value in flatten_dict(dict(config)).items()}


def readable(value: Any) -> Any:
    """Return numbers, texts and lists unchanged, classes and functions by name, and objects in short."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        return [readable(one) for one in value]
    if (plain := number(value)) is not None:
        return plain
    if name := getattr(value, "__qualname__", None):
        return name.rpartition("<locals>.")[2]
    # An object without a `repr` of its own differs from others in its attributes.
    own = type(value).__repr__ is not object.__repr__
    text = repr(value) if own else f"{type(value).__qualname__}({getattr(value, '__dict__', '')})"
    return " ".join(re.sub(r" at 0x[0-9a-f]+", "", text).split())[:_LONGEST]


def number(value: Any) -> bool | int | float | None:
    """Return numpy's and torch's numbers as plain ones, and None for everything else."""
    with contextlib.suppress(AttributeError, TypeError, ValueError, RuntimeError):
        value = value.item()
    return value if isinstance(value, (bool, int, float)) else None


def metrics_in(names: Any) -> list[str]:
    """Return those of the names in a result that are the trainable's own, and not Tune's."""
    return sorted(
        name for name in names if name not in _NOT_METRICS and not name.startswith(("_", "config/"))
    )


def names_without_metric(message: str) -> list[str] | None:
    """Return what trials report, if `message` is Tune's complaint that the metric is not among it."""
    if "did not include the specified metric" not in message:
        return None
    return metrics_in(re.findall(r"'([^']+)':", message.rpartition("Result: ")[2]))


def why_failed(trial: Any) -> str:
    try:
        text = Path(trial.error_file).read_text(errors="replace")
    except (OSError, TypeError):
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
