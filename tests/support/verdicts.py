"""A table of answers and what the check of an exercise says to them, as one test."""

from typing import Any

import pytest


class Runs:
    """An answer whose runs, where the engine is `replaced`, return or raise these values in turn."""

    def __init__(self, *values: Any) -> None:
        self.left = iter(values)


def replaced(answer: Runs, *args: Any, **options: Any) -> Any:
    """What a test puts in the place of a function that runs an answer on an engine."""
    value = next(answer.left)
    if isinstance(value, Exception):
        raise value
    return value


def verdicts(table: dict[str, list[tuple]]) -> Any:
    """Parametrize a test with (id, answers, said) of each row of {id: [(*answers, said), …]}."""
    rows = [(id, answers, said) for id, several in table.items() for *answers, said in several]
    return pytest.mark.parametrize("id, answers, said", rows)
