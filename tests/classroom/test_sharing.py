"""What a learner shares with a class: nothing before joining, then one small file; no cell waits for it."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from course.classroom import __main__ as command
from course.classroom import ask, attendance, join, sharing, show
from course.exercises import hint, kept, predict
from labkit.errors import BadInput, LabError
from labkit.runs import RunRecord
from labkit.settings import CHECKOUT
from labs import runs, until

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def place(tmp_path, home):
    (tmp_path / "class").mkdir()
    return tmp_path / "class"


def shared(place):
    (path,) = place.iterdir()
    return json.loads(path.read_text())


def test_nothing_is_shared_before_joining(home, place):
    predict("03-a", 2)
    assert "nothing is shared" in repr(show())
    assert not list(place.iterdir()) and not (home / "class.json").exists()


def test_what_is_shared_is_what_is_shown(home, place):
    predict("03-a", 2)
    hint("03-2"), hint("03-2")
    runs = {
        "03-one-process": {"workers": 1, "rows/s": 100.0},
        "03-torch": {"workers": 2, "rows/s": 150.0},
        "03b-two": {"workers": 2, "rows/s": 150.0},
    }
    kept.update(lambda content: content.update(runs=runs, doctor=["Java"], later={"path": "/private"}))
    shown = join(str(place), "ann")
    content = shared(place)
    assert json.loads(shown.content) | {"at": 0} == content | {"at": 0}
    assert content["nickname"] == "ann" and content["hints"] == {"03-2": 2} and content["doctor"] == ["Java"]
    assert content["predictions"] == {"03-a": "open"}  # not the guess
    assert content["runs"] == runs
    text = json.dumps(content)
    assert "private" not in text and str(home) not in text
    (file,) = place.iterdir()
    assert file.stat().st_mode & 0o777 == 0o644 and file.stat().st_size < 2000
    assert (home / "class.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["  ", "a\nb", "x" * 41, None])
def test_a_nickname_is_short_and_printable(home, place, name):
    with pytest.raises(BadInput, match="nickname"):
        join(str(place), name)
    assert not list(place.iterdir()) and not (home / "class.json").exists()


@pytest.mark.parametrize("where", ["none", "file", "ftp://host/class", "https://key:secret@host/bucket"])
def test_a_place_that_cannot_be_used(home, place, where):
    (place / "file").touch()
    with pytest.raises(LabError):
        join(where if "://" in where else str(place / where), "ann")
    assert not (place / "none").exists() and not (home / "class.json").exists()


def test_to_leave_deletes_what_was_shared(home, place, capsys):
    assert command.main(["join", str(place), "--as", "ann"]) == 0
    assert '"nickname": "ann"' in capsys.readouterr().out
    assert command.main(["leave"]) == 0
    assert not list(place.iterdir()) and not (home / "class.json").exists()
    command.main(["leave"])
    command.main(["show"])
    assert capsys.readouterr().out.count("no class") == 2
    assert command.main(["join", str(place / "none"), "--as", "ann"]) == 2


def test_to_ask_for_help_and_to_take_it_back(home, place, capsys):
    assert command.main(["ask"]) == 2  # in no class
    assert "join PLACE" in capsys.readouterr().err
    join(str(place), "ann")
    assert shared(place)["asks"] is False
    command.main(["ask"])
    assert shared(place)["asks"] is True
    assert json.loads(show().content)["asks"] is True
    command.main(["ask", "--done"])
    assert shared(place)["asks"] is False
    command.main(["ask"])
    join(str(place), "ann")
    assert shared(place)["asks"] is False  # who joins again asks for nothing


def test_who_asks_while_the_file_is_being_shared_stays_in_the_class(home, place, monkeypatch):
    predict("03-a", 2)
    join(str(place), "ann")
    before = sharing._member()
    ask()  # the process that shares has read class.json before
    sharing._share_change(before, 0)
    assert shared(place)["asks"] is True


def test_to_join_another_class_leaves_the_first(place, tmp_path):
    (tmp_path / "other").mkdir()
    join(str(place), "ann")
    join(str(tmp_path / "other"), "../../<b>ann</b>")  # a name leads nowhere
    assert not list(place.iterdir()) and shared(tmp_path / "other")["nickname"] == "../../<b>ann</b>"


NOTEBOOK = """
import json, os, pathlib, psutil, sys, time
from IPython.core.interactiveshell import InteractiveShell
from course import classroom
from course.classroom import attendance, plan

attendance._PAUSE = 0.2
attendance._doctors_topics = lambda: ["Java"]
place = pathlib.Path(sys.argv[1])
shell = InteractiveShell.instance()
classroom.join(str(place), "ann")
(file,) = place.iterdir()

def wait(true):
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end, repr(classroom.show())
        time.sleep(0.05)

# Another user puts a link in place of the file: it is replaced, and not written through.
victim = place.parent / "victim"
victim.write_text("mine")
file.unlink()
file.symlink_to(victim)
cells = [source for source, section in plan.read().cells.items() if section == "03 The loop you have"]
run = lambda source: shell.run_cell(source, silent=False, store_history=True)
said = lambda: json.loads(file.read_text())
run("from course.exercises import predict; predict('03-a', 2)")
wait(lambda: not file.is_symlink())
assert victim.read_text() == "mine"
wait(lambda: said()["predictions"] == {"03-a": "open"} and said()["doctor"] == ["Java"])
assert said()["runs"] == {"03-torch": {"workers": 2, "rows/s": 150.0}}

# Minutes go to the section of the cell, even if it fails.
run(cells[0]); time.sleep(1.3); run(cells[1])
wait(lambda: said()["minutes"].get("03 The loop you have", 0) > 0)
assert said()["section"]["name"] == "03 The loop you have"

# The share is gone: cells go on, nothing is printed, and `show` says it.
place.rename(place.parent / "elsewhere")  # at once: the process that shares may be writing into it
print("gone", flush=True)
run("predict('03-b', 2)")
wait(lambda: "last try failed" in repr(classroom.show()))
assert not place.exists()
print("fine", *(child.pid for child in psutil.Process().children()), flush=True)
os._exit(0)  # killed: nothing is cleared up
"""


def test_cells_after_a_class_are_counted_for_no_other(home, tmp_path):
    counted = []
    at_work = attendance._Attendance(counted.append, tmp_path)
    at_work._cells.append(("1 + 1", 1000.0))
    at_work._ended = 900.0
    at_work._count()  # the class was left
    assert not at_work._cells and not at_work._ended and not counted


def test_in_a_notebook(place, home, tmp_path):
    fields = {"run_id": "a", "engine": "x", "state": "finished", "started_at": datetime.now(UTC).isoformat()}
    for name, rate in (("03-torch", 150.0), ("my-secret", 1.0), ("2026-01-client", 1.0)):
        RunRecord(name=name, workers=2, rows_per_second=rate, **fields).write(home / "runs" / name / "a")
    code = tmp_path / "cells.py"
    code.write_text(NOTEBOOK)
    (tmp_path / "select.py").write_text("raise SystemExit('a file of the learner')")
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, "-P", str(code), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout.partition("gone")[2].split()
    assert printed[:-1] == ["03-b", "·", "you", "say", "2", "fine"]
    until(lambda: not runs(int(printed[-1])))  # the process that shares ends with its kernel
