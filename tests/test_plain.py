"""The scripts in notebooks/plain: what a lesson does, without the lab, on two cores and in short time."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.local import java
from labs import processes_of, wait_until_nothing_lives

pytestmark = [pytest.mark.slow, pytest.mark.covers("course/datasets/", "datasets/")]


FOLDER = Path(__file__).resolve().parent.parent / "notebooks" / "plain"
SCRIPTS = sorted(FOLDER.glob("*.py"))
_SECONDS = 900  # of a script that hangs; lesson 11 once took 231 in CI, and takes 115 on a busy machine


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_has_no_lab_in_it(script):
    text = script.read_text()
    assert not re.search(r"LABKIT|^\s*(import|from) (labkit|benchmarks)", text, re.MULTILINE)
    assert 20 <= len(text.splitlines()) <= 80
    assert (FOLDER.parent.parent / "lessons" / script.name).exists(), "it has the name of its lesson"
    assert ast.get_docstring(ast.parse(text)), "its docstring says what it does"


@pytest.mark.notebook
@pytest.mark.timeout(_SECONDS + 60)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_runs_and_leaves_nothing(script, tmp_path):
    environment = {k: v for k, v in os.environ.items() if not re.match("LABKIT_|RAY_|PYTHONPATH", k)}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "TMPDIR": "/tmp", "HOME": str(tmp_path)}
    environment["LABKIT_HOME"] = str(tmp_path)  # by which its processes are found
    environment["JAVA_HOME"] = str(java.home(tmp_path / "java"))
    cores = sorted(os.sched_getaffinity(0))[:2]
    try:
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),  # noqa: PLW1509  before any thread
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        assert ran.stdout.strip(), "it prints what came out"
        wait_until_nothing_lives(tmp_path, 120)
    finally:
        for process in processes_of(tmp_path):
            process.kill()


@pytest.mark.notebook
@pytest.mark.timeout(_SECONDS)
def test_a_late_failure_of_one_rank_prints_no_accuracy(tmp_path):
    """TorchDistributor in local mode returns the value of a rank that has one."""
    text = (FOLDER / "07_torch_distributor.py").read_text()
    text = text.replace("Path(__file__).resolve().parents[2]", f"Path({str(FOLDER.parents[1])!r})")
    failing = text.replace("    dist.barrier()", "    assert rank != 1, 'a bad row'\n    dist.barrier()")
    assert failing != text
    script = tmp_path / "failing.py"
    script.write_text(failing)
    environment = os.environ | {"JAVA_HOME": str(java.home(tmp_path / "java"))}
    ran = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert ran.returncode != 0 and "a bad row" in ran.stdout + ran.stderr
    assert "accuracy on" not in ran.stdout
