"""Check an answer and ask for a hint; predict what comes out, and see what came out.

With ``LABKIT_CHECK=strict`` every verdict but *solved* raises, for grading. The tests of solutions run on
busy machines, so ``LABKIT_CHECK=patient`` raises as well and gives a check ten times as long.
A prediction that is left alone (``predict("03-a")`` or with ``...``) costs nothing.
"""

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from course.exercises import kept, registry
from course.exercises.answers import NotAttempted, Wrong, describe, is_blank
from course.exercises.registry import Exercise
from course.exercises.running import folders_removed, limited
from course.exercises.table import Table
from labkit import _jupyter
from labkit.display import cards
from labkit.display.formatting import number as shown
from labkit.display.formatting import short
from labkit.display.progress import waiting
from labkit.errors import BadInput, LabError
from labkit.settings import Settings

_MARKS = {
    "solved": ("ok", "✓"),
    "not yet": ("bad", "✕"),
    "not attempted": ("dim", "○"),
}
_RIGHT = 0.1  # a prediction is right within 10 %
_CLOSE = 2.0  # and close within a factor of two
_COUNTED = 100  # smaller whole numbers are counts: they are right or wrong
_REMARKS = {"off": "more than a factor of two off", "wrong": "no"}

_solved: set[str] = set()  # in this kernel
_hints_given: dict[str, int] = {}  # of this kernel: a notebook that is run again starts with hint 1


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check, or a hint: true if `state`, one of `_MARKS` or "hint 1 of 3", is *solved*."""

    id: str
    state: str
    message: str

    def __bool__(self) -> bool:
        return self.state == "solved"

    def __repr__(self) -> str:
        return f"{self.id} {self.state} · {self.message}"

    def _repr_html_(self) -> str:
        colour, sign = _MARKS.get(self.state, ("now", ""))
        state = f"{sign} {self.id} {self.state}".strip()
        head = Markup("<b>{}</b> · ").format(cards.mark(colour, state))
        return Markup(cards.STYLE) + cards.part(head, _html(self.message))


def _html(text: str) -> Markup:
    """Render Markdown's `code` and *emphasis* as HTML."""
    code = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return Markup(re.sub(r"(?<!\w)\*(\S[^*<>]*)(?<!\s)\*(?!\w)", r"<em>\1</em>", code))


def check(id: str, *answers: Any) -> Verdict:
    """Look at the `answers` to the exercise `id`, and record it if it is solved.

    An answer of ``...`` or None is *not attempted*. Any other wrong answer is *not yet*, even if looking at
    it raises: a check gives a verdict and no traceback. A check that takes too long is stopped.
    """
    exercise = registry.find(id)
    strict = Settings.from_env().check_strict
    verdict = _judge(exercise, answers, exercise.seconds * max(1, strict))
    if verdict:
        _solved.add(id)
    else:
        _solved.discard(id)
    if strict and not verdict:
        raise LabError(
            f"count exercise {id} ({exercise.title}) as solved",
            f"{verdict.state}: {verdict.message}",
            f'hint("{id}"), or unset LABKIT_CHECK',
        )
    registry.attend()
    if not verdict:
        return verdict
    now = datetime.now(UTC).isoformat(timespec="seconds")
    problem = kept.keep("solved", id, now, merge=lambda now, first: first)
    return Verdict(id, verdict.state, verdict.message + problem)


def solved(id: str) -> bool:
    """Return whether the last `check` of the exercise, in this kernel, called it solved."""
    return id in _solved


def hint(id: str) -> Verdict:
    """Return the next hint of the exercise `id`: the first, the second, the third, then the first again."""
    exercise = registry.find(id)
    tier = _hints_given.get(id, 0) % 3 + 1
    _hints_given[id] = tier
    kept.keep("hints", id, tier, merge=max)
    registry.attend()
    if tier < 3:
        more = f'more: `hint("{id}")` again'
    else:
        more = "this is the last one; the solution is in `notebooks/solutions`, or with your teacher"
    return Verdict(id, f"hint {tier} of 3", f"{exercise.hints[tier - 1]} ({more})")


def _judge(exercise: Exercise, answers: tuple, seconds: float) -> Verdict:
    running = f"{exercise.id} · running your answer, at most {exercise.seconds:g} s"
    try:
        _require_answers(answers)
        with waiting(running), folders_removed(), limited(seconds, exercise.stuck):
            exercise.check(*answers)
    except NotAttempted as error:
        state = "not attempted"
        message = str(error) or "put your answer where the `...` is"
    except Wrong as error:
        state = "not yet"
        message = short(str(error), 300).rstrip(".")
    except (Exception, SystemExit) as error:
        state = "not yet"
        message = (
            f"your answer is {', '.join(map(describe, answers))}, and looking at it raised "
            f"{type(error).__name__}: {short(str(error), 300).rstrip('.')}"
        )
    else:
        return Verdict(exercise.id, "solved", exercise.title)
    end = "" if message.endswith("?") else "."
    return Verdict(exercise.id, state, f'{message}{end} `hint("{exercise.id}")` helps')


def _require_answers(answers: tuple) -> None:
    blank = [answer for answer in answers if answer is None or is_blank(answer)]
    if blank and len(blank) < len(answers) and callable(blank[0]):
        raise NotAttempted(f"{describe(blank[0])} does nothing yet")
    if blank or not answers:
        raise NotAttempted


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
    if choices:
        fits = guess in choices
    else:
        is_number = isinstance(guess, (int, float)) and not isinstance(guess, bool)
        fits = is_number and math.isfinite(guess)
    if not fits:
        raise BadInput(
            f"keep the prediction {id}",
            f"it is {str(guess)[:40]!r}",
            f"predict {asked}",
        )
    print(f"{id} · you say {shown(guess)}{_keep(id, guess)}")


def reveal(id: str, answer: Any) -> None:
    """Print what it was, next to what was predicted, in the cell that answers the prediction `id`."""
    _require_id(id)
    if hasattr(answer, "item"):  # numpy and torch
        answer = answer.item()
    guess = _guess(id)
    if guess is None:
        print(f"{id} · it was {shown(answer)}")
        return
    verdict = _verdict(guess, answer)
    _keep(id, guess, answer=answer, verdict=verdict)
    print(f"{id} · you said {shown(guess)}, it was {shown(answer)}: {_REMARKS.get(verdict, verdict)}")


def predictions(lesson: str = "") -> Table:
    """List what you predicted in a lesson ("03") or in all, what it was, and how many were right."""
    rows = []
    verdicts = []
    for id, entry in _predicted(lesson):
        if "answer" in entry:
            verdict = entry["verdict"]
            verdicts.append(verdict)
            rows.append((id, shown(entry["guess"]), shown(entry["answer"]), verdict))
    line = "nothing was predicted here"
    if rows:
        line = f"{verdicts.count('right')} of {len(rows)} right, {verdicts.count('close')} close"
    return Table(("", "you said", "it was", ""), rows, line)


def progress_table() -> Table:
    """List all lessons, their exercises, which of them are solved, and how many predictions were right."""
    lessons = registry.lessons()
    times_solved = kept.load("solved")
    count = max(len(lesson.exercises) for lesson in lessons)
    rows = []
    for lesson in lessons:
        is_solved = [exercise.id in times_solved for exercise in lesson.exercises]
        cells = ["✓ solved" if solved else "open" for solved in is_solved]
        cells += ["–"] * (count - len(cells))
        cells.append(f"{sum(is_solved)} of {len(is_solved)}")
        # A prediction without a verdict was not revealed yet.
        verdicts = [entry["verdict"] for _, entry in _predicted(lesson.number) if "verdict" in entry]
        right = f"{verdicts.count('right')} of {len(verdicts)}"
        cells.append(right if verdicts else "–")
        rows.append((f"{lesson.number} {lesson.title}", *cells))
    numbers = map(str, range(1, count + 1))
    return Table(("lesson", *numbers, "solved", "predicted"), rows)


def _predicted(lesson: str) -> list[tuple[str, dict[str, Any]]]:
    entries = sorted(kept.load("predictions").items())
    return [(id, entry) for id, entry in entries if lesson in ("", id.partition("-")[0])]


def _guess(id: str) -> Any:
    return kept.load("predictions").get(id, {}).get("guess")


def _keep(id: str, guess: Any, **outcome: Any) -> str:
    registry.attend()
    return kept.keep("predictions", id, {"guess": guess, **outcome})


def _verdict(guess: Any, answer: Any) -> str:
    if isinstance(answer, str) or isinstance(guess, str):
        is_right = str(guess).casefold() == str(answer).casefold()
        return "right" if is_right else "wrong"
    if guess == answer:
        return "right"
    if isinstance(answer, int) and abs(answer) < _COUNTED:
        return "wrong"
    if isinstance(answer, float) and math.isclose(guess, answer, rel_tol=_RIGHT):
        return "right"
    has_same_sign = guess * answer > 0
    if has_same_sign and 1 / _CLOSE <= guess / answer <= _CLOSE:
        return "close"
    return "off"


def _show_buttons(id: str, choices: Sequence[str]) -> bool:
    """Show buttons that keep what is selected; False where there are no widgets."""
    is_in_kernel = hasattr(_jupyter.shell(), "kernel")
    if not is_in_kernel or Settings.from_env().panel not in ("auto", "widgets"):
        return False
    import ipywidgets
    from IPython.display import display

    guess = _guess(id)
    buttons = ipywidgets.ToggleButtons(
        options=choices,
        value=guess if guess in choices else None,
        style={"button_width": "auto"},
    )
    buttons.observe(lambda change: _keep(id, change.new), names="value")
    display(buttons)
    return True


def _require_id(id: str) -> None:
    if not isinstance(id, str) or not re.fullmatch(r"\d\d[bc]?-[a-z]", id):
        raise BadInput(
            "find the prediction",
            f"its id is {str(id)[:40]!r}",
            'use the id of the lesson\'s cell, such as "03-a"',
        )
