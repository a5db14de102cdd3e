"""The plan of the lessons, read from the notebooks next to this package: exercises, sections, minutes."""

import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


@dataclass(frozen=True)
class Plan:
    """What a class works through.

    Attributes:
        exercises: ids, in order.
        minutes: section ("03 Checkpoints") → its minutes, which the build computes from words and lines.
    """

    exercises: list[str] = field(default_factory=list)
    minutes: dict[str, float] = field(default_factory=dict)


@cache
def read() -> Plan:
    """Read the notebooks. Where the package is installed without them, the plan is empty."""
    plan = Plan()
    for path in sorted(NOTEBOOKS.glob("[0-9][0-9]*_*.ipynb")):
        try:
            notebook = json.loads(path.read_text(encoding="utf-8"))
            minutes = notebook["metadata"]["labkit"]["minutes"]
            texts = ["".join(one["source"]) for one in notebook["cells"] if one["cell_type"] == "markdown"]
        except (OSError, ValueError, TypeError, KeyError):
            continue  # a notebook of the reader's own
        number = path.name.partition("_")[0]
        for text in texts:
            if heading := re.match(r"##? ((?:\d\db? · )?(.+))", text):
                plan.minutes[f"{number} {heading[2]}"] = float(minutes.get(heading[1], 0))
            plan.exercises.extend(re.findall(r"(?m)^### Exercise (\d\db?-\d+)\b", text))
    return plan


def lesson_of(id: str) -> str:
    """The lesson of an exercise, a prediction, a run or a section: "03b" of "03b-2" or "03b Checkpoints"."""
    return re.match(r"[^-\s]*", id)[0]
