"""The comparison: what is counted, what is refused, what is shown; and two real launches side by side."""

import dataclasses
import json

import pytest

from labkit.comparison import compare as comparison
from labkit.comparison import launches
from labkit.comparison.compare import ENGINES, Comparison, Engine, Result
from labkit.errors import RunError
from labkit.settings import Settings
from labkit.system.process_registry import ProcessRegistry
from labs import home as home_of_its_own

PLAIN, TORCHRUN = ENGINES[:2]


@pytest.fixture(scope="module")
def settings():
    with home_of_its_own() as folder:
        yield Settings(home=folder)


@pytest.fixture
def result():
    return Result(
        engine=PLAIN.name, engine_seconds=0.0, launch_seconds=2.0, rows_per_second=[500.0, 1000.0],
        total_seconds=6.0, peak_bytes=300_000_000,
    )  # fmt: skip


def test_two_engines_come_to_the_same_weights(settings):
    said = []
    found = comparison.run(
        rows=1_300, epochs=2, engines=(PLAIN, TORCHRUN), settings=settings, told=said.append
    )
    assert (found.rows, found.epochs, len(found.results)) == (1_280, 2, 2)
    plain, torchrun = found.results
    assert 0 < torchrun.gap < 1e-3 * found.moved
    assert plain.gap == 0.0
    for result in found.results:
        assert 0 < result.first_step < result.total_seconds
        assert len(result.rows_per_second) == 2
        assert result.peak_bytes > 100e6  # torch alone takes that much
    assert found.preload is None  # Ray is not among them
    assert len(said) == 2
    assert not ProcessRegistry(settings.home).groups()
    assert json.loads(found.to_json())["results"][1]["engine"] == "torchrun"


def test_other_weights_are_no_comparison(settings, tmp_path, monkeypatch):
    """A script with another learning rate: an error, and no figure."""
    text = PLAIN.path.read_text()
    other = Engine("another", "another.py")
    (tmp_path / PLAIN.script).write_text(text)
    (tmp_path / other.script).write_text(text.replace("lr=0.05", "lr=0.04"))
    monkeypatch.setattr(launches, "_SCRIPTS", tmp_path)
    with pytest.raises(RunError, match="did not train the same model"):
        comparison.run(rows=256, epochs=1, engines=(PLAIN, other), settings=settings)


def test_too_few_rows(settings):
    with pytest.raises(RunError, match="100 rows"):
        comparison.run(rows=100, settings=settings)


def test_the_table_shows_medians(result):
    death = {"status": 1, "seconds": 1.5, "attempts": 1}
    slow = dataclasses.replace(result, launch_seconds=4.0, death=death)
    slower = dataclasses.replace(result, launch_seconds=40.0)
    table = Comparison(1280, 2, 0.2, [result, slower, slow]).table()
    assert table.rows[0][:3] == ("one process", "–", "4.0")
    assert "ended with an error 1.5 s later" in table.rows[0][-1]
    assert "Equal weights" in table.line
    assert "Ray" not in table.line


def test_no_column_for_deaths_that_were_not_tried(result):
    table = Comparison(1280, 2, 0.2, [result]).table()
    assert "a rank is killed" not in table.head
    assert len(table.head) == len(table.rows[0])


@pytest.mark.parametrize("preload, said", [(True, "forked"), (False, "as pip installs it")])
def test_the_table_says_how_ray_was_started(result, preload, said):
    assert said in Comparison(1280, 2, 0.2, [result], preload).table().line


def test_the_figure_adds_up(result):
    axes = Comparison(1000, 2, 0.2, [result]).figure().axes[0]
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(6.0)
