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
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psutil

from labkit import interrupts
from labkit.display import cards
from labkit.display.progress import Waiting
from labkit.errors import ClusterError, expect_int
from labkit.settings import Settings, logs_held_back
from labkit.spark import driver
from labkit.spark.launch import WORKER_MB, Folders, environment
from labkit.system import process_info
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
        slots: number of tasks that can run at the same time.
        master: "local[2]" or "local-cluster[2,1,1024]".
    """

    def __init__(
        self,
        spark: "SparkSession",
        folders: Folders,
        registry: ProcessRegistry,
        *,
        workers: int,
        slots: int,
    ) -> None:
        self.spark, self.slots = spark, slots
        self.master = spark.sparkContext.master
        self._workers, self._folders, self._registry = workers, folders, registry
        self._running = True

    @property
    def group_id(self) -> str:
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
        return str(self._folders / "logs")

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
        with interrupts.stoppable("session.stop()", left="Spark has been stopped all the same"):
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
        return f"Session({self.master}, {state})"

    def _repr_html_(self) -> str:
        status = ("ok", "running") if self._running else ("dim", "stopped")
        head = ("process", "pid", "what it is for")
        table = [cards.rule(cards.table(head, self._rows()))] if self._running else []
        return cards.card("Spark", status, *table, dim=self.master)

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        pid = next(e.pid for e in self._registry.records(self.group_id) if e.role == "spark: driver")
        work = f"runs them in {self.slots} slots" if not self._workers else "starts the executors as a master"
        yield "driver", str(pid), f"plans the jobs, and {work}"
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
        SetupError: a Java is missing, or the home cannot be written to.
        ClusterError: a process did not start, or the arguments cannot work.
        RunStopped: interrupted; nothing is left running.
    """
    global _current
    expect_int("start Spark", "workers", workers, least=0)
    if slots is not None:
        expect_int("start Spark", "slots", slots)
        if workers:
            fix = "give slots= for one JVM, or workers= for executors with one slot each"
            raise ClusterError("start Spark", f"slots={slots} and workers={workers} make no session", fix)
    settings = Settings.given(settings)
    slots, running = workers or slots or settings.num_workers, current()
    if running is not None and (running._workers, running.slots) == (workers, slots) and running.healthy:
        return running
    registry = ProcessRegistry(settings.make_home())
    folders = Folders(settings.home / "spark", group := f"spark-{secrets.token_hex(4)}")
    starting: list[Future] = []
    cancelled = threading.Event()

    def record(pid: int) -> None:
        if cancelled.is_set():
            os.kill(pid, signal.SIGKILL)
        registry.record(pid, role="spark: driver", group_id=group)

    def undo() -> None:
        """End the JVM, whether it runs or is about to be started."""
        global _current
        _current = None
        cancelled.set()
        with logs_held_back(logging.CRITICAL):  # py4j tells with a traceback that its JVM has gone
            registry.stop(group)
            futures.wait(starting, _CANCEL_SECONDS)
        registry.stop(group)
        driver.forget(stopped=bool(starting))
        folders.forget()

    with interrupts.stoppable("the start of Spark", undo=undo) as check:
        if running is not None:
            running.stop()  # a process can have one Spark session only
        if (theirs := driver.active()) is not None:
            fact = f"this process has a session that the lab did not start ({theirs.master})"
            fix = "stop it with its .stop(), or use it: TorchDistributor uses the active session"
            raise ClusterError("start Spark", fact, fix)
        registry.start_watchdog(group, seconds=_KEEP_SECONDS)
        folders.make(registry.groups(), workers=workers)
        master = f"local-cluster[{workers},1,{WORKER_MB}]" if workers else f"local[{slots}]"
        what = (master, environment(folders), folders / "logs" / "driver.log", record)
        # In a thread, because an interrupt cannot end a call into the JVM.
        starting.append(start := ThreadPoolExecutor(1, "labkit-spark").submit(driver.start, *what))
        with Waiting("starting Spark", unit="slots") as waiting:
            while not start.done():
                check()
                waiting(0, slots)
                futures.wait(starting, 0.1)
        _current = Session(start.result(), folders, registry, workers=workers, slots=slots)
        if not _current.healthy:
            fact = f"{len(_current._executors())} of {workers} executors run"
            raise ClusterError("start Spark", fact, f"read the logs in {folders / 'logs'}")
    if "ipykernel" not in sys.modules:
        atexit.register(_current.stop)
    return _current


def current() -> Session | None:
    """The session that runs in this process, if any."""
    return _current if _current is not None and _current._running else None
