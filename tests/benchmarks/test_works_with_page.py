"""The page is what the program writes from its last runs; each row has been run."""

import json

import pytest

from benchmarks._works_with import page, table


@pytest.fixture(scope="module")
def seen(root):
    return json.loads((root / "benchmarks" / "_works_with" / "seen.json").read_text())


def test_the_page_is_written_by_the_program(root, seen):
    assert (root / "docs" / "works-with.md").read_text(encoding="utf-8") == page.write(table.rows(), seen)


def test_each_row_was_run(seen):
    rows = table.rows()
    assert len(rows) > 20
    for row in rows:
        assert set(seen[row.key]["facts"]) == set(row.asked), row.key
        assert not seen[row.key]["error"], row.key


def test_each_package_of_a_row_is_pinned(root):
    files = (root / "constraints.txt", root / "benchmarks" / "_works_with" / "requirements.txt")
    pins = "".join(file.read_text() for file in files).lower()
    for row in table.rows():
        for package in row.packages:
            assert f"\n{package.lower()}==" in pins, (row.key, package)
