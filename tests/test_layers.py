"""What no contract of import-linter holds: importing a part of labkit loads nothing heavy but its topic."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import labkit
from labs import python

ROOT = Path(labkit.__file__).parents[1]
PARTS = sorted(
    ".".join(path.parent.relative_to(ROOT).parts)
    for package in ("labkit", "course")
    for path in (ROOT / package).rglob("__init__.py")
)
FACES = [*PARTS, "labkit.local.cluster", "labkit.local.storage", "labkit.local.spark"]
HEAVY = {"ray", "torch", "tensorflow", "keras", "pyspark", "pandas"}
HEAVY |= {"ipywidgets", "matplotlib", "PIL", "pooch", "s3fs"}
TOPICS = {"labkit.data": {"ray"}, "labkit.tune": {"ray", "pandas"}}  # Ray Tune imports pandas


@pytest.mark.parametrize("part", PARTS)
def test_an_import_is_light(part):
    """Each worker of each engine imports the parts that it unpickles something from."""
    code = f"import sys, {part}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = python(code)
    assert done.returncode == 0, done.stdout
    assert HEAVY & set(done.stdout.split()) <= TOPICS.get(part, set())


@pytest.mark.parametrize("part", FACES)
def test_public_names_are_there_and_on_the_map(part):
    module = import_module(part)
    names = getattr(module, "__all__", [])
    assert all(hasattr(module, name) for name in names)
    if part != "labkit" and names:
        title = part.removeprefix("labkit.").removeprefix("course.")
        text = (Path(labkit.__file__).parent / "README.md").read_text()
        (row,) = re.findall(rf"(?m)^\| `{title}` \|.*$", text)
        assert [name for name in names if f"`{name}`" not in row] == []
