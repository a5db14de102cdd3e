"""`LivePanel`, the base of all panels: it opens, draws while the run lasts, stops, keeps a record and closes.

What happened is in a `Run`; a reporter shows what `labkit.panel.drawing` makes of it. A thread draws, at most
five times a second and only if something happened, so a panel also moves while the cell's thread is busy.
"""

import contextlib
import inspect
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from types import FrameType
from typing import Any, ClassVar, Self

from labkit import interrupts
from labkit.display import tracebacks
from labkit.display.formatting import duration
from labkit.errors import BadInput, LabError, RunStopped
from labkit.panel.drawing import Snapshot, snapshot
from labkit.panel.reporters import NullReporter, choose
from labkit.panel.run import Run, record_of
from labkit.panel.shown import Shown
from labkit.runs.record import FILE_NAME, RunRecord, git_commit, source_of
from labkit.settings import Settings

_PAUSE = 0.2  # seconds between two drawings, at least …
_SHARE = 0.02  # … and longer where drawing would take more than this share of a core
_KEEP_EVERY = 5.0  # seconds between two records of a run that goes on
_SENDING = 10.0  # seconds that the last record has to be sent


class LivePanel:
    """Follows one run at a time in a ``with`` block. Engines' panels are subclasses.

    Args:
        name: of the run; also the folder of its record below ``HOME/runs``.
        settings: default: from the environment.
        reporter: default: as ``settings.panel`` says.
        live: functions that get the `RunRecord` every few seconds and at the end (docs/runs.md has one for
            TensorBoard), in the thread that keeps the record. One that raises ends with a warning, and the
            run goes on.

    Raises:
        BadInput: the name isn't a string, or the panel is opened twice at the same time.
    """

    exclusive = False  # whether only one panel of this class may be open in this process
    first_phase = ""  # in which a run begins, where it has phases
    view: Callable[[Any, float], Shown]  # makes what is shown of the state at a time (Unix seconds)
    loop: Any = None  # the training function, if the panel has it: its text goes into the record
    explain: Callable[[], None] | None = None  # sets the run's `explained`
    state: Run  # of the present run, or of the last one
    run_id: str  # of the same; no other run has it
    _open: ClassVar[list["LivePanel"]] = []

    def __init__(
        self,
        name: str,
        *,
        settings: Settings | None = None,
        reporter: NullReporter | None = None,
        live: Sequence[Callable[[RunRecord], Any]] = (),
    ) -> None:
        self.settings = settings or Settings.from_env()
        if not isinstance(name, str) or not name.strip():
            raise BadInput("make a panel", f"its name is {name!r}", 'Panel("00-baseline")')
        self._name = name
        self._chosen_reporter = reporter
        self._live = live
        self._listener: Any = None  # how events come from other processes
        self._lock = threading.RLock()
        self._file_lock = threading.Lock()  # one record is written at a time; never waited for under `_lock`
        self.renew()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.state.name!r}, {self.state.status})"

    def __reduce__(self) -> tuple:
        # A function that mentions the panel may be sent to another process; there it is this text.
        return str, (repr(self),)

    def __deepcopy__(self, _: Any) -> Self:
        # Within this process it is itself: a configuration with a panel in it may be copied.
        return self

    @classmethod
    def current(cls) -> Self | None:
        """Return the panel of this class that is open in this process, if there is any."""
        for panel in reversed(LivePanel._open):
            if isinstance(panel, cls):
                return panel
        return None

    # -- what an engine's panel may override ---------------------------------------------------------

    def new_state(self) -> Run:
        """Return a run that has not begun."""
        return Run(self._name)

    def surroundings(self) -> contextlib.AbstractContextManager:
        """Return a context for the engine around the run. It is left before the panel closes."""
        return contextlib.nullcontext()

    def ended_by(self, error: BaseException | None) -> BaseException | None:
        """Return what really ended the run, where the engine hides an interrupt or a failure."""
        return error

    def failure_text(self, error: BaseException) -> str:
        """Return a traceback that fits the panel: the frames of the reader's own code and the error."""
        return tracebacks.shorten(error)

    def keep_failure(self, error: BaseException) -> None:
        """Add the error that ended the run to the state, unless a worker has sent a longer traceback."""
        text = self.failure_text(error)
        if not self.state.failures or self.state.recovered:
            self.state.fail(text)
            return
        failure = self.state.failures[-1]
        if text.count("\n") > failure.text.count("\n"):
            failure.text = text

    def translate(self, error: BaseException) -> BaseException | None:
        """Return what the cell raises instead of the engine's error; None for the error itself."""
        return None

    def after_stop(self) -> str:
        """Return what the reader who has stopped the run may do next."""
        return "The CPUs are free again"

    def files(self) -> list[tuple[str, str]]:
        """Return what the summary lists, as (title, path)."""
        return []

    def hang_up(self) -> None:
        """Wait for what other processes have sent, and stop listening to them."""
        listener = self._listener
        self._listener = None
        if listener is not None:
            listener.close()

    # -- what an engine's panel calls ----------------------------------------------------------------

    @contextlib.contextmanager
    def update(self) -> Iterator[Any]:
        """Change the state: no other thread reads or changes it meanwhile."""
        with self._lock:
            yield self.state
            self.state.version += 1

    def renew(self) -> None:
        """Begin with a fresh state and run id."""
        self.run_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        self.state = self.new_state()

    # -- the run -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        in_the_way = type(self).current() if self.exclusive else None
        if in_the_way is None and self.state.status == "running":
            in_the_way = self
        if in_the_way is not None:
            raise BadInput(
                f"follow a run with the panel {self.state.name!r}",
                f"{in_the_way.state.name!r} is open already",
                "wait for its run, or make a second panel",
            )
        if self.state.over:
            self.renew()
        with interrupts.stoppable(f"the start of {self.state.name}", left="Nothing has been started"):
            loop = self.loop if source_of(self.loop) else _caller()
            self._origin = {"code": source_of(loop), "commit": git_commit()}
        self._following = self._follow()
        self._following.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._following.__exit__(*error)

    @contextlib.contextmanager
    def _follow(self) -> Iterator[None]:
        """Follow one run from its start to its end. What is raised meanwhile, or in the block, ends it."""
        error: BaseException | None = None
        self._ended: BaseException | None = None
        self._over = threading.Event()
        self._written = threading.Event()
        LivePanel._open.append(self)
        try:
            with interrupts.handler_kept(), contextlib.ExitStack() as around:
                with interrupts.held():
                    self._begin()
                    around.enter_context(self.surroundings())
                yield
        except BaseException as raised:
            error = raised
            if self.state.status == "ready":  # it didn't begin: there is nothing to end and nothing to record
                LivePanel._open.remove(self)
                raise
        stopped_late = self._finish(error)
        ended = self._ended
        if isinstance(ended, KeyboardInterrupt):
            fact = f"stopped by you after {duration(self.state.elapsed())}"
            raise RunStopped(self.state.name, fact, self.after_stop()) from None
        if ended is not None:
            translated = self.translate(ended)
            if translated is not None:
                raise translated from ended
            raise ended
        if stopped_late:
            raise RunStopped(self.state.name, "stopped by you when the run was over", "Its record is kept")

    def _finish(self, error: BaseException | None) -> bool:
        """Conclude the run, and wait until its record is sent; return whether the reader interrupted that."""
        try:
            with interrupts.held():
                self._conclude(error)
            if self._sender.is_alive():
                self._sender.join(_SENDING)
            if self._sender.is_alive():
                warnings.warn(f"the last of {self._name!r} is still being sent", stacklevel=5)
        except KeyboardInterrupt:
            return True
        return False

    def _begin(self) -> None:
        self._drawer = threading.Thread(target=self._draw, name="labkit-panel", daemon=True)
        self._keeper = threading.Thread(target=self._keep_records, name="labkit-record", daemon=True)
        self._sender = threading.Thread(target=self._send_records, name="labkit-live", daemon=True)
        self._reporter = self._chosen_reporter or choose(self.settings.panel)
        self._reporter.explain = self.explain
        self._draws_well = True
        with self._lock:
            self.state.start(self.first_phase)
            self._show(self._reporter.open)
        self._keep()
        self._drawer.start()
        self._keeper.start()
        self._sender.start()

    def _conclude(self, error: BaseException | None) -> None:
        """Find out what ended the run, keep its record and draw what stays; `error` has left the block."""
        status = "failed"
        try:
            self._ended = self.ended_by(error)
            status = _status_of(self._ended)
        finally:
            self._over.set()
            LivePanel._open.remove(self)
            try:
                self.hang_up()
            finally:  # also where the reader interrupts a second time
                self._end(status)

    def _end(self, status: str) -> None:
        with self._lock:
            try:
                # All that the workers have sent is there by now: it says more than the engine's error.
                if status == "failed" and self._ended is not None:
                    self.keep_failure(self._ended)
            finally:
                self.state.end(status)
        files = []
        error = self._keep()
        if error is None:
            files.append(("run record", f"{self._record.folder}/{FILE_NAME}"))
        else:
            warnings.warn(f"no record of {self.state.name!r} was kept: {error}", stacklevel=6)
        self._written.set()
        with self._lock:
            self._show(self._reporter.close, files)
        for thread in (self._drawer, self._keeper):
            if thread.is_alive():
                thread.join(timeout=5)

    # -- the record ----------------------------------------------------------------------------------

    def _keep(self) -> Exception | None:
        """Write the record; return why that failed: a full disk must not end a run."""
        with self._file_lock:
            with self._lock:
                self._record = record_of(self.state, self.run_id, self.settings.home, **self._origin)
            try:
                self._record.write(self._record.folder)
            except (LabError, ValueError) as error:
                return error
        return None

    def _keep_records(self) -> None:
        """Write the record every few seconds: if this kernel dies, it shows how far the run came."""
        while not self._written.wait(_KEEP_EVERY):
            self._keep()

    def _send_records(self) -> None:
        """Give the record to `live` every few seconds, and the last one, too. It may hang there."""
        receivers = list(self._live)
        is_last = False
        while receivers and not is_last:
            is_last = self._written.wait(_KEEP_EVERY)
            for send in list(receivers):
                try:
                    send(self._record)
                except Exception as error:
                    receivers.remove(send)
                    warnings.warn(f"{send!r} gets no more of {self._name!r}: {error}", stacklevel=2)

    # -- drawing -------------------------------------------------------------------------------------

    def _draw(self) -> None:
        drawn_version = -1
        drawn_at = 0.0
        pause = _PAUSE
        while not self._over.wait(pause):
            # Once a second even if nothing came: a clock that stops looks like a hang.
            is_recent = time.monotonic() - drawn_at < 1
            if self.state.version == drawn_version and is_recent:
                continue
            began = time.thread_time()
            with self._lock:
                drawn_version = self.state.version
                drawn_at = time.monotonic()
                if not self._over.is_set():
                    self._show(self._reporter.draw)
            busy = time.thread_time() - began
            pause = max(_PAUSE, busy / _SHARE)

    def _show(self, show: Callable[[Snapshot], None], files: Sequence[tuple[str, str]] = ()) -> None:
        """Give the reporter a snapshot. An error of drawing must not end the training: it warns, once."""
        try:
            if self.state.over:
                files = [*self.files(), *files]
            now = self.state.ended_at or self.state.now()
            shown = self.view(self.state, now)
            show(snapshot(self.state, shown, now, files))
        except Exception as error:
            if self._draws_well:
                warnings.warn(f"the panel of {self.state.name!r} could not be drawn: {error!r}", stacklevel=4)
            self._draws_well = False


def _status_of(error: BaseException | None) -> str:
    if error is None:
        return "finished"
    if isinstance(error, KeyboardInterrupt):
        return "stopped"
    # `sys.exit(3)` ends the script with that status; without one it isn't a failure.
    if isinstance(error, SystemExit) and not error.code:
        return "stopped"
    return "failed"


def _caller() -> FrameType | None:
    """Return the frame that opens the panel: a cell, a function or a script of the reader."""
    frame = inspect.currentframe()
    while frame is not None:
        package, _, _ = frame.f_globals.get("__name__", "").partition(".")
        if package != "labkit":
            break
        frame = frame.f_back
    return frame
