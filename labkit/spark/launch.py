"""What Spark needs in order to start here: a folder of its own, its settings, its environment, its programs.

Everything listens on loopback, and only for whoever has the secret: ``spark.authenticate``, with a secret
that is drawn anew for each start and stands in a file of mode 0600, in no command line and in no variable of
the driver or the master. Logs go to files.
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labkit.cluster import nodes as ray_start
from labkit.errors import ClusterError, EnvironmentProblem
from labkit.system.java import Java
from labkit.system.process_registry import GROUP_VARIABLE, ProcessRegistry

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"  # the interface's name, for gloo
_PATIENCE = 60.0  # seconds until a program that does not come up counts as failed

# Short-lived JVMs on few cores: the quick compiler and the collector with one thread start soonest.
_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"

# Spark reads them from spark-defaults.conf, the driver, the master and the workers alike.
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
    "spark.ui.killEnabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    # Spark asks 40 times, 15 s apart, whether a barrier stage has room by now: ten minutes in silence.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "3",
    # A rank that raised once will raise again: told at the first time, not after the fourth.
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
    """Where one start of Spark keeps its things: ``HOME/spark/LAB``.

    Attributes:
        base: of all starts.
        lab: the id of this one.
    """

    base: Path
    lab: str

    @property
    def conf(self) -> Path:
        return self.base / self.lab / "conf"

    @property
    def home(self) -> Path:
        """Spark's programs and jars, as ``SPARK_HOME``.

        Links to those of pyspark, all but ``python``: from there Spark's own Python processes and all that
        they start would import pyspark out of a zip, which each of them compiles anew (about 1 s of CPU).
        Without it they import the one that is installed.
        """
        return self.base / self.lab / "home"

    @property
    def logs(self) -> Path:
        return self.base / self.lab / "logs"

    @property
    def scratch(self) -> Path:
        return self.base / self.lab / "scratch"

    def make(self, living: list[str]) -> None:
        """Make them, with the settings in them; those of starts that are over are removed.

        Args:
            living: ids of labs that may still run.

        Raises:
            EnvironmentProblem: the disk does not let us.
        """
        try:
            for old in self.base.glob("spark-*"):
                if old.name not in living:
                    shutil.rmtree(old, ignore_errors=True)
            for folder in (self.conf, self.home, self.logs, self.scratch):
                folder.mkdir(parents=True, mode=0o700)
            for name in ("bin", "jars"):
                (self.home / name).symlink_to(_installed() / name, target_is_directory=True)
            settings = {**_SETTINGS, "spark.authenticate.secret": secrets.token_hex(32)}
            defaults = self.conf / "spark-defaults.conf"
            defaults.touch(mode=0o600)
            defaults.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
            (self.conf / "log4j2.properties").write_text(_LOGGING)
        except OSError as error:
            fix = "make that folder writable, or point LABKIT_HOME at one that is"
            raise EnvironmentProblem(f"prepare {self.base} for Spark", str(error), fix) from error

    def forget(self) -> None:
        """Remove the secret and what Spark kept on disk; the logs stay until the next start."""
        for folder in (self.conf, self.home, self.scratch):
            shutil.rmtree(folder, ignore_errors=True)


def environment(java: Java, folders: Folders) -> dict[str, str]:
    """What Spark's programs, and whatever they start in turn, get besides this process's environment."""
    return {
        GROUP_VARIABLE: folders.lab,
        "JAVA_HOME": str(java.prepared(folders.base / "java")),
        "SPARK_CONF_DIR": str(folders.conf),
        "SPARK_HOME": str(folders.home),  # an older Spark of somebody's would not fit this pyspark
        "SPARK_DAEMON_JAVA_OPTS": _JVM,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LAUNCHER_OPTS": _JVM,
        "SPARK_LOCAL_DIRS": str(folders.scratch),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "GLOO_SOCKET_IFNAME": LOOPBACK,
    }


def master(registry: ProcessRegistry, folders: Folders, variables: dict[str, str], waiting: Callable) -> str:
    """Start a standalone master; its address.

    Raises:
        ClusterError: it does not come up.
    """
    port = ray_start.free_port()
    process = _start(
        registry, folders, variables, "spark: master", "org.apache.spark.deploy.master.Master",
        "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0",
    )  # fmt: skip
    deadline = time.monotonic() + _PATIENCE
    while not _listens(port):
        require_alive(process, folders, "master", deadline)
        waiting()
        time.sleep(0.1)
    return f"spark://127.0.0.1:{port}"


def worker(
    registry: ProcessRegistry, folders: Folders, variables: dict[str, str], number: int, address: str
) -> subprocess.Popen:
    """Start a worker with one slot; it signs up at the master, and starts an executor when one is wanted."""
    return _start(
        registry, folders, variables, f"spark: worker-{number}", "org.apache.spark.deploy.worker.Worker",
        "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0",
        "--work-dir", str(folders.logs / f"worker-{number}"), address,
    )  # fmt: skip


def require_alive(process: subprocess.Popen, folders: Folders, name: str, deadline: float) -> None:
    """Refuse to wait on for a program that ended, or for longer than `deadline`.

    Raises:
        ClusterError: with the last line that it logged.
    """
    if process.poll() is None and time.monotonic() < deadline:
        return
    log = folders.logs / f"{name}.log"
    said = (log.read_text(errors="replace") if log.is_file() else "").strip().splitlines()
    ended = "it ended" if process.poll() is not None else f"it was not ready after {_PATIENCE:.0f} s"
    raise ClusterError(f"start Spark's {name}", f"{ended}: {said[-1] if said else 'no log'}", f"read {log}")


def _start(
    registry: ProcessRegistry,
    folders: Folders,
    variables: dict[str, str],
    role: str,
    program: str,
    *options: str,
) -> subprocess.Popen:
    command = [str(folders.home / "bin" / "spark-class"), program, *options]
    log = folders.logs / f"{role.rpartition(' ')[2]}.log"
    return registry.start(command, role=role, group_id=folders.lab, log=log, env={**os.environ, **variables})


def _installed() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) == 0
