# %% [markdown]
# # Launch a Lightning module on Spark
#
# What runs under torchrun runs under `TorchDistributor`. Lightning reads torchrun's variables by itself, so all you have to tell its `Trainer` is how many processes a machine has, and how many machines there are.
#
# You need lesson 07.

# %%
from course import datasets
from labkit.local import spark

spark.prepare()
digits = datasets.load(split="train")

# %%
import torch
from pyspark.sql import SparkSession
from torch.utils.data import DataLoader, TensorDataset

session = SparkSession.builder.master("local[2]").getOrCreate()
images = TensorDataset(torch.tensor(digits.images).flatten(1) / 255, torch.tensor(digits.labels))


def train_with_lightning(epochs):
    import lightning

    class Digits(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Linear(784, 10)

        def training_step(self, batch, _):
            x, y = batch
            return torch.nn.functional.cross_entropy(self.model(x), y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    trainer = lightning.Trainer(
        max_epochs=epochs, devices=2, num_nodes=1, strategy="ddp", accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = Digits()
    trainer.fit(module, DataLoader(images, batch_size=64))
    return module.model.state_dict()


# %% [markdown]
# Lightning wraps the model, gives each rank its own rows and makes the steps. In local mode all processes are on one machine. On executors with one task each, it's `devices=1` and `num_nodes=2`.

# %%
from labkit.spark import SparkPanel
from pyspark.ml.torch.distributor import TorchDistributor

distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
with SparkPanel("lightning").watch(distributor):
    weights = distributor.run(train_with_lightning, 3)

model = torch.nn.Linear(784, 10)
model.load_state_dict(weights)
x, y = images.tensors
accuracy = (model(x).argmax(dim=1) == y).float().mean().item()
print(f"accuracy on the training images: {accuracy:.2f}")

# %% tags=["claim"]
assert accuracy > 0.8

# %%
session.stop()
