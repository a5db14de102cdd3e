"""Lesson 03 in JupyterLab, in a real browser: what a reader sees while it runs, afterwards, and on Stop.

No exercise is solved here: that may not stop a reader. Solved, with
all of its sections, the lesson runs in test_notebooks.
"""

import json
import re
import shutil

import nbformat
import pytest

from film import Film
from jupyterlab import ARTEFACTS, NotebookPage, accessible, browser, served, write_notebook
from kernels import FIT, SETUP
from labkit.local.lab import Lab
from labs import solved_exercises

pytestmark = [pytest.mark.slow, pytest.mark.browser]

LESSON = "03_torch_trainer"
# The cell that trains on the cluster, by its text.
TRAINING = "with panel.watch(trainer):\n    together = trainer.fit()"


# Each row takes a moment, so that there is something to see on a fast machine, too.
SLOWLY = """
class Slowly(TensorDataset):
    def __getitem__(self, row):
        __import__("time").sleep(0.001)
        return super().__getitem__(row)

slowly = Slowly(*images[:])

"""


@pytest.fixture(scope="module")
def folder(root, tmp_path_factory):
    """The lessons, copied: what a browser saves is not to come into the checkout."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(root / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns("*.mine-*"))
    path = folder / "notebooks" / f"{LESSON}.ipynb"
    lesson = nbformat.read(path, as_version=4)
    (cell,) = (cell for cell in lesson.cells if cell.source.endswith(TRAINING))
    cell.source = SLOWLY + cell.source.replace("train_loop_config={", 'train_loop_config={"images": slowly, ')
    nbformat.write(lesson, path)
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
def lesson(lab, page, folder):
    """Lesson 03, every cell of its core run in turn; with what was seen during the training."""
    path = f"notebooks/{LESSON}.ipynb"
    opened = NotebookPage(page, lab.format(path))
    cells = nbformat.read(folder / path, as_version=4).cells
    training = next(k for k, cell in enumerate(cells) if cell.source.endswith(TRAINING))
    seen: list[str] = []
    film = Film()

    def watch():
        card = page.locator(f".jp-Cell[data-windowed-list-index='{training}'] .lk-card").first
        if card.is_visible():
            film.take(card)
        for text in card.locator(".lk-main .lk-dim").all_inner_texts():
            if re.search(r"epoch \d+ .* step \d+", text) and text not in seen:
                seen.append(text)
                if len(seen) == 3:  # the curve has a shape by then
                    page.screenshot(path=ARTEFACTS / "03-running-light.png")
                    (ARTEFACTS / "03-running.png").write_bytes(film.latest)

    for number, cell in enumerate(cells):
        if _is_core(cell):
            opened.run(number, meanwhile=watch if number == training else lambda: None)
        if number == training:
            watch()  # the summary
            film.save(ARTEFACTS / "03-running.webp")
    opened.save()
    yield opened, training, seen, folder / path, film


def test_every_cell_of_its_core_ran(lesson, home):
    _, _, _, path, _ = lesson
    assert solved_exercises(home) == set()
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if _is_core(cell)]
    assert all(cell.execution_count for cell in cells)
    for cell in cells:
        expected = "raises-exception" in cell.metadata.get("tags", [])
        errors = [output for output in cell.outputs if output.output_type == "error"]
        assert bool(errors) == expected, (cell.source, errors)
        # What goes wrong on purpose is described in a few lines, not in a traceback.
        assert all(len(error.traceback) <= 4 for error in errors)


def _is_core(cell):
    return cell.cell_type == "code"


def test_the_panel_moves_while_the_cell_runs(lesson):
    _, _, seen, _, film = lesson
    # How many pictures there are depends on the speed of the machine; that they differ does not.
    assert len(seen) >= 2, seen
    assert len(film) >= 3


def test_the_training_cell_is_quiet(lesson):
    _, training, _, path, _ = lesson
    cell = nbformat.read(path, as_version=4).cells[training]
    text = ""
    for output in cell.outputs:
        text += output.get("text", "") + output.get("data", {}).get("text/plain", "") + "\n"
    assert len(text.strip().splitlines()) < 20, text
    assert "application/vnd.jupyter.widget-view+json" not in json.dumps(cell.outputs)


def test_the_summary_is_there_when_the_notebook_is_opened_again(lesson, lab, page):
    opened, training, _, _, _ = lesson
    opened.shut_down()
    page.goto("about:blank")
    again = NotebookPage(page, lab.format(f"notebooks/{LESSON}.ipynb"))
    for summary in again.summaries(training, "03"):
        shown = summary.inner_text()
        assert "finished" in shown and "03-two-workers" in shown, shown


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
    Lab(home).stop()
    assert not Lab(home).running()
