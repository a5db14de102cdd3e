"""Spark: the panel of TorchDistributor. `labkit.local.spark` starts a session on this machine."""

from labkit.spark.panel import SparkPanel

__all__ = ["SparkPanel"]
