"""The tour in JupyterLab, in a real browser, from first cell to last: README's picture comes from here."""

import shutil

import nbformat
import pytest

from film import Film
from jupyterlab import ARTEFACTS, NotebookPage, browser, served

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/panel/", "labkit/worker/"), pytest.mark.browser]

TRAINING = "with panel.watch(trainer):\n    together = trainer.fit()"


def test_a_worker_is_killed_and_the_panel_shows_how_the_run_goes_on(home, root, tmp_path, chromium):
    # Copied: what a browser saves must not come into the checkout.
    shutil.copytree(root / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns("*.mine-*"))
    cells = nbformat.read(tmp_path / "notebooks" / "tour.ipynb", as_version=4).cells
    training = next(k for k, cell in enumerate(cells) if cell.source.endswith(TRAINING))
    film, seen = Film(), []
    with served(tmp_path) as address, browser(chromium) as page:
        tour = NotebookPage(page, address.format("notebooks/tour.ipynb"))
        card = page.locator(f".jp-Cell[data-windowed-list-index='{training}'] .lk-card").first

        def watch():
            if card.is_visible():
                film.take(card)
                seen.append(card.inner_text())
                if len(seen) > 1 and "restarted" in seen[-1] and "restarted" not in seen[-2]:
                    page.screenshot(path=ARTEFACTS / "tour-killed.png")

        for number, cell in enumerate(cells):
            if cell.cell_type == "code":
                shown = tour.run(number, meanwhile=watch if number == training else lambda: None)
                if number == training:
                    watch()  # the summary
                    summary = shown.inner_text()
                elif "largest difference" in cell.source:
                    compared = shown.inner_text()
        tour.shut_down()
    film.save(ARTEFACTS / "panel.webp")
    (ARTEFACTS / "panel.png").write_bytes(film.latest)
    assert len(film) >= 8
    assert any("epoch 3" in text for text in seen) and "finished" in summary, seen
    assert "started again 1 ×" in summary, summary
    assert float(compared.split("weight: ")[-1].split()[0]) < 1e-5
