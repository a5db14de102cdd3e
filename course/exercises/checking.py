"""Check an answer and ask for a hint; predict what comes out, and see what came out.

With ``LABKIT_CHECK=strict`` every verdict but *solved* raises, for grading. The tests of solutions run on
busy machines, so ``LABKIT_CHECK=patient`` raises as well and gives a check ten times as long.
A prediction that is left alone (``predict("03-a")`` or with ``...``) costs nothing.
"""

import html
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from course.exercises import kept, registry
from course.exercises.answers import NotAttempted, Wrong, describe, is_blank
from course.exercises.registry import Exercise
from course.exercises.running import folders_removed, limited
from labkit.display import cards
from labkit.display.formatting import number as shown
from labkit.display.formatting import short
from labkit.display.progress import Waiting
from labkit.errors import LabError
from labkit.settings import Settings

_MARKS = {"solved": ("ok", "✓"), "not yet": ("bad", "✕"), "not attempted": ("dim", "○")}
_RIGHT, _CLOSE = 0.1, 2.0  # a prediction is right within 10 %, close within a factor of two
_COUNTED = 100  # smaller whole numbers are counts: they are right or wrong
_REMARKS = {"off": "more than a factor of two off", "wrong": "no"}

_solved: set[str] = set()  # in this kernel
_hints_given: dict[str, int] = {}  # of this kernel: a notebook that is run again starts with hint 1


@dataclass(frozen=True)
class Verdict:
    """What a check found, or a hint: true if `state`, one of `_MARKS` or "hint 1 of 3", is *solved*."""

    id: str
    state: str
    message: str

    def __bool__(self) -> bool:
        return self.state == "solved"

    def __repr__(self) -> str:
        return f"{self.id} {self.state} · {self.message}"

    def _repr_html_(self) -> str:
        kind, sign = _MARKS.get(self.state, ("now", ""))
        words = cards.mark(kind, f"{sign} {self.id} {self.state}".strip())
        return Markup(cards.STYLE) + cards.part(Markup("<b>{}</b> · ").format(words), _html(self.message))


def _html(text: str) -> Markup:
    """Markdown's `code` and *emphasis* as HTML."""
    code = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return Markup(re.sub(r"(?<!\w)\*(\S[^*<>]*)(?<!\s)\*(?!\w)", r"<em>\1</em>", code))


def check(id: str, *answers: Any) -> Verdict:
    """Look at the `answers` to the exercise `id`, and record it if it is solved.

    An answer of ``...`` or None is *not attempted*. Any other wrong answer is *not yet*, even if looking at
    it raises: a check gives a verdict and no traceback. A check that takes too long is stopped.
    """
    exercise, strict = registry.find(id), Settings.from_env().check_strict
    verdict = _judge(exercise, answers, exercise.seconds * max(1, strict))
    (_solved.add if verdict else _solved.discard)(id)
    if strict and not verdict:
        fact, fix = f"{verdict.state}: {verdict.message}", f'hint("{id}"), or unset LABKIT_CHECK'
        raise LabError(f"count exercise {id} ({exercise.title}) as solved", fact, fix)
    registry.attend()
    if not verdict:
        return verdict
    now = datetime.now(UTC).isoformat(timespec="seconds")
    problem = kept.keep("solved", id, now, merge=lambda new, first: first)
    return Verdict(id, verdict.state, verdict.message + problem)


def solved(id: str) -> bool:
    """Whether the last `check` of the exercise, in this kernel, found it solved."""
    return id in _solved


def hint(id: str) -> Verdict:
    """Return the next hint of the exercise `id`: the first, the second, the third, then the first again."""
    exercise = registry.find(id)
    tier = _hints_given[id] = _hints_given.get(id, 0) % 3 + 1
    kept.keep("hints", id, tier, merge=max)
    registry.attend()
    last = "this is the last one; the solution is in `notebooks/solutions`, or with your teacher"
    more = f'more: `hint("{id}")` again' if tier < 3 else last
    return Verdict(id, f"hint {tier} of 3", f"{exercise.hints[tier - 1]} ({more})")


def _judge(exercise: Exercise, answers: tuple, seconds: float) -> Verdict:
    what = f"{exercise.id} · running your answer, at most {exercise.seconds:g} s"
    try:
        blank = [answer for answer in answers if is_blank(answer) or answer is None]
        if 0 < len(blank) < len(answers) and callable(blank[0]):
            raise NotAttempted(f"{describe(blank[0])} does nothing yet")
        if blank or not answers:
            raise NotAttempted
        with Waiting(what), folders_removed(), limited(seconds, exercise.stuck):
            exercise.check(*answers)
    except NotAttempted as error:
        state, message = "not attempted", str(error) or "put your answer where the `...` is"
    except Wrong as error:
        state, message = "not yet", short(str(error), 300).rstrip(".")
    except (Exception, SystemExit) as error:
        raised = f"looking at it raised {type(error).__name__}: {short(str(error), 300).rstrip('.')}"
        state, message = "not yet", f"your answer is {', '.join(map(describe, answers))}, and {raised}"
    else:
        return Verdict(exercise.id, "solved", exercise.title)
    end = "" if message.endswith("?") else "."
    return Verdict(exercise.id, state, f'{message}{end} `hint("{exercise.id}")` helps')


# -- predictions ------------------------------------------------------------------------------------


def predict(id: str, guess: Any = ..., *, choices: Sequence[str] = ()) -> None:
    """Keep what you expect in the cell `id` ("03-a"): a number, or one of `choices`.

    Without a guess nothing is kept; JupyterLab then shows the choices as buttons.
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
    """Print what it was, next to what was predicted, in the cell that answers the prediction `id`."""
    _require_id(id)
    answer = answer.item() if hasattr(answer, "item") else answer  # numpy and torch
    guess = kept.load("predictions").get(id, {}).get("guess")
    if guess is None:
        print(f"{id} · it was {shown(answer)}")
        return
    verdict = _verdict(guess, answer)
    _keep(id, guess, answer=answer, verdict=verdict)
    print(f"{id} · you said {shown(guess)}, it was {shown(answer)}: {_REMARKS.get(verdict, verdict)}")


def predictions(lesson: str = "") -> cards.Table:
    """List what you predicted in a lesson ("03") or in all, what it was, and how many were right."""
    mine = [(id, one) for id, one in _predicted(lesson) if "answer" in one]
    rows = [(id, shown(one["guess"]), shown(one["answer"]), one["verdict"]) for id, one in mine]
    verdicts = [row[-1] for row in rows]
    line = f"{verdicts.count('right')} of {len(rows)} right, {verdicts.count('close')} close"
    return cards.Table(("", "you said", "it was", ""), rows, line if rows else "nothing was predicted here")


def progress_table() -> cards.Table:
    """List all lessons, their exercises, which of them are solved, and how many predictions were right."""
    lessons, solved, rows = registry.lessons(), kept.load("solved"), []
    count = max(len(lesson.exercises) for lesson in lessons)
    for lesson in lessons:
        done = [one.id in solved for one in lesson.exercises]
        cells = ["✓ solved" if one else "open" for one in done] + ["–"] * (count - len(done))
        # One without a verdict was not revealed yet.
        found = [one["verdict"] for _, one in _predicted(lesson.number) if "verdict" in one]
        guessed = f"{found.count('right')} of {len(found)}" if found else "–"
        rows.append((f"{lesson.number} {lesson.title}", *cells, f"{sum(done)} of {len(done)}", guessed))
    return cards.Table(("lesson", *map(str, range(1, count + 1)), "solved", "predicted"), rows)


def _predicted(lesson: str) -> list[tuple[str, dict[str, Any]]]:
    found = sorted(kept.load("predictions").items())
    return [(id, one) for id, one in found if lesson in ("", id.partition("-")[0])]


def _keep(id: str, guess: Any, **found: Any) -> str:
    registry.attend()
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
    if not isinstance(id, str) or not re.fullmatch(r"\d\d[bc]?-[a-z]", id):
        fact, fix = f"its id is {str(id)[:40]!r}", 'use the id of the lesson\'s cell, such as "03-a"'
        raise LabError("find the prediction", fact, fix)
