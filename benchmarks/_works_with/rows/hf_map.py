"""Hugging Face `datasets`, map-style

Group: Loaders in a TorchTrainer
Packages: datasets
Asked: all but stop
Guess: all
Line: `dataset.with_format("torch")`, then `prepare_data_loader` as for any data set
"""

from ray.train.torch import prepare_data_loader, prepare_model
from torch.utils.data import DataLoader

from benchmarks._works_with import problem
from benchmarks._works_with.rows import plain
from datasets import Dataset


def loop(config):
    data = Dataset.from_dict({"x": problem.X.tolist(), "y": problem.Y.tolist()}).with_format("torch")
    loader = prepare_data_loader(DataLoader(data, batch_size=problem.BATCH))
    return plain.train(config, prepare_model(problem.new_model()), loader)
