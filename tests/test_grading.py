"""Assignments for nbgrader, and the table of what a class has solved."""

import csv
import io
import json
import re

import nbformat
import pytest

import build
import lesson
from course.classroom import __main__ as command
from course.classroom import grading
from course.exercises import lessons

pytestmark = [pytest.mark.slow, pytest.mark.covers("course/classroom/")]


LESSONS = [path for path in build.sources() if path.stem != "tour"]  # which has no exercises
GOOD = {
    "format": 1,
    "solved": {"00-1": "2026-01-01", "03-2": "2026-01-02"},
    "predictions": {"00-a": {"guess": 0.1, "verdict": "right"}, "00-b": {"guess": 0.5, "verdict": "far"}},
}
# What a file has, and what is wrong with it.
BROKEN = {
    "half": (json.dumps(GOOD)[:50], "Expecting|Unterminated|delimiter"),
    "list": ("[1, 2]", "not an exercises.json"),
    "deep": ("[" * 100_000, "recursion"),
    "later": (json.dumps({**GOOD, "format": 2}), "not an exercises.json"),
    "odd": (json.dumps({**GOOD, "predictions": {"00-a": "right"}}), "not an exercises.json"),
    "bytes": ("\xff\xfe\0", "codec"),
    "large": ("[" + "1," * 600_000 + "1]", "1,200,003 bytes"),
}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    folder = tmp_path_factory.mktemp("course")
    assert command.main(["grade", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("source", LESSONS, ids=lambda path: path.stem)
def test_an_assignment_has_what_nbgrader_asks_for(source, course):
    """Its rules, as of nbgrader 0.9.6: all fields, ids that occur once, points where there is a grade."""
    made = nbformat.read(course / "source" / source.stem / f"{source.stem}.ipynb", as_version=4)
    marked = {cell.metadata.nbgrader.grade_id: cell for cell in made.cells if "nbgrader" in cell.metadata}
    assert len(marked) == sum("nbgrader" in cell.metadata for cell in made.cells)
    number = lesson.number(source)
    wanted = [exercise.id for each in lessons() if each.number == number for exercise in each.exercises]
    # In the order of the lesson, which its checks need not have.
    assert sorted(marked) == sorted(name for id in wanted for name in (f"{id}-answer", id))
    for name, cell in marked.items():
        asked = name in wanted
        fields = {"schema_version": 3, "grade_id": name, "task": False}
        fields |= {"grade": asked, "locked": asked, "solution": not asked}
        if asked:
            fields["points"] = 1
        assert cell.metadata.nbgrader == fields
        assert f'check("{name}"' in cell.source if asked else cell.source.count("### BEGIN SOLUTION") == 1
    assert sum("### END SOLUTION" in cell.source for cell in made.cells) == len(wanted)


def test_without_the_solutions_it_is_the_learners_notebook(course):
    made = nbformat.read(course / "source" / "03_torch_trainer" / "03_torch_trainer.ipynb", as_version=4)
    learners = nbformat.read(build.FOLDER / "03_torch_trainer.ipynb", as_version=4)
    kept = [cell.source.partition("\n### BEGIN SOLUTION")[0] for cell in made.cells]
    assert kept == [build.additions.deeper(cell.source) for cell in learners.cells]


def test_settings_that_a_teacher_changed_are_kept(course):
    config = course / "nbgrader_config.py"
    compile(config.read_text(), config, "exec")
    config.write_text("c = get_config()\n")
    assert not any("config" in path.name for path in grading.write(course))
    assert config.read_text() == "c = get_config()\n"


def test_each_learner_gets_a_row_and_a_broken_file_says_what_is_wrong(tmp_path, capsys):
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / "exercises.json").write_text(json.dumps(GOOD))
    files = {
        "ben": json.dumps({"format": 1, "solved": {}, "predictions": {}}),
        "more": json.dumps({**GOOD, "solved": {"00-1": "", "99-1": ""}}),
        "=1+1": json.dumps(GOOD),
    }
    for name, (text, _) in BROKEN.items():
        files[name] = text
    for name, text in files.items():
        (tmp_path / f"{name}.json").write_text(text, encoding="latin-1")
    (tmp_path / "link.json").symlink_to("/etc/passwd")
    assert command.main(["results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    rows = {row["learner"]: row for row in csv.DictReader(io.StringIO(out))}
    assert len(rows) == 12
    exercises = {exercise.id for each in lessons() for exercise in each.exercises}
    assert exercises < rows["anna"].keys()
    anna = rows["anna"]
    assert (anna["00-1"], anna["03-2"], anna["00-3"]) == ("1", "1", "0")
    assert (anna["solved"], anna["predictions"], anna["right"], anna["problem"]) == ("2", "2", "1", "")
    assert rows["ben"]["solved"] == "0" and not rows["ben"]["problem"]
    assert rows["more"]["solved"] == "1" and rows["more"]["problem"] == "unknown exercises: 1"
    for name, (_, problem) in {**BROKEN, "link": ("", "not a plain file")}.items():
        assert re.search(problem, rows[name]["problem"]) and rows[name]["solved"] == "0", rows[name]
    assert not any(line.startswith("=") for line in out.splitlines())
    assert "root:" not in out


def test_a_folder_without_files_is_an_error(tmp_path, capsys):
    assert command.main(["results", str(tmp_path)]) == 2
    assert "fix: python -m course.classroom results" in capsys.readouterr().err
