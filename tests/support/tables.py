"""Tables of examples as text: an expression, `=>`, and the words that come of it.

WAYS = '''
  stopped(seconds=3) => stopped by you
  killed() => its process is gone
'''

@pytest.mark.parametrize("run, said", table(WAYS, globals()))
"""

import math
import random
from typing import Any

import numpy as np

_NAMES = {"math": math, "np": np, "random": random}  # of every table


def rows(text: str) -> list[tuple[str, ...]]:
    """Return (heading, expression, *words) of each row. A heading is a line at the left edge.

    An expression, and each of its words, may go on in the next line. A line that begins with # is a comment.
    """
    heading, gathered = "", []
    for line in text.strip("\n").splitlines():
        expression, *words = line.split("=>")
        if line.lstrip().startswith("#"):
            continue
        if not line.startswith(" "):
            heading = line
            continue
        if expression.strip():
            if not gathered or len(gathered[-1]) > 2:
                gathered.append([heading, ""])
            gathered[-1][1] += expression
        gathered[-1] += [word.strip() for word in words]
    return [(heading, expression.strip(), *words) for heading, expression, *words in gathered]


def evaluated(expression: str, names: dict[str, Any]) -> Any:
    """Return the value of an expression of a table in a module with these names."""
    return eval(expression, {**names, **_NAMES})


def table(text: str, names: dict[str, Any]) -> list[tuple]:
    """Return (*values, *words) of each row, for `pytest.mark.parametrize`."""
    return [(*evaluated(f"[{values}]", names), *words) for _, values, *words in rows(text)]
