"""The comparison: two real programs side by side, what is refused, what is shown."""

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import engines
from engines import ENGINES, Comparison, Engine, Result
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


def own_engine(folder, name: str, old: str = "", new: str = "") -> Engine:
    """The plain program with a change, in another folder."""
    path = folder / f"{name}.py"
    path.write_text(PLAIN.path.read_text().replace(old, new))
    return Engine(name, str(path))


def test_two_engines_come_to_the_same_weights(settings):
    lines = []
    found = engines.run(rows=1_300, epochs=2, engines=[PLAIN, TORCHRUN], settings=settings, log=lines.append)
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
    assert json.loads(found.to_json())["results"][1]["engine"] == "torchrun"


def test_a_program_with_another_learning_rate_is_not_compared(settings, tmp_path):
    other = own_engine(tmp_path, "other", "lr=0.05", "lr=0.04")
    with pytest.raises(LabError, match="did not train the same model"):
        engines.run(rows=256, epochs=1, engines=[PLAIN, other], settings=settings)


def test_own_engines_and_two_comparisons_at_once(settings, tmp_path):
    """Neither removes the other's files or stops the other's processes; each has its table."""
    slow = own_engine(tmp_path, "slow", "work.launch()", "import time; time.sleep(3); work.launch()")
    quick = own_engine(tmp_path, "quick")
    with ThreadPoolExecutor() as pool:
        running = [
            pool.submit(engines.run, rows=256, epochs=1, engines=[one], settings=settings)
            for one in (slow, quick)
        ]
        tables = [each.result().table() for each in running]
    assert [table.rows[0][0] for table in tables] == ["slow", "quick"]
    assert [table.rows[0][-1] for table in tables] == [1, 0]  # changed lines
    assert not family.groups(settings.home)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": "many"},
        {"rows": 100},  # fewer than one batch
        {"epochs": 0},
        {"engines": []},
        {"engines": [PLAIN, PLAIN]},
        {"engines": [Engine("x", "nothing.py")]},
        {"kill_rank_of": ["nothing"]},
    ],
)
def test_what_cannot_be_compared(settings, wrong):
    with pytest.raises(LabError, match="compare engines"):
        engines.run(**{"rows": 256, "settings": settings, **wrong})


def test_the_table_shows_medians_and_the_figure_adds_up(result):
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
    assert sum(bar.get_width() for bar in alone.figure().axes[0].patches) == pytest.approx(6.0)
