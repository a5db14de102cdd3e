"""States on disk: what was saved is what goes on, and a damaged file never half-loads."""

import os
import pickle

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.errors import LabError
from labkit.models.torch import STATE_FILE, load_state, mlp, parameter_distance, save_state

X = torch.rand(16, 28, 28, generator=torch.Generator().manual_seed(0))
Y = torch.arange(16) % 10


def training(seed=0, lr=0.01):
    model = mlp((8,), seed=seed)
    return model, torch.optim.Adam(model.parameters(), lr=lr)


def step(model, optimizer, times=1):
    for _ in range(times):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()


def test_a_training_goes_on_as_if_it_had_not_stopped(tmp_path):
    model, optimizer = training()
    step(model, optimizer, 2)
    path = save_state(tmp_path / "epoch_1", model, optimizer, 1)
    assert [p.name for p in path.parent.iterdir()] == [STATE_FILE]
    alone, _ = training(seed=9)
    load_state(tmp_path / "epoch_1", alone)
    assert parameter_distance(model, alone) == 0.0
    step(model, optimizer, 2)
    again, its_optimizer = training(seed=9, lr=0.5)
    assert load_state(tmp_path / "epoch_1", again, its_optimizer) == {"epoch": 1}
    assert its_optimizer.param_groups[0]["lr"] == 0.01
    step(again, its_optimizer, 2)
    # Adam: without its moments the two would part here.
    assert parameter_distance(model, again) == 0.0


def test_a_schedule_goes_on_too(tmp_path):
    def scheduled(seed):
        model, optimizer = training(seed)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)

    model, optimizer, scheduler = scheduled(0)
    for _ in range(3):
        step(model, optimizer)
        scheduler.step()
    save_state(tmp_path, model, optimizer, 2, scheduler=scheduler)
    again, its_optimizer, its_scheduler = scheduled(9)
    load_state(tmp_path, again, its_optimizer, scheduler=its_scheduler)
    assert its_scheduler.last_epoch == 3 and its_scheduler.get_last_lr() == scheduler.get_last_lr()
    with pytest.raises(LabError, match="KeyError: 'ema'"):
        load_state(tmp_path, model, ema=model)


def test_a_wrapped_model_and_a_plain_one_read_each_others_state(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model, optimizer = training()
        wrapped = nn.parallel.DistributedDataParallel(model)
        step(wrapped, optimizer)
        save_state(tmp_path, wrapped, optimizer, 0)
        plain, plain_optimizer = training(seed=9)
        load_state(tmp_path, plain, plain_optimizer)
        assert parameter_distance(plain, wrapped) == 0.0
        step(plain, plain_optimizer)
        save_state(tmp_path, plain, plain_optimizer, 1)
        load_state(tmp_path, wrapped, optimizer)
        assert parameter_distance(plain, wrapped) == 0.0
    finally:
        wrapped = None  # freed after the process group, it can hang (docs/upstream.md)
        dist.destroy_process_group()


def test_a_learning_rate_of_a_sweep_is_kept(tmp_path):
    save_state(tmp_path, *training(lr=np.float64(0.125)), 0)
    again, its_optimizer = training(seed=9)
    load_state(tmp_path, again, its_optimizer)
    assert its_optimizer.param_groups[0]["lr"] == 0.125


class Bomb:
    def __reduce__(self):
        return os.mkdir, (os.environ["BOMB"],)


DAMAGES = {
    "missing": lambda path: path.unlink(),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-200]),
    "another file": lambda path: torch.save({"some": "thing"}, path),
    "a pickle": lambda path: path.write_bytes(pickle.dumps(Bomb())),
    "a bomb": lambda path: torch.save({"model": Bomb()}, path),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_an_error_that_changes_nothing_and_runs_nothing(damage, tmp_path, monkeypatch):
    monkeypatch.setenv("BOMB", str(tmp_path / "exploded"))
    path = save_state(tmp_path, *training(), 0)
    DAMAGES[damage](path)
    again, its_optimizer = training(seed=9)
    with pytest.raises(LabError, match="no such file" if damage == "missing" else "damaged") as caught:
        load_state(tmp_path, again, its_optimizer)
    assert str(path) in caught.value.attempt
    assert parameter_distance(again, training(seed=9)[0]) == 0.0
    assert not (tmp_path / "exploded").exists()
