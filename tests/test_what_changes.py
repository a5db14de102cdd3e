"""docs/what-changes.md lists what labkit replaces while it follows a run: compared with the code."""

import ast
from pathlib import Path

import pytest

from labkit.cluster.connection import ENVIRONMENT
from labkit.worker import hooks

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "what-changes.md").read_text()
# They start and end processes of the lab, and follow no run.
OTHERS = {"labkit/local"}


def sources():
    for path in sorted((ROOT / "labkit").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not any(name.startswith(folder) for folder in OTHERS):
            yield name, ast.parse(path.read_text())


def is_a_replacement(node):
    """Whether an attribute of another object than `self` is set or deleted here."""
    changes = isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del))
    return changes and getattr(node.value, "id", "") != "self"


def is_pop_from_vars(node):
    """Whether this is ``vars(…).pop("name", None)``."""
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "attr", "") == "pop" and isinstance(function.value, ast.Call)


def is_a_change_for_a_block(node):
    """Whether this is ``attributes_set(target, name=…)``."""
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "attributes_set"


def put_back(tree):
    """The attributes of other objects that are set for a block, or that a `finally` changes back."""
    for node in filter(is_a_change_for_a_block, ast.walk(tree)):
        yield from (keyword.arg for keyword in node.keywords)
    ends = [statement for block in ast.walk(tree) for statement in getattr(block, "finalbody", ())]
    for node in [node for statement in ends for node in ast.walk(statement)]:
        if is_a_replacement(node):
            yield node.attr
        elif is_pop_from_vars(node):
            yield node.args[0].value


REPLACED = sorted({(name, attribute) for name, tree in sources() for attribute in put_back(tree)})
# Of an object of the lab's own.
OURS = {("labkit/train/panel.py", "controller")}


@pytest.mark.parametrize(("file", "attribute"), [place for place in REPLACED if place not in OURS])
def test_what_is_put_back_stands_on_the_page(file, attribute):
    assert f"`{attribute}`" in PAGE or f".{attribute}`" in PAGE, f"{file} replaces {attribute}"


@pytest.mark.parametrize(
    "place", [f"{owner}.{name}" for places in hooks._HOOKS.values() for owner, name, _ in places]
)
def test_each_hook_of_a_loop_stands_on_the_page(place):
    assert f"`{place}`" in PAGE


@pytest.mark.parametrize("variable", ENVIRONMENT)
def test_each_variable_of_a_connection_stands_on_the_page(variable):
    assert f"`{variable}={ENVIRONMENT[variable]}`" in PAGE
