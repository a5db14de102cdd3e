"""The checks are loaded by path. That they run on workers too is in test_checks_elsewhere."""

import subprocess
import sys

import pytest

from course.exercises import registry

pytestmark = pytest.mark.slow


def run(code, *, site, cwd):
    """Run code in a process that can't import anything of this checkout."""
    environment = {"PYTHONPATH": str(site), "LABKIT_HOME": str(site.parent / "home"), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, timeout=250)


@pytest.mark.parametrize("cwd", ["notebooks/solutions", "."])
def test_an_installed_labkit_finds_the_checks_next_to_the_notebooks(site, folder, cwd):
    (folder / "lessons" / "checks" / "lesson_draft.py").write_text("raise OSError")
    code = "from course.exercises import check, lessons; print(len(lessons()), check('03-1', ...).state)"
    done = run(code, site=site, cwd=folder / cwd)
    assert done.stdout.decode() == f"{len(registry.lessons())} not attempted\n", done.stderr.decode()


def test_without_the_checks_the_error_says_what_to_do(site, tmp_path):
    (tmp_path / "lessons" / "checks").mkdir(parents=True)  # in a folder above, which anybody may have made
    (tmp_path / "work").mkdir()
    done = run("from course.exercises import check; check('03-1', 7)", site=site, cwd=tmp_path / "work")
    assert b"find the checks" in done.stderr and b"fix: open the notebook in a checkout" in done.stderr
