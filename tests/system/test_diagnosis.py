"""The doctor: each thing that can be wrong is found, named, and comes with what fixes it."""

from pathlib import Path
from types import SimpleNamespace

import pytest

import labs
from labkit import machine
from labkit.local import doctor as diagnosis
from labkit.local.doctor import Diagnosis, Finding, doctor
from labkit.settings import Settings

pytestmark = pytest.mark.slow


GB = 1_000_000_000
GOOD, BAD = Finding("cores", True, "2"), Finding("Chromium", False, "none", "apt-get install <chromium>")
WORSE = Finding("disk", False, "full", "rm", blocking=True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def look(home, monkeypatch):
    """look(topic, memory=…): what the doctor finds on a machine where these facts are so; None: no line."""

    def _look(topic: str, *, place: Path = home, use_gpu: bool = True, **facts) -> Finding | None:
        for name, value in facts.items():
            monkeypatch.setattr(machine, name, lambda *_, value=value: value)
        findings = doctor(Settings(home=place, use_gpu=use_gpu)).findings
        return next((finding for finding in findings if finding.topic == topic), None)

    return _look


def test_a_diagnosis_in_words_and_as_a_table():
    assert repr(Diagnosis((GOOD,))) == "[OK]  cores: 2\nAll lessons can run here."
    lines = str(Diagnosis((GOOD, BAD))).splitlines()
    assert lines[1:3] == ["[FIX] Chromium: none", "      apt-get install <chromium>"]
    assert Diagnosis((GOOD, BAD)).ok and not Diagnosis((GOOD, WORSE)).ok  # what blocks a lesson fails
    html = Diagnosis((GOOD, BAD))._repr_html_()
    assert "[OK]" in html and "[FIX]" in html  # words, not colour alone
    assert "&lt;chromium&gt;" in html and "<chromium>" not in html


MEMORY = 16 * GB, 8 * GB


@pytest.mark.parametrize(
    ("topic", "facts", "ok", "blocking"),
    [
        ("machine", {"cores": 2.0, "memory": MEMORY}, True, False),
        ("machine", {"cores": 1.0, "memory": MEMORY}, False, False),
        ("machine", {"cores": 2.0, "memory": (8 * GB, 1 * GB)}, False, False),
        ("machine", {"cores": 2.0, "memory": (2 * GB, 1 * GB)}, False, True),
        ("shared memory", {"shared_memory": 8 * GB}, True, False),
        ("GPU", {"gpus": ()}, True, False),
    ],
)
def test_what_a_machine_has(look, topic, facts, ok, blocking):
    finding = look(topic, **facts)
    assert finding.ok == ok and (finding.ok or finding.blocking == blocking)


def test_shared_memory_of_a_default_container(look):
    finding = look("shared memory", shared_memory=64_000_000)
    assert not finding.ok and "--shm-size" in finding.fix
    assert look("shared memory", shared_memory=None) is None  # macOS has none


@pytest.mark.parametrize(
    ("free", "total", "ok"),
    [(50 * GB, 100 * GB, True), (1 * GB, 10 * GB, False), (40 * GB, 1000 * GB, False), (0, 0, True)],
)
def test_disk(look, monkeypatch, free, total, ok):
    usage = SimpleNamespace(total=total, free=free)
    monkeypatch.setattr(diagnosis.shutil, "disk_usage", lambda _: usage)
    finding = look("home")
    assert finding.ok == ok and Diagnosis((finding,)).ok == ok


@pytest.mark.parametrize("build, ok", [("2.13.0+cpu", False), ("2.13.0", True)])
def test_a_gpu_and_the_build_of_torch(look, monkeypatch, build, ok):
    monkeypatch.setattr(diagnosis, "_version", lambda name: build)
    finding = look("GPU", gpus=("H200",) * 2)
    assert finding.ok == ok and "2 × H200" in finding.text
    finding = look("GPU", use_gpu=False)  # LABKIT_GPU=0, one of the two fixes
    assert finding.ok and "not used" in finding.text


def test_packages(look, monkeypatch):
    assert {"ray", "torch", "jupyterlab", "pyspark", "psutil"} <= set(diagnosis._required())
    assert "pytest" not in diagnosis._required()
    monkeypatch.setattr(diagnosis, "_required", lambda: ["ray", "no-such-package"])
    finding = look("packages")
    assert finding.blocking and finding.text == "missing: no-such-package"


@pytest.mark.parametrize("place", ["file", "file/below", "/etc", "/etc/lab"])
def test_a_home_that_cannot_be_used_and_nobody_is_told_to_own_what_is_not_the_labs(
    look, tmp_path, monkeypatch, place
):
    (tmp_path / "file").touch()
    access = diagnosis.os.access  # root may write anywhere, so one folder is closed to it here
    monkeypatch.setattr(diagnosis.os, "access", lambda path, mode: str(path) != "/etc" and access(path, mode))
    finding = look("home", place=tmp_path / place)
    assert finding.blocking and not finding.ok
    assert finding.fix.startswith("export LABKIT_HOME=")


def test_a_misspelled_setting_is_found(look, monkeypatch):
    monkeypatch.setenv("LABKIT_WORKER", "3")
    monkeypatch.setenv("LABKIT_GROUP", "misspelled")  # the lab sets it itself
    finding = look("settings")
    assert not finding.ok and not finding.blocking
    assert "no setting LABKIT_WORKER" in finding.text and "docs/settings.md" in finding.fix


# A variable, a value that does harm, and one that does not, if there is one.
OTHERS = """
RAY_TRAIN_V2_ENABLED | 0 | 1
KERAS_BACKEND | torch | tensorflow
RANK | 0 |
WORLD_SIZE | 4 |
LOCAL_RANK | 0 |
TF_CONFIG | {} |
GLOO_SOCKET_IFNAME | eth-of-a-tutorial | lo
"""


@pytest.mark.parametrize("row", OTHERS.strip().splitlines())
def test_a_variable_of_another_tutorial_is_found_and_one_that_does_no_harm_is_not(look, monkeypatch, row):
    name, wrong, right = (cell.strip() for cell in row.split("|"))
    monkeypatch.setenv(name, wrong)
    finding = look("variables")
    assert f"{name} is set" in finding.text and finding.fix == f"unset {name}"
    assert finding.blocking == (name == "RAY_TRAIN_V2_ENABLED")
    if right:
        monkeypatch.setenv(name, right)
        assert look("variables") is None
    monkeypatch.delenv(name)  # the fix
    assert look("variables") is None


def test_a_folder_for_temporary_files_that_does_not_fit(look, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", "/tmp")
    assert look("temporary files") is None
    long = "x" * 60
    (tmp_path / long).mkdir()
    for folder, fact in ((long, "leave room"), ("gone", "is not the whole path")):
        monkeypatch.setenv("TMPDIR", str(tmp_path / folder))
        finding = look("temporary files")
        assert fact in finding.text and "export TMPDIR=" in finding.fix and not finding.blocking


def test_looking_loads_nothing_heavy_and_makes_nothing(home):
    code = """
import sys
from labkit.local.doctor import doctor
print(doctor())
print(*sorted({name.partition('.')[0] for name in sys.modules}))
"""
    loaded = labs.python(code, LABKIT_HOME=str(home)).stdout.splitlines()[-1]
    heavy = {"ray", "torch", "tensorflow", "pyspark", "pandas", "numpy", "IPython"}
    assert "sys" in loaded.split() and not heavy & set(loaded.split())
    assert not home.exists()
