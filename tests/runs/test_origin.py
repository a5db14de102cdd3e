"""A record says where its run comes from: code, commit, seed, data."""

import functools
import inspect
import subprocess

import numpy as np
import pytest

from labkit import runs
from labkit.datasets import Dataset
from labkit.panel import Panel
from labkit.runs.origin import called_by, git_commit, source_of
from labkit.runs.record import RunRecord, folder_of
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


def deep(x):
    return x + 1


class Model:
    def forward(self, x):
        return deep(x)


def step(x):
    return [deep(one) for one in x]


def training(config):
    def inner():
        return step([np.float32(1)])

    return Model(), inner, training


def test_what_it_calls_is_kept_too():
    text = called_by(functools.partial(training, 3))
    assert text == "\n\n\n".join(source_of(one).strip() for one in (Model, step, deep))
    assert called_by(Model) == source_of(deep).strip()
    assert called_by(loop) == called_by(len) == called_by(None) == ""
    assert source_of(deep).strip() in called_by(inspect.currentframe())  # as of a cell with a panel


def test_another_model_is_a_difference_though_the_loop_is_equal(tmp_path):
    for run_id, name in (("a", "relu"), ("b", "gelu")):
        about = {"name": "x", "engine": "e", "state": "finished", "started_at": "2026-01-31T12:00:00+00:00"}
        record = RunRecord(
            run_id=run_id, code="def loop(): model()\n", called=f"def model(): {name}\n", **about
        )
        record.write(folder_of(tmp_path, "x", run_id))
    found = runs.compare("a", "b", tmp_path)
    assert "-def model(): relu" in found.code and "+def model(): gelu" in found.code
    page = runs.report(tmp_path / "page.html", title="both", home=tmp_path).read_text()
    assert "relu" in page and "gelu" in page


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


def test_the_panel_of_a_run_is_no_difference(settings):
    for rate in (0.1, 0.2):
        panel = Panel("own", settings=settings)
        with Panel("own", config={"panel": panel, "lr": rate}, settings=settings):
            pass
    one, other = runs.table(settings.home, columns=["run_id"])["run_id"]
    found = runs.compare(one, other, settings.home).table.index
    assert "config.lr" in found and "config.panel" not in found
