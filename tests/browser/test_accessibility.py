"""All that the lab displays, in a real browser: read by axe-core, and full of hostile text.

Nothing runs here but the browser, in the colours of JupyterLab's themes. test_browser looks at a live panel.
"""

import sys
from pathlib import Path

import pytest

from course.exercises.checking import Verdict
from course.exercises.table import Table
from jupyterlab import ARTEFACTS, accessible, browser
from labkit import data
from labkit.data import ExecutionRun, OperatorState
from labkit.display import cards
from labkit.local.doctor import Diagnosis, Finding
from labkit.panel import training_view
from labkit.panel.drawing import snapshot
from labkit.tune import sweep_view
from labkit.tune.sweep import SweepRun
from runs_told import T0, Run

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/display/", "labkit/panel/"), pytest.mark.browser]

EVIL = "<img src=x onerror=\"window.evil='ran'\"><script>window.evil='ran'</script>'\">&"
THEMES = {
    **{
        name: f"share/jupyter/lab/themes/@jupyterlab/theme-{name}-extension/index.css"
        for name in ("light", "dark")
    },
    "none": "",
}


def live_and_over(state, view, now):
    """A panel while it runs, as its widgets show it, and what stays of it."""
    live = cards.frame(cards.head(EVIL), snapshot(state, view.shown(state, now), now).html, cards.said(EVIL))
    state.end("failed", now)
    files = [(EVIL, EVIL), ("logs", "/tmp")]
    return [live, snapshot(state, view.shown(state, now), now, files).html]


def training():
    run = Run(EVIL, engine=EVIL, world_size=2, dataset=EVIL, rows=1437, epochs=3)
    run("worker", rank=1, pid=8, node=EVIL)("phase", 2, name=EVIL)
    for epoch in range(3):
        run.epoch(epoch, 5 + 8 * epoch, seconds=7, metrics={EVIL: 1.0, "loss": 0.5})
        run("report", 12 + 8 * epoch, metrics={EVIL: 0.25, "loss": 0.5 - epoch / 10, EVIL[:9]: EVIL}).saved(
            epoch, 12
        )
    run.validation(0, 13, 14).decided(0, 15, accuracy=0.9).validation(1, 20, 21, text=EVIL).decided(
        1, 22, "failed"
    )
    run("print", 23, text=EVIL)("failure", 24, text=f"Error: {EVIL}")
    run("checkpoint", path=EVIL, status=EVIL, metrics={EVIL: EVIL})("validation", path=EVIL)
    run.state.hang, run.state.note = [EVIL], EVIL
    return run.state


def sweep():
    state = SweepRun(EVIL, metric=EVIL, rungs=(1, 2))
    state.start("", T0)
    for number, status in enumerate(("finished", "stopped early", "running", "paused", "waiting", "failed")):
        state.add(EVIL * number, {EVIL: number, "lr": EVIL})
        state.reported(EVIL * number, iteration=1, value=number / 10, seconds=1.0)
        state.set_status(EVIL * number, status, why=EVIL, now=T0 + 1)
    state.fail(f"Error: {EVIL}", 1)
    return state


def execution():
    state = ExecutionRun(EVIL)
    state.start("", T0)
    state.executions = [[OperatorState(name=EVIL)]]
    return state


def shown():
    """The HTML of everything, by its name."""
    return {
        "a training": live_and_over(training(), training_view, T0 + 30),
        "a sweep": live_and_over(sweep(), sweep_view, T0 + 30),
        "an execution": live_and_over(execution(), data, T0 + 30),
        "verdicts": [
            Verdict("03-1", state, EVIL)._repr_html_()
            for state in ("solved", "not yet", "not attempted", "hint 1 of 3")
        ],
        "the doctor": [Diagnosis((Finding(EVIL, False, EVIL, EVIL), Finding("x", True, EVIL)))._repr_html_()],
        "a table": [Table((EVIL, "x"), [(EVIL, 1)], EVIL)._repr_html_()],
        "marks": [
            cards.frame(*(cards.mark(kind, f"{kind} {EVIL}") for kind in ("ok", "bad", "wait", "dim", "now")))
        ],
    }


def test_it_can_be_read_and_nothing_of_a_hostile_text_runs(chromium, tmp_path):
    ARTEFACTS.mkdir(exist_ok=True)
    parts = [f"<h2>{name}</h2>{'<br>'.join(map(str, html))}" for name, html in shown().items()]
    with browser(chromium) as page:
        dialogs = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        for theme, css in THEMES.items():
            colours = Path(sys.prefix, css).read_text() if css else ""
            ground = (
                "background:var(--jp-layout-color1,Canvas);color:var(--jp-content-font-color1,CanvasText)"
            )
            path = tmp_path / f"{theme}.html"
            path.write_text(
                '<!doctype html><html lang="en"><meta charset="utf-8"><title>x</title>'
                f"<style>{colours}</style>"
                f"<style>body{{{ground}}}</style><main><h1>All</h1>{''.join(parts)}</main></html>"
            )
            page.goto(path.as_uri())
            page.screenshot(path=ARTEFACTS / f"all-{theme}.png", full_page=True)
            assert page.evaluate("() => window.evil") is None and dialogs == []
            assert page.locator("img[src=x]").count() == 0
            accessible(page)
