"""Spark: a session on this machine, and the panel of TorchDistributor.

    lab = spark.session(slots=2)
    distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
    with SparkPanel("07-local", epochs=3).watch(distributor):
        distributor.run(train)

pyspark (half a second) is imported when a session starts.
"""

from labkit.spark.driver import LOOPBACK, Session, current, session
from labkit.spark.panel import RankTracker, SparkPanel

__all__ = ["LOOPBACK", "RankTracker", "Session", "SparkPanel", "current", "session"]
