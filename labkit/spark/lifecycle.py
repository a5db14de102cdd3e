"""A Spark session on this machine, with a Java that works, that leaves nothing behind.

    lab = spark.session(slots=2)       # one JVM that is driver and executor: ``local[2]``
    lab = spark.session(workers=2)     # a master and two worker processes: Spark's standalone cluster
    lab.spark                          # the SparkSession
    lab.stop()

All that is started is recorded and stopped by that record: on `stop`, when another
session is begun, when the interpreter ends, and by the watchdog when the kernel is gone, however it went.
"""

import atexit
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING, Any

import psutil

from labkit.display.progress import Waiting
from labkit.display.style import STYLE
from labkit.errors import ClusterError, EnvironmentProblem, RunStopped
from labkit.settings import Settings
from labkit.spark import launch as spark_start
from labkit.spark.launch import Folders
from labkit.system import java, process_info
from labkit.system.java import Java
from labkit.system.process_registry import ProcessRegistry

if TYPE_CHECKING:  # half a second to import
    from pyspark.sql import SparkSession

_KEEP_SECONDS = 5  # the driver's JVM ends with its kernel, so there is nothing to find again
_PATIENCE = 60.0  # seconds for executors to sign up
_CANCEL_SECONDS = 5.0  # for ranks to end by themselves when their launcher has gone

_current: "Session | None" = None


class Session:
    """A handle on a running Spark. Displays itself; a context manager that stops it.

    Attributes:
        spark: the `SparkSession`.
        java: the Java that it runs on.
        slots: tasks that can run at the same time.
        master: "local[2]", or the address of the standalone master.
    """

    def __init__(
        self, spark: "SparkSession", *, java: Java, workers: int, slots: int, folders: Folders, home: Any
    ) -> None:
        self.spark, self.java, self.slots = spark, java, slots
        self.master = spark.sparkContext.master
        self._workers, self._folders, self._registry = workers, folders, ProcessRegistry(home)
        self._running = True

    @property
    def lab(self) -> str:
        """The id by which its processes are recorded."""
        return self._folders.lab

    @property
    def whole(self) -> bool:
        """Whether all of its processes live."""
        return self._running and all(entry.alive for entry in self._registry.records(self.lab))

    @property
    def log_dir(self) -> str:
        """Where the logs of driver, master, workers and executors lie, until the next session begins."""
        return str(self._folders.logs)

    def cancel(self) -> None:
        """End all jobs of this session, and wait until their processes are gone (at most some seconds)."""
        if not self._running:
            return
        with contextlib.suppress(Exception):  # the JVM may be what broke
            self.spark.sparkContext.cancelAllJobs()
        ranks = [
            p for p in self._registry.members(self.lab) if process_info.get_env(p, "TORCHELASTIC_RUN_ID")
        ]
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
            _let_go(self.spark)
        finally:
            self._registry.stop(self.lab)
            self._folders.forget()

    def __repr__(self) -> str:
        state = f"{self.slots} slots" if self._running else "stopped"
        return f"Session({self.master}, {state}, Java {self.java.version} ({self.java.source}))"

    def _repr_html_(self) -> str:
        word = (
            '<span class="lk-ok">running</span>' if self._running else '<span class="lk-dim">stopped</span>'
        )
        about = f"{self.master} · Java {self.java.version} ({self.java.source})"
        head = (
            f'{STYLE}<div class="labkit lk-card"><div class="lk-head"><b>Spark</b>{word}'
            f'<span class="lk-dim">{escape(about)}</span></div>'
        )
        if not self._running:
            return f"{head}</div>"
        rows = "".join(
            f"<tr><td>{escape(role)}</td><td>{pid}</td><td>{escape(what)}</td></tr>"
            for role, pid, what in self._rows()
        )
        return (
            f'{head}<div class="lk-rule lk-text"><table><tr><th>process</th><th>pid</th>'
            f"<th>what it is for</th></tr>{rows}</table></div></div>"
        )

    def _rows(self) -> Iterator[tuple[str, int, str]]:
        local = not self._workers
        for entry in self._registry.records(self.lab):
            role = entry.role.removeprefix("spark: ")
            if role == "driver":
                what = f"plans the jobs{f', and runs them in {self.slots} slots' if local else ''}"
            elif role == "master":
                what = "knows the workers, and hands out their slots"
            elif role.startswith("worker"):
                what = "starts an executor, a JVM with one slot, for each session"
            else:
                continue
            yield role, entry.pid, what

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()


def session(*, slots: int | None = None, workers: int = 0, settings: Settings | None = None) -> Session:
    """Start Spark on this machine, or return the session that runs already, if it is such a one.

    Args:
        slots: without `workers`: tasks that may run at the same time, in one JVM (default: the settings'
            number of workers).
        workers: worker processes of a standalone cluster, each with one slot; 0 is ``local[slots]``.

    Raises:
        EnvironmentProblem: pyspark or a Java is missing, too old or broken.
        ClusterError: a process did not start, or the arguments cannot work.
        RunStopped: interrupted; nothing is left running.
    """
    global _current
    settings = settings or Settings.from_env()
    if workers < 0 or (slots is not None and (slots < 1 or workers)):
        raise ClusterError(
            "start Spark",
            f"slots={slots} and workers={workers} make no session",
            "give slots= for one JVM, or workers= for a cluster with one slot in each",
        )
    slots = workers or slots or settings.num_workers
    running = current()
    if running is not None:
        if (running._workers, running.slots) == (workers, slots) and running.whole:
            return running
        running.stop()  # a process can have one session of Spark at a time
    found = java.find()
    _require_no_other()
    registry = ProcessRegistry(settings.make_home())
    folders = Folders(settings.home / "spark", f"spark-{secrets.token_hex(4)}")
    try:
        registry.start_watchdog(folders.lab, seconds=_KEEP_SECONDS)
        folders.make(registry.groups())
        variables = spark_start.environment(found, folders)
        with Waiting("starting Spark", unit="slots") as waiting:
            master, started = f"local[{slots}]", []
            if workers:
                master = spark_start.master(registry, folders, variables, lambda: waiting(0, slots))
                started = [
                    spark_start.worker(registry, folders, variables, number, master)
                    for number in range(1, workers + 1)
                ]
            with waiting.during(0, slots):
                spark = _driver(registry, folders, variables, master)
            _wait_for_executors(spark, started, folders, lambda have: waiting(have, slots))
            waiting(slots, slots)
    except BaseException as error:
        _let_go(None)
        registry.stop(folders.lab)
        folders.forget()
        if isinstance(error, KeyboardInterrupt):
            raise RunStopped("the start of Spark", "stopped by you", "Nothing of it is left") from None
        raise
    _current = Session(spark, java=found, workers=workers, slots=slots, folders=folders, home=settings.home)
    if "ipykernel" not in sys.modules:
        atexit.register(_current.stop)
    return _current


def current() -> Session | None:
    """The session that runs in this process, if any."""
    return _current if _current is not None and _current._running else None


def _driver(
    registry: ProcessRegistry, folders: Folders, variables: dict[str, str], master: str
) -> "SparkSession":
    """The driver's JVM, in a session of its own and with its words in a log, and the SparkSession in it."""
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    log = folders.logs / "driver.log"
    _let_go(None)  # what somebody started by hand, and stopped: its JVM lives on in pyspark
    try:
        with _set(variables), log.open("ab") as output:
            gateway = launch_gateway(
                popen_kwargs={"start_new_session": True, "stdout": output, "stderr": subprocess.STDOUT}
            )
            registry.record(gateway.proc.pid, role="spark: driver", group_id=folders.lab)
            SparkContext._ensure_initialized(gateway=gateway)
            conf = SparkConf(_jvm=gateway.jvm).setMaster(master).setAppName("labkit")
            return SparkSession.builder.config(conf=conf).getOrCreate()
    except (PySparkException, Py4JError, Py4JNetworkError) as error:
        said = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
        fact = next((line for line in reversed(said) if "rror" in line or "xception" in line), str(error))
        raise ClusterError("start Spark's driver", fact.strip()[:300], f"read all of it in {log}") from error


def _wait_for_executors(
    spark: "SparkSession", workers: list[subprocess.Popen], folders: Folders, waiting: Callable
) -> None:
    status = spark.sparkContext._jsc.sc()
    deadline = time.monotonic() + _PATIENCE
    while workers and (have := status.getExecutorMemoryStatus().size() - 1) < len(workers):
        for number, process in enumerate(workers, start=1):
            spark_start.require_alive(process, folders, f"worker-{number}", deadline)
        waiting(have)
        time.sleep(0.1)


def _let_go(spark: "SparkSession | None") -> None:
    """Stop a session, and let pyspark forget its JVM, so that the next session starts one of its own."""
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext

    handler = signal.getsignal(signal.SIGINT)
    if spark is not None:
        # In a thread: a JVM that was killed, or hangs, must not keep us from stopping it by its record.
        stopper = threading.Thread(target=_quietly, args=(spark.stop,), daemon=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Unable to cleanly shutdown", category=RuntimeWarning)
            stopper.start()
            stopper.join(10)
    gateway = SparkContext._gateway
    if spark is not None or (gateway is not None and SparkContext._active_spark_context is None):
        if gateway is not None:
            _quietly(gateway.shutdown)
        SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
        if (sql := sys.modules.get("pyspark.sql")) is not None:
            sql.SparkSession._instantiatedSession = sql.SparkSession._activeSession = None
        # It handled Ctrl-C for a context that is gone.
        if getattr(handler, "__module__", "").startswith("pyspark") and _in_main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _quietly(call: Callable[[], Any]) -> None:
    with contextlib.suppress(Exception):
        call()


@contextlib.contextmanager
def _set(variables: dict[str, str]) -> Iterator[None]:
    """`variables` in this process's environment, for as long as what is started there inherits them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _require_no_other() -> None:
    """A process has one session of Spark: one that somebody else began is not ours to stop."""
    try:
        from pyspark import SparkContext
    except ImportError as error:
        raise EnvironmentProblem(
            "start Spark", f"pyspark cannot be imported: {error}", "make setup, or: pip install pyspark"
        ) from error
    active = SparkContext._active_spark_context
    if active is not None:
        raise ClusterError(
            "start Spark",
            f"this process has a session that the lab did not start ({active.master})",
            "stop that one (its .stop()), or work with it: TorchDistributor takes the one that is active",
        )
