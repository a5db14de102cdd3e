"""litdata's `StreamingDataset`

Group: Loaders in a TorchTrainer
Packages: litdata
Extra: yes
Asked: all but one process, stop
Guess: all
Line: `StreamingDataLoader`, which reads rank and world size from torch's process group
Note: It deals the rows in its own order.
"""

import ray.train
import torch
from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming.writer import BinaryWriter
from ray.train.torch import prepare_model

from benchmarks._works_with import problem


def write(folder):
    writer = BinaryWriter(f"{folder}/chunks", chunk_size=8)
    for row in range(problem.ROWS):
        writer[row] = {"x": problem.X[row], "y": problem.Y[row]}
    writer.done()
    writer.merge()


def loop(config):
    model = problem.new_model()
    optimizer = problem.sgd(model)
    model = prepare_model(model)
    first = 0
    if state := problem.load():
        model.module.load_state_dict(state["model"])
        first = state["epoch"] + 1
    loader = StreamingDataLoader(StreamingDataset(f"{config['folder']}/chunks"), batch_size=problem.BATCH)
    for epoch in range(first, config["epochs"]):
        for batch in loader:
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        checkpoint = problem.save(epoch, model=model.module.state_dict())
        ray.train.report({"loss": loss.item(), "epoch": epoch}, checkpoint=checkpoint)
    return problem.weights_of_ranks(model)
