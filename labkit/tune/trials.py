"""What a Tuner was given, what is refused of it, its saved state, and why one of its trials failed."""

import contextlib
import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.fs
from ray import tune
from ray.tune.result import DONE
from ray.tune.schedulers import PopulationBasedTraining, PopulationBasedTrainingReplay, TrialScheduler
from ray.tune.utils import flatten_dict

from labkit import _tune
from labkit.cluster import Cluster, capacity, ends
from labkit.cluster.fixes import known_fix
from labkit.display import tracebacks
from labkit.errors import BadInput, LabError
from labkit.files import atomic_write
from labkit.runs.record import setting
from labkit.settings import attributes_set
from labkit.storage import check_run_name
from labkit.storage.folders import folder_of, shown_folder

STATUS = {
    "RUNNING": "running",
    "PAUSED": "paused",
    "TERMINATED": "finished",
    "ERROR": "failed",
}
# Not .json or .pkl: when Tune restores a sweep, it copies those to its local folder, and later back again.
SAVED = "last_state.saved"
_STOPPED = "stopped early"  # in that file: the ids of these trials, which Tune doesn't distinguish
_TRY_HERE = "try the trainable in this process first, on one configuration"
_TRY_APART = "try the trainable in a Python of its own, on one configuration: it ends that, too"
# Between the exceptions of a chain, in Python's words.
_CHAIN = re.compile(
    "\n\n(?:During handling of the above exception, another exception occurred"
    "|The above exception was the direct cause of the following exception):\n\n"
)


# -- a sweep ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TunerPlan:
    """What a Tuner was given: its trainable, search space, `TuneConfig` and `RunConfig`.

    Attributes:
        restored: whether it goes on with an interrupted sweep.
        stopped: ids of trials that the scheduler has ended before their last time (see `noting_stops`).
        ended: ids of trials that Tune has ended one by one, for whatever reason, also in an earlier process.
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
            raise BadInput(
                "follow the sweep",
                f"watch() takes a ray.tune.Tuner and got {tuner!r:.60}",
                "panel.watch(tune.Tuner(trainable, param_space=…))",
            )
        inner = getattr(tuner, "_local_tuner", None)
        if inner is None:
            raise LabError(
                "follow the sweep",
                "this process is a Ray client (ray://…): Tune's loop runs on the cluster, unseen here",
                "run JupyterLab in the cluster's network and connect to HOST:6379, or send a script by "
                "ray job submit; tuner.fit() alone works from here",
            )
        return cls(
            inner.trainable,
            inner.param_space or {},
            inner._tune_config,
            inner._run_config,
            restored=inner._is_restored,
        )

    @property
    def path(self) -> str:
        return shown_folder(self.run.storage_path, self.run.name)

    @functools.cached_property
    def storage(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """The filesystem with the sweep's folder, and the folder's path there."""
        return folder_of(self.run)

    @property
    def to_restore(self) -> str:
        """The arguments of `Tuner.restore` that say where the sweep is.

        Ray reads that path, with the name, as a URI; where it would read another name, a filesystem helps.
        """
        is_misread = "://" in self.path and re.search(r"[^\w/.=-]", str(self.run.name))
        if self.run.storage_filesystem is None and not is_misread:
            return repr(self.path)
        return f"{self.storage[1]!r}, storage_filesystem=…"

    @functools.cached_property
    def compared(self) -> tuple[str | None, str]:
        """The metric, None if there is none or several, and "max" or "min".

        Where `TuneConfig` has none, the scheduler or the searcher has.
        """
        searcher = self.options.search_alg
        while hasattr(searcher, "searcher"):  # of a ConcurrencyLimiter, for example
            searcher = searcher.searcher
        metric = self.options.metric
        mode = self.options.mode
        for part in (self._decider, searcher):
            metric = metric or getattr(part, "_metric", None)
            mode = mode or getattr(part, "_mode", None)
        return metric if isinstance(metric, str) else None, "min" if mode == "min" else "max"

    @property
    def _decider(self) -> Any:
        return _tune.deciding(self.options.scheduler)

    @property
    def time(self) -> str:
        """What the scheduler counts: the name of a figure in each result."""
        return _tune.counted_by(self._decider)

    @property
    def rungs(self) -> tuple[float, ...]:
        """The times at which ASHA compares trials, ascending; () with another scheduler."""
        rungs = sorted(_tune.rungs_of(self._decider))
        return tuple(map(math.ceil, rungs)) if self.time == "training_iteration" else tuple(rungs)

    # -- what is refused ------------------------------------------------------------------------------

    def check(self, lab: Cluster | None) -> None:
        """Refuse a sweep that cannot work on this cluster, if it is known.

        Raises:
            LabError: trials that don't fit, for which Tune would wait forever; a scheduler that is a name; in
                a new sweep, the name of an earlier one, or a search space that is empty or a plain list.
        """
        scheduler = self.options.scheduler
        if isinstance(scheduler, str):
            raise BadInput(
                "follow the sweep",
                f"scheduler={scheduler!r} is a name, so what it decides can't be seen",
                f"from ray import tune; TuneConfig(scheduler=tune.create_scheduler({scheduler!r}))",
            )
        if lab is not None:
            bundles, strategy = self._resources()
            capacity.check_bundles_fit(
                lab.nodes,
                bundles,
                attempt="start trials",
                strategy=strategy,
                ours=lab.is_ours,
            )
        if not self.restored:
            self._check_space()
            self._check_name()

    def _resources(self) -> tuple[list[dict[str, float]], str]:
        """Return the bundles that one trial asks for, each on one node, and how they are placed.

        The list is empty if only a drawn configuration tells.
        """
        trainable: Any = self.trainable
        try:
            wanted = getattr(trainable, "_resources", None)
            if isinstance(self.trainable, type):
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
        # Population based training changes settings that are equal at first.
        is_changed = isinstance(self._decider, (PopulationBasedTraining, PopulationBasedTrainingReplay))
        is_searched = any(_is_searched(name, value) for name, value in space.items())
        if self.options.search_alg is not None or is_changed or is_searched:
            return
        for name, value in space.items():
            if isinstance(value, (list, range)) and len(value) > 1:
                raise BadInput(
                    f"sweep over {name!r}",
                    f"{name!r} is a plain list, which every trial would get unchanged",
                    f"tune.grid_search([…]) or tune.choice([…]) for {name!r}",
                )
        if not space and self.options.num_samples != 1:
            raise BadInput(
                "start a sweep",
                "the search space is empty: all trials would be the same",
                'param_space={"lr": tune.loguniform(1e-3, 1)}, for example',
            )

    def _check_name(self) -> None:
        """Refuse the name of an earlier sweep: in one folder the results of both would be mixed."""
        check_run_name(str(self.run.name), only_ascii=False)
        try:
            is_taken = bool(self._states())
        except OSError:
            return  # Tune reports at once that the storage can't be reached
        if is_taken:
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
        newest = max(path.stem for path in staging.glob(f"{_tune.STATE_FILES}*.json"))
        moment = newest.removeprefix(_tune.STATE_FILES)
        content: dict[str, Any] = {_STOPPED: sorted(self.stopped)}
        for path in staging.glob(f"[!.]*-{moment}.*"):
            content[path.name] = path.read_bytes().decode("latin-1")  # JSON has no bytes
        self._write(SAVED, json.dumps(content).encode())

    def restore_state(self) -> None:
        """Write the saved state over Tune's own files, unless those are of a later run without a panel."""
        filesystem, folder = self.storage
        try:
            with filesystem.open_input_stream(f"{folder}/{SAVED}") as file:
                content: dict[str, Any] = json.loads(file.read())
        except (FileNotFoundError, ValueError):
            return  # there is none, or it is damaged: Tune's own files are what there is
        self.stopped.update(content.pop(_STOPPED, ()))
        newest = max(name for name in content if name.startswith(_tune.STATE_FILES))
        if max(self._states(), default="") <= newest:
            for name, text in content.items():
                self._write(Path(name).name, text.encode("latin-1"))

    def _states(self) -> list[str]:
        """Return the names of Tune's lists of trials in the sweep's folder."""
        names = [info.base_name for info in _files_in(*self.storage)]
        return [name for name in names if name.startswith(_tune.STATE_FILES)]

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

        def decide_and_note(controller: Any, trial: Any, result: dict[str, Any]) -> str:
            decision = decide(controller, trial, result)
            if decision == TrialScheduler.STOP and self._is_early(trial, result):
                self.stopped.add(trial.trial_id)
            return decision

        with attributes_set(scheduler, on_trial_result=decide_and_note):
            yield

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
        return result.get(self.time, 0) < _tune.last_time(self._decider, trial)


def _is_searched(name: str, value: object) -> bool:
    """Return whether a setting is a search space, or a list that has one."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return name.endswith("grid_search") or any(hasattr(value, "sample") for value in values)


def _files_in(filesystem: pyarrow.fs.FileSystem, folder: str) -> list[Any]:
    return filesystem.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True))


def named_uniquely(tuner: tune.Tuner, name: str) -> None:
    """Rename a sweep with the name that Tune made up: it has whole seconds, so two sweeps may share it."""
    plan = TunerPlan.from_tuner(tuner)
    if plan.restored or not _tune.is_named_by_tune(tuner):
        return
    _tune.rename(tuner, name)
    # Tune has made the folder of the old name already.
    filesystem, folder = plan.storage
    names = {info.base_name for info in _files_in(filesystem, folder)}
    if names and names <= _tune.NEW_FILES:
        filesystem.delete_dir(folder)


# -- one trial --------------------------------------------------------------------------------------


def shown_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration on one level, its settings as a record has them: in short, without secrets."""
    return {name: setting(value, name) for name, value in flatten_dict(dict(config)).items()}


def number(value: Any) -> bool | int | float | None:
    """Return numpy's and torch's numbers as plain ones, and None for everything else."""
    with contextlib.suppress(AttributeError, TypeError, ValueError, RuntimeError):
        value = value.item()
    return value if isinstance(value, (bool, int, float)) else None


def why_failed(trial: Any) -> tuple[str, str]:
    """Return why a trial failed, from the file that Tune keeps, and a fix.

    The first is the short form of its error, or how its process ended.
    """
    text = _tune.error_of(trial)
    if not text:
        return "no error was kept", _TRY_HERE
    if _tune.NO_RESULT in text:
        fix = "let it return, or raise an error that says why; sys.exit() ends the thread that it runs in"
        return "its function ended by SystemExit", fix
    fixes = [known_fix(text)]
    if ends.is_an_end(text):
        pid = ends.process_of(text)
        if not fixes[0]:
            fixes = [ends.more_in_log(pid), _TRY_APART]
        return f"its process is gone: {ends.how_it_ended(text, pid)}", "; ".join(filter(None, fixes))
    # Tune copies an exception; that raises another one where its __init__ needs more than a message.
    chain = _CHAIN.split(text)
    own = [part for part in chain if tracebacks.shows_own(part)]
    fixes += ["the panel shows where" if own else "", _TRY_HERE]
    return tracebacks.shorten_text((own or chain)[-1]), "; ".join(filter(None, fixes))
