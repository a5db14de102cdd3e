"""Hugging Face `datasets`, a stream with `split_dataset_by_node`

Group: Loaders in a TorchTrainer
Packages: datasets
Asked: all but stop
Guess: all
Line: `split_dataset_by_node(stream, rank=…, world_size=…)`; shuffle after the split, with a seed
Note: Two shards, so each rank reads one half. Not shuffled: a shuffled stream that resumes in the
    middle of an epoch repeats rows.
"""

import ray.train
from datasets.distributed import split_dataset_by_node
from ray.train.torch import prepare_model
from torch.utils.data import DataLoader

from benchmarks._works_with import problem
from benchmarks._works_with.rows import plain
from datasets import Dataset

ROWS_OF = problem.halves


def loop(config):
    context = ray.train.get_context()
    rows = Dataset.from_dict({"x": problem.X.tolist(), "y": problem.Y.tolist()})
    stream = rows.to_iterable_dataset(num_shards=2).with_format("torch")
    stream = split_dataset_by_node(stream, rank=context.get_world_rank(), world_size=context.get_world_size())
    loader = DataLoader(stream, batch_size=problem.BATCH)
    return plain.train(config, prepare_model(problem.new_model()), loader)
