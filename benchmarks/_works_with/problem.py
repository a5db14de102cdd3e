"""One small problem for all rows, with what plain PyTorch in one process makes of it.

64 rows of four numbers, a linear model, SGD. Two ranks with batches of 8 make the same steps as one process
with batches of 16, if each rank gets its rows in the right order: then both end with the same weights.
"""

import json
import tempfile
import time
from pathlib import Path

import numpy
import ray.train
import torch
from torch.utils.data import TensorDataset

ROWS, BATCH, RATE = 64, 8, 0.1  # BATCH: rows of one rank per step
STEPS = ROWS // (2 * BATCH)  # per epoch

X = torch.rand(ROWS, 4, generator=torch.Generator().manual_seed(1))
Y = X @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]])


def data() -> TensorDataset:
    """The rows, as a data set of PyTorch."""
    return TensorDataset(X, Y)


def new_model(pause: float = 0.0) -> torch.nn.Module:
    """The model with its first weights; each forward pass takes at least `pause` seconds."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    if pause:
        model.register_forward_pre_hook(lambda *_: time.sleep(pause))
    return model


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer that the reference has, too."""
    return torch.optim.SGD(model.parameters(), lr=RATE)


def weights(model: torch.nn.Module) -> list[float]:
    """All weights of a model as one list."""
    return torch.cat([part.detach().float().flatten() for part in model.parameters()]).tolist()


def weights_of_ranks(model: torch.nn.Module) -> list[list[float]]:
    """The weights that each rank holds. Every rank has to call this."""
    both = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(both, weights(model))
    return both


def report(epoch: int, loss: float, model: torch.nn.Module, **states: object) -> None:
    """Report an epoch that is over to Ray, with a checkpoint of rank 0's model and of `states`."""
    checkpoint = None
    if ray.train.get_context().get_world_rank() == 0:
        folder = tempfile.mkdtemp()
        states |= {"epoch": epoch, "model": unwrapped(model).state_dict()}
        torch.save(states, Path(folder, "state.pt"))
        checkpoint = ray.train.Checkpoint.from_directory(folder)
    ray.train.report({"loss": loss, "epoch": epoch}, checkpoint=checkpoint)


def load() -> dict | None:
    """What `report` saved, if Ray resumes this run."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        return torch.load(Path(folder, "state.pt"))


def resume(model: torch.nn.Module) -> int:
    """Load the model that `report` saved, if Ray resumes this run; return the epoch to begin with."""
    state = load()
    if state is None:
        return 0
    unwrapped(model).load_state_dict(state["model"])
    return state["epoch"] + 1


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model itself, without `DistributedDataParallel` around it."""
    return getattr(model, "module", model)


def dealt(rank: int) -> list[int]:
    """The rows of a rank, in order, as `DistributedSampler` deals them."""
    return list(range(rank, ROWS, 2))


def in_batches(rank: int) -> list[int]:
    """The rows of a rank, in order, where whole batches are dealt, as accelerate does."""
    return [row for row in range(ROWS) if row // BATCH % 2 == rank]


def halves(rank: int) -> list[int]:
    """The rows of a rank, in order, where each gets one half of the file."""
    return list(range(rank * ROWS // 2, (rank + 1) * ROWS // 2))


class Reference:
    """Plain PyTorch in one process: the weights after some epochs, and the losses on the way."""

    def __init__(self, epochs: int, rows_of=dealt) -> None:
        self.model = new_model()
        optimizer = sgd(self.model)
        # Per epoch: the last loss of rank 0, the mean of its losses, the mean of all losses.
        self.last, self.own, self.mean = [], [], []
        for _ in range(epochs):
            losses = []
            for step in range(STEPS):
                of_ranks = [rows_of(rank)[step * BATCH : (step + 1) * BATCH] for rank in range(2)]
                parts = [torch.nn.functional.mse_loss(self.model(X[rows]), Y[rows]) for rows in of_ranks]
                loss = torch.stack(parts)
                optimizer.zero_grad()
                loss.mean().backward()
                optimizer.step()
                losses.append(loss.detach())
            of_steps = torch.stack(losses)  # [STEPS, ranks]
            self.last.append(of_steps[-1, 0].item())
            self.own.append(of_steps[:, 0].mean().item())
            self.mean.append(of_steps.mean().item())
        self.weights = weights(self.model)


def keep_predictions(config: dict, predictions: numpy.ndarray) -> None:
    """Write what a rank's model predicts for all rows into a file of the run's folder."""
    rank = ray.train.get_context().get_world_rank()
    text = json.dumps(numpy.ravel(predictions).tolist())
    Path(config["folder"], f"predictions-{rank}.json").write_text(text)
