"""The panel of TorchDistributor.

    with SparkPanel("07-local", epochs=3).watch(distributor):
        model = distributor.run(train, 3)       # of a dict that `train` returns, the numbers are reported

TorchDistributor has no callbacks. The panel's tracker is pickled with the function, and follows it in each
rank. A training file is followed in the same way, as a function that runs the file.

TorchDistributor hides failures: `run` returns normally if a file failed, or if any rank of a function has
returned. So each rank reports that it has begun, and that it has failed or returned; if one did not return,
the panel raises an error. What torchrun and the ranks print goes to a log file.
"""

import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import psutil

from labkit import _spark, machine, process_info
from labkit.display import tracebacks
from labkit.errors import BadInput, LabError, RunFailed
from labkit.interrupts import wait_until
from labkit.panel.panel import Panel
from labkit.settings import attributes_set, variables_set
from labkit.spark import prepared
from labkit.spark.rank import RankTracker, run_file, run_module
from labkit.worker.events import Event, Failure, Returned, Worker
from labkit.worker.remote import TrackedFunction

_SILENT_SECONDS = 60.0  # without a word of a rank
_LATE_SECONDS = 3.0  # for the last word of a rank, when `run` has returned
_PATIENCE = 5.0  # seconds for a JVM to answer, or for ranks to end after their job was cancelled
_LOG_END = 50_000  # characters of the log that are looked at
_NOTHING_SEEN = (
    "Neither a step nor a report was seen. The panel follows PyTorch loops in the ranks, and none in "
    "processes that a rank starts: the log has what those print"
)
_FIXES = {  # pattern in an error or in the log: fix
    r"CONTEXT_ONLY_VALID_ON_DRIVER|cannot pickle '?[\w.]+'? object|Could not serialize object": (
        "create inside the function what cannot be pickled, such as a lock. Spark's session exists in this "
        "process only: write the DataFrame as Parquet first, and pass its path to the function"
    ),
    r"GPUs were unable to be found|gpu usage is unavailable|GPU resources were not configured": (
        "TorchDistributor(…, use_gpu=False); its default is True"
    ),
    r"EADDRINUSE|(?i:address already in use)": (
        "run the cell again: another program has taken the port that TorchDistributor chose for the ranks"
    ),
}
_MISSING_MODULE = re.compile(r"No module named '([\w.]+)'")


@dataclass
class _Launch:
    """One call of `run`. Before the first call in a block, it stands for that block."""

    kind: str = ""  # what was launched: "function", "file", or nothing yet
    failures_before: int = 0  # of an earlier call, whose failure the reader has caught
    logged_before: int = 0  # characters
    begun: set[int] = field(default_factory=set)  # ranks
    returned: set[int] = field(default_factory=set)  # ranks


class SparkPanel(Panel):
    """The panel of a run of TorchDistributor; see `labkit.panel.panel.Panel` for its arguments."""

    first_phase = "starting"
    remote = RankTracker

    def __init__(self, name: str, **about: Any) -> None:
        super().__init__(name, **{"engine": "TorchDistributor", **about})
        self._distributor: Any = None
        self._launch = _Launch()

    def watch(self, distributor: Any) -> "SparkPanel":
        """Follow `distributor` in a ``with`` block around its ``run()``.

        Raises:
            LabError: it is not a TorchDistributor.
        """
        count = getattr(distributor, "num_processes", None)
        if not isinstance(count, int):
            fix = "panel.watch(TorchDistributor(num_processes=2, local_mode=True, use_gpu=False))"
            raise BadInput("follow a TorchDistributor", f"{distributor!r} is not one", fix)
        self._about["world_size"] = count
        self._distributor = distributor
        if self.state.status == "ready":
            self.state.world_size = count
        return self

    # -- what `labkit.panel.panel.Panel` calls --------------------------------------------------------

    def receive(self, event: Event) -> None:
        """Take in one event; if several ranks fail, the first says why, and the others follow from it."""
        if event.run != self.run_id:
            return
        if isinstance(event, Worker):
            self._launch.begun.add(event.rank)
        elif isinstance(event, Returned):
            self._launch.returned.add(event.rank)
        elif isinstance(event, Failure):
            if self._has_failed():
                return
            # Shortened here and not in the rank, because only this process has the cells and their numbers.
            event = replace(event, text=_shortened(event.text))
        super().receive(event)

    def files(self) -> list[tuple[str, str]]:
        """List the log of torchrun and the ranks, and Spark's logs."""
        listed = [("printed by torchrun and the ranks", str(self._log))]
        if prepared.current(self.settings.home):
            listed.append(("Spark's logs", str(self._folder())))
        return listed

    def host(self) -> str:
        """Loopback, or the driver's address where executors may be on other machines."""
        session = getattr(self._distributor, "spark", None)
        if session is None or session.conf.get("spark.master", "local").startswith("local"):
            return "127.0.0.1"
        return session.conf.get("spark.driver.host", "127.0.0.1")

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """Follow the distributor's `run`, and set the variables that ranks on this machine inherit."""
        self._launch = _Launch()
        variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": machine.LOOPBACK}
        variables = {name: value for name, value in variables.items() if name not in os.environ}
        ours = prepared.current(self.settings.home)
        if ours is not None:
            variables |= ours.mark
        distributor = self._distributor
        followed: contextlib.AbstractContextManager = contextlib.nullcontext()
        if distributor is not None:
            followed = attributes_set(
                distributor,
                run=self._followed(distributor.run),
                _train_on_dataframe=self._followed(distributor._train_on_dataframe),
            )
        with variables_set(variables), followed:
            yield

    def ended_by(self, error: BaseException | None) -> BaseException | None:
        if error is not None:
            self._cancel()
        elif self._launch.kind and not self.state.note and not self._followed_a_loop():
            self._say(_NOTHING_SEEN)
        return error

    def keep_failure(self, error: BaseException) -> None:
        self._keep_killed()
        if isinstance(error, LabError):
            fact = error.fact
        elif _of_spark(error):
            fact = self._reason() or f"{type(error).__name__}: {summary(str(error))}"
        else:
            super().keep_failure(error)
            return
        if not self._has_failed():  # else a rank has said why
            self.state.fail(fact, None)

    def translate(self, error: BaseException) -> BaseException | None:
        if isinstance(error, LabError) or not _of_spark(error):
            return None  # it was raised by the reader's own code
        return self._run_failed(str(error))

    def _run_failed(self, text: str = "") -> RunFailed:
        """Return the error for the failure that the state has; `text` is Spark's own error."""
        failure = self.state.failures[-1]
        if failure.rank is None:
            fact = failure.message if self._launch.begun else f"no rank was started: {failure.message}"
        elif failure.text.startswith("killed"):
            fact = f"rank {failure.rank} was {failure.text}"
        elif failure.message.startswith("SystemExit") and self._reason():
            fact = f"rank {failure.rank} ended with {failure.message}; the log says: {self._reason()}"
        else:
            fact = f"rank {failure.rank} raised {failure.message}"
        return RunFailed(f"finish the run {self.state.name!r}", fact, self._fix(failure.text, text))

    # -- a launch -------------------------------------------------------------------------------------

    def _followed(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return `run` of a TorchDistributor, with the ranks followed and their output captured."""

        def followed(what: Any, *args: Any, **kwargs: Any) -> Any:
            function, args = self._as_function(what, args, kwargs)
            kind = "function" if callable(what) else "file"
            self._launch = _Launch(kind, len(self.state.failures), len(self._logged()))
            with self._silence_noticed(), _captured(self._log):
                result = run(TrackedFunction(function, self.tracker), *args, **kwargs)
            self._raise_hidden_failure()
            if isinstance(result, dict):  # its numbers, not the single weights of a state_dict
                numbers = {name: value for name, value in result.items() if isinstance(value, (int, float))}
                if numbers:
                    self.report(numbers)
            return result

        return followed

    def _as_function(self, what: Any, args: tuple, kwargs: dict) -> tuple[Callable[..., Any], tuple]:
        """Return the function that a rank calls, and its arguments, for all that `run` takes.

        Raises:
            LabError: it is neither a function nor a file.
        """
        attempt = "start what run() was called with"
        if callable(what):
            return what, args
        if not isinstance(what, (str, Path)):
            fact = f"its first argument is of type {type(what).__name__}: a function that was called already?"
            fix = "distributor.run(train, …): without parentheses, then its arguments"
            raise BadInput(attempt, fact, fix)
        if kwargs:
            names = " ".join(f'"--{name}={value}"' for name, value in kwargs.items())
            fact = f"a file has a command line, and no named arguments ({', '.join(kwargs)})"
            raise BadInput(attempt, fact, f'distributor.run("{what}", {names})')
        words = tuple(map(str, args))
        if str(what) == "-m":
            return run_module, words
        path = Path(what).expanduser()
        if path.is_file():
            path = path.absolute()  # a rank's working folder is another one on executors
        elif self.host() == "127.0.0.1":
            fix = f"pass its path; a relative one starts from {Path.cwd()}"
            raise BadInput(attempt, f"there is no file {path.absolute()}", fix)
        return run_file, (str(path), *words)

    def _raise_hidden_failure(self) -> None:
        """Raise the error that `run` did not raise, if a rank did not return."""
        size = self._distributor.num_processes

        def is_decided() -> bool:
            return len(self._launch.returned) >= size or self._has_failed()

        wait_until(is_decided, seconds=_LATE_SECONDS)
        if self._has_failed():
            with self.update():
                self._keep_killed()
            raise self._run_failed()
        missing = sorted(set(range(size)) - self._launch.returned)
        # In local mode torchrun's word is always in the log: a rank may have left with os._exit(0).
        lost = [rank for rank in missing if rank in self._launch.begun and not self._distributor.local_mode]
        if lost or (missing and _spark.TORCHRUN_FAILED in self._log_end()):
            ranks = " and ".join(f"rank {rank}" for rank in lost or missing)
            with self.update() as state:
                state.fail(f"{ranks} did not return: {self._reason() or 'the log has no reason'}", None)
                self._keep_killed()
            raise self._run_failed()
        if not self._launch.begun:  # ranks on other machines may not reach this process
            self._say("No rank was heard, so the panel doesn't know how the ranks ended: read the log")

    def _has_failed(self) -> bool:
        """Return whether a rank of this `run` has failed, or of the one before if none runs."""
        return len(self.state.failures) > self._launch.failures_before

    def _say(self, sentence: str) -> None:
        with self.update() as state:
            state.note = sentence

    def _followed_a_loop(self) -> bool:
        workers = self.state.workers.values()
        return bool(self.state.metrics()) or any(worker.made or worker.rows for worker in workers)

    @contextlib.contextmanager
    def _silence_noticed(self) -> Iterator[None]:
        """If no rank begins in this block for a minute, show what is known, so that a hang isn't silent."""
        timer = threading.Timer(_SILENT_SECONDS, self._report_silence)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _report_silence(self) -> None:
        if self._launch.begun:
            return
        lines = [f"no word of a rank for {_SILENT_SECONDS:.0f} s"]
        if prepared.current(self.settings.home):
            lines.append(f"{len(self._processes())} of {self.state.world_size} rank processes run")
        last_line = (self._log_end().strip().splitlines() or ["nothing"])[-1]
        lines.append(f"printed last: {last_line[:200]}")
        with self.update() as state:
            state.hang = lines

    def _cancel(self) -> None:
        """Cancel the Spark job, and end the ranks on this machine."""
        distributor = self._distributor
        if distributor is None:
            return
        if not distributor.local_mode:
            _within(_PATIENCE, lambda: distributor.spark.sparkContext.cancelAllJobs())
        _, left = psutil.wait_procs(self._processes(), timeout=_PATIENCE)
        process_info.terminate(left, grace=1)

    def _processes(self) -> list[psutil.Process]:
        """Return the processes of ranks that torchrun has started for this kernel on this machine."""
        ours = prepared.current(self.settings.home)
        return [] if ours is None else ours.ranks()

    # -- the log --------------------------------------------------------------------------------------

    def _folder(self) -> Path:
        return prepared.folder_of(self.settings.home) / "logs"

    @property
    def _log(self) -> Path:
        """The file with what torchrun and the ranks print."""
        return self._folder() / f"{self.run_id}.log"

    def _logged(self) -> str:
        with contextlib.suppress(OSError):
            return self._log.read_text(errors="replace")
        return ""

    def _log_end(self) -> str:
        """Return the last of what this `run` has printed."""
        return self._logged()[self._launch.logged_before :][-_LOG_END:]

    def _keep_killed(self) -> None:
        """If a rank was killed, make that the failure: the others then report a lost connection."""
        killed = _spark.KILLED.search(self._log_end())
        if killed is not None:
            del self.state.failures[self._launch.failures_before :]
            self.state.fail(f"killed ({killed[2]})", int(killed[1]))

    def _reason(self) -> str:
        """Return the log's last line that says why something failed, or ""."""
        reasons = _spark.REASON.findall(self._log_end())
        return reasons[-1].strip()[:300] if reasons else ""

    def _fix(self, *texts: str) -> str:
        text = "\n".join([*texts, self._log_end()])
        for pattern, fix in _FIXES.items():
            if re.search(pattern, text):
                return fix
        missing = _MISSING_MODULE.search(text)
        if missing is None:
            return f"read {self._log}, in which everything is that torchrun and the ranks have printed"
        name = missing[1].partition(".")[0]
        package = "a package must be installed on every node"
        if self._launch.kind == "file":
            return f"start the notebook in the folder that has {name}, or install it: {package}"
        return (
            f"from pyspark import cloudpickle; import {name}; cloudpickle.register_pickle_by_value({name}) "
            f"sends your own module with the function; {package}"
        )


def _shortened(text: str) -> str:
    """Return the short form of a rank's traceback, without the file in which pyspark calls the function."""
    return _spark.CALLER.sub("", tracebacks.shorten_text(text))


def _of_spark(error: BaseException) -> bool:
    return tracebacks.passed_through(error, "pyspark", "py4j")


def summary(text: str) -> str:
    """Return the message of a Spark error in one line, without Java's stack trace."""
    reasons = _spark.REASON.findall(text)
    if reasons:
        return reasons[0].strip()[:300]
    with_code = _spark.ERROR_CODE.search(text)
    return (with_code[0] if with_code else text.strip()).partition("\n")[0][:300]


def _within(seconds: float, call: Callable[[], object]) -> None:
    """Call into the JVM, and return after `seconds` at the latest: one that hangs does not answer."""

    def quietly() -> None:
        with contextlib.suppress(Exception):  # of a JVM that is gone
            call()

    caller = threading.Thread(target=quietly, name="labkit-spark", daemon=True)
    caller.start()
    caller.join(seconds)


# -- what is printed ------------------------------------------------------------------------------


@contextlib.contextmanager
def _captured(log: Path) -> Iterator[None]:
    """Write into `log` what is printed by this thread, which runs pyspark, and by threads that start here."""
    log.parent.mkdir(parents=True, exist_ok=True)
    others = set(threading.enumerate()) - {threading.current_thread()}
    logger = logging.getLogger(_spark.LOGGER)
    level = logger.level
    logger.setLevel(logging.WARNING)
    with log.open("a", encoding="utf-8", errors="replace", buffering=1) as file:
        out = _Divided(sys.stdout, file, others)
        err = _Divided(sys.stderr, file, others)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                yield
        finally:
            logger.setLevel(level)


class _Divided:
    """A stream that passes on what `others` write, and writes everything else into a log file."""

    def __init__(self, stream: TextIO, log: TextIO, others: set[threading.Thread]) -> None:
        self._stream = stream
        self._log = log
        self._others = others

    def write(self, text: str) -> int:
        if self._log.closed or threading.current_thread() in self._others:
            return self._stream.write(text)
        return self._log.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
