# %% [markdown]
# # Train on the rows of a DataFrame
#
# In lesson 07, Spark writes Parquet files and each rank reads its own. Spark also has a way without files of yours: each rank gets one **partition** of a DataFrame. It's what Petastorm was used for in older tutorials, and it comes with pyspark. Both names begin with an underscore, so they are private and may change; pin pyspark if you use them.
#
# You need lesson 07.

# %%
from course import datasets
from labkit.local import spark

spark.prepare()

# %%
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.cores.max", 2)
session = builder.getOrCreate()
raw = session.read.parquet(str(datasets.shipped("digits.parquet")))
digits = raw.select(
    F.transform("image", lambda pixel: (pixel / 255).cast("float")).alias("x"),
    F.col("label").cast("long").alias("y"),
).repartition(2)
sizes = [row["count"] for row in digits.groupBy(F.spark_partition_id()).count().collect()]
sizes

# %% [markdown]
# There have to be as many partitions as ranks. `repartition(2)` deals the rows in turn, so that the partitions have the same size, give or take a row.
#
# The loader yields `num_samples` rows in each epoch. Pass the same number in all ranks, because all ranks have to make the same number of steps: a larger partition leaves its last rows out, and a smaller one starts again at its first row. Each batch has a tensor for each column, in the order of the columns.


# %%
def train(rows, epochs):
    import torch
    import torch.distributed as dist
    from pyspark.ml.torch.distributor import _get_spark_partition_data_loader

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(784, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = _get_spark_partition_data_loader(num_samples=rows, batch_size=32, num_workers=0)
    inks = set()
    for _ in range(epochs):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            inks.update(x.sum(dim=1).tolist())
    inks_of_ranks = [None, None]
    dist.all_gather_object(inks_of_ranks, inks)
    weights = model.module.state_dict()
    del model  # before its process group goes
    dist.destroy_process_group()
    return inks_of_ranks, weights


# %% [markdown]
# `_train_on_dataframe` takes the function, the DataFrame, and the function's arguments. It needs executors: `local_mode=False`.

# %%
from labkit.spark import SparkPanel

distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
with SparkPanel("dataframe", epochs=3).watch(distributor):
    inks_of_ranks, weights = distributor._train_on_dataframe(train, digits, min(sizes), 3)

# %%
import torch

model = torch.nn.Linear(784, 10)
model.load_state_dict(weights)
table = digits.toPandas()
x, y = torch.tensor(table["x"].tolist()), torch.tensor(table["y"])
accuracy = (model(x).argmax(dim=1) == y).float().mean().item()
different = [len(inks) for inks in inks_of_ranks]
both = len(inks_of_ranks[0] & inks_of_ranks[1])
print(f"accuracy {accuracy:.2f}; different images: {different}, in both ranks {both}")

# %% tags=["claim"]
assert sum(sizes) == 1797 and abs(sizes[0] - sizes[1]) <= 1
assert accuracy > 0.85
assert min(different) > 850 and both < 50  # a few images have the same sum of pixels

# %% [markdown]
# Each rank trained on its own half. Spark writes a partition to the executor's disk before the rank reads it, at every launch, so the DataFrame is computed again for each run. If you train more than once on the same rows, write them as Parquet.

# %%
session.stop()
