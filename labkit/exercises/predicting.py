"""Predictions: what a reader expects before a cell runs, and what came out. And the table of progress.

    >>> predict("03-a", 2)
    03-a · you say 2
    >>> reveal("03-a", 0.7)
    03-a · you said 2, it was 0.7: more than a factor of two off

A prediction that is left alone (``predict("03-a")`` or with ``...``) costs nothing.
"""

import math
import re
import sys
from collections.abc import Sequence
from typing import Any

from labkit.display.cards import Table
from labkit.display.formatting import number as shown
from labkit.errors import LabError
from labkit.exercises import kept, registry, sections
from labkit.settings import Settings

_RIGHT, _CLOSE = 0.1, 2.0  # right within 10 %, close within a factor of two
_COUNTED = 100  # smaller whole numbers are counts: they are right or wrong
_REMARKS = {
    "right": "right",
    "close": "close",
    "off": "more than a factor of two off",
    "wrong": "no",
}


def predict(id: str, guess: Any = ..., *, choices: Sequence[str] = ()) -> None:
    """Keep what you expect: a number, or one of `choices`. Without a guess, nothing is kept.

    In JupyterLab the choices are shown as buttons, for the mouse or the keyboard (Tab and Enter).

    Args:
        id: the lesson and a letter: "03-a".

    Raises:
        LabError: the id is none, or the guess is neither a number nor one of the choices.
    """
    _require_id(id)
    asked = " or ".join(map(repr, choices)) if choices else "a number"
    if guess is ... or guess is None:
        if not (choices and _show_buttons(id, choices)):
            print(f"{id} · {asked}, in place of `...`; or go on without")
        return
    number = isinstance(guess, (int, float)) and not isinstance(guess, bool) and math.isfinite(guess)
    if not (guess in choices if choices else number):
        raise LabError(f"keep the prediction {id}", f"it is {str(guess)[:40]!r}", f"predict {asked}")
    print(f"{id} · you say {shown(guess)}{_keep(id, guess)}")


def reveal(id: str, answer: Any) -> None:
    """Print what it was, next to what was predicted. Call it in the cell that answers the prediction `id`.

    Raises:
        LabError: the id is none.
    """
    _require_id(id)
    answer = answer.item() if hasattr(answer, "item") else answer  # numpy and torch
    guess = kept.load("predictions").get(id, {}).get("guess")
    if guess is None:
        print(f"{id} · it was {shown(answer)}")
        return
    verdict = _verdict(guess, answer)
    _keep(id, guess, answer=answer, verdict=verdict)
    print(f"{id} · you said {shown(guess)}, it was {shown(answer)}: {_REMARKS[verdict]}")


def predictions(lesson: str = "") -> Table:
    """List what you predicted in a lesson ("03") or in all, what it was, and how many were right."""
    found = sorted(kept.load("predictions").items())
    wanted = ((id, one) for id, one in found if lesson in ("", id.partition("-")[0]))
    done = {id: one for id, one in wanted if one.keys() >= {"verdict", "answer"}}
    verdicts = [one["verdict"] for one in done.values()]
    rows = [(id, shown(one["guess"]), shown(one["answer"]), one["verdict"]) for id, one in done.items()]
    line = f"{verdicts.count('right')} of {len(rows)} right, {verdicts.count('close')} close"
    return Table(("", "you said", "it was", ""), rows, line if rows else "nothing was predicted here")


def progress_table() -> Table:
    """List all lessons, their exercises, which of them are solved, and how many predictions were right."""
    lessons, solved, predicted = registry.lessons(), kept.load("solved"), kept.load("predictions")
    count = max(len(lesson.exercises) for lesson in lessons)
    rows = []
    for lesson in lessons:
        done = [one.id in solved for one in lesson.exercises]
        cells = ["✓ solved" if one else "open" for one in done] + ["–"] * (count - len(done))
        mine = (one for id, one in predicted.items() if id.partition("-")[0] == lesson.number)
        found = [one["verdict"] for one in mine if "verdict" in one]  # others were not revealed yet
        guessed = f"{found.count('right')} of {len(found)}" if found else "–"
        rows.append((f"{lesson.number} {lesson.title}", *cells, f"{sum(done)} of {len(done)}", guessed))
    return Table(("lesson", *map(str, range(1, count + 1)), "solved", "predicted"), rows)


def _keep(id: str, guess: Any, **found: Any) -> str:
    sections.attend()
    return kept.keep("predictions", id, {"guess": guess, **found})


def _verdict(guess: Any, answer: Any) -> str:
    if isinstance(answer, str) or isinstance(guess, str):
        return "right" if str(guess).casefold() == str(answer).casefold() else "wrong"
    if isinstance(answer, int) and abs(answer) < _COUNTED:
        return "right" if guess == answer else "wrong"
    if math.isclose(guess, answer, rel_tol=_RIGHT):
        return "right"
    return "close" if guess * answer > 0 and 1 / _CLOSE <= guess / answer <= _CLOSE else "off"


def _show_buttons(id: str, choices: Sequence[str]) -> bool:
    """Show buttons that keep what is selected; False where there are no widgets."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if not hasattr(shell, "kernel") or Settings.from_env().panel not in ("auto", "widgets"):
        return False
    import ipywidgets
    from IPython.display import display

    guess = kept.load("predictions").get(id, {}).get("guess")
    value, style = guess if guess in choices else None, {"button_width": "auto"}
    buttons = ipywidgets.ToggleButtons(options=choices, value=value, style=style)
    buttons.observe(lambda change: _keep(id, change.new), names="value")
    display(buttons)
    return True


def _require_id(id: str) -> None:
    if not isinstance(id, str) or not re.fullmatch(r"\d\db?-[a-z]", id):
        fact, fix = f"its id is {str(id)[:40]!r}", 'use the id of the lesson\'s cell, such as "03-a"'
        raise LabError("find the prediction", fact, fix)
