"""MNIST and its like: downloaded once, from the first address that has the right file, or from a mirror."""

import gzip
import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest

from labkit.datasets import catalog, load
from labkit.errors import LabError
from labkit.settings import Settings
from web import file_server

RANDOM = np.random.default_rng(0)
ARRAYS = {
    "train": (RANDOM.integers(0, 256, (30, 28, 28), np.uint8), np.arange(30, dtype=np.uint8) % 10),
    "test": (RANDOM.integers(0, 256, (12, 28, 28), np.uint8), np.arange(12, dtype=np.uint8) % 10),
}


def idx(values):
    head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    return gzip.compress(head + values.tobytes(), mtime=0)


def as_mnist(monkeypatch, addresses=()):
    """Let the data set `mnist` be `ARRAYS`; returns its files by their names."""
    packed = [idx(array) for split in ("train", "test") for array in ARRAYS[split]]
    sha256 = tuple(hashlib.sha256(content).hexdigest() for content in packed)
    monkeypatch.setitem(catalog.ADDRESSES, "mnist", addresses)
    monkeypatch.setitem(catalog.SHA256, "mnist", sha256)
    return dict(zip(catalog.FILES, packed, strict=True))


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home")


@pytest.fixture
def server(monkeypatch):
    with file_server() as running:
        files = as_mnist(
            monkeypatch, addresses=("http://127.0.0.1:9", f"{running.url}/no", f"{running.url}/set")
        )
        running.files = {f"set/{name}": content for name, content in files.items()}
        yield running


def refused(settings):
    with pytest.raises(LabError) as caught:
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
    assert {path.name for path in (settings.home / "datasets" / "mnist").iterdir()} == {*catalog.FILES}


def test_no_address_has_it(server, settings):
    server.files.clear()
    error = refused(settings)
    assert error.attempt == "fetch train-images-idx3-ubyte.gz of mnist"
    assert "http://127.0.0.1:9: ConnectionError" in error.fact
    assert f"{server.url}/set: HTTPError: 404" in error.fact
    path = settings.home / "datasets/mnist/train-images-idx3-ubyte.gz"
    sha256 = catalog.SHA256["mnist"][0]
    for help_with in ("LABKIT_MIRROR", sha256, str(path), "LABKIT_DATASET=digits"):
        assert help_with in error.fix


@pytest.mark.parametrize(
    ("body", "announced", "fact"),
    [
        (b"<html>please log in</html>", None, "hash"),
        (b"x" * 100, 1000, "IncompleteRead"),
    ],
)
def test_other_bytes_are_not_kept(server, settings, body, announced, fact):
    name = "set/train-images-idx3-ubyte.gz"
    right, server.files[name] = server.files[name], body
    if announced:
        server.announced[name] = announced
    assert fact in refused(settings).fact
    assert list((settings.home / "datasets" / "mnist").iterdir()) == []
    server.files[name], server.announced = right, {}
    assert len(load("mnist", settings=settings)) == 30


def test_a_folder_can_be_the_mirror(monkeypatch, settings, tmp_path):
    stick = tmp_path / "stick" / "mnist"
    stick.mkdir(parents=True)
    settings = replace(settings, mirror=str(stick.parent))
    files = as_mnist(monkeypatch)
    assert "No such file" in refused(settings).fact
    for name, content in files.items():
        (stick / name).write_bytes(content)
    assert len(load("mnist", settings=settings)) == 30


def test_a_password_in_an_address_is_not_told(settings, capfd, caplog):
    with file_server() as server:
        address = f"127.0.0.1:{server.url.rpartition(':')[2]}/x"
        error = refused(replace(settings, mirror=f"http://teacher:secret@{address}"))
    told = f"{error}{settings!r}{caplog.text}{capfd.readouterr()}"
    assert f"http://{address}" in told and "secret" not in told and "teacher" not in told
