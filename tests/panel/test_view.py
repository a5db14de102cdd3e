"""A training's panel: what it says. That it can be read, and escapes what users supply, shows a browser."""

import math
import re
import xml.etree.ElementTree as ET

import pytest

import golden
from labkit.panel import training as states
from labkit.runs.verdict import COLUMNS, verdict
from runs_told import T0, Run
from steps_told import rank, told

FILES = [("workers' logs", "/tmp/a & b")]


def live(run, at=100):
    return run.drawn(at).html


def summary(run, status="finished", at=100, files=()):
    if not run.state.over:
        run.state.end(status, T0 + at)
    return run.drawn(at, files).html


def elements(html):
    """All elements of some HTML, which is well formed."""
    return ET.fromstring(f"<all>{html}</all>").iter()


def picture(html):
    """The curve as XML, with no place outside of it."""
    svg = next(element for element in elements(html) if element.tag == "svg")
    names = ("d", "x", "y", "cx", "cy", "width")
    places = " ".join(element.get(name, "") for element in svg.iter() for name in names)
    width = float(svg.get("viewBox").split()[2])
    assert not re.search(r"nan|inf|e[+-]\d", places)
    assert all(-50 < float(number) < width + 50 for number in re.findall(r"-?\d+\.?\d*", places))
    return svg


def training():
    """A Ray Train run of two epochs, in the middle of the second."""
    run = Run("03-torch", phase="starting", engine="Ray Train", world_size=2, dataset="digits", rows=1437)
    run("worker", rank=1, pid=8, node="node-2")("phase", 8, name="loading")
    run.epoch(0, 10, steps=22, seconds=22, total=22, epochs=2, metrics={"loss": 2.3})
    run("report", 32, metrics={"loss": 1.3, "accuracy": 0.8})
    run("saved", 33, epoch=1, step=22)(
        "checkpoint", 33, path="/runs/1", bytes=217_088, status="committed", metrics={"loss": 1.3}
    )
    for k in range(12):
        run.step(
            40 + k,
            epoch=1,
            step=k,
            seconds=k,
            waiting=k / 10,
            total=22,
            made=22 + k,
            epochs=2,
            metrics={"loss": 0.65},
        )
    for number in range(9):  # the last ones are shown
        run("print", text=f"hello from rank 0, {number}")
    return run


def validating():
    """One checkpoint in each state, at second 60."""
    run = Run("06", engine="Ray Train", epochs=6)
    for epoch in range(6):
        run.epoch(epoch, 10 + 8 * epoch, seconds=7.5).saved(epoch, 18 + 8 * epoch)
    for epoch in range(5):
        run.saved(epoch, 18.2 + 8 * epoch, "pending")
    run.validation(0, 19, 22).decided(0, 23, accuracy=0.9)
    run.validation(1, 27, 28, text="ValueError: <gone>").decided(1, 29, "failed")
    return run.validation(2, 35).decided(2, 50, "timed out").validation(3, 55)


def restarted():
    """Rank 0 was started again, and rank 1 is slow."""
    run = training()("worker", 59, pid=9).step(60, pid=9).step(60, rank=1, pid=8, node="node-2")
    run.step(62, step=4, seconds=2, pid=9)
    event = {"rank": 1, "pid": 8, "node": "node-2", "memory": 2_345_000_000}
    return run.step(62, step=4, seconds=2, waiting=1.5, **event)


def deleted():
    run = Run().saved(0, 1).saved(1, 2).decided(2, 3, rmse=3.5)
    return run.saved(0, 4, "deleted").saved(2, 4, "deleted")


def counts():
    run = Run("08", engine="Ray Train")
    for step in range(1, 6):
        run("report", 10 * step, metrics={"step": step, "workers": 2})
    return run


def only_epochs():
    run = Run(engine="Ray Train", epochs=2)
    for epoch in range(2):
        run("report", 10 + epoch, metrics={"epoch": epoch})
        run("checkpoint", 12, path=f"/c/{epoch}", bytes=1000, status="pending", metrics={"epoch": epoch})
        run("checkpoint", 30, path=f"/c/{epoch}", status="timed out", metrics={"epoch": epoch})
    return run


def to_validate():
    """Of a run whose checkpoints wait for validation, metrics are called reported."""
    run = Run(engine="Ray Train", epochs=3)
    for epoch in range(3):
        run.epoch(epoch, 10 * epoch, seconds=5)
        run("report", 10 * epoch + 6, metrics={"epoch": epoch, "loss": 0.2, "val_accuracy": 0.99})
        run.saved(epoch, 10 * epoch + 7, val_accuracy=0.99).saved(epoch, 10 * epoch + 7, "pending")
    return run


def partly_validated():
    return to_validate().decided(0, 31, val_accuracy=0.5).decided(1, 32, "failed")


def straggling():
    """A run whose rank 1 computes longer than the others."""
    run = Run("03", engine="Ray Train", world_size=2, epochs=4)
    for number, samples in told(rank(), rank(forward=0.03))["ranks"].items():
        for sample in samples:
            parts = dict(zip(COLUMNS, sample, strict=True))
            event = {"rank": int(number), "pid": 100 + int(number), "memory": 1000, "parts": parts}
            run.step(10 + parts["wall"], step=int(parts["steps"]), seconds=parts["wall"], **event)
    return run


def unseen(step, why="on a GPU"):
    return lambda: Run().step(10, step=step, parts={"unseen": why})


SEEN = {  # a run, and the second at which it is looked at
    "two workers": (training, 51),
    "nothing happened": (lambda: Run(phase="starting"), 3),
    "a stream": (lambda: Run().step(10, step=4), 10),
    "a loop that counts steps": (
        lambda: Run().step(10, step=20, total=60)("report", 10, metrics={"step": 20, "loss": 1.0})(
            "checkpoint", 10, path="/c", metrics={"step": 20}
        ),
        10,
    ),
    "the last step": (lambda: Run().step(10, epochs=2, total=10).epoch(1, 11, epochs=2, total=10), 16),
    "only the report counts": (
        lambda: Run(epochs=1).epoch(0, 1, metrics={"loss": 0.534})("report", metrics={"loss": 0.601}),
        9,
    ),
    "a slow rank, and a restart that cost steps": (restarted, 62),
    "ranks with GPUs, of which one is lost": (
        lambda: Run(world_size=2)("worker", workers=2).step(9)("worker", 41, pid=9, workers=1).step(42, pid=9)
        .step(44, step=4, seconds=2, pid=9, memory=900_000_000, gpu_memory=12_000_000_000),
        50,
    ),
    "validations": (validating, 60),
    "deleted checkpoints": (deleted, 9),
    "reports of counts alone, which have no curve": (counts, 100),
    "reports of the epoch alone": (only_epochs, 40),
    "checkpoints that wait for validation": (to_validate, 30),
    "of which one is validated, and one is not": (partly_validated, 33),
    "parts of a step, of which one rank needs more": (straggling, 30),
    "parts that aren't measured, in the first steps": (unseen(3), 100),
    "parts that aren't measured": (unseen(50), 100),
    "parts of a loop without backward()": (unseen(50, "where no backward() is seen"), 100),
}  # fmt: skip


def test_what_the_reader_sees(request):
    shown = {}
    for name, (tell, at) in SEEN.items():
        shown[f"{name}, while it runs"] = live(tell(), at)
        shown[f"{name}, afterwards"] = summary(tell(), at=at, files=FILES)
    for status in ("failed", "stopped"):
        run = training()("failure", text="loop, cell 5, line 3\nValueError: <boom>")
        shown[f"a run that {status}"] = summary(run, status, at=51)
    golden.compare(request.config, "training", shown)


# -- the curve and the time axis -----------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "text", True, 1e300])
def test_a_metric_that_is_no_point(value):
    run = Run(epochs=3).step(1, step=1, total=10, metrics={"loss": value})
    run.step(2, step=2, total=10, metrics={"loss": 1.0, "other": value})
    run.step(3, step=3, total=10, metrics={"loss": value, "accuracy": value})
    assert picture(live(run)).get("aria-label").startswith("curve of loss")
    run("report", metrics={"loss": value, "f1": value})
    picture(live(run)), picture(summary(run))


def test_a_moment_is_no_metric():
    """Lesson 06's validation returns when it began and ended, as Unix times."""
    run = Run(epochs=2).step(1, step=1, total=10)("report", 15, metrics={"epoch": 0, "at": T0 + 15.5})
    run.saved(0, 16, "pending").validation(0, 16, 19).decided(0, 20, began=T0 + 16.25, accuracy=0.5)
    assert picture(live(run)).get("aria-label") == "curve of accuracy 0.500 by epoch"
    text = golden.lines(live(run))
    assert "✓ accuracy 0.500" in text and "began" not in text and " at" not in text
    assert "began" not in golden.lines(summary(run))
    (kept,) = run.state.to_record()["extra"]["checkpoints"]
    assert kept["metrics"]["began"] == T0 + 16.25  # the record has it


def test_validated_metrics_have_a_curve():
    """Each is drawn at the end of its own epoch, not where the training is when it comes."""
    run = Run(epochs=4)
    for epoch in (0, 1):
        run("report", 20 + epoch, metrics={"epoch": epoch, "loss": 1.0}).saved(epoch, 20 + epoch)
    run.decided(0, 30, accuracy=0.5).decided(1, 40, accuracy=0.75)
    _, validated = run.shown(50).plot.curves
    assert (validated.name, validated.points) == ("accuracy 0.750", [(1.0, 0.5), (2.0, 0.75)])


# -- the parts of a step, and what they say --------------------------------------------------------------


def test_the_parts_of_a_rank_can_be_read_aloud_and_are_lines_in_a_terminal():
    run, sentence = straggling(), "slow rank: rank 1 takes 20 ms longer for a step than the others, computing"
    for html in (live(run, 30), summary(run, at=30)):
        labels = [element.get("aria-label", "") for element in elements(html)]
        strips = [label[:15] for label in labels if label.startswith("rank ")]
        assert strips == ["rank 0: data 2%", "rank 1: data 2%"]
    lines = [text for _, text in run.drawn(30).lines]
    assert any(text.startswith("rank 0: data 2%, forward 20%") for text in lines)
    assert any(text.startswith(sentence) for text in lines) and "finished" in lines[-1]


def test_the_sentence_can_be_left_out_of_the_panel():
    run = straggling()
    run.state.names_cause = False
    for html in (live(run, 30), summary(run, at=30)):
        assert "slow rank" not in golden.lines(html) and "rank 0: data 2%" in html
    assert run.state.to_record()["verdict"]["verdict"] == "slow rank"
    assert not states.TrainingRun("03", verdict=False).names_cause


def test_the_verdict_is_computed_at_most_once_a_second(monkeypatch):
    computed = []

    def counting(*args, **options):
        computed.append(options)
        return verdict(*args, **options)

    monkeypatch.setattr(states, "verdict", counting)
    run = straggling()
    for now in (30.0, 30.2, 30.9, 31.1, 31.9):
        run.shown(now)
    assert len(computed) == 2
    run.state.end("finished", T0 + 32)
    run.shown(32)  # the summary has all that was measured
    assert len(computed) == 3
