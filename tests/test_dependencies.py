"""One source of dependencies: pyproject, constraints, environment.yml, Makefile and CI say the same."""

import ast
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import labkit
from labs import python
from requirements import PINS, PROJECT, needed
from tests import tiers


@pytest.fixture(scope="session")
def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    asked = map(Requirement, lines)
    return [requirement for requirement in asked if not requirement.marker or requirement.marker.evaluate()]


def test_one_version_everywhere(root):
    version = PROJECT["version"]
    assert labkit.__version__ == version
    assert yaml.safe_load((root / "CITATION.cff").read_text())["version"] == version
    assert re.search(r"(?m)^## (.+?):", (root / "CHANGELOG.md").read_text())[1] == version
    pages = [
        path for path in (root / "docs").rglob("*") if path.suffix in (".yaml", ".md") or not path.suffix
    ]
    images = {
        tag
        for path in pages
        if path.is_file()
        for tag in re.findall(r"labkit[a-z-]*:(\d[\d.]*\d)", path.read_text())
    }
    assert images == {version}


def test_pins_that_were_chosen_on_purpose():
    assert PINS["torch"] == "2.13.0"
    # Before 7.4 the kernel now and then missed a request and stalled (ipykernel issue 1554). From 7.4 on
    # a click on Stop would wait for the cell; `labkit.panel.reporters` sees to that.
    assert Version("7.4") <= Version(PINS["ipykernel"]) < Version("8")
    assert Version(PINS["jsonschema"]) < Version("4.25")
    assert "rfc3987-syntax" not in PINS


def test_everything_that_is_needed_is_pinned(requirements):
    """But for what torch brings: a build for GPUs needs more packages than one for CPUs."""
    assert needed(map(str, requirements), without=["torch"]) - set(PINS) == set()


def test_every_package_that_is_imported_is_declared(root, requirements):
    """Or asked for by one that is, as IPython is by ipykernel. One that comes from further away may
    stop to come."""
    declared = {requirement.name for requirement in requirements}
    near = {Requirement(line).name for name in declared for line in metadata.requires(name) or []}
    allowed = {canonicalize_name(name) for name in declared | near}
    providers = metadata.packages_distributions()
    for path in [*(root / "labkit").rglob("*.py"), *(root / "course").rglob("*.py")]:
        for name in _imported(path) - {*sys.stdlib_module_names, "labkit", "course", *tiers.TENSORFLOW}:
            assert allowed & {canonicalize_name(provider) for provider in providers[name]}, f"{path}: {name}"


def _imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names}


def test_conda_takes_the_same(root):
    environment = yaml.safe_load((root / "environment.yml").read_text())
    conda = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    (pip,) = (entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    assert pip == ["--constraint constraints.txt", "--editable .[lessons,tensorflow,spark,recipes,dev]"]
    (python,) = (entry.partition("=")[2] for entry in conda if entry.startswith("python="))
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{python}.99")  # conda takes its newest
    # Whatever is a Python package comes from pyproject alone.
    assert {re.split("[=<>]", entry)[0] for entry in conda} == {"python", "pip", "git", "make", "openjdk"}


def test_make_and_the_doctor_ask_for_the_same_python(root):
    low = re.fullmatch(r">=3\.(\d+)", PROJECT["requires-python"])[1]
    pattern = rf"\(3, {low}\) <= sys.version_info\[:2\] < (\(3, \d+\))"
    (end,) = re.findall(pattern, (root / "Makefile").read_text())
    assert f"sys.version_info < {end}" in (root / "labkit" / "local" / "doctor.py").read_text()


def test_import_ray_does_not_compile_a_grammar():
    """jupyter-events asks for jsonschema's format checkers, since 4.25 they bring rfc3987-syntax, and
    jsonschema imports that: it compiles a grammar, 1.1 s of CPU in EVERY Ray process. Without it
    a cluster and a `fit()` start in about half the time, hence ``jsonschema<4.25``.
    """
    loaded = python("import sys, ray; print(*sorted(sys.modules))").stdout.split()
    assert "jsonschema" in loaded  # else this test would look at nothing
    assert "rfc3987_syntax" not in loaded
