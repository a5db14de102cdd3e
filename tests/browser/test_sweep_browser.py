"""The panel of a sweep in JupyterLab, in a real browser: while it runs, afterwards, and on Stop."""

import json

import nbformat
import pytest

from jupyterlab import ARTEFACTS, NotebookPage, browser, served, write_notebook
from labkit.local.lab import Lab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("labkit/panel/", "labkit/worker/", "labkit/display/", "labkit/tune/"),
    pytest.mark.browser,
]

SETUP = """
import os, time
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from labkit.local import cluster
from labkit.tune import SweepPanel

lab = cluster.start()

def climb(config):
    for step in range(config["steps"]):
        time.sleep(0.5)  # so that the whole sweep takes as long as some drawings, on any machine
        if config["lr"] > 0.75:
            raise ValueError("lr <b>is too large</b>")
        tune.report({"accuracy": 1 - (1 - config["lr"]) ** (step + 1)})
"""
FIT = """
panel = SweepPanel("night", dataset="digits")
tuner = tune.Tuner(
    climb,
    param_space={
        "lr": tune.grid_search([k / 20 for k in range(16, 0, -1)]), "steps": 9, "seed": tune.uniform(0, 1)
    },
    tune_config=tune.TuneConfig(
        metric="accuracy", mode="max", reuse_actors=True, num_samples=50, max_concurrent_trials=2,
        scheduler=ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
    ),
    run_config=tune.RunConfig(name=panel.run_id, storage_path=os.environ["LABKIT_HOME"] + "/runs"),
)
with panel.watch(tuner):
    results = tuner.fit()
"""


def test_the_panel_moves_and_the_stop_button_ends_a_sweep_and_the_next_cell_runs(chromium, home, tmp_path):
    write_notebook(tmp_path / "sweep.ipynb", SETUP, FIT, "6 * 7")
    with served(tmp_path) as address, browser(chromium) as page:
        notebook = NotebookPage(page, address.format("sweep.ipynb"))
        notebook.run(0)
        cell = notebook.begin(1)
        card = "document.querySelectorAll('.jp-Cell')[1]?.querySelector('.lk-main')?.innerText ?? ''"
        for over in ("[1-9]", "[1-9]\\d"):
            page.wait_for_function(f"() => /\\b{over} of \\d+ trials are over/.test({card})")
        page.wait_for_function(f"() => /[1-9]\\d* stopped early(.|\\n)*[1-9]\\d* failed/.test({card})")
        cell.locator(".lk-card").scroll_into_view_if_needed()
        page.screenshot(path=ARTEFACTS / "05-running-light.png")
        assert notebook.busy
        cell.locator("button:has-text('Stop')").click()
        notebook.wait_idle()
        shown = cell.inner_text()
        assert "stopped by you" in shown and "Traceback" not in shown, shown
        assert "42" in notebook.run(2).locator(".jp-OutputArea-output").inner_text()
        for card in notebook.summaries(1, "05"):
            shown = card.inner_text()
            assert "stopped early" in shown and "failed" in shown, shown
            assert "lr <b>is too large</b>" in shown  # as text
        notebook.save()
        notebook.shut_down()
    Lab(home).stop()
    cell = nbformat.read(tmp_path / "sweep.ipynb", as_version=4).cells[1]
    assert "application/vnd.jupyter.widget-view+json" not in json.dumps(cell.outputs)
