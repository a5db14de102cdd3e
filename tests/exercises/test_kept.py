"""What a reader has done is kept in exercises.json: nothing of it is lost, whatever happens to the file."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from course.exercises import checking, hint, kept, progress_table, reveal

pytestmark = pytest.mark.slow


@pytest.fixture
def path(home, monkeypatch):
    monkeypatch.setattr(checking, "_hints_given", {})  # those of other tests
    return home / "exercises.json"


def content(path):
    return json.loads(path.read_text())


def test_a_read_that_fails_once_loses_nothing(path, monkeypatch):
    kept.keep("solved", "03-1", "then")
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        stale = OSError(errno.ESTALE, "Stale file handle")
        reads = iter([stale])  # the first one fails, as on a network drive
        original = Path.read_bytes

        def read_bytes(self):
            for error in reads:
                raise error
            return original(self)

        patch.setattr(Path, "read_bytes", read_bytes)
        warning = kept.keep("hints", "03-2", 1)
    assert "not kept" in warning and "Stale file handle" in warning and path.read_bytes() == before
    assert kept.keep("hints", "03-2", 1) == ""
    assert content(path)["solved"] == {"03-1": "then"} and not path.with_suffix(".unreadable").exists()


def test_sections_of_a_later_version_stay(path):
    later = {"format": 2, "solved": {}, "badges": {"03": ["gold"]}}
    path.write_text(json.dumps(later))
    kept.keep("solved", "03-1", "then")
    assert content(path) == later | {"solved": {"03-1": "then"}}


def test_a_file_of_version_0_1_0_is_read(path):
    old = Path(__file__).with_name("exercises_0.1.0.json").read_text()
    path.write_text(old)
    table = repr(progress_table())
    assert "1 of 2" in table and "0 of 1" in table
    reveal("00-b", "both")
    hint("03-3")
    written = content(path)
    assert written.pop("predictions")["00-b"] == {"guess": "both", "answer": "both", "verdict": "right"}
    assert written["hints"] == {"03-3": 2}  # more than the one that was given now
    assert all(written[section] == json.loads(old)[section] for section in ("format", "solved", "minutes"))


@pytest.mark.parametrize("text", ["", '{"solved": [1]}', "[" * 100_000, "\xff"])
def test_a_damaged_file_is_moved_aside(path, text):
    path.write_text(text, encoding="latin-1")
    assert "0 of 4" in repr(progress_table())
    assert kept.keep("solved", "03-1", "then") == "" and content(path)["solved"] == {"03-1": "then"}
    assert path.with_suffix(".unreadable").read_text(encoding="latin-1") == text


def test_an_entry_of_a_wrong_type_counts_as_none(path):
    path.write_text(json.dumps({"hints": {"03-1": "two", "03-2": 1}, "predictions": {"03-a": 3}}))
    reveal("03-a", 1)
    hint("03-1")
    assert content(path)["hints"] == {"03-1": 1, "03-2": 1}


def test_a_class_whose_package_is_gone_costs_no_verdict(path, monkeypatch):
    (path.parent / "class.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "course.classroom.attendance", None)
    assert hint("03-1").state == "hint 1 of 3" and content(path)["hints"] == {"03-1": 1}


KERNEL = """
from course.classroom import attendance, plan
from course.exercises import kept

plan.read = lambda notebooks: plan.Plan(cells={"cell": "03 A section"})
attendance = attendance._Attendance(kept.update, None)
for number in range(31):
    attendance._cells.append(("cell", 60.0 * (number + 1)))
    for _ in range(20):  # the others may have the file for too long
        if not kept.update(lambda content: attendance._add({}, content)):
            break
"""


def test_minutes_of_several_kernels_are_added_up(path):
    kernels = [subprocess.Popen([sys.executable, "-c", KERNEL]) for _ in range(3)]
    assert [kernel.wait(timeout=250) for kernel in kernels] == [0, 0, 0]
    assert content(path)["minutes"]["03 A section"]["minutes"] == 90
