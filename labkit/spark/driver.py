"""The driver's JVM: started, asked and stopped. All undocumented names of pyspark are in this file.

Each function that uses one does without it where pyspark has changed: the driver then starts as pyspark
starts it.
"""

import contextlib
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.errors import ClusterError
from labkit.settings import variables_set

if TYPE_CHECKING:  # half a second to import
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_STOP_SECONDS = 10.0  # for Spark to stop itself
_ANSWER_SECONDS = 5.0  # for a JVM to answer


def start(
    master: str, variables: dict[str, str], log: Path, started: Callable[[int], object]
) -> "SparkSession":
    """Start a JVM in a POSIX session of its own, with its output in `log`, and a SparkSession in it.

    Args:
        variables: environment variables of the JVM and of all that it starts.
        started: called with the pid of the JVM.

    Raises:
        ClusterError: the JVM or the session does not start.
    """
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    forget()  # the JVM of a session that was started by hand and stopped lives on in pyspark
    try:
        with variables_set(variables), log.open("ab") as output:
            with contextlib.suppress(ImportError, AttributeError, TypeError):
                from pyspark.java_gateway import launch_gateway

                how = {"start_new_session": True, "stdout": output, "stderr": subprocess.STDOUT}
                gateway = launch_gateway(popen_kwargs=how)
                started(gateway.proc.pid)
                SparkContext._ensure_initialized(gateway=gateway)
            return SparkSession.builder.master(master).appName("labkit").getOrCreate()
    except (PySparkException, Py4JError, Py4JNetworkError) as error:
        lines = log.read_text(errors="replace").strip().splitlines()
        fact = next((line for line in reversed(lines) if "rror" in line or "xception" in line), str(error))
        fix = f"read {log}"
        if java := os.environ.get("JAVA_HOME"):
            fix += f", or unset JAVA_HOME ({java}): Spark 4 needs Java 17 or later, and the lab has one"
        raise ClusterError("start Spark's driver", fact.strip()[:300], fix) from error


def stop(spark: "SparkSession") -> None:
    """Stop a SparkSession. A JVM that does not answer has to be stopped by its process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Unable to cleanly shutdown", category=RuntimeWarning)
        _within(_STOP_SECONDS, spark.stop)
    forget(stopped=True)


def cancel_jobs(spark: "SparkSession") -> None:
    _within(_ANSWER_SECONDS, spark.sparkContext.cancelAllJobs)


def forget(*, stopped: bool = False) -> None:
    """Let pyspark forget a JVM without a running context, so that the next session starts a new one."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    if context is None or (active() is not None and not stopped):
        return
    if (gateway := getattr(context, "_gateway", None)) is not None:
        _within(_ANSWER_SECONDS, gateway.shutdown)
    # A context whose JVM was killed cannot stop, and leaves a port open.
    if (server := getattr(active(), "_accumulatorServer", None)) is not None:
        _within(_ANSWER_SECONDS, server.shutdown)
    context._active_spark_context = context._gateway = context._jvm = None
    if (sql := sys.modules.get("pyspark.sql")) is not None:
        sql.SparkSession._instantiatedSession = sql.SparkSession._activeSession = None


def active() -> "SparkContext | None":
    """The active SparkContext of this process, even one that the reader started. Does not import pyspark."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return getattr(context, "_active_spark_context", None)


def _within(seconds: float, call: Callable[[], object]) -> None:
    """Call into the JVM, and return after `seconds` at the latest: one that hangs does not answer."""

    def quietly() -> None:
        with contextlib.suppress(Exception):  # of a JVM that is gone
            call()

    caller = threading.Thread(target=quietly, name="labkit-spark", daemon=True)
    caller.start()
    caller.join(seconds)
