"""Two runs compared, and one restored: what differs, what comes back, and what does not."""

import math

import pytest
from ray import cloudpickle

from labkit import runs
from labkit.errors import RunError
from labkit.panel import Panel
from labkit.runs.record import RunRecord, folder_of
from labkit.settings import Settings

CODE = """def train_loop(config, times=2):
    def inner():
        return math.sqrt(config["lr"] * scale)

    return inner() * times
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
    assert found.table.empty and found.code == "" and record.code_hash in repr(found)
    with pytest.raises(RunError, match="run_id='c'"):
        runs.compare("a", "c", home)


def test_a_rerun_restores_function_and_settings(home, monkeypatch):
    import __main__

    monkeypatch.setattr(__main__, "math", math, raising=False)
    monkeypatch.setattr(__main__, "scale", 40, raising=False)
    monkeypatch.setattr(__main__, "train_loop", "mine", raising=False)
    again = runs.rerun("a", home=home)
    assert again.config == {"lr": 0.1, "model": {"width": 64}, "epochs": 2}
    assert again.loop(again.config) == 4.0 and __main__.train_loop == "mine"
    monkeypatch.setattr(__main__, "scale", 90)  # defined in a later cell, as a new panel is
    assert again.loop(again.config) == 6.0
    assert cloudpickle.loads(cloudpickle.dumps(again.loop))({"lr": 0.1}, times=1) == 3.0  # for a worker
    with Panel("next", settings=Settings(home=home, panel="none")) as panel:
        panel.loop = again.loop
    with panel:
        pass
    assert runs.get(panel.run_id, home).code == CODE  # so it can be restored again
    assert any(line.startswith("torch 2.13: here it is") for line in again.missing)


def test_a_rerun_says_what_it_could_not_restore(home):
    (lacks,) = [line for line in runs.rerun("a", home=home).missing if "what it uses" in line]
    assert lacks.startswith("what it uses: math, scale;")
    write(
        home, "c", config={"key": "AKIA", "rows": [0] * 100, "lr": 1}, code="x = 1\nfor _ in range(3): ...\n"
    )
    again = runs.rerun("c", home=home)
    assert again.loop is None and again.config == {"lr": 1} and again.record.run_id == "c"
    said = repr(again)
    for part in ("config['rows']: the record has only 'list of 100'", "(secret)", "its seed", "its data"):
        assert part in said
    write(home, "d", code="@missing_decorator\ndef f(): ...\n")
    write(home, "e")
    write(home, "f", code="login(token='(secret)')\n")
    for run, word in {"d": "NameError", "e": "the record has none", "f": "secrets in its code"}.items():
        assert word in repr(runs.rerun(run, home=home))
