"""Panels of a sweep and of a run that validates, in JupyterLab in a real browser: live, and afterwards."""

import re

import nbformat
import pytest

from jupyterlab import ARTEFACTS, NotebookPage, browser, legible, quiet, served, write_notebook

pytestmark = pytest.mark.browser

SETUP = """
import os, tempfile, time
import ray.train
from ray import tune
from ray.train import CheckpointUploadMode, RunConfig, ScalingConfig, ValidationConfig, ValidationTaskConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.tune.schedulers import ASHAScheduler
from labkit import cluster
from labkit.panel.tracking.hooks import current
from labkit.train import TrainPanel
from labkit.tune import SweepPanel

lab = cluster.start()

def climb(config):
    for step in range(9):
        time.sleep(0.5)  # so that the whole sweep takes as long as some drawings, on any machine
        if config["lr"] > 0.75:
            raise ValueError("lr <b>is too large</b>")
        tune.report({"accuracy": 1 - (1 - config["lr"]) ** (step + 1)})

def loop(config):
    for epoch, how in enumerate(["well", "raise", "hang", "well"]):
        current().begin_epoch(20)
        for step in range(20):
            time.sleep(0.1)
            current().step(8, loss=1 / (1 + epoch + step / 20))
        ray.train.report(
            {"epoch": epoch, "loss": 1 / (2 + epoch)},
            checkpoint=ray.train.Checkpoint.from_directory(tempfile.mkdtemp()),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            validation=ValidationTaskConfig(fn_kwargs={"how": how}, timeout_s=20 if how == "hang" else 300),
        )

def validate(checkpoint, how):
    time.sleep(1000 if how == "hang" else 1.5)
    if how == "raise":
        raise ValueError("no <b>rows</b>")
    return {"accuracy": 0.875}
"""
SWEEP = """
tuner = tune.Tuner(
    climb,
    param_space={"lr": tune.grid_search([k / 20 for k in range(16, 0, -1)]), "seed": tune.uniform(0, 1)},
    tune_config=tune.TuneConfig(
        metric="accuracy", mode="max", reuse_actors=True, max_concurrent_trials=2,
        scheduler=ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
    ),
    run_config=tune.RunConfig(storage_path=os.environ["LABKIT_HOME"] + "/runs"),
)
with SweepPanel("night", dataset="digits").watch(tuner):
    tuner.fit()
"""
VALIDATION = """
trainer = DataParallelTrainer(
    loop,
    scaling_config=ScalingConfig(num_workers=1),
    validation_config=ValidationConfig(validate),
    run_config=RunConfig(storage_path=os.environ["LABKIT_HOME"] + "/runs"),
)
with TrainPanel("alongside", epochs=4).watch(trainer):
    trainer.fit()
"""

# The lines of phases that continue at the figure's left edge.
BEYOND = """card => [...card.querySelectorAll('.lk-steps')].filter(one => one.scrollWidth > one.clientWidth)
    .map(one => one.innerText)"""


@pytest.fixture(scope="module")
def opened(chromium, home, tmp_path_factory):
    """A notebook: the cluster, a sweep, and a run that validates alongside its training."""
    folder = tmp_path_factory.mktemp("lab")
    write_notebook(folder / "panels.ipynb", SETUP, SWEEP, VALIDATION)
    with served(folder) as address, browser(chromium) as page:
        one = NotebookPage(page, address.format("panels.ipynb"))
        one.run(0)
        yield one, folder / "panels.ipynb"
        one.shut_down()


def summaries(notebook, number, name):
    """The card that stays of a cell, in each theme, where it must be legible."""
    for theme in ("Dark", "Light"):
        notebook.theme(theme)
        card = notebook.cell(number).locator(".lk-card")
        card.wait_for()
        yield card
        notebook.page.wait_for_timeout(500)
        card.scroll_into_view_if_needed()
        notebook.page.screenshot(path=ARTEFACTS / f"{name}-summary-{theme.lower()}.png")
        legible(notebook.page, card)


def test_the_panel_of_a_sweep_moves_and_stays(opened):
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
    for card in summaries(notebook, 1, "05"):
        shown = card.inner_text()
        assert "finished" in shown and "stopped early" in shown and "1 failed" in shown, shown
        assert "lr <b>is too large</b>" in shown  # as text
    notebook.save()
    quiet(nbformat.read(path, as_version=4).cells[1], lines=5)


def test_the_time_axis_is_drawn_live_and_stays(opened):
    notebook, _ = opened
    page = notebook.page
    seen: set[str] = set()
    drawn: list[int] = []
    beyond: set[str] = set()

    def watch():
        card = page.locator(".jp-Cell[data-windowed-list-index='2'] .lk-card").first
        if not card.locator(".lk-pad").count():
            return
        for words in card.locator("td .lk-wait, td .lk-bad, td .lk-ok").all_inner_texts():
            if words.startswith("● validating") and words not in seen:
                card.scroll_into_view_if_needed()
                page.screenshot(path=ARTEFACTS / "beside-running.png")
            seen.add(words)
        drawn.append(card.locator(".lk-pad rect").count())
        beyond.update(card.evaluate(BEYOND))

    notebook.run(2, meanwhile=watch)
    # Several moments of a validation that ran, and the growing picture.
    assert len([words for words in seen if words.startswith("● validating")]) >= 3, seen
    assert any(words.startswith("○ waits") for words in seen), seen
    assert max(drawn) > drawn[0], drawn
    assert not beyond, beyond
    for card in summaries(notebook, 2, "beside"):
        shown = card.inner_text()
        for expected in (
            "4 checkpoints · 2 validated · 1 validation failed · 1 timed out",
            "✓ accuracy 0.875",
            "✕ validation failed: ValueError: no <b>rows</b>",
            "✕ timed out after",
        ):
            assert expected in shown, (expected, shown)
        rows = card.locator(".lk-pad text").all_text_contents()
        assert {"training", "validation"} <= set(rows), rows
        assert card.locator(".lk-pad rect").count() == 8
