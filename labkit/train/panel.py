"""The panel of a Ray Train run.

    trainer = TorchTrainer(train_loop, ...)
    with TrainPanel("03-torch").watch(trainer):
        result = trainer.fit()

The loop knows nothing of the panel. During the run the trainer has one more callback, and a wrapper around
its loop that follows it from outside (see `labkit.worker.hooks`). What the workers and the run's
controller report comes to the kernel: on a cluster that the lab started over a socket, on others through a
small actor (`labkit.worker.mailbox`).
"""

import contextlib
import dataclasses
import re
import reprlib
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import ray
import ray.train
from ray import cloudpickle
from ray.util import state
from ray.util.placement_group import PlacementGroup

from labkit import cluster, interrupts
from labkit.cluster import capacity, ends
from labkit.cluster.fixes import check_storage_path, known_fix
from labkit.display import tracebacks
from labkit.display.formatting import size
from labkit.errors import BadInput, RunFailed
from labkit.panel.panel import Panel
from labkit.panel.training import TrainingRun
from labkit.settings import attributes_set
from labkit.storage import check_run_name, hint_for
from labkit.storage.folders import shown_folder
from labkit.train import callbacks, hang
from labkit.worker.events import Checkpoint, Event, Failure
from labkit.worker.mailbox import Mailbox
from labkit.worker.remote import TrackedFunction

# A run's length, by its names in a configuration; the first counts most.
_LENGTHS = {"epochs": ("epochs", "num_epochs", "max_epochs"), "steps": ("steps", "max_steps")}
_SCALING = ("num_workers", "use_gpu", "resources_per_worker")  # of the scaling, what is recorded
_NAME_BY_RAY = re.compile(r"ray_train_run-\d{4}(-\d\d){2}_\d\d(-\d\d){2}")
_LARGEST = 1_000_000  # bytes of a pickled function; a small model fits, a data set does not
_OF_RAY = (ray.train.TrainingFailedError, ray.exceptions.RayError)  # RayError: the end of the controller


class _Ending(NamedTuple):
    """What ended a run, as Ray's error tells it."""

    text: str  # a short traceback, or how a process ended
    rank: int | None = None  # whose failure it was; None for the controller and validations
    died: str = ""  # Ray's message, if a process is gone
    pid: int | None = None  # of that process, if the panel knows it
    is_of_validation: bool = False


class TrainPanel(Panel):
    """The panel of a Ray Train run; see `labkit.panel.panel.Panel` for its arguments.

    The length of the run, for its bar, is one of the names in `_LENGTHS` in the trainer's
    ``train_loop_config``, or the argument `epochs` or `steps` here.
    """

    _ending: _Ending  # of a run that failed with an error of Ray

    def __init__(self, name: str, **options: Any) -> None:
        self._trainer: Any = None
        self._interrupts: callbacks.Interrupts | None = None  # of the present run
        super().__init__(name, **{"engine": "Ray Train", **options})

    @interrupts.stoppable("the checks before the start", left="Nothing has been started")
    def watch(self, trainer: Any) -> Self:
        """Follow `trainer` in a ``with`` block around its ``fit()``.

        In that block the trainer has this panel's callback, and a run without a name gets one of its own,
        since Ray names it by the second, and two of one name resume each other.

        Raises:
            NoRoom: no node has what its workers or its validations need, and Ray would wait forever.
            BadInput: it is not a Ray Train trainer; its storage path is relative; or its validation function
                captures a large object.
        """
        attempt = f"follow a run with the panel {self.state.name!r}"
        run: Any = getattr(trainer, "run_config", None)
        if not isinstance(run, ray.train.RunConfig) or isinstance(trainer, type):
            raise BadInput(
                attempt,
                f"{reprlib.repr(trainer)} is not a Ray Train trainer",
                "panel.watch(TorchTrainer(...)), or another trainer of ray.train",
            )
        has_workers = trainer.scaling_config.max_workers > 0  # without, the loop runs in this process
        if has_workers:
            if run.name:
                check_run_name(run.name)
            check_storage_path(run.storage_path, filesystem=run.storage_filesystem, attempt=attempt)
            _check_room(trainer)
        warning = callbacks.wrong_order(run.checkpoint_config)
        if warning:
            warnings.warn(warning, stacklevel=3)
        self._trainer = trainer
        self.loop = trainer.train_loop_per_worker
        self.first_phase = "starting" if has_workers else "preparing"
        if self.state.status == "ready":
            self.state = self.new_state()
        return self

    def fit(self, trainer: Any) -> ray.train.Result:
        """``trainer.fit()`` with this panel; see `watch`."""
        with self.watch(trainer):
            return trainer.fit()

    def explain(self) -> None:
        """Look what each rank does now; the panel shows it."""
        workers = list(self.state.workers.values())
        lines = hang.explain(workers) or ["no worker was heard of yet"]
        with self.update() as run:
            run.explained = run.now(), lines

    # -- what `labkit.panel.panel.Panel` calls --------------------------------------------------------

    def __enter__(self) -> Self:
        if self._trainer is None:
            raise BadInput(
                f"follow a run with the panel {self.state.name!r}",
                "it does not know which trainer to follow",
                "with panel.watch(trainer): trainer.fit(); a loop without Ray Train has labkit.panel.Panel",
            )
        return super().__enter__()

    def new_state(self) -> TrainingRun:
        trainer = self._trainer
        if trainer is None:
            return super().new_state()
        scaling = trainer.scaling_config
        settings = _settings_of(trainer.train_loop_config or {})
        facts = {
            **self._about,
            "world_size": max(scaling.max_workers, 1),
            "engine": "one process",
            "config": settings,
            "scaling": {name: getattr(scaling, name) for name in _SCALING},
        }
        for length, names in _LENGTHS.items():
            values = [settings[name] for name in names if settings.get(name) is not None]
            if values:
                facts[length] = values[0]
        if scaling.max_workers:
            facts["engine"] = "Ray Train"
            facts["storage_path"] = shown_folder(trainer.run_config.storage_path, self._run_name)
        return TrainingRun(self._name, **facts)

    def files(self) -> list[tuple[str, str]]:
        path = self.state.recorded.get("storage_path")
        files = [("checkpoints", path)] if path else []
        logs = cluster.log_dir()
        if logs is not None:
            files.append(("training workers' logs", str(logs / "train")))
            files.append(("Ray's logs", str(logs)))
        return files

    def channel(self, on_event: Callable[[Event], Any]) -> Any:
        lab = cluster.of_this_connection()
        # All nodes of our own are on this machine, and a socket costs less than an actor. Without Ray, the
        # panel was pickled for other processes.
        if not ray.is_initialized() or (lab is not None and lab.is_ours):
            return super().channel(on_event)
        return Mailbox(on_event, f"labkit-panel-{self.run_id}")

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        over = threading.Event()
        self._interrupts = None  # of an earlier run
        if self.trains_elsewhere():
            if not ray.is_initialized():
                ray.init()  # as fit() would
            self.listen()  # here, and not in the middle of Ray's pickling
        # A training without workers needs no cluster.
        groups = set(ray.util.placement_group_table()) if ray.is_initialized() else set()
        with ends.quiet_deaths(), self._wired(self._trainer):
            self._note_earlier_checkpoints()
            for look in (self._look, self._look_for_hangs):  # py-spy takes seconds
                threading.Thread(target=look, args=[over], name="labkit-look", daemon=True).start()
            self._interrupts = callbacks.Interrupts(self._trainer)
            try:
                yield
                super().hang_up()  # first all checkpoints that were reported, then Ray's list of them
                self._follow_checkpoints(last=True)
            except BaseException as error:
                with interrupts.held():
                    self._interrupts.end_controller()
                    lost = isinstance(error, (ray.train.ControllerError, ray.exceptions.RayError))
                    if lost or self._interrupts.forced:
                        _free_placement_groups(groups)
                raise
            finally:
                self._interrupts.controller = None
                over.set()

    def ended_by(self, error: BaseException | None) -> BaseException | None:
        if error is not None and self._interrupts is not None and self._interrupts.came:
            return KeyboardInterrupt()
        return error

    def receive(self, event: Event) -> None:
        """Take in an event, with what only this process knows: how a rank ended."""
        if isinstance(event, Failure) and event.died:
            text = f"{event.text}: {ends.how_it_ended(event.died, self._pid(event.rank))}"
            event = dataclasses.replace(event, text=text)
        super().receive(event)

    def failure_text(self, error: BaseException) -> str:
        return self._ending.text if isinstance(error, _OF_RAY) else super().failure_text(error)

    def keep_failure(self, error: BaseException) -> None:
        if not isinstance(error, _OF_RAY):
            super().keep_failure(error)
            return
        self._ending = self._find_ending(error)
        before = len(self.state.failures)
        super().keep_failure(error)
        if len(self.state.failures) > before:
            self.state.failures[-1].rank = self._ending.rank

    def _find_ending(self, error: BaseException) -> _Ending:
        """Return what ended a run that raised an error of Ray."""
        if isinstance(error, ray.train.WorkerGroupError):
            rank, text, died = callbacks.first_failure(error.worker_failures)
            pid = self._pid(rank)
            if died:
                text = f"{text}: {ends.how_it_ended(died, pid)}"
            elif not text.startswith(f"rank {rank} "):
                text = tracebacks.shorten_text(callbacks.text_of_cause(error))
            return _Ending(text, rank, died, pid)
        message = str(error)
        if not ends.is_an_end(message):
            return _Ending(tracebacks.shorten_text(message))  # which has the workers' tracebacks
        validation, pid = self._ended_validation(error)
        how = ends.how_it_ended(message, pid)
        if validation:
            return _Ending(f"{validation} ended: {how}", None, message, pid, is_of_validation=True)
        is_reported = isinstance(error, ray.train.TrainingFailedError)  # by the controller
        who = "a process of the run" if is_reported else "the controller of the run"
        return _Ending(f"{who} is gone: {how}", died=message)

    def _ended_validation(self, error: BaseException) -> tuple[str, int | None]:
        """Return which validation's process is gone, and its pid; "" if that is of another process."""
        if not isinstance(error, ray.train.ControllerError):
            return "", None
        for checkpoint in reversed(self.state.checkpoints):
            if checkpoint.validating:
                return f"the validation of {checkpoint.label}", checkpoint.validator
        # A run has no other tasks than its validations.
        of_task = "executing this task" in str(error) or ends.LOW_MEMORY in str(error)
        if self._trainer.validation_config is not None and of_task:
            return "a validation", None
        return "", None

    def _pid(self, rank: int | None) -> int | None:
        """Return the latest process of a rank; None if it isn't known, or its node isn't here, or no more."""
        worker = None if rank is None else self.state.workers.get(rank)
        return worker.pid if worker is not None and hang.is_here(worker.node) else None

    def translate(self, error: BaseException) -> BaseException | None:
        if not isinstance(error, _OF_RAY):
            return self._refused_by_ray(error)
        ending = self._ending
        message = self.state.failures[-1].message
        is_of_rank = ending.rank is not None
        who = f"rank {ending.rank}" if is_of_rank else "the controller of the run"
        is_whole = ending.died and not is_of_rank
        fact = message if is_whole or message.startswith(who) else f"{who} raised {message}"
        for rank in sorted(self.state.empty):
            fact += f"; rank {rank} had no rows: the shard is empty"
        fixes: list[str | None]
        if ending.is_of_validation:
            again = "correct the validation function: it is called for this checkpoint again"
            fixes = [ends.more_in_log(ending.pid), again]
        elif ending.died:
            fixes = [known_fix(ending.died), ends.more_in_log(ends.process_of(ending.died, ending.pid))]
        else:
            fixes = [self._fix(str(error), message)]
        if self.state.kept or ending.died:
            fixes.append(self._resume_fix(is_of_rank=is_of_rank))
        return RunFailed(f"finish the run {self.state.name!r}", fact, ". ".join(filter(None, fixes)))

    def _resume_fix(self, *, is_of_rank: bool) -> str:
        fix = (
            f"fit() with the same storage and RunConfig(name={self._run_name!r}) "
            "goes on from the last checkpoint"
        )
        if is_of_rank:  # what fails in the controller, such as a validation that dies, isn't tried again
            fix += "; RunConfig(failure_config=FailureConfig(max_failures=1)) does that by itself"
        return fix

    def _fix(self, text: str, message: str) -> str:
        """Return the known fix, or where to look: in the panel only if that shows a line of the reader's."""
        fix = known_fix(text) or hint_for(message)
        if fix:
            return fix
        if tracebacks.shows_own(text):
            return "the panel above shows where"
        logs = cluster.log_dir()
        if logs is None:
            return "`ray logs cluster` says more"
        return f"the logs in {logs / 'train'} say more"

    def _refused_by_ray(self, error: BaseException) -> BaseException | None:
        """Return what to raise for an argument that Ray refuses before anything starts."""
        if self.state.workers or not self.trains_elsewhere():
            return None
        if not isinstance(error, (TypeError, ValueError)) or not _was_raised_in_ray(error):
            return None
        fix = known_fix(str(error)) or "change the argument that this line names"
        return RunFailed(f"start the run {self.state.name!r}", f"Ray refuses it: {error}", fix)

    def hang_up(self) -> None:
        super().hang_up()
        reported = {name for checkpoint in self.state.checkpoints for name in checkpoint.metrics}
        ranked = callbacks.unranked(self._trainer.run_config.checkpoint_config, reported)
        self.state.note = "; ".join(filter(None, (self._went_on(), ranked)))

    # -- during a run ---------------------------------------------------------------------------------

    @property
    def _run_name(self) -> str:
        """The name of the run, also where the reader gave none."""
        name = self._trainer.run_config.name
        if not name or _NAME_BY_RAY.fullmatch(name):
            return self.run_id
        return name

    @contextlib.contextmanager
    def _wired(self, trainer: Any) -> Iterator[None]:
        """Let the trainer report here in the block. A `RunConfig` may serve other trainers afterwards."""
        run = trainer.run_config
        reports_to = run.callbacks
        validation = trainer.validation_config
        if self.trains_elsewhere():
            reports_to = [*(reports_to or []), callbacks.ReportCallback(self.tracker)]
            if validation is not None:
                reporting = callbacks.ReportingValidator(validation.fn, self.tracker)
                validation = ray.train.ValidationConfig(
                    reporting, validation.task_config, validation.ray_remote_kwargs
                )
        loop = TrackedFunction(trainer.train_loop_per_worker, self.tracker)
        try:
            with (
                attributes_set(run, name=self._run_name, callbacks=reports_to),
                attributes_set(trainer, train_loop_per_worker=loop, validation_config=validation),
            ):
                vars(run).pop("storage_context", None)  # Ray keeps what it made of the name
                yield
        finally:
            vars(run).pop("storage_context", None)
            vars(trainer).pop("_register_sigint_handler", None)

    def _look(self, over: threading.Event) -> None:
        while not over.wait(0.5):
            self._follow_checkpoints()
            self._note_waits()

    def _note_waits(self) -> None:
        """When nothing is heard, say which CPUs the workers wait for: Ray says it in a log."""
        latest = max(self.state.heard_at, self.state.started_at)
        is_quiet = self.state.now() - latest >= capacity.QUIET_FOR
        with contextlib.suppress(Exception):  # the cluster is gone, and the run's own error says that better
            waits = capacity.waits_for() if is_quiet and self.trains_elsewhere() else ""
            if waits != self.state.waits:
                with self.update() as run:
                    run.waits = waits

    def _look_for_hangs(self, over: threading.Event) -> None:
        """When nothing is heard, say what each rank waits for."""
        hang_after = self.settings.hang_after
        pause = 1.0
        while not over.wait(pause):
            pause = 1.0
            heard_at = self.state.heard_at
            if not hang_after or not self.state.first_step_at:
                continue
            if self.state.now() - heard_at < hang_after:
                continue
            pause = 5.0
            lines = hang.explain(list(self.state.workers.values()))
            with self.update() as run:
                if run.heard_at == heard_at:
                    run.hang = lines

    def _note_earlier_checkpoints(self) -> None:
        """Take in the checkpoints of an earlier run of this name, with which this one goes on."""
        config = self._trainer.run_config
        earlier = callbacks.listed(config) if self.trains_elsewhere() else None
        self.state.goes_on_after([(number, checkpoint.metrics) for number, checkpoint in earlier or ()])
        self._unseen: set[str] = set()  # checkpoints of the latest list of which no event had come
        self._statuses: dict[str, Any] = {}  # and metrics, of checkpoints by path, as the panel has them
        statuses = callbacks.statuses(earlier or ())
        self.state.earlier_checkpoints = set(statuses)
        for path, status in statuses.items():
            if status[0] != "pending":  # what is still undecided is news
                self._statuses[path] = status

    def _follow_checkpoints(self, *, last: bool = False) -> None:
        """Take in what has changed in Ray's list of the run's checkpoints.

        Ray has no callback for a validation that is over or timed out, nor for a checkpoint that it deletes.
        A checkpoint is new by its event, which may come a little after the list; one whose worker was killed
        before it could send that is new by the second list, or the last one.
        """
        config = self._trainer.run_config
        deletes = config.checkpoint_config.num_to_keep is not None
        validates = self._trainer.validation_config is not None
        shown = list(self.state.checkpoints)  # before the list is read
        if not self.trains_elsewhere() or not (deletes or validates):
            return
        numbered = callbacks.listed(config)
        if numbered is None:
            return
        listed = callbacks.statuses(numbered)
        unseen = listed.keys() - {checkpoint.path for checkpoint in shown}
        news: dict[str, Any] = {}
        for path, status in listed.items():
            awaits_event = path in unseen and path not in self._unseen
            if self._statuses.get(path) != status and (last or not awaits_event):
                news[path] = status
        for checkpoint in shown:
            if deletes and not checkpoint.deleted and checkpoint.path not in listed:
                news[checkpoint.path] = ("deleted", {})
        self._unseen = unseen
        self._statuses |= news
        for path, (status, metrics) in news.items():
            self.receive(Checkpoint(path, status, metrics, run=self.run_id))

    def _went_on(self) -> str:
        """Return where the run went on, if one with its name had begun before."""
        run = self.state
        if not run.earlier:
            return ""
        of = f" of {run.epochs}" if run.epochs else ""
        has_trained = run.history or run.first_step_at or run.failures
        if self._ended is None and not has_trained:
            text = f"went on from epoch {run.earlier}{of}: nothing trained"
            return f"{text}; a new run needs a new name in RunConfig(name=...)"
        done = run.history[0]["epoch"] if run.history else 0
        return f"went on after epoch {done}{of}" if done else ""


def _settings_of(config: Any) -> Mapping[str, Any]:
    """Return the settings by name: Ray passes on a dict, a dataclass, a Namespace or any other object."""
    if isinstance(config, Mapping):
        return config
    if dataclasses.is_dataclass(config):
        return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return dict(getattr(config, "__dict__", {}))


def check_closure_size(function: Callable) -> None:
    """Refuse a validation function that takes a data set along: it is pickled with all that it uses."""
    sent = len(cloudpickle.dumps(function))
    if sent > _LARGEST:
        name = getattr(function, "__name__", type(function).__name__)
        raise BadInput(
            f"send the validation function {name}",
            f"with the variables that it uses it has {size(sent)}, and it is sent for every checkpoint; "
            f"the limit is {size(_LARGEST)}",
            "load data inside the function (from the store, or datasets.load), or pass its path",
        )


def _check_room(trainer: Any) -> None:
    """Refuse workers and validations for which the cluster has no room."""
    scaling = trainer.scaling_config
    validation = trainer.validation_config
    lab = cluster.current()
    if validation is not None:
        check_closure_size(validation.fn)
    if lab is None:
        return
    labels = scaling.label_selector or []
    capacity.check_worker_capacity(
        lab.nodes,
        workers=scaling.min_workers,
        each={
            "CPU": scaling.num_cpus_per_worker,
            "GPU": scaling.num_gpus_per_worker,
            **scaling.additional_resources_per_worker,
        },
        strategy=scaling.placement_strategy,
        labels=[labels] if isinstance(labels, dict) else labels,
        data=bool(trainer.datasets),
        ours=lab.is_ours,
    )
    if validation is not None:
        options = dict(validation.ray_remote_kwargs)
        capacity.check_validation_fits(lab.nodes, options, ours=lab.is_ours)


def _was_raised_in_ray(error: BaseException) -> bool:
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(modules) and modules[-1].startswith("ray.")


def _free_placement_groups(before: set[str]) -> None:
    """Remove the placement groups that a failed controller left behind, with the CPUs they hold.

    Ray's own cleaner knows only those of workers that have started. Until this notebook's job ends, the next
    run would wait forever.

    Args:
        before: ids of those that were there before the run.
    """
    context = ray.get_runtime_context()
    filters = [
        ("creator_job_id", "=", context.get_job_id()),
        ("state", "!=", "REMOVED"),
    ]
    # It asks the dashboard. Where that does not answer, the run's own error is what the reader must see.
    with contextlib.suppress(Exception):
        # Without an address it would ask the cluster that the last ray.init() started, dead or not.
        groups = state.list_placement_groups(context.gcs_address, filters=filters, timeout=10)
        for group in groups:
            if group.placement_group_id not in before:
                group_id = ray.PlacementGroupID.from_hex(group.placement_group_id)
                ray.util.remove_placement_group(PlacementGroup(group_id))
