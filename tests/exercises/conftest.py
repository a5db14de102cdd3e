"""Exercises that are solved here are recorded in a folder of the test, and a wrong answer does not raise."""

import contextlib
import shutil
from pathlib import Path

import pytest

import labkit
import labs
from course.exercises import checking
from course.exercises.running import limited
from labkit.local import cluster
from labkit.settings import CHECKOUT

_lab = contextlib.ExitStack()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.delenv("LABKIT_CHECK", raising=False)
    return tmp_path


@pytest.fixture(autouse=True)
def _patient(request, monkeypatch):
    """A busy machine has longer than a learner has to wait, unless the answer is one that never ends."""
    verdict = getattr(getattr(request.node, "callspec", None), "params", {}).get("verdict")
    if verdict is not None:
        monkeypatch.setattr(
            checking,
            "limited",
            lambda seconds, stuck: limited(seconds * (1 if verdict in stuck else 5), stuck),
        )


class TrialEnded(Exception):
    """What Tune does to a trial that is over."""


@pytest.fixture
def trial(monkeypatch, tmp_path):
    """trial(trainable, config): what it reports, with copies of its checkpoints. It runs here, without Tune.

    It ends after `most` reports, or with a metric `done`. After an OSError it starts once more.
    """
    from ray import tune

    def run(trainable, config, most=None):
        reports = []

        def report(metrics, checkpoint=None):
            if isinstance(checkpoint, tune.Checkpoint):
                copy = checkpoint.to_directory(tmp_path / f"{config['lr']}-{len(reports)}")
                checkpoint = tune.Checkpoint.from_directory(copy)
            reports.append((metrics, checkpoint))
            if metrics.get("done") or len(reports) == most:
                raise TrialEnded

        monkeypatch.setattr(tune, "report", report)
        monkeypatch.setattr(tune, "get_checkpoint", lambda: reports[-1][1] if reports else None)
        with contextlib.suppress(TrialEnded):
            try:
                trainable(config)
            except OSError:
                trainable(config)
        return reports

    return run


@pytest.fixture
def site(tmp_path):
    """labkit as a wheel installs it: without the lessons."""
    shutil.copytree(Path(labkit.__file__).parent, tmp_path / "site" / "labkit")
    return tmp_path / "site"


@pytest.fixture
def folder(tmp_path):
    """What a teacher gave: notebooks, and the checks next to them."""
    shutil.copytree(CHECKOUT / "lessons" / "checks", tmp_path / "given" / "lessons" / "checks")
    (tmp_path / "given" / "notebooks" / "solutions").mkdir(parents=True)
    return tmp_path / "given"


@pytest.fixture(scope="module")
def lab():
    """One cluster for the checks of all lessons that follow one another."""
    if cluster.current() is None:
        _lab.enter_context(labs.home())
        _lab.enter_context(cluster.start(nodes=1, cpus_per_node=4))
    return cluster.current()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """The cluster ends after the last exercise: idle, it takes a tenth of a core from all later tests.

    In a random order, other tests come between; then the next exercise starts another one.
    """
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _lab.close()
