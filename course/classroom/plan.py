"""The plan of the lessons, read from the notebooks next to this package: exercises and sections."""

import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from labkit.settings import CHECKOUT

NOTEBOOKS = CHECKOUT / "notebooks"


@dataclass(frozen=True)
class Plan:
    """The exercises and sections that a class works through.

    Attributes:
        exercises: ids, in order.
        sections: their names, such as "03 Checkpoints", in order.
        cells: source of a code cell → its section, or "" if several sections have such a cell.
    """

    exercises: list[str] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)
    cells: dict[str, str] = field(default_factory=dict)


@cache
def read(notebooks: Path = NOTEBOOKS) -> Plan:
    """Read the notebooks. Where the package is installed without them, the plan is empty."""
    plan = Plan()
    for path in sorted(notebooks.glob("[0-9][0-9]*_*.ipynb")):
        if not re.fullmatch(r"\d\d[bc]?_\w+", path.stem):
            continue  # a copy, such as 03_torch_trainer-Copy1
        try:
            notebook = json.loads(path.read_text(encoding="utf-8"))
            cells = [(cell["cell_type"], "".join(cell["source"]).strip()) for cell in notebook["cells"]]
        except (OSError, ValueError, TypeError, KeyError):
            continue  # no notebook
        number = path.name.partition("_")[0]
        section = f"{number} "
        for kind, text in cells:
            if kind == "code":
                is_new = plan.cells.get(text, section) == section
                plan.cells[text] = section if is_new else ""
                continue
            heading = re.match(r"##? (?:\d\d[bc]? · )?(.+)", text)
            if heading:
                section = f"{number} {heading[1]}"
                plan.sections.append(section)
            plan.exercises.extend(re.findall(r"(?m)^### Exercise (\d\d[bc]?-\d+)\b", text))
    return plan


def lesson_of(id: str) -> str:
    """Return the lesson of an exercise, a prediction, a run or a section: "03b" for "03b-2"."""
    return re.split(r"[-\s]", id, maxsplit=1)[0]
