"""A run that goes on: its panel in a second view of its cell, and when the page is loaded again."""

import re

import pytest

from jupyterlab import ARTEFACTS, NotebookPage, browser, served, write_notebook
from kernels import FIT, SETUP

pytestmark = pytest.mark.browser

EPOCH = r"epoch (\d+) of 1000"
# The text of the cards that are in a part of the page and can be seen.
SHOWN = """place => [...document.querySelectorAll(place + ' .lk-card')]
    .filter(card => card.offsetParent).map(card => card.innerText).join('\\n')"""
VIEW = ".jp-LinkedOutputView"


@pytest.fixture(scope="module")
def opened(home, tmp_path_factory, chromium):
    """A notebook whose second cell trains until it is stopped."""
    folder = tmp_path_factory.mktemp("lab")
    write_notebook(folder / "run.ipynb", SETUP, FIT, "from labkit import runs\nruns.latest(state=None)")
    with served(folder) as address, browser(chromium) as page:
        notebook = NotebookPage(page, address.format("run.ipynb"))
        notebook.run(0)
        cell = notebook.begin(1)
        notebook.wait_for(cell, ".lk-steps")
        yield notebook
        notebook.shut_down()


def epoch(notebook: NotebookPage, place: str) -> int:
    """Wait until a card in `place` names an epoch, and return it."""
    wait = f"([place, epoch]) => RegExp(epoch).test(({SHOWN})(place))"
    notebook.page.wait_for_function(wait, arg=[place, EPOCH], timeout=60_000)
    return int(re.search(EPOCH, notebook.page.evaluate(SHOWN, place))[1])


def later(notebook: NotebookPage, place: str, than: int) -> None:
    """Wait until a card in `place` names a later epoch."""
    wait = f"([place, epoch, than]) => Number(({SHOWN})(place).match(epoch)?.[1]) > than"
    notebook.page.wait_for_function(wait, arg=[place, EPOCH, than], timeout=60_000)


def test_a_second_view_of_the_cell_moves_too(opened):
    opened.command("notebook:create-output-view")
    later(opened, VIEW, epoch(opened, VIEW))
    opened.page.screenshot(path=ARTEFACTS / "second-view.png")
    opened.page.locator(".lm-TabBar-tab", has_text="Output View").locator(".lm-TabBar-tabCloseIcon").click()
    later(opened, ".jp-Notebook", epoch(opened, ".jp-Notebook"))


def test_a_run_goes_on_when_the_page_is_loaded_again_and_its_record_shows_it(opened):
    """JupyterLab asks a busy kernel for the widgets, so the panel is gone (docs/troubleshooting.md)."""
    opened.save()
    opened.page.reload()
    opened.page.wait_for_selector(".jp-Notebook .jp-Cell")
    kernel = "window.jupyterapp.shell.currentWidget?.context?.sessionContext?.session?.kernel"
    opened.page.wait_for_function(f"() => {kernel}")
    opened.cell(1).get_by_text("Loading widget").wait_for()
    opened.page.evaluate(f"() => {kernel}.interrupt()")  # what ■ does
    shown = opened.run(2).inner_text()
    opened.page.screenshot(path=ARTEFACTS / "loaded-again.png")
    assert "stopped" in shown and "epochs" in shown, shown
