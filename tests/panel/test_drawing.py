"""A run as HTML and SVG: well formed, escaped, small, in the notebook's own colours, whatever happened."""

import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from labkit.display.style import STYLE
from labkit.panel.state.run import RunState
from labkit.panel.view import curve as curve_svg
from labkit.panel.view import html as drawing
from odd_events import T0, fuzzed

EVIL = "<script>alert('x')</script>\"' & </div></pre></svg>"
VOID = {"br", "hr", "img", "input", "meta", "link"}


class Checker(HTMLParser):
    """Every element that is opened is closed in its turn; gathers texts and the elements that it saw."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.seen, self.texts, self.attributes = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
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
    checker.feed(html)
    checker.close()
    assert not checker.open
    assert set(checker.seen) <= {
        "style", "div", "span", "b", "i", "table", "tr", "th", "td", "pre", "code", "details", "summary",
        "svg", "path", "circle", "rect", "text", "title",
    }  # fmt: skip
    names = {name for name, _ in checker.attributes}
    assert not any(name.startswith("on") or name in ("href", "src") for name in names)
    assert "\x00" not in html
    html.encode()
    for svg in re.findall(r"<svg.*?</svg>", html, re.S):
        check_svg(svg)
    return checker


def check_svg(svg):
    root = ET.fromstring(svg)
    places = " ".join(
        element.get(name, "") for element in root.iter() for name in ("d", "x", "y", "cx", "cy", "width")
    )
    width = float(root.get("viewBox").split()[2])
    assert not re.search(r"nan|inf|e[+-]\d", places)
    for number in re.findall(r"-?\d+\.?\d*", places):
        assert -50 < float(number) < max(400, width + 1)  # within the picture, or at its very edge
    return root


def words(html):
    return " ".join(" ".join(checked(html).texts).split())


def all_of(state, now=T0 + 100):
    """Everything that can be drawn of a state."""
    logs = [("workers' logs", "/tmp/a & b"), (EVIL, EVIL)]
    return [
        drawing.title(state),
        drawing.clock_and_status(state, now),
        drawing.clock_and_status(state, now, stopping=True),
        drawing.body(state, now),
        drawing.details(state, output=True, logs=logs),
        drawing.details(state, output=True),
        drawing.details(state, output=False, logs=[]),
        drawing.summary(state, logs=logs, record=EVIL),
        drawing.summary(state),
    ]


def running(**about):
    state = RunState("03-torch", **about)
    state.start("starting", T0)
    return state


def step(state, at, epoch=0, step=0, **more):
    counts = {"epoch": epoch, "step": step, "rows": step * 64, "seconds": at / 2, "waiting": at / 10}
    state.apply({"kind": "step", "at": T0 + at, "pid": 7, "node": "head", **counts, **more})


def typical():
    """A Ray Train run of two epochs, in the middle of the second."""
    state = running(engine="Ray Train", world_size=2, dataset="digits", rows=1437)
    state.apply({"kind": "worker", "rank": 1, "pid": 8, "node": "node-2"})
    state.apply({"kind": "phase", "name": "loading", "at": T0 + 8, "pid": 7, "node": "head"})
    for k in range(23):
        step(state, 10 + k, 0, k, total=22, epochs=2, metrics={"loss": 2.3 - k / 20}, done=k == 22)
    state.apply({"kind": "report", "metrics": [{"loss": 1.3, "accuracy": 0.8}], "epoch": 0})
    state.apply({"kind": "checkpoint", "path": "/runs/1", "bytes": 217_088, "metrics": {"loss": 1.3}})
    for k in range(12):
        step(state, 40 + k, 1, k, total=22, epochs=2, metrics={"loss": 1.2 - k / 20})
    state.apply({"kind": "print", "text": "hello from rank 0"})
    return state


# -- what is read off it --------------------------------------------------------------------------------


def test_a_running_panel_says_what_matters():
    state = typical()
    assert words(drawing.title(state)) == "03-torch Ray Train · 2 workers · digits · 1,437 rows"
    assert words(drawing.clock_and_status(state, T0 + 72)) == "01:12"
    assert words(drawing.clock_and_status(state, T0 + 72, stopping=True)) == "stopping … 01:12"
    body = words(drawing.body(state, T0 + 51))
    for expected in (
        "✓ starting workers 8.0 s", "✓ loading data 2.0 s", "● training 41 s", "epoch 2 of 2 · step 11 of 22",
        "left", "0.650 loss", "0.800 accuracy", "rows/s", "waiting for data", "epoch 1", "217 kB", "✓ saved",
        "0 head 7 11", "1 node-2 8 –",
    ):  # fmt: skip
        assert expected in body, expected
    assert 'style="width:75.0%"' in drawing.body(state, T0 + 51)


def test_the_summary_says_what_came_of_it():
    state = typical()
    state.apply({"kind": "report", "metrics": [{"loss": 0.7, "accuracy": 0.9}], "epoch": 1})
    state.end("finished", T0 + 60)
    text = words(drawing.summary(state, logs=[("workers' logs", "/logs")], record="/runs/a/run_record.json"))
    for expected in (
        "03-torch finished 2 epochs in 01:00", "start 10 s", "loss 0.700 · accuracy 0.900", "1 checkpoint",
        "1 printed line", "hello from rank 0", "workers' logs /logs", "run record /runs/a/run_record.json",
    ):  # fmt: skip
        assert expected in text, expected


def test_a_failure_is_shown_with_its_epoch_and_rank():
    state = typical()
    state.apply({"kind": "failure", "rank": 0, "text": "loop, cell 5, line 3\nValueError: <boom>"})
    state.end("failed", T0 + 60)
    text = words(drawing.summary(state))
    assert "failed in epoch 2, rank 0" in text and "ValueError: <boom>" in text


def test_stopped_and_restarted():
    state = typical()
    state.apply({"kind": "phase", "name": "loading", "pid": 99, "at": T0 + 55})
    state.end("stopped", T0 + 60)
    text = words(drawing.summary(state))
    assert "stopped by you" in text and "workers started again 1 ×" in text


def test_nothing_happened():
    state = running()
    state.end("finished", T0 + 1)
    assert "nothing was reported" in words(drawing.summary(state))
    assert "nothing was printed so far" in words(drawing.details(state, output=True))
    assert drawing.details(state, output=False) == ""


def test_an_unknown_end_is_no_empty_bar():
    state = running()
    assert "lk-unknown" in drawing.body(state, T0 + 1)
    step(state, 1, 0, 5, total=10, epochs=1)
    assert "lk-unknown" not in drawing.body(state, T0 + 1)


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
    state.apply({"kind": "checkpoint", "path": "/c", "status": status})
    assert expected in words(drawing.body(state, T0 + 1))


def test_a_deleted_checkpoint_is_marked_and_not_counted_as_kept():
    state = running()
    for number in (1, 2):
        state.apply({"kind": "checkpoint", "path": f"/{number}", "status": "committed"})
    state.apply({"kind": "checkpoint", "path": "/1", "status": "deleted"})
    assert words(drawing.body(state, T0 + 1)).count("✓ saved") == 1
    assert "deleted" in words(drawing.body(state, T0 + 1))
    state.note = "went on from epoch 2 of 2: nothing trained"
    state.end("finished", T0 + 2)
    assert f"{state.note} · 2 checkpoints, 1 kept" in words(drawing.summary(state))
    validated = {"kind": "checkpoint", "path": "/2", "status": "validated", "metrics": {"rmse": 3.5}}
    state = running()
    state.apply(validated)
    state.apply({"kind": "checkpoint", "path": "/2", "status": "deleted"})
    assert "rmse 3.500 · deleted" in words(drawing.body(state, T0 + 1))


def test_tiles_are_of_the_metrics_that_were_reported():
    state = running()
    for metrics, expected in (
        ({}, ["loss", "accuracy"]),
        ({"accuracy": 0.9}, ["accuracy"]),
        ({"perplexity": 9.5}, ["perplexity"]),
        ({"seconds": 1.0, "accuracy": 0.9, "loss": 0.1, "note": "text"}, ["loss", "accuracy"]),
    ):
        state.apply({"kind": "report", "metrics": [metrics]})
        tiles = re.search(r'<div class="lk-tiles">(.*)</div></div>', drawing._tiles(state, T0 + 1))[1]
        names = re.findall(r'<span class="lk-dim">(.*?)</span>', tiles)
        assert names == [*expected, "rows/s", "waiting for data"]


# -- whatever users supply ------------------------------------------------------------------------------


def test_everything_is_escaped():
    state = RunState(EVIL, engine=EVIL, world_size=2, dataset=EVIL, rows=1)
    state.start(EVIL, T0)
    state.apply({"kind": "worker", "node": EVIL, "pid": 1})
    state.apply({"kind": "phase", "name": EVIL, "node": EVIL, "pid": 1})
    step(state, 5, 0, 1, metrics={EVIL: 1.0, "loss": 2.0}, node=EVIL, pid=1)
    step(state, 6, 0, 2, metrics={EVIL: 0.5, "loss": 1.0}, node=EVIL, pid=1)
    state.apply({"kind": "report", "metrics": [{EVIL: 1, "b" + EVIL: EVIL}]})
    state.apply({"kind": "checkpoint", "path": EVIL, "label": EVIL, "status": EVIL, "metrics": {EVIL: EVIL}})
    state.apply({"kind": "print", "text": EVIL})
    state.apply({"kind": "failure", "text": EVIL})
    for status in ("running", "failed", "finished", EVIL):
        state.status = status
        for html in all_of(state):
            assert "script" not in checked(html).seen
            assert "<script" not in html and "</div></pre>" not in html.replace("</div></pre></", "")


def test_colours_of_a_terminal_do_not_show():
    state = running()
    state.apply({"kind": "print", "text": "\x1b[1;32mgreen\x1b[0m \x00\x07 done"})
    text = words(drawing.details(state, output=True))
    assert "green" in text and "done" in text and "[1;32m" not in text


def test_only_the_colours_of_the_notebook():
    state = typical()
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


def test_style_is_complete():
    """Each class that is used has a rule or is one of JupyterLab's; each variable is defined."""
    used = set(re.findall(r"var\((--lk-[a-z]+)", STYLE + curve_svg.draw(typical())))
    assert used <= set(re.findall(r"(--lk-[a-z]+):", STYLE))
    assert STYLE.count("{") == STYLE.count("}")


# -- odd numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "text", True, 1e300, -1e300, 10**15])
def test_a_metric_that_is_no_point(value):
    state = running(epochs=3)
    step(state, 1, 0, 1, total=10, metrics={"loss": value})
    step(state, 2, 0, 2, total=10, metrics={"loss": 1.0, "other": value})
    step(state, 3, 0, 3, total=10, metrics={"loss": value, "accuracy": value})
    state.apply({"kind": "report", "metrics": [{"loss": value, "f1": value}]})
    for status in ("running", "finished", "failed"):
        state.status = status
        for html in all_of(state):
            checked(html)
    assert "curve of loss" in curve_svg.draw(state)


def test_a_metric_without_points_takes_no_place_in_the_curve():
    state = running()
    for k in range(3):
        step(state, k, 0, k, total=10, metrics={"accuracy": math.nan, "loss": 1.0, "f1": 0.5})
    assert 'aria-label="curve of loss and f1"' in curve_svg.draw(state)


@pytest.mark.parametrize(
    "values",
    [
        [0.0, 0.0],
        [1.0, 1.0],
        [-5.0, -1.0],
        [-1.0, 1.0],
        [95.0, 97.5],
        [0.0, 1.0],
        [1e11, 0],
        [1e-300, 2e-300],
        [3.0],
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["loss", "accuracy", "val_accuracy"])
def test_curves_stay_in_the_picture(name, values):
    state = running(epochs=2)
    for k, value in enumerate(values):
        step(state, k, 0, k, total=2, metrics={name: value})
    root = check_svg(curve_svg.draw(state))
    (line,) = [element for element in root if element.get("stroke-width")]
    ys = [float(y) for _, y in (point.split() for point in line.get("d")[1:].split("L"))]
    assert all(curve_svg._TOP - 0.1 <= y <= curve_svg._BOTTOM + 0.1 for y in ys)


def test_an_axis_of_whole_epochs():
    state = running()
    assert "epoch" in curve_svg.draw(state) and "no metrics yet" in curve_svg.draw(state)
    step(state, 1, 0, 0, metrics={"loss": 1.0})
    assert ">1<" in curve_svg.draw(state)
    step(state, 1, 2, 5, total=10, metrics={"loss": 1.0})
    assert ">3<" in curve_svg.draw(state)


def test_labels_of_two_curves_do_not_lie_on_each_other():
    for a in range(0, 101, 5):
        for b in range(0, 101, 5):
            state = running(epochs=1)
            for k in (0, 10):
                step(state, k, 0, k, total=10, metrics={"loss": a / 100, "accuracy": b / 100, "loss2": 1.0})
            root = check_svg(curve_svg.draw(state))
            first, second = (float(t.get("y")) for t in root if t.tag == "text" and t.get("y").count("."))
            assert abs(first - second) >= 11


def test_a_run_of_no_epochs():
    state = running(epochs=0)
    step(state, 1, 0, 0, total=0, epochs=0)
    for html in all_of(state):
        checked(html)


# -- size -----------------------------------------------------------------------------------------------


def test_very_much_stays_small():
    state = running(engine="Ray Train", world_size=1000, epochs=1000)
    for rank in range(1000):
        state.apply({"kind": "worker", "rank": rank, "pid": rank + 10, "node": f"node-{rank}"})
    for k in range(1000):
        state.apply({"kind": "phase", "name": f"phase {k}", "pid": 10, "node": "node-0"})
        step(
            state,
            k,
            k,
            10,
            total=10,
            epochs=1000,
            metrics={f"m{j}": j for j in range(50)},
            pid=10,
            node="node-0",
        )
        state.apply({"kind": "report", "metrics": [{f"m{j}": j for j in range(50)}]})
        state.apply({"kind": "checkpoint", "path": f"/c/{k}", "metrics": {"x" * 1000: "y" * 1000}})
        state.apply({"kind": "print", "text": "long " * 400})
    state.apply({"kind": "failure", "text": "deep\n" * 10_000})
    body = drawing.body(state, T0 + 2000)
    assert "and 996 before these" in body and "and 992 more" in body and "phase 999" in words(body)
    assert len(body) < 20_000
    assert len(drawing.details(state, output=True)) < 20_000
    for status in ("finished", "failed"):
        state.end(status, T0 + 2000)
        assert len(drawing.summary(state)) < 50_000
    for html in all_of(state):
        checked(html)


def test_long_names_are_cut():
    state = RunState("n" * 10_000)
    state.start("p" * 10_000, T0)
    step(state, 1, 0, 1, metrics={"m" * 10_000: 1.0})
    for html in (drawing.title(state), drawing.body(state, T0 + 1), drawing.clock_and_status(state, T0)):
        assert len(html) < 4_000
        checked(html)


@pytest.mark.parametrize("seed", range(40))
def test_nonsense_is_drawn_all_the_same(seed):
    state = fuzzed(seed)
    for status in ("running", "finished", "failed", "stopped"):
        if status != "running":
            state.end(status, T0 + 2000)
        for html in all_of(state, T0 + 1500):
            checked(html)
