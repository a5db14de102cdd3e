"""The report: one file with all that the records say, in which nothing of a record is code."""

import re

import matplotlib.pyplot as plt
import pytest

from labkit import runs
from labkit.errors import LabError
from records import write as write_record

EVIL = "<script>alert(1)</script>"


def write(home, number, arm, accuracy, **fields):
    about = {
        "run_id": f"r{number}", "workers": 2, "code": "def loop(config): ...",
        "config": {"arm": arm, "seed": number % 3, "lr": 0.003}, "metrics": {"accuracy": accuracy},
        "history": [{"epoch": 0, "accuracy": 0.5}, {"epoch": 1, "accuracy": accuracy}],
        "versions": {"torch": "2.13.0"}, "commit": "abc123",
    }  # fmt: skip
    write_record(home, number, **about | fields)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def four(home):
    for number, accuracy in enumerate((0.25, 0.5, 0.75, 1.0)):
        write(home, number, "grey" if number < 2 else "colour", accuracy)


def page_of(home, **asked):
    path = runs.report(home / "new" / "page.html", **{"title": "t", **asked})
    return path.read_text(encoding="utf-8")


def cells(page):
    """The rows of all tables, as tuples of texts."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", page, re.DOTALL)
    return [tuple(re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL)) for row in rows]


def test_a_report_has_groups_runs_settings_code_and_origin(home, four):
    write(home, 4, "colour", 0.1, state="failed")
    for number, accuracy in ((5, float("inf")), (6, 0.5)):
        write(home, number, "high", accuracy, config={"arm": "high", "seed": 0, "lr": 0.003})
    figure, axes = plt.subplots()
    axes.plot([1, 2])
    plt.close(figure)
    page = page_of(home, title="Fruit", text="One.\n\nTwo.", by="arm", pictures=[figure])
    assert "<h1>Fruit</h1><p>One.</p><p>Two.</p>" in page and page.count("<img") == 2
    rows = cells(page)
    assert ("grey", "accuracy", "2", "0.375", "0.1768") in rows
    assert ("colour", "accuracy", "2", "0.875", "0.1768") in rows  # without the run that failed
    assert ("high", "accuracy", "2", "inf", "nan") in rows  # one of them diverged
    (head,) = (place for place, row in enumerate(rows) if "id" in row)
    ids = [dict(zip(rows[head], row, strict=True))["id"] for row in rows[head + 1 : head + 8]]
    assert ids == ["r6", "r5", "r4", "r3", "r2", "r1", "r0"]
    assert {"arm", "seed", "accuracy", "state"} < set(rows[head]) and "workers" not in rows[head]
    equal = {row[0]: row[1] for row in rows if len(row) == 2}
    assert equal["config.lr"] == "0.003" and equal["versions.torch"] == "2.13.0" and equal["workers"] == "2"
    assert equal["commit"] == "abc123" and "config.arm" not in equal
    assert "Code of all runs" in page and "def loop(config): ..." in page
    assert "accuracy" in page_of(home, run_id="r1")  # all that is known of a single run


def test_nothing_of_a_record_is_code_and_nothing_is_loaded(home, four):
    everywhere = {"metrics": {EVIL: 1.0}, "config": {"arm": EVIL, "lr": EVIL}, "tags": [EVIL]}
    write(home, 4, "", 0.5, code=EVIL, commit=EVIL, note=EVIL, **everywhere)
    page = page_of(home, title=EVIL, text=EVIL, by="arm")
    assert page.count("&lt;script&gt;") >= 8 and "<script" not in page
    assert set(re.findall(r'(?:src|href)="(.{15})', page)) == {"data:image/svg+"}
    assert "Code of r4" in page


def test_what_cannot_be_reported_is_explained(home, four):
    for asked, fact in (({"by": "camera"}, "no run has 'camera'"), ({"metrics": "f1"}, "accuracy")):
        with pytest.raises(LabError, match=fact):
            page_of(home, **asked)
    assert not (home / "new").exists()
    with pytest.raises(LabError, match="a file that you can write to"):
        runs.report(home, title="t")
