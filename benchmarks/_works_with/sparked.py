"""What the rows of TorchDistributor share: a session, and two ranks on the driver."""

from collections.abc import Callable
from pathlib import Path

from benchmarks._works_with import problem
from benchmarks._works_with.measure import seen_by_panel
from labkit.local import spark
from labkit.panel.reporters import NullReporter
from labkit.settings import variables_set
from labkit.spark import SparkPanel

ROOT = Path(__file__).resolve().parents[2]
EPOCHS = 2


def measured(loop: Callable, name: str, rows_of: Callable) -> dict[str, bool]:
    """Run `loop(epochs)` on two local ranks; it returns the weights of both."""
    spark.prepare()
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").getOrCreate()
    try:
        panel = SparkPanel(name, reporter=NullReporter())
        distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
        with variables_set({"PYTHONPATH": str(ROOT)}), panel.watch(distributor):  # the ranks import the row
            ranks = distributor.run(loop, EPOCHS)
    finally:
        session.stop()
    return seen_by_panel(panel, name, ranks, problem.Reference(EPOCHS, rows_of), reports=False)
