"""Images from a store, a new order in each epoch, a resume at the row: lesson 03c. Rank 1 dies once."""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import PIL.Image
import pyarrow.parquet
import ray.data
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchTrainer, prepare_model

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import my_loop

MODEL = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
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


def train_loop():
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    rank, model = get_context().get_world_rank(), prepare_model(MODEL)
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
ray.init("local", num_cpus=3, log_to_driver=False)  # two workers, and data tasks on the third CPU
run = RunConfig(storage_path=root, storage_filesystem=files, failure_config=FailureConfig(max_failures=1))
trainer = TorchTrainer(train_loop, scaling_config=ScalingConfig(num_workers=2), run_config=run)
with trainer.fit().checkpoint.as_directory() as folder:
    MODEL.load_state_dict(torch.load(f"{folder}/state.pt", weights_only=True)["model"])
test = torch.utils.data.TensorDataset(torch.tensor(images[1437:]) / 255, torch.tensor(labels[1437:]))
print(f"accuracy {my_loop.accuracy(MODEL, test):.3f}")
