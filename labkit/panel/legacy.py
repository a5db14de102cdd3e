"""The panel machine as it was, for `labkit.tune` until it stands on `labkit.panel.base.LivePanel`."""

import contextlib
import operator
import reprlib
import secrets
import signal
import threading
import time
import warnings
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from labkit.display import formatting, tracebacks
from labkit.errors import LabError, RunError, RunStopped
from labkit.panel.legacy_reporters import NullReporter, Reporter
from labkit.runs.record import RunRecord, folder_of, this_process
from labkit.settings import Settings

_DRAWS_PER_SECOND = 5


class Panel:
    """Follows one run: shows it while it lasts, keeps its record when it is over.

    Use it as a context manager around the run, and its `steps`, `log` and `report` inside the loop.
    Pickled into another process (with the training function), it becomes a `RemoteTracker` there
    that reports back to this one.

    Args:
        name: of the run; also the folder of its record below ``HOME/runs``.
        engine: what runs it, in the record's words ("one process", "Ray Train", …).
        world_size: number of workers.
        epochs, dataset, rows: shown and recorded, if known.
        settings: default: from the environment.
        reporter: default: as ``settings.panel`` says.

    Raises:
        RunError: an argument is of a wrong type, or the panel is opened twice at the same time.
    """

    def __init__(
        self,
        name: str,
        *,
        engine: str = "one process",
        world_size: int = 1,
        epochs: int | None = None,
        dataset: str | None = None,
        rows: int | None = None,
        settings: Settings | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        self._about = {
            "engine": engine, "world_size": world_size, "epochs": epochs, "dataset": dataset, "rows": rows,
        }  # fmt: skip
        _check_arguments(name, self._about, settings, reporter)
        self.settings = settings or Settings.from_env()
        self._given_reporter = reporter
        self._lock = threading.RLock()
        self._stop_drawing = threading.Event()
        self._new(name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.state.name!r}, {self.state.status})"

    # -- the run ------------------------------------------------------------------------------------

    def receive(self, event: dict[str, Any]) -> None:
        """Take in one event of this run; those of others (a worker that outlived its own) are passed over."""
        # It happened when it arrived, not when it was drawn; and the clocks of other machines differ.
        event = {**event, "at": time.time()}
        with self._lock:
            if event.get("run") != self.run_id:
                return
            self.state.apply(event)

    def __enter__(self) -> "Panel":
        if self.state.status == "running":
            raise RunError(
                f"follow a run with the panel {self.state.name!r}",
                "it already follows one",
                "wait for that run, or make a second Panel",
            )
        if self.state.status != "ready":
            self._new(self.state.name)
        self._sigint = signal.getsignal(signal.SIGINT) if _in_main_thread() else None
        self._reporter: Reporter = NullReporter()
        self._stop_drawing = threading.Event()
        self._drawer = threading.Thread(target=self._draw, name="labkit-panel", daemon=True)
        try:
            with self._lock:
                self.state.start(self._first_phase())
                # If this kernel dies, the record still tells that there was a run.
                # Where none can be written, the reader is told at the end.
                with contextlib.suppress(LabError, ValueError):
                    _keep(self._record(), home=self.settings.home)
                self._open_reporter()
            self._drawer.start()
        except BaseException as error:  # an interrupt: Python does not call __exit__ after this
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sigint is not None and _in_main_thread():
            # Ray's fit() leaves its own handler behind, which calls a controller that is gone by now.
            signal.signal(signal.SIGINT, self._sigint)
        stopped = isinstance(error, (KeyboardInterrupt, SystemExit))
        if error is not None and not stopped:
            self._keep_failure(error)
        self._finish("finished" if error is None else "stopped" if stopped else "failed")
        if stopped:
            raise RunStopped(
                self.state.name,
                f"stopped by you after {formatting.clock(self.state.elapsed())}",
                self._after_stop(),
            ) from None
        if error is not None:
            self._raise_calmly(error)

    def _keep_failure(self, error: BaseException) -> None:
        """The error that ended the run; often it says more than what a worker sent when it failed."""
        text = self._short(error)
        with self._lock:
            if self.state.failures:
                known = self.state.failures[-1]
                known.text = max(known.text, text, key=lambda t: len(t.splitlines()))
            else:
                self.receive({"kind": "failure", "run": self.run_id, "text": text})

    def _finish(self, status: str) -> None:
        self._stop_drawing.set()
        try:
            if self._drawer.is_alive():
                self._drawer.join(timeout=5)
        finally:  # also where the reader interrupts a second time
            with self._lock:
                self.state.end(status)
        record = self._keep_record()
        try:
            with self._lock:
                self._reporter.close(self.state, self._files(), record)
        except Exception as error:
            warnings.warn(f"the summary of {self.state.name!r} could not be drawn: {error!r}", stacklevel=3)

    def files(self) -> list[tuple[str, str]]:
        """What the summary lists, as (what, path)."""
        return []

    # -- what an engine's panel overrides -----------------------------------------------------------

    def _first_phase(self) -> str:
        return "preparing"

    def _after_stop(self) -> str:
        """What the reader may do who has stopped the run."""
        return "The CPUs are free again"

    def _short(self, error: BaseException) -> str:
        """A traceback that fits the panel: the frames of the reader's own code and the error."""
        return tracebacks.shorten(error)

    def _new_state(self, name: str) -> Any:
        raise NotImplementedError

    def _reporter_of_setting(self) -> Reporter:
        raise NotImplementedError

    def _record(self) -> RunRecord:
        raise NotImplementedError

    def _pause(self, seconds: float) -> float:
        """Seconds until the next drawing, if the last one took `seconds`."""
        return 1 / _DRAWS_PER_SECOND

    def _raise_calmly(self, error: BaseException) -> None:
        """Let the error through as it is: in one process the cell's traceback is the reader's own."""

    # -- inside -------------------------------------------------------------------------------------

    def _files(self) -> list[tuple[str, str]]:
        # What an engine's panel finds out about its files must not cost the reader the panel.
        with contextlib.suppress(Exception):
            return self.files()
        return []

    def _new(self, name: str) -> None:
        self.state = self._new_state(name)
        started = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        self.run_id = f"{started}-{secrets.token_hex(3)}"

    def _open_reporter(self) -> None:
        self._reporter = self._given_reporter or self._reporter_of_setting()
        try:
            self._reporter.open(self.state)
        except Exception as error:
            # A training is worth more than its picture.
            warnings.warn(f"the panel of {self.state.name!r} could not be drawn: {error!r}", stacklevel=4)
            self._reporter = NullReporter()

    def _draw(self) -> None:
        seen, last, pause, warned = -1, 0.0, self._pause(0.0), False
        while not self._stop_drawing.wait(pause):
            # Once a second even if nothing came: the clock must move, or people think it hangs.
            if self.state.version == seen and time.monotonic() - last < 1:
                continue
            with self._lock:
                seen, last, busy = self.state.version, time.monotonic(), time.thread_time()
                try:
                    self._reporter.draw(self.state)
                except Exception as error:  # it must not end the training
                    if not warned:
                        warnings.warn(
                            f"the panel of {self.state.name!r} could not be drawn: {error!r}", stacklevel=1
                        )
                    warned = True
            pause = self._pause(time.thread_time() - busy)

    def _keep_record(self) -> str | None:
        try:
            return str(_keep(self._record(), home=self.settings.home))
        except (LabError, ValueError) as error:
            # A full disk must not turn a training that ended well into one that failed.
            warnings.warn(f"no record of {self.state.name!r} was kept: {error}", stacklevel=3)
            return None


def _keep(record: RunRecord, *, home: Path) -> Path:
    if record.state == "running":
        record = replace(record, process=this_process())
    return record.write(folder_of(home, record.name, record.run_id))


def _check_arguments(name: Any, about: dict[str, Any], settings: Any, reporter: Any) -> None:
    """Refuse a wrong type at once: most would fail only when the run is over and its record is written."""
    texts = {"name": name, "engine": about["engine"], "dataset": about["dataset"]}
    counts = {key: about[key] for key in ("world_size", "epochs", "rows")}
    optional = {key for key in ("dataset", "epochs", "rows") if about[key] is None}
    wrong = {key: "a text" for key, value in texts.items() if not isinstance(value, str)}
    wrong |= {key: "a whole number from 0 on" for key, value in counts.items() if not _is_count(value)}
    if not (settings is None or isinstance(settings, Settings)):
        wrong["settings"] = "labkit.Settings"
    if not (reporter is None or all(hasattr(reporter, method) for method in ("open", "draw", "close"))):
        wrong["reporter"] = "a reporter"
    given = {**texts, **counts, "settings": settings, "reporter": reporter}
    for key in wrong.keys() - optional:
        raise RunError(
            f"make a panel with {key}={reprlib.repr(given[key])}",
            f"{key} is of type {type(given[key]).__name__}, and {wrong[key]} is wanted",
            'for example Panel("00-baseline", dataset="digits", rows=1437, epochs=3)',
        )


def _is_count(value: Any) -> bool:
    try:
        return operator.index(value) >= 0 and not isinstance(value, bool)
    except TypeError:
        return False


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
