"""MNIST: downloaded once, from the first address that has the right file."""

import gzip
import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest

from course.datasets import catalog, load
from labkit.errors import NotReachable
from labkit.settings import Settings
from web import file_server

RANDOM = np.random.default_rng(0)
ARRAYS = {
    split: (RANDOM.integers(0, 256, (n, 28, 28), np.uint8), np.arange(n, dtype=np.uint8) % 10)
    for split, n in (("train", 30), ("test", 12))
}
FIRST = "train-images-idx3-ubyte.gz"


def idx(values):
    head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    return gzip.compress(head + values.tobytes(), mtime=0)


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home")


@pytest.fixture
def files(monkeypatch):
    """Let `ARRAYS` be MNIST; returns its files by their names."""
    packed = dict(zip(catalog.MNIST, map(idx, (*ARRAYS["train"], *ARRAYS["test"])), strict=True))
    for name, content in packed.items():
        monkeypatch.setitem(catalog.MNIST, name, hashlib.sha256(content).hexdigest())
    return packed


@pytest.fixture
def server(files, monkeypatch):
    with file_server() as running:
        addresses = ("http://127.0.0.1:9", f"{running.url}/no", f"{running.url}/set")
        monkeypatch.setattr(catalog, "ADDRESSES", addresses)
        running.files = {f"set/{name}": content for name, content in files.items()}
        yield running


def refused(settings):
    with pytest.raises(NotReachable) as caught:
        load("mnist", settings=settings)
    return caught.value


def test_it_is_downloaded_once_from_the_first_address_that_has_it(server, settings):
    for split, (images, labels) in ARRAYS.items():
        for _ in range(2):
            data = load("mnist", split, settings=settings)
            assert np.array_equal(data.images, images) and np.array_equal(data.labels, labels)
            assert (data.labels.dtype, data.name, data.split) == (np.int64, "mnist", split)
            data.images[0] = 0  # torch wants arrays that can be written
    asked = [path for path in server.requests if path.startswith("set/")]
    assert sorted(asked) == sorted(server.files)
    assert {path.name for path in (settings.home / "datasets" / "mnist").iterdir()} == {*catalog.MNIST}


def test_small_mode_takes_a_sample(server, settings, monkeypatch):
    monkeypatch.setattr(catalog, "_SMALL_ROWS", {"train": 20, "test": 20})
    small = replace(settings, small=True)
    assert (len(load("mnist", settings=small)), len(load("mnist", "test", settings=small))) == (20, 12)
    assert len(load("mnist", n=25, settings=small)) == 25  # a number that is asked for counts more


def test_no_address_has_it(server, settings):
    server.files.clear()
    error = refused(settings)
    assert error.attempt == f"fetch {FIRST} of mnist"
    assert "http://127.0.0.1:9: ConnectionError" in error.fact
    assert f"{server.url}/set: HTTPError: 404" in error.fact
    path = settings.home / "datasets" / "mnist" / FIRST
    for help_with in (catalog.MNIST[FIRST], str(path), "LABKIT_DATASET=digits"):
        assert help_with in error.fix


@pytest.mark.parametrize(
    ("body", "announced", "fact"),
    [(b"<html>please log in</html>", None, "hash"), (b"x" * 100, 1000, "IncompleteRead")],
)
def test_other_bytes_are_not_kept(server, settings, body, announced, fact):
    name = f"set/{FIRST}"
    right, server.files[name] = server.files[name], body
    server.announced = {name: announced} if announced else {}
    assert fact in refused(settings).fact
    assert list((settings.home / "datasets" / "mnist").iterdir()) == []
    server.files[name], server.announced = right, {}
    assert len(load("mnist", settings=settings)) == 30
