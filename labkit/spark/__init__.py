"""Spark: what `SparkSession.builder` needs on this machine, and the panel of TorchDistributor."""

from labkit.spark.configuration import prepare
from labkit.spark.panel import SparkPanel

__all__ = ["SparkPanel", "prepare"]
