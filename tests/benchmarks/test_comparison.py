"""The comparison of engines: real programs side by side, what is refused, and what a killed rank leaves."""

import pytest

from benchmarks._engines import launch
from benchmarks._engines.comparison import run
from benchmarks._engines.launch import ENGINES, Engine
from labkit.errors import LabError, RunFailed
from labkit.local.lab import Lab
from labkit.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.covers("benchmarks/_engines/")]


PLAIN, TORCHRUN = ENGINES[:2]


@pytest.fixture(scope="module")
def settings(home):
    return Settings(home=home)


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
    assert [row[0] for row in found.table().rows] == [PLAIN.name, TORCHRUN.name]
    assert len(lines) == 2
    assert not Lab(settings.home).groups()


@pytest.mark.parametrize(
    "program, error, said",
    [
        (PLAIN.path.read_text().replace("lr=0.05", "lr=0.04"), LabError, "did not train the same model"),
        ("raise SystemExit('no such luck')", RunFailed, "no such luck"),
    ],
)
def test_a_program_that_trains_something_else_or_fails_is_not_compared(
    settings, tmp_path, program, error, said
):
    (tmp_path / "other.py").write_text(program)
    other = Engine("other", str(tmp_path / "other.py"))
    with pytest.raises(error, match=said):
        run(rows=256, epochs=1, engines=[PLAIN, other], settings=settings)


def test_a_rank_that_is_killed(settings, tmp_path):
    launch.write_rows(tmp_path, 1_280)
    death = launch.kill_rank(TORCHRUN, tmp_path / "run", settings, epochs=1)
    assert death["status"] != 0 and death["seconds"] > 0 and death["attempts"] == 1
    assert not Lab(settings.home).groups()
