"""Spark: a session on this machine, and the panel of TorchDistributor."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    launch=("LOOPBACK",),
    lifecycle=("Session", "current", "session"),
    panel=("RankTracker", "SparkPanel"),
)
