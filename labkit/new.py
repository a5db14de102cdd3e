"""``python -m labkit new NAME``: an experiment of the reader's own, as a script, a notebook and a test file.

The templates are in ``labkit/templates``. A cell of ``experiment.py`` whose tags don't fit is left out.
"""

import json
import keyword
import re
from pathlib import Path

from labkit import datasets
from labkit.errors import SetupError
from labkit.files import atomic_write
from labkit.settings import PACKAGE_ROOT

_TASKS = {"folder": ("classification",), "table": ("classification", "regression"), "text": ("language",)}
_ROWS = {"folder": "images", "table": "numbers", "text": "tokens"}  # what a row of x is
_DATA = "folder:PATH, table:PATH:TARGET or text:PATH"


def new(name: str, data: str | None = None, task: str | None = None, where: Path | str = ".") -> list[Path]:
    """Write ``WHERE/NAME`` with three files, and return their paths. The data are read once, as a check.

    Args:
        name: of the experiment, also of its module.
        data: "folder:PATH", "table:PATH:TARGET" or "text:PATH"; default: a table that is made on the spot.
        task: "classification", "regression" or "language"; needed where the data don't decide.

    Raises:
        LabError: the name can't be used, the folder exists, or the data can't be read or don't fit the task.
    """
    import jupytext
    import nbformat

    attempt, folder = f"make the experiment {name!r}", Path(where, name).resolve()
    if not (name.isidentifier() and name.isascii()) or keyword.iskeyword(name) or name.startswith("test_"):
        fix = "use letters, digits and _, as in my_experiment; it must not begin with test_"
        raise SetupError(attempt, "Python could not import a module of that name", fix)
    if folder.exists():
        raise SetupError(attempt, f"{folder} exists, and nothing is overwritten", "use another name")
    if "notebooks" in folder.parts[:-1]:
        raise SetupError(attempt, f"{folder} is in the folder of the lessons", "change to another folder")
    kind, path, target = _parsed(data, attempt)
    tasks = _TASKS[kind] if data else ("regression",)
    if task is not None and task not in tasks:
        fact = f"{data or 'the table made on the spot'} is for {' or '.join(tasks)}, and --task is {task}"
        raise SetupError(attempt, fact, f"--task {tasks[0]}, or other data")
    if data:
        task = _loaded(kind, path, target, task).task
    fitting = {_ROWS[kind], kind if data else "made", task or tasks[0]}

    words = {"PATH": str(path), "TARGET": target, "TASK": task or ""}
    text = (PACKAGE_ROOT / "templates" / "experiment.py").read_text(encoding="utf-8")
    fill = lambda found: json.dumps(words[found[1]], ensure_ascii=False) if found[1] else name  # noqa: E731
    notebook = jupytext.reads(re.sub('"(PATH|TARGET|TASK)"|EXPERIMENT', fill, text), fmt="py:percent")
    notebook.cells = [cell for cell in notebook.cells if fitting.issuperset(cell.metadata.pop("tags", []))]
    notebook.metadata = {"jupytext": {"notebook_metadata_filter": "-all", "cell_metadata_filter": "-all"}}
    script = jupytext.writes(notebook, fmt="py:percent")
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    tests = (PACKAGE_ROOT / "templates" / "test_experiment.py").read_text(encoding="utf-8")
    contents = {
        f"{name}.py": script,
        f"{name}.ipynb": nbformat.writes(notebook),
        f"test_{name}.py": tests.replace("EXPERIMENT", name),
    }
    folder.mkdir(parents=True)
    return [atomic_write(folder / file, content) for file, content in contents.items()]


def _parsed(data: str | None, attempt: str) -> tuple[str, Path, str]:
    """(kind, path, target) of what --data says."""
    kind, _, rest = (data or "table:made on the spot:price").partition(":")
    path, _, target = rest.rpartition(":") if kind == "table" else (rest, "", "")
    if kind not in _TASKS or not path or (kind == "table" and not target):
        raise SetupError(attempt, f"--data is {data!r}", f"use --data {_DATA}")
    return kind, Path(path).expanduser().resolve(), target


def _loaded(kind: str, path: Path, target: str, task: str | None) -> datasets.OwnData:
    """The data, as the template reads them."""
    if kind == "folder":
        return datasets.from_folder(path, size=(32, 32))
    if kind == "text":
        return datasets.from_text(path, length=64)
    return datasets.from_table(path, target=target, task=task)
