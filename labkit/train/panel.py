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
from labkit.storage import check_run_name, hint_for
from labkit.train import callbacks, hang
from labkit.worker.events import Checkpoint, Event, Failure, Validation
from labkit.worker.mailbox import Mailbox
from labkit.worker.remote import TrackedFunction

# A run's length, by its names in a configuration; the first counts most.
_LENGTHS = {"epochs": ("epochs", "num_epochs", "max_epochs"), "steps": ("steps", "max_steps")}
_NAME_BY_RAY = re.compile(r"ray_train_run-\d{4}(-\d\d){2}_\d\d(-\d\d){2}")
_LARGEST = 1_000_000  # bytes of a pickled function; a small model fits, a data set does not
_OF_RAY = (ray.train.TrainingFailedError, ray.exceptions.RayError)  # RayError: the end of the controller


class _EndedValidation(NamedTuple):
    """A validation whose process is gone."""

    text: str
    pid: int | None


class TrainPanel(Panel):
    """The panel of a Ray Train run; see `labkit.panel.panel.Panel` for its arguments.

    The length of the run, for its bar, is one of the names in `_LENGTHS` in the trainer's
    ``train_loop_config``, or the argument `epochs` or `steps` here.
    """

    def __init__(self, name: str, **about: Any) -> None:
        self._trainer: Any = None
        self._interrupts: callbacks.Interrupts | None = None
        self._validators: dict[str, int | None] = {}  # by path of a checkpoint: the process that validates it
        super().__init__(name, **{"engine": "Ray Train", **about})

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
        scaling: Any = getattr(trainer, "scaling_config", None)
        run: Any = getattr(trainer, "run_config", None)
        if not isinstance(run, ray.train.RunConfig) or isinstance(trainer, type):
            raise BadInput(
                f"follow a run with the panel {self.state.name!r}",
                f"{reprlib.repr(trainer)} is not a Ray Train trainer",
                "panel.watch(TorchTrainer(...)), or another trainer of ray.train",
            )
        workers = scaling.max_workers  # of an elastic training; without any, the loop runs in this process
        if workers:
            if run.name:
                check_run_name(run.name)
            check_storage_path(
                run.storage_path,
                filesystem=run.storage_filesystem,
                attempt=f"follow a run with the panel {self.state.name!r}",
            )
            _check_room(trainer)
        if warning := callbacks.wrong_order(run.checkpoint_config):
            warnings.warn(warning, stacklevel=3)
        self._trainer, self.loop = trainer, trainer.train_loop_per_worker
        self.first_phase = "starting" if workers else "preparing"
        if self.state.status == "ready":
            self.state = self.new_state()
        return self

    def fit(self, trainer: Any) -> ray.train.Result:
        """``trainer.fit()`` with this panel; see `watch`."""
        with self.watch(trainer):
            return trainer.fit()

    def explain(self) -> None:
        """Look what each rank does now; the panel shows it."""
        lines = hang.explain(list(self.state.workers.values())) or ["no worker was heard of yet"]
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
        if (trainer := self._trainer) is None:
            return TrainingRun(self._name, **self._about)
        scaling, settings = trainer.scaling_config, _settings_of(trainer.train_loop_config or {})
        recorded = ("num_workers", "use_gpu", "resources_per_worker")
        about = {**self._about, "world_size": max(scaling.max_workers, 1), "engine": "one process"}
        about |= {"config": settings, "scaling": {name: getattr(scaling, name) for name in recorded}}
        for length, names in _LENGTHS.items():
            if given := [settings[name] for name in names if settings.get(name) is not None]:
                about[length] = given[0]
        if scaling.max_workers:
            # As text: a path may be a URI ("s3://bucket/runs"), whose two slashes a Path would make one.
            storage = str(trainer.run_config.storage_path).rstrip("/")
            about |= {"engine": "Ray Train", "storage_path": f"{storage}/{self._run_name}"}
        return TrainingRun(self._name, **about)

    def files(self) -> list[tuple[str, str]]:
        path, lab = self.state.recorded.get("storage_path"), cluster.peek()
        listed = [("checkpoints", path)] if path else []
        if lab is not None and (logs := lab.log_dir) is not None:
            listed += [("training workers' logs", str(logs / "train")), ("Ray's logs", str(logs))]
        return listed

    def channel(self, on_event: Callable[[Event], Any]) -> Any:
        if not ray.is_initialized():  # pickled for other processes than Ray's
            return super().channel(on_event)
        lab = cluster.of_this_connection()
        # All of its nodes are on this machine, and a socket costs less than an actor.
        if lab is not None and lab.is_ours:
            return super().channel(on_event)
        return Mailbox(on_event, f"labkit-panel-{self.run_id}")

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        elsewhere, config, over = self.trains_elsewhere(), self._trainer.run_config, threading.Event()
        if elsewhere:
            if not ray.is_initialized():
                ray.init()  # as fit() would
            self.listen()  # here, and not in the middle of Ray's pickling
        # A training without workers needs no cluster.
        groups = set(ray.util.placement_group_table()) if ray.is_initialized() else set()
        with ends.quiet_deaths(), self._wired(self._trainer):
            earlier = (callbacks.statuses(config) if elsewhere else None) or {}
            self.state.goes_on_after(callbacks.earlier_reports(config) if earlier else ())
            # What is still undecided is news.
            self._known = {path: now for path, now in earlier.items() if now[0] != "pending"}
            self._unseen = set[str]()  # checkpoints of the list before, of which no event had come
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
        interrupted = error is not None and self._interrupts is not None and self._interrupts.came
        return KeyboardInterrupt() if interrupted else error

    def receive(self, event: Event) -> None:
        """Take in an event, with what only this process knows: how a rank or a validation ended."""
        if isinstance(event, Failure) and event.died:
            event = dataclasses.replace(event, text=f"{event.text}: {ends.how_it_ended(event.died)}")
        elif isinstance(event, Validation) and event.seconds is None:
            self._validators[event.path] = event.process
        super().receive(event)

    def failure_text(self, error: BaseException) -> str:
        if isinstance(error, ray.train.WorkerGroupError) and error.worker_failures:
            failure = callbacks.first_failure(error.worker_failures)
            if failure.died:
                return f"{failure.text}: {ends.how_it_ended(failure.died)}"
            if failure.text.startswith(f"rank {failure.rank} "):
                return failure.text
        if (ended := self._ended_validation(error)) is not None:
            return ended.text
        if _is_of_controller(error) and ends.is_an_end(str(error)):
            of_run = isinstance(error, ray.train.TrainingFailedError)  # that the controller has reported
            who = "a process of the run" if of_run else "the controller of the run"
            return f"{who} is gone: {ends.how_it_ended(str(error))}"
        if isinstance(error, ray.train.WorkerGroupError) and error.worker_failures:
            return tracebacks.shorten_text(callbacks.text_of_cause(error))
        if isinstance(error, _OF_RAY):  # the workers' tracebacks are in its message alone
            return tracebacks.shorten_text(str(error))
        return super().failure_text(error)

    def keep_failure(self, error: BaseException) -> None:
        before = len(self.state.failures)
        super().keep_failure(error)
        if len(self.state.failures) == before:
            return
        if _is_of_controller(error):
            self.state.failures[-1].rank = None
        elif isinstance(error, ray.train.WorkerGroupError) and error.worker_failures:
            self.state.failures[-1].rank = callbacks.causing_rank(error.worker_failures)

    def translate(self, error: BaseException) -> BaseException | None:
        if not isinstance(error, _OF_RAY):
            return self._refused_by_ray(error)
        failure, ended = self.state.failures[-1], self._ended_validation(error)
        of_worker = isinstance(error, ray.train.WorkerGroupError)
        who = f"rank {failure.rank}" if of_worker else "the controller of the run"
        fact = failure.message if failure.message.startswith(who) else f"{who} raised {failure.message}"
        died = _rays_message(error)
        if ended is not None or (died and not of_worker):
            fact = failure.message
        for rank in sorted(self.state.empty):
            fact += f"; rank {rank} had no rows: the shard is empty"
        fixes: list[str | None] = [self._fix(error, failure.message)]
        if ended is not None:
            more = _in_its_log(ended.pid)
            fixes = [more, "correct the validation function: it is called for this checkpoint again"]
        elif died:
            fixes = [known_fix(died), _in_its_log(ends.process_of(died))]
        if self.state.kept or died:
            again = f"fit() with the same storage and RunConfig(name={self._run_name!r})"
            again += " goes on from the last checkpoint"
            if of_worker:  # what fails in the controller, such as a validation that dies, isn't tried again
                again += "; RunConfig(failure_config=FailureConfig(max_failures=1)) does that by itself"
            fixes.append(again)
        return RunFailed(f"finish the run {self.state.name!r}", fact, ". ".join(filter(None, fixes)))

    def _fix(self, error: BaseException, message: str) -> str:
        """Return the known fix, or where to look: in the panel only if that shows a line of the reader's."""
        if fix := known_fix(str(error)) or hint_for(message):
            return fix
        if tracebacks.shows_own(str(error)):
            return "the panel above shows where"
        lab = cluster.peek()
        if lab is None or lab.log_dir is None:
            return "`ray logs cluster` says more"
        return f"the logs in {lab.log_dir / 'train'} say more"

    def _ended_validation(self, error: BaseException) -> "_EndedValidation | None":
        """Return the validation whose process is gone, which ends a run; None if another error ended it."""
        text = str(error)
        if not isinstance(error, ray.train.ControllerError) or not ends.is_an_end(text):
            return None
        for checkpoint in reversed(self.state.checkpoints):
            if checkpoint.validating and checkpoint.path in self._validators:
                pid = self._validators[checkpoint.path]
                how = ends.how_it_ended(text, pid)
                return _EndedValidation(f"the validation of {checkpoint.label} ended: {how}", pid)
        # A run has no other tasks than its validations.
        of_task = "executing this task" in text or ends.LOW_MEMORY in text
        if self._trainer.validation_config is not None and of_task:
            return _EndedValidation(f"a validation ended: {ends.how_it_ended(text)}", None)
        return None

    def _refused_by_ray(self, error: BaseException) -> BaseException | None:
        """Return what to raise for an argument that Ray refuses before anything starts."""
        frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
        of_ray = isinstance(error, (TypeError, ValueError)) and frames and frames[-1].startswith("ray.")
        if not of_ray or self.state.workers or not self.trains_elsewhere():
            return None
        fix = known_fix(str(error)) or "change the argument that this line names"
        return RunFailed(f"start the run {self.state.name!r}", f"Ray refuses it: {error}", fix)

    def hang_up(self) -> None:
        super().hang_up()
        reported = {name for one in self.state.checkpoints for name in one.metrics}
        ranked = callbacks.unranked(self._trainer.run_config.checkpoint_config, reported)
        self.state.note = "; ".join(filter(None, (self._went_on(), ranked)))

    # -- during a run ---------------------------------------------------------------------------------

    @property
    def _run_name(self) -> str:
        """The name of the run, also where the reader gave none."""
        name = self._trainer.run_config.name
        return self.run_id if not name or _NAME_BY_RAY.fullmatch(name) else name

    @contextlib.contextmanager
    def _wired(self, trainer: Any) -> Iterator[None]:
        """In the block the trainer reports here. A `RunConfig` may serve other trainers afterwards."""
        run, validation = trainer.run_config, trainer.validation_config
        name, before, loop = run.name, run.callbacks, trainer.train_loop_per_worker
        try:  # an interrupt between two of these lines is undone as well
            run.name = self._run_name
            vars(run).pop("storage_context", None)  # Ray keeps what it made of the name
            if self.trains_elsewhere():
                run.callbacks = [*(before or []), callbacks.ReportCallback(self.tracker)]
                if validation is not None:
                    reporting = callbacks.ReportingValidator(validation.fn, self.tracker)
                    trainer.validation_config = ray.train.ValidationConfig(
                        reporting, validation.task_config, validation.ray_remote_kwargs
                    )
            trainer.train_loop_per_worker = TrackedFunction(loop, self.tracker)
            yield
        finally:
            trainer.train_loop_per_worker, run.callbacks, run.name = loop, before, name
            vars(run).pop("storage_context", None)
            vars(trainer).pop("_register_sigint_handler", None)
            trainer.validation_config = validation

    def _look(self, over: threading.Event) -> None:
        while not over.wait(0.5):
            self._follow_checkpoints()
            self._note_waits()

    def _note_waits(self) -> None:
        """When nothing is heard, say which CPUs the workers wait for: Ray says it in a log."""
        quiet = self.state.now() - max(self.state.heard_at, self.state.started_at) >= capacity.QUIET_FOR
        with contextlib.suppress(Exception):  # the cluster is gone, and the run's own error says that better
            waits = capacity.waits_for() if quiet and self.trains_elsewhere() else ""
            if waits != self.state.waits:
                with self.update() as run:
                    run.waits = waits

    def _look_for_hangs(self, over: threading.Event) -> None:
        """When nothing is heard, say what each rank waits for."""
        after, pause = self.settings.hang_after, 1.0
        while not over.wait(pause):
            heard, pause = self.state.heard_at, 1.0
            if after and self.state.first_step_at and self.state.now() - heard >= after:
                lines, pause = hang.explain(list(self.state.workers.values())), 5.0
                with self.update() as run:
                    if run.heard_at == heard:
                        run.hang = lines

    def _follow_checkpoints(self, *, last: bool = False) -> None:
        """Take in what has changed in Ray's list of the run's checkpoints.

        Ray has no callback for a validation that is over or timed out, nor for a checkpoint that it deletes.
        A checkpoint is new by its event, which may come a little after the list; one whose worker was killed
        before it could send that is new by the second list, or the last one.
        """
        config = self._trainer.run_config
        deletes = config.checkpoint_config.num_to_keep is not None
        seen = list(self.state.checkpoints)  # before the list is read
        if not (self.trains_elsewhere() and (deletes or self._trainer.validation_config is not None)):
            return
        if (statuses := callbacks.statuses(config)) is None:
            return
        unseen, before = statuses.keys() - {one.path for one in seen}, self._unseen
        news = {path: now for path, now in statuses.items() if self._known.get(path) != now}
        news = {path: now for path, now in news.items() if last or path not in unseen or path in before}
        gone = (one.path for one in seen if deletes and not one.deleted and one.path not in statuses)
        news |= dict.fromkeys(gone, ("deleted", {}))
        self._unseen = unseen
        self._known |= news
        for path, (status, metrics) in news.items():
            self.receive(Checkpoint(path, status, metrics, run=self.run_id))

    def _went_on(self) -> str:
        """Where the run went on, if one with its name had begun before."""
        run = self.state
        of = f" of {run.epochs}" if run.epochs else ""
        if run.earlier and self._ended is None and not (run.history or run.first_step_at or run.failures):
            told = f"went on from epoch {run.earlier}{of}: nothing trained"
            return f"{told}; a new run needs a new name in RunConfig(name=...)"
        done = run.history[0]["epoch"] if run.earlier and run.history else 0
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
        raise BadInput(
            f"send the validation function {getattr(function, '__name__', type(function).__name__)}",
            f"with the variables that it uses it has {size(sent)}, and it is sent for every checkpoint; "
            f"the limit is {size(_LARGEST)}",
            "load data inside the function (from the store, or datasets.load), or pass its path",
        )


def _check_room(trainer: Any) -> None:
    """Refuse workers and validations for which the cluster has no room."""
    scaling, validation, lab = trainer.scaling_config, trainer.validation_config, cluster.current()
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
        capacity.check_task_fits(lab.nodes, options, attempt="run validations", ours=lab.is_ours)


def _is_of_controller(error: BaseException) -> bool:
    return isinstance(error, _OF_RAY) and not isinstance(error, ray.train.WorkerGroupError)


def _rays_message(error: BaseException) -> str:
    """Return Ray's message on the process that is gone, of a rank or the controller; "" if none is."""
    if isinstance(error, ray.train.WorkerGroupError) and error.worker_failures:
        return callbacks.first_failure(error.worker_failures).died
    return str(error) if ends.is_an_end(str(error)) else ""


def _in_its_log(pid: int | None) -> str:
    log = ends.log_of(pid)
    return f"the last lines of {log} say more" if log else ""


def _free_placement_groups(before: set[str]) -> None:
    """Remove the placement groups that a failed controller left behind, with the CPUs they hold.

    Ray's own cleaner knows only those of workers that have started. Until this notebook's job ends, the next
    run would wait forever.

    Args:
        before: ids of those that were there before the run.
    """
    context = ray.get_runtime_context()
    filters = [("creator_job_id", "=", context.get_job_id()), ("state", "!=", "REMOVED")]
    # It asks the dashboard. Where that does not answer, the run's own error is what the reader must see.
    with contextlib.suppress(Exception):
        # Without an address it would ask the cluster that the last ray.init() started, dead or not.
        for group in state.list_placement_groups(context.gcs_address, filters=filters, timeout=10):
            if group.placement_group_id not in before:
                number = ray.PlacementGroupID.from_hex(group.placement_group_id)
                ray.util.remove_placement_group(PlacementGroup(number))
