"""The data sets by their names: what ships, what is downloaded, what is drawn, and what is refused."""

import gzip
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from file_server import FileServer
from labkit.datasets import catalog as datasets
from labkit.datasets.catalog import SOURCES, Source, load, rendered
from labkit.datasets.downloads import RemoteFile
from labkit.datasets.rendering import render
from labkit.errors import DatasetError
from labkit.settings import DATASETS, Settings

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "labkit" / "datasets" / "files"
RANDOM = np.random.default_rng(0)
ARRAYS = {
    "train": (RANDOM.integers(0, 256, (30, 28, 28), dtype=np.uint8), (np.arange(30) % 10).astype(np.uint8)),
    "test": (RANDOM.integers(0, 256, (12, 28, 28), dtype=np.uint8), (np.arange(12) % 10).astype(np.uint8)),
}


def idx(values):
    head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    return gzip.compress(head + values.tobytes(), mtime=0)


FILES = {
    f"{split}-{part}.gz": idx(values)
    for split, arrays in ARRAYS.items()
    for part, values in zip(("images", "labels"), arrays, strict=True)
}


def source(*addresses, files=FILES):
    def remote(name):
        return RemoteFile(name=name, sha256=hashlib.sha256(files[name]).hexdigest(), size=len(files[name]))

    pairs = {split: (remote(f"{split}-images.gz"), remote(f"{split}-labels.gz")) for split in ARRAYS}
    return Source(addresses=addresses, **pairs)


@pytest.fixture
def server():
    with FileServer({f"tiny/{name}": content for name, content in FILES.items()}) as running:
        yield running


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home")


def refused(*arguments, **options):
    with pytest.raises(DatasetError) as caught:
        load(*arguments, **options)
    return caught.value


# digits


def test_the_digits_ship():
    train, test = load("digits"), load("digits", "test")
    assert repr(train) == "<Dataset digits, train: 1,437 images of 28×28, 10 classes>"
    assert (train.images.shape, train.images.dtype) == ((1437, 28, 28), np.uint8)
    assert (test.labels.shape, test.labels.dtype) == ((360,), np.int64)
    assert np.bincount(test.labels).tolist() == [36] * 10
    # The classes of the 1,797 rows of the original, as UCI's own description counts them.
    both = np.bincount(np.concatenate([train.labels, test.labels]))
    assert both.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_no_digit_is_in_both_parts():
    train, test = ({image.tobytes() for image in load("digits", split).images} for split in ("train", "test"))
    assert not train & test


def test_the_digits_are_where_those_of_mnist_are():
    images = load("digits").images.astype(float)
    assert images.max() == 255
    assert images[:, :3].max() <= 1  # a border of 4 pixels, into which the curve of a line may reach
    assert images[:, -3:].max() <= 1
    assert images[:, 6:22, 6:22].mean() > 80


def test_the_digits_can_be_learned():
    """The nearest image of the training part has the right label: labels and images belong together."""
    train, test = load("digits"), load("digits", "test")
    x, y = (data.images.reshape(len(data), -1) / 255 for data in (train, test))
    nearest = ((y**2).sum(1)[:, None] + (x**2).sum(1) - 2 * y @ x.T).argmin(axis=1)
    assert (train.labels[nearest] == test.labels).mean() > 0.97


def test_the_readme_tells_the_checksum_and_the_licence():
    readme = (SHIPPED / "README.md").read_text()
    content = (SHIPPED / "digits.parquet").read_bytes()
    assert hashlib.sha256(content).hexdigest() in readme
    assert f"{len(content):,} bytes" in readme
    assert "CC BY 4.0" in readme
    assert len(content) < 1_000_000


@pytest.mark.parametrize(
    "change", [lambda whole: whole[:-1], lambda whole: whole + b"x", lambda _: b"version https://git-lfs"]
)
def test_a_changed_file_of_digits_is_refused(tmp_path, monkeypatch, change):
    path = tmp_path / "digits.parquet"
    path.write_bytes(change((SHIPPED / "digits.parquet").read_bytes()))
    monkeypatch.setattr(datasets, "shipped", lambda name: path)
    error = refused("digits")
    assert str(path) in error.fact
    assert "git checkout" in error.fix


def test_a_missing_file_of_digits_is_told():
    with pytest.raises(DatasetError, match="nothing.parquet does not exist"):
        datasets.shipped("nothing.parquet")


def test_an_installed_package_has_the_digits(tmp_path):
    """Not from the checkout: a wheel is built from a copy, unpacked, and used."""
    copy, unpacked = tmp_path / "copy", tmp_path / "unpacked"
    shutil.copytree(ROOT / "labkit", copy / "labkit", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = copy.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(unpacked)
    shutil.rmtree(copy)
    use = "import labkit.datasets as sets; print(sets.load('digits', 'test'), sets.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    done = subprocess.run(
        [sys.executable, "-c", use], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    shown = "<Dataset digits, test: 360 images of 28×28, 10 classes>"
    assert done.stdout == f"{shown} {unpacked / 'labkit' / 'datasets' / '__init__.py'}\n", done.stderr[-2000:]


# downloads


def test_a_source_is_downloaded_once(server, settings):
    tiny = source(f"{server.url}/tiny")
    for split, (images, labels) in ARRAYS.items():
        for _ in range(2):
            data = load("tiny", split, source=tiny, settings=settings)
            assert np.array_equal(data.images, images)
            assert np.array_equal(data.labels, labels)
            assert data.labels.dtype == np.int64
            assert (data.name, data.split) == ("tiny", split)
    assert sorted(server.requests) == sorted(f"tiny/{name}" for name in FILES)
    assert (settings.home / "datasets" / "tiny" / "train-images.gz").is_file()


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_a_mirror_is_asked_for_the_well_known_files_and_no_other_address(server, tmp_path, monkeypatch, name):
    monkeypatch.setenv("LABKIT_MIRROR", f"{server.url}/school/")
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    error = refused(name)
    assert server.requests == [f"school/{name}/train-images-idx3-ubyte.gz"]
    assert error.attempt == f"fetch train-images-idx3-ubyte.gz of {name}"
    assert f"{server.url}/school/{name}: it answered 404" in error.fact
    assert "amazonaws" not in str(error)


def test_the_well_known_files_are_read(server, tmp_path, monkeypatch):
    """From a mirror to the arrays, with other contents in place of MNIST's."""
    known, ours = SOURCES["mnist"], source()
    pairs = {}
    for split in ARRAYS:
        both = list(zip(getattr(known, split), getattr(ours, split), strict=True))
        server.files |= {f"mnist/{file.name}": FILES[mine.name] for file, mine in both}
        pairs[split] = tuple(replace(mine, name=file.name) for file, mine in both)
    monkeypatch.setitem(SOURCES, "mnist", replace(known, **pairs))
    settings = Settings(home=tmp_path, mirror=server.url)
    assert np.array_equal(load("mnist", settings=settings).images, ARRAYS["train"][0])
    assert np.array_equal(load("mnist", "test", settings=settings).labels, ARRAYS["test"][1])


def test_a_mirrors_password_is_in_no_repr():
    settings = Settings.from_env({"LABKIT_MIRROR": " https://teacher:secret@school.example/data "})
    assert settings.mirror == "https://teacher:secret@school.example/data"
    assert "secret" not in repr(settings)
    assert Settings.from_env({"LABKIT_MIRROR": ""}).mirror is None


def test_a_folder_can_be_the_mirror(tmp_path):
    stick = tmp_path / "stick" / "tiny"
    stick.mkdir(parents=True)
    for name, content in FILES.items():
        (stick / name).write_bytes(content)
    settings = Settings(home=tmp_path / "home", mirror=str(stick.parent))
    assert len(load("tiny", source=source("http://127.0.0.1:9"), settings=settings)) == 30


def test_all_sources_are_complete():
    assert {*SOURCES} | {"digits", "rendered"} == {*DATASETS}
    for known in SOURCES.values():
        files = [*known.train, *known.test]
        assert len({file.name for file in files}) == len({file.sha256 for file in files}) == 4
        assert all(len(bytes.fromhex(file.sha256)) == 32 for file in files)
        assert len(known.addresses) > 1
        assert len(known.classes) == 10


@pytest.mark.parametrize(
    ("part", "content", "fact"),
    [
        ("images", b"<html>", "no IDX file"),
        ("images", idx(ARRAYS["train"][0])[:-50], "too early"),
        ("images", idx(ARRAYS["train"][0][:, :14]), "[30, 14, 28], and [n, 28, 28] was expected"),
        ("labels", idx(ARRAYS["train"][1][:29]), "[29], and [30] was expected"),
        ("labels", idx(ARRAYS["train"][1] + 1), "the labels go from 1 to 10"),
        ("labels", idx(ARRAYS["train"][0]), "[30, 28, 28], and [30] was expected"),
    ],
)
def test_a_source_with_a_wrong_file_is_refused(settings, part, content, fact):
    files = FILES | {f"train-{part}.gz": content}
    with FileServer(files) as server:
        error = refused("tiny", source=source(server.url, files=files), settings=settings)
    assert fact in error.fact


def test_several_processes_load_at_once(server, tmp_path):
    script = tmp_path / "load.py"
    script.write_text(
        "import sys, json, numpy as np\n"
        "from labkit.datasets import Source, load\n"
        "from labkit.datasets.downloads import RemoteFile\n"
        f"data = load('tiny', source={source(server.url + '/tiny')!r})\n"
        "print(json.dumps([data.images.sum(dtype=int).item(), data.labels.tolist()]))\n"
    )
    environment = {**os.environ, "LABKIT_HOME": str(tmp_path / "home")}
    command = [sys.executable, str(script)]
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    answers = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    images, labels = ARRAYS["train"]
    assert answers == [[images.sum(dtype=int).item(), labels.tolist()]] * 4
    assert sorted(server.requests) == ["tiny/train-images.gz", "tiny/train-labels.gz"]


# rendered


def test_rendered_digits_by_name():
    data = load("rendered", n=300, seed=4)
    assert np.array_equal(data.images, render(0, 300, seed=4)[0])
    assert (data.name, data.split, len(data)) == ("rendered", "train", 300)
    assert np.array_equal(rendered(300, 4).images, data.images)
    assert not np.array_equal(load("rendered", "test", n=300, seed=4).images, data.images)


def test_more_than_the_memory_is_refused_at_once():
    with pytest.raises(DatasetError) as caught:
        rendered(10**12)
    assert "784000.0 GB" in caught.value.fact
    assert "rendered_to_parquet" in caught.value.fix


# names, splits, samples


def test_the_default_is_what_the_settings_say(monkeypatch):
    assert load(settings=Settings(dataset="digits")).name == "digits"
    monkeypatch.setenv("LABKIT_DATASET", "rendered")
    assert load(n=10).name == "rendered"


def test_small_mode_bounds_every_set(settings):
    small = replace(settings, small=True)
    for split, rows in (("train", 1500), ("test", 400)):
        assert len(load("rendered", split, settings=small)) == rows
    assert len(load("rendered", n=2000, settings=small)) == 2000  # who asks for more gets it
    assert len(load("digits", settings=small)) == 1437
    many = {f"{split}-images.gz": idx(np.zeros((2000, 28, 28), np.uint8)) for split in ARRAYS}
    many |= {f"{split}-labels.gz": idx(np.zeros(2000, np.uint8)) for split in ARRAYS}
    with FileServer(many) as server:
        own = source(server.url, files=many)
        assert len(load("many", source=own, settings=small)) == 1500
        assert len(load("many", "test", source=own, settings=small)) == 400
        assert len(load("many", source=own, settings=settings)) == 2000


def test_a_sample_is_drawn_by_its_seed():
    whole = load("digits")
    some, more, other = load("digits", n=50), load("digits", n=100), load("digits", n=50, seed=1)
    assert np.array_equal(some.images, more.images[:50])
    assert not np.array_equal(some.images, other.images)
    assert len({image.tobytes() for image in more.images}) == 100
    assert {image.tobytes() for image in more.images} <= {image.tobytes() for image in whole.images}
    assert len(load("digits", n=1437)) == 1437


@pytest.mark.parametrize(
    ("arguments", "options", "fact", "fix"),
    [
        (["mnits"], {}, "there is none of this name", "did you mean 'mnist'?"),
        (["imagenet"], {}, "there is none of this name", "take one of digits, mnist"),
        (["../digits"], {}, "there is none of this name", "digits"),
        (["digits", "val"], {}, "there is no split 'val'", "train, test"),
        (["digits"], {"n": 1438}, "digits has 1,437 rows for train", "up to 1,437"),
        (["digits"], {"n": 0}, "their number is 0", "from 1 on"),
        (["digits"], {"n": -1}, "their number is -1", "from 1 on"),
        (["digits"], {"n": 0.5}, "their number is 0.5", "from 1 on"),
        (["digits"], {"seed": -1, "n": 3}, "the seed is -1", "from 0 on"),
        (["mnist"], {"source": source("x")}, "the name is taken", "another name"),
        (["../x"], {"source": source("x")}, "cannot be one", "another name"),
    ],
)
def test_what_cannot_be_loaded_is_refused(arguments, options, fact, fix):
    error = refused(*arguments, **options)
    assert fact in error.fact
    assert fix in error.fix


def test_the_import_is_light():
    code = "import sys; from labkit.datasets import catalog, shards; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {
        "pandas",
        "PIL",
        "matplotlib",
        "pooch",
        "requests",
        "pyarrow",
        "ray",
        "torch",
        "psutil",
        "filelock",
    }
    assert not heavy & set(done.stdout.split())


def test_the_sentences_that_ship():
    """Short text with a label, and a tokenizer that knows its words: a recipe of lesson 07."""
    lines = datasets.shipped("sentences.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    assert {len(row) for row in rows} == {2}
    counts = [sum(label == wanted for label, _ in rows) for wanted in ("0", "1")]
    assert sum(counts) == len(rows) > 300
    assert min(counts) > 100
    assert len({text for _, text in rows}) > 0.98 * len(rows)
    words = json.loads(datasets.shipped("tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert {"[PAD]", "[UNK]", "worker"} <= set(words)
