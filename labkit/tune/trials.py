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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.fs
import ray
from ray import cloudpickle, tune

from labkit.display import tracebacks
from labkit.errors import RunError
from labkit.settings import NODE_NAME

STATE_FILES = "experiment_state-"  # plus the session's time and ".json": Tune's list of trials
NO_RESET = "reset_config did not return True"
_STATUS = {"PENDING": "waiting", "RUNNING": "running", "PAUSED": "paused", "TERMINATED": "finished"}
_NOT_TUNES_METRICS = {"done", "trial_id", "experiment_tag", "should_checkpoint"}
_TABLES = "RAY_AIR_NEW_OUTPUT"  # "1", the default, prints tables in a terminal whatever `verbose` says
_NOISY = ("execution.tune_controller", "tune", "utils.util", "logger.logger")
_NOISE = (  # what these log, and the panel shows, or what has no remedy
    "Trial task failed for trial", "Could not re-use actor", "Trials did not complete",
    "Experiment has been interrupted", "Stop signal received", "may be a performance bottleneck",
    "Remote file not found",
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
            RunError: it is no Tuner, or it runs behind a Ray client, in a process of the cluster.
        """
        if not isinstance(tuner, tune.Tuner):
            given = tuner if isinstance(tuner, type) or tuner is None else type(tuner)
            fact = f"watch() takes a ray.tune.Tuner and got {getattr(given, '__name__', given)}"
            fix = "panel.watch(tune.Tuner(trainable, param_space=…)); for a trainer of its own: TrainPanel"
            raise RunError("follow the sweep", fact, fix)
        if getattr(tuner, "_remote_tuner", None) is not None:
            fact = "it goes through a Ray client (ray://…), so its loop runs where this panel cannot hear it"
            raise RunError("follow the sweep", fact, "connect directly: RAY_ADDRESS=HOST:6379")
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
        """The trainable's name."""
        return getattr(self.trainable, "__name__", str(self.trainable))

    @property
    def path(self) -> str:
        """The folder of the sweep's results."""
        return f"{str(self.run.storage_path).rstrip('/')}/{self.run.name}"

    @property
    def metric(self) -> str | None:
        return self.options.metric or getattr(self.options.scheduler, "_metric", None)

    @property
    def mode(self) -> str:
        return self.options.mode or getattr(self.options.scheduler, "_mode", None) or "max"

    @property
    def max_iterations(self) -> float | None:
        """The iterations after which the scheduler ends any trial."""
        return getattr(self.options.scheduler, "_max_t", None)

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
        except Exception:
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


def is_sampled(value: Any) -> bool:
    """Whether each trial gets its own: ``tune.uniform(…)`` and the like."""
    try:
        return isinstance(value, tune.search.sample.Domain)
    except AttributeError:
        return True


# -- one trial --------------------------------------------------------------------------------------


def status_of(trial: Any) -> str:
    """Return the panel's word for the status of a trial that has not failed."""
    return _STATUS.get(trial.status, "waiting")


def newest_result(trial: Any) -> dict[str, Any]:
    """Return the newest result that a trial reported; {} before the first."""
    # trial.last_result would ask the trial's process, and wait for it.
    return getattr(getattr(trial, "run_metadata", None), "last_result", None) or {}


def staging_folder(trial: Any) -> Path | None:
    """Return the local folder to which Tune writes the state of the trial's sweep."""
    folder = getattr(getattr(trial, "storage", None), "experiment_driver_staging_path", None)
    return Path(folder) if folder else None


def number_of(trial: Any) -> int | None:
    """Return a trial's place in the order of creation. Tune's ids end in it, a searcher's own ids do not."""
    found = re.fullmatch(r"[0-9a-f]+_(\d{5,})", trial.trial_id)
    return int(found[1]) if found else None


def shown_config(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return a configuration on one level ("optimizer/lr"), with plain numbers and without objects."""
    shown: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            shown |= shown_config(value, f"{before}{key}/")
        elif value is None or isinstance(value, (bool, str, tuple, list)):
            shown[f"{before}{key}"] = value
        elif (plain := number(value)) is not None:
            shown[f"{before}{key}"] = plain
    return shown


def number(value: Any) -> bool | int | float | None:
    """Return numpy's and torch's numbers as plain ones, and None for everything else."""
    if hasattr(value, "item"):
        with contextlib.suppress(Exception):
            value = value.item()
    return value if isinstance(value, (bool, int, float)) else None


def reported_names(result: Mapping[str, Any]) -> list[str]:
    """Return the names in a result that are the trainable's own."""
    tunes = {*getattr(getattr(tune, "result", None), "AUTO_RESULT_KEYS", ()), *_NOT_TUNES_METRICS}
    return sorted(name for name in result if name not in tunes and not name.startswith(("_", "config/")))


def names_without_metric(message: str) -> list[str] | None:
    """Return the reported names, if `message` is Tune's complaint that they lack the metric."""
    if "did not include the specified metric" not in message:
        return None
    return reported_names(dict.fromkeys(re.findall(r"'([^']+)':", message.rpartition("Result: ")[2])))


def missing_stop_metric(trial: Any, result: Mapping[str, Any]) -> str | None:
    """Return a stop criterion that the trial does not report, so that it would never stop."""
    known = {*result, *shown_config(result)}
    return next((name for name in getattr(trial, "stopping_criterion", {}) if name not in known), None)


def end_of(
    trial: Any, result: Mapping[str, Any], *, rungs: Sequence[int], max_iterations: float | None
) -> tuple[str, str]:
    """Return (status, why) of a trial whose last result is `result`."""
    iteration = result.get("training_iteration", 0)
    after = f"{iteration} iteration{'s' * (iteration != 1)}"
    for name, limit in getattr(trial, "stopping_criterion", {}).items():
        value = result.get(name)
        if isinstance(value, (int, float)) and value >= limit:
            return "finished", after if name == "training_iteration" else f"{name} ≥ {limit:g}"
    if max_iterations is not None and iteration >= max_iterations:
        return "finished", after
    if result.get("done") and iteration in rungs:
        return "stopped early", f"stopped at rung {iteration}"
    return "finished", ""


def why_failed(trial: Any) -> str:
    """Return the short traceback of a trial that failed."""
    error, text = None, ""
    with contextlib.suppress(Exception):
        text = Path(trial.error_file).read_text(errors="replace").rpartition("Failure #")[2]
    with contextlib.suppress(Exception):
        error = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
        text = str(error)
    if "reuse requires reset_config()" in text:
        return f"RuntimeError: {NO_RESET}"
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return f"OutOfMemoryError: {text.strip().splitlines()[0][:300]}"
    if isinstance(error, ray.exceptions.RayActorError) and not error.__cause__:
        return f"{type(error).__name__}: its process is gone: killed, most likely for its memory (OOM)"
    return tracebacks.shorten_text(text) if text else "no error was kept"


@functools.lru_cache(maxsize=1024)
def node_name(address: str, pid: int) -> str:
    """Return the lab's name of the node with a trial's process; its address if that is another machine."""
    with contextlib.suppress(psutil.Error, ValueError, TypeError):
        if address == ray.util.get_node_ip_address():
            return psutil.Process(pid).environ().get(NODE_NAME, address)
    return address


# -- what Tune prints and logs ----------------------------------------------------------------------


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Keep Tune from printing tables and logging what the panel shows; let its other warnings through."""
    tune_log, noisy = (
        logging.getLogger("ray.tune"),
        [logging.getLogger(f"ray.tune.{name}") for name in _NOISY],
    )
    level, tables = tune_log.level, os.environ.get(_TABLES)
    tune_log.setLevel(logging.WARNING)
    os.environ[_TABLES] = "0"
    for log in noisy:
        log.addFilter(_is_news)
    try:
        yield
    finally:
        for log in noisy:
            log.removeFilter(_is_news)
        os.environ.pop(_TABLES)
        if tables is not None:
            os.environ[_TABLES] = tables
        tune_log.setLevel(level)


def _is_news(record: logging.LogRecord) -> bool:
    return not any(text in record.getMessage() for text in _NOISE)
