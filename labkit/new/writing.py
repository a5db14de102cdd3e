"""``python -m labkit new NAME``: an experiment of the reader's own, as a script, a notebook and a test file.

A cell of ``templates/experiment.py`` whose tags don't fit the data is left out.
"""

import keyword
from collections.abc import Sequence
from pathlib import Path

from labkit import datasets
from labkit.errors import LabError
from labkit.files import atomic_write

_TEMPLATES = Path(__file__).parent / "templates"
_DATA = "folder:PATH, table:PATH:TARGET or text:PATH"


def new(
    name: str,
    data: str | None = None,
    task: str | None = None,
    *,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    where: Path | str = ".",
) -> list[Path]:
    """Write ``WHERE/NAME`` with three files, and return their paths. As a check, the data are read.

    Args:
        name: of the experiment, also of its module.
        data: "folder:PATH", "table:PATH:TARGET" or "text:PATH"; default: a table that is made on the spot.
        task: "classification", "regression" or "language"; needed where the data don't decide.
        drop, categories: columns of the table, as `labkit.datasets.from_table` takes them.

    Raises:
        LabError: the name can't be used, the folder exists, or the data can't be read or don't fit the task.
    """
    import jupytext
    import nbformat

    attempt, folder = f"make the experiment {name!r}", Path(where, name).resolve()
    if not (name.isidentifier() and name.isascii()) or keyword.iskeyword(name) or name.startswith("test_"):
        fix = "use letters, digits and _, as in my_experiment; it must not begin with test_"
        raise LabError(attempt, "Python could not import a module of that name", fix)
    if folder.exists():
        raise LabError(attempt, f"{folder} exists, and nothing is overwritten", "use another name")
    if "notebooks" in folder.parts[:-1]:
        raise LabError(attempt, f"{folder} is in the folder of the lessons", "change to another folder")
    columns = {"drop": list(drop), "categories": list(categories)}
    if any(columns.values()) and not (data or "").startswith("table:"):
        fact = f"{', '.join([*drop, *categories])} should be a column, and --data is no table"
        raise LabError(attempt, fact, "leave out --drop and --categories, or use --data table:PATH:TARGET")
    call, fitting = _load(data, task, columns, attempt) if data else ("", {"made", "numbers", "regression"})
    if task not in (None, *fitting):
        likely = next(iter(fitting & {"classification", "regression", "language"}))
        fact = f"{data or 'the table made on the spot'} is for {likely}, and --task is {task}"
        raise LabError(attempt, fact, f"--task {likely}, or other data")

    text = (_TEMPLATES / "experiment.py").read_text(encoding="utf-8")
    notebook = jupytext.reads(text.replace("EXPERIMENT", name), fmt="py:percent")
    notebook.cells = [cell for cell in notebook.cells if fitting.issuperset(cell.metadata.pop("tags", []))]
    for cell in notebook.cells:
        cell.source = cell.source.replace("datasets.DATA", call)
    notebook.metadata = {"jupytext": {"notebook_metadata_filter": "-all", "cell_metadata_filter": "-all"}}
    script = jupytext.writes(notebook, fmt="py:percent")
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    tests = (_TEMPLATES / "test_experiment.py").read_text(encoding="utf-8")
    contents = {
        f"{name}.py": script,
        f"{name}.ipynb": nbformat.writes(notebook),
        f"test_{name}.py": tests.replace("EXPERIMENT", name),
    }
    folder.mkdir(parents=True)
    return [atomic_write(folder / file, content) for file, content in contents.items()]


def _load(data: str, task: str | None, columns: dict[str, list[str]], attempt: str) -> tuple[str, set[str]]:
    """Read what --data names; returns the call that does so, and the tags of the cells that fit."""
    kind, _, rest = data.partition(":")
    path, _, target = rest.rpartition(":") if kind == "table" else (rest, "", "")
    readers = {
        "folder": (datasets.from_folder, {"size": (32, 32)}),
        "table": (datasets.from_table, {"target": target, "task": task, **columns}),
        "text": (datasets.from_text, {"length": 64}),
    }
    if kind not in readers or not path or (kind == "table" and not target):
        raise LabError(attempt, f"--data is {data!r}", f"use --data {_DATA}")
    (read, options), path = readers[kind], str(Path(path).expanduser().resolve())
    options = {name: value for name, value in options.items() if value}
    own = read(path, **options)  # what is damaged is better known now than in the middle of a training
    given = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return f"datasets.{read.__name__}({path!r}, {given})", {"given", own.kind, own.task}
