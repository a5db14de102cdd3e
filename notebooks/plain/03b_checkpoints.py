"""Save, resume and find a run again: what lesson 03b does, in plain Ray and PyTorch.

It uses my_loop.py, from the folder above, which needs nothing of the lab: copy it next to your own script.
Reads NUM_WORKERS (2), STORAGE (a folder or s3://bucket/prefix). Prints where the second run picks up, and the
accuracy of the best checkpoint, about 0.94.
"""

import os
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet
import ray.train
import torch
from ray.train.torch import TorchTrainer
from torch.utils.data import TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import my_loop

DIGITS = Path(__file__).resolve().parents[2] / "datasets/digits.parquet"


def make_model():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))


def run(epochs):  # on a run of the same name and storage, it resumes
    return TorchTrainer(
        my_loop.train_loop,
        train_loop_config=config | {"epochs": epochs},
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        run_config=ray.train.RunConfig(
            name="take-it-with-you",
            storage_path=storage,
            checkpoint_config=ray.train.CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="accuracy"
            ),
            failure_config=ray.train.FailureConfig(max_failures=2),
        ),
    ).fit()


workers, storage = int(os.environ.get("NUM_WORKERS", 2)), os.environ.get("STORAGE") or tempfile.mkdtemp()
table = pyarrow.parquet.read_table(DIGITS)
x = torch.tensor(table["image"].combine_chunks().to_numpy_ndarray()) / 255
rows = TensorDataset(x, torch.tensor(table["label"].to_numpy()))
config = {"train": TensorDataset(*rows[:1437]), "test": TensorDataset(*rows[1437:])}
config |= {"make_model": make_model, "batch_size": 64 // workers, "lr": 0.05}
ray.init("local", num_cpus=workers + 1, log_to_driver=False)
ray.cloudpickle.register_pickle_by_value(my_loop)  # workers on other machines don't have the file
print("first run, starts with epoch", run(epochs=2).return_value)
print("second run, starts with epoch", run(epochs=5).return_value)
found = ray.train.Result.from_path(f"{storage}/take-it-with-you")
with found.get_best_checkpoint("accuracy", "max").as_directory() as folder:
    state = torch.load(f"{folder}/state.pt", weights_only=True)
model = make_model()
model.load_state_dict(state["model"])
print(f"epoch {state['epoch']}: accuracy {my_loop.accuracy(model, config['test']):.3f}")
