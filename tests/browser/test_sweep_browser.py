"""The panel of a sweep in JupyterLab, in a real browser: while it runs, afterwards, and on Stop."""

import json
import re

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
        metric="accuracy", mode="max", reuse_actors=True, num_samples=SAMPLES, max_concurrent_trials=2,
        scheduler=ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
    ),
    run_config=tune.RunConfig(name=panel.run_id, storage_path=os.environ["LABKIT_HOME"] + "/runs"),
)
with panel.watch(tuner):
    results = tuner.fit()
"""


@pytest.fixture(scope="module")
def opened(chromium, home, tmp_path_factory):
    """A notebook: the cluster, a short sweep, an endless one, and a cell after it."""
    folder = tmp_path_factory.mktemp("lab")
    short, endless = FIT.replace("SAMPLES", "1"), FIT.replace("SAMPLES", "500")
    write_notebook(folder / "sweep.ipynb", SETUP, short, endless, "6 * 7")
    with served(folder) as address, browser(chromium) as page:
        page_of_sweep = NotebookPage(page, address.format("sweep.ipynb"))
        page_of_sweep.run(0)
        yield page_of_sweep, folder / "sweep.ipynb"
    Lab(home).stop()


def test_the_panel_moves_and_stays(opened):
    notebook, path = opened
    page, seen = notebook.page, []

    def watch():  # all of its text, as trials that ASHA stops may end seven at a time
        card = page.locator(".jp-Cell[data-windowed-list-index='1'] .lk-card").first
        for text in card.all_inner_texts():
            if re.search(r"\d+ of 16 trials are over", text) and text not in seen:
                seen.append(text)
                if len(seen) == 3:
                    card.scroll_into_view_if_needed()
                    page.screenshot(path=ARTEFACTS / "05-running-light.png")

    notebook.run(1, meanwhile=watch)
    assert len(seen) >= 3, seen
    for card in notebook.summaries(1, "05"):
        shown = card.inner_text()
        assert "finished" in shown and "stopped early" in shown and "1 failed" in shown, shown
        assert "lr <b>is too large</b>" in shown  # as text
    notebook.save()
    cell = nbformat.read(path, as_version=4).cells[1]
    assert "application/vnd.jupyter.widget-view+json" not in json.dumps(cell.outputs)
    text = "".join(o.get("text", "") + o.get("data", {}).get("text/plain", "") + "\n" for o in cell.outputs)
    assert len(text.strip().splitlines()) < 5, text


def test_the_stop_button_ends_a_sweep_and_the_next_cell_runs(opened):
    notebook, _ = opened
    cell = notebook.begin(2)
    card = "document.querySelectorAll('.jp-Cell')[2]?.querySelector('.lk-main')?.innerText ?? ''"
    notebook.page.wait_for_function(f"() => /[1-9]\\d* stopped early/.test({card})")
    assert notebook.busy
    cell.locator("button:has-text('Stop')").click()
    notebook.wait_idle()
    shown = cell.inner_text()
    assert "stopped by you" in shown and "Traceback" not in shown, shown
    notebook.page.screenshot(path=ARTEFACTS / "05-stopped.png")
    assert "42" in notebook.run(3).locator(".jp-OutputArea-output").inner_text()
    notebook.shut_down()
