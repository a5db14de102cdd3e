"""The board of a class: what it shows; and files from strangers, which are named, never followed or run."""

import json
import os
import re
import threading
from html import unescape

import pytest

from labkit import classroom
from labkit.classroom import kept
from labkit.errors import LabError

SECTION = "03 The loop you know"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A class of ann and bob."""
    (tmp_path / "class").mkdir()
    for name in ("ann", "bob"):
        monkeypatch.setenv("LABKIT_HOME", str(tmp_path / name))
        kept.keep("solved", "03-1", "then")
        kept.keep("hints", "03-2", 2)
        kept.keep("predictions", "03-a", {"guess": 1, "verdict": "right"})
        kept.keep("minutes", SECTION, {"minutes": 12.5, "from": 0, "to": 1200})
        classroom.join(str(tmp_path / "class"), name)
    return tmp_path / "class"


def honest(place, **changes):
    """What a file says, with some of it changed."""
    (path, *_) = sorted(place.glob("*.json"))
    return json.loads(path.read_text()) | changes


def page(place, **options):
    return classroom.board(str(place), place.parent / "board.html", once=True, **options).read_text()


def rows(text, heading):
    """The cells of the table below a heading, without its head."""
    section = text.partition(f"<h2>{heading}")[2].partition("<h2>")[0]
    lines = re.findall("<tr>(.*?)</tr>", section)[1:]
    cells = [re.findall("<td>(.*?)</td>", line) for line in lines]
    return [[unescape(re.sub("<[^>]*>", "", cell)) for cell in line] for line in cells]


def test_it_shows_the_class(place):
    for path in place.glob("*.json"):  # whatever the doctor says of this machine
        path.write_text(json.dumps(json.loads(path.read_text()) | {"doctor": []}))
    runs = {"03-torch": {"workers": 2, "rows/s": 18_300.0, "speed-up": 1.25}}
    cho = honest(place, nickname="cho", solved=["03-1", "03-2"], runs=runs, doctor=["Java"])
    cho["section"]["minutes"] = 3
    (place / "c.json").write_text(json.dumps(cho))
    text = page(place)
    stuck = sorted(row[:3] for row in rows(text, "In one section"))
    assert stuck == [["ann", SECTION, "20 min"], ["bob", SECTION, "20 min"]]
    assert [row[0] for row in rows(page(place, stuck=2), "In one section")][2:] == ["cho"]
    assert not rows(page(place, stuck=25), "In one section")
    heat = rows(text, "Exercises")
    assert heat[0][:4] == ["ann", "✓", "2", ""] and heat[2][:4] == ["cho", "✓", "✓2", ""]
    assert heat[0][-2:] == ["1 of 1", "now"] and heat[3][:4] == ["solved by", "3", "1", "0"]
    (minutes,) = rows(text, "Minutes in a section")
    assert minutes[0] == SECTION and minutes[2:] == ["12.5, over the plan", "12.5", "3"]
    assert rows(text, "Rows per second")[0][:5] == ["03-torch", "1", "18.3 k", "18.3 k", "18.3 k"]
    assert rows(text, "Speed-up")[0][:5] == ["03-torch", "1", "1.25", "1.25", "1.25"]
    assert rows(text, "What the doctor would fix") == [["cho", "Java"]]
    assert not rows(text, "Files that are not read")
    assert not re.search("(src|href)=", text)  # it needs no other file


@pytest.mark.parametrize(
    "name, shown",
    [
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ('"><img src=x onerror=alert(1)>', '"><img src=x onerror=alert(1)>'),
        ("a\x00\x1b[31m\u202eb\nc", "a [31m b c"),
        ("\ud800x", "x"),
        ("", "(no name)"),
        ("x" * 10_000, "x" * 39 + "…"),
    ],
)
def test_a_nickname_is_a_text(place, name, shown):
    (place / "c.json").write_text(json.dumps(honest(place, nickname=name)))
    text = page(place)
    names = [row[0] for row in rows(text, "Exercises")]
    assert sorted(names) == sorted(["ann", "bob", shown, "solved by"])
    assert text.count("<script>") == 1 and "<img" not in text


def test_thirty_with_the_same_nickname_are_thirty(place):
    for number in range(30):
        (place / f"{number:02}abcdef.json").write_text(
            json.dumps(honest(place, nickname="Cho" if number else "cho"))
        )
    names = [row[0] for row in rows(page(place), "Exercises")]
    assert len(set(names)) == 33 and "cho · 00ab…" in names and "Cho · 29ab…" in names and "ann" in names


SPOILT = {
    "empty": b"",
    "half": b'{"nickname": "x", "solv',
    "not UTF-8": b"\xff\xfe",
    "nested": b"[" * 60_000,
    "a list": b"[]",
    "one key": b'{"nickname": "x"}',
    "a huge number": b"9" * 60_000,
    "a long one": b'{"nickname": "' + b"x" * 70_000 + b'"}',
}


@pytest.mark.parametrize("content", SPOILT.values(), ids=SPOILT)
def test_a_spoilt_file_is_named(place, content):
    (place / "c.json").write_bytes(content)
    assert_refused(place)


@pytest.mark.parametrize(
    "changes",
    [
        {"nickname": 3},
        {"at": "yesterday"},
        {"solved": {"03-1": 1}},
        {"solved": [f"{n}" for n in range(301)]},
        {"hints": {"03-1": True}},
        {"hints": {"03-1": -1}},
        {"minutes": {SECTION: float("nan")}},
        {"minutes": {SECTION: 10**300}},
        {"predictions": {"03-a": ["right"]}},
        {"section": {"name": SECTION, "minutes": None}},
        {"runs": {"03-torch": {"rows/s": "many"}}},
        {"doctor": "Java"},
    ],
    ids=str,
)
def test_wrong_types_and_figures_are_named(place, changes):
    (place / "c.json").write_text(json.dumps(honest(place, **changes)))
    assert_refused(place)


def test_a_file_of_a_gigabyte_is_not_read(place):
    with (place / "c.json").open("wb") as file:
        file.truncate(1 << 30)
    assert "66 kB" in assert_refused(place)


@pytest.mark.parametrize("kind", ["link", "link to a device", "broken link", "FIFO", "folder"])
def test_only_files_are_opened(place, tmp_path, kind):
    path, other = place / "c.json", tmp_path / "other.json"
    other.write_text(json.dumps(honest(place, nickname="other")))
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(
            {"link": other, "link to a device": "/dev/zero", "broken link": tmp_path / "none"}[kind]
        )
    why = assert_refused(place)
    assert ("link" if "link" in kind else "regular") in why


def test_a_file_that_changes_while_it_is_read(place):
    content, over = json.dumps(honest(place, nickname="cho")).encode(), threading.Event()

    def change():
        while not over.is_set():
            (place / "c.json").write_bytes(content)  # not atomically

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(50):
            names = {row[0] for row in rows(page(place), "Exercises")}
            assert {"ann", "bob"} <= names <= {"ann", "bob", "cho", "solved by"}
    finally:
        over.set()
        thread.join()


def test_names_that_nobody_knows(place):
    strange = {"<b>x</b>": {"rows/s": 1.0, "<i>y</i>": 2.0}}
    said = honest(place, nickname="cho", solved=["99-9", "<b>"], minutes={"<b>x</b>": 3}, runs=strange)
    (place / "c.json").write_text(json.dumps(said))
    (place / "notes.txt").write_text("x")
    (place / ".part-abc.json").write_text("x")
    text = page(place)
    assert "<b>x</b>" not in text and rows(text, "Rows per second")[0][0] == "<b>x</b>"
    assert len(rows(text, "Minutes in a section")) == 1 and not rows(text, "Files that are not read")


def test_more_files_than_a_class_has(place):
    for number in range(600):
        (place / f"z{number:04}.json").write_text("{}")
    refused = rows(page(place), "Files that are not read")
    assert len(refused) == 499 and "102 more files" in refused[-1][1]


def test_a_place_that_is_not_there(tmp_path):
    with pytest.raises(LabError, match="No such file"):
        classroom.board(str(tmp_path / "none"), tmp_path / "board.html", once=True)


def assert_refused(place):
    """c.json is named with a reason, which is returned, and the others' rows stay."""
    text = page(place)
    ((name, why),) = rows(text, "Files that are not read")
    assert name == "c.json" and why
    assert [row[0] for row in rows(text, "Exercises")] == ["ann", "bob", "solved by"]
    return why
