"""The command line, each time as a process of its own: that is how it is used."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.local.lab import Lab

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path):
    def _run(*arguments: str, stdout: int = subprocess.PIPE, **env: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "labkit", *arguments]
        variables = {**os.environ, "LABKIT_HOME": str(tmp_path / "home"), **env}
        options = {"env": variables, "cwd": tmp_path, "text": True, "errors": "replace", "timeout": 200}
        return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, **options)

    return _run


def test_doctor_prints_a_line_for_each_topic_and_a_verdict(run, tmp_path):
    done = run("doctor")
    lines = done.stdout.splitlines()
    assert [line for line in lines if "Python: " in line][0].startswith("[OK]")
    assert "lessons" in lines[-1]
    assert done.returncode == int("cannot" in lines[-1])
    assert done.stderr == ""
    assert run("home").stdout == f"{tmp_path / 'home'}\n"


def test_a_wrong_setting_is_a_finding_of_the_doctor_and_three_lines_of_all_others(run):
    done = run("doctor", LABKIT_GPU="perhaps")
    assert done.returncode == 1
    assert "[FIX] settings" in done.stdout and "object store" in done.stdout  # it goes on looking
    done = run("stop", LABKIT_DATASET="imagenet")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 3 and "LABKIT_DATASET" in done.stderr


def test_a_pipe_whose_reader_has_gone_ends_a_command_in_silence(run):
    readable, writable = os.pipe()
    os.close(readable)
    done = run("home", stdout=writable)
    os.close(writable)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_doctor_says_no_secret_also_on_a_terminal_that_is_not_utf_8(run, tmp_path):
    keys = {"LABKIT_S3_ACCESS_KEY": "aKeyToLookFor", "LABKIT_S3_SECRET_KEY": "sEcretToLookFor"}
    other = {"PYTHONIOENCODING": "ascii", "LABKIT_HOME": str(tmp_path / "müller…")}
    done = run("doctor", LABKIT_S3_ENDPOINT="http://127.0.0.1:9", **keys, **other)
    assert "ToLookFor" not in done.stdout and done.stderr == ""
    assert "lessons" in done.stdout.splitlines()[-1]
    assert not list(tmp_path.iterdir())  # and leaves nothing behind


@pytest.mark.parametrize("in_use", [False, True])
def test_stop_stops_what_the_lab_started_and_warns_the_open_notebook(run, tmp_path, in_use):
    lab = Lab(tmp_path / "home")
    started = lab.start(["sleep", "60"], group="one", log=tmp_path / "log")
    if in_use:
        lab.use("one")  # this process is the notebook
    try:
        done = run("stop")
        assert done.returncode == 0
        first, *more = done.stdout.splitlines()
        assert first == f"stopped one: sleep (process {started.pid})"
        assert ["using its one: run the cell again" in line for line in more] == [True] * in_use
        assert not lab.running()
    finally:
        lab.stop()


def test_stop_without_a_lab_names_its_home_and_the_labs_that_run(run, tmp_path):
    other = tmp_path / "another home"
    Lab(other).start(["sleep", "60"], group="one", log=tmp_path / "log")
    try:
        done = run("stop", LABKIT_HOME="home")
        assert done.returncode == 0
        first, *more = done.stdout.splitlines()
        assert first == f"nothing of the lab in {tmp_path / 'home'} is running here"
        (line,) = [line for line in more if str(other) in line]
        assert not (tmp_path / "home").exists()
        stopped = subprocess.run(line.partition("stop that one: ")[2], shell=True, capture_output=True)
        assert b"stopped one: sleep" in stopped.stdout  # the fix works when it is pasted
    finally:
        Lab(other).stop()
