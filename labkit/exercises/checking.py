"""Check an answer and ask for a hint; predict what comes out, and see what came out.

    >>> check("03-2", global_batch)
    03-2 solved · Same model, one process
    >>> hint("03-2")
    Hint 1 of 3 for 03-2: What does every worker hold after `backward()`? (More: hint("03-2") again)
    >>> predict("03-a", 2)
    03-a · you say 2
    >>> reveal("03-a", 0.7)
    03-a · you said 2, it was 0.7: more than a factor of two off

With ``LABKIT_CHECK=strict`` every verdict but *solved* raises: this is how the tests run the solutions.
A prediction that is left alone (``predict("03-a")`` or with ``...``) costs nothing.
"""

import contextlib
import html
import inspect
import itertools
import math
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from labkit.display.cards import Table
from labkit.display.formatting import number as shown
from labkit.errors import LabError
from labkit.exercises import kept, registry, sections
from labkit.exercises.answers import NotAttempted, Wrong, describe, is_blank
from labkit.exercises.registry import Exercise
from labkit.exercises.running import limited
from labkit.settings import Settings

# A mark and a colour for each state. JupyterLab's colours are mixed with the text's own, since they are too
# pale on white or too dark on black.
_MIXED = "color-mix(in srgb,var({}) 70%,currentColor)"
_STATES = {
    "solved": ("✓", _MIXED.format("--jp-success-color1,#2e7d4f")),
    "not yet": ("✕", _MIXED.format("--jp-error-color1,#c62828")),
    "not attempted": ("○", "var(--jp-content-font-color2,#666)"),
}
_RIGHT, _CLOSE = 0.1, 2.0  # a prediction is right within 10 %, close within a factor of two
_COUNTED = 100  # smaller whole numbers are counts: they are right or wrong
_REMARKS = {"off": "more than a factor of two off", "wrong": "no"}

_solved: set[str] = set()  # in this kernel
_hints_given: dict[str, int] = {}  # of this kernel: a notebook that is run again starts with hint 1


@dataclass(frozen=True)
class Verdict:
    """What a check found, in one line; true if the exercise is solved. `state` is one of `_STATES`."""

    id: str
    state: str
    message: str

    def __bool__(self) -> bool:
        return self.state == "solved"

    def __repr__(self) -> str:
        return f"{self.id} {self.state} · {self.message}"

    def _repr_html_(self) -> str:
        mark, colour = _STATES[self.state]
        head = f"<b style='color:{colour}'>{mark} {self.id} {self.state}</b>"
        return f"<div>{head} · {_html(self.message)}</div>"


@dataclass(frozen=True)
class Hint:
    """One of the three hints of an exercise."""

    id: str
    tier: int
    text: str

    def __repr__(self) -> str:
        more = f'More: `hint("{self.id}")` again'
        last = "This is the last one; the solution is in `notebooks/solutions`, or with your teacher"
        return f"Hint {self.tier} of 3 for {self.id}: {self.text} ({more if self.tier < 3 else last})"

    def _repr_html_(self) -> str:
        return f"<div>{_html(repr(self))}</div>"


def check(id: str, *answers: Any) -> Verdict:
    """Look at the `answers` to the exercise `id`, and record it if it is solved.

    An answer of ``...`` or None is *not attempted*. Any other wrong answer is *not yet*, even if looking at
    it raises: a check gives a verdict and no traceback. A check that takes too long is stopped.

    Raises:
        LabError: there is no such exercise; or it is not solved and ``LABKIT_CHECK=strict``.
    """
    exercise = registry.find(id)
    verdict = _judge(exercise, answers)
    (_solved.add if verdict else _solved.discard)(id)
    if Settings.from_env().check_strict and not verdict:
        fact, fix = f"{verdict.state}: {verdict.message}", f'hint("{id}"), or unset LABKIT_CHECK'
        raise LabError(f"count exercise {id} ({exercise.title}) as solved", fact, fix)
    sections.attend()
    if not verdict:
        return verdict
    now = datetime.now(UTC).isoformat(timespec="seconds")
    problem = kept.keep("solved", id, now, merge=lambda new, first: first)
    return Verdict(id, verdict.state, verdict.message + problem)


def solved(id: str) -> bool:
    """Whether the last `check` of the exercise, in this kernel, found it solved."""
    return id in _solved


def hint(id: str) -> Hint:
    """Return the next hint of the exercise `id`: the first, the second, the third, then the first again.

    Raises:
        LabError: there is no such exercise.
    """
    exercise = registry.find(id)
    tier = _hints_given[id] = _hints_given.get(id, 0) % 3 + 1
    kept.keep("hints", id, tier, merge=max)
    sections.attend()
    return Hint(id, tier, exercise.hints[tier - 1])


def _judge(exercise: Exercise, answers: tuple) -> Verdict:
    try:
        with _sign_of_life(exercise), limited(exercise.seconds, exercise.stuck):
            _ask(exercise, answers)
    except NotAttempted as error:
        state, message = "not attempted", str(error) or "put your answer where the `...` is"
    except Wrong as error:
        state, message = "not yet", _line(error)
    except (Exception, SystemExit) as error:
        raised = f"looking at it raised {type(error).__name__}: {_line(error)}"
        state, message = "not yet", f"your answer is {', '.join(map(describe, answers))}, and {raised}"
    else:
        return Verdict(exercise.id, "solved", exercise.title)
    end = "" if message.endswith("?") else "."
    return Verdict(exercise.id, state, f'{message}{end} `hint("{exercise.id}")` helps')


@contextlib.contextmanager
def _sign_of_life(exercise: Exercise) -> Iterator[None]:
    """In this block a line counts the seconds, from the second one on."""
    over = threading.Event()

    def count() -> None:
        for seconds in itertools.count(2, 2):
            if over.wait(2):
                return
            line = f"{exercise.id} · running your answer: {seconds} s of at most {exercise.seconds:g}"
            print(f"\r{line}", end="", flush=True)

    thread = threading.Thread(target=count, name="labkit-check", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _ask(exercise: Exercise, answers: tuple) -> None:
    if not answers or any(is_blank(answer) or answer is None for answer in answers):
        raise NotAttempted
    signature = inspect.signature(exercise.check)
    try:
        signature.bind(*answers)
    except TypeError as error:
        wanted = ", ".join(signature.parameters)
        raise Wrong(f"the check takes {wanted}, and you passed {len(answers)}") from error
    exercise.check(*answers)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= 300 else text[:299] + "…"


def _html(text: str) -> str:
    """Markdown's `code` and *emphasis* as HTML."""
    code = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return re.sub(r"(?<!\w)\*(\S[^*<>]*)(?<!\s)\*(?!\w)", r"<em>\1</em>", code)


# -- predictions ------------------------------------------------------------------------------------


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
    print(f"{id} · you said {shown(guess)}, it was {shown(answer)}: {_REMARKS.get(verdict, verdict)}")


def predictions(lesson: str = "") -> Table:
    """List what you predicted in a lesson ("03") or in all, what it was, and how many were right."""
    found = sorted(kept.load("predictions").items())
    mine = [(id, one) for id, one in found if lesson in ("", id.partition("-")[0]) and "answer" in one]
    rows = [(id, shown(one["guess"]), shown(one["answer"]), one["verdict"]) for id, one in mine]
    verdicts = [row[-1] for row in rows]
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
