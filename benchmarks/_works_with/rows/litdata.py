"""litdata's `StreamingDataset`

Group: Loaders in a TorchTrainer
Packages: litdata
Asked: all but one process, stop
Guess: all
Line: `StreamingDataLoader`, which reads rank and world size from torch's process group
Note: It deals the rows in its own order.
"""

from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming.writer import BinaryWriter
from ray.train.torch import prepare_model

from benchmarks._works_with import problem
from benchmarks._works_with.rows import plain


def write(folder):
    writer = BinaryWriter(f"{folder}/chunks", chunk_size=8)
    for row in range(problem.ROWS):
        writer[row] = {"x": problem.X[row], "y": problem.Y[row]}
    writer.done()
    writer.merge()


def loop(config):
    model = prepare_model(problem.new_model())  # first: it makes the process group
    loader = StreamingDataLoader(StreamingDataset(f"{config['folder']}/chunks"), batch_size=problem.BATCH)
    return plain.train(config, model, loader)
