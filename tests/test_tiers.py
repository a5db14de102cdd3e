"""The tiers of tests: what `make test` leaves out, and which deep tests a change or a promise asks for."""

import re
from pathlib import Path

import pytest

from tests import tiers

TESTS = Path(__file__).resolve().parent
MODULES = {path.stem.removeprefix("test_"): path.read_text() for path in TESTS.rglob("test_*.py")}
PROMISES = re.findall(r"(?m)^\| ([A-Z`].+\.) \| (.*)\| (.*)\|$", (TESTS / "README.md").read_text())


@pytest.mark.parametrize("promise, fast, deep", PROMISES, ids=[row[0] for row in PROMISES])
def test_a_promise_has_its_tests_in_the_tiers_that_the_table_names(promise, fast, deep):
    assert len(PROMISES) >= 15  # the table is read
    assert fast.strip() or deep.strip()
    for cell, is_deep in ((fast, False), (deep, True)):
        for name in re.findall(r"`(\w+)`", cell):
            places = [module for module, text in MODULES.items() if f"\ndef {name}(" in text]
            assert places, f"there is no {name}"
            assert is_deep in {tiers.is_deep(module, name) for module in places}, f"{name}: another tier"


def test_the_tables_name_modules_that_are_there():
    assert set() == tiers.SLOW - MODULES.keys()
    assert tiers.DEEP.keys() - MODULES.keys() == set()
    named = {module for modules in tiers.TOUCHED.values() for module in modules} - {"*"}
    assert named == tiers.DEEP.keys()  # each deep test can be reached from a change


def test_what_stays_of_a_deep_module_is_there():
    for module, kept in tiers.DEEP.items():
        for name in kept:
            assert re.search(rf"(?m)^(def )?{name}", MODULES[module]), f"{module} has no {name}"
            assert not tiers.is_deep(module, name)

    for prefix in tiers.TOUCHED:
        assert list(tiers.ROOT.glob(f"{prefix}*")) or (tiers.ROOT / prefix).exists(), prefix


def test_which_deep_tests_a_change_asks_for():
    assert tiers.modules_for(["README.md", "docs/glossary.md", "tests/test_settings.py"]) == []
    assert set(tiers.modules_for(["labkit/settings.py"])) == tiers.DEEP.keys()
    assert tiers.modules_for(["tests/test_plain.py"]) == ["plain"]


def test_a_changed_lesson_asks_for_the_whole_of_it_and_for_its_script(monkeypatch, tmp_path):
    monkeypatch.setattr(tiers, "TESTED", tmp_path / "tested")
    night = "not test_other_clusters.py and not test_ray_examples.py"
    assert tiers.touched() == ["-m", "deep", "-k", night]  # no commit is named
    tiers.TESTED.write_text(tiers._git("rev-parse", "HEAD").stdout)
    assert tiers.touched() == []
    real = tiers._git

    def git(*arguments):
        done = real(*arguments)
        done.stdout = "lessons/03_torch_trainer.py\nREADME.md\n" if arguments[0] == "diff" else done.stdout
        return done

    monkeypatch.setattr(tiers, "_git", git)
    # `test_the_plain_script_of_lesson_03` of a night's module has this name in it
    assert tiers.touched() == ["-m", "deep", "-k", f"(03_torch_trainer) and {night}"]
