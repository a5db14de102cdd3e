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

from labkit import datasets
from labkit.datasets import load
from labkit.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "labkit" / "datasets" / "files"


def test_the_digits_ship():
    train, test = load("digits"), load("digits", "test")
    assert repr(train) == "<Dataset digits, train: 1,437 images of 28×28, 10 classes>"
    assert (train.images.shape, train.images.dtype) == ((1437, 28, 28), np.uint8)
    assert (test.labels.shape, test.labels.dtype) == ((360,), np.int64)
    assert np.bincount(test.labels).tolist() == [36] * 10
    assert not {image.tobytes() for image in train.images} & {image.tobytes() for image in test.images}
    # The nearest image of the training part has the right label: labels and images belong together.
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


def test_an_installed_package_has_the_digits(tmp_path):
    """Not from the checkout: a wheel is built from a copy, unpacked, and used."""
    copy, unpacked = tmp_path / "copy", tmp_path / "unpacked"
    shutil.copytree(ROOT / "labkit", copy / "labkit", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    subprocess.run([sys.executable, "-c", build], cwd=copy, check=True, capture_output=True, timeout=120)
    (wheel,) = copy.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(unpacked)
    shutil.rmtree(copy)
    use = "import labkit.datasets as sets; print(sets.load('digits', 'test'), sets.__file__)"
    variables = {**os.environ, "PYTHONPATH": str(unpacked)}
    command = [sys.executable, "-c", use]
    said = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    shown = "<Dataset digits, test: 360 images of 28×28, 10 classes>"
    assert said.stdout == f"{shown} {unpacked / 'labkit' / 'datasets' / '__init__.py'}\n", said.stderr[-2000:]


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


def test_the_sentences_that_ship():
    """Short text with a label, and a tokenizer that knows its words: a recipe of lesson 07."""
    lines = datasets.shipped("sentences.tsv").read_text(encoding="utf-8").splitlines()
    labels, texts = zip(*(line.split("\t") for line in lines), strict=True)
    assert min(labels.count("0"), labels.count("1")) > 100 and set(labels) == {"0", "1"}
    assert len(set(texts)) > 0.98 * len(texts)
    words = json.loads(datasets.shipped("tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert {"[PAD]", "[UNK]", "worker"} <= set(words)
