"""Figures of lessons: how long one takes to work through, and how it is written.

python tools/build.py --table     all lessons, as a Markdown table
"""

import math
import re
from dataclasses import dataclass

from lesson import Cell

# Calibrated with two readers' logs of lessons 03 and 06: words and characters of code in a minute.
_WORDS, _CHARACTERS, _PREDICTION = 100, 300, 1
_GRADES = {"★★★": 15, "★★": 8, "★": 3, "": 8}  # minutes of an exercise, by the stars in its heading

# Minutes that the cells compute in small mode, measured on two cores.
_COMPUTING = {
    "00": 0.4,
    "01": 1.0,
    "02": 0.8,
    "03": 0.5,
    "03b": 0.7,
    "04": 0.8,
    "05": 0.7,
    "05b": 0.8,
    "06": 0.9,
    "06b": 1.0,
    "07": 1.3,
    "08": 1.4,
    "09": 0.8,
    "10": 0.9,
    "11": 1.0,
    "12": 0.3,
    "12b": 0.3,
}

# Where a fresh reader took longer than the rule, by this factor: code that moves data by hand is read slowly.
_SLOWER = {"03": 1.05, "03b": 1.09, "05": 1.12, "05b": 1.07, "06": 1.05, "10": 1.2, "12": 1.15, "12b": 1.33}

_MARKUP = re.compile(r"```.*?```|<[^>]*>|!?\[([^\]]*)\]\([^)]*\)", re.DOTALL)


@dataclass(frozen=True)
class Figures:
    """What can be counted in the learner's notebook of one lesson.

    Attributes:
        minutes: by the rule of CONTRIBUTING.md.
        words: without those of code.
        lines: code lines of each code cell.
        grades: the stars of each exercise.
        brackets: opening parentheses in 150 words, without those of code.
        short: the share of sentences with less than six words.
    """

    minutes: float
    words: int
    lines: list[int]
    grades: list[str]
    brackets: float
    short: float

    @property
    def time(self) -> str:
        """For the head of the lesson and README, in steps of five minutes."""
        return f"about {5 * math.ceil(self.minutes / 5)} minutes"


def measure(number: str, cells: list[Cell]) -> Figures:
    """The figures of the lesson `number`, such as "03" or "03b"."""
    kept = [cell for cell in cells if not (cell.is_solution or cell.is_claim or cell.is_note)]
    texts = [_MARKUP.sub(r"\1", cell.source) for cell in kept if cell.kind == "markdown"]
    words = sum(len(text.split()) for text in texts)
    prose = " ".join(line for text in texts for line in text.splitlines() if not re.match(r"[#|]", line))
    sentences = [len(part.split()) for part in re.split(r"(?<=[.!?])\s+|\n\n", prose) if part.strip()]
    return Figures(
        minutes=_minutes(kept) * _SLOWER.get(number, 1) + _COMPUTING.get(number, 0),
        words=words,
        lines=[len(_code_lines(cell)) for cell in kept if cell.kind == "code"],
        grades=re.findall(r"(?m)^### Exercise \S+ *(★*)", "\n".join(texts)),
        brackets=150 * re.sub(r"`[^`]*`", "", prose).count("(") / max(words, 1),
        short=sum(length < 6 for length in sentences) / max(len(sentences), 1),
    )


def sections(number: str, cells: list[Cell]) -> dict[str, float]:
    """The minutes of each section of a lesson, by its heading, without what its cells compute."""
    found: dict[str, list[Cell]] = {}
    title = ""
    for cell in cells:
        if cell.kind == "markdown" and (heading := re.match(r"##? (.+)", cell.source)):
            title = heading[1]
        if not (cell.is_solution or cell.is_claim or cell.is_note):
            found.setdefault(title, []).append(cell)
    slower = _SLOWER.get(number, 1)
    return {title: round(_minutes(section) * slower, 1) for title, section in found.items()}


def table(lessons: dict[str, list[Cell]]) -> str:
    """A Markdown table of the figures of all `lessons`: the cells of each by its number."""
    head = "lesson | minutes | words | code lines | longest cell | exercises | ( in 150 words | short ones"
    rows = [head, re.sub(r"[^|]+", "---", head)]
    for number, cells in lessons.items():
        one = measure(number, cells)
        grades = " ".join(grade or "?" for grade in one.grades)
        figures = f"{one.minutes:.0f}", one.words, sum(one.lines), max(one.lines), grades
        rows.append(" | ".join(map(str, (number, *figures, f"{one.brackets:.1f}", f"{one.short:.0%}"))))
    return "\n".join(f"| {row} |" for row in rows)


def _minutes(cells: list[Cell]) -> float:
    """What a reader needs for these cells, without the time that they compute."""
    texts = [_MARKUP.sub(r"\1", cell.source) for cell in cells if cell.kind == "markdown"]
    words = sum(len(text.split()) for text in texts)
    lines = [line.strip() for cell in cells if cell.kind == "code" for line in _code_lines(cell)]
    grades = re.findall(r"(?m)^### Exercise \S+ *(★*)", "\n".join(texts))
    predictions = sum("prediction" in cell.tags for cell in cells)
    exercises = sum(_GRADES[grade] for grade in grades)
    return words / _WORDS + sum(map(len, lines)) / _CHARACTERS + exercises + _PREDICTION * predictions


def _code_lines(cell: Cell) -> list[str]:
    return [line for line in cell.source.splitlines() if line.strip() and not line.lstrip().startswith("#")]
