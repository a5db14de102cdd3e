"""The reports for upstream: each has a reproduction that stands alone, and the versions that are pinned."""

import ast
import re
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "upstream"
REPORTS = sorted(path for path in FOLDER.glob("*.md") if path.stem != "README")
HEADINGS = ["What happens", "What was expected", "Reproduction", "What the lab does meanwhile"]


def test_each_report_has_a_reproduction_and_is_listed():
    names = [path.stem for path in REPORTS]
    assert names == sorted(path.stem for path in FOLDER.glob("*.py"))
    assert re.findall(r"\]\((\w+)\.md\)", (FOLDER / "README.md").read_text()) == names


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)
def test_a_report_says_what_its_reader_needs(report, root):
    text = report.read_text()
    assert re.findall(r"(?m)^## (.+)$", text) == HEADINGS
    assert f"`{report.stem}.py`" in text
    assert re.search(r"It (needs a package index, and )?prints\n\n```\n(?!OUTPUT)", text)
    assert re.search(r"\*\*Known as\*\* .*(https://github.com/\S+/\d+\)|no issue found)", text)
    lines = (root / "constraints.txt").read_text().splitlines()
    pins = {(canonicalize_name(name), version) for name, _, version in (one.partition("==") for one in lines)}
    named = re.search(r"\*\*Versions\*\* (.+?) · ", text)[1]
    found = re.findall(r"([\w-]+) (\d[\w.]*\d)", named)
    assert any((canonicalize_name(name), version) in pins for name, version in found), named
    # A program that is not pinned (Python), or one that the pins keep out.
    others = [one for one in found if (canonicalize_name(one[0]), one[1]) not in pins]
    assert {name for name, _ in others} <= {"Python", "jsonschema", "rfc3987-syntax"}


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)
def test_a_reproduction_needs_nothing_of_the_lab(report):
    tree = ast.parse(report.with_suffix(".py").read_text())
    assert ast.get_docstring(tree)
    modules = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert [name for name in modules if name.partition(".")[0] == "labkit"] == []
