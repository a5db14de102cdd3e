"""The tiers of tests: which deep tests a change asks for, and that each promise has its tests."""

import ast
import re

import pytest

from tests import tiers

README = (tiers.ROOT / "tests" / "README.md").read_text()
PROMISES = re.findall(r"(?m)^\| ([A-Z`].+\.) \| (.*)\| (.*)\|$", README)


def tier_of_each_test():
    """Return {test: the tiers of the tests with this name}."""
    names = {}
    for path in tiers.modules():
        covers = "covers" in tiers.module_marks(path)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                kept = any(ast.unparse(mark) == "pytest.mark.each_change" for mark in node.decorator_list)
                assert covers or not kept, f"{path.name}: each_change, but nothing there is deep"
                names.setdefault(node.name, set()).add("deep" if covers and not kept else "fast")
    return names


TIERS = tier_of_each_test()


@pytest.mark.parametrize("promise, fast, deep", PROMISES, ids=[row[0] for row in PROMISES])
def test_a_promise_has_its_tests_in_the_tiers_that_the_table_names(promise, fast, deep):
    assert len(PROMISES) >= 15  # the table is read
    assert fast.strip() or deep.strip()
    for cell, tier in ((fast, "fast"), (deep, "deep")):
        for name in re.findall(r"`(\w+)`", cell):
            assert tier in TIERS.get(name, ()), f"{name}: gone, or in another tier"


def test_each_path_that_a_module_covers_is_there():
    covers = {path.name: tiers.module_marks(path).get("covers") for path in tiers.modules()}
    assert covers["test_hang.py"] == ("labkit/train/",)  # marks are read
    for module, prefixes in covers.items():
        assert prefixes != (), f"no change asks for the deep tests of {module}"
        for prefix in prefixes or tiers.EVERYTHING:
            assert (tiers.ROOT / prefix).exists(), f"{module}: {prefix}"


def test_which_deep_tests_a_change_asks_for():
    deep = [path.name for path in tiers.modules() if "covers" in tiers.module_marks(path)]
    assert tiers.modules_for(["README.md", "docs/glossary.md", "tests/test_settings.py"]) == []
    assert tiers.modules_for(["labkit/settings.py"]) == deep
    assert tiers.modules_for(["tests/test_plain.py"]) == ["test_plain.py"]
    assert "test_class_bucket.py" in tiers.modules_for(["labkit/storage/client.py"])
