"""The data sets by their names: what ships, what is drawn, samples, and requests that are refused."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from labkit import datasets
from labkit.datasets import catalog, load
from labkit.errors import DatasetError
from labkit.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "labkit" / "datasets" / "files"


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
    monkeypatch.setattr(catalog, "shipped", lambda name: path)
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


# names, splits, samples


def test_the_default_is_what_the_settings_say(monkeypatch):
    assert load(settings=Settings(dataset="digits")).name == "digits"
    monkeypatch.setenv("LABKIT_DATASET", "rendered")
    assert load(n=10).name == "rendered"


def test_small_mode_bounds_every_set():
    small = Settings(small=True)
    assert len(load("rendered", settings=small)) == 1500
    assert len(load("rendered", "test", settings=small)) == 400
    assert len(load("rendered", n=2000, settings=small)) == 2000  # who asks for more gets it
    assert len(load("digits", settings=small)) == 1437


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
        (["imagenet"], {}, "there is none of this name", "use one of digits, mnist"),
        (["../digits"], {}, "there is none of this name", "digits"),
        ([3], {}, "there is none of this name", "digits"),
        (["digits", "val"], {}, "there is no split 'val'", "train, test"),
        (["digits", None], {}, "there is no split None", "train, test"),
        (["digits"], {"n": 1438}, "digits has 1,437 rows for train", "up to 1,437"),
        (["digits"], {"n": 0}, "n is 0", "from 1 on"),
        (["digits"], {"n": 0.5}, "n is 0.5", "from 1 on"),
        (["digits"], {"n": "5"}, "n is '5'", "from 1 on"),
        (["digits"], {"seed": -1, "n": 3}, "the seed is -1", "from 0 on"),
        (["rendered"], {"n": 10**14}, "Unable to allocate", "fewer"),
    ],
)
def test_what_cannot_be_loaded_is_refused(arguments, options, fact, fix):
    error = refused(*arguments, **options)
    assert fact in error.fact
    assert fix in error.fix


def test_the_import_is_light():
    code = "import sys; from labkit import datasets; datasets.load; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pandas", "PIL", "matplotlib", "pooch", "requests", "pyarrow", "ray", "torch"}
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
