"""What Spark needs to start here: folders, settings and environment variables.

Everything listens on loopback, and only for processes that know the secret (``spark.authenticate``). A new
secret is drawn for each start. It is in a file of mode 0600, and in no command line. Logs go to files.
"""

import secrets
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import SetupError
from labkit.files import private_file
from labkit.spark import rendezvous
from labkit.system import java
from labkit.system.process_registry import GROUP_VARIABLE

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"  # the network interface, for gloo
WORKER_MB = 1024  # memory that an executor may have

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


@dataclass(frozen=True)
class Folders:
    """The folders of one start of Spark, below ``HOME/spark/GROUP_ID``: ``logs`` and those of `_PARTS`.

    Attributes:
        base: ``HOME/spark``.
        group_id: of the processes of this start.
    """

    base: Path
    group_id: str

    # ``home`` is SPARK_HOME: links to pyspark's programs and jars, but not to its ``python``. With that
    # folder all Python processes would import pyspark from a zip file, which each compiles (1 s of CPU).
    _PARTS = ("conf", "home", "scratch", "rendezvous")

    def __truediv__(self, name: str) -> Path:
        return self.base / self.group_id / name

    def make(self, running: list[str], *, workers: int) -> None:
        """Create them, with the settings in them, and remove those of earlier starts.

        Args:
            running: ids of starts that may still run.
            workers: number of executors.

        Raises:
            SetupError: the disk does not allow it.
        """
        import pyspark

        settings = {**_SETTINGS, "spark.authenticate.secret": secrets.token_hex(32)}
        if workers:
            settings["spark.cores.max"] = str(workers)
        try:
            for old in self.base.glob("spark-*"):
                if old.name not in running:
                    shutil.rmtree(old, ignore_errors=True)
            for name in (*self._PARTS, "logs"):
                (self / name).mkdir(parents=True, mode=0o700)
            rendezvous.prepare(self / "rendezvous")
            for name in ("bin", "jars"):
                (self / "home" / name).symlink_to(Path(pyspark.__file__).parent / name)
            (self / "home" / "work").symlink_to(self / "logs")  # logs of the executors
            lines = "".join(f"{name} {value}\n" for name, value in settings.items())
            private_file(self / "conf" / "spark-defaults.conf", lines)
            (self / "conf" / "log4j2.properties").write_text(_LOGGING)
        except OSError as error:
            fix = "make that folder writable, or set LABKIT_HOME to one that is"
            raise SetupError(f"prepare {self.base} for Spark", str(error), fix) from error

    def forget(self) -> None:
        """Remove the secret and Spark's files; the logs stay until the next start."""
        for name in self._PARTS:
            shutil.rmtree(self / name, ignore_errors=True)


def environment(folders: Folders) -> dict[str, str]:
    """Environment variables of Spark's JVMs, which everything that they start inherits."""
    return {
        GROUP_VARIABLE: folders.group_id,
        "JAVA_HOME": str(java.home(folders.base / "java")),
        "SPARK_CONF_DIR": str(folders / "conf"),
        "SPARK_HOME": str(folders / "home"),  # another Spark on this machine would not fit this pyspark
        "SPARK_LAUNCHER_OPTS": _JVM,
        "SPARK_LOCAL_DIRS": str(folders / "scratch"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        **rendezvous.variables(folders / "rendezvous"),
    }
