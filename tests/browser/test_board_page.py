"""The board of a class as a teacher sees it: readable in light and dark; nothing of a learner's text runs."""

import json
from datetime import UTC, datetime

import pytest

from course import classroom
from course.classroom import plan
from jupyterlab import ARTEFACTS, browser, new_page, readable_everywhere

pytestmark = [pytest.mark.slow, pytest.mark.covers("course/classroom/"), pytest.mark.browser]


@pytest.fixture
def place(tmp_path):
    """Thirty learners who came to different sections, and a file that is none."""
    place = tmp_path / "class"
    place.mkdir()
    exercises = [id for id in plan.read().exercises if id.startswith("03-")]
    sections = [name for name in plan.read().sections if name.startswith("03 ") and "Extra" not in name]
    for number in range(30):
        solved, been = exercises[: number % 6], sections[: 1 + number % len(sections)]
        shared = {
            "nickname": f"learner {number}" if number else "<img src=x onerror=alert(1)>",
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "solved": solved,
            "hints": dict.fromkeys(solved, 1 + number % 3),
            "predictions": {"03-a": "right", "03-b": "close", "03-c": "off"},
            "minutes": dict.fromkeys(been, 1.0 + number),
            "section": {"name": been[-1], "minutes": number},
            "runs": {
                "03-one-process": {"workers": 1, "rows/s": 9000.0},
                "03-torch": {"workers": 2, "rows/s": 9000.0 + 100 * number, "speed-up": 1.3},
            },
            "doctor": ["Java"] if number % 9 == 4 else [],
        }
        (place / f"{number:016x}.json").write_text(json.dumps(shared))
    (place / f"{98:016x}.json").write_text("[" * 50_000)
    return place


def board(place, every):
    return classroom.board(str(place), place.parent / "board.html", every=every, once=True).as_uri()


def test_the_board_can_be_read_and_runs_nothing_of_others(chromium, place):
    ARTEFACTS.mkdir(exist_ok=True)
    with browser(chromium) as page:
        messages = []
        page.on("console", lambda message: messages.append(message.text))
        page.on("dialog", lambda dialog: (messages.append(dialog.message), dialog.dismiss()))
        page.goto(board(place, every=2))
        with page.expect_navigation():
            pass  # it loads itself again
        page.goto(board(place, every=600))  # and is not loaded again while its rows are counted
        assert page.locator(".heat tr", has_text="<img src=x onerror=alert(1)>").count() == 1
        assert page.locator(".heat tr").count() == 32
        assert page.locator("tr", has_text="nested too deeply").count() == 1
        assert messages == []
        # axe's own script is none that the page lets run.
        page = new_page(page.context.browser, bypass_csp=True)
        page.goto(board(place, every=600))
        readable_everywhere(page, "board", full_page=True)
