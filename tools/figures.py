"""Figures of lessons: how long one takes to work through, and how it is written.

python tools/build.py --table     all lessons, as a Markdown table
"""

import ast
import math
import re
from dataclasses import dataclass

import lesson
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
    "07": 1.3,
    "08": 1.4,
    "09": 0.8,
    "10": 0.9,
    "11": 1.0,
    "12": 0.3,
    "12b": 0.3,
}

_MARKUP = re.compile(r"```.*?```|<[^>]*>|!?\[([^\]]*)\]\([^)]*\)", re.DOTALL)


@dataclass(frozen=True)
class Figures:
    """What can be counted in the learner's notebook of one lesson.

    Attributes:
        core, extra: minutes, by the rule of CONTRIBUTING.md.
        words: in the core; `names` are what it has in backticks and could be typed, each counted once.
        lines: code lines of each code cell of the core.
        labkit_share: of the core's code lines those that use labkit, without calls of exercises.
        grades: the stars of each exercise; `runs`: how many of them run an engine when they are checked.
        brackets: opening parentheses in 150 words, without those of code.
        short: the share of sentences with less than six words.
    """

    core: float
    extra: float
    words: int
    names: int
    lines: list[int]
    labkit_share: float
    grades: list[str]
    runs: int
    diagrams: int
    brackets: float
    short: float

    @property
    def time(self) -> str:
        """For the head of the lesson and README, in steps of five minutes."""
        core, extra = (5 * math.ceil(minutes / 5) for minutes in (self.core, self.extra))
        return f"about {core} minutes" + (f", extra sections {extra}" if extra else "")


def measure(number: str, cells: list[Cell]) -> Figures:
    """The figures of the lesson `number`, such as "03" or "03b"."""
    kept = [cell for cell in cells if not (cell.is_solution or cell.is_claim or cell.is_note)]
    core = [cell for cell in kept if not cell.is_extra]
    texts = [_MARKUP.sub(r"\1", cell.source) for cell in core if cell.kind == "markdown"]
    words = sum(len(text.split()) for text in texts)
    prose = " ".join(line for text in texts for line in text.splitlines() if not re.match(r"[#|]", line))
    sentences = [len(part.split()) for part in re.split(r"(?<=[.!?])\s+|\n\n", prose) if part.strip()]
    exercises = re.findall(r"(?m)^### Exercise (\S+) *(★*)", "\n".join(texts))
    return Figures(
        core=_minutes(core) + _COMPUTING.get(number, 0),
        extra=_minutes([cell for cell in kept if cell.is_extra]),
        words=words,
        names=len(
            {name for text in texts for name in re.findall(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`", text)}
        ),
        lines=[len(_code_lines(cell)) for cell in core if cell.kind == "code"],
        labkit_share=_labkit_share(core),
        grades=[grade for _, grade in exercises],
        runs=sum(_runs_an_engine(id) for id, _ in exercises),
        diagrams=sum(cell.source.count("](images/") for cell in kept),
        brackets=150 * re.sub(r"`[^`]*`", "", prose).count("(") / max(words, 1),
        short=sum(length < 6 for length in sentences) / max(len(sentences), 1),
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
        "lesson | minutes | extra | words | code lines | names | words per name | labkit lines | "
        "exercises | that run an engine | pictures | longest cell | ( per 150 words | sentences < 6 words"
    )
    rows = [head, re.sub(r"[^|]+", "---", head)]
    for number, cells in lessons.items():
        one = measure(number, cells)
        figures = (
            *(number, f"{one.core:.0f}", f"{one.extra:.0f}", one.words, sum(one.lines), one.names),
            *(f"{one.words / max(one.names, 1):.0f}", f"{one.labkit_share:.0%}"),
            *(" ".join(grade or "?" for grade in one.grades), one.runs, one.diagrams, max(one.lines)),
            *(f"{one.brackets:.1f}", f"{one.short:.0%}"),
        )
        rows.append(" | ".join(map(str, figures)))
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


def _runs_an_engine(id: str) -> bool:
    from labkit.exercises import registry, running

    exercises = {one.id: one for lesson in registry.lessons() for one in lesson.exercises}
    return id in exercises and exercises[id].seconds > running.LIMIT


def _labkit_share(cells: list[Cell]) -> float:
    """The share of code lines that import labkit, or use a name that came from it or holds what it made."""
    ours: set[str] = set()
    using = total = 0
    for cell in (cell for cell in cells if cell.kind == "code"):
        lines: set[int] = set()
        tree = lesson.parse(cell.source)
        for node in sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0)):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                module = getattr(node, "module", None) or node.names[0].name
                if module.partition(".")[0] == "labkit" and module != "labkit.exercises":
                    ours |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
                    lines.add(node.lineno)
            elif isinstance(node, ast.Assign) and _root(node.value) in ours:
                ours |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
            elif isinstance(node, (ast.With, ast.AsyncWith)):
                made = [i.optional_vars for i in node.items if _root(i.context_expr) in ours]
                ours |= {name.id for name in made if isinstance(name, ast.Name)}
        lines |= {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in ours}
        using += len(lines)
        total += len(_code_lines(cell))
    return using / max(total, 1)


def _root(node: ast.AST) -> str | None:
    """`ray` of ``ray.data.range(3).count()``."""
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None
