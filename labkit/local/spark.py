"""Spark's configuration on this machine, for a session that you build yourself.

    spark.prepare()                        # before the first import of pyspark
    session = SparkSession.builder.master("local[2]").getOrCreate()

A cluster's platform has done all of this. Here it is a folder below the lab's home and six environment
variables: a Java that works, addresses on loopback, and a secret without which no process can connect. The
script that starts Java puts the lab's mark into the JVM's environment, so ``python -m labkit stop`` and the
supervisor find it (`labkit.local.family`).
"""

import contextlib
import json
import os
import secrets
import shutil
import socket
import sys
from importlib import util
from pathlib import Path

import psutil

from labkit import machine
from labkit.errors import BadInput, LabError, expect_installed
from labkit.files import private_file
from labkit.local import java, temporary
from labkit.local.lab import Lab
from labkit.settings import OTHER_HOME, Settings
from labkit.spark import prepared
from labkit.spark.prepared import folder_of

__all__ = ["prepare"]

_KEEP_SECONDS = 5  # the driver's JVM ends with its kernel: there is nothing that a new kernel could use
# For JVMs that live for minutes on few cores: the quick compiler and a collector with one thread.
_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
_DEFAULTS = {
    "spark.authenticate": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": _JVM,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": _JVM,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # With spark.cores.max, a session is ready when that many cores have registered; give up after a minute.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    # By default Spark checks 40 times, 15 s apart, whether a barrier stage fits: ten minutes of silence.
    # Executors that are still starting get half a minute.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "30",
    # A rank that raised once raises again, so report its first failure instead of the fourth.
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.task.maxFailures": "1",
}
# Into a file: a notebook shows what the JVM prints below the cell, and Spark's errors have hundreds of lines.
_LOGGING = """
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


def prepare(*, settings: Settings | None = None) -> None:
    """Set the environment variables with which `SparkSession.builder` works on this machine.

    Raises:
        LabError: a variable of another tutorial is in the way, there is no Java, or the home cannot be
            written to.
    """
    expect_installed("start Spark", "pyspark")
    _refuse_what_is_in_the_way()
    lab = Lab((settings or Settings.from_env()).make_home())
    folder = folder_of(lab.home)
    pyspark = util.find_spec("pyspark")
    assert pyspark is not None and pyspark.origin is not None
    installed = Path(pyspark.origin).parent
    # The supervisor ends a group that no process uses.
    lab.use(group(), keep=_KEEP_SECONDS)
    if prepared.current(lab.home) is None:  # an earlier process may have had this pid, and another Python
        for name in ("conf", "home"):
            shutil.rmtree(folder / name, ignore_errors=True)
    try:
        for name in ("conf", "home", "scratch", "logs"):
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        _link(folder / "home" / "bin", installed / "bin")
        _link(folder / "home" / "jars", installed / "jars")
        _link(folder / "home" / "work", folder / "logs")  # the logs of the executors
        options = {**_DEFAULTS, "spark.authenticate.secret": secrets.token_hex(32)}
        lines = "".join(f"{name} {value}\n" for name, value in options.items())
        private_file(folder / "conf" / "spark-defaults.conf", lines)
        # Java reads properties as ASCII with the escapes of JSON.
        log = json.dumps(str(folder / "logs" / "driver.log"))[1:-1]
        logging = _LOGGING.format(file=log)
        (folder / "conf" / "log4j2.properties").write_text(logging)
    except OSError as error:
        raise LabError(f"prepare {folder} for Spark", str(error), OTHER_HOME) from error
    java_home = java.home(folder / "java", lab.mark(group()))
    variables = {
        "JAVA_HOME": java_home,
        # Not pyspark's own folder: Spark would write its executors' logs there. All Python processes of the
        # executors would import pyspark from a zip file in it, and each would compile it.
        "SPARK_HOME": folder / "home",
        "SPARK_CONF_DIR": folder / "conf",
        "SPARK_LOCAL_DIRS": folder / "scratch",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LAUNCHER_OPTS": _JVM,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "GLOO_SOCKET_IFNAME": machine.LOOPBACK,
    }
    os.environ.update({name: str(value) for name, value in variables.items()})
    _leave_unusable_folders()
    prepared.use(prepared.Prepared(lab.home, folder, lab.mark(group()), lambda: _ranks(lab)))


def _leave_unusable_folders() -> None:
    """Remove the variable of a folder in which sockets don't fit: the JVM and the ranks would inherit it.

    torch's DataLoader listens there, and its processes hang without a word where the path is too long.
    """
    for name in os.environ.keys() - temporary.without_unusable(os.environ).keys():
        del os.environ[name]


def _ranks(lab: Lab) -> list[psutil.Process]:
    members = lab.running(group())
    return [member.process for member in members if "TORCHELASTIC_RUN_ID" in member.environment]


def group() -> str:
    """Return the group of this process's Spark in `labkit.local.family`."""
    return f"spark-{os.getpid()}"


def _link(link: Path, target: Path) -> None:
    with contextlib.suppress(FileExistsError):
        link.symlink_to(target)


def _refuse_what_is_in_the_way() -> None:
    """Raise `BadInput` if a variable that another tutorial has set makes `SparkSession.builder` fail."""
    names = ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"]  # a Spark Connect server
    if os.environ.get("SPARK_API_MODE", "").lower() != "classic":
        names.append("SPARK_API_MODE")
    if "pyspark-shell" not in os.environ.get("PYSPARK_SUBMIT_ARGS", "").split():
        names.append("PYSPARK_SUBMIT_ARGS")  # spark-submit misses what it should run
    if not _is_open(os.environ.get("PYSPARK_GATEWAY_PORT", "")):
        names += ["PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"]  # of a shell that has ended
    variables = [name for name in names if name in os.environ]
    if not variables:
        return
    values = " and ".join(f"{name}={os.environ[name]!r}" for name in variables)
    fact = f"another tutorial has set {values}, which leads Spark elsewhere"
    entries = ", ".join(f'os.environ["{name}"]' for name in variables)
    raise BadInput("start Spark on this machine", fact, f"import os; del {entries}, then run the cell again")


def _is_open(port: str) -> bool:
    with contextlib.suppress(OSError, ValueError, OverflowError):
        socket.create_connection(("127.0.0.1", int(port)), timeout=1).close()
        return True
    return False
