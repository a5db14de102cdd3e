"""The make targets, with a stand-in for the environment's Python that notes what it is asked to do."""

import os
import shutil
import subprocess

import pytest

from labs import program

STAND_IN = """
echo "$*" >> "$LOG"
case "$*" in
    "-m ruff check"*) exit ${RUFF_STATUS:-0} ;;
    "-m tests"*)
        echo "home $LABKIT_HOME" >> "$LOG"
        exit ${PYTEST_STATUS:-0} ;;
    "-m labkit home") echo /their/home ;;
    "-m jupyterlab"*)
        echo "config $JUPYTER_CONFIG_PATH" >> "$LOG"
        echo "tabs $JUPYTERLAB_WORKSPACES_DIR" >> "$LOG" ;;
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
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
        variables |= {"LOG": str(log), **env}
        done = subprocess.run(
            ["make", *arguments], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60
        )
        return done, log.read_text().splitlines() if log.exists() else []

    _make.python = python
    return _make


@pytest.fixture
def made(make):
    """The same, with an environment that is there already."""
    make.python.parent.mkdir(parents=True)
    program(make.python, STAND_IN)
    make("setup")
    return make


def test_setup_installs_once_and_again_when_a_pin_changes(made, tmp_path):
    assert made("setup")[1] == []
    (tmp_path / "constraints.txt").touch()
    assert made("setup")[1] == ["tools/install.py"]


@pytest.mark.parametrize("target, tier", [("test", "test"), ("test-all", "all"), ("test-touched", "touched")])
def test_test_runs_lint_and_the_tests_of_a_home_of_their_own(made, tmp_path, target, tier):
    done, asked = made(target, "TEST_ARGS=-k some")
    assert asked[0] == "-m ruff check ."
    assert asked[-3:] == [
        f"-m tests --tier {tier} -k some",
        f"home {tmp_path}/.labkit/test",
        "-m labkit stop",
    ]
    assert done.stdout.splitlines()[-1].startswith(f"make {target}: all passed after")


def test_what_fails_is_told_and_the_lab_is_stopped_all_the_same(made):
    done, asked = made("test", PYTEST_STATUS="3")
    assert done.returncode != 0 and asked[-1] == "-m labkit stop"
    assert "FAILED with status 3 after" in done.stdout.splitlines()[-1]
    done, asked = made("test", RUFF_STATUS="1")
    assert done.returncode != 0 and asked == ["-m ruff check .", "-m labkit stop"]


def test_lab_builds_what_is_stale_and_opens_the_tour(made, tmp_path):
    done, asked = made("lab", "LAB_ARGS=--no-browser --port 8890", JUPYTER_CONFIG_PATH="/theirs")
    assert done.returncode == 0
    build, _, lab, config, tabs = asked
    assert build == "tools/build.py --stale"
    assert lab.startswith("-m jupyterlab ")
    assert "/lab/tree/notebooks/tour.ipynb" in lab
    assert lab.endswith("--no-browser --port 8890")
    assert not {"token", "password", "--ip", "ServerApp.ip"} & set(lab.replace("=", " ").split())
    assert config == f"config {tmp_path}/.jupyter:/theirs"
    assert tabs == "tabs /their/home/workspaces"  # a shared checkout may be read-only


def test_clean_keeps_runs_and_answers(made, tmp_path):
    kept = [tmp_path / ".labkit" / "solved.json", tmp_path / "notebooks" / "00_welcome.ipynb", made.python]
    gone = [tmp_path / name for name in ("artefacts", "labkit/__pycache__", "notebooks/.ipynb_checkpoints")]
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
    for target in ("setup", "lab", "test", "test-all", "notebooks", "lint", "clean", "constraints", "next"):
        assert f"make {target} " in done.stdout


@pytest.mark.parametrize(
    "uv, message", [(True, "uv venv --seed --python 3.12 .venv"), (False, "fix: install uv")]
)
def test_without_a_python_that_fits_uv_makes_one_or_is_named_first(make, tmp_path, uv, message):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "id", "echo", "rm", "make"):
        (tools / name).symlink_to(shutil.which(name))
    program(tools / "python3", 'echo "Python 3.9.2"; exit 1')
    if uv:
        program(tools / "uv", 'echo "uv $*"')
    done, _ = make(".venv/bin/python", PATH=str(tools))
    assert message in done.stdout
    assert (done.returncode == 0) == uv
