"""The board of a class: what it shows; and files from strangers, which are named, never followed or run."""

import json
import os
import re
import time
from html import unescape

import pytest

from course import classroom
from course.classroom import plan
from course.exercises import kept

SECTION = "03 Exchange while you compute"
STRANGER = "c" * 16 + ".json"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A class of ann and bob."""
    (tmp_path / "class").mkdir()
    for name in ("ann", "bob"):
        monkeypatch.setenv("LABKIT_HOME", str(tmp_path / name))
        kept.keep("solved", "03-1", "then")
        kept.keep("hints", "03-2", 2)
        kept.keep("predictions", "03-a", {"guess": 1, "verdict": "right"})
        since = time.time() - 1200
        kept.keep("minutes", SECTION, {"minutes": 19.5, "from": since, "to": since + 60})
        classroom.join(str(tmp_path / "class"), name)
    return tmp_path / "class"


def honest(place, **changes):
    """What a file says, with some of it changed."""
    (path, *_) = sorted(path for path in place.glob("*.json") if path.name != STRANGER)
    return json.loads(path.read_text()) | changes


def page(place, **options):
    return classroom.board(str(place), place.parent / "board.html", once=True, **options).read_text()


def rows(text, heading):
    """The cells of the table below a heading, without its head."""
    section = text.partition(f"<h2>{heading}")[2].partition("<h2>")[0]
    lines = re.findall("(?s)<tr>(.*?)</tr>", section)[1:]
    cells = [re.findall("(?s)<td[^>]*>(.*?)</td>", line) for line in lines]
    return [[unescape(re.sub("<[^>]*>", "", cell)) for cell in line] for line in cells]


def test_a_copy_of_a_lesson_is_no_lesson(tmp_path):
    cells = [{"cell_type": "markdown", "source": ["# 03 · Train\n", "### Exercise 03-1 · Count"]}]
    for name in ("03_train", "03_train-Copy1", "03_train.mine-2026"):
        (tmp_path / f"{name}.ipynb").write_text(json.dumps({"cells": cells}))
    assert plan.read(tmp_path).exercises == ["03-1"]


def test_it_shows_the_class(place):
    runs = {"03-torch": {"workers": 2, "rows/s": 18_300.0}}
    cho = honest(place, nickname="cho", solved=["03-1", "03-2"], runs=runs, doctor=["Java"])
    cho["section"]["minutes"] = 3
    (place / STRANGER).write_text(json.dumps(cho))
    text = page(place)
    stuck = sorted(row[:3] for row in rows(text, "In one section"))
    assert stuck == [["ann", SECTION, "20 min"], ["bob", SECTION, "20 min"]]
    assert [row[0] for row in rows(page(place, stuck=2), "In one section")][2:] == ["cho"]
    assert not rows(page(place, stuck=25), "In one section")
    heat = rows(text, "Exercises")
    assert heat[0][3:5] == ["✓", "2"] and heat[2][3:5] == ["✓", "✓2"]  # after 03-4 and 03-5
    assert heat[0][-2:] == ["1 of 1", "now"] and heat[3][:5] == ["solved by", "0", "0", "3", "1"]
    (minutes,) = rows(text, "Minutes in a section")
    assert minutes == [SECTION, "19.5", "19.5", "3"]
    assert rows(text, "Rows per second")[0][:5] == ["03-torch", "1", "18,300", "18,300", "18,300"]
    assert rows(text, "What the doctor would fix") == [["cho", "Java"]]
    assert not rows(text, "Files that are not read")
    assert not re.search("(src|href)=", text)  # it needs no other file


def test_it_shows_who_asks_for_help(place):
    older = honest(place, nickname="cho")
    del older["asks"]
    (place / STRANGER).write_text(json.dumps(older))
    classroom.ask()  # bob was the last to join
    names = [row[0] for row in rows(page(place), "Exercises")]
    assert names == ["ann", "bob asks for help", "cho", "solved by"]
    classroom.ask(done=True)
    assert "asks for help" not in page(place)
    (place / STRANGER).write_text(json.dumps(honest(place, asks="<b>please</b>")))
    assert rows(page(place), "Files that are not read")[0][0] == STRANGER


@pytest.mark.parametrize(
    "name, shown",
    [
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("a\x00\x1b[31m\u202eb\nc", "a [31m b c"),
        ("", "(no name)"),
    ],
)
def test_a_nickname_is_a_text(place, name, shown):
    strange = {"<b>x</b>": {"rows/s": 1.0}}
    (place / STRANGER).write_text(json.dumps(honest(place, nickname=name, runs=strange)))
    text = page(place)
    assert sorted(row[0] for row in rows(text, "Exercises")) == sorted(["ann", "bob", shown, "solved by"])
    assert text.count("<script>") == 1 and "<img" not in text and "<b>" not in text


def test_learners_with_the_same_nickname_are_told_apart(place):
    for number in range(3):
        (place / f"{number:016x}.json").write_text(json.dumps(honest(place, nickname="Cho")))
    names = [row[0] for row in rows(page(place), "Exercises")]
    assert len(names) == 6 and "Cho · 0000" in names and "ann" in names


def spoil(path, kind):
    """What a stranger may put there: half a file, wrong types, another file's name, a gigabyte."""
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(sorted(path.parent.glob("*.json"))[0])
    elif kind == "a gigabyte":
        with path.open("wb") as file:
            file.truncate(1 << 30)
    elif isinstance(kind, dict):
        path.write_text(json.dumps(honest(path.parent, **kind)))
    else:
        path.write_bytes(kind)


@pytest.mark.parametrize(
    "kind, why",
    [
        (b'{"nickname": "x", "solv', ""),
        (b"\xff\xfe", ""),
        (b"[" * 60_000, ""),
        ({"nickname": 3}, ""),
        ({"solved": [f"{n}" for n in range(301)]}, ""),
        ({"minutes": {SECTION: float("nan")}}, ""),
        ("a gigabyte", "more than 64 KiB"),
        ("link", "symbolic link"),
        ("FIFO", "Expecting value"),
    ],
    ids=str,
)
def test_a_file_of_a_stranger_is_named_and_the_others_stay(place, kind, why):
    (place / "notes.txt").write_text("x")  # no file of a learner, and none that is named
    spoil(place / STRANGER, kind)
    text = page(place)
    ((name, reason),) = rows(text, "Files that are not read")
    assert name == STRANGER and reason and why in reason
    assert [row[0] for row in rows(text, "Exercises")] == ["ann", "bob", "solved by"]
