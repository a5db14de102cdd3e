"""A checkpoint from committed to validated, failed or timed out; and the time axis on which it is seen."""

import random
import re
import xml.etree.ElementTree as ET

import pytest

from labkit.panel.reporters import TextReporter
from labkit.panel.state.checkpoints import DECIDED
from labkit.panel.state.run import RunState
from labkit.panel.view.charts import series_of, timeline, timeline_of
from labkit.panel.view.run import RunView
from odd_events import T0, tell

VIEW = RunView()


def at(state, second):
    """What the panel shows so many seconds after the start."""
    return VIEW.snapshot(state, T0 + second)


def picture(state, second):
    return timeline(timeline_of(state, T0 + second))


class Run:
    """A state, fed with events at times after its start."""

    def __init__(self):
        self.state = RunState("06", engine="Ray Train", epochs=3)
        self.state.start("starting", T0)

    def __call__(self, kind, at, **event):
        tell(self.state, {"kind": kind, "at": T0 + at, "pid": 1, "node": "head", **event})
        return self

    def epoch(self, epoch, begin, end):
        for step, done in ((0, False), (5, False), (5, True)):
            at = begin + (end - begin) * step / 5
            self("step", at, epoch=epoch, step=step, rows=step, seconds=at - begin, waiting=0, done=done)
        return self

    def saved(self, epoch, at, status="committed"):
        metrics = {"epoch": epoch, "loss": 1.0 - epoch / 10}
        return self("checkpoint", at, path=f"/c/{epoch}", bytes=1000, status=status, metrics=metrics)

    def decided(self, epoch, at, status="validated", **late):
        metrics = {"epoch": epoch, "loss": 1.0 - epoch / 10, **late}
        return self("checkpoint", at, path=f"/c/{epoch}", status=status, metrics=metrics)

    def validation(self, epoch, begin, end=None, text=""):
        self("validation", begin, path=f"/c/{epoch}")
        if end is not None:
            self("validation", end, path=f"/c/{epoch}", done=True, seconds=end - begin, text=text)
        return self


@pytest.fixture
def run():
    return Run()


def row(state, name="validation"):
    return [
        (span.label, span.begin - T0, span.end and span.end - T0, span.status)
        for span in state.spans.row(name)
    ]


def text(html):
    return " ".join(re.sub(r"<style>.*?</style>|<[^>]+>", " ", html, flags=re.S).split())


# -- what is known --------------------------------------------------------------------------------------


def test_metrics_arrive_late(run):
    run.epoch(0, 10, 20).saved(0, 20.2).saved(0, 20.4, "pending").validation(0, 21, 24)
    checkpoint = run.state.checkpoints[0]
    assert (checkpoint.label, checkpoint.status, checkpoint.late) == ("epoch 1", "pending", {})
    run.decided(0, 24.5, accuracy=0.9, loss=0.7)
    assert (checkpoint.status, checkpoint.late) == ("validated", {"accuracy": 0.9, "loss": 0.7})
    assert checkpoint.metrics == {"epoch": 0, "loss": 0.7, "accuracy": 0.9}
    assert (checkpoint.waited, checkpoint.seconds) == (pytest.approx(0.8), pytest.approx(3))
    assert checkpoint.decided_at == T0 + 24.5
    assert row(run.state) == [("1", 21, 24, "validated")]


def test_one_that_is_killed_says_nothing_and_is_closed_by_its_status(run):
    run.epoch(0, 10, 20).saved(0, 20).validation(0, 21)
    assert run.state.checkpoints[0].validating
    run.decided(0, 31, "timed out")
    assert not run.state.checkpoints[0].validating
    assert row(run.state) == [("1", 21, 31, "timed out")]


def test_one_that_raises_is_known_before_ray_says_so(run):
    run.saved(0, 20).validation(0, 21, 22, text="ValueError: no\nrows")
    assert row(run.state) == [("1", 21, 22, "failed")]
    assert run.state.checkpoints[0].reason == "ValueError: no rows"


@pytest.mark.parametrize("status", DECIDED)
def test_what_was_decided_stays(run, status):
    """The controller and the validation's process have a connection each: one may be overtaken."""
    run.decided(0, 20, status).saved(0, 21).saved(0, 21, "pending").validation(0, 18, 19)
    assert run.state.checkpoints[0].status == status
    assert run.state.checkpoints[0].decided_at == T0 + 20


def test_what_an_earlier_run_has_left_gets_its_name_when_it_is_known(run):
    """Its validation may be heard of before its metrics are."""
    run.epoch(5, 10, 20).validation(3, 12)
    run.saved(3, 13, "pending")
    assert run.state.checkpoints[0].label == "epoch 4"
    assert row(run.state) == [("4", 12, None, "")]


def test_an_epoch_is_from_its_first_batch_to_its_last_step(run):
    run.epoch(0, 10, 20).epoch(1, 21, 30)
    assert row(run.state, "training") == [("1", 10, 20, ""), ("2", 21, 30, "")]


def test_an_epoch_that_was_left_by_break_ends_with_the_next_or_with_its_report(run):
    for epoch, at in ((0, 10), (1, 20)):
        run("step", at, epoch=epoch, step=1, rows=1, seconds=1, waiting=0)
    assert row(run.state, "training") == [("1", 9, 19, ""), ("2", 19, None, "")]
    run("report", 25, metrics=[{"epoch": 1}])
    assert row(run.state, "training")[1] == ("2", 19, 25, "")


def test_a_late_report_does_not_end_the_epoch_that_runs(run):
    run.epoch(0, 10, 20)
    run("step", 21, epoch=1, step=1, rows=1, seconds=1, waiting=0)
    run("report", 22, metrics=[{"epoch": 0}])
    assert row(run.state, "training")[1] == ("2", 20, None, "")


def test_a_loop_that_validates_in_itself(run):
    run.epoch(0, 10, 20)("phase", 20, name="validating")("phase", 24, name="saving").epoch(1, 25, 35)
    run("phase", 35, name="evaluating")("report", 39, metrics=[{"epoch": 1}])
    assert row(run.state) == [("1", 20, 24, "in the loop"), ("2", 35, 39, "in the loop")]


def test_the_end_of_a_run_ends_all(run):
    run.saved(0, 20).validation(0, 21)("upload", 22)
    run.state.end("stopped", T0 + 30)
    assert all(span.end == T0 + 30 for span in run.state.spans)


# -- how it looks ---------------------------------------------------------------------------------------


def every_status():
    """One checkpoint in each state, at second 60."""
    run = Run()
    for epoch in range(6):
        run.epoch(epoch, 10 + 8 * epoch, 17.5 + 8 * epoch).saved(epoch, 18 + 8 * epoch)
    for epoch in range(5):
        run.saved(epoch, 18.2 + 8 * epoch, "pending")
    run.validation(0, 19, 22).decided(0, 23, accuracy=0.9)
    run.validation(1, 27, 28, text="ValueError: <gone>").decided(1, 29, "failed")
    run.validation(2, 35).decided(2, 50, "timed out").validation(3, 55)
    return run.state


def test_the_panel_says_each_state():
    body = VIEW.html(at(every_status(), 60))
    said = text(body)
    for expected in (
        "epoch 1 1.0 kB loss 1 ✓ accuracy 0.900",
        "epoch 2 1.0 kB loss 0.900 ✕ validation failed: ValueError: &lt;gone&gt;",
        "epoch 3 1.0 kB loss 0.800 ✕ timed out after 15 s",
        "epoch 4 1.0 kB loss 0.700 ● validating 5.0 s",
        "epoch 5 1.0 kB loss 0.600 ○ waits for validation",
        "epoch 6 1.0 kB loss 0.500 ✓ saved",
    ):
        assert expected in said, expected
    assert "<gone>" not in body


def test_when_all_is_trained_the_panel_says_what_it_waits_for(run):
    for epoch in range(3):
        run("step", 10 + epoch, epoch=epoch, epochs=3, step=5, rows=5, seconds=1, waiting=0, done=True)
        run.saved(epoch, 11 + epoch, "pending")
    assert run.state.phase == "validating"
    assert at(run.state, 13).headline == "all epochs are trained · 3 validations left"
    run.decided(0, 14).decided(1, 15)
    assert "1 validation left" in text(VIEW.html(at(run.state, 16)))
    run.decided(2, 17)
    assert "left" not in at(run.state, 18).headline.replace("about", "")


def test_the_summary_of_a_run_that_was_stopped_says_what_is_left():
    state = every_status()
    state.end("stopped", T0 + 60)
    said = text(VIEW.summary(at(state, 60), []))
    assert "6 checkpoints · 1 validated · 1 validation failed · 1 timed out · 2 not validated yet" in said
    assert said.count("○ not validated yet") == 2 and "validating" not in said
    assert "training" in said and "validation" in said


def bars(svg):
    root = ET.fromstring(svg)
    return {
        bar.find("title").text: (float(bar.get("x")), float(bar.get("width")), bar.get("fill"))
        for bar in root.iter("rect")
    }


def test_the_bars_are_as_long_as_what_they_stand_for():
    found = bars(picture(every_status(), 60))
    training, validation = found["training 1: 7.5 s"], found["validation 1: 3.0 s, validated"]
    scale = training[1] / 7.5
    assert validation[1] / 3.0 == pytest.approx(scale, rel=0.05)
    # It began 1.5 s after the end of that epoch: beside the second.
    assert (validation[0] - training[0]) / scale == pytest.approx(9, rel=0.05)
    assert found["training 2: 7.5 s"][0] < validation[0]
    assert "--lk-bad" in found["validation 2: 1.0 s, failed"][2]
    assert found["validation 3: 15 s, timed out"][1] > 4 * validation[1]
    assert "validation 4: 5.0 s" in found  # it lasts


def test_colour_does_not_stand_alone():
    said = text(picture(every_status(), 60))
    assert "✕ 3 timed out" in said and "✕ 2" in said
    assert "waiting" in said  # a row of its own: checkpoints that wait for their turn


def test_validated_metrics_have_a_curve():
    """Each stands at the end of its own epoch, not where the training is when it comes."""
    run = Run()
    for epoch in (0, 1):
        run("report", 20 + epoch, metrics=[{"epoch": epoch, "loss": 1.0}]).saved(epoch, 20 + epoch)
    run.decided(0, 30, accuracy=0.5).decided(1, 40, accuracy=0.75)
    assert {one.name: one.points for one in series_of(run.state)}["accuracy"] == ((1, 0.5), (2, 0.75))
    assert "accuracy 0.750" in VIEW.html(at(run.state, 50))


def test_a_terminal_is_told_once_of_each(capsys):
    state, reporter = every_status(), TextReporter()
    reporter.open(VIEW, at(state, 60), list)
    reporter.draw(at(state, 60))
    said = capsys.readouterr().out
    assert said.count("06: epoch 1: validated accuracy 0.900\n") == 1
    assert said.count("06: epoch 2: validation failed ValueError: <gone>\n") == 1
    assert said.count("06: epoch 3: validation timed out\n") == 1
    assert "epoch 4:" not in said


def test_no_row_without_something_in_it(run):
    run.epoch(0, 10, 20)
    assert timeline_of(run.state, T0 + 21) == ()
    assert "timeline of" not in VIEW.html(at(run.state, 21))
    run("phase", 20, name="validating")
    said = text(picture(run.state, 25))
    assert "validation" in said and "upload" not in said and "waiting" not in said


@pytest.mark.parametrize("seed", range(20))
def test_all_is_within_the_picture(seed):
    rng, run = random.Random(seed), Run()
    for _ in range(60):
        epoch, at = rng.randrange(8), rng.choice([0, 1, 50]) * rng.random() * 10 ** rng.randrange(5)
        rng.choice(
            [
                lambda e=epoch, t=at: run.epoch(e, t, t + rng.random() * 9),
                lambda e=epoch, t=at: run.saved(e, t, rng.choice(["committed", "pending"])),
                lambda e=epoch, t=at: run.validation(e, t, rng.choice([None, t + 1])),
                lambda e=epoch, t=at: run.decided(e, t, rng.choice(DECIDED)),
                lambda t=at: run("upload", t, done=rng.random() < 0.5, seconds=1),
                lambda t=at: run("phase", t, name=rng.choice(["validating", "saving"])),
            ]
        )()
    run.validation(0, 5)
    svg = picture(run.state, 10)
    root = ET.fromstring(svg)
    width, height = map(float, root.get("viewBox").split()[2:])
    assert len(svg) < 100_000
    for bar in root.iter("rect"):
        x, wide = float(bar.get("x")), float(bar.get("width"))
        assert x >= 0 and wide > 0 and x + wide <= width + 2
        assert 0 <= float(bar.get("y")) <= height
    labels = [t for t in root.iter("text") if t.text and re.search(r"s$|:", t.text) and t.get("x") != "0"]
    assert len([t for t in labels if float(t.get("y")) > height - 10]) <= 12  # the axis can be read


# -- what is kept ---------------------------------------------------------------------------------------


def test_the_record_keeps_each_checkpoint_and_the_time_axis():
    state = every_status()
    state.end("finished", T0 + 60)
    extra = state.to_record()["extra"]
    first = extra["checkpoints"][0]
    assert (first["checkpoint"], first["status"]) == ("epoch 1", "validated")
    assert first["seconds_validating"] == pytest.approx(3)
    assert first["seconds_waiting"] == pytest.approx(1)
    assert first["seconds_to_metric"] == pytest.approx(23 - 17.5)
    assert [one["status"] for one in extra["checkpoints"]] == [
        "validated", "failed", "timed out", "pending", "pending", "committed",
    ]  # fmt: skip
    assert extra["timeline"][0] == {"row": "training", "label": "1", "begin": 0, "end": 7.5, "status": ""}


def test_the_record_of_a_run_without_validation_has_no_such_part(run):
    run.epoch(0, 10, 20).saved(0, 21)
    run.state.end("finished", T0 + 30)
    assert run.state.to_record()["extra"] == {}
