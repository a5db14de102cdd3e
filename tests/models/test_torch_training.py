"""Batches, epochs and evaluations: rows are counted once, means are over rows, learning happens."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from labkit.errors import LabError
from labkit.models.torch import batches, evaluate, mlp, parameter_distance, train_epoch

LOSS = nn.CrossEntropyLoss()


def stripes(rows=300, seed=0):
    """Images that can be learned in an epoch: the class is the row of the image that is bright."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, rows)
    images = rng.integers(0, 60, (rows, 28, 28), dtype=np.uint8)
    images[np.arange(rows), labels * 2] = 255
    return images, labels.astype(np.int64)


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr)


def test_each_row_comes_once_and_with_its_label():
    images, labels = stripes(50)
    images[:, 0, 0] = np.arange(50)  # each image says which one it is
    images.flags.writeable = labels.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of arrays that it may not write to
        data = batches(images, labels, size=16, seed=3)
    got = list(data)
    assert [len(y) for _, y in got] == [16, 16, 16, 2]
    assert len(data) == len(list(data)) == 4  # it can be gone through again
    x, y = (torch.cat(parts) for parts in zip(*got, strict=True))
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    rows = (x[:, 0, 0] * 255).round().long()
    assert sorted(rows.tolist()) == list(range(50))
    assert torch.equal(y, torch.tensor(labels)[rows])
    with pytest.raises(LabError, match="50 images and 49 labels"):
        batches(images, labels[:-1], size=16)


def test_the_order_depends_on_the_seed_alone():
    images, labels = stripes(50)

    def order(**options):
        return torch.cat([y for _, y in batches(images, labels, size=16, **options)]).tolist()

    assert order(seed=1) == order(seed=1) != order(seed=2)
    assert order(shuffle=False) == labels.tolist() != order(seed=1)


def test_a_regression_has_no_accuracy():
    """An accuracy of 0.0 would say that it learned nothing."""
    x, y = torch.rand(40, 12), torch.rand(40, 1)
    model = nn.Linear(12, 1)
    pairs = list(zip(x.split(10), y.split(10), strict=True))
    assert set(train_epoch(model, pairs, nn.MSELoss(), sgd(model))) == {"loss", "rows", "seconds"}
    assert set(evaluate(model, pairs, nn.MSELoss())) == {"loss", "rows"}


def test_an_epoch_is_the_loop_that_a_lesson_writes_out():
    images, labels = stripes(40)
    dicts = [{"image": images[i : i + 8], "label": labels[i : i + 8]} for i in range(0, 40, 8)]  # Ray Data's
    imported, from_dicts, written, heard = mlp(seed=0), mlp(seed=0), mlp(seed=0), []
    rows = batches(images, labels, size=8, shuffle=False)
    train_epoch(imported, rows, LOSS, sgd(imported), on_step=lambda **m: heard.append(m["loss"]))
    train_epoch(from_dicts, dicts, LOSS, sgd(from_dicts))
    optimizer, losses = sgd(written), []
    for x, y in rows:
        optimizer.zero_grad()
        loss = LOSS(written(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    assert parameter_distance(imported, written) == parameter_distance(from_dicts, written) == 0.0
    assert parameter_distance(imported, mlp(seed=0)) > 0
    assert heard == losses and not any(loss.requires_grad for loss in heard)


def test_evaluating_changes_nothing():
    images, labels = stripes(40)
    model = nn.Sequential(mlp(seed=0), nn.Dropout(0.5))
    before = copy.deepcopy(model)
    first, second = (evaluate(model, batches(images, labels, size=8)) for _ in range(2))
    assert first == second
    assert model.training
    assert parameter_distance(model, before) == 0.0
    assert all(p.grad is None for p in model.parameters())


def test_no_batch_is_an_error():
    with pytest.raises(LabError, match="no batch"):
        train_epoch(mlp(seed=0), iter(()), LOSS, sgd(mlp()))
