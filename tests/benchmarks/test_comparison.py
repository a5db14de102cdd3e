"""The comparison: two real programs side by side, what is refused, what is shown."""

import dataclasses

import pytest

from benchmarks._engines.comparison import Comparison, run
from benchmarks._engines.launch import ENGINES, Engine, Result
from labkit.errors import LabError
from labkit.settings import Settings
from labkit.system import family

PLAIN, TORCHRUN = ENGINES[:2]


@pytest.fixture(scope="module")
def settings(home):
    return Settings(home=home)


@pytest.fixture
def result():
    return Result(
        engine=PLAIN.name, engine_seconds=0.0, launch_seconds=2.0, rows_per_second=[500.0, 1000.0],
        total_seconds=6.0, peak_bytes=300_000_000, changed_lines=0,
    )  # fmt: skip


def test_two_engines_come_to_the_same_weights(settings):
    lines = []
    found = run(rows=1_300, epochs=2, engines=[PLAIN, TORCHRUN], settings=settings, log=lines.append)
    assert (found.rows, found.epochs, len(found.results)) == (1_280, 2, 2)
    plain, torchrun = found.results
    assert 0 < torchrun.weight_difference < 1e-3 * found.max_weight_change
    assert plain.weight_difference == 0.0
    for result in found.results:
        assert 0 < result.first_step < result.total_seconds
        assert len(result.rows_per_second) == 2
        assert result.peak_bytes > 100e6  # torch alone needs that much
    assert found.preload is None  # Ray is not among them
    assert len(lines) == 2
    assert not family.groups(settings.home)


def test_a_program_with_another_learning_rate_is_not_compared(settings, tmp_path):
    (tmp_path / "other.py").write_text(PLAIN.path.read_text().replace("lr=0.05", "lr=0.04"))
    other = Engine("other", str(tmp_path / "other.py"))
    with pytest.raises(LabError, match="did not train the same model"):
        run(rows=256, epochs=1, engines=[PLAIN, other], settings=settings)


def test_the_table_shows_medians(result):
    death = {"status": 1, "seconds": 1.5, "attempts": 1}
    slow = dataclasses.replace(result, launch_seconds=4.0, death=death)
    slower = dataclasses.replace(result, launch_seconds=40.0)
    table = Comparison(1280, 2, 0.2, [result, slower, slow]).table()
    assert table.rows[0][:3] == ("one process", "–", "4.0")
    assert "failed 1.5 s later" in table.rows[0][-1]
    assert "Equal weights" in table.line and "Ray" not in table.line
    for preload, words in ((True, "forked"), (False, "as pip installs it")):
        alone = Comparison(1000, 2, 0.2, [result], preload)
        assert words in alone.table().line
        assert "a rank is killed" not in alone.table().head
