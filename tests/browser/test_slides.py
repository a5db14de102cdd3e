"""A lesson's deck as a class sees it, opened as a file in a browser."""

import pytest

import build
import slides
from jupyterlab import ARTEFACTS, browser

pytestmark = [pytest.mark.slow, pytest.mark.covers("tools/"), pytest.mark.browser]


@pytest.fixture(scope="module")
def deck(tmp_path_factory):
    (source,) = (path for path in build.sources() if path.stem.startswith("03_"))
    (path,) = slides.make([source], tmp_path_factory.mktemp("slides"))
    return path


def test_a_deck_asks_for_nothing_from_outside_and_each_slide_fits(deck, chromium):
    asked, errors, shown = [], [], []
    with browser(chromium) as page:
        page.set_viewport_size({"width": 1280, "height": 720})
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("requestfailed", lambda request: errors.append(f"{request.url} failed"))
        page.goto(deck.as_uri(), wait_until="networkidle")
        page.wait_for_function("() => window.Reveal?.isReady()")
        for _ in range(page.evaluate("() => Reveal.getTotalSlides()")):
            slide = "() => [Reveal.getCurrentSlide().scrollHeight, Reveal.getCurrentSlide().innerText]"
            height, text = page.evaluate(slide)
            assert height <= 720, text
            if text.startswith("What happens in a step"):
                page.screenshot(path=ARTEFACTS / "slides-03.png")
            shown.append(text)
            page.keyboard.press("Space")
        broken = page.evaluate("() => [...document.images].filter(one => !one.naturalWidth).length")
        notes = page.locator("aside.notes").all_text_contents()
    assert [url for url in asked if not url.startswith((deck.parent.as_uri(), "data:"))] == []
    assert (errors, broken) == ([], 0)
    together = "\n".join(shown)
    assert shown[0].startswith("03 · Your loop on two workers")
    assert "Exercise 03-4" in together and "Predict." in together and shown[-1].startswith("Key points")
    assert "Extra:" not in together and "50_000 // 128" not in together, "that's a solution"
    assert any("slower" in note for note in notes)
    assert "We have two workers" not in together, "a note is for the speaker"
