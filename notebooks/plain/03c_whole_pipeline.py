"""Images from a store, in a different order in each epoch, and a resume at the row: lesson 03c in plain Ray.

Reads STORAGE (a folder or s3://bucket/prefix). A rank dies on the way. Prints the accuracy, about 0.85.
"""

import io
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import PIL.Image
import pyarrow.parquet
import ray.data
import torch
from ray import cloudpickle, train
from ray.train.torch import TorchTrainer, prepare_model

sys.path.append(str(Path(__file__).resolve().parents[1]))
import my_loop  # noqa: E402  the file of lesson 03b

cloudpickle.register_pickle_by_value(my_loop)
table = pyarrow.parquet.read_table(Path(__file__).resolve().parents[2] / "datasets/digits.parquet")
images, labels = table["image"].combine_chunks().to_numpy_ndarray(), table["label"].to_numpy()
storage = os.environ.get("STORAGE") or tempfile.mkdtemp()
files, root = pyarrow.fs.FileSystem.from_uri(storage)
names = [f"{root}/{number}-{labels[number]}.png" for number in range(512)]
for name, image in zip(names, images, strict=False):
    with files.open_output_stream(name) as stream:
        PIL.Image.fromarray(image).save(stream, "PNG")


def fetch(row):
    with files.open_input_stream(row["item"]) as stream:
        image = np.asarray(PIL.Image.open(io.BytesIO(stream.read())), np.float32)
    return {"x": image / 255, "y": int(row["item"][-5])}


def train_loop(config):
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    rank, model = train.get_context().get_world_rank(), prepare_model(config["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = done = my_loop.resume(model, optimizer)  # steps of both workers, with 64 rows: 8 in an epoch
    while done < 40:
        order = np.random.default_rng((7, done // 8)).permutation(names).tolist()
        left = ray.data.from_items(order[done % 8 * 64 :][rank::2], override_num_blocks=4)
        for batch in left.map(fetch, num_cpus=0.5).iter_torch_batches(batch_size=32):
            loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done % 3 == 0 or done == 40:
                my_loop.save(model, optimizer, done - 1, {"loss": loss.item()})
            if done == 13 and rank == 1 and first == 0:
                os._exit(1)


address = os.environ.get("RAY_ADDRESS", "local")  # a cluster of its own, even if one runs here
ray.init(address, num_cpus=3 if address == "local" else None, log_to_driver=False)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
run = train.RunConfig(storage_path=storage, failure_config=train.FailureConfig(1))
two = train.ScalingConfig(num_workers=2)
result = TorchTrainer(train_loop, train_loop_config={"model": model}, scaling_config=two, run_config=run).fit()
with result.checkpoint.as_directory() as folder:
    model.load_state_dict(torch.load(f"{folder}/state.pt", weights_only=True)["model"])
right = model(torch.tensor(images[1437:]) / 255).argmax(dim=1) == torch.tensor(labels[1437:])
print(f"accuracy {right.float().mean():.3f}, checkpoint {result.checkpoint.path}")
