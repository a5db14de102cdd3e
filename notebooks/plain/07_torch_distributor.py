"""Train on two processes that Spark's TorchDistributor starts: what lesson 07 does, in plain Spark.

Prints the accuracy on held-out images. With the argument --executors, Spark's tasks start the processes.
"""

import os
import sys
from pathlib import Path

import pyarrow.parquet
import torch
import torch.distributed as dist
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession

DIGITS = str(Path(__file__).resolve().parents[2] / "datasets/digits.parquet")


def train(path, epochs):
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    table = pyarrow.parquet.read_table(path)
    images = table["image"].combine_chunks().to_numpy_ndarray()
    x = torch.tensor(images, dtype=torch.float32).flatten(1) / 255
    y = torch.tensor(table["label"].to_numpy())
    mine = slice(rank, 1436, world_size)  # every rank gets the same number of rows
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(28 * 28, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(epochs):
        for rows in torch.arange(len(y))[mine].split(64):
            loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.barrier()  # a rank that fails above makes the others fail here; without it, run() may return a value
    accuracy = (model(x[1437:]).argmax(dim=1) == y[1437:]).float().mean().item()
    del model  # before its process group goes, or a rank may hang
    dist.destroy_process_group()
    return accuracy


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for Spark's own Python processes
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    local_mode = "--executors" not in sys.argv
    distributor = TorchDistributor(num_processes=2, local_mode=local_mode, use_gpu=False)
    print("accuracy on 360 test images:", round(distributor.run(train, DIGITS, 5), 3))
    session.stop()
