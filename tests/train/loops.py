"""A loop that knows nothing of the panel, and its trainer.

Workers cannot import the tests: what is here goes to them by value, as from a notebook.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import ray.train
import torch
from ray import cloudpickle
from ray.train import RunConfig, ScalingConfig, report
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader, TensorDataset

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def rank():
    return ray.train.get_context().get_world_rank()


def checkpoint_of(epoch):
    """On rank 0, a checkpoint of 1,000 bytes besides the epoch's number."""
    if rank() != 0:
        return None
    folder = Path(tempfile.mkdtemp())
    (folder / "epoch").write_text(str(epoch))
    (folder / "weights").write_text("w" * 999)
    return ray.train.Checkpoint.from_directory(folder)


def first_epoch():
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        return int(Path(folder, "epoch").read_text()) + 1


def train_loop(config, _=None):
    """Counts by hand, next to what it trains: 64 rows in batches of 8, epochs of an evaluation and a report.

    `breaks` and `dies` are a moment as (rank, epoch, step): it raises, or its process is killed, once; and
    not before there is a file `when`. `rates` are the learning rates of the ranks, and `wraps` is whether
    they train one model.
    """
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    if config.get("wraps", True):
        model = prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.get("rates", (0.1, 0.1))[rank()])
    data = TensorDataset(torch.rand(64, 4), torch.rand(64, 1))
    rows = prepare_data_loader(DataLoader(data, batch_size=8, shuffle=True))
    test, steps = DataLoader(data, batch_size=32), 0
    for epoch in range(first_epoch(), config["epochs"]):
        for number, (x, y) in enumerate(rows):
            time.sleep(config.get("seconds", 0.0))
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            moment = rank(), epoch, number
            if config.get("breaks") == moment:
                raise ArithmeticError("the loss is not a number")
            if config.get("dies") == moment and not os.path.exists(config["died"]):
                open(config["died"], "w").close()
                while "when" in config and not os.path.exists(config["when"]):
                    time.sleep(0.05)
                os.kill(os.getpid(), signal.SIGKILL)
        print("epoch", epoch, "is over")
        with torch.no_grad():
            for x, _ in test:
                model(x)
        metrics = {"loss": loss.item(), "epoch": epoch, "step": steps, "rmse": 5.0 - epoch}
        report(metrics, checkpoint=checkpoint_of(epoch))
    return {"steps": steps, "weights": [parameter.tolist() for parameter in model.parameters()]}


def trainer_of(loop=train_loop, *, workers=2, run=None, options=None, **config):
    """A trainer of `loop`; `run` is for its RunConfig, and `options` are further ones of the trainer."""
    storage = {"storage_path": f"{os.environ['LABKIT_HOME']}/runs"}
    usual = {
        "run_config": RunConfig(**storage | (run or {})),
        # One worker on each node: what the second one says has to come a longer way.
        "scaling_config": ScalingConfig(num_workers=workers, placement_strategy="SPREAD"),
    }
    return TorchTrainer(loop, train_loop_config={"epochs": 3, **config}, **usual | (options or {}))
