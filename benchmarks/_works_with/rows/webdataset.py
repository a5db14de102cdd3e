"""webdataset

Group: Loaders in a TorchTrainer
Packages: webdataset
Asked: all but stop
Guess: all but rows
Line: `nodesplitter=webdataset.split_by_node`, and at least as many shards as ranks
Note: The panel shows no rows. Batches are made in the pipeline, with `.batched`, as its page does, and
    from outside such a batch looks like one row. If the loader makes them, with
    `WebLoader(rows, batch_size=8)`, the panel counts rows. There are two shards, so each rank reads one
    half.
"""

import webdataset
from ray.train.torch import prepare_model

from benchmarks._works_with import problem
from benchmarks._works_with.rows import plain

ROWS_OF = problem.halves


def write(folder):
    for shard in range(2):
        with webdataset.TarWriter(f"{folder}/{shard}.tar") as writer:
            for row in problem.halves(shard):
                writer.write({"__key__": f"{row:04}", "x.pth": problem.X[row], "y.pth": problem.Y[row]})


def loop(config):
    urls = [f"{config['folder']}/{shard}.tar" for shard in range(2)]
    rows = webdataset.WebDataset(urls, nodesplitter=webdataset.split_by_node, shardshuffle=False)
    rows = rows.decode().to_tuple("x.pth", "y.pth").batched(problem.BATCH)
    loader = webdataset.WebLoader(rows, batch_size=None)
    return plain.train(config, prepare_model(problem.new_model()), loader)
