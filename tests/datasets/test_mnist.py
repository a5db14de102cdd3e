"""MNIST and its like: downloaded once, from the first address that has the right file, or from a mirror."""

import gzip
import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest

from file_server import FileServer
from labkit.datasets import load, mnist
from labkit.errors import DatasetError
from labkit.settings import DATASETS, Settings

RANDOM = np.random.default_rng(0)
ARRAYS = {
    "train": (RANDOM.integers(0, 256, (30, 28, 28), np.uint8), np.arange(30, dtype=np.uint8) % 10),
    "test": (RANDOM.integers(0, 256, (12, 28, 28), np.uint8), np.arange(12, dtype=np.uint8) % 10),
}


def idx(values):
    head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    return gzip.compress(head + values.tobytes(), mtime=0)


def as_mnist(monkeypatch, arrays=ARRAYS, addresses=()):
    """Let the data set `mnist` be these arrays; returns its files (bytes or arrays) by their names."""
    known, files, pairs = mnist.SOURCES["mnist"], {}, {}
    for split, both in arrays.items():
        names = [name for name, _ in getattr(known, split)]
        packed = [part if isinstance(part, bytes) else idx(part) for part in both]
        files.update(zip(names, packed, strict=True))
        pairs[split] = tuple(zip(names, (hashlib.sha256(p).hexdigest() for p in packed), strict=True))
    monkeypatch.setitem(mnist.SOURCES, "mnist", replace(known, addresses=addresses, **pairs))
    return files


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home")


@pytest.fixture
def server(monkeypatch):
    with FileServer({}) as running:
        files = as_mnist(
            monkeypatch, addresses=("http://127.0.0.1:9", f"{running.url}/no", f"{running.url}/set")
        )
        running.files = {f"set/{name}": content for name, content in files.items()}
        yield running


def refused(settings):
    with pytest.raises(DatasetError) as caught:
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
    assert {path.name for path in (settings.home / "datasets" / "mnist").iterdir()} == {
        path.removeprefix("set/") for path in server.files
    }


def test_no_address_has_it(server, settings):
    server.files.clear()
    error = refused(settings)
    assert error.attempt == "fetch train-images-idx3-ubyte.gz of mnist"
    assert "http://127.0.0.1:9: no connection" in error.fact
    assert f"{server.url}/set: it answered 404" in error.fact
    path, sha256 = (
        settings.home / "datasets/mnist/train-images-idx3-ubyte.gz",
        mnist.SOURCES["mnist"].train[0][1],
    )
    for help_with in ("LABKIT_MIRROR", sha256, str(path), "LABKIT_DATASET=digits"):
        assert help_with in error.fix


@pytest.mark.parametrize(
    ("body", "announced", "fact"),
    [
        (b"<html>please log in</html>", None, "SHA-256 differs"),
        (b"", None, "SHA-256 differs"),
        (b"x" * 100, 1000, "it broke"),
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


def test_a_damaged_file_is_fetched_again(server, settings):
    load("mnist", settings=settings)
    path = settings.home / "datasets" / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1])
    assert np.array_equal(load("mnist", settings=settings).images, ARRAYS["train"][0])


@pytest.mark.parametrize("name", mnist.SOURCES)
def test_a_mirror_is_asked_and_no_other_address(name, settings):
    with FileServer({}) as school:
        error = None
        with pytest.raises(DatasetError) as caught:
            load(name, settings=replace(settings, mirror=f"{school.url}/school/"))
        error = caught.value
        assert school.requests == [f"school/{name}/train-images-idx3-ubyte.gz"]
    assert f"{school.url}/school/{name}: it answered 404" in error.fact
    assert "amazonaws" not in str(error)


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
    settings = replace(settings, mirror="http://teacher:secret@127.0.0.1:9/x")
    told = str(refused(settings)) + repr(settings) + caplog.text + "".join(capfd.readouterr())
    assert "http://127.0.0.1:9/x" in told and "secret" not in told and "teacher" not in told


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "home").write_text("a file")
    assert "home" in refused(Settings(home=tmp_path / "home")).fact


@pytest.mark.parametrize(
    "content", [b"<html>", idx(ARRAYS["train"][0])[:-50], gzip.compress(b""), idx(ARRAYS["test"][0])]
)
def test_a_file_that_is_not_what_it_should_be(monkeypatch, settings, content):
    """Its hash is the one that is named: whoever made the list was wrong."""
    arrays = {**ARRAYS, "train": (content, ARRAYS["train"][1])}
    with FileServer({}) as server:
        files = as_mnist(monkeypatch, arrays, (server.url,))
        server.files = files
        assert refused(settings).fact


def test_the_sources_are_complete():
    assert {*mnist.SOURCES} | {"digits", "rendered"} == {*DATASETS}
    for source in mnist.SOURCES.values():
        files = dict([*source.train, *source.test])
        assert len(files) == len(set(files.values())) == 4
        assert all(len(bytes.fromhex(sha256)) == 32 for sha256 in files.values())
        assert len(source.addresses) > 1 and len(source.classes) == 10
