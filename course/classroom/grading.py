"""The lessons as nbgrader's assignments, with the lessons' own exercises.

    $ python -m course.classroom grade course

An answer cell holds the solution between nbgrader's markers, and the cell that calls ``check`` is worth a
point. ``nbgrader generate_assignment`` removes what is between the markers, so learners get the cell of the
lesson. In ``nbgrader autograde`` a wrong answer raises, because of ``LABKIT_CHECK=strict``.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from course.classroom.plan import NOTEBOOKS
from labkit.errors import LabError

if TYPE_CHECKING:
    from nbformat import NotebookNode

CONFIG = '''\
"""nbgrader's settings for the lessons; written by python -m course.classroom grade."""

import os

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "lab"
c.ClearSolutions.code_stub = {"python": ""}  # the lesson's own `...` stays, which runs to the end
c.ClearSolutions.enforce_metadata = False
c.ExecutePreprocessor.timeout = 600  # seconds per cell
os.environ |= {"LABKIT_CHECK": "strict", "LABKIT_SMALL": "1", "LABKIT_PANEL": "none"}
'''
_CHECK = re.compile(r"\bcheck\(\"(\d\d[bc]?-\d+)\"")


def write(folder: Path) -> Iterator[Path]:
    """Write the solved lessons as ``source/NAME/NAME.ipynb``, and nbgrader's settings if there are none yet.

    Raises:
        LabError: there are no solutions here.
    """
    import nbformat

    solutions = sorted((NOTEBOOKS / "solutions").glob("[0-9][0-9]*_*.ipynb"))
    if not solutions:
        raise LabError(
            "write the assignments",
            f"there are no notebooks in {NOTEBOOKS / 'solutions'}",
            "python tools/build.py, in a checkout of the lab",
        )
    for path in solutions:
        target = folder / "source" / path.stem / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(nbformat.writes(assignment(nbformat.read(path, 4))) + "\n", encoding="utf-8")
        yield target
    config = folder / "nbgrader_config.py"
    if not config.exists():
        config.write_text(CONFIG, encoding="utf-8")
        yield config


def assignment(solved: "NotebookNode") -> "NotebookNode":
    """Add nbgrader's metadata to a solved lesson, in which the build has put a check after each solution."""
    import nbformat

    cells: list[NotebookNode] = []
    open_answer = None
    for cell in solved.cells:
        if cell.cell_type == "code" and "solution" in cell.metadata.get("tags", []):
            open_answer = cells[-1]
            open_answer.source += f"\n### BEGIN SOLUTION\n{cell.source}\n### END SOLUTION"
            continue
        cells.append(cell)
        call = _CHECK.search(cell.source) if cell.cell_type == "code" else None
        if call and open_answer is not None:
            open_answer.metadata["nbgrader"] = _metadata(f"{call[1]}-answer", solution=True)
            cell.metadata["nbgrader"] = {**_metadata(call[1], grade=True), "points": 1}
            open_answer = None
    solved.cells = cells
    del solved.metadata["labkit"]  # it isn't what the build made any more
    nbformat.validate(solved)
    return solved


def _metadata(id: str, *, grade: bool = False, solution: bool = False) -> dict:
    return {
        "grade_id": id,
        "grade": grade,
        "solution": solution,
        "locked": grade,
        "task": False,
        "schema_version": 3,
    }
