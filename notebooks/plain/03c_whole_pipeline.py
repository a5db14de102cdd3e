"""Images from a store, in a different order in each epoch, and a resume at the row: lesson 03c in plain Ray.

Uses my_loop.py, from the folder above. Reads STORAGE (a folder or s3://bucket/prefix). Rank 1 dies once.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import PIL.Image
import pyarrow.parquet
import ray.data
import ray.train.torch
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import my_loop

table = pyarrow.parquet.read_table(Path(__file__).resolve().parents[2] / "datasets/digits.parquet")
images, labels = table["image"].combine_chunks().to_numpy_ndarray(), table["label"].to_numpy()
files, root = pyarrow.fs.FileSystem.from_uri(os.environ.get("STORAGE") or tempfile.mkdtemp())
names = [f"{root}/{number}-{labels[number]}.png" for number in range(512)]
for name, image in zip(names, images, strict=False):
    with files.open_output_stream(name) as stream:
        PIL.Image.fromarray(image).save(stream, "PNG")


def fetch(row):
    with files.open_input_file(row["item"]) as file:
        return {"x": np.asarray(PIL.Image.open(file), np.float32) / 255, "y": int(row["item"][-5])}


def train_loop(config):
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    rank, model = ray.train.get_context().get_world_rank(), ray.train.torch.prepare_model(config["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = done = my_loop.resume(model, optimizer)  # steps, 8 of them in an epoch, with 64 rows each
    while done < 40:
        order = np.random.default_rng((7, done // 8)).permutation(names).tolist()
        left = ray.data.from_items(order[done % 8 * 64 :][rank::2], override_num_blocks=4)
        for batch in left.map(fetch, num_cpus=0.5).iter_torch_batches(batch_size=32):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
            optimizer.step()
            done += 1
            if done % 4 == 0:
                my_loop.save(model, optimizer, done - 1, {})
            if done == 14 and rank == 1 and first == 0:
                os._exit(1)


ray.cloudpickle.register_pickle_by_value(my_loop)
address = os.environ.get("RAY_ADDRESS", "local")  # the third CPU is for data tasks
ray.init(address, num_cpus=3 if address == "local" else None, log_to_driver=False)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
failures = ray.train.FailureConfig(max_failures=1)
run = ray.train.RunConfig(storage_path=root, storage_filesystem=files, failure_config=failures)
two, config = ray.train.ScalingConfig(num_workers=2), {"model": model}
trainer = ray.train.torch.TorchTrainer(
    train_loop, train_loop_config=config, scaling_config=two, run_config=run
)
with trainer.fit().checkpoint.as_directory() as folder:
    model.load_state_dict(torch.load(f"{folder}/state.pt", weights_only=True)["model"])
test = torch.utils.data.TensorDataset(torch.tensor(images[1437:]) / 255, torch.tensor(labels[1437:]))
print(f"accuracy {my_loop.accuracy(model, test):.3f}")
