"""A training's panel: what it says, well formed, escaped and small, in the notebook's own colours."""

import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from labkit.display import cards
from labkit.display.style import STYLE
from labkit.panel.state.run import RunState
from labkit.panel.view.run import RunView, tiles
from labkit.panel.view.run import headline as headline_of
from runs_told import T0, tell

VIEW = RunView()
EVIL = "<script>alert('x')</script>\"' & </div></pre></svg>"
VOID = {"br", "hr", "img", "input", "meta", "link"}


class Checker(HTMLParser):
    """Every element that is opened is closed in its turn; gathers texts and the elements that it saw."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.seen, self.texts, self.attributes = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        self.texts.append(data)


def checked(html):
    checker = Checker()
    checker.feed(str(html))
    checker.close()
    assert not checker.open
    assert set(checker.seen) <= {
        "style", "div", "span", "b", "i", "table", "tr", "th", "td", "pre", "code", "details", "summary",
        "svg", "g", "path", "circle", "rect", "text", "title",
    }  # fmt: skip
    names = {name for name, _ in checker.attributes}
    assert not any(name.startswith("on") or name in ("href", "src") for name in names)
    assert "\x00" not in html
    html.encode()
    for svg in svgs(html):
        check_svg(svg)
    return checker


def svgs(html):
    return re.findall(r"<svg.*?</svg>", html, re.S)


def check_svg(svg):
    """All of it is within the picture, or at its very edge."""
    root = ET.fromstring(svg)
    places = " ".join(
        element.get(name, "") for element in root.iter() for name in ("d", "x", "y", "cx", "cy", "width")
    )
    width = float(root.get("viewBox").split()[2])
    assert not re.search(r"nan|inf|e[+-]\d", places)
    for number in re.findall(r"-?\d+\.?\d*", places):
        assert -50 < float(number) < width + 50
    return root


def words(html):
    return " ".join(" ".join(checked(html).texts).split())


def body(state, now=T0 + 100):
    return VIEW.body(state, now)


def summary(state, files=()):
    return VIEW.summary(state, list(files))


def all_of(state, now=T0 + 100):
    """Everything that can be drawn of a state."""
    snapshot = VIEW.snapshot(state, now)
    head = cards.head(snapshot.name, cards.mark("dim", snapshot.subtitle))
    files = [("workers' logs", "/tmp/a & b"), (EVIL, EVIL)]
    return [head, VIEW.body(state, now), VIEW.details(state), VIEW.summary(state, files)]


def running(**about):
    state = RunState("03-torch", **about)
    state.start("starting", T0)
    return state


def step(state, at, epoch=0, step=0, **more):
    counts = {"epoch": epoch, "step": step, "rows": step * 64, "seconds": at / 2, "waiting": at / 10}
    tell(state, {"kind": "step", "at": T0 + at, "pid": 7, "node": "head", **counts, **more})


def report(state, **metrics):
    tell(state, {"kind": "report", "metrics": [metrics]})


def typical():
    """A Ray Train run of two epochs, in the middle of the second."""
    state = running(engine="Ray Train", world_size=2, dataset="digits", rows=1437)
    tell(state, {"kind": "worker", "rank": 1, "pid": 8, "node": "node-2"})
    tell(state, {"kind": "phase", "name": "loading", "at": T0 + 8, "pid": 7, "node": "head"})
    for k in range(23):
        step(state, 10 + k, 0, k, total=22, epochs=2, metrics={"loss": 2.3 - k / 20}, done=k == 22)
    report(state, loss=1.3, accuracy=0.8)
    tell(state, {"kind": "checkpoint", "path": "/runs/1", "bytes": 217_088, "metrics": {"loss": 1.3}})
    for k in range(12):
        step(state, 40 + k, 1, k, total=22, epochs=2, metrics={"loss": 1.2 - k / 20})
    tell(state, {"kind": "print", "text": "hello from rank 0"})
    return state


# -- what is read off it --------------------------------------------------------------------------------


def test_a_running_panel_says_what_matters():
    state = typical()
    snapshot = VIEW.snapshot(state, T0 + 51)
    assert f"{snapshot.name} {snapshot.subtitle}" == "03-torch Ray Train · 2 workers · digits · 1,437 rows"
    said = words(VIEW.body(state, T0 + 51))
    for expected in (
        "✓ starting workers 8.0 s", "✓ loading data 2.0 s", "● training 41 s", "epoch 2 of 2 · step 11 of 22",
        "left", "0.650 loss", "0.800 accuracy", "rows/s", "waiting for data", "epoch 1", "217 kB", "✓ saved",
        "0 head 7 11", "1 node-2 8 –",
    ):  # fmt: skip
        assert expected in said, expected
    assert 'style="width:75.0%"' in VIEW.body(state, T0 + 51)


def test_the_summary_says_what_came_of_it():
    state = typical()
    report(state, loss=0.7, accuracy=0.9)
    state.end("finished", T0 + 60)
    text = words(summary(state, [("workers' logs", "/logs"), ("run record", "/runs/a/run_record.json")]))
    for expected in (
        "03-torch finished 2 epochs in 01:00: start 10 s", "loss 0.700 · accuracy 0.900", "1 checkpoint",
        "1 printed line", "hello from rank 0", "workers' logs /logs", "run record /runs/a/run_record.json",
    ):  # fmt: skip
        assert expected in text, expected


def test_a_snapshot_does_not_change_with_its_state():
    state = typical()
    snapshot = VIEW.snapshot(state, T0 + 51)
    before = repr(snapshot)
    step(state, 55, 1, 20, total=22, metrics={"loss": 0.1, "f1": 1.0})
    tell(state, {"kind": "print", "text": "more"})
    state.end("failed", T0 + 60)
    assert repr(snapshot) == before


def test_a_short_run_took_some_time():
    state = running()
    step(state, 0.2, 0, 1, total=1, epochs=1, done=True)
    state.end("finished", T0 + 0.4)
    assert "1 epoch in 0.4 s" in words(summary(state))


def test_tile_label_and_report_say_the_same():
    """In its steps the loss was 0.534 at last; what counts is what was reported for the epoch."""
    state = running(epochs=1)
    for k in range(11):
        step(state, k, 0, k, total=10, metrics={"loss": 1.0 if k < 10 else 0.534}, done=k == 10)
    report(state, loss=0.601)
    for html in (body(state), summary(state)):
        said = words(html)
        assert "0.601 loss" in said and "loss 0.601" in said and "0.534" not in said


def test_a_failure_is_shown_with_its_epoch_and_rank():
    state = typical()
    tell(state, {"kind": "failure", "rank": 0, "text": "loop, cell 5, line 3\nValueError: <boom>"})
    state.end("failed", T0 + 60)
    text = words(summary(state))
    assert "failed in epoch 2, rank 0" in text and "ValueError: <boom>" in text


def test_stopped_and_restarted():
    state = typical()
    tell(state, {"kind": "phase", "name": "loading", "pid": 99, "at": T0 + 55})
    state.end("stopped", T0 + 60)
    text = words(summary(state))
    assert "stopped by you" in text and "workers started again 1 ×" in text


def test_nothing_happened():
    state = running()
    state.end("finished", T0 + 1)
    assert "nothing was reported" in words(summary(state))
    assert "nothing was printed so far" in words(VIEW.details(state))


def test_an_unknown_end_is_no_empty_bar():
    state = running()
    assert "lk-unknown" in body(state)
    step(state, 1, 0, 5, total=10, epochs=1)
    assert "lk-unknown" not in body(state)


def test_the_headline():
    state = RunState("run")

    def headline(at):
        return headline_of(state, T0 + at)

    assert headline(0) == ""
    state.start("starting", T0)
    assert headline(0) == "starting workers"
    for at, counts, expected in (
        (10, (0, 0), "epoch 1 · step 0"),
        (11, (0, 5, 10, 2), "epoch 1 of 2 · step 5 of 10 · about 3.0 s left"),
        (12, (1, 10, 10, 2), "epoch 2 of 2 · step 10 of 10 · nearly done"),
    ):
        epoch, at_step, total, epochs = (*counts, None, None)[:4]
        step(state, at, epoch, at_step, total=total, epochs=epochs)
        assert headline(at) == expected
    state.end("finished", T0 + 13)
    assert headline(13) == "epoch 2 of 2 · step 10 of 10"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("committed", "✓ saved"),
        ("pending", "○ waits for validation"),
        ("validated", "✓ validated"),
        ("failed", "✕ validation failed"),
        ("timed out", "✕ timed out"),
        ("of a newer version", "of a newer version"),
    ],
)
def test_the_states_of_a_checkpoint(status, expected):
    state = running()
    tell(state, {"kind": "checkpoint", "path": "/c", "status": status})
    assert expected in words(body(state))


def test_a_deleted_checkpoint_is_marked_and_not_counted_as_kept():
    state = running()
    for number in (1, 2):
        tell(state, {"kind": "checkpoint", "path": f"/{number}", "status": "committed"})
    tell(state, {"kind": "checkpoint", "path": "/1", "status": "deleted"})
    assert words(body(state)).count("✓ saved") == 1 and "deleted" in words(body(state))
    state.note = "went on from epoch 2 of 2: nothing trained"
    state.end("finished", T0 + 2)
    assert f"{state.note} · 2 checkpoints · 1 kept" in words(summary(state))
    state = running()
    tell(state, {"kind": "checkpoint", "path": "/2", "status": "validated", "metrics": {"rmse": 3.5}})
    tell(state, {"kind": "checkpoint", "path": "/2", "status": "deleted"})
    assert "rmse 3.500 · deleted" in words(body(state))


@pytest.mark.parametrize(
    ("logged", "reported", "expected"),
    [
        ({}, {}, []),
        ({"loss": 0.5}, {}, ["loss"]),
        ({"loss": 0.5}, {"rmse": 3.5}, ["rmse"]),
        ({}, {"perplexity": 9.5, "accuracy": 0.9}, ["accuracy", "perplexity"]),
        ({}, {"seconds": 1.0, "accuracy": 0.9, "loss": 0.1, "note": "text"}, ["loss", "accuracy"]),
    ],
)
def test_tiles_follow_the_metrics_that_are_reported(logged, reported, expected):
    state = running()
    step(state, 1, 0, 1, metrics=logged)
    if reported:
        report(state, **reported)
    names = [name for _, name in tiles(state)]
    assert names == [*expected, "rows/s", "waiting for data"]


# -- the curve ------------------------------------------------------------------------------------------


def curve(state):
    return svgs(body(state))[0]


def texts(svg):
    """(x, y, words) of all texts."""
    return [(float(t.get("x")), float(t.get("y")), t.text) for t in check_svg(svg).iter("text")]


def test_both_metrics_have_a_scale_and_no_curve_crosses_a_word():
    state = running(epochs=2)
    for k in range(11):
        step(state, k, 0, k, total=10, metrics={"loss": 2.5 - k / 5, "accuracy": k / 10})
    found = {words: (x, y) for x, y, words in texts(curve(state))}
    assert {"2.500", "0", "1", "2", "epoch"} <= set(found)
    assert found["2.500"][0] < 34 and found["1"][0] > 266  # the loss at the left, the accuracy at the right
    lowest = max(y for words, (_, y) in found.items() if words.startswith(("loss", "accuracy")))
    for points in re.findall(r'd="M([^"]+)"[^>]*stroke-linejoin', curve(state)):
        places = [tuple(map(float, point.split())) for point in re.split("[LM]", points)]
        if len(places) > 3:  # a curve, and neither the frame nor a sample in the legend
            assert min(y for _, y in places) > lowest + 5
            assert all(34 <= x <= 266 for x, _ in places)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "text", True, 1e300, -1e300, 10**15])
def test_a_metric_that_is_no_point(value):
    state = running(epochs=3)
    step(state, 1, 0, 1, total=10, metrics={"loss": value})
    step(state, 2, 0, 2, total=10, metrics={"loss": 1.0, "other": value})
    step(state, 3, 0, 3, total=10, metrics={"loss": value, "accuracy": value})
    report(state, loss=value, f1=value)
    for status in ("running", "finished", "failed"):
        state.status = status
        for html in all_of(state):
            checked(html)
    assert "curve of loss" in curve(state)


def test_a_metric_without_points_takes_no_place_in_the_curve():
    state = running()
    for k in range(3):
        step(state, k, 0, k, total=10, metrics={"accuracy": math.nan, "loss": 1.0, "f1": 0.5})
    assert 'aria-label="curve of loss 1 and f1 0.500"' in curve(state)


@pytest.mark.parametrize(
    "values",
    [[0.0, 0.0], [-5.0, -1.0], [-1.0, 1.0], [95.0, 97.5], [1e11, 0], [1e-300, 2e-300], [3.0]],
    ids=str,
)
@pytest.mark.parametrize("name", ["loss", "val_accuracy"])
def test_curves_stay_in_the_picture(name, values):
    state = running(epochs=2)
    for k, value in enumerate(values):
        step(state, k, 0, k, total=2, metrics={name: value})
    dots = [float(dot.get("cy")) for dot in check_svg(curve(state)).iter("circle")]
    assert len(dots) == 1 and 22 <= dots[0] <= 122


def test_an_axis_of_whole_epochs():
    state = running()
    assert ">epoch<" in curve(state) and "no metrics yet" in curve(state)
    step(state, 1, 0, 0, metrics={"loss": 1.0})
    assert ">1<" in curve(state)
    step(state, 1, 2, 5, total=10, metrics={"loss": 1.0})
    assert ">3<" in curve(state)


# -- whatever users supply ------------------------------------------------------------------------------


def test_everything_is_escaped():
    state = RunState(EVIL, engine=EVIL, world_size=2, dataset=EVIL, rows=1)
    state.start(EVIL, T0)
    tell(state, {"kind": "worker", "node": EVIL, "pid": 1})
    tell(state, {"kind": "phase", "name": EVIL, "node": EVIL, "pid": 1})
    step(state, 5, 0, 1, metrics={EVIL: 1.0, "loss": 2.0}, node=EVIL, pid=1)
    step(state, 6, 0, 2, metrics={EVIL: 0.5, "loss": 1.0}, node=EVIL, pid=1)
    report(state, **{EVIL: 1, "b" + EVIL: EVIL})
    tell(state, {"kind": "checkpoint", "path": EVIL, "status": EVIL, "metrics": {EVIL: EVIL}})
    tell(state, {"kind": "validation", "path": EVIL})
    tell(state, {"kind": "print", "text": EVIL})
    tell(state, {"kind": "failure", "text": EVIL})
    state.note = EVIL
    for status in ("running", "failed", "finished", EVIL):
        state.status = status
        for html in all_of(state):
            assert "script" not in checked(html).seen and "<script" not in html


def test_colours_of_a_terminal_do_not_show():
    state = running()
    tell(state, {"kind": "print", "text": "\x1b[1;32mgreen\x1b[0m \x00\x07 done"})
    text = words(VIEW.details(state))
    assert "green" in text and "done" in text and "[1;32m" not in text


def test_only_the_colours_of_the_notebook():
    state = typical()
    tell(state, {"kind": "validation", "path": "/runs/1"})
    state.end("finished", T0 + 60)
    for html in all_of(state):
        for value in re.findall(
            r"(?:color|background|fill|stroke|border[a-z-]*)\s*[:=]\s*[\"']?([^;\"'}]+)", html
        ):
            bare = re.sub(r"var\((?:[^()]|\([^()]*\))*\)", "", value)
            assert not re.search(
                r"#[0-9a-f]{3,8}\b|\brgb|\bhsl|\b(red|green|blue|white|black|gr[ae]y)\b", bare
            ), value
    for variable in re.findall(r"var\((--[a-z0-9-]+)([,)])", STYLE):
        assert variable[0].startswith(("--jp-", "--lk-"))
        assert variable[1] == "," or variable[0].startswith("--lk-"), f"{variable[0]} has no fallback"
    used = set(re.findall(r"var\((--lk-[a-z]+)", STYLE + body(state)))
    assert used <= set(re.findall(r"(--lk-[a-z]+):", STYLE))


# -- size -----------------------------------------------------------------------------------------------


def test_very_much_stays_small():
    state = running(engine="Ray Train", world_size=1000, epochs=1000)
    for rank in range(1000):
        tell(state, {"kind": "worker", "rank": rank, "pid": rank + 10, "node": f"node-{rank}"})
    many = {f"m{j}": j for j in range(50)}
    for k in range(1000):
        where = {"pid": 10, "node": "node-0"}
        tell(state, {"kind": "phase", "name": f"phase {k}", **where})
        step(state, k, k, 10, total=10, epochs=1000, metrics=many, **where)
        report(state, **many)
        tell(state, {"kind": "checkpoint", "path": f"/c/{k}", "metrics": {"x" * 1000: "y" * 1000}})
        tell(state, {"kind": "print", "text": "long " * 400})
    tell(state, {"kind": "failure", "text": "deep\n" * 10_000})
    live = body(state, T0 + 2000)
    assert "and 994 more" in live and "and 992 more" in live and "phase 999" in words(live)
    assert len(live) < 22_000
    assert len(VIEW.details(state)) < 20_000
    for status in ("finished", "failed"):
        state.end(status, T0 + 2000)
        assert len(summary(state)) < 50_000
    for html in all_of(state):
        checked(html)


def test_long_names_are_cut():
    state = RunState("n" * 10_000)
    state.start("p" * 10_000, T0)
    step(state, 1, 0, 1, metrics={"m" * 10_000: 1.0})
    for html in all_of(state)[:2]:
        assert len(html) < 4_000
        checked(html)
