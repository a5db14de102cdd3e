"""Tables of examples as text: an expression, `=>`, and the words that come of it.

WAYS = '''
  stopped(seconds=3) => stopped by you
  killed() => its process is gone
'''

@pytest.mark.parametrize("run, said", table(WAYS, globals()))
"""

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

_NAMES = {"math": math, "np": np, "random": random}  # of every table


def rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (heading, expression, words) of each row. A heading is a line at the left edge.

    The words may be on the line after their expression. A line that begins with # is a comment.
    """
    heading, expression = "", ""
    for line in text.strip("\n").splitlines():
        before, arrow, words = line.partition("=>")
        if line.lstrip().startswith("#"):
            continue
        if not line.startswith(" "):
            heading = line
        elif arrow:
            yield heading, f"{expression}{before}".strip(), words.strip()
            expression = ""
        else:
            expression += before


def evaluated(expression: str, names: dict[str, Any]) -> Any:
    """Return the value of an expression of a table in a module with these names."""
    return eval(expression, {**names, **_NAMES})


def table(text: str, names: dict[str, Any]) -> list[tuple]:
    """Return (*values, words) of each row, for `pytest.mark.parametrize`."""
    return [(*evaluated(f"[{values}]", names), words) for _, values, words in rows(text)]
