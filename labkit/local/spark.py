"""A Spark session on this machine, with a Java that works, that leaves nothing behind.

    lab = spark.session(slots=2)       # one JVM is driver and executor: ``local[2]``
    lab = spark.session(workers=2)     # two executors, each a JVM of its own: ``local-cluster[2,1,1024]``

Everything listens on loopback, and only for processes that know a secret, which is drawn for each start and
is in a file of mode 0600. ``python -m labkit stop``, and the supervisor after a kill of the kernel, find the
JVM by the lab's mark (`labkit.local.family`).
"""

import atexit
import contextlib
import logging
import os
import secrets
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from labkit import interrupts, process_info
from labkit.display import cards
from labkit.errors import LabError, expect_int
from labkit.files import private_file
from labkit.local import family, java, supervision
from labkit.settings import OTHER_HOME, Settings, logs_held_back, variables_set
from labkit.spark import sessions
from labkit.spark.sessions import LOOPBACK, active, current

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["Session", "current", "session"]

_KEEP_SECONDS = 5  # the driver's JVM ends with its kernel: there is nothing that a new kernel could use
_PATIENCE = 10.0  # seconds for Spark to stop itself, or for ranks to end after their job was cancelled
_WORKER_MB = 1024  # memory that an executor may have
# For JVMs that live for minutes on few cores: the quick compiler and a collector with one thread.
_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
_SETTINGS = {
    "spark.authenticate": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": _JVM,
    "spark.executor.extraJavaOptions": _JVM,
    "spark.executor.cores": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    # A session is ready when all executors have registered; give up after a minute.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    # By default Spark checks 40 times, 15 s apart, whether a barrier stage fits: ten minutes of silence.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "3",
    # A rank that raised once raises again, so report its first failure instead of the fourth.
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.task.maxFailures": "1",
}
_LOGGING = """
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


class Session:
    """A running Spark. Displays itself; a context manager that stops it."""

    def __init__(self, spark: "SparkSession", home: Path, group: str, slots: int) -> None:
        self.spark, self.master = spark, spark.sparkContext.master  # "local[2]", "local-cluster[2,1,1024]"
        self.slots = slots  # tasks that can run at the same time
        self.home, self.group = home, group  # of its processes in `labkit.local.family`
        self.running = True

    @property
    def healthy(self) -> bool:
        """Whether its driver is alive, which restarts executors that end."""
        return self.running and self.spark.sparkContext._gateway.proc.poll() is None

    @property
    def mark(self) -> dict[str, str]:
        """The environment variable by which a process belongs to it."""
        return family.mark(self.home, self.group)

    @property
    def log_dir(self) -> str:
        """The folder with the logs of driver and executors. It is kept until the next session starts."""
        return str(_folder(self.home, self.group) / "logs")

    def ranks(self) -> list[psutil.Process]:
        """The processes of ranks that torchrun has started in this session."""
        members = family.running(self.home, self.group)
        return [one.process for one in members if "TORCHELASTIC_RUN_ID" in one.environment]

    def cancel(self) -> None:
        """Cancel all jobs of this session, and end the processes of their ranks (takes some seconds)."""
        if self.running:
            _within(_PATIENCE / 2, self.spark.sparkContext.cancelAllJobs)
            _, left = psutil.wait_procs(self.ranks(), timeout=_PATIENCE / 2)
            process_info.terminate(left, grace=1)

    def stop(self) -> None:
        """Stop Spark and all its processes."""
        if not self.running:
            return
        with interrupts.stoppable("session.stop()", left="Spark has been stopped all the same"):
            self.running = False
            atexit.unregister(self.stop)
            _end(self.home, self.group, self.spark)

    def __repr__(self) -> str:
        return f"Session({self.master}, {f'{self.slots} slots' if self.running else 'stopped'})"

    def _repr_html_(self) -> str:
        status = ("ok", "running") if self.running else ("dim", "stopped")
        return cards.card("Spark", status, cards.text(f"{self.slots} slots"), dim=self.master)

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
        LabError: there is no Java, the home cannot be written to, a process did not start, this process has a
            Spark that the lab did not start, or the arguments cannot work.
        RunStopped: interrupted; nothing is left running.
    """
    expect_int("start Spark", "workers", workers, least=0)
    if slots is not None:
        expect_int("start Spark", "slots", slots)
    if slots is not None and workers:
        fix = f"spark.session(slots={slots}) for one JVM, or spark.session(workers={workers}) for executors"
        raise LabError("start Spark", "slots and workers are two kinds of session", fix)
    settings = Settings.given(settings)
    slots = workers or slots or settings.num_workers
    master = f"local-cluster[{workers},1,{_WORKER_MB}]" if workers else f"local[{slots}]"
    if (running := current()) is not None:
        if running.master == master and running.healthy:
            return running
        running.stop()  # a process can have one Spark session only
    if (theirs := active()) is not None:
        fact = f"this process has a session that the lab did not start ({theirs.master})"
        fix = "SparkSession.active().stop(), or use it: TorchDistributor uses the active session"
        raise LabError("start Spark", fact, fix)
    home, group = settings.make_home(), f"spark-{secrets.token_hex(4)}"
    with interrupts.stoppable("the start of Spark", undo=lambda: _end(home, group, active())) as check:
        # In this order: another kernel that starts meanwhile removes folders that no process uses.
        supervision.use(home, group, keep=_KEEP_SECONDS)
        try:
            _prepare(_folder(home, group), used=supervision.users(home).keys(), workers=workers)
        except OSError as error:
            raise LabError(f"prepare {_folder(home, group)} for Spark", str(error), OTHER_HOME) from error
        check()
        started = Session(_start(master, home, group, check), home, group, slots)
        check()
        infos = started.spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
        if (found := len(infos) - 1) < workers:  # the driver is one of them
            raise LabError("start Spark", f"{found} of {workers} executors run", f"read {started.log_dir}")
    sessions.use(started)
    if "ipykernel" not in sys.modules:
        atexit.register(started.stop)
    return started


def _folder(home: Path, group: str) -> Path:
    return home / "spark" / group


def _prepare(folder: Path, *, used: Collection[str], workers: int) -> None:
    """Create the folders of one start, and remove those of earlier ones.

    conf/     settings, with the secret
    home/     SPARK_HOME: links to pyspark's programs and jars, but not to its ``python``. With that
              folder all Python processes would import pyspark from a zip file, and each would compile it
    scratch/  what Spark writes
    logs/     of driver and executors; they stay until the next start
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    settings = {**_SETTINGS, "spark.authenticate.secret": secrets.token_hex(32)}
    if workers:
        settings["spark.cores.max"] = str(workers)
    for old in folder.parent.glob("spark-*"):
        if old.name not in used:
            shutil.rmtree(old, ignore_errors=True)
    for name in ("conf", "home", "scratch", "logs"):
        (folder / name).mkdir(parents=True, mode=0o700)
    lines = "".join(f"{name} {value}\n" for name, value in settings.items())
    private_file(folder / "conf" / "spark-defaults.conf", lines)
    (folder / "conf" / "log4j2.properties").write_text(_LOGGING)
    links = {"bin": installed / "bin", "jars": installed / "jars", "work": folder / "logs"}
    for name, place in links.items():  # "work" is for the logs of the executors
        (folder / "home" / name).symlink_to(place)


def _start(master: str, home: Path, group: str, check: Callable[[], None]) -> "SparkSession":
    """Start a JVM in a POSIX session of its own, and open a SparkSession in it.

    Raises:
        LabError: the JVM or the session does not start.
    """
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    _forget_jvm()  # the JVM of a session that was started by hand and stopped lives on in pyspark
    folder, named = _folder(home, group), os.environ.get("JAVA_HOME")
    log = folder / "logs" / "driver.log"
    variables = {
        **family.mark(home, group),
        "JAVA_HOME": java.home(folder.parent / "java"),
        "SPARK_HOME": folder / "home",
        "SPARK_CONF_DIR": folder / "conf",
        "SPARK_LAUNCHER_OPTS": _JVM,
        "SPARK_LOCAL_DIRS": folder / "scratch",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "GLOO_SOCKET_IFNAME": LOOPBACK,
    }
    try:
        with (
            variables_set({n: str(v) for n, v in variables.items()}),
            log.open("ab") as output,
            interrupts.handler_kept(),
            logs_held_back(logging.CRITICAL),  # py4j logs a traceback if an interrupt meets pyspark's handler
        ):
            how = {"start_new_session": True, "stdout": output, "stderr": subprocess.STDOUT}
            gateway = launch_gateway(popen_kwargs=how)
            check()
            SparkContext._ensure_initialized(gateway=gateway)
            return SparkSession.builder.master(master).appName("labkit").getOrCreate()
    except (PySparkException, Py4JError, Py4JNetworkError) as error:
        lines = log.read_text(errors="replace").strip().splitlines()
        fact = next((line for line in reversed(lines) if "rror" in line or "xception" in line), str(error))
        fix = f"read {log}"
        if named:
            fix += f", or unset JAVA_HOME ({named}): Spark 4 needs Java 17 or later, and the lab has one"
        raise LabError("start Spark's driver", fact.strip()[:300], fix) from error


def _end(home: Path, group: str, spark: "SparkSession | SparkContext | None") -> None:
    """Stop all of a start, and remove its secret and files. The logs stay until the next start.

    `spark` also listens in this process.
    """
    if spark is not None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Unable to cleanly shutdown", RuntimeWarning)
            _within(_PATIENCE, spark.stop)
    with logs_held_back(logging.CRITICAL):  # py4j tells with a traceback that its JVM has gone
        _forget_jvm()
        supervision.stop(home, group)
    for name in ("conf", "home", "scratch"):
        shutil.rmtree(_folder(home, group) / name, ignore_errors=True)


def _forget_jvm() -> None:
    """Let pyspark forget a JVM that has no session, so that the next one starts a new JVM."""
    if (context := getattr(sys.modules.get("pyspark"), "SparkContext", None)) is None:
        return
    if context._gateway is not None:
        _within(_PATIENCE / 2, context._gateway.shutdown)
    context._active_spark_context = context._gateway = context._jvm = None
    if (sql := sys.modules.get("pyspark.sql")) is not None:
        sql.SparkSession._instantiatedSession = sql.SparkSession._activeSession = None


def _within(seconds: float, call: Callable[[], object]) -> None:
    """Call into the JVM, and return after `seconds` at the latest: one that hangs does not answer."""

    def quietly() -> None:
        with contextlib.suppress(Exception):  # of a JVM that is gone
            call()

    caller = threading.Thread(target=quietly, name="labkit-spark", daemon=True)
    caller.start()
    caller.join(seconds)
