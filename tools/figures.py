"""Figures of lessons: how long one takes to work through, and how it is written.

python tools/build.py --table     all lessons, as a Markdown table
"""

import ast
import math
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import lesson
from lesson import Cell

MOST_CORE = 50  # minutes
_WORDS, _LINES, _EXERCISE, _PREDICTION = 180, 12, 5, 1  # words and lines in a minute; minutes for one

# Minutes that the cells compute, measured on two cores. Those of 00 to 07 are of the first edition, without
# LABKIT_SMALL: measure them again on a quiet machine. README has what they take with it.
_COMPUTING = {
    "00": 0.3,
    "01": 0.8,
    "02": 1.1,
    "03": 1.5,
    "04": 2.5,
    "05": 1.3,
    "06": 2.1,
    "07": 4.6,
    "08": 4.4,
    "09": 3.1,
    "10": 2.5,
    "11": 2.0,
}

_ENGINES = {"keras", "optuna", "pyarrow", "pyspark", "ray", "s3fs", "tensorflow", "tf_keras", "torch"}
_MARKUP = re.compile(r"```.*?```|<[^>]*>|!?\[([^\]]*)\]\([^)]*\)", re.DOTALL)


@dataclass(frozen=True)
class Figures:
    """What can be counted in the learner's notebook of one lesson.

    Attributes:
        core, extra: minutes, by the rule of CONTRIBUTING.md.
        lines: code lines of each code cell.
        runs: how many of the `exercises` run an engine when they are checked.
        brackets: opening parentheses in 150 words, without those of code.
        short: the share of sentences with less than six words.
        engine_calls, labkit_calls: calls of what was imported from an engine or labkit, or came from it.
    """

    core: float
    extra: float
    words: int
    lines: list[int]
    exercises: int
    runs: int
    diagrams: int
    brackets: float
    short: float
    engine_calls: int
    labkit_calls: int

    @property
    def time(self) -> str:
        """For the head of the lesson and README, in steps of five minutes."""
        core, extra = (5 * math.ceil(minutes / 5) for minutes in (self.core, self.extra))
        return f"{core} min" + (f", extra {extra} min" if extra else "")


def measure(number: str, cells: list[Cell]) -> Figures:
    """The figures of the lesson `number`, such as "03"."""
    kept = [cell for cell in cells if not (cell.is_solution or cell.is_claim or cell.is_note)]
    texts = [_MARKUP.sub(r"\1", cell.source) for cell in kept if cell.kind == "markdown"]
    words = sum(len(text.split()) for text in texts)
    prose = " ".join(line for text in texts for line in text.splitlines() if not re.match(r"[#|]", line))
    sentences = [len(part.split()) for part in re.split(r"(?<=[.!?])\s+|\n\n", prose) if part.strip()]
    lines = [len(_code_lines(cell)) for cell in kept if cell.kind == "code"]
    ids = re.findall(r"(?m)^### Exercise (\S+)", "\n".join(texts))
    return Figures(
        core=_minutes([cell for cell in kept if not cell.is_extra]) + _COMPUTING.get(number, 0),
        extra=_minutes([cell for cell in kept if cell.is_extra]),
        words=words,
        lines=lines,
        exercises=len(ids),
        runs=sum(_runs_an_engine(id) for id in ids),
        diagrams=sum(cell.source.count("](images/") for cell in kept),
        brackets=150 * re.sub(r"`[^`]*`", "", prose).count("(") / max(words, 1),
        short=sum(length < 6 for length in sentences) / max(len(sentences), 1),
        **_calls(kept),
    )


def sections(cells: list[Cell]) -> dict[str, float]:
    """The minutes of each section, by its heading, without what its cells compute."""
    found: dict[str, list[Cell]] = {}
    title = ""
    for cell in cells:
        if cell.kind == "markdown" and (heading := re.match(r"##? (.+)", cell.source)):
            title = heading[1]
        if not (cell.is_solution or cell.is_claim or cell.is_note):
            found.setdefault(title, []).append(cell)
    return {title: round(_minutes(section), 1) for title, section in found.items()}


def table(lessons: dict[str, list[Cell]]) -> str:
    """A Markdown table of the figures of all `lessons`: the cells of each by its number."""
    head = (
        "lesson | core min | extra min | words | lines per cell: median | p90 | longest | exercises that run "
        "an engine | diagrams | ( per 150 words | sentences < 6 words | engine calls | labkit calls"
    )
    rows = [head, re.sub(r"[^|]+", "---", head)]
    for number, cells in lessons.items():
        one = measure(number, cells)
        p90 = statistics.quantiles(one.lines, n=10, method="inclusive")[-1]
        figures = (
            number,
            *(f"{one.core:.0f}", f"{one.extra:.0f}", one.words),
            *(statistics.median(one.lines), f"{p90:g}", max(one.lines)),
            *(f"{one.runs} of {one.exercises}", one.diagrams, f"{one.brackets:.1f}", f"{one.short:.0%}"),
            *(one.engine_calls, one.labkit_calls),
        )
        rows.append(" | ".join(map(str, figures)))
    return "\n".join(f"| {row} |" for row in rows)


def _minutes(cells: list[Cell]) -> float:
    """What a reader needs for these cells, without the time that they compute."""
    texts = [_MARKUP.sub(r"\1", cell.source) for cell in cells if cell.kind == "markdown"]
    words = sum(len(text.split()) for text in texts)
    lines = sum(len(_code_lines(cell)) for cell in cells if cell.kind == "code")
    exercises = len(re.findall(r"(?m)^### Exercise ", "\n".join(texts)))
    predictions = sum("prediction" in cell.tags for cell in cells)
    return words / _WORDS + lines / _LINES + _EXERCISE * exercises + _PREDICTION * predictions


def _code_lines(cell: Cell) -> list[str]:
    return [line for line in cell.source.splitlines() if line.strip()]


def _runs_an_engine(id: str) -> bool:
    from labkit.exercises import registry, running

    exercises = {one.id: one for lesson in registry.lessons() for one in lesson.exercises}
    return id in exercises and exercises[id].seconds > running.LIMIT


def _calls(cells: list[Cell]) -> dict[str, int]:
    """Calls by where their first name comes from; a variable comes from where its value does."""
    origin: dict[str, str] = {}
    count = {"engine_calls": 0, "labkit_calls": 0}
    for cell in cells:
        for node in _in_order(lesson.parse(cell.source)) if cell.kind == "code" else ():
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for alias in node.names:
                    root = (getattr(node, "module", None) or alias.name).partition(".")[0]
                    kind = "engine_calls" if root in _ENGINES else f"{root}_calls"
                    origin[alias.asname or alias.name.partition(".")[0]] = kind
            elif isinstance(node, ast.Assign) and (kind := origin.get(_root(node.value))):
                names = (name for target in node.targets for name in ast.walk(target))
                origin |= {name.id: kind for name in names if isinstance(name, ast.Name)}
            elif isinstance(node, ast.Call) and origin.get(_root(node)) in count:
                count[origin[_root(node)]] += 1
    return count


def _in_order(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes in the order of the text; `ast.walk` goes level by level."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        yield from _in_order(child)


def _root(node: ast.AST) -> str | None:
    """`ray` of ``ray.data.range(3).count()``."""
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None
