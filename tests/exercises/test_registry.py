"""The checks are loaded by path. That they run on workers too is in test_checks_elsewhere."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import labkit
from labkit.exercises import registry
from labkit.settings import CHECKOUT


@pytest.fixture
def site(tmp_path):
    """labkit as a wheel installs it: without the lessons."""
    shutil.copytree(Path(labkit.__file__).parent, tmp_path / "site" / "labkit")
    return tmp_path / "site"


@pytest.fixture
def folder(tmp_path):
    """What a teacher gave: notebooks, and the checks next to them."""
    shutil.copytree(CHECKOUT / "lessons" / "checks", tmp_path / "given" / "lessons" / "checks")
    (tmp_path / "given" / "lessons" / "checks" / "lesson_draft.py").write_text("raise OSError")
    (tmp_path / "given" / "notebooks" / "solutions").mkdir(parents=True)
    return tmp_path / "given"


def run(code, *, site, cwd):
    """Run code in a process that can't import anything of this checkout."""
    environment = {"PYTHONPATH": str(site), "LABKIT_HOME": str(site.parent / "home"), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, timeout=250)


def test_no_check_is_left_in_sys_modules():
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    assert registry.load("03").__file__ not in loaded


@pytest.mark.parametrize("cwd", ["notebooks/solutions", "."])
def test_an_installed_labkit_finds_the_checks_next_to_the_notebooks(site, folder, cwd):
    code = "from labkit.exercises import check, lessons; print(len(lessons()), check('03-1', ...).state)"
    done = run(code, site=site, cwd=folder / cwd)
    assert done.stdout.decode() == f"{len(registry.lessons())} not attempted\n", done.stderr.decode()


def test_without_the_checks_the_error_says_what_to_do(site, tmp_path):
    (tmp_path / "lessons" / "checks").mkdir(parents=True)  # in a folder above, which anybody may have made
    (tmp_path / "work").mkdir()
    done = run("from labkit.exercises import check; check('03-1', 7)", site=site, cwd=tmp_path / "work")
    assert b"find the checks" in done.stderr and b"fix: open the notebook in a checkout" in done.stderr
