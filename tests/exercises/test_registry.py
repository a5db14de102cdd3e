"""The checks are loaded by path. That they run on workers too is in test_checks_elsewhere."""

import pytest

import labs
from course.exercises import registry

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("cwd", ["notebooks/solutions", "."])
def test_an_installed_labkit_finds_the_checks_next_to_the_notebooks(site, folder, cwd, monkeypatch):
    (folder / "lessons" / "checks" / "lesson_draft.py").write_text("raise OSError")
    monkeypatch.chdir(folder / cwd)
    code = "from course.exercises import check, lessons; print(len(lessons()), check('03-1', ...).state)"
    assert labs.python(code, PYTHONPATH=str(site)).stdout == f"{len(registry.lessons())} not attempted\n"


def test_without_the_checks_the_error_says_what_to_do(site, tmp_path, monkeypatch):
    (tmp_path / "lessons" / "checks").mkdir(parents=True)  # in a folder above, which anybody may have made
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    shown = labs.python("from course.exercises import check; check('03-1', 7)", PYTHONPATH=str(site)).stdout
    assert "find the checks" in shown and "fix: open the notebook in a checkout" in shown
