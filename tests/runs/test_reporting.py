"""The report: one file with all that the records say, in which nothing of a record is code."""

import math
import re

import matplotlib.pyplot as plt
import pytest

from labkit import runs
from labkit.errors import LabError
from labkit.runs.record import RunRecord, folder_of

EVIL = "<script>alert(1)</script>"


def write(home, number, arm, accuracy, **fields):
    about = {
        "name": "own", "run_id": f"r{number}", "engine": "Ray Train", "state": "finished", "workers": 2,
        "started_at": f"2026-01-31T12:{number:02}:00+00:00", "code": "def loop(config): ...",
        "config": {"arm": arm, "seed": number % 3, "lr": 0.003}, "metrics": {"accuracy": accuracy},
        "history": [{"epoch": 0, "accuracy": 0.5}, {"epoch": 1, "accuracy": accuracy}],
        "versions": {"torch": "2.13.0"}, "commit": "abc123",
    }  # fmt: skip
    record = RunRecord(**about | fields)
    record.write(folder_of(home, "own", record.run_id))


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    for number, accuracy in enumerate((0.25, 0.5, 0.75, 1.0)):
        write(tmp_path, number, "grey" if number < 2 else "colour", accuracy)
    return tmp_path


def cells(page):
    """The rows of all tables, as tuples of texts."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", page, re.DOTALL)
    return [tuple(re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL)) for row in rows]


def test_a_report_has_groups_runs_settings_code_and_origin(home):
    write(home, 4, "colour", 0.1, state="failed")
    path = runs.report(home / "new" / "page.html", home, title="Fruit", text="One.\n\nTwo.", by="arm")
    page = path.read_text(encoding="utf-8")
    assert "<h1>Fruit</h1><p>One.</p><p>Two.</p>" in page
    rows = cells(page)
    assert ("grey", "accuracy", "2", "0.375", "0.1768") in rows
    assert ("colour", "accuracy", "2", "0.875", "0.1768") in rows  # without the run that failed
    head = rows.index(next(row for row in rows if row[:2] == ("id", "state")))
    assert [row[:2] for row in rows[head + 1 : head + 6]] == [
        ("r4", "failed"), ("r3", "finished"), ("r2", "finished"), ("r1", "finished"), ("r0", "finished")
    ]  # fmt: skip
    assert {"arm", "seed", "accuracy"} < set(rows[head])
    equal = {row[0]: row[1] for row in rows if len(row) == 2}
    assert equal["config.lr"] == "0.003" and equal["versions.torch"] == "2.13.0" and equal["workers"] == "2"
    assert equal["commit"].startswith("abc123 (changes") and "config.arm" not in equal
    assert "Code of all runs" in page and "def loop(config): ..." in page


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((0.5, math.inf, 0.7), ("3", "inf", "nan")),
        ((0.5, math.nan, 0.7), ("3", "nan", "nan")),
        ((math.inf, -math.inf), ("2", "nan", "nan")),
        ((1e308, -1e308), ("2", "0", "inf")),
        ((0.5, 10**400), ("1", "0.5", "–")),
    ],
)
def test_a_run_that_diverged_is_in_its_group_and_in_the_page(values, said, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    for number, value in enumerate(values):
        write(tmp_path, number, "high", value)
    write(tmp_path, 9, "low", 0.25)
    rows = cells(runs.report(tmp_path / "page.html", tmp_path, title="t", by="arm").read_text())
    assert ("high", "accuracy", *said) in rows and ("low", "accuracy", "1", "0.25", "–") in rows


def test_nothing_of_a_record_is_code_and_nothing_is_loaded(home):
    everywhere = {"metrics": {EVIL: 1.0}, "config": {"arm": EVIL, "lr": EVIL}, "tags": [EVIL]}
    write(home, 4, "", 0.5, code=EVIL, commit=EVIL, note=EVIL, **everywhere)
    page = runs.report(home / "page.html", home, title=EVIL, text=EVIL, by="arm").read_text()
    assert page.count("&lt;script&gt;") >= 8 and "<script" not in page
    assert set(re.findall(r'(?:src|href)="(.{15})', page)) == {"data:image/svg+"}
    assert "Code of r4" in page


def test_a_figure_of_ones_own_is_in_it(home):
    figure, axes = plt.subplots()
    axes.plot([1, 2])
    plt.close(figure)
    without = runs.report(home / "a.html", home, title="t", name="own").read_text()
    page = runs.report(home / "b.html", home, title="t", pictures=[figure]).read_text()
    assert (without.count("<img"), page.count("<img")) == (1, 2)
    assert "standard deviation" not in without


def test_what_cannot_be_reported_is_explained(home):
    with pytest.raises(LabError, match="no run has 'camera'"):
        runs.report(home / "page.html", home, title="t", by="camera")
    with pytest.raises(LabError, match="accuracy"):
        runs.report(home / "page.html", home, title="t", metrics="f1")
    with pytest.raises(LabError, match="a file that you can write to"):
        runs.report(home, home, title="t")
    assert not (home / "page.html").exists()
