"""Check an answer, and ask for a hint.

    >>> check("03-2", global_batch)
    03-2 solved · Same model, one process
    >>> hint("03-2")
    Hint 1 of 3 for 03-2: What does every worker hold after `backward()`? (More: hint("03-2") again)

With ``LABKIT_CHECK=strict`` every verdict but *solved* raises: this is how the tests run the solutions.
"""

import html
import inspect
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

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
    if Settings.from_env().check_strict and not verdict:
        raise LabError(
            f"count exercise {id} ({exercise.title}) as solved",
            f"{verdict.state}: {verdict.message}",
            f'hint("{id}"), or unset LABKIT_CHECK: then a check never raises',
        )
    sections.attend()
    if not verdict:
        return verdict
    now = datetime.now(UTC).isoformat(timespec="seconds")
    problem = kept.keep("solved", id, now, merge=lambda new, first: first)
    return Verdict(id, verdict.state, verdict.message + problem)


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
        with limited(exercise.seconds, exercise.stuck):
            returned = _ask(exercise, answers)
    except NotAttempted:
        state, message = "not attempted", "put your answer where the `...` is"
    except Wrong as error:
        state, message = "not yet", _line(error)
    except (Exception, SystemExit) as error:
        raised = f"looking at it raised {type(error).__name__}: {_line(error)}"
        state, message = "not yet", f"your answer is {', '.join(map(describe, answers))}, and {raised}"
    else:
        if returned is None:
            return Verdict(exercise.id, "solved", exercise.title)
        # Otherwise a check that forgets to raise would accept every answer.
        fact, fix = f"it returned {describe(returned)}", "a check returns None or raises Wrong"
        raise LabError(f"use the check of exercise {exercise.id}", fact, fix)
    end = "" if message.endswith("?") else "."
    return Verdict(exercise.id, state, f'{message}{end} `hint("{exercise.id}")` helps')


def _ask(exercise: Exercise, answers: tuple) -> Any:
    if not answers or any(is_blank(answer) or answer is None for answer in answers):
        raise NotAttempted
    signature = inspect.signature(exercise.check)
    try:
        signature.bind(*answers)
    except TypeError as error:
        wanted = ", ".join(signature.parameters)
        raise Wrong(f"the check takes {wanted}, and you passed {len(answers)}") from error
    return exercise.check(*answers)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= 300 else text[:299] + "…"


def _html(text: str) -> str:
    """Markdown's `code` and *emphasis* as HTML."""
    code = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return re.sub(r"(?<!\w)\*(\S[^*<>]*)(?<!\s)\*(?!\w)", r"<em>\1</em>", code)
