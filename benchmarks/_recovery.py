"""What a preemption costs: steps that are trained twice, for three ways of saving.

The runs are lesson 08's: a step takes a tenth of a second, a checkpoint has the number of the next
step, and the rows of a step depend on nothing but that number. Every rank writes down each step and its
rows. So the figures are counted in the steps that were made. Two things are checked after each run: of the
steps that the final model is made of, every epoch has each row exactly once, and that model is the one that
NumPy computes without any interruption.
"""

import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from ray import cloudpickle

from benchmarks._campaign import again
from course import faults
from labkit.local import cluster
from labkit.settings import Settings

# Workers cannot import this module, so what is in it goes to them by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

_BATCH, _PER_EPOCH, _WIDTH, _RATE = 24, 14, 4, 0.05
_ROWS = _BATCH * _PER_EPOCH
_STEP = 0.1  # seconds that a step lasts at least
_ARMS = ("never", "every epoch", "just in time")
_STEPS, _DEADLINE = 200, 3
_Line = tuple[float, int, int, int, int, list[int]]  # time, group, rank, workers, step, rows


def _data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(_ROWS, _WIDTH)), rng.normal(size=(_ROWS, 1))


def _rows_of(step: int) -> np.ndarray:
    epoch, place = divmod(step, _PER_EPOCH)
    return np.random.default_rng(epoch).permutation(_ROWS)[place * _BATCH : (place + 1) * _BATCH]


def _loop(config: dict[str, Any]) -> None:
    import ray.train
    import torch
    from ray.train.torch import prepare_model

    context, last = ray.train.get_context(), config["steps"]
    rank, workers = context.get_world_rank(), context.get_world_size()
    plain = torch.nn.Linear(_WIDTH, 1, bias=False).double()
    torch.nn.init.zeros_(plain.weight)
    first, checkpoint = 0, ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt")
        plain.load_state_dict(state["model"])
        first = state["step"]
    model = prepare_model(plain)
    optimizer, (x, y) = torch.optim.SGD(model.parameters(), lr=_RATE), map(torch.tensor, _data())
    group = torch.tensor([os.getpid()])
    if workers > 1:
        torch.distributed.broadcast(group, 0)

    def due(step: int) -> bool:
        if config["save"] == "just in time":
            return step % 5 == 0 and ray.train.get_preemption_info() is not None
        return config["save"] != "never" and step % config["save"] == 0

    for step in range(first, last):
        mine = _rows_of(step)[rank::workers]
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
        optimizer.step()
        time.sleep(_STEP)
        with open(config["log"], "a") as log:
            told = ",".join(map(str, mine))
            log.write(f"{time.time():.3f} {group.item()} {rank} {workers} {step} {told}\n")
        if due(step + 1) or step + 1 == last:
            with tempfile.TemporaryDirectory() as folder:
                kept = None
                if rank == 0:
                    torch.save({"model": plain.state_dict(), "step": step + 1}, f"{folder}/state.pt")
                    kept = ray.train.Checkpoint.from_directory(folder)
                ray.train.report({"step": step + 1}, checkpoint=kept)


def _fit(home: Path, policy: str, node: str, step: int) -> tuple[list[_Line], faults.Fault, Any]:
    """Run it, announce at `step` that `node` goes, and check it: what was written, the fault, the result."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from labkit.train import TrainPanel

    folder = Path(tempfile.mkdtemp(dir=home))
    panel, log = TrainPanel("recovery"), folder / "steps"
    fault = faults.drain_node(node, deadline=_DEADLINE).at(panel, step=step)
    save = _PER_EPOCH if policy == "every epoch" else policy
    trainer = TorchTrainer(
        _loop,
        train_loop_config={"save": save, "steps": _STEPS, "log": str(log)},
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="SPREAD"),
        run_config=RunConfig(
            name="recovery",
            storage_path=str(folder),
            failure_config=FailureConfig(max_failures=1),
        ),
    )
    with panel.watch(trainer):
        result = trainer.fit()
    lines = _lines_in(log)
    check_rows(lines, _STEPS)
    with result.checkpoint.as_directory() as kept:
        import torch

        weights = torch.load(f"{kept}/state.pt")["model"]["weight"].numpy().T
    if (off := np.abs(weights - _undisturbed(_STEPS)).max()) > 1e-9:
        raise AssertionError(f"the model is another one: weights differ by {off:.1e}")
    return lines, fault.wait(10), result


def _lines_in(log: Path) -> list[_Line]:
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [(float(t), *map(int, numbers), [*map(int, rows.split(","))]) for t, *numbers, rows in lines]


def _undisturbed(steps: int) -> np.ndarray:
    (x, y), weights = _data(), np.zeros((_WIDTH, 1))
    for rows in map(_rows_of, range(steps)):
        weights = weights - _RATE * 2 * x[rows].T @ (x[rows] @ weights - y[rows]) / _BATCH
    return weights


def check_rows(lines: list[_Line], steps: int) -> None:
    """Of the steps that count, every whole epoch has each row once.

    A step that was made again counts as the last group of workers made it: the others' was thrown away with
    their model.

    Raises:
        AssertionError: it has not.
    """
    order = list(dict.fromkeys(group for _, group, *_ in lines))
    latest: dict[int, int] = {}
    for _, group, _, _, step, _ in lines:
        latest[step] = max(latest.get(step, 0), order.index(group))
    seen: dict[int, list[int]] = defaultdict(list)
    for _, group, _, _, step, rows in lines:
        if order.index(group) == latest[step]:
            seen[step // _PER_EPOCH] += rows
    for epoch in range(steps // _PER_EPOCH):
        if sorted(seen[epoch]) != list(range(_ROWS)):
            raise AssertionError(
                f"epoch {epoch} has {len(seen[epoch])} rows, {len(set(seen[epoch]))} of them new"
            )


def _twice(lines: list[_Line]) -> int:
    """Steps that rank 0 made a second time."""
    steps = [step for _, _, rank, _, step, _ in lines if rank == 0]
    return len(steps) - len(set(steps))


def _told(numbers: list[float]) -> str:
    return f"{statistics.median(numbers):.1f} ({min(numbers):.1f} to {max(numbers):.1f})"


def arms(seeds: range, settings: Settings) -> None:
    """A node is announced to go; when does the loop save? One row for each arm, over all seeds."""
    os.environ["RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S"] = "0.5"  # Ray's default: a look every 5 s
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with again(lambda: cluster.start(nodes=2, cpus_per_node=2, settings=settings)) as lab:
        spare = "node-2"
        for seed in seeds:
            step = random.Random(seed).randrange(20, 60)
            for policy in _ARMS:
                lines, fault, result = _fit(settings.home, policy, spare, step)
                if len({group for _, group, *_ in lines}) < 2:
                    raise AssertionError("the run was over before its node was gone")
                spare = again(lambda: lab.add_node(cpus=2)).name
                row = {"steps trained twice": _twice(lines), "checkpoints": len(result.best_checkpoints)}
                row["seconds without a step"] = fault.standstill
                print(f"seed {seed}, notice at step {fault.moment[1]}, {policy}: {row}", flush=True)
                for what, number in row.items():
                    figures[policy][what].append(number)
    for policy, row in figures.items():
        print(f"| {policy} | {' | '.join(map(_told, row.values()))} |")
