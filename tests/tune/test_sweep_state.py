"""The state of a sweep: what trials do goes in; counts, order, best and ETA, HTML and text come out."""

import json
import math
import time

import pytest

import golden
from labkit.panel.drawing import snapshot
from labkit.panel.reporters import TextReporter
from labkit.runs.verdict import COLUMNS
from labkit.tune.sweep import SweepRun, TrialState
from labkit.tune.sweep_view import best_line, shown
from labkit.worker.events import Parts
from steps_told import rank, told


def drawn(state, now, files=()):
    return snapshot(state, shown(state, now), now, files)


@pytest.fixture
def state():
    state = SweepRun("sweep", metric="accuracy", mode="max", path="/runs/sweep", total=6)
    state.start("start", now=100.0)
    for number in range(4):
        state.add(f"t{number}", {"lr": 0.1 * (number + 1)})
    return state


def report(state, id, *values):
    for iteration, value in enumerate(values, 1):
        state.reported(id, iteration=iteration, value=value, seconds=0.5 * iteration)


def test_counts_phases_and_eta(state):
    state.set_status("t0", "running", now=103.0)
    state.set_status("t1", "running", now=104.0)
    assert state.eta(now=110.0) is None
    state.set_status("t1", "stopped early")
    assert state.counts() == {"running": 1, "waiting": 4, "stopped early": 1}
    assert state.done == 1
    assert state.phase_seconds(now=110.0) == {"start": 3.0, "training": 7.0}
    state.set_status("t0", "finished")
    assert state.eta(now=111.0) == pytest.approx(8.0 / 2 * 4)


@pytest.mark.parametrize("mode, order", [("max", [2, 0, 1, 3]), ("min", [1, 0, 2, 3])])
def test_the_best_has_the_best_last_value_as_for_get_best_result(state, mode, order):
    state.mode = mode
    for number, values in ((0, (0.99, 0.5)), (1, (0.2,)), (2, (0.9,)), (3, (0.99, math.nan))):
        report(state, f"t{number}", *values)
    assert [trial.number for trial in state.ranked()] == order
    assert state.best.number == order[0]


@pytest.mark.parametrize("value", [math.nan, None, "good", True])
def test_what_is_no_number_is_never_the_best(state, value):
    report(state, "t0", value)
    assert state.best is None and best_line(state) == "no trial reported accuracy"
    report(state, "t1", -0.5)
    assert state.best.number == 1
    assert best_line(state) == "best accuracy -0.500, trial 1 · lr 0.200"


def test_what_the_reader_sees(request):
    """One traceback for all trials that have it, and no column for `momentum`, which is the same in all."""
    state = SweepRun("05-asha", metric="accuracy", rungs=[1, 3, 9], total=40)
    state.start("start", now=1000.0)
    for number in range(40):
        id, status = f"t{number}", ("finished", "stopped early", "running", "failed", "waiting")[number % 5]
        state.add(id, {"lr": 0.01 * (number + 1), "momentum": 0.5})
        if status != "waiting":
            state.set_status(id, "running", now=1005.0)
            report(state, id, *(1 - 1 / (k + number + 1) for k in range(1, 10)))
        if status == "failed":
            state.trial_failed(id, "step, cell 3, line 7\n    raise ValueError('lr')\nValueError: too large")
        else:
            state.set_status(id, status)
    seen = {"while it runs": drawn(state, 1030.0).html}
    state.total = 50
    state.end("stopped", 1040.0)
    seen["afterwards"] = drawn(state, 1040.0, [("results", "/runs/05")]).html
    golden.compare(request.config, "sweep", seen)


def test_text_tells_the_news_in_few_lines_and_a_failure_at_once(state, capsys):
    reporter, state.total = TextReporter(), 200
    reporter.open(drawn(state, time.time()))
    state.trial_failed("t0", "step, cell 3, line 7\n    raise ValueError('lr')\nValueError: bad")
    reporter.draw(drawn(state, time.time()))
    said = capsys.readouterr().out
    assert "trial 0 failed: ValueError: bad" in said and "raise" not in said
    for number in range(1, 200):
        if number > 3:
            state.add(f"t{number}", {"lr": number})
        report(state, f"t{number}", number / 200)
        state.set_status(f"t{number}", "finished")
        if number % 10 == 9:
            reporter.draw(drawn(state, time.time()))
    state.end("finished")
    reporter.close(drawn(state, time.time()))
    said = capsys.readouterr().out
    assert len(said.splitlines()) <= 14 and "100 of 200" in said
    assert "best accuracy 0.995, trial 199 · lr 199" in said
    assert "199 finished · 1 failed" in said.splitlines()[-1]


def test_a_trial_names_why_its_steps_are_slow():
    trial = TrialState(0)
    assert "verdict" not in trial.to_record()
    for sample in told(rank(data=0.03), exchange=0.0)["ranks"]["0"]:
        trial.note_steps(Parts("a", dict(zip(COLUMNS, sample, strict=True)), 1000))
    run = SweepRun("05", trials={"a": trial})
    assert shown(run, run.started_at).tables[0].rows[0][-1] == ("dim", "waiting · data")
    record = json.loads(json.dumps(trial.to_record()))
    assert record["verdict"]["causes"][0]["detail"] == "waiting"
    # Tune calls its function once more, perhaps in another process.
    trial.note_steps(Parts("a", dict.fromkeys(COLUMNS, 0.0) | {"steps": 1.0}))
    assert len(trial.process.samples) == 1 and trial.verdict.name == "unknown"
