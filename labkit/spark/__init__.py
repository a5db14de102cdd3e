"""Spark: the panel of TorchDistributor. `labkit.local.spark` prepares Spark on this machine."""

from labkit.spark.panel import SparkPanel

__all__ = ["SparkPanel"]
