"""Lesson 03 in JupyterLab, in a real browser: what a reader sees while it runs, afterwards, and on Stop.

No exercise is solved here: that may not stop a reader. Solved, with
all of its sections, the lesson runs in test_notebooks.
"""

import json
import re
import shutil

import nbformat
import pytest

from jupyterlab import ARTEFACTS, NotebookPage, accessible, browser, served, write_notebook
from kernels import FIT, SETUP
from labkit.local.lab import Lab
from labs import solved_exercises

pytestmark = [pytest.mark.slow, pytest.mark.browser]

LESSON = "03_torch_trainer"
# The cell that trains on the cluster, by its text.
TRAINING = "with panel.watch(trainer):\n    together = trainer.fit()"


@pytest.fixture(scope="module")
def folder(root, tmp_path_factory):
    """The lessons, copied: what a browser saves is not to come into the checkout."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(root / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns("*.mine-*"))
    write_notebook(folder / "endless.ipynb", SETUP, FIT, "from labkit import runs\nruns.latest(state=None)")
    return folder


@pytest.fixture(scope="module")
def lab(home, folder):
    with served(folder) as address:
        yield address


@pytest.fixture(scope="module")
def page(chromium):
    with browser(chromium) as page:
        yield page


@pytest.fixture(scope="module")
def lesson(lab, page, folder):
    """Lesson 03, every code cell run in turn; with the number of the one that trains, and its file."""
    path = f"notebooks/{LESSON}.ipynb"
    opened = NotebookPage(page, lab.format(path))
    cells = nbformat.read(folder / path, as_version=4).cells
    training = next(k for k, cell in enumerate(cells) if cell.source.endswith(TRAINING))
    for number, cell in enumerate(cells):
        if cell.cell_type == "code":
            opened.run(number)
    opened.save()
    return opened, training, folder / path


def test_every_cell_ran(lesson, home):
    _, _, path = lesson
    assert solved_exercises(home) == set()
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    for cell in cells:
        expected = "raises-exception" in cell.metadata.get("tags", [])
        errors = [output for output in cell.outputs if output.output_type == "error"]
        assert bool(errors) == expected, (cell.source, errors)
        # What goes wrong on purpose is described in a few lines, not in a traceback.
        assert all(len(error.traceback) <= 4 for error in errors)


def test_the_training_cell_is_quiet(lesson):
    _, training, path = lesson
    cell = nbformat.read(path, as_version=4).cells[training]
    text = ""
    for output in cell.outputs:
        text += output.get("text", "") + output.get("data", {}).get("text/plain", "") + "\n"
    assert len(text.strip().splitlines()) < 20, text
    assert "application/vnd.jupyter.widget-view+json" not in json.dumps(cell.outputs)


def test_the_summary_is_there_when_the_notebook_is_opened_again(lesson, lab, page):
    opened, training, _ = lesson
    opened.shut_down()
    page.goto("about:blank")
    again = NotebookPage(page, lab.format(f"notebooks/{LESSON}.ipynb"))
    for summary in again.summaries(training, "03"):
        shown = summary.inner_text()
        assert "finished" in shown and "03-two-workers" in shown, shown


# -- a run that goes on until it is stopped --------------------------------------------------------------

EPOCH = r"epoch (\d+) of 1000"
# The text of the cards that are in a part of the page and can be seen.
SHOWN = """place => [...document.querySelectorAll(place + ' .lk-card')]
    .filter(card => card.offsetParent).map(card => card.innerText).join('\\n')"""
NOTEBOOK, VIEW = ".jp-Notebook", ".jp-LinkedOutputView"


def epoch(page, place):
    """Wait until a card in `place` names an epoch, and return it."""
    wait = f"([place, epoch]) => RegExp(epoch).test(({SHOWN})(place))"
    page.wait_for_function(wait, arg=[place, EPOCH], timeout=60_000)
    return int(re.search(EPOCH, page.evaluate(SHOWN, place))[1])


def wait_for_later(page, place, than):
    """Wait until a card in `place` names a later epoch."""
    wait = f"([place, epoch, than]) => Number(({SHOWN})(place).match(epoch)?.[1]) > than"
    page.wait_for_function(wait, arg=[place, EPOCH, than], timeout=60_000)


@pytest.fixture(scope="module")
def endless(lab, page):
    """A notebook: a cluster, a run that goes on until it is stopped, and its record."""
    opened = NotebookPage(page, lab.format("endless.ipynb"))
    started = opened.run(0).inner_text()
    assert "address" in started, started
    return opened


@pytest.fixture
def cell(endless):
    """The cell that trains, when it does."""
    cell = endless.begin(1)
    endless.wait_for(cell, ".lk-steps")
    return cell


def test_the_stop_button_ends_a_run_and_the_next_cell_runs(endless, cell, page):
    wait_for_later(page, NOTEBOOK, 2)
    cell.locator(".lk-card").scroll_into_view_if_needed()
    page.screenshot(path=ARTEFACTS / "stop-running.png")
    cell.locator("button:has-text('Explain')").click()  # it runs while the cell does
    page.wait_for_function(
        f"place => /what each rank did at(.|\\n)*rank 1: /.test(({SHOWN})(place))", arg=NOTEBOOK
    )
    page.screenshot(path=ARTEFACTS / "explained.png")
    for theme in ("Dark", "Light"):
        endless.theme(theme)
        accessible(page, ".lk-card")
    assert endless.busy
    # By the keyboard: the output comes soon after the cell that was run.
    page.keyboard.press("Escape")  # to JupyterLab's command mode, in which Tab moves on
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.textContent") == "Stop":
            break
    assert page.evaluate("() => getComputedStyle(document.activeElement).outlineWidth") == "2px"
    before = epoch(page, NOTEBOOK)
    page.keyboard.press("Enter")
    endless.wait_idle(seconds=200)
    shown = cell.inner_text()
    assert "stopped" in shown and "Traceback" not in shown, shown
    # Of an epoch that takes half a second, also on a busy machine.
    assert int(re.search(r"(\d+) epochs? in", shown)[1]) < before + 60, shown
    cell.locator(".lk-card").scroll_into_view_if_needed()
    page.screenshot(path=ARTEFACTS / "stopped.png")
    assert "stopped" in endless.run(2).locator(".jp-OutputArea-output").inner_text()


def test_a_second_view_of_the_cell_moves_too_and_the_run_goes_on_when_the_page_is_loaded_again(
    endless, cell, page
):
    """JupyterLab asks a busy kernel for the widgets, so the panel is gone (docs/troubleshooting.md)."""
    endless.command("notebook:create-output-view")
    wait_for_later(page, VIEW, epoch(page, VIEW))
    page.screenshot(path=ARTEFACTS / "second-view.png")
    page.locator(".lm-TabBar-tab", has_text="Output View").locator(".lm-TabBar-tabCloseIcon").click()
    wait_for_later(page, NOTEBOOK, epoch(page, NOTEBOOK))
    endless.save()
    page.reload()
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    kernel = "window.jupyterapp.shell.currentWidget?.context?.sessionContext?.session?.kernel"
    page.wait_for_function(f"() => {kernel}")
    endless.cell(1).get_by_text("Loading widget").wait_for()
    page.evaluate(f"() => {kernel}.interrupt()")  # what ■ does
    shown = endless.run(2).inner_text()
    page.screenshot(path=ARTEFACTS / "loaded-again.png")
    assert "stopped" in shown and "epochs" in shown, shown
    endless.shut_down()


def test_afterwards_nothing_of_it_is_left(home):
    """The server was closed and the kernels with it; what they started is stopped by its record."""
    Lab(home).stop()
    assert not Lab(home).running()
