"""The Spark of this process: a session that the lab started, or one of the reader's own."""

import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark import SparkContext

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"  # the network interface, for gloo


class Session(Protocol):
    """What a panel asks of a session that the lab started."""

    running: bool
    log_dir: str  # the folder with the logs of driver and executors
    mark: dict[str, str]  # the environment variable by which a process belongs to it

    def ranks(self) -> list[Any]:
        """Return the processes of ranks that torchrun has started in this session."""

    def cancel(self) -> None:
        """Cancel all jobs of this session, and end the processes of their ranks."""


_current: Session | None = None


def use(session: Session) -> None:
    """Make a session the current one."""
    global _current
    _current = session


def current() -> Any:
    """Return the session of the lab that runs in this process; None if there is none."""
    return _current if _current is not None and _current.running else None


def active() -> "SparkContext | None":
    """Return the active SparkContext of this process, even one that the reader started.

    This doesn't import pyspark.
    """
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return getattr(context, "_active_spark_context", None)
