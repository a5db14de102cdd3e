"""The command line, each time as a process of its own: that is how it is used."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from labkit.system.process_registry import ProcessRegistry

GROUP = f"cli-{os.getpid()}"  # no other test may stop its processes
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def run(tmp_path: Path):
    def _run(*arguments: str, **env: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "labkit", *arguments]
        variables = {**os.environ, "LABKIT_HOME": str(tmp_path / "home"), **env}
        return subprocess.run(
            command, env=variables, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=60
        )

    return _run


def test_doctor_prints_a_line_for_each_topic_and_a_verdict(run, tmp_path):
    done = run("doctor")
    lines = done.stdout.splitlines()
    assert [line for line in lines if "Python: " in line][0].startswith("[OK]")
    assert "lessons" in lines[-1]
    assert done.returncode == int("cannot" in lines[-1])
    assert done.stderr == ""
    assert run("home").stdout == f"{tmp_path / 'home'}\n"


def test_doctor_fails_where_a_lesson_could_not_run(run):
    done = run("doctor", LABKIT_GPU="perhaps")
    assert done.returncode == 1
    assert "[FIX] settings" in done.stdout and "leftovers" in done.stdout  # it goes on looking


def test_doctor_says_no_secret(run, tmp_path):
    done = run(
        "doctor",
        LABKIT_S3_ENDPOINT="http://127.0.0.1:9",
        LABKIT_S3_ACCESS_KEY="aKeyToLookFor",
        LABKIT_S3_SECRET_KEY="sEcretToLookFor",
    )
    assert "ToLookFor" not in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())  # and leaves nothing behind


@pytest.mark.parametrize("in_use", [False, True])
def test_stop_stops_what_is_recorded_and_nothing_else_and_warns_the_open_notebook(run, tmp_path, in_use):
    registry = ProcessRegistry(tmp_path / "home")
    ours = registry.start(SLEEP, role="a sleeper", group_id=GROUP, log=tmp_path / "log")
    threading.Thread(target=ours.wait, daemon=True).start()  # a parent that waits: no zombie is left
    other = subprocess.Popen(SLEEP, start_new_session=True)
    if in_use:
        registry.acquire(GROUP)  # this process is the notebook
    try:
        done = run("stop")
        assert done.returncode == 0
        first, *more = done.stdout.splitlines()
        assert first == f"stopped a sleeper (process {ours.pid})"
        assert ["restart its kernel" in line for line in more] == [True] * in_use
        assert ours.wait(timeout=5) != 0
        assert other.poll() is None
        assert registry.records() == []
    finally:
        other.kill()
        other.wait()
        registry.stop_all()


def test_stop_without_a_lab_says_so(run, tmp_path):
    done = run("stop")
    assert (done.returncode, done.stdout) == (0, "nothing of this lab is running\n")
    assert not list(tmp_path.iterdir())


def test_a_wrong_setting_is_three_lines_and_no_traceback(run):
    done = run("stop", LABKIT_DATASET="imagenet")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 3
    assert "LABKIT_DATASET" in done.stderr


def test_doctor_on_a_terminal_that_is_not_utf_8(run, tmp_path):
    done = run("doctor", PYTHONIOENCODING="ascii", LABKIT_HOME=str(tmp_path / "müller…"))
    assert done.stderr == ""
    assert "lessons" in done.stdout.splitlines()[-1]
