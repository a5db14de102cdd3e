"""Three short training runs that are slow, each for another reason, for the exercise that asks which.

    trainer = TorchTrainer(train_loop, train_loop_config={"case": "A"}, scaling_config=…)

`CASES` has the answers, so read the panels first.
"""

import time
from typing import Any, NamedTuple

__all__ = ["CASES", "Case", "train_loop"]

_STEPS = 45
_BATCH = 64
_LATE = 0.03  # seconds that a fault adds to each step


class Case(NamedTuple):
    """Why a run is slow.

    Attributes:
        cause: as `labkit.runs.verdict` names it.
        rank: the rank whose fault it is; None if it is no rank's fault.
    """

    cause: str
    rank: int | None


CASES = {
    "A": Case("data", 0),
    "B": Case("slow rank", 1),
    "C": Case("exchange", None),
}


class _Rows:
    """Random rows; where the storage is slow, a batch of them comes late."""

    def __init__(self, rows: int, seconds: float) -> None:
        import torch

        self._rows = torch.rand(rows, 1024)
        self._seconds = seconds

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Any:
        time.sleep(self._seconds)
        return self._rows[row]


def _compute(seconds: float) -> None:
    """Use a core for this long."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def _on_a_slow_network(bucket: Any) -> Any:
    """Exchange the gradients of a bucket, as DDP does, with a delay."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    time.sleep(_LATE)
    return allreduce_hook(None, bucket)


def train_loop(config: dict[str, Any]) -> None:
    """Train for about two seconds; ``config["case"]`` is a key of `CASES`."""
    import ray.train
    import torch
    from ray.train.torch import prepare_model
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    cause, slow_rank = CASES[config["case"]]
    is_slow = ray.train.get_context().get_world_rank() == slow_rank
    late = 0.0
    if cause == "data" and is_slow:
        late = _LATE / _BATCH
    loader = DataLoader(_Rows(_STEPS * _BATCH, late), batch_size=_BATCH)
    network = torch.nn.Sequential(
        torch.nn.Linear(1024, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 1),
    )
    model = prepare_model(network)
    if cause == "exchange":
        model.register_comm_hook(None, lambda _, bucket: _on_a_slow_network(bucket))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for x in loader:
        loss = model(x).square().mean()
        if cause == "slow rank" and is_slow:
            _compute(_LATE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
