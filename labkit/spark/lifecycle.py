"""A Spark session on this machine, with a Java that works, that leaves nothing behind.

    lab = spark.session(slots=2)       # one JVM is driver and executor: ``local[2]``
    lab = spark.session(workers=2)     # two executors, each a JVM of its own: ``local-cluster[2,1,1024]``
    lab.spark                          # the SparkSession
    lab.stop()

All processes are recorded in the registry and stopped by that record: by `stop`, when another session is
started, when the interpreter exits, and by the watchdog after the kernel has ended, even by SIGKILL.
"""

import atexit
import contextlib
import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psutil

from labkit.display import cards
from labkit.display.progress import Waiting
from labkit.errors import ClusterError
from labkit.settings import Settings
from labkit.spark import driver
from labkit.spark.launch import WORKER_MB, Folders, environment
from labkit.system import interrupts, java, process_info
from labkit.system.java import Java
from labkit.system.process_registry import ProcessRegistry

if TYPE_CHECKING:  # half a second to import
    from pyspark.sql import SparkSession

_KEEP_SECONDS = 5  # the driver's JVM ends with its kernel: there is nothing that a new kernel could use
_CANCEL_SECONDS = 5.0  # for ranks to end by themselves after their job was cancelled

_current: "Session | None" = None


class Session:
    """A running Spark. Displays itself; a context manager that stops it.

    Attributes:
        spark: the `SparkSession`.
        java: the Java that it runs on.
        slots: number of tasks that can run at the same time.
        master: "local[2]" or "local-cluster[2,1,1024]".
    """

    def __init__(
        self, spark: "SparkSession", *, java: Java, workers: int, slots: int, folders: Folders, home: Any
    ) -> None:
        self.spark, self.java, self.slots = spark, java, slots
        self.master = spark.sparkContext.master
        self._workers, self._folders, self._registry = workers, folders, ProcessRegistry(home)
        self._running = True

    @property
    def group_id(self) -> str:
        """The id of its processes in the registry."""
        return self._folders.group_id

    @property
    def healthy(self) -> bool:
        """Whether its driver and all of its executors are alive."""
        if not (self._running and all(entry.alive for entry in self._registry.records(self.group_id))):
            return False
        return len(self._executors()) >= self._workers

    @property
    def log_dir(self) -> str:
        """The folder with the logs of driver and executors. It is kept until the next session starts."""
        return str(self._folders.logs)

    def cancel(self) -> None:
        """Cancel all jobs of this session, and end the processes of their ranks (takes some seconds)."""
        if not self._running:
            return
        driver.cancel_jobs(self.spark)
        members = self._registry.members(self.group_id)
        ranks = [p for p in members if process_info.get_env(p, "TORCHELASTIC_RUN_ID")]
        _, left = psutil.wait_procs(ranks, timeout=_CANCEL_SECONDS)
        process_info.terminate(left, grace=1)

    def stop(self) -> None:
        """Stop Spark and all its processes. A second call does nothing."""
        global _current
        if not self._running:
            return
        self._running = False
        if _current is self:
            _current = None
        try:
            driver.stop(self.spark)
        finally:
            self._registry.stop(self.group_id)
            self._folders.forget()

    def __repr__(self) -> str:
        state = f"{self.slots} slots" if self._running else "stopped"
        return f"Session({self.master}, {state}, Java {self.java.version} ({self.java.source}))"

    def _repr_html_(self) -> str:
        about = f"{self.master} · Java {self.java.version} ({self.java.source})"
        status = ("ok", "running") if self._running else ("dim", "stopped")
        head = ("process", "pid", "what it is for")
        table = [cards.rule(cards.table(head, self._rows()))] if self._running else []
        return cards.card("Spark", status, *table, dim=about)

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        entries = {entry.role: entry.pid for entry in self._registry.records(self.group_id)}
        work = f"runs them in {self.slots} slots" if not self._workers else "starts the executors as a master"
        yield "driver", str(entries.get("spark: driver", "–")), f"plans the jobs, and {work}"
        for number, process in enumerate(self._executors(), start=1):
            yield f"executor-{number}", str(process.pid), "runs tasks in one slot"

    def _executors(self) -> list[psutil.Process]:
        """The JVMs of the executors, the oldest first; none where the driver's JVM is the only one."""
        found = []
        for process in self._registry.members(self.group_id):
            with contextlib.suppress(psutil.Error):
                if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in process.cmdline():
                    found.append(process)
        return sorted(found, key=lambda process: process.pid)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()


def session(*, slots: int | None = None, workers: int = 0, settings: Settings | None = None) -> Session:
    """Start Spark on this machine, or return the running session if it has the same size.

    Args:
        slots: without `workers`: number of tasks that may run at the same time, in one JVM (default: the
            number of workers in the settings).
        workers: number of executors with one slot each; 0 means ``local[slots]``.

    Raises:
        SetupError: pyspark or a Java is missing, too old or broken.
        ClusterError: a process did not start, or the arguments cannot work.
        RunStopped: interrupted; nothing is left running.
    """
    global _current
    slots, settings = _checked(slots, workers, settings)
    running = current()
    if running is not None and (running._workers, running.slots) == (workers, slots) and running.healthy:
        return running
    registry = ProcessRegistry(settings.make_home())
    folders = Folders(settings.home / "spark", f"spark-{secrets.token_hex(4)}")
    starting: list[_Start] = []

    def undo() -> None:
        global _current
        _current = None
        for start in starting:
            start.cancel()
        registry.stop(folders.group_id)
        driver.forget(stopped=bool(starting))
        folders.forget()

    with interrupts.stoppable("the start of Spark", undo=undo) as check:
        if running is not None:
            running.stop()  # a process can have one Spark session only
        found = java.find()
        driver.require_none()
        registry.start_watchdog(folders.group_id, seconds=_KEEP_SECONDS)
        folders.make(registry.groups(), workers=workers)
        master = f"local-cluster[{workers},1,{WORKER_MB}]" if workers else f"local[{slots}]"
        variables = environment(found, folders)
        starting.append(started := _Start(master, variables, registry, folders))
        with Waiting("starting Spark", unit="slots") as waiting:
            while started.is_alive():
                check()
                waiting(0, slots)
                started.join(0.1)
            waiting(slots, slots)
        if started.error is not None:
            raise started.error
        _current = Session(
            started.spark, java=found, workers=workers, slots=slots, folders=folders, home=settings.home
        )
        if not _current.healthy:
            fact = f"{len(_current._executors())} of {workers} executors run"
            raise ClusterError("start Spark", fact, f"read the logs in {folders.logs}")
    if "ipykernel" not in sys.modules:
        atexit.register(_current.stop)
    return _current


def current() -> Session | None:
    """The session that runs in this process, if any."""
    return _current if _current is not None and _current._running else None


class _Start(threading.Thread):
    """Starts the driver in a thread, because an interrupt cannot end a call into the JVM."""

    def __init__(
        self, master: str, variables: dict[str, str], registry: ProcessRegistry, folders: Folders
    ) -> None:
        super().__init__(name="labkit-spark-start", daemon=True)
        self._master, self._variables, self._registry, self._folders = master, variables, registry, folders
        self._cancelled = False
        self.spark: SparkSession | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        log = self._folders.logs / "driver.log"
        try:
            self.spark = driver.start(self._master, self._variables, log, started=self._record)
        except Exception as error:
            self.error = error

    def cancel(self) -> None:
        """End the JVM, whether it runs or is about to be started, and wait for the thread."""
        self._cancelled = True
        self._registry.stop(self._folders.group_id)
        self.join(_CANCEL_SECONDS)

    def _record(self, pid: int) -> None:
        if self._cancelled:
            os.kill(pid, signal.SIGKILL)
        self._registry.record(pid, role="spark: driver", group_id=self._folders.group_id)


def _checked(slots: Any, workers: Any, settings: Any) -> tuple[int, Settings]:
    """(slots, settings) with their defaults; arguments that cannot work are refused."""

    def is_count(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    if not isinstance(settings, Settings | None):
        fix = "settings=Settings.from_env(), or leave it out"
        raise ClusterError("start Spark", f"settings={settings!r} is no Settings", fix)
    possible = is_count(workers) and workers >= 0 and (slots is None or (is_count(slots) and slots >= 1))
    if not possible or (slots is not None and workers):
        raise ClusterError(
            "start Spark",
            f"slots={slots!r} and workers={workers!r} make no session",
            "give slots= for one JVM, or workers= for executors with one slot each",
        )
    settings = settings or Settings.from_env()
    return workers or slots or settings.num_workers, settings
