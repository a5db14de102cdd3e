"""TorchDistributor reports into the panel.

    panel = SparkPanel("07-local", epochs=3)

    def train(epochs):                           # in each rank
        for epoch in range(epochs):
            for x, y in panel.steps(loader, epoch=epoch, epochs=epochs):
                ...
            panel.report({"loss": …}, epoch=epoch)     # rank 0

    distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
    with panel.watch(distributor):
        model = distributor.run(train, 3)

TorchDistributor knows no callbacks. The panel travels inside the function, and what it becomes in each rank
sends its events to the kernel. What pyspark prints meanwhile (all that torchrun and the
ranks say, each line) goes to a file.
"""

import contextlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TextIO

from labkit.display import tracebacks
from labkit.errors import LabError, RunFailed
from labkit.panel.run import Panel
from labkit.panel.tracking.channel import Address
from labkit.panel.tracking.remote import RemoteTracker
from labkit.spark import explain as spark_faults
from labkit.spark import lifecycle as spark
from labkit.spark.launch import LOOPBACK
from labkit.system.process_registry import GROUP_VARIABLE

_TEXT_SENT = 10_000  # characters of a traceback that travel
_CALLER = re.compile(r"^<module>, train\.py, line \d+\n(?: +output = fn\(.*\n)?", re.MULTILINE)
_LOG_READ = 50_000  # characters, the last of what was printed
_WIDTH = 2000  # characters of a printed line
_FRAMES_SEARCHED = 12  # of who writes a line
# What torchrun, its warnings and pyspark say of themselves is not what the training printed.
_NOISE = re.compile(r"^(\[rank\d+\]|[EWI]\d{4} |\*{5}|Setting OMP_NUM|Started |Finished |\s*$)")


class SparkPanel(Panel):
    """The panel of a run of TorchDistributor; see `labkit.panel.run.Panel` for its arguments."""

    def __init__(self, name: str, **about: Any) -> None:
        super().__init__(name, **{"engine": "TorchDistributor", **about})
        self._log: Path | None = None
        self._ranks_report = self._torchrun_failed = self._in_traceback = False

    def __reduce__(self) -> tuple:
        return RankTracker, self.where_to_report()

    def watch(self, distributor: Any) -> "SparkPanel":
        """Follow `distributor` in a ``with`` block around its ``run()``."""
        self._about["world_size"] = distributor.num_processes
        return self

    def receive(self, event: dict[str, Any]) -> None:
        """As in `Panel.receive`; of several ranks that fail, the first says why, the others follow it."""
        self._ranks_report = self._ranks_report or event.get("kind") == "worker"
        if event.get("kind") == "failure":
            if self.state.failures:
                return
            # Here, not in the rank: this process has the cells, and knows their numbers.
            event = {**event, "text": _shortened(str(event.get("text", "")))}
        super().receive(event)

    def files(self) -> list[tuple[str, str]]:
        """What torchrun and the ranks printed, and Spark's logs."""
        session = spark.current()
        listed = [("printed by torchrun and the ranks", str(self._log))] if self._log else []
        return listed + ([("Spark's logs", session.log_dir)] if session else [])

    def __enter__(self) -> "SparkPanel":
        self._ranks_report = self._torchrun_failed = self._in_traceback = False
        if self.state.status == "ready":
            self.state.world_size = self._about["world_size"]
        super().__enter__()
        return self

    def ended_by(self, error: BaseException | None) -> BaseException | None:
        if error is None and self._torchrun_failed:
            # A file that fails in local mode: pyspark's wrapper around torchrun keeps to itself how it ended.
            error = _Untold("torchrun ended with an error")
        session = spark.current()
        if error is not None and session is not None:
            session.cancel()
        return error

    def keep_failure(self, error: BaseException) -> None:
        found = spark_faults.rank_error(self._printed()) if _of_spark(error) else None
        if found is None or (self.state.failures and not found[1].startswith("killed")):
            super().keep_failure(error)
            if found is None and not self._ranks_report and _of_spark(error):
                self.state.failures[-1].rank = None  # it never came to any rank
            return
        # The others report that the connection is gone; that one of them was killed, only torchrun knows.
        rank, text = found[0], self.failure_text(error)
        self.state.failures.clear()
        self.state.fail(text, rank)

    def host(self) -> str:
        """Loopback, unless executors are on other machines: then the address that they know us by."""
        context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
        active = getattr(context, "_active_spark_context", None)
        if active is None or active.master.startswith("local"):
            return "127.0.0.1"
        return active.getConf().get("spark.driver.host", "127.0.0.1")

    def first_phase(self) -> str:
        return "starting"

    def failure_text(self, error: BaseException) -> str:
        if not _of_spark(error):
            return super().failure_text(error)
        found = spark_faults.rank_error(self._printed())
        if found is not None:
            return _shortened(found[1])
        return f"{type(error).__name__}: {spark_faults.summary(str(error))}"

    def translate(self, error: BaseException) -> BaseException | None:
        if isinstance(error, LabError) or not _of_spark(error):
            return None  # the reader's own code raised it
        printed, told = self._printed(), self.state.failures[-1]
        if told.text.startswith("killed"):
            fact = f"rank {told.rank} was {told.text}"
        elif self._ranks_report or spark_faults.rank_error(printed):
            fact = f"rank {told.rank} raised {told.message}"
        else:
            fact = f"no rank was started: {told.message}"
        fix = spark_faults.advice(f"{told.text}\n{error}\n{printed}")
        fix = fix or "the panel above shows where; all of it is in the files that it lists"
        return RunFailed(f"finish the run {self.state.name!r}", fact, fix)

    def _printed(self) -> str:
        """What torchrun and the ranks printed; pyspark's own error mostly says only that there is one."""
        with contextlib.suppress(OSError, AttributeError):
            return self._log.read_text(encoding="utf-8", errors="replace")[-_LOG_READ:]
        return ""

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """What a run needs around it: where its lines go, and what its processes inherit."""
        session = spark.current()
        folder = Path(session.log_dir) if session else self.settings.home / "spark"
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / f"{self.run_id}.log"
        variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK}
        variables = {name: value for name, value in variables.items() if name not in os.environ}
        if session is not None:
            variables[GROUP_VARIABLE] = session.lab  # the ranks are this process's own children in local mode
        earlier = {name: os.environ[name] for name in variables if name in os.environ}
        logger, before = logging.getLogger("TorchDistributor"), (sys.stdout, sys.stderr)
        quiet = _Above(logging.INFO)
        with self._log.open("a", encoding="utf-8", errors="replace", buffering=1) as log:
            sys.stdout, sys.stderr = (_Sorted(stream, log, self._heard) for stream in before)
            os.environ.update(variables)
            logger.addFilter(quiet)
            try:
                yield
            finally:
                sys.stdout, sys.stderr = before
                logger.removeFilter(quiet)
                for name in variables:
                    os.environ.pop(name, None)
                os.environ.update(earlier)

    def _heard(self, line: str) -> None:
        """A line that torchrun passed on. Ranks with a panel send what they print themselves."""
        self._torchrun_failed = self._torchrun_failed or "failed (exitcode" in line
        was_in, self._in_traceback = self._in_traceback, _goes_on(line, self._in_traceback)
        in_traceback = was_in or self._in_traceback
        if not (self._ranks_report or self._torchrun_failed or in_traceback or _NOISE.match(line)):
            with self.update() as state:  # not as an event: torchrun does not say of which rank it is
                state.print(line[:_WIDTH])


class RankTracker(RemoteTracker):
    """The tracker that a panel becomes in a rank; in a Spark task, which only passes it on, it is silent."""

    def __init__(self, run: str, address: Address | None) -> None:
        super().__init__(run, address)
        if "TORCHELASTIC_RUN_ID" not in os.environ:  # torchrun sets it for its ranks
            self._sender = None
        elif self._sender is not None:
            # A rank lives for this one function, and nothing else tells when it begins.
            self._begin()
            sys.excepthook = self._failed

    def _failed(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        self.emit("failure", text=text[-_TEXT_SENT:])
        sys.__excepthook__(kind, error, trace)


class _Sorted:
    """A stdout or stderr during a run: what pyspark writes goes to `log`, all else where it went before."""

    def __init__(self, stream: TextIO, log: TextIO, heard: Any) -> None:
        self._stream, self._log, self._heard, self._part = stream, log, heard, ""

    def write(self, text: str) -> int:
        if self._log.closed or not _in_pyspark(sys._getframe(1)):
            return self._stream.write(text)
        self._log.write(text)
        *lines, self._part = (self._part + text).split("\n")
        for line in lines:
            self._heard(line)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Above(logging.Filter):
    def __init__(self, level: int) -> None:
        super().__init__()
        self._level = level

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > self._level


def _in_pyspark(frame: FrameType | None) -> bool:
    """Whether pyspark writes this, itself or by `logging` and the like, and not the reader's own code."""
    for _ in range(_FRAMES_SEARCHED):
        if frame is None:
            return False
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] == "pyspark":
            return True
        if name.partition(".")[0] not in ("logging", "traceback", "warnings"):
            return False
        frame = frame.f_back
    return False


def _shortened(text: str) -> str:
    """The short form of a rank's traceback, without the file in which pyspark calls the function."""
    return _CALLER.sub("", tracebacks.shorten_text(text))


def _goes_on(line: str, in_traceback: bool) -> bool:
    """Whether the next line still belongs to a traceback; its last one is not indented."""
    return line.startswith("Traceback (most recent") or (in_traceback and line[:1] in ("", " ", "\t"))


class _Untold(RuntimeError):
    """What pyspark should have raised."""


def _of_spark(error: BaseException) -> bool:
    """Whether it came out of pyspark."""
    frames = traceback.walk_tb(error.__traceback__)
    names = [frame.f_globals.get("__name__", "") for frame, _ in frames]
    return isinstance(error, _Untold) or any(name.startswith(("pyspark", "py4j")) for name in names)
