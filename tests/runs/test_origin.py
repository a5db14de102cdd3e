"""A record says where its run comes from: code, commit, seed, data."""

import functools
import subprocess

import numpy as np
import pytest

from labkit import runs
from labkit.datasets import Dataset
from labkit.panel import Panel
from labkit.runs.origin import git_commit, source_of
from labkit.settings import Settings


class Trainable:
    def step(self):
        return {"loss": 1.0}


def loop(config):
    return config["lr"]


def test_code_is_kept_as_text():
    assert source_of(functools.partial(loop, 3)) == 'def loop(config):\n    return config["lr"]\n'
    assert source_of(Trainable).startswith("class Trainable:\n    def step")
    assert source_of(len) == source_of(None) == source_of(Trainable()) == ""


def git(*command, folder):
    options = ["-c", "user.name=x", "-c", "user.email=x@y"]
    return subprocess.run(
        ["git", *options, *command], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_commit_is_the_one_that_git_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert git_commit() is None
    git("init", "-q", folder=tmp_path)
    assert git_commit() is None  # no commit yet
    git("commit", "-q", "--allow-empty", "-m", "first", folder=tmp_path)
    commit = git("rev-parse", "HEAD", folder=tmp_path)
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    assert git_commit() == commit
    monkeypatch.setenv("PATH", str(tmp_path))  # a machine without git
    assert git_commit() is None


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path, panel="none")


def data(first=0):
    images = np.full((4, 28, 28), first, np.uint8)
    return Dataset(images, np.zeros(4, np.int64), "own", "train", ("a",))


def test_a_panel_records_code_seed_and_data(settings):
    with Panel("own", dataset=data(), config={"seed": 7, "rows": [0] * 100}, settings=settings):
        pass
    first = runs.latest("own", settings.home)
    assert "def test_a_panel_records_code_seed_and_data" in first.code
    assert (first.seed, first.dataset, first.data_fingerprint) == (7, "own", data().fingerprint)
    assert first.config["rows"] == "list of 100" and first.versions["python"] and first.host["cpus"]
    with Panel("own", dataset=data(first=1), seed=3, settings=settings):
        pass
    second = runs.latest("own", settings.home)
    assert second.seed == 3 and second.data_fingerprint != first.data_fingerprint
