"""The tour in JupyterLab, in a real browser, from first cell to last, and Stop. It makes README's picture."""

import json
import re
import shutil
from types import SimpleNamespace

import nbformat
import pytest

from film import Film
from jupyterlab import ARTEFACTS, NotebookPage, accessible, browser, served, write_notebook
from kernels import FIT, SETUP
from labkit.system import family, supervision

pytestmark = pytest.mark.browser

TRAINING = "with panel.watch(trainer):\n    together = trainer.fit()"


@pytest.fixture(scope="module")
def folder(root, tmp_path_factory):
    """Notebooks, copied: what a browser saves must not come into the checkout."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copy(root / "notebooks" / "tour.ipynb", folder)
    write_notebook(folder / "stop.ipynb", SETUP, FIT, "6 * 7")
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
def tour(lab, page, folder):
    """The tour, every cell run in turn and saved; with what was seen of the panel, the summary last."""
    opened = NotebookPage(page, lab.format("tour.ipynb"))
    cells = nbformat.read(folder / "tour.ipynb", as_version=4).cells
    training = next(k for k, cell in enumerate(cells) if cell.source.endswith(TRAINING))
    card = page.locator(f".jp-Cell[data-windowed-list-index='{training}'] .lk-card").first
    film, seen = Film(), []

    def watch():
        if card.is_visible():
            film.take(card)
            seen.append(card.inner_text())

    for number, cell in enumerate(cells):
        if cell.cell_type == "code":
            opened.run(number, meanwhile=watch if number == training else lambda: None)
        if number == training:
            watch()
    opened.save()
    cells = nbformat.read(folder / "tour.ipynb", as_version=4).cells
    return SimpleNamespace(opened=opened, cells=cells, training=training, film=film, seen=seen)


def text_of(cell):
    """What a cell put out besides its panel."""
    return "\n".join(
        o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in cell.outputs
    ).strip()


def test_a_worker_is_killed_and_the_panel_shows_how_the_run_goes_on(tour):
    tour.film.save(ARTEFACTS / "panel.webp")
    (ARTEFACTS / "panel.png").write_bytes(tour.film.latest)
    # How many pictures and moments were seen depends on the speed of the machine; that they differ does not.
    moments = {found[0] for one in tour.seen if (found := re.search(r"epoch \d+ .*step \d+", one))}
    assert len(tour.film) >= 3 and len(moments) >= 2, tour.seen
    assert "finished" in tour.seen[-1] and "started again 1 ×" in tour.seen[-1], tour.seen[-1]
    for cell in (cell for cell in tour.cells if cell.cell_type == "code"):
        assert cell.execution_count and "error" not in [o.output_type for o in cell.outputs], cell
    (compared,) = [text_of(cell) for cell in tour.cells if "largest difference" in cell.source]
    assert float(compared.split("weight: ")[-1]) < 1e-5
    training = tour.cells[tour.training]
    assert len(text_of(training).splitlines()) < 20, text_of(training)
    assert "application/vnd.jupyter.widget-view+json" not in json.dumps(training.outputs)


def test_the_summary_is_there_when_the_notebook_is_opened_again(tour, lab, page):
    tour.opened.shut_down()
    page.goto("about:blank")
    again = NotebookPage(page, lab.format("tour.ipynb"))
    for theme in ("Dark", "Light"):
        again.theme(theme)
        summary = again.cell(tour.training).locator(".lk-card")
        summary.wait_for()
        shown = summary.inner_text()
        assert "finished" in shown and "started again 1 ×" in shown, shown
        page.wait_for_timeout(500)
        page.screenshot(path=ARTEFACTS / f"summary-{theme.lower()}.png")
        # JupyterLab makes all columns of a table equally wide; ours are as wide as their contents.
        wide = "card => [...card.querySelectorAll('td')].filter(one => one.scrollWidth > one.clientWidth + 1)"
        assert summary.evaluate(f"{wide}.map(one => one.textContent)") == []
        accessible(page, ".lk-card")


def test_the_stop_button_ends_a_run_and_the_next_cell_runs(lab, page, home):
    opened = NotebookPage(page, lab.format("stop.ipynb"))
    started = opened.run(0).inner_text()
    assert "address" in started, started
    cell = opened.begin(1)
    opened.wait_for(cell, ".lk-steps")
    card = "document.querySelector('.lk-main')?.innerText ?? ''"
    page.wait_for_function(f"() => /epoch ([3-9]|\\d\\d+) of 1000/.test({card})")
    cell.locator(".lk-card").scroll_into_view_if_needed()
    page.screenshot(path=ARTEFACTS / "stop-running.png")
    cell.locator("button:has-text('Explain')").click()  # it runs while the cell does
    page.wait_for_function(f"() => /what each rank did at(.|\\n)*rank 1: /.test({card})")
    page.screenshot(path=ARTEFACTS / "explained.png")
    for theme in ("Dark", "Light"):
        opened.theme(theme)
        accessible(page, ".lk-card")
    assert opened.busy
    # By the keyboard: the output comes soon after the cell that was run.
    page.keyboard.press("Escape")  # to JupyterLab's command mode, in which Tab moves on
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.textContent") == "Stop":
            break
    assert page.evaluate("() => getComputedStyle(document.activeElement).outlineWidth") == "2px"
    before = int(re.search(r"epoch (\d+) of 1000", cell.inner_text())[1])
    page.keyboard.press("Enter")
    opened.wait_idle(seconds=200)
    shown = cell.inner_text()
    assert "stopped" in shown and "Traceback" not in shown, shown
    # Of an epoch that takes half a second, also on a busy machine.
    assert int(re.search(r"(\d+) epochs? in", shown)[1]) < before + 60, shown
    cell.locator(".lk-card").scroll_into_view_if_needed()
    page.screenshot(path=ARTEFACTS / "stopped.png")
    assert "42" in opened.run(2).locator(".jp-OutputArea-output").inner_text()
    opened.shut_down()


def test_afterwards_nothing_of_it_is_left(home):
    """The server was closed and the kernels with it; what they started is stopped by its record."""
    supervision.stop(home)
    assert not family.running(home)
