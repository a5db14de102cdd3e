"""The data sets by their names: what ships, samples, and where the shipped files are found."""

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from course.datasets import load

pytestmark = pytest.mark.slow


ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "datasets"


def test_the_digits_ship():
    train, test = load("digits"), load("digits", "test")
    assert repr(train) == "<Dataset digits, train: 1,437 images of 28×28, 10 classes>"
    assert (train.images.shape, train.images.dtype) == ((1437, 28, 28), np.uint8)
    assert (test.labels.shape, test.labels.dtype) == ((360,), np.int64)
    assert np.bincount(test.labels).tolist() == [36] * 10
    assert not {image.tobytes() for image in train.images} & {image.tobytes() for image in test.images}
    readme, content = (SHIPPED / "README.md").read_text(), (SHIPPED / "digits.parquet").read_bytes()
    assert hashlib.sha256(content).hexdigest() in readme and f"{len(content):,} bytes" in readme
    assert "CC BY 4.0" in readme and len(content) < 1_000_000


# -- where the shipped files are found ---------------------------------------------------------------------


def run(code: str, folder: Path, *options: str, **env: str) -> subprocess.CompletedProcess:
    command, variables = [sys.executable, *options, "-c", code], {**os.environ, **env}
    return subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, timeout=250)


def test_a_node_with_the_package_alone_says_how_to_get_the_data(tmp_path):
    """What Ray's `py_modules` brings to a node of a remote cluster."""
    shutil.copytree(ROOT / "labkit", tmp_path / "labkit", ignore=shutil.ignore_patterns("__pycache__"))
    said = run("from course import datasets; datasets.load('digits')", tmp_path, PYTHONPATH=str(tmp_path))
    assert "BadInput: could not find the shipped file digits.parquet" in said.stderr
    assert "pass the rows in train_loop_config" in said.stderr


def test_hugging_faces_datasets_is_the_package_and_not_the_folder():
    """From the checkout's root, where a bare folder `datasets` could be taken for it."""
    code = (
        "import datasets, transformers; from transformers import Trainer; print(datasets.Dataset.__name__, "
    )
    code += "transformers.utils.is_datasets_available(), len(datasets.Dataset.from_dict({'a': [1, 2]})))"
    said = run(code, ROOT, PYTHONPATH=str(ROOT))
    assert said.stdout.split() == ["Dataset", "True", "2"], said.stderr[-2000:]
    assert not (SHIPPED / "__init__.py").exists()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "datasets" in project["optional-dependencies"]["recipes"]


# -- rows --------------------------------------------------------------------------------------------------


def test_a_sample_is_drawn_by_its_seed():
    whole = {image.tobytes() for image in load("digits").images}
    some, more, other = load("digits", n=50), load("digits", n=100), load("digits", n=50, seed=1)
    assert np.array_equal(some.images, more.images[:50]) and not np.array_equal(some.images, other.images)
    found = {image.tobytes() for image in more.images}
    assert len(found) == 100 and found <= whole and len(load("digits", n=1437)) == 1437
