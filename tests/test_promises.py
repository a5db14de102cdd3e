"""The table in tests/README.md: each test that it names is there, in the tier that it says."""

import re
from pathlib import Path

import pytest

from tests import tiers

FOLDER = Path(__file__).resolve().parent
ROWS = re.findall(r"(?m)^\| ([A-Z`].+\.) \| (.*)\| (.*)\|$", (FOLDER / "README.md").read_text())
MODULES = {path.stem.removeprefix("test_"): path.read_text() for path in FOLDER.rglob("test_*.py")}


@pytest.mark.parametrize("promise, fast, deep", ROWS, ids=[row[0] for row in ROWS])
def test_a_promise_has_its_tests(promise, fast, deep):
    assert fast.strip() or deep.strip()
    for cell, is_deep in ((fast, False), (deep, True)):
        for name in re.findall(r"`(\w+)`", cell):
            places = [module for module, text in MODULES.items() if f"\ndef {name}(" in text]
            assert places, f"there is no {name}"
            assert is_deep in {tiers.is_deep(module, name) for module in places}, f"{name}: another tier"


def test_the_table_is_read():
    assert len(ROWS) >= 15
