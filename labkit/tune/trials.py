"""What Ray Tune knows of a sweep and its trials: the one file that uses names which Tune does not document.

`tests/test_private_names.py` lists them.
"""

import contextlib
import copy
import functools
import importlib
import json
import logging
import math
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.fs
import ray
from ray import tune
from ray.tune.experiment import Experiment
from ray.tune.result import AUTO_RESULT_KEYS, DONE
from ray.tune.schedulers import HyperBandScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.utils import flatten_dict

from labkit.cluster import Cluster, capacity, ends
from labkit.cluster.fixes import known_fix
from labkit.display import tracebacks
from labkit.errors import BadInput, LabError
from labkit.files import atomic_write
from labkit.runs.record import setting
from labkit.settings import variables_set
from labkit.storage import check_run_name

STATUS = {"RUNNING": "running", "PAUSED": "paused", "TERMINATED": "finished", "ERROR": "failed"}
_NOT_METRICS = {*AUTO_RESULT_KEYS, "done", "trial_id", "experiment_tag", "should_checkpoint"}
STATE_FILES = "experiment_state-"  # plus the session's time and ".json": Tune's list of trials
# Not .json or .pkl: when Tune restores a sweep, it copies those to its local folder, and later back again.
SAVED = "last_state.saved"
_STOPPED = "stopped early"  # in that file: the ids of these trials, which Tune doesn't distinguish
_TRY_HERE = "try the trainable in this process first, on one configuration"
_TRY_APART = "try the trainable in a Python of its own, on one configuration: it ends that, too"
_REMOVED_AT_ONCE = 16  # placement groups; on a small cluster Tune has fewer requests at a time
# In front of the text of a trial's exception that could not be unpickled.
_UNREADABLE = "Original exception:\n"
# Between the exceptions of a chain, in Python's words.
_CHAIN = re.compile(
    "\n\n(?:During handling of the above exception, another exception occurred"
    "|The above exception was the direct cause of the following exception):\n\n"
)
_TABLES = "RAY_AIR_NEW_OUTPUT"  # "1", the default, prints tables in a terminal whatever `verbose` says
_NOISE = (  # what Tune logs, and the panel shows, or what has no remedy
    "Trial task failed for trial", "Could not re-use actor", "Trials did not complete",
    "Experiment has been interrupted", "Stop signal received", "may be a performance bottleneck",
    "Remote file not found", "Failed to fetch metrics",
)  # fmt: skip
_DATE = r"_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d"  # Tune names a sweep after its trainable and the second
_NEW = {"tuner.pkl", ".validate_storage_marker"}  # files of a sweep that has not begun


# -- a sweep ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TunerPlan:
    """What a Tuner was given: its trainable, search space, `TuneConfig` and `RunConfig`.

    Attributes:
        restored: whether it goes on with an interrupted sweep.
        stopped: ids of trials that the scheduler has ended before their last time (see `noting_stops`).
        ended: ids of trials that Tune has ended one by one, for whatever reason.
    """

    trainable: Any
    space: Any
    options: Any
    run: Any
    restored: bool = False
    stopped: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)

    @classmethod
    def from_tuner(cls, tuner: Any) -> "TunerPlan":
        """Read `tuner`, which has no public attributes.

        Raises:
            LabError: it is no Tuner, or made by a Ray client.
        """
        if not isinstance(tuner, tune.Tuner):
            fact = f"watch() takes a ray.tune.Tuner and got {tuner!r:.60}"
            raise BadInput("follow the sweep", fact, "panel.watch(tune.Tuner(trainable, param_space=…))")
        if (inner := getattr(tuner, "_local_tuner", None)) is None:
            fact = "this process is a Ray client (ray://…): Tune's loop runs on the cluster, unseen here"
            fix = "run JupyterLab in the cluster's network and connect to HOST:6379, or send a script by "
            fix += "ray job submit; tuner.fit() alone works from here"
            raise LabError("follow the sweep", fact, fix)
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
        return pyarrow.fs.FileSystem.from_uri(self.path)

    @functools.cached_property
    def compared(self) -> tuple[str | None, str]:
        """The metric, None if there is none or several, and "max" or "min".

        Where `TuneConfig` has none, the scheduler or the searcher has.
        """
        searcher = self.options.search_alg
        while hasattr(searcher, "searcher"):  # of a ConcurrencyLimiter, for example
            searcher = searcher.searcher
        named = [(self.options.metric, self.options.mode)]
        for one in (self._decider, searcher):
            named.append((getattr(one, "_metric", None), getattr(one, "_mode", None)))
        metric, mode = (next(filter(None, values), None) for values in zip(*named, strict=True))
        return metric if isinstance(metric, str) else None, "min" if mode == "min" else "max"

    @property
    def _decider(self) -> Any:
        """The scheduler that decides; a ResourceChangingScheduler has it inside."""
        scheduler = self.options.scheduler
        return getattr(scheduler, "_base_scheduler", scheduler)

    @property
    def time(self) -> str:
        """What the scheduler counts: the name of a figure in each result."""
        return getattr(self._decider, "_time_attr", "training_iteration")

    @property
    def rungs(self) -> tuple[float, ...]:
        """The times at which ASHA compares trials, ascending; () with another scheduler."""
        brackets = getattr(self._decider, "_brackets", [])
        found = {rung[0] for one in brackets for rung in getattr(one, "_rungs", [])}
        whole = self.time == "training_iteration"
        return tuple(sorted(math.ceil(rung) if whole else rung for rung in found))

    # -- what is refused ------------------------------------------------------------------------------

    def check(self, lab: Cluster | None) -> None:
        """Refuse a sweep that cannot work on this cluster, if it is known.

        Raises:
            LabError: trials that don't fit, for which Tune would wait forever; in a new sweep, the name of an
                earlier one, or a search space that is empty or a plain list.
        """
        if lab is not None:
            bundles, strategy = self._resources()
            capacity.check_bundles_fit(
                lab.nodes, bundles, attempt="start trials", strategy=strategy, ours=lab.is_ours
            )
        if not self.restored:
            self._check_space()
            self._check_name()

    def _resources(self) -> tuple[list[dict[str, float]], str]:
        """Return the bundles that one trial asks for, each on one node, and how they are placed.

        The list is empty if only a drawn configuration tells.
        """
        try:
            wanted = getattr(self.trainable, "_resources", None)
            if isinstance(self.trainable, type):
                trainable: Any = self.trainable
                wanted = trainable.default_resource_request(dict(self.space))
            elif callable(wanted) and not hasattr(wanted, "bundles"):
                wanted = wanted(dict(self.space))
            if wanted is None:
                return [{"CPU": 1.0}], "PACK"
            return [dict(bundle) for bundle in wanted.bundles], wanted.strategy
        except Exception:  # of the reader's own function, called with ranges in place of values
            return [], "PACK"

    def _check_space(self) -> None:
        space = flatten_dict(self.space)
        changed = isinstance(self.options.scheduler, PopulationBasedTraining)  # settings equal at first
        if self.options.search_alg is not None or changed or any(map(_is_searched, space, space.values())):
            return
        for name, value in space.items():
            if isinstance(value, (list, range)) and len(value) > 1:
                fact = f"{name!r} is a plain list, which every trial would get unchanged"
                fix = f"tune.grid_search([…]) or tune.choice([…]) for {name!r}"
                raise BadInput(f"sweep over {name!r}", fact, fix)
        if not space:
            fact, fix = "the search space is empty", 'param_space={"lr": tune.loguniform(1e-3, 1)}'
            raise BadInput("start a sweep", f"{fact}: all trials would be the same", f"{fix}, for example")

    def _check_name(self) -> None:
        """Refuse the name of an earlier sweep: in one folder the results of both would be mixed."""
        check_run_name(str(self.run.name), only_ascii=False)
        try:
            taken = self._states()
        except OSError:
            return  # Tune reports at once that the storage can't be reached
        if taken:
            raise BadInput(
                f"start a new sweep with the name {self.run.name!r}",
                f"{self.run.storage_path} has one of that name already, and trials of both would be mixed",
                "a fresh one: RunConfig(name=panel.run_id, …). To go on with that: Tuner.restore(path, …)",
            )

    # -- its state in one file ------------------------------------------------------------------------
    #
    # Tune keeps the state in several files (trials, searcher, callbacks), and a thread copies them to the
    # storage while the loop may already write the next state. So a kill can leave files there that are cut
    # off or of different moments: of six sweeps that were killed at random, four could not be restored.

    def save_state(self, staging: Path) -> None:
        """Save the newest state in Tune's local folder `staging`, all files of one moment, as one file."""
        newest = max(path.stem for path in staging.glob(f"{STATE_FILES}*.json"))
        found = staging.glob(f"[!.]*-{newest.removeprefix(STATE_FILES)}.*")
        files = {path.name: path.read_bytes().decode("latin-1") for path in found}  # JSON has no bytes
        self._write(SAVED, json.dumps(files | {_STOPPED: sorted(self.stopped)}).encode())

    def restore_state(self) -> None:
        """Write the saved state over Tune's own files, unless those are of a later run without a panel."""
        filesystem, folder = self.storage
        try:
            with filesystem.open_input_stream(f"{folder}/{SAVED}") as file:
                files: dict[str, Any] = json.loads(file.read())
        except (FileNotFoundError, ValueError):
            return  # there is none, or it is damaged: Tune's own files are what there is
        self.stopped.update(files.pop(_STOPPED, ()))
        newest = max(name for name in files if name.startswith(STATE_FILES))
        if max(self._states(), default="") <= newest:
            for name, text in files.items():
                self._write(Path(name).name, text.encode("latin-1"))

    def _states(self) -> list[str]:
        """The names of Tune's lists of trials in the sweep's folder."""
        filesystem, folder = self.storage
        found = filesystem.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True))
        return [info.base_name for info in found if info.base_name.startswith(STATE_FILES)]

    def _write(self, name: str, content: bytes) -> None:
        """Write a file of the sweep's folder atomically. An object store does so by itself."""
        filesystem, folder = self.storage
        if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
            atomic_write(f"{folder}/{name}", content)
        else:
            with filesystem.open_output_stream(f"{folder}/{name}") as file:
                file.write(content)

    # -- while it runs --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def noting_stops(self) -> Iterator[None]:
        """Note in `stopped` which trials the scheduler ends before its own last time.

        Tune asks it only about results with which a trial would go on, and reports an end by the scheduler
        as any other. `note_end` has the trials that the scheduler ends at another moment.
        """
        scheduler = self.options.scheduler
        if not isinstance(scheduler, TrialScheduler):
            yield
            return
        decide = scheduler.on_trial_result

        def noted(controller: Any, trial: Any, result: dict[str, Any]) -> str:
            decision = decide(controller, trial, result)
            if decision == TrialScheduler.STOP and self._is_early(trial, result):
                self.stopped.add(trial.trial_id)
            return decision

        scheduler.on_trial_result = noted
        try:
            yield
        finally:
            del scheduler.on_trial_result

    def note_end(self, trial: Any) -> None:
        """Note that Tune is ending this one trial.

        A trial whose last result isn't marked as done has met no criterion, and its function hasn't returned:
        HyperBand ends trials in that way while they are paused.
        """
        self.ended.add(trial.trial_id)
        result = flatten_dict(trial.run_metadata.last_result)
        if not result.get(DONE) and self._is_early(trial, result):
            self.stopped.add(trial.trial_id)

    def _is_early(self, trial: Any, result: Mapping[str, Any]) -> bool:
        """Return whether the scheduler would have let better trials train longer than to this result."""
        return result.get(self.time, 0) < self._last_time(trial)

    def _last_time(self, trial: Any) -> float:
        """Return the time at which the scheduler ends its best trials; infinite if it lets them go on."""
        if not isinstance(self._decider, HyperBandScheduler):
            return getattr(self._decider, "_max_t", math.inf)
        # HyperBand rounds the times of a bracket down, so the last one may be below max_t.
        brackets = {of.trial_id: bracket for of, (bracket, _) in self._decider._trial_info.items()}
        bracket = brackets.get(trial.trial_id)
        return bracket._cumul_r if bracket is not None and bracket._halves == 0 else math.inf


def _is_searched(name: str, value: object) -> bool:
    inside = value if isinstance(value, (list, tuple)) else [value]
    return name.endswith("grid_search") or any(hasattr(one, "sample") for one in inside)


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
    """Yield what tells whether the sweep was interrupted.

    Tune ends its loop then, and returns as always. An interrupt before its loop raises KeyboardInterrupt,
    which gets lost in the middle of an import; so Tune hears of it as soon as it listens.
    """
    module: Any = importlib.import_module("ray.tune.tune")
    events: list[threading.Event] = []  # of Tune: one for each of its loops
    early = threading.Event()
    catch = module._setup_signal_catching

    def note(*_: Any) -> None:
        early.set()
        raise KeyboardInterrupt

    def caught() -> threading.Event:
        events.append(catch())
        if early.is_set():
            events[-1].set()
        return events[-1]

    module._setup_signal_catching = caught
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: any(event.is_set() for event in (early, *events))
    finally:
        module._setup_signal_catching = catch


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

        def later(group: Any) -> Future | None:
            if sys._getframe(1).f_globals is not vars(module):  # not Tune's own call
                return remove(group)
            return threads.submit(remove_when_made, group)

        module.remove_placement_group = ray.util.remove_placement_group = later
        try:
            yield
        finally:
            module.remove_placement_group = ray.util.remove_placement_group = remove


# -- one trial --------------------------------------------------------------------------------------


def place_of(trial: Any) -> int:
    """Return a trial's place in the order of creation. Tune restores trials in the order of their results."""
    found = re.match(r"\d+", str(trial.experiment_tag))
    return int(found[0]) if found else 0


def shown_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration on one level, with settings as a record has them: data in short, secrets left out."""
    return {name: setting(value, name) for name, value in flatten_dict(dict(config)).items()}


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


def unreadable(error: BaseException) -> str:
    """Return the traceback of a trial's exception that can't be unpickled, which ends the loop of Tune.

    "" for all others. It belongs to a group of exceptions: Tune copies others, and notices it then.
    """
    text = str(error)
    if not isinstance(error, RuntimeError) or _UNREADABLE not in text:
        return ""
    return re.sub(r"(?m)^ *[|+] ?", "", text.partition(_UNREADABLE)[2])


@dataclass(frozen=True)
class TrialFailure:
    """Why a trial failed.

    Attributes:
        text: the short form of its error, or how its process ended.
        fix: what to do about it, and where to look.
    """

    text: str
    fix: str


def why_failed(trial: Any) -> TrialFailure:
    """Return why a trial failed, from the file that Tune keeps."""
    try:
        text = Path(trial.error_file).read_text(errors="replace")
    except (OSError, TypeError):
        return TrialFailure("no error was kept", _TRY_HERE)
    text = text.rpartition("Failure #")[2].partition("\n")[2].strip()
    if ends.is_an_end(text):
        log = ends.log_of(ends.process_of(text))
        more = f"the last lines of {log} say more" if log else ""
        fix = known_fix(text) or "; ".join(filter(None, (more, _TRY_APART)))
        return TrialFailure(f"its process is gone: {ends.how_it_ended(text)}", fix)
    # Tune copies an exception; that raises another one where its __init__ needs more than a message.
    chain = _CHAIN.split(text)
    own = [part for part in chain if tracebacks.shows_own(part)]
    fixes = (known_fix(text), "the panel shows where" if own else "", _TRY_HERE)
    return TrialFailure(tracebacks.shorten_text((own or chain)[-1]), "; ".join(filter(None, fixes)))


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
