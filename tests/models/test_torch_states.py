"""States on disk: what was saved is what goes on, and a damaged file never half-loads."""

import os
import pickle

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.errors import RunError
from labkit.models.torch.checkpoint import STATE_FILE, load_state, parameter_distance, save_state
from labkit.models.torch.networks import cnn, mlp

X = torch.rand(16, 28, 28, generator=torch.Generator().manual_seed(0))
Y = torch.arange(16) % 10


def training(seed=0, optimizer=torch.optim.Adam, **options):
    model = mlp((8,), seed=seed)
    return model, optimizer(model.parameters(), **{"lr": 0.01, **options})


def step(model, optimizer, times=1):
    for _ in range(times):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()


def test_a_training_goes_on_as_if_it_had_not_stopped(tmp_path):
    model, optimizer = training()
    step(model, optimizer, 2)
    path = save_state(tmp_path / "epoch_1", model, optimizer, 1, metrics={"loss": 0.5}, note="x")
    assert [p.name for p in path.parent.iterdir()] == [STATE_FILE]
    step(model, optimizer, 2)
    again, its_optimizer = training(seed=9, lr=0.5)
    assert load_state(tmp_path / "epoch_1", again, its_optimizer) == {
        "epoch": 1,
        "metrics": {"loss": 0.5},
        "note": "x",
    }
    assert its_optimizer.param_groups[0]["lr"] == 0.01
    step(again, its_optimizer, 2)
    # Adam: without its moments the two would part here.
    assert parameter_distance(model, again) == 0.0


def test_the_model_alone_can_be_loaded(tmp_path):
    model, optimizer = training()
    save_state(tmp_path, model, optimizer, 0)
    again, _ = training(seed=9)
    assert load_state(tmp_path, again)["epoch"] == 0
    assert parameter_distance(model, again) == 0.0


def test_a_wrapped_model_and_a_plain_one_read_each_others_state(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model, optimizer = training()
        wrapped = nn.parallel.DistributedDataParallel(model)
        step(wrapped, optimizer)
        path = save_state(tmp_path, wrapped, optimizer, 0)
        names = torch.load(path, weights_only=True)["model"]
        assert not any(name.startswith("module.") for name in names)
        plain, plain_optimizer = training(seed=9)
        load_state(tmp_path, plain, plain_optimizer)
        assert parameter_distance(plain, wrapped) == 0.0
        step(plain, plain_optimizer)
        save_state(tmp_path, plain, plain_optimizer, 1)
        load_state(tmp_path, wrapped, optimizer)
        assert parameter_distance(plain, wrapped) == 0.0
    finally:
        dist.destroy_process_group()


def test_numbers_of_a_sweep_are_kept(tmp_path):
    model, optimizer = training(lr=np.float64(0.125))
    extra = {"a": np.float32(0.5), "b": np.int64(3), "c": (np.str_("x"), None, True), "d": np.bool_(True)}
    save_state(tmp_path, model, optimizer, 0, **extra, weights=torch.ones(2))
    again, its_optimizer = training(seed=9)
    state = load_state(tmp_path, again, its_optimizer)
    assert torch.equal(state.pop("weights"), torch.ones(2))
    assert state == {"epoch": 0, "a": 0.5, "b": 3, "c": ("x", None, True), "d": True}
    assert its_optimizer.param_groups[0]["lr"] == 0.125


def test_what_could_not_be_loaded_is_refused_when_it_is_saved(tmp_path):
    model, optimizer = training()
    with pytest.raises(RunError, match="Sequential"):
        save_state(tmp_path, model, optimizer, 0, whole=model)
    assert list(tmp_path.iterdir()) == []


def test_a_save_that_fails_leaves_the_state_before_it(tmp_path):
    model, optimizer = training()
    save_state(tmp_path, model, optimizer, 0)
    with pytest.raises(RunError):
        save_state(tmp_path, model, optimizer, 1, bad=object())
    assert load_state(tmp_path, model, optimizer)["epoch"] == 0
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="df -h"):
        save_state(tmp_path / "file" / "deeper", model, optimizer, 1)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RunError, match="no such file") as caught:
        load_state(tmp_path / "epoch_7", *training())
    assert "epoch_7" in caught.value.attempt


class Bomb:
    def __reduce__(self):
        return os.mkdir, (os.environ["BOMB"],)


def _truncated(path):
    path.write_bytes(path.read_bytes()[:-200])


def _flipped(path):
    """One bit of one weight."""
    data = bytearray(path.read_bytes())
    weights = torch.load(path, weights_only=True)["model"]["1.weight"].numpy().tobytes()
    data[bytes(data).index(weights) + 40] ^= 1
    path.write_bytes(data)


def _empty(path):
    path.write_bytes(b"")


def _other(path):
    torch.save({"some": "thing"}, path)


def _pickle(path):
    path.write_bytes(pickle.dumps(Bomb()))


def _bomb(path):
    torch.save({"model": Bomb()}, path)


@pytest.mark.parametrize("damage", [_truncated, _flipped, _empty, _other, _pickle, _bomb])
def test_a_damaged_file_is_an_error_that_changes_nothing_and_runs_nothing(damage, tmp_path, monkeypatch):
    monkeypatch.setenv("BOMB", str(tmp_path / "exploded"))
    model, optimizer = training()
    path = save_state(tmp_path, model, optimizer, 0)
    damage(path)
    again, its_optimizer = training(seed=9)
    with pytest.raises(RunError, match="damaged"):
        load_state(tmp_path, again, its_optimizer)
    assert parameter_distance(again, training(seed=9)[0]) == 0.0
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("other", [cnn(), mlp((9,)), mlp((8, 8))])
def test_another_model_is_refused_and_left_alone(other, tmp_path):
    save_state(tmp_path, *training(), 0)
    before = {name: weight.clone() for name, weight in other.state_dict().items()}
    with pytest.raises(RunError, match="another model"):
        load_state(tmp_path, other)
    assert parameter_distance(other, before) == 0.0


def test_another_optimizer_is_refused_and_the_model_left_alone(tmp_path):
    model, optimizer = training()
    step(model, optimizer)
    save_state(tmp_path, model, optimizer, 0)
    again, sgd = training(seed=9, optimizer=torch.optim.SGD)
    with pytest.raises(RunError, match="Adam, not of SGD"):
        load_state(tmp_path, again, sgd)
    two_groups = torch.optim.Adam([{"params": [p]} for p in again.parameters()])
    with pytest.raises(RunError, match="does not fit"):
        load_state(tmp_path, again, two_groups)
    assert parameter_distance(again, training(seed=9)[0]) == 0.0


def test_distance():
    a, b = mlp(seed=0), mlp(seed=0)
    assert parameter_distance(a, b) == 0.0
    with torch.no_grad():
        list(b.parameters())[2][0, 0] -= 0.25
    assert parameter_distance(a, b) == parameter_distance(b.state_dict(), a) == 0.25
    with torch.no_grad():
        next(b.parameters())[0, 0] = float("nan")
    assert np.isnan(parameter_distance(a, b))
    with pytest.raises(RunError, match="shape"):
        parameter_distance(a, mlp((9,)))
