"""Spark: a session on this machine, and the panel of TorchDistributor."""

from labkit.local.spark import Session, current, session
from labkit.spark.panel import SparkPanel

__all__ = ["Session", "SparkPanel", "current", "session"]
