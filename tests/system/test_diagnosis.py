"""The doctor: each thing that can be wrong is found, named, and comes with what mends it."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from labkit import machine
from labkit.settings import Settings
from labkit.system import diagnosis, doctor
from labkit.system.diagnosis import Diagnosis, Finding
from labkit.system.process_registry import ProcessRegistry

GROUP = f"doctor-{os.getpid()}"  # no other test may stop its processes
GB = 1_000_000_000
GOOD, BAD = Finding("cores", True, "2"), Finding("Chromium", False, "none", "apt-get install <chromium>")
WORSE = Finding("disk", False, "full", "rm", blocking=True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def look(home, monkeypatch):
    """look(topic, memory=…): what the doctor finds on a machine where these facts are so."""

    def _look(topic: str, **facts) -> Finding:
        for name, value in facts.items():
            monkeypatch.setattr(machine, name, lambda *_, value=value: value)
        findings = [f for f in doctor(Settings(home=home)).findings if f.topic == topic]
        assert len(findings) == 1
        return findings[0]

    return _look


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A checkout that the doctor takes for its own."""
    monkeypatch.setattr(diagnosis, "CHECKOUT", tmp_path)
    return tmp_path


def test_a_diagnosis_in_words():
    assert str(Diagnosis((GOOD,))) == "[OK]  cores: 2\nAll lessons can run here."
    lines = str(Diagnosis((GOOD, BAD))).splitlines()
    assert lines[1:3] == ["[FIX] Chromium: none", "      apt-get install <chromium>"]
    assert lines[-1] == "All lessons can run here; 1 line could be better."


def test_only_what_blocks_a_lesson_fails():
    assert Diagnosis((GOOD, BAD)).ok
    assert not Diagnosis((GOOD, WORSE)).ok
    assert "cannot" in Diagnosis((WORSE,)).verdict


def test_a_diagnosis_as_a_table():
    html = Diagnosis((GOOD, BAD))._repr_html_()
    assert html.count("<tr>") == 3  # its head, too
    assert "[OK]" in html and "[FIX]" in html  # words, not colour alone
    assert "&lt;chromium&gt;" in html and "<chromium>" not in html


def test_every_fix_is_said():
    for finding in doctor().findings:
        assert finding.text
        assert finding.ok or finding.fix


def test_few_cores_are_no_reason_to_stop(look):
    assert look("cores", cores=2.0).ok
    finding = look("cores", cores=1.0)
    assert (finding.ok, finding.blocking) == (False, False)


@pytest.mark.parametrize(
    ("memory", "ok", "stops"),
    [((16 * GB, 8 * GB), True, False), ((8 * GB, 1 * GB), False, False), ((2 * GB, 1 * GB), False, True)],
)
def test_memory(look, memory, ok, stops):
    finding = look("memory", memory=memory)
    assert finding.ok == ok
    assert Diagnosis((finding,)).ok != stops


def test_shared_memory_of_a_default_container(look):
    assert look("shared memory", shared_memory=8 * GB).ok
    finding = look("shared memory", shared_memory=64_000_000)
    assert not finding.ok
    assert "--shm-size" in finding.fix


def test_no_shared_memory_on_macos(monkeypatch):
    monkeypatch.setattr(machine, "shared_memory", lambda: None)
    assert "shared memory" not in {finding.topic for finding in doctor().findings}


@pytest.mark.parametrize(
    ("free", "total", "ok"),
    [(50 * GB, 100 * GB, True), (1 * GB, 10 * GB, False), (40 * GB, 1000 * GB, False)],
)
def test_disk(look, monkeypatch, free, total, ok):
    usage = type(diagnosis.shutil.disk_usage("/"))(total, total - free, free)
    monkeypatch.setattr(diagnosis.shutil, "disk_usage", lambda _: usage)
    finding = look("disk")
    assert finding.ok == ok
    assert Diagnosis((finding,)).ok == ok


def test_gpus(look, monkeypatch):
    assert look("GPU", gpus=[]).ok
    monkeypatch.setattr(diagnosis, "_version", lambda name, local=False: "2.13.0+cpu" if local else "2.13.0")
    finding = look("GPU", gpus=["H200"] * 2)
    assert not finding.ok
    assert "2 × H200" in finding.text
    monkeypatch.setattr(diagnosis, "_version", lambda name, local=False: "2.13.0")
    assert look("GPU", gpus=["H200"]).ok


def test_ports_in_use_are_no_fault(look):
    finding = look("ports", port_is_free=True)
    assert finding.ok and "in use" not in finding.text


def test_no_loopback_is_one(look):
    finding = look("ports", port_is_free=False)
    assert not finding.ok and finding.blocking


def test_another_version_than_the_tested_one(look, checkout):
    (checkout / "constraints.txt").write_text("# pins\npsutil==0.0.1\nnot-installed==1.0\n")
    finding = look("packages")
    assert not finding.ok and not finding.blocking
    assert f"psutil {metadata.version('psutil')} (tested: 0.0.1)" in finding.text


def test_versions_as_tested_whatever_the_build(look, checkout):
    torch = metadata.version("torch").partition("+")[0]
    (checkout / "constraints.txt").write_text(f"torch=={torch}\n")
    assert look("packages") == Finding("packages", True, "1 packages, all in the tested versions")


def test_without_a_checkout_there_is_nothing_to_compare(look, checkout):
    assert look("packages").ok


def test_a_missing_package_blocks(look, monkeypatch):
    monkeypatch.setattr(diagnosis, "_required", lambda: ["ray", "no-such-package"])
    monkeypatch.setattr(diagnosis, "_pins", lambda path: {})
    finding = look("packages")
    assert finding.blocking and not finding.ok
    assert finding.text == "missing: no-such-package"


def test_required_are_the_packages_of_the_lessons():
    assert {"ray", "torch", "jupyterlab"} <= set(diagnosis._required())
    assert "pytest" not in diagnosis._required()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nope", "/etc", "/etc/lab", "x" * 300])
def test_a_home_that_cannot_be_used_and_nobody_is_told_to_own_what_is_not_the_labs(
    tmp_path, monkeypatch, place
):
    (tmp_path / "file").touch()
    access = diagnosis.os.access  # root may write anywhere, so one folder is closed to it here
    monkeypatch.setattr(diagnosis.os, "access", lambda path, mode: str(path) != "/etc" and access(path, mode))
    findings = doctor(Settings(home=tmp_path / place)).findings
    (finding,) = [finding for finding in findings if finding.topic == "folders"]
    assert finding.blocking and not finding.ok
    assert finding.fix.startswith("export LABKIT_HOME=")
    assert not any(word in finding.fix for word in ("chown", "chmod", "sudo"))


def test_a_checkout_that_several_people_share_is_fine(look, checkout, monkeypatch):
    (checkout / "notebooks").mkdir()
    monkeypatch.setattr(diagnosis.os, "access", lambda path, mode: Path(path).name != "notebooks")
    finding = look("folders")
    assert finding.ok
    assert "save your copies" in finding.text


@pytest.mark.parametrize(("no_proxy", "ok"), [("", False), ("127.0.0.1,localhost", True), ("*", True)])
def test_a_proxy_is_said_and_its_password_is_not(look, monkeypatch, no_proxy, ok):
    monkeypatch.setenv("http_proxy", "http://me:secret@proxy.example:8080")
    monkeypatch.setenv("no_proxy", no_proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    finding = look("proxy")
    assert (finding.ok, finding.blocking) == (ok, False)
    assert "http_proxy" in finding.text and "secret" not in str(finding)


def test_a_misspelled_setting_is_found(look, monkeypatch):
    monkeypatch.setenv("LABKIT_WORKER", "3")
    monkeypatch.setenv("LABKIT_GROUP", "one")  # the lab sets it itself
    finding = look("settings")
    assert not finding.ok and not finding.blocking
    assert "did you mean LABKIT_WORKERS?" in finding.text


def test_leftovers_are_labs_whose_notebook_is_gone(look, home, tmp_path):
    registry = ProcessRegistry(home)
    assert look("leftovers").text == "none; no lab is running"
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    registry.start(sleep, role="sleeper", group_id=GROUP, log=tmp_path / "log")
    try:
        finding = look("leftovers")
        assert not finding.ok and not finding.blocking
        assert finding.fix == "python -m labkit stop"
        registry.acquire(GROUP)
        assert look("leftovers").text == "none; 1 lab running"
    finally:
        registry.stop_all()
    assert look("leftovers").text == "none; no lab is running"


def test_looking_loads_nothing_heavy_and_makes_nothing(home, monkeypatch):
    code = """
import sys
from labkit.system import doctor
print(doctor())
print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)
"""
    monkeypatch.setenv("LABKIT_HOME", str(home))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"ray", "torch", "tensorflow", "pyspark", "pandas", "numpy", "IPython"}
    assert not heavy & set(done.stderr.split())
    assert not home.exists()
