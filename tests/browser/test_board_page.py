"""The board of a class as a teacher sees it: readable in light and dark; nothing of a learner's text runs."""

import json
import random
from datetime import UTC, datetime

import pytest

from course import classroom
from course.classroom import plan
from jupyterlab import ARTEFACTS, browser, new_page, readable_everywhere

pytestmark = [pytest.mark.slow, pytest.mark.covers("course/classroom/"), pytest.mark.browser]


@pytest.fixture
def place(tmp_path):
    """Thirty learners who came to different sections, and three files that are none."""
    place, draw, lessons = tmp_path / "class", random.Random(1), ("00", "03")
    place.mkdir()
    exercises = [id for id in plan.read().exercises if id[:2] in lessons]
    sections = [name for name in plan.read().sections if name[:2] in lessons and "Extra" not in name]
    for number in range(30):
        done = draw.randint(1, len(exercises))
        been = sections[: max(1, len(sections) * done // len(exercises))]
        rate = 9000 * draw.uniform(0.5, 1.4)
        messages = {
            "nickname": f"learner {number}" if number else "<img src=x onerror=alert(1)>",
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "solved": [id for id in exercises[:done] if draw.random() < 0.9],
            "hints": {id: draw.randint(1, 3) for id in exercises[: done + 1] if draw.random() < 0.3},
            "predictions": {f"03-{letter}": draw.choice(["right", "close", "off"]) for letter in "abc"},
            "minutes": {name: draw.uniform(1, 25) for name in been},
            "section": {"name": been[-1], "minutes": draw.uniform(0, 14)},
            "runs": {
                "03-one-process": {"workers": 1, "rows/s": rate},
                "03-torch": {"workers": 2, "rows/s": rate * 1.3, "speed-up": draw.uniform(0.8, 1.7)},
            },
            "doctor": ["Java"] if number % 9 == 4 else [],
        }
        (place / f"{number:016x}.json").write_text(json.dumps(messages))
    (place / f"{98:016x}.json").write_text("[" * 50_000)
    (place / f"{99:016x}.json").symlink_to("/etc/passwd")
    with (place / f"{100:016x}.json").open("wb") as file:
        file.truncate(1 << 30)
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
