"""The plan of the lessons, read from this checkout's notebooks: exercises, sections, and their minutes."""

import json
import re
from dataclasses import dataclass, field
from functools import cache

from labkit.settings import CHECKOUT


@dataclass(frozen=True)
class Plan:
    """What a class works through.

    Attributes:
        exercises: ids, in order.
        minutes: section → its minutes by the rule of CONTRIBUTING.md. A section is "03 Checkpoints".
        section_of: the source of a code cell → its section; without sources that several sections have.
    """

    exercises: list[str] = field(default_factory=list)
    minutes: dict[str, float] = field(default_factory=dict)
    section_of: dict[str, str] = field(default_factory=dict)


@cache
def read() -> Plan:
    """Read the notebooks. Where labkit is installed without them, the plan is empty."""
    plan, shared = Plan(), set()
    for path in sorted((CHECKOUT / "notebooks").glob("*.ipynb")):
        try:
            notebook = json.loads(path.read_text(encoding="utf-8"))
            minutes = notebook["metadata"]["labkit"]["minutes"]
            cells = [(cell["cell_type"], "".join(cell["source"]).strip()) for cell in notebook["cells"]]
        except (OSError, ValueError, TypeError, KeyError):
            continue  # a notebook of the reader's own
        if not (name := re.fullmatch(r"(\d\d)_\w+", path.stem)):
            continue
        section = ""
        for kind, source in cells:
            if kind == "markdown":
                if heading := re.match(r"##? ((?:\d\d · )?(.+))", source):
                    section = f"{name[1]} {heading[2]}"
                    plan.minutes[section] = float(minutes.get(heading[1], 0))
                plan.exercises.extend(re.findall(r"(?m)^### Exercise (\d\d-\d)\b", source))
            elif plan.section_of.setdefault(source, section) != section:
                shared.add(source)
    for source in shared:
        del plan.section_of[source]
    return plan
