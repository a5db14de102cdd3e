"""The lessons as nbgrader's assignments, by the same exercises: ``python tools/build.py --nbgrader FOLDER``.

An answer cell holds the solution between nbgrader's markers, and the cell that calls ``check`` is worth a
point. ``nbgrader generate_assignment`` removes what is between the markers, so learners get the cell of the
lesson. In ``nbgrader autograde`` a wrong answer raises, because of ``LABKIT_CHECK=strict``.
"""

import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

CONFIG = '''\
"""nbgrader's settings for the lessons; written by tools/build.py --nbgrader."""

import os

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "lab"
c.ClearSolutions.code_stub = {"python": ""}  # the lesson's own `...` stays, which runs to the end
c.ClearSolutions.enforce_metadata = False
c.ExecutePreprocessor.timeout = 600  # seconds per cell
os.environ |= {"LABKIT_CHECK": "strict", "LABKIT_SMALL": "1", "LABKIT_PANEL": "none"}
'''
_CHECK = re.compile(r"\bcheck\(\"(\d\d-\d)\"")


def write(folder: Path, lessons: dict[str, NotebookNode]) -> list[str]:
    """Write the solved `lessons` (by name) as ``source/NAME/NAME.ipynb``, and nbgrader's settings if there
    are none yet; one line for each file."""
    said = []
    for name, solved in lessons.items():
        path = folder / "source" / name / f"{name}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(nbformat.writes(assignment(solved)) + "\n", encoding="utf-8")
        said.append(f"built {path}")
    config = folder / "nbgrader_config.py"
    if not config.exists():
        config.write_text(CONFIG, encoding="utf-8")
        said.append(f"built {config}")
    return said


def assignment(solved: NotebookNode) -> NotebookNode:
    """A solved lesson with nbgrader's metadata. `lesson` has seen to it that a check follows a solution."""
    cells: list[NotebookNode] = []
    open_answer = None
    for cell in solved.cells:
        if cell.cell_type == "code" and "solution" in cell.metadata.get("tags", []):
            open_answer = cells[-1]
            solution = f"### BEGIN SOLUTION\n{cell.source}\n### END SOLUTION"
            open_answer.source = f"{open_answer.source}\n{solution}"
            continue
        cell = nbformat.from_dict(cell)
        cells.append(cell)
        found = _CHECK.search(cell.source) if cell.cell_type == "code" else None
        if found and open_answer is not None:
            open_answer.metadata["nbgrader"] = _metadata(f"{found[1]}-answer", solution=True)
            cell.metadata["nbgrader"] = {**_metadata(found[1], grade=True), "points": 1}
            open_answer = None
    graded = nbformat.from_dict({**solved, "cells": cells})
    del graded.metadata["labkit"]  # it isn't what the build made any more
    nbformat.validate(graded)
    return graded


def _metadata(id: str, *, grade: bool = False, solution: bool = False) -> dict:
    return {
        "grade_id": id,
        "grade": grade,
        "solution": solution,
        "locked": grade,
        "task": False,
        "schema_version": 3,
    }
