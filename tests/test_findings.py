"""The scripts of findings/: pinned public packages, and none of this project's code. No test runs them."""

import os
import re
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "findings"
OF_NO_IMPORTANCE = {"2.4.6", "2.3.3"}  # of NumPy and pandas: pinned, and not what a finding is about
SCRIPTS = sorted(FOLDER.glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_finding_is_a_script_that_compares_what_it_sees(script):
    text = script.read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    (install,) = re.findall(r"install --quiet (.+)", text)
    assert all(re.fullmatch(r'"?[\w-]+(\[\w+\])?==[\d.]+"?', package) for package in install.split()), install
    head = text[: text.index("set -euo pipefail")]
    for version in re.findall(r"==([\d.]+\d)", install):
        assert version in head or version in OF_NO_IMPORTANCE, f"the head doesn't state {version}"
    assert re.search(r"\d{4}-\d\d-\d\d", head) and "# What works: " in head
    assert text.rstrip().endswith("diff expected.txt seen.txt")
    assert "labkit" not in text.lower() and "index-url" not in text
