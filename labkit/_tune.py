"""What the lab uses of Ray Tune although Tune does not document it, and the ways around Tune's defects.

Written for Ray 2.60. `NAMES` and `TEXTS` have what is lost without each; tests/test_private_names.py looks
whether they are still there, and which attributes Tune's objects have.
"""

import contextlib
import copy
import importlib
import logging
import math
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Experiment
from ray.tune.result import AUTO_RESULT_KEYS
from ray.tune.schedulers import HyperBandScheduler

from labkit.settings import attributes_set, variables_set

NAMES = {
    "ray.air.execution.resources.placement_group:remove_placement_group": "CPUs that Ray loses",
    "ray.train._internal.storage:StorageContext.experiment_driver_staging_path": "files of a sweep",
    "ray.tune.experiment:Trial.error_file": "why a trial failed",
    "ray.tune.result:AUTO_RESULT_KEYS": "Tune's own figures are listed among the metrics",
    "ray.tune.result:DONE": "trials that were ended while paused count as finished",
    "ray.tune.tune:_setup_signal_catching": "an interrupted sweep counts as finished",
}
UNREADABLE = "Original exception:\n"  # in front of the text of an exception that could not be unpickled
NO_METRIC = "did not include the "  # "specified metric", where the metric that is compared is missing
NO_RESULT = "Should not have reached here"  # the function's thread is over, and left neither result nor error
TEXTS = {  # (file of Ray, text): what is lost without it
    ("exceptions.py", UNREADABLE.encode("unicode_escape").decode()): (
        "the words for an exception that can't be unpickled"
    ),
    ("tune/execution/tune_controller.py", NO_METRIC): (
        "which metrics there are, where the one that is compared is missing"
    ),
    ("tune/trainable/function_trainable.py", NO_RESULT): "the words for a function that ends by sys.exit()",
}
STATE_FILES = "experiment_state-"  # plus the session's time and ".json": Tune's list of trials
FAILURE = "Failure # "  # in front of each exception in a trial's error file
NOISE = (  # what Tune logs, and the panel shows, or what has no remedy
    "Trial task failed for trial", "Could not re-use actor", "Trials did not complete",
    "Experiment has been interrupted", "Stop signal received", "may be a performance bottleneck",
    "Remote file not found", "Failed to fetch metrics",
)  # fmt: skip
NEW_FILES = {"tuner.pkl", ".validate_storage_marker"}  # of a sweep that has not begun
NOT_METRICS = {*AUTO_RESULT_KEYS, "done", "trial_id", "experiment_tag", "should_checkpoint"}
_TABLES = "RAY_AIR_NEW_OUTPUT"  # "1", the default, prints tables in a terminal whatever `verbose` says
_DATE = r"_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d"  # Tune names a sweep after its trainable and the second
_REMOVED_AT_ONCE = 16  # placement groups; on a small cluster Tune has fewer requests at a time


# -- a Tuner and its scheduler ------------------------------------------------------------------------


def is_named_by_tune(tuner: tune.Tuner) -> bool:
    """Return whether a sweep has the name that Tune makes up, of its trainable and the second."""
    inner = tuner._local_tuner
    trainable = Experiment.get_trainable_name(inner.converted_trainable)
    return re.fullmatch(re.escape(trainable) + _DATE, inner._run_config.name) is not None


def rename(tuner: tune.Tuner, name: str) -> None:
    """Give a sweep that has not begun another name."""
    inner = tuner._local_tuner
    run = copy.copy(inner._run_config)
    run.name = name
    renamed = tune.Tuner(
        inner.trainable, param_space=inner.param_space, tune_config=inner._tune_config, run_config=run
    )
    tuner._local_tuner = renamed._local_tuner


def deciding(scheduler: Any) -> Any:
    """Return the scheduler that decides; a ResourceChangingScheduler has it inside."""
    return getattr(scheduler, "_base_scheduler", scheduler)


def counted_by(scheduler: Any) -> str:
    """Return what a scheduler counts: the name of a figure in each result."""
    return getattr(scheduler, "_time_attr", "training_iteration")


def rungs_of(scheduler: Any) -> set[float]:
    """Return the times at which ASHA compares trials; of another scheduler, none."""
    brackets = getattr(scheduler, "_brackets", [])
    return {rung[0] for bracket in brackets for rung in getattr(bracket, "_rungs", [])}


def last_time(scheduler: Any, trial: Any) -> float:
    """Return the time at which a scheduler ends its best trials; infinite if it lets them go on."""
    if not isinstance(scheduler, HyperBandScheduler):
        return getattr(scheduler, "_max_t", math.inf)
    # HyperBand rounds the times of a bracket down, so the last one may be below max_t.
    bracket, _ = scheduler._trial_info.get(trial, (None, 0))
    return bracket._cumul_r if bracket is not None and bracket._halves == 0 else math.inf


def trainable_replaced(
    tuner: tune.Tuner, trainable: Callable[..., Any]
) -> contextlib.AbstractContextManager[None]:
    """Let a sweep's trials run another function of the same name in the block."""
    return attributes_set(tuner._local_tuner, _converted_trainable=trainable)


# -- while a sweep runs -------------------------------------------------------------------------------


@contextlib.contextmanager
def noting_interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether the sweep was interrupted.

    Tune ends its loop then, and returns as always. An interrupt before its loop raises KeyboardInterrupt,
    which gets lost in the middle of an import; so Tune hears of it as soon as it listens.
    """
    module: Any = importlib.import_module("ray.tune.tune")
    setup = module._setup_signal_catching
    early = threading.Event()
    of_loops: list[threading.Event] = []  # Tune's own, one for each of its loops

    def note(*_: Any) -> None:
        early.set()
        raise KeyboardInterrupt

    def setup_and_keep() -> threading.Event:
        event = setup()
        of_loops.append(event)
        if early.is_set():
            event.set()
        return event

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, note)
    with attributes_set(module, _setup_signal_catching=setup_and_keep):
        yield lambda: any(event.is_set() for event in (early, *of_loops))


@contextlib.contextmanager
def without_lost_cpus() -> Iterator[None]:
    """Let Tune remove a placement group when Ray has made it, or has had no CPUs for it for a second.

    Ray loses the CPUs of a group that is removed a few milliseconds after it was asked for, while it is being
    made (ray-project/ray 64693 is near to it). Tune does that whenever a trial gets the actor of another one.
    Tune calls both names that are replaced. Where `ray.util.remove_placement_group` is called from elsewhere,
    it removes at once, as always.
    """
    module: Any = importlib.import_module("ray.air.execution.resources.placement_group")
    remove = module.remove_placement_group

    def remove_when_made(group: Any) -> None:
        with contextlib.suppress(Exception):  # there is no such group any more
            group.wait(1)  # whole seconds
        remove(group)

    with ThreadPoolExecutor(_REMOVED_AT_ONCE) as threads:

        def remove_later(group: Any) -> Future | None:
            if sys._getframe(1).f_globals is not vars(module):  # not Tune's own call
                return remove(group)
            return threads.submit(remove_when_made, group)

        with (
            attributes_set(module, remove_placement_group=remove_later),
            attributes_set(ray.util, remove_placement_group=remove_later),
        ):
            yield


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Keep Tune from printing tables and logging what the panel shows; let its other warnings through."""
    logger = logging.getLogger("ray.tune")
    level = logger.level
    handlers = list(logging.getLogger("ray").handlers)
    logger.setLevel(logging.WARNING)  # the cluster's own loggers are at ERROR
    for handler in handlers:
        handler.addFilter(_is_news)
    try:
        with variables_set({_TABLES: "0"}):
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(_is_news)
        logger.setLevel(level)


def _is_news(record: logging.LogRecord) -> bool:
    if not record.name.startswith("ray.tune"):
        return True
    message = record.getMessage()
    return not any(text in message for text in NOISE)


# -- what Tune writes ---------------------------------------------------------------------------------


def staging_folder(trial: Any) -> Path:
    """Return the local folder in which Tune writes the state of a trial's sweep."""
    return Path(trial.storage.experiment_driver_staging_path)


def error_of(trial: Any) -> str:
    """Return the text of a trial's latest exception, from the file that Tune keeps; "" if there is none.

    While the sweep runs, the file is here; for an earlier process, it is in the sweep's folder.
    """
    text = None
    try:
        text = Path(trial.error_file).read_text(errors="replace")
    except (OSError, TypeError):
        with contextlib.suppress(Exception):  # the storage may be out of reach
            text = trial.get_error()
    if not text:
        return ""
    return text.rpartition(FAILURE.strip())[2].partition("\n")[2].strip()


def place_of(trial: Any) -> int:
    """Return a trial's place in the order of creation. Tune restores trials in the order of their results."""
    number = re.match(r"\d+", str(trial.experiment_tag))
    return int(number[0]) if number else 0


def metrics_in(names: Any) -> list[str]:
    """Return those of the names in a result that are the trainable's own, and not Tune's."""
    return sorted(name for name in names if name not in NOT_METRICS and not name.startswith(("_", "config/")))


def names_without_metric(message: str) -> list[str] | None:
    """Return what trials report, if `message` is Tune's complaint that the metric is not among it."""
    if f"{NO_METRIC}specified metric" not in message:
        return None
    return metrics_in(re.findall(r"'([^']+)':", message.rpartition("Result: ")[2]))


def unreadable(error: BaseException) -> str:
    """Return the traceback of a trial's exception that can't be unpickled, which ends the loop of Tune.

    "" for all others. It belongs to a group of exceptions: Tune copies others, and notices it then.
    """
    text = str(error)
    if not isinstance(error, RuntimeError) or UNREADABLE not in text:
        return ""
    return re.sub(r"(?m)^ *[|+] ?", "", text.partition(UNREADABLE)[2])
