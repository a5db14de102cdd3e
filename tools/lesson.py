"""A lesson's source, read into cells and held against the rules of CONTRIBUTING.md."""

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jupytext

from labkit.errors import LabError

NAME = re.compile(r"(\d\d[bc]?)_\w+|tour")
TAGS = {"claim", "timed", "instructor", "links", "long", "plain", "prediction", "solution"}
TAGS |= {"raises-exception"}  # Jupyter's own
MAX_LINES = 30


@dataclass(frozen=True)
class Cell:
    """One cell of a lesson's source; `kind` is ``code`` or ``markdown``."""

    kind: str
    source: str
    tags: tuple[str, ...] = ()

    @property
    def is_solution(self) -> bool:
        return "solution" in self.tags

    @property
    def is_claim(self) -> bool:
        return "claim" in self.tags

    @property
    def is_note(self) -> bool:
        """True for a cell that is for the teacher: no notebook has it."""
        return "instructor" in self.tags

    @property
    def is_heading(self) -> bool:
        return self.kind == "markdown" and self.source.startswith("#")


def number(path: Path) -> str:
    """Return the number of the lesson that a file belongs to: "03", "03b", or "tour"."""
    return path.stem.partition("_")[0]


def minutes(cells: list[Cell]) -> int:
    """Return the minutes that a lesson's head names; 0 if it names none."""
    named = re.search(r"\*\*Time\*\* about (\d+) minutes", cells[0].source)
    return int(named[1]) if named else 0


def read(source: Path) -> list[Cell]:
    """Read and check the cells of a lesson.

    Raises:
        LabError: the lesson breaks one of the rules in CONTRIBUTING.md.
    """
    parsed = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    cells = [Cell(c.cell_type, c.source, tuple(c.metadata.get("tags", ()))) for c in parsed.cells]
    for fact, fix in itertools.chain(_faults_of_head(source, cells), _faults_of_cells(cells)):
        raise LabError(f"build the lesson {source.name}", fact, fix)
    return cells


def is_recipe(source: Path) -> bool:
    """Return whether a source is a recipe: one idea, at most ten minutes, without exercises."""
    return source.parent.name == "recipes"


def _faults_of_head(source: Path, cells: list[Cell]) -> Iterator[tuple[str, str]]:
    """Yield (fact, fix) of what is wrong with the name and the first cell."""
    if is_recipe(source):
        if not cells or not cells[0].source.startswith("# "):
            yield "its first cell is no title", "begin with a cell '# What the recipe does'"
        if not any(cell.is_claim for cell in cells):
            yield "nothing tests what it says", "add a cell of asserts, tagged 'claim'"
        return
    name = NAME.fullmatch(source.stem)
    if name is None:
        yield "its name is not NN_name.py", "name it like 03_torch_trainer.py or 03b_checkpoints.py"
        return
    if name[1] is None:  # the tour has no exercises and needs nothing
        return
    head = cells[0].source if cells and cells[0].kind == "markdown" else ""
    objectives = "**You will be able to**" if "**You will be able to**" in head else "lesson you can"
    for wanted in (f"# {name[1]} · ", objectives, "**Needs**"):
        if wanted not in head:
            yield f"its first cell lacks {wanted.strip()!r}", "write the head as in CONTRIBUTING.md"
    if not minutes(cells):
        yield "its first cell doesn't say how long it takes", "write: **Time** about 60 minutes"


def _faults_of_cells(cells: list[Cell]) -> Iterator[tuple[str, str]]:
    """Yield (fact, fix) of what is wrong with the cells."""
    for number, cell in enumerate(cells, start=1):
        where = f"cell {number} ({cell.source.strip().partition(chr(10))[0][:50]!r})"
        unknown = set(cell.tags) - TAGS
        if unknown:
            yield f"{where} has the unknown tag {min(unknown)!r}", f"use one of {', '.join(sorted(TAGS))}"
        if cell.is_note and (cell.kind == "code" or cell.is_heading or "\n\n" in cell.source):
            yield f"{where} is a teacher's note and not one paragraph of Markdown", "split it, or rewrite it"
        if cell.kind != "code":
            continue
        lines = len(cell.source.splitlines())
        if lines > MAX_LINES and "long" not in cell.tags:
            yield f"{where} has {lines} lines", f"split it, at most {MAX_LINES}; or tag it 'long'"
        error = _syntax_error(cell.source)
        if error:
            yield f"{where} is not Python: {error}", "fix the cell"
    for section in _sections(cells):
        if any(c.is_solution for c in section) and not any(_calls_check(c) for c in section):
            title = section[0].source.partition("\n")[0].lstrip("# ")
            yield f"the section {title!r} has a solution and no check", "add a cell that calls check(…)"


def _sections(cells: list[Cell]) -> Iterator[list[Cell]]:
    """Yield the cells from one heading to the next."""
    numbers = itertools.accumulate(int(cell.is_heading) for cell in cells)
    for _, pairs in itertools.groupby(zip(numbers, cells, strict=True), key=lambda pair: pair[0]):
        yield [cell for _, cell in pairs]


def parse(source: str) -> ast.AST:
    """Parse a cell, which may hold magics and a top-level await."""
    try:
        return compile(source, "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        from IPython.core.inputtransformer2 import TransformerManager  # half a second: only where needed

        return ast.parse(TransformerManager().transform_cell(source))


def _syntax_error(source: str) -> str | None:
    try:
        parse(source)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    return None


def _calls_check(cell: Cell) -> bool:
    """Return whether a cell calls ``check(…)`` or ``something.check(…)``."""
    if cell.kind != "code":
        return False
    calls = (node.func for node in ast.walk(parse(cell.source)) if isinstance(node, ast.Call))
    return any("check" in (getattr(func, "id", None), getattr(func, "attr", None)) for func in calls)
