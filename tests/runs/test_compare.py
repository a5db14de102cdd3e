"""Two runs compared: what differs, and nothing else."""

import math

import pytest

from labkit import runs
from labkit.errors import LabError
from labkit.runs.record import RunRecord, folder_of

CODE = """def train_loop(config):
    return math.sqrt(config["lr"] * scale)
"""
HEAD = {"name": "own", "engine": "Ray Train", "state": "finished", "started_at": "2026-01-31T12:00:00+00:00"}


def write(home, run_id, **fields):
    RunRecord(run_id=run_id, **HEAD | fields).write(folder_of(home, "own", run_id))


def history(*losses):
    return [{"epoch": epoch, "loss": loss} for epoch, loss in enumerate(losses)]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    config = {"lr": 0.1, "model": {"width": 64}, "epochs": 2}
    same = {"versions": {"python": "3.11", "torch": "2.13"}, "workers": 2, "waiting_share": math.nan}
    write(tmp_path, "a", config=config, code=CODE, metrics={"loss": 0.5}, history=history(1.0, 0.5), **same)
    other = config | {"model": {"width": 128}, "momentum": 0.9}
    new = same | {"versions": {"python": "3.11", "torch": "2.14"}}
    code = CODE.replace("lr", "rate")
    write(tmp_path, "b", config=other, code=code, metrics={"loss": 0.4}, history=history(0.9, 0.4), **new)
    return tmp_path


def test_a_comparison_has_what_differs_and_nothing_else(home):
    found = runs.compare("a", "b", home)
    assert list(found.table.columns) == ["a", "b"]
    assert {name: tuple(row) for name, row in found.table.iterrows()} == {
        "config.model.width": (64, 128),
        "config.momentum": (None, 0.9),
        "versions.torch": ("2.13", "2.14"),
        "metrics.loss": (0.5, 0.4),
    }
    changed = [line for line in found.code.splitlines() if line[0] in "+-"]
    assert changed[:2] == ["--- a", "+++ b"]
    assert [line.strip("+- ") for line in changed[2:]] == [
        'return math.sqrt(config["lr"] * scale)',
        'return math.sqrt(config["rate"] * scale)',
    ]
    losses = [list(line.get_ydata()) for line in found.figure.axes[0].get_lines()]
    assert losses == [[1.0, 0.5], [0.9, 0.4]]
    html = found._repr_html_()
    assert "config.momentum" in html and "data:image/svg+xml" in html and "&#34;rate&#34;" in html
    assert "0.9" in repr(found) and "+++ b" in repr(found)


def test_equal_runs_have_equal_code(home):
    record = runs.get("a", home)
    found = runs.compare(record, record)
    assert found.table.empty and found.code == "" and "The code is equal" in repr(found)
    with pytest.raises(LabError, match="run_id='c'"):
        runs.compare("a", "c", home)
