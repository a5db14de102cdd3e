"""Build the notebooks from their sources: ``lessons/NN_name.py`` (jupytext's percent format).

    python tools/build.py            build all: NN_name.ipynb for learners, solutions/NN_name.ipynb;
                                     recipes/name.ipynb from lessons/recipes
    python tools/build.py --stale    only what is missing or older than its source (`make lab`)
    python tools/build.py --check    change nothing; fail where a notebook differs from its source

The learner's build is the solutions without the cells tagged ``solution``. `additions` says what the build
adds to the cells. README's table of lessons gets the minutes from their heads, and each teacher's page the
notes that are tagged ``instructor``. What a learner changed is never overwritten: it is kept as
``NN_name.mine-<time>.ipynb``, and the build says so.
"""

import argparse
import hashlib
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import additions
import lesson
from labkit.errors import LabError
from lesson import Cell

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTES = "## Where people stop, and what to say\n"
_KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def notebook(
    cells: list[Cell],
    *,
    solutions: bool,
    claims: bool = False,
    timed: bool = False,
) -> nbformat.NotebookNode:
    """Make a notebook of `cells`, with or without the solutions; nothing in it depends on the time.

    Args:
        claims: with the cells tagged ``claim`` too, which test what the lesson says about its outputs.
        timed: with those too that compare times, so that they hold on a machine that has nothing else to do.
    """
    left_out = {"instructor"}
    if not solutions:
        left_out.add("solution")
    if not claims:
        left_out.add("claim")
    if not timed:
        left_out.add("timed")
    seen: Counter[str] = Counter()
    made = []
    for cell in cells:
        if left_out & set(cell.tags):
            continue
        # An id that follows the content: a new cell changes one id, and not all those below it.
        digest = hashlib.sha256(f"{cell.kind}\n{cell.source}".encode()).hexdigest()[:8]
        seen[digest] += 1
        new = new_code_cell if cell.kind == "code" else new_markdown_cell
        metadata = {"tags": list(cell.tags)} if cell.tags else {}
        id_ = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        made.append(new(cell.source, id=id_, metadata=metadata))
    built = new_notebook(cells=made)
    built.metadata = {
        "kernelspec": _KERNEL,
        "language_info": {"name": "python"},
        "labkit": {"built": fingerprint(built)},
    }
    built = nbformat.from_dict(built)
    nbformat.validate(built)
    return built


def fingerprint(built: nbformat.NotebookNode) -> str:
    """Hash what was written in a notebook: sources and tags, and not outputs and counts."""
    cells = [[cell.cell_type, cell.source, cell.metadata.get("tags", [])] for cell in built.cells]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]


def lessons(folder: Path = FOLDER) -> Iterator[tuple[Path, Path, nbformat.NotebookNode]]:
    """Yield (source, target, notebook) for all notebooks of `folder`, from the ``lessons`` next to it."""
    for source in [*sources(folder), *recipes(folder)]:
        cells = additions.complete(source, lesson.read(source))
        if lesson.is_recipe(source):
            cells = [replace(cell, source=additions.deeper(cell.source)) for cell in cells]
            target = folder / "recipes" / f"{source.stem}.ipynb"
            yield source, target, notebook(cells, solutions=False)
            continue
        learners = notebook(cells, solutions=False)
        yield source, folder / source.with_suffix(".ipynb").name, learners
        cells = [replace(cell, source=additions.deeper(cell.source)) for cell in cells]
        solved = notebook(cells, solutions=True)
        yield source, folder / "solutions" / f"{source.stem}.ipynb", solved


def sources(folder: Path = FOLDER) -> list[Path]:
    """List the sources of all lessons."""
    return sorted((folder.parent / "lessons").glob("*.py"))


def recipes(folder: Path = FOLDER) -> list[Path]:
    """List the sources of all recipes."""
    return sorted((folder.parent / "lessons" / "recipes").glob("*.py"))


def pages(folder: Path = FOLDER) -> Iterator[tuple[Path, str]]:
    """Yield (path, text) of README with the lessons' times, and of each teacher's page with the notes."""
    readme = folder.parent / "README.md"
    table = readme.read_text(encoding="utf-8") if readme.exists() else ""
    for source in sources(folder):
        cells = lesson.read(source)
        minutes = lesson.minutes(cells)
        if minutes:
            row = rf"(\| \[[^|\n]*\(notebooks/{source.stem}\.ipynb\) \|[^|\n]*\|)[^|\n]*\|"
            table = re.sub(row, rf"\1 {minutes} min |", table)
        notes = "\n".join("- " + " ".join(cell.source.split()) for cell in cells if cell.is_note)
        page = folder.parent / "docs" / "teaching" / f"{lesson.number(source)}.md"
        if notes and page.exists():
            before, heading, text = page.read_text(encoding="utf-8").partition(NOTES)
            yield page, before + heading + notes + "\n\n" + text[text.index("## ") :]
    if table:
        yield readme, table


def build(folder: Path = FOLDER, *, only_stale: bool = False) -> list[str]:
    """Build the lessons below `folder`.

    Args:
        only_stale: leave a notebook alone that was built from the present source, whatever a
            learner did in it since.

    Returns:
        One line for each file that was written or kept.
    """
    lines = []
    for _, target, built in lessons(folder):
        there = _load(target) if target.exists() else None
        if only_stale and there is not None and _origin(there) == _origin(built):
            continue
        text = nbformat.writes(built) + "\n"
        if target.exists():
            if target.read_text(encoding="utf-8") == text:
                continue
            if there is None or fingerprint(there) not in (_origin(there), fingerprint(built)):
                lines.append(f"kept your {target.name} as {_set_aside(target).name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".part")
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
        lines.append(f"built {target.relative_to(folder.parent)}")
    for path, text in pages(folder):
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            lines.append(f"built {path.relative_to(folder.parent)}")
    return lines


def differences(folder: Path = FOLDER) -> list[str]:
    """Return a line for each notebook that differs from its source, apart from outputs and counts."""
    lines = []
    targets = set()
    for source, target, built in lessons(folder):
        targets.add(target)
        there = _load(target) if target.exists() else None
        name = target.relative_to(folder.parent)
        if there is None:
            lines.append(f"{name} is missing or not a notebook")
            continue
        cell = _first_difference(there, built)
        if cell is not None:
            lines.append(f"{name} differs from lessons/{source.name}: {cell}")
    built_only = (*folder.glob("solutions/*.ipynb"), *folder.glob("recipes/*.ipynb"))
    for path in sorted([*folder.glob("*.ipynb"), *built_only]):
        is_ours = lesson.NAME.fullmatch(path.stem) or path.parent.name == "recipes"
        if is_ours and ".mine-" not in path.name and path not in targets:
            lines.append(f"{path.relative_to(folder.parent)} has no source: delete it")
    for path, text in pages(folder):
        if path.read_text(encoding="utf-8") != text:
            lines.append(f"{path.relative_to(folder.parent)} has other times or notes than the lessons")
    return lines


def _first_difference(there: nbformat.NotebookNode, built: nbformat.NotebookNode) -> str | None:
    for number, (a, b) in enumerate(itertools.zip_longest(there.cells, built.cells), start=1):
        if a is None or b is None:
            return f"it has {len(there.cells)} cells, the source {len(built.cells)}"
        same_tags = a.metadata.get("tags", []) == b.metadata.get("tags", [])
        if (a.cell_type, a.source, a.get("id")) != (b.cell_type, b.source, b.id) or not same_tags:
            return f"cell {number}, {b.source.partition(chr(10))[0][:60]!r}"
    names = ("labkit", "kernelspec")
    same = all(there.metadata.get(name) == built.metadata[name] for name in names)
    return None if same else "its metadata"


def _load(path: Path) -> nbformat.NotebookNode | None:
    """Read the notebook at `path`; None if the file isn't one."""
    try:
        return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    except Exception:  # nbformat raises its own, json's and plain ones; all mean the same here
        return None


def _origin(built: nbformat.NotebookNode) -> str | None:
    """Return the fingerprint that a notebook had when it was built."""
    return built.metadata.get("labkit", {}).get("built")


def _set_aside(path: Path) -> Path:
    """Move a learner's file to a name of its own."""
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}"
    names = (f"{path.stem}.mine-{stamp}{more}.ipynb" for more in itertools.chain([""], itertools.count(2)))
    kept = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    return path.rename(kept)


def main(arguments: list[str] | None = None, folder: Path = FOLDER) -> int:
    parser = argparse.ArgumentParser(description="Build the notebooks from lessons/.")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--stale", action="store_true", help="only what is missing or older than its source")
    mode.add_argument("--check", action="store_true", help="change nothing; fail where something differs")
    options = parser.parse_args(arguments)
    try:
        lines = differences(folder) if options.check else build(folder, only_stale=options.stale)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    for line in lines:
        print(line)
    if options.check and lines:
        print("  fix: change the source in lessons/, then: python tools/build.py")
    return int(options.check and bool(lines))


if __name__ == "__main__":
    sys.exit(main())
