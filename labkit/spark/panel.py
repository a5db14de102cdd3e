"""The panel of TorchDistributor.

    with SparkPanel("07-local", epochs=3).watch(distributor):
        model = distributor.run(train, 3)       # of a dict that `train` returns, the numbers are reported

TorchDistributor has no callbacks. The panel is pickled with the function, becomes a tracker in each rank, and
follows the function there. A training file is not followed.

What torchrun and the ranks print goes to a log file, and the training's own lines to the panel. The wrapper
around torchrun drops its exit status, so only this text shows that a training file failed. It also has all of
the errors that Spark wraps into each other: a rank's, torchrun's, a task's, a job's.
"""

import contextlib
import difflib
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from labkit.display import tracebacks
from labkit.errors import LabError, RunFailed
from labkit.panel.panel import Panel
from labkit.settings import variables_set
from labkit.spark.sessions import LOOPBACK, active, current
from labkit.worker.remote import RemoteTracker, TrackedFunction

_TEXT_SENT = 10_000  # characters of a traceback that a rank sends
_LINE_SHOWN = 2000  # characters
_SILENT_SECONDS = 60.0  # without a word of a rank
# The frame of the file in which pyspark calls the function.
_CALLER = re.compile(r"^<module>, train\.py, line \d+\n(?: +output = fn\(.*\n)?", re.MULTILINE)
_BYTES = 50_000  # of the log, at its end, are looked at
# Lines of torchrun and pyspark.
_NOISE = re.compile(
    r"^(\[rank\d+\]|\[?[EWI]\d{4} |\*{5}|Setting OMP_NUM|node_rank is only|Started |Finished |\s*$)"
)
_PORT_TAKEN = re.compile(r"server socket has failed to (listen|bind).*(EADDRINUSE|already in use)", re.I)
_LAUNCH_FAILED = "TorchDistributor failed during training"  # pyspark, when torchrun left no result
_TRACEBACK = "Traceback (most recent call last):"
# The lines of two ranks can mix: where another traceback begins, this one has no end.
_OF_RANK = re.compile(rf"^{re.escape(_TRACEBACK)}\n(?:[ \t].*\n|\n)*(?!Traceback \()\S.*$", re.MULTILINE)
_PYTHON = re.compile(rf"{re.escape(_TRACEBACK)}.*?^(\w[\w.]*(?:Error|Exception)\b.*?)$", re.S | re.M)
_SPARK = re.compile(r"\[[A-Z_.\d-]{6,}\]:? .+")
_ROOT = re.compile(r"Root Cause.*?rank\s*: (\d+)", re.DOTALL)
_KILLED = re.compile(r"rank\s*: (\d+) .*?\n\s*exitcode\s*: -(\d+)")
_WHY = re.compile(r"can't open file|No module named|^\w[\w.]*(Error|Exception)\b")  # a line that says why
_NOT_SEEN = (
    "Neither a step nor a report was seen: the panel follows the function in its own process, and not what "
    "the function starts in others. Train in the function, or return a dict of its metrics"
)
_NOT_SEEN_FILE = "A file isn't followed step by step: what it prints is below"
_SEE = "the panel above shows where; the files that it lists have the complete output"
_FIXES_OF_FILES = {  # the same, where `run` got a file
    r"can't open file '([^']+)'": "distributor.run() with a path that exists on each machine of the ranks",
    r"No module named '?([\w.]+)": (
        "install {0} on each machine of the ranks, or export PYTHONPATH=… with the folder that has it "
        "before Spark starts"
    ),
}
_FIXES = {  # pattern: fix; `{0}` is the pattern's group
    r"CONTEXT_ONLY_VALID_ON_DRIVER|cannot pickle '?[\w.]+'? object|Could not serialize object": (
        "create inside the function what cannot be pickled, such as a lock. Spark's session exists in this "
        "process only: write the DataFrame as Parquet first, and pass its path to the function"
    ),
    r"No module named '([\w.]+)'": (
        "from pyspark import cloudpickle; cloudpickle.register_pickle_by_value({0}) sends your own "
        "module with the function; a package must be installed on every node"
    ),
    r"GPUs were unable to be found|gpu usage is unavailable|GPU resources were not configured": (
        "TorchDistributor(…, use_gpu=False); its default is True"
    ),
}


class SparkPanel(Panel):
    """The panel of a run of TorchDistributor; see `labkit.panel.panel.Panel` for its arguments."""

    first_phase = "starting"

    def __init__(self, name: str, **about: Any) -> None:
        super().__init__(name, **{"engine": "TorchDistributor", **about})
        self._output: Output | None = None
        self._distributor: Any = None
        self._ranks_report = False  # whether a rank has a tracker, which sends what the rank prints
        self._runs_file = False  # instead of a function

    def __reduce__(self) -> tuple:
        return RankTracker, self.where_to_report()

    def watch(self, distributor: Any) -> "SparkPanel":
        """Follow `distributor` in a ``with`` block around its ``run()``.

        Raises:
            LabError: it is not a TorchDistributor.
        """
        count = getattr(distributor, "num_processes", None)
        if not isinstance(count, int):
            fix = "panel.watch(TorchDistributor(num_processes=2, local_mode=True, use_gpu=False))"
            raise LabError("follow a TorchDistributor", f"{distributor!r} is not one", fix)
        self._about["world_size"], self._distributor = count, distributor
        if self.state.status == "ready":
            self.state.world_size = count
        return self

    # -- what `labkit.panel.panel.Panel` calls --------------------------------------------------------

    def receive(self, event: dict[str, Any]) -> None:
        """Take in one event; if several ranks fail, the first says why, and the others follow from it."""
        self._ranks_report = self._ranks_report or event.get("kind") == "worker"
        if event.get("kind") == "failure":
            if self.state.failures:
                return
            # Shortened here and not in the rank, because only this process has the cells and their numbers.
            event = {**event, "text": _shortened(str(event.get("text", "")))}
        super().receive(event)

    def files(self) -> list[tuple[str, str]]:
        """The log of torchrun and the ranks, and Spark's logs."""
        session = current()
        listed = [("printed by torchrun and the ranks", str(self._output.log))] if self._output else []
        return listed + ([("Spark's logs", session.log_dir)] if session else [])

    def host(self) -> str:
        """Loopback, or the driver's address where executors may be on other machines."""
        context = active()
        if context is None or context.master.startswith("local"):
            return "127.0.0.1"
        return context.getConf().get("spark.driver.host", "127.0.0.1")

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """Follow the distributor's `run`, and set the variables that ranks on this machine inherit."""
        session, distributor, over = current(), self._distributor, threading.Event()
        folder = Path(session.log_dir) if session else self.settings.home / "spark"
        self._ranks_report = False
        self._log_to(folder / f"{self.run_id}.log")
        variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK}
        variables = {name: value for name, value in variables.items() if name not in os.environ}
        if session is not None:
            variables |= session.mark
        threading.Thread(target=self._notice_silence, args=[over], name="labkit-silence", daemon=True).start()
        if distributor is not None:
            distributor.run = self._followed(distributor.run)
        try:
            with variables_set(variables):
                yield
        finally:
            over.set()
            if distributor is not None:
                vars(distributor).pop("run", None)

    def ended_by(self, error: BaseException | None) -> BaseException | None:
        if error is None and self._output is not None and self._output.torchrun_failed:
            error = _TorchrunFailed(_last_error(self._output.text()))
        if error is not None:
            _cancel()
        elif self.state.status == "running" and not (self.state.first_step_at or self.state.history):
            with self.update() as state:
                state.note = state.note or (_NOT_SEEN_FILE if self._runs_file else _NOT_SEEN)
        return error

    def keep_failure(self, error: BaseException) -> None:
        if not _of_spark(error):
            super().keep_failure(error)
            return
        found = rank_error(self._output.text())
        if found is not None and (not self.state.failures or found[1].startswith("killed")):
            # If a rank was killed, the others report a lost connection; only torchrun knows the cause.
            self.state.failures.clear()
            self.state.fail(_shortened(found[1]), found[0])
        elif not self.state.failures:
            text = summary(str(error))
            self.state.fail(
                text if isinstance(error, _TorchrunFailed) else f"{type(error).__name__}: {text}", None
            )

    def translate(self, error: BaseException) -> BaseException | None:
        if isinstance(error, LabError) or not _of_spark(error):
            return None  # it was raised by the reader's own code
        failure = self.state.failures[-1]
        started = self._ranks_report or self._runs_file
        fact = failure.message if started else f"no rank was started: {failure.message}"
        if failure.rank is not None:
            how = f"was {failure.text}" if failure.text.startswith("killed") else f"raised {failure.message}"
            fact = f"rank {failure.rank} {how}"
        text = f"{failure.text}\n{error}\n{self._output.text()}"
        fixes = _FIXES_OF_FILES if self._runs_file else _FIXES
        known = ((re.search(pattern, text), fix) for pattern, fix in fixes.items())
        fix = next((fix.format(*found.groups()) for found, fix in known if found), _SEE)
        return RunFailed(f"finish the run {self.state.name!r}", fact, fix)

    # -- a launch -------------------------------------------------------------------------------------

    def _log_to(self, log: Path) -> None:
        self._output = Output(log, self._print, lambda: self._begun() or _cancel())

    def _followed(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """TorchDistributor's `run`, with its output captured. A launch whose port was taken is repeated once.

        On executors it asks the system for a free port and releases it, and torchrun binds it seconds later.
        For a training file pyspark does not notice that this failed, and the other torchrun waits long, so
        the launch is cancelled.
        """

        def launch(what: Any, *args: Any, **kwargs: Any) -> Any:
            what = self._program(what)
            self._runs_file = not callable(what)
            with self._output.captured():
                return run(TrackedFunction(what, self) if callable(what) else what, *args, **kwargs)

        def followed(*args: Any, **kwargs: Any) -> Any:
            error = result = None
            try:
                result = launch(*args, **kwargs)
            except Exception as raised:
                error = raised
            if why := self._why_again(error):
                with self.update() as state:
                    state.note = f"launched twice: {why}"
                self._log_to(self._output.log.with_suffix(".again.log"))
                result = launch(*args, **kwargs)
            elif error is not None:
                raise error
            if isinstance(result, dict):
                plain = {name: value for name, value in result.items() if isinstance(value, (int, float))}
                self.report(plain)  # not the single weights of a state_dict
            return result

        return followed

    def _program(self, what: Any) -> Any:
        """Return what `run` can use: a function, or the text of a path.

        Raises:
            LabError: it is neither, or the path is of a file that isn't there.
        """
        if callable(what) or what == "-m":
            return what
        attempt = "run a program on TorchDistributor"
        if not isinstance(what, (str, os.PathLike)):
            fact = f"run() got a value of type {type(what).__name__}, not a function or a path"
            raise LabError(attempt, fact, "pass the function without calling it: distributor.run(train, …)")
        path = os.fspath(what)
        if self._distributor.local_mode and not os.path.isfile(path):
            similar = difflib.get_close_matches(
                os.path.basename(path), os.listdir(os.path.dirname(path) or ".")
            )
            fix = (
                f"did you mean {similar[0]!r}?"
                if similar
                else "pass a path that exists, such as an absolute one"
            )
            raise LabError(attempt, f"there is no file {os.path.abspath(path)}", fix)
        return path

    def _begun(self) -> bool:
        """A file has no tracker, only prints; of a function, what mixed tracebacks leave over is no sign."""
        printed = self._runs_file and self.state.prints
        return bool(self._ranks_report or printed or self._distributor.local_mode)

    def _why_again(self, error: Exception | None) -> str:
        """Why this launch is repeated, if it is.

        pyspark passes on what came from the executors up to 0.2 s after the failure: on a busy machine, not
        even why torchrun failed.
        """
        output = self._output
        if self._begun():
            return ""
        if output.port_taken:
            return "another program had taken the port of torchrun"
        if _LAUNCH_FAILED not in str(error) or output.torchrun_failed or _TRACEBACK in output.text():
            return ""
        return "torchrun failed before a rank began, and why was not heard"

    def _notice_silence(self, over: threading.Event) -> None:
        """Say what is known while no rank has reported or printed anything: otherwise a hang has no words."""
        while not over.wait(1.0):
            heard = self._ranks_report or self.state.prints or self.state.hang
            if heard or self.state.elapsed() <= _SILENT_SECONDS:
                continue
            words = [f"no word of a rank for {_SILENT_SECONDS:.0f} s"]
            if session := current():
                words.append(f"{len(session.ranks())} of {self.state.world_size} rank processes run")
            last = (self._output.text().strip().splitlines() or ["nothing"])[-1]
            words.append(f"printed last: {last[:200]}")
            with self.update() as state:
                state.hang = words

    def _print(self, line: str) -> None:
        if not self._ranks_report:
            with self.update() as state:  # not an event, because torchrun does not say from which rank it is
                state.hang = []
                state.print(line[:_LINE_SHOWN])


class RankTracker(RemoteTracker):
    """The tracker that the panel becomes in a rank. The task that starts torchrun has none."""

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        with super().working():
            try:
                yield
            except Exception as error:
                self.emit("failure", text="".join(traceback.format_exception(error))[-_TEXT_SENT:])
                raise


class _TorchrunFailed(RuntimeError):
    """The error that pyspark does not raise when a training file fails."""


def _cancel() -> None:
    if session := current():
        session.cancel()


def _shortened(text: str) -> str:
    """The short form of a rank's traceback, without the file in which pyspark calls the function."""
    return _CALLER.sub("", tracebacks.shorten_text(text))


def _of_spark(error: BaseException) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    names = [frame.f_globals.get("__name__", "") for frame, _ in frames]
    return isinstance(error, _TorchrunFailed) or any(name.startswith(("pyspark", "py4j")) for name in names)


# -- what is printed ------------------------------------------------------------------------------


class Output:
    """Writes what pyspark's threads print to `log`, and calls `on_line` with the training's lines."""

    def __init__(self, log: Path, on_line: Callable[[str], None], on_port_taken: Callable[[], None]) -> None:
        self.log, self._on_line, self._on_port_taken = log, on_line, on_port_taken
        self.torchrun_failed = False  # whether torchrun has reported that a rank failed
        self.port_taken = False  # whether a torchrun found its port taken by another program
        self._in_traceback = False

    def text(self) -> str:
        """The end of the log."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _BYTES))
            return file.read().decode(errors="replace")
        return ""

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Keep what is printed by this thread, which runs pyspark, and by threads that start in the block."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        others = set(threading.enumerate()) - {threading.current_thread()}
        logger = logging.getLogger("TorchDistributor")  # it tells that it has started
        level = logger.level
        logger.setLevel(logging.WARNING)
        try:
            with self.log.open("a", encoding="utf-8", errors="replace", buffering=1) as log:
                out, err = (_Split(stream, log, self._line, others) for stream in (sys.stdout, sys.stderr))
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    yield
                for stream in (out, err):
                    stream.end()
        finally:
            logger.setLevel(level)

    def _line(self, line: str) -> None:
        self.torchrun_failed = self.torchrun_failed or "failed (exitcode" in line
        if _PORT_TAKEN.search(line) and not self.port_taken:
            self.port_taken = True
            self._on_port_taken()
        if _NOISE.match(line):
            return  # of another torchrun, in the middle of a traceback
        before = self._in_traceback
        # The last line of a traceback is not indented.
        self._in_traceback = line.startswith(_TRACEBACK) or (before and line[:1] in (" ", "\t"))
        if not (self.torchrun_failed or before or self._in_traceback):
            self._on_line(line)


class _Split:
    """Stream wrapper: what `others` write passes through, everything else goes to the log file."""

    def __init__(
        self, stream: TextIO, log: TextIO, on_line: Callable[[str], None], others: set[threading.Thread]
    ) -> None:
        self._stream, self._log, self._on_line, self._others, self._part = stream, log, on_line, others, ""

    def write(self, text: str) -> int:
        if self._log.closed or threading.current_thread() in self._others:
            return self._stream.write(text)
        self._log.write(text)
        *lines, part = (self._part + text).split("\n")
        self._part = _shown_last(part)  # a progress bar would grow without an end
        for line in lines:
            self._on_line(_shown_last(line))
        return len(text)

    def end(self) -> None:
        """Pass on the last line, which may have no end."""
        line, self._part = _shown_last(self._part), ""
        if line.strip():
            self._on_line(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _shown_last(line: str) -> str:
    """Return what a terminal shows of a line in the end: a progress bar overwrites it after each ``\\r``."""
    line = line.rstrip("\r")
    return line[line.rfind("\r") + 1 :]


def _last_error(text: str) -> str:
    """Return the line of this output that says why a file failed."""
    lines = [line for line in text.splitlines() if _WHY.search(line) and "ChildFailedError" not in line]
    return lines[-1].strip()[:300] if lines else "the training file ended with an error"


def rank_error(text: str) -> tuple[int, str] | None:
    """(rank, traceback) of the rank that failed first, according to this text; None if none did.

    A rank that was killed has no traceback, and the others fail because it is gone. Ranks that torchrun ended
    (SIGTERM) are no cause. Once the ranks have met, ``[rank0]:`` is before each line of a traceback.
    """
    for rank, number in _KILLED.findall(text):
        if number != "15":
            return int(rank), f"killed ({signal.Signals(int(number)).name})"
    if (root := _ROOT.search(text)) is None:  # torchrun names the rank that failed first
        return None
    rank = root[1]
    if lines := re.findall(rf"^\s*\[rank{rank}\]: ?(.*\S.*)$", text, re.MULTILINE):
        return int(rank), "\n".join(lines)
    found = _OF_RANK.search(text.partition("failed (exitcode")[0])
    return (int(rank), found[0]) if found else None


def summary(text: str) -> str:
    """The message of a Spark error in one line, without Java's stack trace."""
    found = _PYTHON.search(text)
    line = found[1] if found else (spark[0] if (spark := _SPARK.search(text)) else text.strip())
    return line.partition("\n")[0][:300]
