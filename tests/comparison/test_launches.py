"""The launches of the comparison: what is counted, what is refused, what a killed rank leaves."""

import pytest

from labkit.comparison import compare as comparison
from labkit.comparison import launches
from labkit.comparison.launches import ENGINES, Engine
from labkit.errors import RunError, RunFailed
from labkit.settings import Settings
from labkit.system.process_registry import ProcessRegistry
from labs import home as home_of_its_own

PLAIN, TORCHRUN = ENGINES[:2]


@pytest.fixture(scope="module")
def settings():
    with home_of_its_own() as folder:
        yield Settings(home=folder)


def test_a_script_that_fails(settings, tmp_path, monkeypatch):
    (tmp_path / "plain.py").write_text("raise SystemExit('no such luck')\n")
    monkeypatch.setattr(launches, "_SCRIPTS", tmp_path)
    with pytest.raises(RunFailed, match="no such luck"):
        comparison.run(rows=128, engines=(PLAIN,), settings=settings)


def test_a_script_that_hangs(settings, tmp_path, monkeypatch):
    (tmp_path / "plain.py").write_text("import time\nprint('so far', flush=True)\ntime.sleep(600)\n")
    monkeypatch.setattr(launches, "_SCRIPTS", tmp_path)
    monkeypatch.setattr(launches, "_SECONDS", 3)
    with pytest.raises(RunFailed, match="not end within 3 s; it said last: so far"):
        comparison.run(rows=128, engines=(PLAIN,), settings=settings)
    assert not ProcessRegistry(settings.home).groups()


def test_scripts_that_are_not_there(settings):
    with pytest.raises(RunError, match="nothing.py"):
        comparison.run(rows=128, engines=(Engine("x", "nothing.py"),), settings=settings)


def test_lines_that_changed():
    counts = {engine.name: launches.changed_lines(engine) for engine in ENGINES}
    assert counts["one process"] == 0
    assert (
        5 <= counts["torchrun"] < counts["TorchDistributor, local"] == counts["TorchDistributor, executors"]
    )
    assert counts["Ray Train, DataLoader"] < counts["Ray Train, Ray Data"]


def test_a_rank_that_is_killed(settings, tmp_path):
    launches.write_rows(tmp_path / "base", 1_280)
    death = launches.kill(TORCHRUN, tmp_path / "base" / "run", settings, epochs=1)
    assert death["status"] != 0
    assert death["seconds"] > 0
    assert death["attempts"] == 1
    assert not ProcessRegistry(settings.home).groups()


def test_a_rank_that_does_not_come_so_far(settings, tmp_path):
    launches.write_rows(tmp_path / "base", 128)
    with pytest.raises(RunFailed, match="none of them came so far"):
        launches.kill(PLAIN, tmp_path / "base" / "run", settings, epochs=1)
