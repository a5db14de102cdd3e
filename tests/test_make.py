"""The make targets, with a stand-in for the environment's Python that notes what it is asked to do."""

import os
import re
import shutil
import subprocess
import sys

import pytest

STAND_IN = """#!/bin/sh
echo "$*" >> "$LOG"
case "$*" in
    "-m ruff check"*) exit ${RUFF_STATUS:-0} ;;
    "-m tests"*)
        echo "home $LABKIT_HOME" >> "$LOG"
        echo "== 1 passed in 0.1s =="
        exit ${PYTEST_STATUS:-0} ;;
    "-m labkit home") echo /their/home ;;
    "-m jupyterlab"*)
        echo "config $JUPYTER_CONFIG_PATH" >> "$LOG"
        echo "tabs $JUPYTERLAB_WORKSPACES_DIR" >> "$LOG" ;;
    "-m pip list"*) printf 'zope==1\\nTorch==2.13.0+cpu\\nabc==2.0\\n' ;;
esac
"""


@pytest.fixture
def make(root, tmp_path):
    """make(target, …) in a copy of the frame; returns (result, what Python was asked to do)."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(root / name, tmp_path)
    python, log = tmp_path / ".venv" / "bin" / "python", tmp_path / "log"

    def _make(*arguments: str, **env: str) -> tuple[subprocess.CompletedProcess, list[str]]:
        log.unlink(missing_ok=True)
        # Not the options of a make that this test may itself be run by.
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
        }
        done = subprocess.run(
            ["make", *arguments],
            cwd=tmp_path,
            env={**variables, "LOG": str(log), **env},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done, log.read_text().splitlines() if log.exists() else []

    _make.python = python
    return _make


@pytest.fixture
def made(make):
    """The same, with an environment that is there already."""
    make.python.parent.mkdir(parents=True)
    make.python.write_text(STAND_IN)
    make.python.chmod(0o755)
    make("setup")
    return make


def test_setup_installs_once_and_again_when_a_pin_changes(made, tmp_path):
    done, asked = made("setup")
    assert (done.returncode, asked) == (0, [])
    (tmp_path / "constraints.txt").touch()
    _, asked = made("setup")
    assert asked == ["-m pip install --constraint constraints.txt --editable .[dev,recipes]"]


def test_setup_says_which_python_it_needs(make, tmp_path):
    old = tmp_path / "old"
    old.mkdir()
    (old / "python3").write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.2 || exit 1\n')
    (old / "python3").chmod(0o755)
    for tool in ("make", "id", "sh"):
        (old / tool).symlink_to(shutil.which(tool))
    done, _ = make("setup", PATH=str(old))
    assert done.returncode != 0
    assert "Python 3.11 or 3.12, and python3 is Python 3.9.2" in done.stdout
    assert "PYTHON=" in done.stdout


def test_an_empty_environment_name_is_refused(make):
    done, asked = make("setup", "VENV=")
    assert done.returncode != 0 and not asked
    assert "VENV is empty" in done.stderr


def test_test_runs_the_cheap_first_and_stops_the_lab_last(made, tmp_path):
    done, asked = made("test", "TEST_ARGS=-k some")
    assert done.returncode == 0
    assert asked == [
        "-m ruff check .",
        "-m ruff format --check .",
        "tools/build.py --check",
        "-m tests --durations=10 -k some",
        f"home {tmp_path}/.labkit/test",
        "-m labkit stop",
    ]
    assert "1 passed in" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("make test: all passed after")


def test_test_stops_the_lab_after_a_failure_too(made):
    done, asked = made("test", PYTEST_STATUS="3")
    assert done.returncode != 0
    assert asked[-1] == "-m labkit stop"
    assert "FAILED with status 3 after" in done.stdout.splitlines()[-1]


def test_test_ends_where_lint_fails(made):
    done, asked = made("test", RUFF_STATUS="1")
    assert done.returncode != 0
    assert asked == ["-m ruff check .", "-m labkit stop"]


def test_lab_builds_what_is_stale_and_opens_the_first_lesson(made, tmp_path):
    done, asked = made("lab", "LAB_ARGS=--no-browser --port 8890", JUPYTER_CONFIG_PATH="/theirs")
    assert done.returncode == 0
    build, _, lab, config, tabs = asked
    assert build == "tools/build.py --stale"
    assert lab.startswith("-m jupyterlab ")
    assert "/lab/tree/notebooks/00_welcome.ipynb" in lab
    assert lab.endswith("--no-browser --port 8890")
    assert not {"token", "password", "--ip", "ServerApp.ip"} & set(lab.replace("=", " ").split())
    assert config == f"config {tmp_path}/.jupyter:/theirs"
    assert tabs == "tabs /their/home/workspaces"  # a shared checkout may be read-only


def test_constraints_name_no_build_of_one_machine(made, tmp_path):
    done, asked = made("constraints")
    assert done.returncode == 0
    assert (tmp_path / "constraints.txt").read_text().splitlines()[1:] == [
        "abc==2.0",
        "Torch==2.13.0",
        "zope==1",
    ]
    assert asked[-1] == "-m pip check"
    assert made("setup")[1] == []  # what was just written down need not be installed


def test_bench_runs_what_is_asked_for(made):
    assert made("bench", "BENCH_ARGS=reporting --repeat 2")[1] == ["-m benchmarks reporting --repeat 2"]


def test_clean_keeps_runs_and_answers(made, tmp_path):
    kept = [tmp_path / ".labkit" / "solved.json", tmp_path / "notebooks" / "00_welcome.ipynb", made.python]
    gone = [
        tmp_path / "artefacts",
        tmp_path / "labkit" / "__pycache__",
        tmp_path / "notebooks" / ".ipynb_checkpoints",
    ]
    for folder in gone:
        folder.mkdir(parents=True)
    for file in kept:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    done, _ = made("clean")
    assert done.returncode == 0
    assert all(file.exists() for file in kept)
    assert not any(folder.exists() for folder in gone)


def test_every_target_is_listed(make):
    done, _ = make()
    assert done.returncode == 0
    for target in ("setup", "lab", "test", "notebooks", "lint", "bench", "clean", "constraints"):
        assert f"make {target} " in done.stdout


# --- what conftest.py adds to pytest --------------------------------------------------------------------

CASES = """
import os, pytest
@pytest.mark.browser
def test_browser(chromium): pass
def test_skip(): pytest.skip("because")
@pytest.mark.fault
def test_fault(): assert os.environ["LABKIT_SMALL"] == "1"
def test_unit(): pass
@pytest.mark.gpu
def test_gpu(): pytest.skip("no GPU")
"""


@pytest.fixture
def pytest_run(root, tmp_path):
    """pytest on `CASES` with the frame's conftest, with or without a browser, in CI or not."""
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "bin").mkdir()

    def _run(*arguments: str, ci: bool, browser: bool) -> subprocess.CompletedProcess:
        if browser:
            (tmp_path / "bin" / "chromium").write_text("#!/bin/sh\n")
            (tmp_path / "bin" / "chromium").chmod(0o755)
        command = [sys.executable, "-m", "pytest", "-p", "conftest", "-v", "-c", root / "pyproject.toml"]
        env = {
            **os.environ,
            "CI": "true" if ci else "",
            "PATH": str(tmp_path / "bin"),
            "PYTHONPATH": str(root),
        }
        return subprocess.run(
            [*map(str, command), f"--rootdir={tmp_path}", "-p", "no:cacheprovider", *arguments, "."],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return _run


def test_units_come_first_and_the_browser_last(pytest_run):
    done = pytest_run(ci=False, browser=True)
    lines = [line.split("::")[1].split()[0] for line in done.stdout.splitlines() if "%]" in line]
    assert lines == ["test_skip", "test_unit", "test_gpu", "test_fault", "test_browser"]
    assert "3 passed, 2 skipped" in done.stdout


def test_at_home_a_missing_browser_skips(pytest_run):
    assert "2 passed, 3 skipped" in pytest_run(ci=False, browser=False).stdout


@pytest.mark.parametrize("lanes", ["0", "2"])
def test_in_ci_a_missing_browser_fails_at_once(pytest_run, lanes):
    done = pytest_run("-n", lanes, ci=True, browser=False)
    assert done.returncode != 0
    assert "no Chromium for the browser tests" in done.stdout + done.stderr
    assert "passed" not in done.stdout


def test_in_ci_only_a_gpu_may_be_missing(pytest_run):
    assert "1 failed, 3 passed, 1 skipped" in pytest_run(ci=True, browser=True).stdout


def test_a_module_stays_in_one_lane_and_lessons_do_not(pytest_run, tmp_path):
    """What shares a fixture shares a process; each lesson is a thing of its own."""
    case = """
import pytest
@pytest.fixture(scope="module", params=[f"solutions/0{k}" for k in range(6)])
def run(request): return request.param
def test_runs(run): pass
def test_is_quiet(run): pass
"""
    (tmp_path / "test_notebooks.py").write_text(case)
    (tmp_path / "test_module.py").write_text("\n".join(f"def test_{k}(): pass" for k in range(12)))
    done = pytest_run("-n", "2", "--no-loadscope-reorder", ci=False, browser=True)
    lanes: dict[str, set[str]] = {}
    for lane, name in re.findall(r"^\[(gw\d)\].*PASSED (\S+)", done.stdout, re.MULTILINE):
        module, _, test = name.partition("::")
        lanes.setdefault(test.partition("[")[2] or module, set()).add(lane)
    assert len(lanes) == 8 and all(len(lane) == 1 for lane in lanes.values()), done.stdout
    lessons = set.union(*(lane for one, lane in lanes.items() if one.startswith("solutions")))
    assert lessons == {"gw0", "gw1"}
